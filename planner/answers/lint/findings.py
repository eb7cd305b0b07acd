"""The answers of `planner lint` and `planner read`: findings, flags to change, documents.

CODES lists all codes of findings.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from cost_models.package_files import table
from planner.documents.answer import REASONS, Nearest, ProfileInfo
from planner.documents.plan_report import Answer, Document, PlanReport
from planner.frameworks.read_results import Refusal, Setting

Severity = Literal["error", "warning", "hint"]
Verdict = Literal["refused", "does not fit", "may run out", "improvable", "fine"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "hint")

# The reasons why a plan is refused, and codes that only a script can have.
CODES: dict[str, str] = {
    **{code: said.sentence for code, said in REASONS.items()},
    **table(__package__ or "", "codes.json"),
}


class Finding(Document):
    """One problem: a code of CODES, a sentence with numbers, and its place.

    line: from 1; 0 if no line states it.  option: as the script spells it, or as it should.
    gain: share of the iteration time that `set` (fields of the plan) is expected to save; None if
    the finding is not about time.
    """

    code: str
    severity: Severity
    text: str
    file: str = ""
    line: int = 0
    option: str = ""
    gain: float | None = None
    set: dict[str, Any] = Field({})


class FlagChange(Document):
    """One option to change: its value in the script and the one it should have.

    before, after: None where the option is absent; "" for a switch.  misspelled: the name that the
    script gives it, where that is wrong.  file, line: its place; empty for an option to add.
    """

    option: str
    misspelled: str = ""
    before: str | None
    after: str | None
    why: str
    file: str = ""
    line: int = 0


class Gain(Document):
    """The better plan against the script's own, and whether the model can tell them apart.

    share: the share of the iteration time that is saved.  low, high: an 80 % interval of the
    speedup.  chance: that the better plan is faster.  inside_error: whether that is uncertain, so
    that both should be measured.
    """

    speedup: float
    share: float
    low: float
    high: float
    chance: float
    inside_error: bool


class Better(Document):
    """A plan that the framework accepts and that fits, and the options that lead there.

    global_batch_size: if it differs from the script's.  files: the changed files, by name.
    by_hand: the changes that could not be written into them.  stays: the errors of the changed
    files, which no change of the plan mends.  caution: what no published run has shown of the plan,
    and other costs of going there.
    """

    report: PlanReport
    changes: tuple[FlagChange, ...]
    global_batch_size: int | None = None
    files: dict[str, str] = Field({})
    by_hand: tuple[FlagChange, ...] = ()
    stays: tuple[Finding, ...] = ()
    caution: str = ""


class LintAnswer(Answer):
    """The answer to `planner lint` and POST /v1/lints.

    request: the contents of the script, on a cluster of the script's size.  estimate: of the
    unchanged script, if its plan can run.  mended: the fewest changes after which it runs, if it
    does not; of files that are not written here the fastest.  best: the fastest plan of the
    framework; None if that is the script's own, or none fits.  searched: whether all of these were
    looked at; else only other micro-batches, recompute and single changes.  nearest: if no plan
    fits, the nearest misses and changes of the request that would fit.
    """

    profile: ProfileInfo
    framework: str
    framework_versions: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    estimate: PlanReport | None
    mended: Better | None
    best: Better | None
    searched: bool = True
    nearest: tuple[Nearest, ...]
    gain: Gain | None
    assumed: tuple[str, ...]
    unread: tuple[Setting, ...]


class ReadAnswer(Answer):
    """The answer to `planner read`: a request; it has a cluster only if one was named.

    Fields at their defaults are left out of the request.
    unknown, unread, open, refusals: see planner.frameworks.read_results.Reading.
    """

    framework: str
    nodes: int | None
    accelerators_per_node: int | None
    assumed: tuple[str, ...]
    open: tuple[str, ...]
    unknown: tuple[Setting, ...]
    unread: tuple[Setting, ...]
    refusals: tuple[Refusal, ...]
