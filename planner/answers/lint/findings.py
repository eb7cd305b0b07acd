"""The answers of `planner lint` and `planner read`: findings, flags to change, documents.

CODES lists all codes of findings.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from planner.documents.answer import REASONS, Nearest, ProfileInfo
from planner.documents.plan_report import Document, PlanReport
from planner.frameworks.read_results import Refusal, Setting

Severity = Literal["error", "warning", "hint"]
Verdict = Literal["refused", "does not fit", "may run out", "improvable", "fine"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "hint")

# The reasons why a plan is refused, and codes that only a script can have.
CODES: dict[str, str] = {
    **{code: said.sentence for code, said in REASONS.items()},
    "unknown_option": "the framework has no such option and stops",
    "unknown_key": "the framework has no such key and silently goes on without it",
    "ignored_option": "the framework reads this option only beside another one",
    "precision_unsupported": "the accelerator has no matrix units for this number format",
    "not_expressible": "no plan expresses this for the framework: the nearest plan is priced",
    "environment": "an environment variable that the framework demands is missing or wrong",
    "stale_variable": "an environment variable is out of date, or left over from debugging",
    "tp_across_nodes": "tensor parallelism leaves the fastest network domain",
    "cp_across_nodes": "context parallelism leaves the fastest network domain without need",
    "ep_across_nodes": "expert parallelism leaves the fastest network domain without need",
    "few_micro_batches": "fewer than four micro-batches per stage: the pipeline waits",
    "interleaving_unused": "interleaved stages would shorten the pipeline's bubble",
    "uneven_stages": "an uneven split of the layers, slower than an even one",
    "gradient_reduce_exposed": "gradients are reduced after the backward pass, not under it",
    "param_gather_exposed": "weights are gathered before the forward pass, not under it",
    "sequence_parallel_off": "tensor parallelism without sequence parallelism",
    "distributed_optimizer_off": "every replica holds the whole optimizer state",
    "recompute_needless": "recompute, though the plan fits without it",
    "recompute_full": "full recompute, though selective recompute fits",
    "offload_needless": "offload to the host, though the plan fits without it",
    "micro_batch_small": "a larger micro-batch fits and is faster",
    "attention_unfused": "attention materialises the full score matrix",
    "loss_unfused": "the loss is computed over fp32 logits with unfused kernels",
    "vocabulary_padding": "padding rows of the vocabulary",
    "narrow_accumulation": "gradients of many micro-batches are accumulated in 16 bits",
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

    before, after: None where the option is absent; "" for a switch.  file, line: its place; empty
    for an option to add.
    """

    option: str
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
    by_hand: the changes that could not be written into them.
    """

    report: PlanReport
    changes: tuple[FlagChange, ...]
    global_batch_size: int | None = None
    files: dict[str, str] = Field({})
    by_hand: tuple[FlagChange, ...] = ()


class LintAnswer(Document):
    """The answer to `planner lint` and POST /v1/lints.

    request: the contents of the script, on a cluster of the script's size.  estimate: of the
    unchanged script, if its plan can run.  mended: the fewest changes after which it runs, if it
    does not.  best: the fastest plan of the framework; None if that is the script's own, or none
    fits.  nearest: if no plan fits, the nearest misses and changes of the request that would fit.
    """

    request: dict[str, Any]
    version: str
    profile: ProfileInfo
    framework: str
    framework_versions: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    estimate: PlanReport | None
    mended: Better | None
    best: Better | None
    nearest: tuple[Nearest, ...]
    gain: Gain | None
    assumed: tuple[str, ...]
    unread: tuple[Setting, ...]


class ReadAnswer(Document):
    """The answer to `planner read`: a request; it has a cluster only if one was named.

    Fields at their defaults are left out of the request.
    unknown, unread, open, refusals: see planner.frameworks.read_results.Reading.
    """

    request: dict[str, Any]
    version: str
    framework: str
    nodes: int | None
    accelerators_per_node: int | None
    assumed: tuple[str, ...]
    open: tuple[str, ...]
    unknown: tuple[Setting, ...]
    unread: tuple[Setting, ...]
    refusals: tuple[Refusal, ...]
