"""Bytes of saved tensors: what autograd keeps of one layer for one micro-batch, by name.

A table, summed by formula: Table 2 of Korthikanti et al. comes out to the byte, and one can
print which tensors fill the memory.  Runtime variants differ and are named: Megatron keeps the
sequence-sharded input of a column-parallel GEMM and gathers it again in backward, DTensor keeps
the gathered one; flash attention keeps a log-sum-exp per row instead of the score square.

Per-operator recompute ("op") is torchtitan's selective activation checkpointing: it keeps a block's
input, the output of attention, of every second product of two matrices in forward order, and
what tensor parallelism reduced and scattered; all else is computed again.

Torch's own layers (stack torch) keep more than Megatron's fused kernels: statistics of norms, the
gate of a gated MLP after its activation, and unfused attention in fp32; torch.compile computes the
gate again.

Not modelled: norm statistics of other stacks (8 bytes per token and norm), random-number states,
word and position numbers, alignment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.communication import pipeline_message_bytes
from cost_models.layers import Dims, dims, routed_tokens
from cost_models.overheads import attention_placeholder_bytes, mlp_placeholder_bytes
from cost_models.parameters import padded_vocab_size
from cost_models.plans import Plans, is_one_of
from cost_models.sources import Array, formula
from cost_models.spec import LayerKind, ModelSpec, TrainingSpec

FloatArray = NDArray[np.float64]

# Dropout masks are one byte per element (fused dropout).
MASK_BYTES = 1.0
_SCATTERS = ("megatron-2021", "megatron-2022", "deepspeed")
FP32_BYTES = 4.0


@dataclass(frozen=True)
class SavedTensor:
    """One saved tensor: elements per rank and micro-batch, and what drops it.

    by_operator: the share that per-operator recompute keeps.
    """

    name: str
    elements: Array
    element_bytes: Array
    dropped_by: tuple[str, ...] = ()
    active: Array = 1.0
    by_operator: Array = 0.0


@formula("byte", "korthikanti-2022")
def saved_bytes(elements: Array, element_bytes: Array, kept: Array) -> Array:
    """Bytes of one saved tensor: elements x element size where it is kept (1) or not (0)."""
    return elements * element_bytes * kept


@formula("byte", "korthikanti-2022", "megatron-core")
def layer_activation_bytes(model: ModelSpec, kind: LayerKind, d: Dims) -> tuple[Array, Array]:
    """Bytes of one layer for one micro-batch: (kept until its backward, recomputed there).

    The second part is what selective recompute drops: it exists again while that one layer's
    backward runs.
    """
    kept: Array = 0.0
    every: Array = 0.0
    for tensor in saved_tensors(model, kind, d):
        kept = kept + tensor_bytes(tensor, d)
        every = every + saved_bytes(tensor.elements, tensor.element_bytes, tensor.active)
    return kept, every - kept


def tensor_bytes(tensor: SavedTensor, d: Dims) -> Array:
    """Bytes of one row of the table that the plan's selective recompute keeps."""
    kept: Array = tensor.active
    for module in tensor.dropped_by:
        kept = kept * (1.0 - d.recomputed(module))
    kept = kept * (1.0 - d.by_operator * (1.0 - tensor.by_operator))
    return saved_bytes(tensor.elements, tensor.element_bytes, kept)


@formula("byte", "korthikanti-2022")
def layer_input_bytes(model: ModelSpec, d: Dims) -> Array:
    """Bytes of a layer's input: all that full recompute keeps of it (2sbh, or 2sbh/t)."""
    return d.sharded_tokens * model.hidden_size * d.activation_bytes


def saved_tensors(model: ModelSpec, kind: LayerKind, d: Dims) -> tuple[SavedTensor, ...]:
    """The table for one layer, in forward order."""
    mlp = _moe(model, d) if kind == "moe" else _mlp(model, d, model.ffn_hidden_size, "", ("mlp",))
    return (*_attention(model, d), *mlp)


def _norm(
    model: ModelSpec, d: Dims, name: str, dropped_by: tuple[str, ...]
) -> Iterable[SavedTensor]:
    """A norm's input, and its output as the input of the column-parallel GEMM after it."""
    hidden = model.hidden_size
    block_input = 1.0 if name == "attention" else 0.0
    yield SavedTensor(
        f"{name} norm input", d.sharded_tokens * hidden, d.activation_bytes, by_operator=block_input
    )
    # DTensor saves the gathered input; Megatron the shard, to gather again in backward.
    kept = d.sharded_tokens + d.gathered_input * (d.tokens - d.sharded_tokens)
    yield SavedTensor(
        f"{name} norm output", kept * hidden, d.input_bytes, ("layernorm", *dropped_by)
    )
    yield _statistics(model, d, name, d.sharded_tokens)
    extra = model.norms_per_layer / 2.0 - 1.0
    if extra > 0:
        elements = extra * d.sharded_tokens * hidden
        yield SavedTensor(f"{name} post-norm input", elements, d.activation_bytes)


def _statistics(model: ModelSpec, d: Dims, name: str, rows: Array) -> SavedTensor:
    """What torch's norm kernels keep per row in fp32: 1/deviation, and LayerNorm the mean."""
    each = 2.0 if model.norm == "layernorm" else 1.0
    return SavedTensor(f"{name} norm statistics", each * rows, FP32_BYTES, (), d.gathered_input)


def _reduced(model: ModelSpec, d: Dims, name: str, unsplit: Array) -> Iterable[SavedTensor]:
    """What per-operator recompute keeps, and no backward needs, of a row-parallel output.

    The sum over tensor-parallel ranks, and where there is one rank the product itself where it
    is an odd one (`unsplit`); torch.compile drops what no backward reads.
    """
    split = np.where(d.tp > 1, 1.0, 0.0)
    active = d.by_operator * (1.0 - d.compiled) * (split + (1.0 - split) * unsplit)
    elements = d.sharded_tokens * model.hidden_size
    yield SavedTensor(f"{name} sum", elements, d.activation_bytes, (), active, by_operator=1.0)


def _dropout(model: ModelSpec, d: Dims, name: str) -> Iterable[SavedTensor]:
    if model.hidden_dropout > 0:
        elements = d.sharded_tokens * model.hidden_size
        yield SavedTensor(f"{name} dropout mask", elements, MASK_BYTES)


def _attention(model: ModelSpec, d: Dims) -> Iterable[SavedTensor]:
    yield from _norm(model, d, "attention", ())
    if model.mla is None:
        query = d.tokens * d.heads * model.head_dim
        key = value = d.tokens * d.kv_heads * model.head_dim
        output = query
        up: tuple[str, ...] = ()
    else:
        mla = model.mla
        head_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        latent = mla.kv_lora_rank + (mla.q_lora_rank or 0)
        down = d.sharded_tokens * (latent + mla.qk_rope_head_dim)
        yield SavedTensor("mla down output", down, d.activation_bytes)
        normed = d.sharded_tokens + d.gathered_input * (d.tokens - d.sharded_tokens)
        yield SavedTensor("mla norm output", normed * latent, d.input_bytes)
        query = key = d.tokens * d.heads * head_dim
        value = output = d.tokens * d.heads * mla.v_head_dim
        up = ("mla_up_proj",)
    if model.qk_norm != "none":
        yield SavedTensor("qk norm input", query + key, d.activation_bytes)
        yield _statistics(model, d, "qk", d.tokens * (d.heads + d.kv_heads))
    unfused = 1.0 - d.flash
    # Unfused attention of torch (SDPBackend.MATH) computes in fp32 and saves what it computes with.
    core_bytes = d.activation_bytes + (FP32_BYTES - d.activation_bytes) * unfused * d.gathered_input
    yield SavedTensor("query", query, core_bytes, up, by_operator=1.0)
    yield SavedTensor("key", key, core_bytes, up)
    yield SavedTensor("value", value, core_bytes, up, by_operator=1.0)
    core = ("core_attn",)
    scores = d.sequences * d.heads * (d.seq_length / d.cp) * d.seq_length
    yield SavedTensor("softmax output", scores, core_bytes, core, unfused)
    if model.attention_dropout > 0:
        yield SavedTensor("attention score mask", scores, MASK_BYTES, core, unfused)
        yield SavedTensor("attention dropout output", scores, core_bytes, core, unfused)
    yield SavedTensor("log-sum-exp", d.tokens * d.heads, FP32_BYTES, core, d.flash, by_operator=1.0)
    yield SavedTensor("attention output", output, d.activation_bytes, by_operator=1.0)
    cast = np.where(d.input_bytes < d.activation_bytes, 1.0, 0.0)
    yield SavedTensor("attention output cast", output, d.input_bytes, (), cast)
    # All-to-all keeps the output by heads for its kernel, and by tokens for the projection (TE).
    exchanged = d.all_to_all * (d.cp > 1)
    yield SavedTensor("attention output by heads", output, d.activation_bytes, core, exchanged)
    yield from _reduced(model, d, "attention", 1.0 - d.gathered_input)
    yield from _dropout(model, d, "attention")


def _mlp(
    model: ModelSpec, d: Dims, width: int, prefix: str, dropped_by: tuple[str, ...]
) -> Iterable[SavedTensor]:
    if not prefix:
        yield from _norm(model, d, "mlp", ())
    local = d.tokens * width / d.tp
    inputs = 2.0 if model.gated_mlp else 1.0
    yield SavedTensor(
        f"{prefix}fc1 output", inputs * local, d.activation_bytes, dropped_by,
        by_operator=1.0 / inputs,
    )  # fmt: skip
    yield SavedTensor(f"{prefix}activation output", local, d.input_bytes, dropped_by)
    if model.gated_mlp:
        yield SavedTensor(f"{prefix}gate output", local, d.activation_bytes, dropped_by, d.eager)
    if not prefix:
        # Products in order: q, k, v, output, gate, up, down: of a gated MLP the last is odd.
        yield from _reduced(model, d, "mlp", inputs - 1.0)
        yield from _dropout(model, d, "mlp")


def _moe(model: ModelSpec, d: Dims) -> Iterable[SavedTensor]:
    moe = model.moe
    assert moe is not None
    yield from _norm(model, d, "mlp", ())
    whole = ("moe",)
    scores = d.sharded_tokens * moe.num_experts
    yield SavedTensor("router scores", 2.0 * scores, FP32_BYTES, whole)
    copies = routed_tokens(model, d)
    inputs = 2.0 if model.gated_mlp else 1.0
    width = moe.expert_ffn_hidden_size / d.etp
    yield SavedTensor("expert input", copies * model.hidden_size, d.input_bytes, whole)
    yield SavedTensor(
        "expert fc1 output", inputs * copies * width, d.activation_bytes, whole,
        by_operator=1.0 / inputs,
    )  # fmt: skip
    act = ("moe", "moe_act")
    yield SavedTensor("expert activation output", copies * width, d.input_bytes, act)
    # The combine weights need the experts' outputs to get their gradient.
    sent = d.sharded_tokens * moe.top_k * model.hidden_size
    yield SavedTensor("combine input", sent, d.activation_bytes, whole)
    if moe.shared_expert_ffn_hidden_size:
        shared = ("shared_experts", "moe")
        yield from _mlp(model, d, moe.shared_expert_ffn_hidden_size, "shared ", shared)
    yield from _dropout(model, d, "mlp")


@formula("byte", "megatron-core")
def head_saved_bytes(
    tokens: Array,
    sharded_tokens: Array,
    hidden_size: Array,
    local_vocab: Array,
    in_place_loss: Array,
    gathered_input: Array,
    activation_bytes: Array,
) -> Array:
    """Bytes the head keeps of one micro-batch: last norm in and out, fp32 softmax of the logits.

    DTensor keeps the norm's output gathered.

    The native fusion of Megatron keeps the fp32 exponentials as well; a loss in place (Transformer
    Engine's, or torch's own compiled) the half-precision logits, which it overwrites or re-reads.
    """
    whole = np.maximum(tokens - sharded_tokens, 0.0) * gathered_input
    norms = (2.0 * sharded_tokens + whole) * hidden_size * activation_bytes
    logit_bytes = FP32_BYTES + (activation_bytes - FP32_BYTES) * in_place_loss
    return norms + tokens * local_vocab * logit_bytes


@formula("byte", "megatron-core", "torch")
def head_working_bytes(
    tokens: Array,
    sharded_tokens: Array,
    hidden_size: Array,
    local_vocab: Array,
    fused_loss: Array,
    in_place_loss: Array,
    autograd_loss: Array,
    split_loss: Array,
    activation_bytes: Array,
) -> Array:
    """Bytes alive only around the loss, beside what it saved.

    The 2-byte logits going in or their 2-byte gradient coming out (Transformer Engine's loss
    overwrites one with the other); torch's own unfused loss also holds the fp32 logits and an fp32
    gradient, which Megatron's overwrites in place; its loss_parallel holds four fp32 tensors in all
    (log-softmax, gradient, their sum and its product).  Then the gradient of the head's input,
    whole and reduced, and the input gathered once more.
    """
    extra = (2.0 * FP32_BYTES + activation_bytes * split_loss) * autograd_loss * (1.0 - fused_loss)
    gathered = np.maximum(tokens - sharded_tokens, 0.0) * (1.0 - autograd_loss)
    inputs = (tokens + sharded_tokens + gathered) * hidden_size * activation_bytes
    return inputs + tokens * local_vocab * (activation_bytes * (1.0 - in_place_loss) + extra)


@formula("byte", "derived")
def working_bytes(model: ModelSpec, kind: LayerKind, d: Dims) -> Array:
    """Bytes alive only inside one layer's backward: the widest gradient pair and its gathers.

    The gradient of the widest MLP tensor and of its input; or of unfused attention's softmax and of
    its scores, by when what the MLP saved is gone.  Where the input was kept sharded, also the
    gathered copy that the weight gradient needs.
    """
    hidden = float(model.hidden_size)
    inputs = 2.0 if model.gated_mlp else 1.0
    if kind == "moe":
        assert model.moe is not None
        copies = routed_tokens(model, d)
        width = model.moe.expert_ffn_hidden_size / d.etp
        widest = copies * (inputs * width + hidden)
        gone = copies * (inputs + 1.0) * width
    else:
        local = d.tokens * model.ffn_hidden_size / d.tp
        # Of a gated MLP in two matrices (torch) two input gradients wait for their sum.
        summed = 1.0 + (inputs - 1.0) * d.gathered_input
        widest = inputs * local + summed * d.tokens * hidden
        gone = (inputs + 1.0) * local
    scores = d.sequences * d.heads * (d.seq_length / d.cp) * d.seq_length * (1.0 - d.flash)
    widest = np.maximum(widest, 2.0 * scores - gone)
    gathered = (d.tokens - d.sharded_tokens) * hidden * (1.0 - d.gathered_input)
    return (widest + gathered) * d.activation_bytes


@dataclass(frozen=True)
class BlockBytes:
    """What one layer keeps of a micro-batch, drops, and needs only inside: arrays over keys."""

    saved: FloatArray
    dropped: FloatArray
    working: FloatArray
    placeholders: FloatArray


@dataclass(frozen=True)
class MicroBatchBytes:
    """Activation memory of one micro-batch on one rank, by key."""

    layers: dict[LayerKind, BlockBytes]
    layer_input: FloatArray
    embedding_saved: FloatArray
    head_saved: FloatArray
    head_working: FloatArray
    head_output: FloatArray
    message: FloatArray
    attention_placeholders: FloatArray


def micro_batch_bytes(model: ModelSpec, training: TrainingSpec, plans: Plans) -> MicroBatchBytes:
    """Bytes per key; `plans` holds one row per key."""
    d = dims(model, training, plans)
    size = (len(plans),)

    def full(values: Array) -> FloatArray:
        return np.full(size, values, dtype=np.float64)

    hidden = float(model.hidden_size)
    vocab = padded_vocab_size(float(model.vocab_size), d.tp) / d.tp
    mask = MASK_BYTES if model.hidden_dropout > 0 else 0.0
    # Every rank of a tp group sends what it holds: the shard, or the whole (megatron-core).
    # Megatron-LM of 2021 and 2022 scattered it before and gathered after (SC'21, section 4.1), and
    # so does DeepSpeed's pipeline (engine.py, pipe_partitioned and grad_partitioned).
    scattered = is_one_of(plans.stack, "stack", *_SCATTERS)
    sent = d.sharded_tokens * (1.0 - scattered) + d.tokens / d.tp * scattered
    message = pipeline_message_bytes(sent, hidden, d.activation_bytes)

    compact = np.maximum(d.in_place_loss, d.fused_loss * d.gathered_input)

    def block(kind: LayerKind) -> BlockBytes:
        kept, dropped = layer_activation_bytes(model, kind, d)
        return BlockBytes(
            full(kept), full(dropped), full(working_bytes(model, kind, d)),
            full(mlp_placeholder_bytes(model, kind, d)),
        )  # fmt: skip

    return MicroBatchBytes(
        layers={kind: block(kind) for kind in sorted(set(model.layer_kinds))},
        layer_input=full(layer_input_bytes(model, d)),
        embedding_saved=full(mask * d.sharded_tokens * hidden),
        head_saved=full(
            head_saved_bytes(
                d.tokens,
                d.sharded_tokens,
                hidden,
                vocab,
                compact,
                d.gathered_input,
                d.activation_bytes,
            )
        ),
        head_output=full(d.tokens * vocab * d.activation_bytes),
        head_working=full(
            head_working_bytes(
                d.tokens,
                d.sharded_tokens,
                hidden,
                vocab,
                d.fused_loss,
                d.in_place_loss,
                d.gathered_input,
                np.where(d.tp > 1, 1.0, 0.0),
                d.activation_bytes,
            )
        ),
        message=full(message),
        attention_placeholders=full(attention_placeholder_bytes(model, d)),
    )
