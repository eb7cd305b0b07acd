"""From a request to the files that launch its plan, or the best one."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from cost_models.plans import ParallelPlan
from cost_models.spec import TrainingSpec
from planner import frameworks
from planner.answers.plans import plan_answers
from planner.documents.answer import Pick, PlanAnswer
from planner.documents.formats import gap, gib, overflow, seconds
from planner.documents.plan_report import PlanReport
from planner.documents.problems import RequestError, choice, problem, refuse
from planner.documents.request import PlanRequest
from planner.documents.typed_values import looked_up
from planner.frameworks import launchers
from planner.frameworks.base import Bundle
from planner.frameworks.devices import WRITTEN, other_stack, preferred
from planner.frameworks.plan_defaults import own_trainings

# Plans of an answer that files are written for, as an option has their names.
PICKS = ("recommended", "fastest", "most-headroom", "published-recipe")


class NothingFits(RequestError):
    """There is no plan to write files for: no plan fits, or the given one does not.

    missing_bytes: how much more memory an accelerator would need; None where that is not known.
    """

    def __init__(
        self, detail: str, pointer: str = "", got: Any = None, missing_bytes: float | None = None
    ) -> None:
        super().__init__([problem(pointer, "nothing_fits", detail, got)])
        self.missing_bytes = missing_bytes


def emit(request: PlanRequest, launcher: str | None = None, pick: str | None = None) -> Bundle:
    """The files of the request's framework.

    For the request's plan (Megatron-LM's unless it names another), or else for the plan that is
    recommended, or another of PICKS, of the framework that is the fastest unless it names one;
    launcher: a key of planner.frameworks.launchers.LAUNCHERS, None for the framework's own script.

    Raises planner.frameworks.base.Unsupported with every reason, NothingFits, and RequestError
    for a launcher that is unknown or cannot start these files.
    """
    if launcher is not None:  # a wrong name need not wait for a search
        looked_up("/launcher", lambda: launchers.find_launcher(launcher))
    if stack := other_stack(request.cluster, WRITTEN):
        raise NothingFits(f"no launch files: {stack}, which no framework here writes for")
    name = request.search.framework or preferred(request.cluster) or frameworks.PREFERRED
    plan, said = request.plan, list[str]()
    if pick is not None and plan is not None:
        raise refuse("/pick", "inconsistent", "goes without a plan: this one is written", pick)
    if plan is None:
        if pick is not None and pick not in PICKS:
            raise RequestError([choice("/pick", pick, PICKS)])
        request, name, plan, said = _picked(request, pick or PICKS[0])
    asked, framework = request.for_framework(name), frameworks.get(name)
    bundle = framework.write(asked, plan)
    expected = plan_answers.estimate(asked, plan).estimate
    memory = expected.memory
    bundle = launched(with_words(bundle, [*said, expected_words(expected)]), asked, launcher)
    if memory.peak_bytes > memory.capacity_bytes:
        raise NothingFits(f"the plan does not fit: {overflow(memory)}")
    return bundle


def expected_words(plan: PlanReport) -> str:
    """What a run of the plan will show, for its launch files."""
    band, memory = plan.error_band, plan.memory
    return (
        f"Expected: {seconds(plan.iteration_time_s)} per iteration ({seconds(band.low_s)} to "
        f"{seconds(band.high_s)}: 80 % interval), {plan.tokens_per_s:,.0f} tokens/s; "
        f"{gib(memory.peak_bytes)} of {gib(memory.capacity_bytes)} GiB at the peak."
    )


def _picked(request: PlanRequest, pick: str) -> tuple[PlanRequest, str, ParallelPlan, list[str]]:
    """The request as it was answered, the framework, the plan and words on it.

    Raises NothingFits.
    """
    answer = plan_answers.find(request)
    if answer.best is None and answer.unbuildable is not None:
        raise NothingFits(answer.unbuildable.sentence)
    if answer.conflicts:
        raise NothingFits(f"nothing fits: {'; '.join(one.text for one in answer.conflicts)}")
    if answer.best is None:
        raise NothingFits("nothing fits; `planner plan` says why")
    if answer.launch is None:
        raise NothingFits("no framework here runs what was asked for")
    if pick == PICKS[-1]:
        return _published(request, answer)
    found = next((one for one in answer.picks if one.name.replace(" ", "-") == pick), None)
    training = TrainingSpec.model_validate(answer.request["training"])
    answered = request.model_copy(update={"training": training})
    name = answer.launch.framework
    if found is None:  # the plan with most memory free was asked for
        return answered, name, answer.best.plan, []
    return answered, name, found.plan.plan, pick_words(found, answer.picks)


def _published(
    request: PlanRequest, answer: PlanAnswer
) -> tuple[PlanRequest, str, ParallelPlan, list[str]]:
    """What `_picked` says of the published recipe.  Raises NothingFits where there is none."""
    found = answer.recipe
    if found is None:
        raise NothingFits(f"no recipe of {request.model.name} is known here")
    recipe = found.recipe
    if found.plan is None:
        raise NothingFits(f"{recipe.name} does not run here: {found.problem}")
    if recipe.framework is None:
        raise NothingFits(f"{recipe.name} is for {recipe.by}, which is not written here")
    said = f"The published recipe {recipe.name} of {recipe.by}: {recipe.url or recipe.source}"
    plan, name = found.plan.plan, recipe.framework
    return _trained_alike(request, name, plan), name, plan, [said]


def _trained_alike(request: PlanRequest, name: str, plan: ParallelPlan) -> PlanRequest:
    """The request as a framework runs a plan of it: as asked, else as it trains by itself."""
    framework = frameworks.get(name)
    own = own_trainings(framework, request.training, request.training_left_out)
    each = [request, *(request.model_copy(update={"training": one}) for one in own)]
    return next((one for one in each if not framework.reasons(one, plan)), request)


def pick_words(pick: Pick, picks: Sequence[Pick]) -> list[str]:
    """Which plan it is, and how to have another that is meant more often."""
    first = picks[0]
    if pick.plan.plan == first.plan.plan:
        alike = [one.name for one in picks if one.plan.plan == first.plan.plan and one != first]
        said = [f"The fastest plan{', which is also ' + alike[0] if alike else ''}."]
        other = next((one for one in picks if one.name == "recommended"), first)
        if other.plan.plan != first.plan.plan:
            said.append(f"planner emit without --pick writes the recommended one: {other.why}.")
        return said
    plan = "plan with most headroom" if pick.name == "most headroom" else f"{pick.name} plan"
    slower = f"{gap(pick.slower_by)} slower than the fastest"
    said = [f"The {plan}, {slower}: {pick.why}."]
    return [*said, "planner emit --pick fastest writes the fastest."]


def with_words(bundle: Bundle, said: Sequence[str]) -> Bundle:
    """The bundle with these words in the header of its main file, under the first of its lines."""
    text = bundle.files[bundle.main]
    first = next((line for line in text.splitlines() if line.startswith("# ")), None)
    if not said or first is None:
        return bundle
    lines = "\n".join([first, *(f"# {sentence}" for sentence in said)])
    return bundle.model_copy(
        update={"files": {**bundle.files, bundle.main: text.replace(first, lines, 1)}}
    )


def launched(bundle: Bundle, request: PlanRequest, launcher: str | None) -> Bundle:
    """The bundle with the files of a launcher; None: unchanged.  Raises RequestError."""
    if launcher is None:
        return bundle
    looked_up("/launcher", lambda: launchers.find_launcher(launcher))
    try:
        return launchers.launched(bundle, request, launcher)
    except launchers.CannotLaunch as error:
        raise refuse("/launcher", "cannot_launch", str(error)) from None


def zipped(bundle: Bundle) -> bytes:
    """The files as a ZIP archive; the same bytes for the same files."""
    data = BytesIO()
    with ZipFile(data, "w", ZIP_DEFLATED) as archive:
        for name, text in bundle.files.items():
            entry = ZipInfo(name)  # dated 1980, so that the archive depends on the files alone
            entry.external_attr = (0o755 if text.startswith("#!") else 0o644) << 16
            entry.compress_type = ZIP_DEFLATED
            archive.writestr(entry, text)
    return data.getvalue()
