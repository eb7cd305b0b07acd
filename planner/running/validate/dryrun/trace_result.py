"""The result of tracing one rank: the document that a worker process sends to the dry run."""

from __future__ import annotations

from cost_models.fields import Spec
from planner.running.validate.ranks.saved_rows import SavedRow


class Amounts(Spec):
    """Bytes of one rank before its optimizer step, each term at its own peak.

    gradient: gradients that outlive a backward pass; gathered: unsharded weights (still split by
    tp) in the compute dtype; activation: tensors that autograd holds; working: the rest at the
    peak, such as message buffers.  So the terms add up to the peak only if all peak at once.
    """

    parameter_bytes: int
    gathered_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    working_bytes: int
    peak_bytes: int


class Collective(Spec):
    """Equal collectives of one step; bytes: one rank's input to one of them."""

    op: str
    group: str
    ranks: int
    count: int
    bytes: int


class Trace(Spec):
    """One step of one rank; saved_tensors: of one micro-batch, for each stage that it holds."""

    rank: int
    stages: tuple[int, ...]
    micro_batches: int
    amounts: Amounts
    saved_tensors: tuple[tuple[SavedRow, ...], ...]
    collectives: tuple[Collective, ...]
    seconds: float
    cpu_seconds: float
    rss_bytes: int
