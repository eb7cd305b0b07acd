"""`planner read` and `planner lint`: the contents of a launch script, and its problems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cost_models.fields import Spec
from cost_models.spec import ClusterSpec
from planner.answers.lint import few_options
from planner.answers.lint.better_plans import best, fewest_changes, nearest
from planner.answers.lint.changed_options import corrections
from planner.answers.lint.checks import CHECKS
from planner.answers.lint.findings import (
    SEVERITIES,
    Better,
    Finding,
    FlagChange,
    Gain,
    LintAnswer,
    ReadAnswer,
    Verdict,
)
from planner.answers.lint.fixes import fixed_files, with_files
from planner.answers.lint.linted_launch import MINIMUM_GAIN, LintedLaunch, on_accelerators
from planner.answers.plans.chance_to_be_first import compared
from planner.answers.plans.competition import limited
from planner.answers.plans.plan_answers import profile_info
from planner.documents.problems import RequestError, problem
from planner.documents.request import Bounds
from planner.evidence.uncertainty.error_band import SURE
from planner.frameworks.base import Framework
from planner.frameworks.launch_files import GivenValues
from planner.frameworks.read_results import Reading
from planner.frameworks.sources import framework_of, launch_files, reading_of
from planner.version import __version__


def read(
    files: Mapping[str, str],
    cluster: ClusterSpec | None = None,
    framework: str | None = None,
    given: GivenValues | None = None,
) -> ReadAnswer:
    """The contents of a launch as a request.  Raises RequestError.

    given: values that the files leave open.
    """
    files = launch_files(files, given)
    chosen = framework_of(files, framework)
    reading = reading_of(chosen, files, cluster.accelerators if cluster is not None else None)
    # Fields whose defaults a parser derives from others are always written.
    said: dict[str, Any] = {
        "model": {**_short(reading.model), "norm_bias": reading.model.norm_bias},
        "training": _short(reading.training),
        "plan": {**_short(reading.plan), "dp": reading.plan.dp},
    }
    if cluster is not None:
        said["cluster"] = cluster.model_dump(mode="json", exclude_none=True)
    return ReadAnswer.of(
        reading,
        request={**said, "guessed": list(reading.assumed)},
        version=__version__,
        framework=chosen.name,
    )


def _short(spec: Spec) -> dict[str, Any]:
    return spec.model_dump(mode="json", exclude_defaults=True)


def lint(
    files: Mapping[str, str],
    cluster: ClusterSpec,
    framework: str | None = None,
    given: GivenValues | None = None,
) -> LintAnswer:
    """The problems of a launch on a cluster, their costs, and a faster plan.

    Raises RequestError where the files cannot be read, SpaceTooLarge as a search does.
    """
    launch, findings = found_in(files, cluster, framework, given)
    judge = _Judge(cluster, launch.framework, given)
    meant, slips = _with_typos_fixed(files, launch, judge)
    better, fewest = _better_plans(meant, bool(slips))
    nothing = meant.reading.written and not (meant.contradictions or better or fewest)
    return LintAnswer(
        request=launch.request.document(),
        version=__version__,
        profile=profile_info(launch.costs.context.profile),
        framework=launch.framework.title,
        framework_versions=launch.framework.versions,
        verdict=_verdict(findings, better),
        findings=findings,
        estimate=launch.own,
        mended=_written(files, _with_typo_fixes(fewest, slips), launch, findings, judge),
        best=_written(files, _with_typo_fixes(better, slips), launch, findings, judge),
        searched=_searched(meant),
        nearest=nearest(meant) if nothing and not _runs(meant) else (),
        gain=_gain(meant, better) if better is not None else None,
        assumed=launch.reading.assumed,
        unread=launch.reading.unread,
    )


def _searched(launch: LintedLaunch) -> bool:
    """Whether all plans are looked at: of files that can be written."""
    return launch.reading.written and not launch.contradictions


def _runs(launch: LintedLaunch) -> bool:
    return launch.own is not None and launch.own.fits and not launch.broken


def _better_plans(launch: LintedLaunch, misspelled: bool) -> tuple[Better | None, Better | None]:
    """A faster plan, and the fewest changes that run; None where there is none.

    misspelled: whether the script runs only once its options are spelled as in this launch.
    """
    if launch.contradictions:
        return None, None
    if not launch.reading.written:
        found = few_options.best(launch)
        return (found, None) if _runs(launch) else (None, found)
    if not _runs(launch) or launch.own is None:
        return best(launch), fewest_changes(launch)
    return best(launch), Better(report=launch.own, changes=()) if misspelled else None


@dataclass(frozen=True)
class _Judge:
    """How changed files of a launch are read."""

    cluster: ClusterSpec
    framework: Framework
    given: GivenValues | None

    def found_in(self, files: Mapping[str, str]) -> tuple[LintedLaunch, tuple[Finding, ...]]:
        """The launch and its findings; raises RequestError where the files cannot be read."""
        return found_in(files, self.cluster, self.framework.name, self.given)

    def alike(self, files: Mapping[str, str], others: Mapping[str, str]) -> bool:
        """Whether two versions of the files train the same with the same plan."""
        size = self.cluster.accelerators
        try:
            one, other = (
                reading_of(self.framework, launch_files(each, self.given), size)
                for each in (files, others)
            )
        except RequestError:
            return False
        return (one.model, one.training, one.plan) == (other.model, other.training, other.plan)


def _with_typos_fixed(
    files: Mapping[str, str], launch: LintedLaunch, judge: _Judge
) -> tuple[LintedLaunch, tuple[FlagChange, ...]]:
    """The launch with its misspelled options corrected, and these changes.

    The launch itself where there are none, or the files cannot take them.
    """
    slips = corrections(launch.reading)
    fixed = fixed_files(files, slips)
    if not slips or fixed.left:
        return launch, ()
    try:
        meant, _ = judge.found_in(fixed.files)
    except RequestError:
        return launch, ()
    # The framework may refuse the corrected option too, for its value.
    mended = len(meant.reading.refusals) <= len(launch.reading.refusals) - len(slips)
    return (meant, slips) if mended else (launch, ())


def _with_typo_fixes(better: Better | None, slips: tuple[FlagChange, ...]) -> Better | None:
    """A better plan of the corrected launch, with the corrections among its changes."""
    if better is None or not slips:
        return better
    found = {(one.option, one.file, one.line): one for one in slips}
    for change in better.changes:
        place = change.option, change.file, change.line
        wrong = found[place].misspelled if place in found else ""
        found[place] = change.model_copy(update={"misspelled": wrong})
    return better.model_copy(update={"changes": tuple(found.values())})


def _written(
    files: Mapping[str, str],
    better: Better | None,
    launch: LintedLaunch,
    findings: Iterable[Finding],
    judge: _Judge,
) -> Better | None:
    """A better plan with the files that change for it; without them if they would not run.

    launch, findings: of the files as they are.
    """
    known = {one.text for one in findings if one.severity == "error"}
    found = with_files(files, better, judge.alike)
    if found is None or not found.files:
        return found
    try:
        written, after = judge.found_in({**files, **found.files})
        stays = [one for one in after if one.severity == "error"]
        broken = any(one.text not in known for one in stays)
        # Of files that are not written here, an option may follow from another that changes too.
        same = (written.plan, written.training) == (found.report.plan, launch.training)
        broken |= not (written.reading.written or same)
    except RequestError:
        broken = True
    if broken:
        return found.model_copy(update={"files": {}, "by_hand": found.changes})
    return found.model_copy(update={"stays": tuple(stays)})


def found_in(
    files: Mapping[str, str],
    cluster: ClusterSpec,
    framework: str | None = None,
    given: GivenValues | None = None,
) -> tuple[LintedLaunch, tuple[Finding, ...]]:
    """The launch, and the findings of all checks: errors first, then the most costly ones."""
    files = launch_files(files, given)
    chosen = framework_of(files, framework)
    reading = reading_of(chosen, files, cluster.accelerators)
    if reading.open:
        raise RequestError(problem("/files", "unreadable", text) for text in reading.open)
    used = _cluster_in_use(reading, cluster)
    reading = on_accelerators(reading, chosen, used)
    asked = reading.request(used).for_framework(chosen.name)
    if reading.plan.runtime != chosen.runtime:  # other plans are priced with the same kernels
        limits = {**asked.search.limits, "runtime": Bounds(values=(reading.plan.runtime,))}
        asked = limited(asked, limits)
    launch = LintedLaunch(
        reading, chosen, asked.model_copy(update={"guessed": reading.assumed}), files
    )
    if about_cluster := [
        one for one in launch.contradictions if one.pointer.startswith("/cluster")
    ]:
        raise RequestError(about_cluster)
    checked_all = (one for check in CHECKS for one in check(launch))
    found = _one_size([*_size(launch, cluster), *checked_all])
    # A reader and a rule may report the same problem.
    once = {(one.code, one.file, one.line, one.option, one.text): one for one in found}
    return launch, tuple(sorted(once.values(), key=_rank))


def _one_size(findings: list[Finding]) -> list[Finding]:
    """All findings about the number of ranks merged into one, with the worst severity."""
    sizes = [one for one in findings if one.code == "world_size"]
    if len(sizes) < 2:
        return findings
    first = min(sizes, key=lambda one: one.line == 0)
    # A wrong product of degrees adds nothing to a number of ranks that does not divide.
    said = [one.text for one in sizes]
    texts = [text for text in said if "not a multiple" in text] or said[-1:]
    texts += [text for text in said if text.startswith("the script starts")]
    worst = min(sizes, key=lambda one: SEVERITIES.index(one.severity)).severity
    one = first.model_copy(update={"text": "; ".join(dict.fromkeys(texts)), "severity": worst})
    return [one, *(other for other in findings if other.code != "world_size")]


def _rank(finding: Finding) -> tuple[int, float]:
    return SEVERITIES.index(finding.severity), -(finding.gain or 0.0)


def _shape(reading: Reading, cluster: ClusterSpec) -> tuple[int, int]:
    """(nodes, accelerators per node) of a launch; by default those of the cluster."""
    nodes = sum(group.nodes for group in cluster.groups)
    each = cluster.groups[0].accelerators_per_node
    return reading.nodes or nodes, reading.accelerators_per_node or each


def _cluster_in_use(reading: Reading, cluster: ClusterSpec) -> ClusterSpec:
    """The cluster resized to the launch, if whole nodes allow that."""
    nodes, each = _shape(reading, cluster)
    group = cluster.groups[0]
    if len(cluster.groups) > 1 or nodes * each == cluster.accelerators:
        return cluster
    if each != group.accelerators_per_node and nodes > 1:
        nodes, rest = divmod(nodes * each, group.accelerators_per_node)
        if rest or not nodes:
            return cluster
        each = group.accelerators_per_node
    resized = group.model_copy(update={"nodes": nodes, "accelerators_per_node": each})
    return cluster.model_copy(update={"groups": (resized,)})


def _size(launch: LintedLaunch, cluster: ClusterSpec) -> Iterator[Finding]:
    """A finding if the launch is larger or smaller than the cluster; other checks use its size."""
    nodes, each = _shape(launch.reading, cluster)
    if nodes * each == cluster.accelerators:
        return
    place = launch.place("--nnodes", "--nproc_per_node", "--nproc-per-node", "--num_nodes")
    text = f"the script starts {nodes} x {each} ranks, the cluster has {cluster.accelerators}"
    yield Finding(
        code="world_size",
        severity="error" if nodes * each > cluster.accelerators else "warning",
        text=text,
        file=place.file,
        line=place.line,
        option=place.option if place.line else "",
    )


def _verdict(findings: Iterable[Finding], better: Better | None) -> Verdict:
    errors = {finding.code for finding in findings if finding.severity == "error"}
    if errors - {"memory"}:
        return "refused"
    if errors:
        return "does not fit"
    if any(finding.code == "memory_risk" for finding in findings):
        return "may run out"
    # Of files that are not written here few plans are searched: what one change gains counts too.
    gains = better is not None or any((one.gain or 0.0) > MINIMUM_GAIN for one in findings)
    return "improvable" if gains else "fine"


def _gain(launch: LintedLaunch, better: Better) -> Gain | None:
    """The gain over the launch's own plan; None where that does not run."""
    if not _runs(launch) or launch.own is None:
        return None
    error = compared(launch.request, better.report, launch.own)
    speedup = launch.own.iteration_time_s / better.report.iteration_time_s
    return Gain.of(
        error, speedup=speedup, share=1.0 - 1.0 / speedup, inside_error=error.chance < SURE
    )
