"""Memory beside the tensors of the model: placeholders, buckets, the allocator and the driver.

Three quantities are distinguished.  Allocated: memory of live tensors in torch's allocator
(`max_memory_allocated`).  Reserved: all memory of the allocator, with its unusable gaps
(`max_memory_reserved`).  Driver: all memory in use on the accelerator (nvidia-smi): reserved, the
CUDA context and NCCL's buffers.

Not modelled: communicators that a run opens and never uses, CUDA graphs, MPS.
"""

from __future__ import annotations

from collections.abc import Iterable

from cost_models.arrays import maximum, minimum, sum_of
from cost_models.blocks.records import Weight
from cost_models.plans import Plans
from cost_models.sources import Array, formula
from cost_models.units import GIB

MIB = 2.0**20
WEIGHT_BYTES = 2.0
# CUDA context with the kernels of torch, cuBLAS and NCCL loaded: BLOOM's chronicles count 1.5 GB.
CONTEXT_BYTES = 1.5e9
# Of one connection and channel: Simple 4 MiB, LL128 120 x 640 x 8 x 8, LL 8 x 512 x 8 x 16 bytes.
NCCL_CONNECTION_BYTES = 4.0 * MIB + 120 * 640 * 8 * 8 + 8 * 512 * 8 * 16
NCCL_CHANNELS = 16.0
# Connections through which a rank receives: a ring and a tree.
NCCL_CONNECTIONS = 2.0
# One workspace of cuBLAS (torch, since Hopper).
CUBLAS_BYTES = 32.0 * MIB
# The share of temporary memory that the caching allocator cannot reuse, with fixed segments and
# with growing ones (expandable_segments, which torchtitan sets).
FRAGMENTATION = 0.3
EXPANDABLE_FRAGMENTATION = 0.05
# The share that it cannot return either where memory runs short, and that where whole layers are
# computed again, so that little but their input stays (python -m tools.allocator).
STUCK_FRAGMENTATION = 0.08
RECOMPUTED_STUCK_FRAGMENTATION = 0.29
# DeepSpeed's reduce_bucket_size, allgather_bucket_size and its engine's bucket, in elements.
DEEPSPEED_BUCKET = 5e8


@formula("byte", "transformer-engine")
def placeholder_parameters(weights: Iterable[Weight]) -> Array:
    """Parameters whose gradients have placeholders, one per shape: experts share them.

    Weight gradients are added to the fp32 buffer inside the GEMM; autograd gets a half-precision
    tensor of the weight's shape instead, which Transformer Engine keeps for the next of that shape
    (module/base.py, get_dummy_wgrad).
    """
    return sum_of(w.elements / w.copies for w in weights if w.matrix and w.placeholder)


@formula("byte", "torch", "transformer-engine")
def workspace_bytes(workspaces: Array) -> Array:
    """Bytes of GEMM workspaces in the allocator."""
    return CUBLAS_BYTES * workspaces


@formula("byte", "nccl-tuning")
def communicator_bytes(communicators: Array) -> Array:
    """Bytes of NCCL's buffers: per communicator, channel and connection (src/init.cc)."""
    return communicators * NCCL_CHANNELS * NCCL_CONNECTIONS * NCCL_CONNECTION_BYTES


@formula("byte", "derived")
def driver_bytes(plans: Plans) -> Array:
    """Bytes outside the allocator: the CUDA context, and NCCL for each group with more than one.

    Groups: the world, tensor, context, data and expert parallel; in a pipeline the neighbour on
    each side and the two ends that share the word table; all that hold a part of the model, for
    the norm of the gradients.
    """
    data, model_parallel = plans.dp * plans.cp, plans.tp * plans.pp
    groups: Array = 3.0 * (plans.pp > 1)
    for size in (model_parallel * data, plans.tp, plans.cp, data, plans.ep, model_parallel):
        groups = groups + (size > 1)
    return CONTEXT_BYTES + communicator_bytes(groups)


@formula("byte", "deepspeed")
def deepspeed_bucket_bytes(
    parameters: Array,
    largest_parameters: Array,
    reduced_bytes: Array,
    weight_bytes: Array,
    half_gradients: Array,
) -> Array:
    """Bytes of the copies in which DeepSpeed reduces gradients and gathers weights.

    fp16: one buffer of reduce_bucket_size; a larger tensor goes without (stage_1_and_2.py).  fp32:
    the engine joins whole tensors until they exceed its bucket, so the word table is one of its
    own (allreduce_no_retain), beside its copy in the dtype of communication.  Weights come back in
    buckets of a flat list (all_gather_dp_groups).
    """
    bucket = minimum(parameters, DEEPSPEED_BUCKET)
    joined = maximum(bucket, largest_parameters)
    joined_bytes = joined * (reduced_bytes + weight_bytes)
    reduced = joined_bytes + (bucket * reduced_bytes - joined_bytes) * half_gradients
    return reduced + bucket * weight_bytes


def fragmentation_share(expandable_segments: Array) -> Array:
    """Reserved but not allocated memory, as a share of the temporary memory of a step."""
    return FRAGMENTATION + (EXPANDABLE_FRAGMENTATION - FRAGMENTATION) * expandable_segments


@formula("byte", "derived", "gpu-day")
def gap_bytes(transient_bytes: Array, share: Array, few: Array, logits_bytes: Array) -> Array:
    """Bytes that the allocator holds but does not use, from the temporary memory of a step.

    States are allocated once and leave no gaps; tensors of a step leave gaps in shared segments.
    few: 1 where layers leave a GiB at most, and logits as much as they are.
    """
    gaps = share * transient_bytes
    return gaps + few * (minimum(gaps, logits_bytes + GIB) - gaps)


@formula("byte", "derived")
def stuck_bytes(gap_bytes: Array, transient_bytes: Array, recomputed: Array) -> Array:
    """Bytes of gaps in segments that are never empty, which the allocator cannot return.

    recomputed: the share of a stage's layers that are computed again.
    """
    more = RECOMPUTED_STUCK_FRAGMENTATION - STUCK_FRAGMENTATION
    return minimum(gap_bytes, (STUCK_FRAGMENTATION + more * recomputed) * transient_bytes)


@formula("byte", "derived")
def returnable_bytes(stuck_bytes: Array, other_bytes: Array, room_bytes: Array) -> Array:
    """Bytes of segments that are empty at the fullest moment; kept while there is room.

    other_bytes: gaps between tensors, and what only another phase of the step used.  The
    allocator returns whole segments before it fails.
    """
    return minimum(maximum(room_bytes - stuck_bytes, 0.0), other_bytes)
