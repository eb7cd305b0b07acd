"""The typed records that blocks yield; every amount and time is a sum over them.

Sizes are arrays over plans, for one rank and one micro-batch.  A record that depends on kernels
holds the records of those kernels, not their names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from cost_models.sources import Array


@dataclass(frozen=True)
class Split:
    """Number of ranks that split the weights: tensor, expert-tensor and expert parallel."""

    tp: Array = 1.0
    etp: Array = 1.0
    ep: Array = 1.0


@dataclass(frozen=True)
class Weight:
    """Parameters of one rank.

    matrix: tokens are multiplied with it; used: the share of tokens that are (experts: top_k of
    all).  copies: number of equal ones (experts).  tensors: how many tensors the runtimes store it
    in, per copy.  placeholder: its gradient accumulates inside a GEMM (TE), so that autograd gets a
    placeholder.  side: the dimension of a 2-D tensor that tensor parallelism does not split; None:
    the hidden size if `matrix`, otherwise the tensor is 1-D.  parts: relative sizes of unequal
    tensors.  trained: it has a gradient and optimizer states; False: it is frozen.
    """

    name: str
    elements: Array
    matrix: bool = False
    expert: bool = False
    used: float = 1.0
    copies: Array = 1.0
    tensors: float = 1
    placeholder: bool = True
    side: float | None = None
    parts: tuple[float, ...] = ()
    trained: bool = True


@dataclass(frozen=True, eq=False)
class Gemm:
    """C[m,n] = A[m,k] B[k,n] forward; dgrad [m,k] = [m,n][n,k] and wgrad [k,n] = [k,m][m,n].

    groups > 1: that many equal products in one grouped launch, each with m rows.
    fp8: follows the training precision; `weights` False: a product of two activations; `trained`
    False: its weights are frozen, so that the backward pass has no wgrad.
    gathered_input, scattered_output: sequence parallelism gathers the input, or the gradient of
    the output, so that each rank may cast just its shard to fp8.
    recomputed: share of the forward pass that per-operator recompute ("op") repeats.
    shared_rows: rows of a group that are computed besides its m, which tiles of two groups share.
    """

    name: str
    m: Array
    n: Array
    k: Array
    module: str = ""
    groups: Array = 1.0
    fp8: bool = True
    weights: bool = True
    trained: bool = True
    tensor_cores: bool = True
    gathered_input: bool = False
    scattered_output: bool = False
    grouped: bool = False
    active: Array = 1.0
    recomputed: Array = 0.0
    shared_rows: Array = 0.0


@dataclass(frozen=True, eq=False)
class FlashAttention:
    """A fused attention kernel; forward_flop: executed FLOP (causal: half of the square).

    query_rows: queries times heads of one launch; unequal: values narrower than keys (MLA).
    flash1, flash2: 1 where version 1 or 2 of FlashAttention runs instead of the newest.
    rate: FLOP rate relative to dense attention, where queries attend to selected blocks of keys.
    """

    name: str
    forward_flop: Array
    span: Array
    head_dim: float
    query_rows: Array
    unequal: bool = False
    flash1: Array = 0.0
    flash2: Array = 0.0
    causal: bool = True
    rate: float = 1.0
    module: str = "core_attn"
    active: Array = 1.0
    recomputed: Array = 0.0


@dataclass(frozen=True, eq=False)
class Scan:
    """A recurrence over the sequence, chunk by chunk; forward_flop: executed FLOP.

    sequences: independent (sequence, head) pairs; each takes token_s per token where the launch is
    too small to fill the device.  matrices: chunks are computed with matrix products; False:
    element by element.
    """

    name: str
    forward_flop: Array
    sequences: Array
    tokens: Array
    token_s: float = 0.0
    matrices: bool = True
    module: str = ""
    active: Array = 1.0
    recomputed: Array = 1.0


@dataclass(frozen=True, eq=False)
class MemoryBoundKernel:
    """A memory-bound kernel: bytes read and written, forward and backward.

    kind: its name in calibrations; empty: no calibration measures it.  widened_bytes: of them,
    (forward, backward), what widening copies move, which multiprocessors may be too slow for.
    """

    name: str
    forward_bytes: Array
    backward_bytes: Array
    module: str = ""
    active: Array = 1.0
    recomputed: Array = 1.0
    kind: str = ""
    widened_bytes: tuple[Array, Array] = (0.0, 0.0)


Kernel = Gemm | FlashAttention | Scan | MemoryBoundKernel


@dataclass(frozen=True)
class HostWait:
    """The device waits until the host has launched this many kernels."""

    launches: float


@dataclass(frozen=True)
class HostOperations:
    """The host launches this many operations besides the kernels of the records, each way."""

    operations: Array


@dataclass(frozen=True)
class SavedTensor:
    """One tensor kept for the backward pass.

    dropped_by: modules whose recompute drops it.  by_operator: the share that per-operator
    recompute keeps.  pointwise: neither a product nor attention wrote it.
    """

    name: str
    elements: Array
    element_bytes: Array
    dropped_by: tuple[str, ...] = ()
    active: Array = 1.0
    by_operator: Array = 0.0
    pointwise: bool = False


@dataclass(frozen=True)
class Working:
    """Bytes alive only inside the backward pass of a block.

    freed_bytes: saved tensors of the block, freed before the backward pass of the blocks before it.
    """

    alive_bytes: Array
    freed_bytes: Array = 0.0


@dataclass(frozen=True)
class TensorParallel:
    """A pair of column-parallel and row-parallel GEMMs: an activation `width` wide is gathered
    before, and the hidden state reduce-scattered (or all-reduced) after them.

    module: the module whose recompute gathers again.
    """

    width: float
    columns: tuple[Gemm, ...]
    rows: tuple[Gemm, ...]
    module: str = ""


@dataclass(frozen=True)
class Boundary:
    """The hidden state is scattered in one pass and gathered in the other, or all-reduced."""


@dataclass(frozen=True)
class Collective:
    """Collectives on a payload, `times` over, in the forward pass.

    mirrored: they run again in the backward pass; False: half of the time counts for each pass.
    module: the module whose recompute repeats them.
    """

    operations: tuple[str, ...]
    payload_bytes: Array
    axis: Literal["tp", "cp", "etp"]
    times: Array = 1.0
    mirrored: bool = True
    module: str = ""
    active: Array = 1.0


@dataclass(frozen=True)
class KeyValues:
    """Keys and values that context-parallel ranks exchange around attention kernels."""

    heads: Array
    kv_heads: Array
    head_dim: float
    around: tuple[Kernel, ...]


@dataclass(frozen=True)
class Dispatch:
    """Tokens sent to the ranks of their experts and back: top_k copies of each of the busiest
    rank's `tokens`, to experts of at most groups[1] of their groups[0] groups.
    """

    tokens: Array
    width: float
    top_k: float
    groups: tuple[int, int] | None = None
    module: str = ""


Communication = TensorParallel | Boundary | Collective | KeyValues | Dispatch


@dataclass(frozen=True)
class Cached:
    """What a layer of one rank keeps of a sequence while it generates.

    elements: per token that is kept.  tokens: the most tokens that are kept; read: the most that
    one query reads.  flop: per token that a query reads.  every: tokens per kept one (compressed).
    state_elements: per sequence, however long it is; read and written for each token.
    """

    elements: Array = 0.0
    flop: Array = 0.0
    tokens: float = math.inf
    read: float = math.inf
    every: float = 1.0
    state_elements: Array = 0.0


Record = Kernel | HostOperations | HostWait | SavedTensor | Working | Communication
