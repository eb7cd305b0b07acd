"""From a request to the files that launch its plan, or the best one."""

from __future__ import annotations

from io import BytesIO
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from cost_models.plans import ParallelPlan
from cost_models.spec import TrainingSpec
from planner import frameworks
from planner.answers.plans import plan_answers
from planner.documents.formats import overflow
from planner.documents.problems import RequestError, problem, refuse
from planner.documents.request import PlanRequest
from planner.documents.typed_values import looked_up
from planner.frameworks import launchers
from planner.frameworks.base import Bundle
from planner.frameworks.devices import WRITTEN, other_stack, preferred


class NothingFits(RequestError):
    """There is no plan to write files for: no plan fits, or the given one does not."""

    def __init__(self, detail: str, pointer: str = "", got: Any = None) -> None:
        super().__init__([problem(pointer, "nothing_fits", detail, got)])


def emit(request: PlanRequest, launcher: str | None = None) -> Bundle:
    """The files of the request's framework.

    For the request's plan (Megatron-LM's unless it names another), or else for the plan that is
    recommended, of the framework that is the fastest unless it names one; launcher: a key of
    planner.frameworks.launchers.LAUNCHERS, None for the framework's own script.

    Raises planner.frameworks.base.Unsupported with every reason, NothingFits, and RequestError
    for a launcher that is unknown or cannot start these files.
    """
    if launcher is not None:  # a wrong name need not wait for a search
        looked_up("/launcher", lambda: launchers.find_launcher(launcher))
    if stack := other_stack(request.cluster, WRITTEN):
        raise NothingFits(f"no launch files: {stack}, which no framework here writes for")
    name = request.search.framework or preferred(request.cluster) or frameworks.PREFERRED
    plan = request.plan
    if plan is None:
        request, name, plan = _recommended(request)
    asked, framework = request.for_framework(name), frameworks.get(name)
    bundle = framework.write(asked, plan)
    bundle = launched(bundle, asked, launcher)
    memory = plan_answers.estimate(asked, plan).estimate.memory
    if memory.peak_bytes > memory.capacity_bytes:
        raise NothingFits(f"the plan does not fit: {overflow(memory)}")
    return bundle


def _recommended(request: PlanRequest) -> tuple[PlanRequest, str, ParallelPlan]:
    """The request as it was answered, the framework and the plan.  Raises NothingFits."""
    answer = plan_answers.find(request)
    if answer.best is None and answer.unbuildable is not None:
        raise NothingFits(answer.unbuildable.sentence)
    if answer.conflicts:
        raise NothingFits(f"nothing fits: {'; '.join(one.text for one in answer.conflicts)}")
    if answer.best is None:
        raise NothingFits("nothing fits; `planner plan` says why")
    if answer.launch is None:
        raise NothingFits("no framework here runs what was asked for")
    picked = next((one.plan for one in answer.picks if one.name == "recommended"), answer.best)
    training = TrainingSpec.model_validate(answer.request["training"])
    answered = request.model_copy(update={"training": training})
    return answered, answer.launch.framework, picked.plan


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
