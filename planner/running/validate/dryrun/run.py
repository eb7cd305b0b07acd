"""Dry run: traces ranks of a plan at full scale on this machine, and compares with the estimate.

The training script that `planner emit --framework pytorch` writes runs with fake tensors and a fake
process group (rank_trace.py), in one process per traced rank.  Nothing is allocated and no GPU is
needed: the bytes that torch would hold and send are counted, in real dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cost_models.fields import Spec
from cost_models.package_files import table
from cost_models.schedules import SCHEDULES
from planner.answers.plans.plan_answers import IllegalPlan, illegal
from planner.documents.problems import refuse
from planner.documents.request import PlanRequest
from planner.frameworks.pytorch import FRAMEWORK
from planner.frameworks.pytorch.reader import SCRIPT
from planner.running.validate.as_pytorch_script import Difference, Native, native
from planner.running.validate.dryrun.trace_process import Limits, trace
from planner.running.validate.dryrun.trace_result import Amounts, Collective, Trace
from planner.running.validate.rank_estimate import Expected, expected, layout
from planner.running.validate.ranks.saved_rows import SavedRow

MOST_RANKS = 64
# Known reasons why a term of the trace may differ from the estimate.
_REASONS: dict[str, str] = table(__package__ or "", "reasons.json")
_ONLY_TRACED = "torch saves this tensor, the estimate has no such row"
_ONLY_ESTIMATED = "the estimate has this row, torch saves no such tensor"
_SIZES_DIFFER = "torch saves a different number of elements than the formula of this row"
Progress = Callable[[int, float], None]


class TermDifference(Spec):
    """A term that differs between trace and estimate; bytes: traced - estimated."""

    term: str
    bytes: int
    reason: str


class RankReport(Spec):
    """One traced rank; saved_tensors: of one micro-batch, activation_bytes: of all in flight."""

    rank: int
    stage: int
    traced: Amounts
    estimated: Amounts
    differences: tuple[TermDifference, ...]
    saved_tensors: tuple[SavedRow, ...]
    collectives: tuple[Collective, ...]
    seconds: float
    cpu_seconds: float
    rss_bytes: int


class DryRunReport(Spec):
    """The answer of `planner dryrun`.

    micro_batches: of the plan; traced_micro_batches: enough to fill the pipeline; the estimate is
    for this number too.
    """

    plan: dict[str, object]
    changes: tuple[Difference, ...]
    micro_batches: int
    traced_micro_batches: int
    ranks: tuple[RankReport, ...]
    caveats: tuple[str, ...]


def dry_run(
    request: PlanRequest,
    ranks: Sequence[int] = (),
    limits: Limits | None = None,
    progress: Progress = lambda rank, share: None,
) -> DryRunReport:
    """Trace ranks of a request's plan; by default the first, middle and last of each kind of stage.

    progress: called with a rank and the share of its work that is done.
    Raises IllegalPlan or Unsupported if the plan cannot run, RequestError for a rank that does not
    exist, TraceFailed if a trace fails or exceeds a limit.
    """
    ready = prepare(request, ranks)
    reports = tuple(
        trace_rank(ready, rank, limits or Limits(), _progress_of_rank(progress, rank))
        for rank in ready.ranks
    )
    return assemble(ready, reports)


@dataclass(frozen=True)
class Prepared:
    """A plan in its traced form, with fewer micro-batches, and the ranks to trace."""

    as_run: Native
    fewer: PlanRequest
    ranks: tuple[int, ...]


def prepare(request: PlanRequest, ranks: Sequence[int] = ()) -> Prepared:
    """The plan and ranks that dry_run traces.  Raises IllegalPlan, Unsupported, RequestError."""
    reasons = illegal(request, request.named_plan)
    if reasons:
        raise IllegalPlan(reasons)
    as_run = native(request, compiled=False)
    if as_run.request.training.optimizer == "adafactor":
        detail = "torch's Adafactor reads numbers off its tensors, and fake ones have none"
        raise refuse("/training/optimizer", "cannot_trace", detail, "adafactor")
    fewest = min(_micro_batches(as_run.request), _filling_micro_batches(as_run.request))
    fewer = _with_micro_batches(as_run.request, fewest)
    chosen = _checked(ranks, as_run.plan.accelerators) or _representatives(fewer)
    FRAMEWORK.render(fewer, as_run.plan)  # raises early if it refuses the plan
    return Prepared(as_run, fewer, chosen)


def trace_rank(
    ready: Prepared, rank: int, limits: Limits, progress: Callable[[float], None]
) -> RankReport:
    """The trace of one rank, compared with the estimate.  Raises TraceFailed."""
    script = FRAMEWORK.render(ready.fewer, ready.as_run.plan).files[SCRIPT]
    return _report(ready.fewer, trace(script, rank, limits, progress))


def assemble(ready: Prepared, reports: Sequence[RankReport]) -> DryRunReport:
    """The answer, from the reports of all ranks."""
    return DryRunReport(
        plan=ready.as_run.plan.model_dump(mode="json", exclude_defaults=True),
        changes=ready.as_run.differences,
        micro_batches=_micro_batches(ready.as_run.request),
        traced_micro_batches=_micro_batches(ready.fewer),
        ranks=tuple(reports),
        caveats=_caveats(ready.fewer),
    )


def _caveats(request: PlanRequest) -> tuple[str, ...]:
    """Notes on what a trace does not show."""
    experts = ("every expert gets as many tokens as any other",) if request.model.moe else ()
    return (
        "tensors are counted: not what the allocator cannot use, nor NCCL's and cuBLAS's buffers",
        "nothing is timed",
        *experts,
    )


def _progress_of_rank(progress: Progress, rank: int) -> Callable[[float], None]:
    return lambda share: progress(rank, share)


def _micro_batches(request: PlanRequest) -> int:
    return request.named_plan.micro_batches(request.training.global_batch_size)


def _with_micro_batches(request: PlanRequest, count: int) -> PlanRequest:
    plan = request.named_plan
    size = count * plan.dp * plan.micro_batch_size
    training = request.training.model_copy(update={"global_batch_size": size})
    return request.model_copy(update={"training": training})


def _filling_micro_batches(request: PlanRequest) -> int:
    """Micro-batches that fill and drain the pipeline once; more of them need no more memory."""
    plan = request.named_plan
    if plan.pp == 1:
        return 2
    return 2 * plan.pp if plan.vpp > 1 or SCHEDULES[plan.schedule].keeps_all else plan.pp + 2


def _checked(ranks: Sequence[int], world: int) -> tuple[int, ...]:
    """The asked ranks, each once.  Raises RequestError if one does not exist or there are many."""
    for rank in ranks:
        if not 0 <= rank < world:
            detail = f"the plan has ranks 0 to {world - 1}, got {rank}"
            raise refuse("/ranks", "out_of_range", detail, rank)
    once = tuple(dict.fromkeys(ranks))
    if len(once) > MOST_RANKS:
        detail = f"at most {MOST_RANKS} ranks are traced at a time, got {len(once)}"
        raise refuse("/ranks", "too_many", detail, len(once))
    return once


def _representatives(request: PlanRequest) -> tuple[int, ...]:
    """First, middle and last rank of each distinct pipeline stage.

    Of stages with equal layers the earliest is taken, since it holds the most micro-batches.
    """
    plan = request.named_plan
    stages, each = layout(request), plan.accelerators // plan.pp
    distinct: dict[tuple[object, ...], int] = {}
    for rank in range(plan.pp):
        chunks = [i for i, owner in enumerate(stages.owner) if owner == rank]
        key = tuple(
            (stages.first[i], stages.last[i], *(kind[i] for kind in stages.layers)) for i in chunks
        )
        distinct.setdefault(key, rank)
    return tuple(
        dict.fromkeys(
            rank * each + at for rank in distinct.values() for at in (0, each // 2, each - 1)
        )
    )[:MOST_RANKS]


def _report(request: PlanRequest, traced: Trace) -> RankReport:
    plan = request.named_plan
    stage = traced.rank // (plan.accelerators // plan.pp)
    estimate = expected(request, stage)
    return RankReport(
        rank=traced.rank,
        stage=stage,
        traced=traced.amounts,
        estimated=estimate.amounts,
        differences=tuple(_differences(traced, estimate)),
        saved_tensors=tuple(row for rows in traced.saved_tensors for row in rows),
        collectives=traced.collectives,
        seconds=traced.seconds,
        cpu_seconds=traced.cpu_seconds,
        rss_bytes=traced.rss_bytes,
    )


def _differences(traced: Trace, estimate: Expected) -> Iterator[TermDifference]:
    """The terms that differ: amounts, messages, and rows of saved tensors of one micro-batch."""
    for term in Amounts.model_fields:
        if more := getattr(traced.amounts, term) - getattr(estimate.amounts, term):
            yield TermDifference(term=term, bytes=more, reason=_REASONS[term])
    for call in traced.collectives:
        if call.op in ("send", "receive") and (more := call.bytes - estimate.message_bytes):
            yield TermDifference(term=f"{call.op} message", bytes=more, reason=_REASONS["message"])
    for rows, expected_rows in zip(traced.saved_tensors, estimate.saved, strict=True):
        traced_rows: dict[str, int] = {}
        for row in rows:
            traced_rows[row.name] = traced_rows.get(row.name, 0) + row.bytes * row.count
        for name in dict.fromkeys((*traced_rows, *expected_rows)):
            if more := traced_rows.get(name, 0) - round(expected_rows.get(name, 0.0)):
                both = name in traced_rows and name in expected_rows
                one_side = _ONLY_TRACED if name in traced_rows else _ONLY_ESTIMATED
                reason = _SIZES_DIFFER if both else one_side
                # An encoder's rows share the reasons of the model.
                reason = _REASONS.get(name.removeprefix("encoder "), reason)
                yield TermDifference(term=name, bytes=more, reason=reason)
