"""Memory beside the tensors of the model: placeholders, buckets, the allocator and the driver.

Three quantities are told apart.  Allocated: what torch's allocator has handed out
(`max_memory_allocated`).  Reserved: what it holds, with what no tensor of the moment fits into
(`max_memory_reserved`).  Driver: what the accelerator has lent in all (nvidia-smi): reserved, the
CUDA context and NCCL's buffers.

Not modelled: communicators that a run opens and never uses, CUDA graphs, MPS.
"""

from __future__ import annotations

import numpy as np

from cost_models.layers import Dims
from cost_models.plans import Plans, code
from cost_models.sources import Array, formula
from cost_models.spec import LayerKind, ModelSpec

MIB = 2.0**20
WEIGHT_BYTES = 2.0
# CUDA context with the kernels of torch, cuBLAS and NCCL loaded: BLOOM's chronicles count 1.5 GB.
CONTEXT_BYTES = 1.5e9
# Of one connection and channel: Simple 4 MiB, LL128 120 x 640 x 8 x 8, LL 8 x 512 x 8 x 16 bytes.
NCCL_CONNECTION_BYTES = 4.0 * MIB + 120 * 640 * 8 * 8 + 8 * 512 * 8 * 16
NCCL_CHANNELS = 16.0
# A ring and a tree: what a rank receives through.
NCCL_CONNECTIONS = 2.0
# cuBLAS: 32 MiB (torch, since Hopper), and 32 MiB for each of Transformer Engine's four streams.
CUBLAS_BYTES = 32.0 * MIB
TE_WORKSPACES = 4.0
# What the caching allocator cannot reuse of memory that comes and goes, where segments are fixed,
# and where they grow (expandable_segments, which torchtitan sets).
FRAGMENTATION = 0.3
EXPANDABLE_FRAGMENTATION = 0.05
# DeepSpeed's reduce_bucket_size, allgather_bucket_size and its engine's bucket, in elements.
DEEPSPEED_BUCKET = 5e8
# ZeRO-3's stage3_max_live_parameters.
DEEPSPEED_LIVE = 1e9


@formula("byte", "transformer-engine")
def attention_placeholder_bytes(model: ModelSpec, d: Dims) -> Array:
    """Bytes of the placeholder gradients of attention's matrices, one per shape.

    Weight gradients are added to the fp32 buffer inside the GEMM; autograd gets a half-precision
    tensor of the weight's shape instead, which Transformer Engine keeps for the next of that shape
    (module/base.py, get_dummy_wgrad).
    """
    hidden = float(model.hidden_size)
    if model.mla is None:
        width = (2.0 * d.heads + 2.0 * d.kv_heads) * model.head_dim
        return width * hidden * WEIGHT_BYTES
    mla = model.mla
    rank = float(mla.q_lora_rank or hidden)
    query = d.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim) * rank
    value = d.heads * (mla.qk_nope_head_dim + mla.v_head_dim) * mla.kv_lora_rank
    down = (mla.kv_lora_rank + mla.qk_rope_head_dim + (mla.q_lora_rank or 0)) * hidden
    return (query + value + down + d.heads * mla.v_head_dim * hidden) * WEIGHT_BYTES


@formula("byte", "transformer-engine")
def mlp_placeholder_bytes(model: ModelSpec, kind: LayerKind, d: Dims) -> Array:
    """Bytes of the placeholder gradients of an MLP's matrices; experts share one per shape."""
    matrices = 3.0 if model.gated_mlp else 2.0
    if kind == "dense":
        width: Array = model.ffn_hidden_size / d.tp
    else:
        assert model.moe is not None
        shared = model.moe.shared_expert_ffn_hidden_size / d.tp
        width = shared + model.moe.expert_ffn_hidden_size / d.etp
    return matrices * width * model.hidden_size * WEIGHT_BYTES


@formula("byte", "torch", "transformer-engine")
def workspace_bytes(transformer_engine: Array) -> Array:
    """Bytes of GEMM workspaces in the allocator."""
    return CUBLAS_BYTES * (1.0 + TE_WORKSPACES * transformer_engine)


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
    data, whole = plans.dp * plans.cp, plans.tp * plans.pp
    groups: Array = 3.0 * (plans.pp > 1)
    for size in (whole * data, plans.tp, plans.cp, data, plans.ep, whole):
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
    bucket = np.minimum(parameters, DEEPSPEED_BUCKET)
    joined = np.maximum(bucket, largest_parameters)
    whole = joined * (reduced_bytes + weight_bytes)
    reduced = whole + (bucket * reduced_bytes - whole) * half_gradients
    return reduced + bucket * weight_bytes


def fragmentation_share(plans: Plans) -> Array:
    """Reserved and not allocated, as a share of what comes and goes in a step."""
    expandable = plans.stack == code("stack", "torch")
    return np.where(expandable, EXPANDABLE_FRAGMENTATION, FRAGMENTATION)


@formula("byte", "derived")
def fragmentation_bytes(
    transient_bytes: Array, share: Array, other_phase_bytes: Array, room_bytes: Array
) -> Array:
    """Bytes the allocator holds and cannot use, out of what comes and goes.

    States are allocated once and fit; tensors of a step leave gaps in the segments they share.
    What another phase of the step had in segments of its own stays too, where there is room:
    before it fails, the allocator returns whole segments.
    """
    gaps = share * transient_bytes
    return gaps + np.minimum(np.maximum(room_bytes - gaps, 0.0), other_phase_bytes)
