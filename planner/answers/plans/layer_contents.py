"""The contents of one layer of a plan: its kernels, saved tensors and communication.

The rows are those that add up to the estimate; only communication is priced again here, to get its
time before any of it is hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from cost_models.activation_memory import saved_tensors, tensor_bytes
from cost_models.blocks.records import FlashAttention, Gemm, Kernel, MemoryBoundKernel, SavedTensor
from cost_models.dims import Dims
from cost_models.estimate import CostModel, Estimates
from cost_models.kernel_times import KernelTime
from cost_models.layers import layers_of
from cost_models.plans import ParallelPlan, Plans
from cost_models.sources import Array
from cost_models.traffic import NAMES
from planner.answers.plans.plan_answers import illegal
from planner.answers.plans.recomputed_communication import recomputed_communication_s
from planner.documents.plan_report import Document
from planner.documents.problems import RequestError, from_reasons
from planner.documents.request import PlanRequest
from planner.search.exhaustive import cost_model

# Process groups whose exposed communication is a part of the time; all others are data parallel.
GROUPS = {
    "tp_comm": ("tp", "etp"),
    "cp_comm": ("cp",),
    "ep_comm": ("ep",),
    "pp_comm": ("pp",),
    "dp_comm": tuple(name for name in NAMES if name not in ("tp", "etp", "cp", "ep", "pp")),
}


class KernelRow(Document):
    """One kernel of a layer, for one rank and micro-batch.

    shape: of the operands, as text; formula: FLOP or bytes in terms of it.  rate: FLOP or bytes per
    second of the forward pass; share: of the accelerator's peak.  recomputed: whether it is run
    again before backward.
    """

    kernel: str
    module: str
    shape: str
    formula: str
    forward_flop: float
    forward_bytes: float
    forward_s: float
    backward_s: float
    rate: float
    share: float
    source: str
    recomputed: bool


class TensorRow(Document):
    """One tensor that a layer saves for the backward pass of one micro-batch.

    kept_bytes: bytes that remain with recompute; dropped_by: modules whose recompute drops it.
    """

    tensor: str
    shape: str
    bytes: float
    kept_bytes: float
    dropped_by: tuple[str, ...]


class LayerTable(Document):
    """A kind of layer; layers: their number in the model; kept_bytes: saved by one of them."""

    kind: str
    layers: int
    kept_bytes: float
    kernels: tuple[KernelRow, ...]
    tensors: tuple[TensorRow, ...]


class Exchange(Document):
    """One kind of communication over an iteration of the busiest rank.

    total_s: the sum of all transfers; exposed_s: the part that is not hidden, recomputed_s of it in
    recompute; hidden_s: the rest, under kernels.
    """

    part: str
    total_s: float
    exposed_s: float
    recomputed_s: float
    hidden_s: float


class LayersAnswer(Document):
    """The layers of a plan, kernel by kernel and tensor by tensor, and its communication."""

    plan: ParallelPlan
    num_micro_batches: int
    profile: str
    layers: tuple[LayerTable, ...]
    exchanges: tuple[Exchange, ...]


def layers_answer(request: PlanRequest, plan: ParallelPlan) -> LayersAnswer:
    """The answer for one legal plan.  Raises RequestError."""
    if reasons := illegal(request, plan):
        raise RequestError(from_reasons(reasons))
    model = cost_model(request)
    estimates = model.evaluate(Plans.from_rows([plan]))
    return LayersAnswer(
        plan=plan,
        num_micro_batches=int(np.max(estimates.num_micro_batches)),
        profile=model.context.profile.name,
        layers=tuple(_tables(model, estimates)),
        exchanges=tuple(_exchanges(model, estimates, plan)),
    )


def _tables(model: CostModel, estimates: Estimates) -> Iterator[LayerTable]:
    gathered = estimates.gathered
    key, d = gathered.layers.key(0), gathered.micro.d

    def own(value: Array) -> float:
        """The value of this plan's layers."""
        return float(value[key] if isinstance(value, np.ndarray) and value.ndim else value)

    kinds = layers_of(model.context.model).kinds
    everything = zip(
        kinds, estimates.kernels, gathered.micro.layers, gathered.table.totals,
        gathered.table.recomputed_totals, strict=True,
    )  # fmt: skip
    layout = gathered.stages.key(0)
    for kind, times, records, totals, redone in everything:
        again = redone[layout] == totals[layout]
        tensors = tuple(_tensor(d, t, own, bool(again)) for t in saved_tensors(records))
        saved = sum(tensor.kept_bytes for tensor in tensors)
        rows = [_kernel(model, d, t, own, bool(again)) for t in times if own(t.kernel.active)]
        yield LayerTable(
            kind=kind.title,
            layers=round(float(totals[layout])),
            kept_bytes=own(gathered.bytes.layer_input) if again else saved,
            # Some kernels are part of another one, such as HybridEP's permutation.
            kernels=tuple(row for row in rows if row.forward_s or row.backward_s),
            tensors=tuple(tensor for tensor in tensors if tensor.bytes),
        )


def _kernel(
    model: CostModel, d: Dims, time: KernelTime, of_plan: Callable[[Array], float], again: bool
) -> KernelRow:
    kernel, machine = time.kernel, model.context.machine
    forward_s, flop = of_plan(time.forward_s), of_plan(time.forward_flop)
    moved = of_plan(kernel.forward_bytes) if isinstance(kernel, MemoryBoundKernel) else 0.0
    peak = machine.accelerator.memory_bytes_per_s if moved else machine.matrix_flop_per_s
    if isinstance(kernel, Gemm) and kernel.fp8:
        peak = machine.accelerator.peak_flop_per_s(machine.precision) or peak
    rate = (moved or flop) / forward_s if forward_s else 0.0
    shape, formula = _words(kernel, of_plan)
    profile = model.context.profile
    measured = profile.kind == "calibrated"
    return KernelRow(
        kernel=kernel.name,
        module=kernel.module,
        shape=shape,
        formula=formula,
        forward_flop=flop,
        forward_bytes=moved,
        forward_s=forward_s,
        backward_s=of_plan(time.backward_s),
        rate=rate,
        share=rate / peak,
        source=f"calibration {profile.name}" if measured else f"{profile.kind}: {profile.source}",
        recomputed=again or bool(of_plan(d.recomputed(kernel.module))),
    )


def _words(kernel: Kernel, of_plan: Callable[[Array], float]) -> tuple[str, str]:
    """The shape of the work, and the formula of its amount."""
    if isinstance(kernel, Gemm):
        sides = " x ".join(f"{of_plan(side):,.0f}" for side in (kernel.m, kernel.k, kernel.n))
        groups = of_plan(kernel.groups)
        many = f"{groups:,.0f} of " if groups > 1 else ""
        return f"{many}{sides}", "2·m·k·n FLOP" + (" each" if many else "")
    if isinstance(kernel, FlashAttention):
        rows, span = of_plan(kernel.query_rows), of_plan(kernel.span)
        work = "2·rows·keys·width FLOP, causal" if kernel.causal else "4·rows·keys·width FLOP"
        return f"{rows:,.0f} query rows x {span:,.0f} keys x {kernel.head_dim:g}", work
    if isinstance(kernel, MemoryBoundKernel):
        return f"{of_plan(kernel.forward_bytes):,.0f} bytes", "bytes read and written"
    tokens, sequences = of_plan(kernel.tokens), of_plan(kernel.sequences)
    return f"{sequences:,.0f} sequences of {tokens:,.0f} tokens", "FLOP of its chunks"


def _tensor(
    d: Dims, tensor: SavedTensor, of_plan: Callable[[Array], float], again: bool
) -> TensorRow:
    elements, each = of_plan(tensor.elements), of_plan(tensor.element_bytes)
    return TensorRow(
        tensor=tensor.name,
        shape=f"{elements:,.0f} x {each:g} bytes",
        bytes=elements * each * of_plan(tensor.active),
        kept_bytes=0.0 if again else of_plan(tensor_bytes(tensor, d)),
        dropped_by=tuple(tensor.dropped_by),
    )


def _exchanges(model: CostModel, estimates: Estimates, plan: ParallelPlan) -> Iterator[Exchange]:
    total = {one.name: float(np.max(one.seconds)) for one in model.traffic(plan)}
    again = recomputed_communication_s(estimates)
    for part, groups in GROUPS.items():
        whole = sum(total.get(name, 0.0) for name in groups)
        redone = again.get(part, 0.0)
        shown = float(np.max(estimates.time_parts_s[part])) + redone
        if whole or shown:
            yield Exchange(
                part=part,
                total_s=max(whole, shown),
                exposed_s=shown,
                recomputed_s=redone,
                hidden_s=max(whole - shown, 0.0),
            )
