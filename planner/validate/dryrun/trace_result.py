"""The result of tracing one rank: the document that a worker process sends to the dry run."""

from __future__ import annotations

from cost_models.fields import Spec
from planner.validate.ranks.saved_rows import SavedRow


class Amounts(Spec):
    """Bytes of one rank before its optimizer step, each term at its own fullest moment.

    gradient: what outlives a backward pass; gathered: weights in the dtype of computing, whole or
    as one tp rank has them; activation: what autograd holds; working: what else is there at the
    peak, such as buffers of messages.  So the terms add up to the peak only where all are fullest
    at once.
    """

    parameter_bytes: int
    gathered_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    working_bytes: int
    peak_bytes: int


class Collective(Spec):
    """Equal collectives of one step: bytes are what one rank gives to one of them."""

    op: str
    group: str
    ranks: int
    count: int
    bytes: int


class Trace(Spec):
    """A step of one rank; saved tensors are of one micro-batch, of each stage it holds."""

    rank: int
    stages: tuple[int, ...]
    micro_batches: int
    amounts: Amounts
    saved_tensors: tuple[tuple[SavedRow, ...], ...]
    collectives: tuple[Collective, ...]
    seconds: float
    cpu_seconds: float
    rss_bytes: int
