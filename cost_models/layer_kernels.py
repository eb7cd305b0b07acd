"""The kernels of one layer, of the embedding and of the head, in forward order.

Memory-bound kernels are counted by the bytes they read and write per element, which differs
between runtimes: Transformer Engine and apex fuse what eager torch runs one operator at a time,
and torch.compile fuses a norm, a residual add or an activation with its neighbours.
Symbols: T tokens of the rank, S tokens after sequence parallelism, h hidden, f MLP width,
t tensor-parallel, e experts.
"""

from __future__ import annotations

from collections.abc import Iterable

from cost_models.layers import (
    Dims,
    FlashAttention,
    Gemm,
    Kernel,
    Pass,
    attention_span,
    routed_tokens,
)
from cost_models.sources import Array
from cost_models.spec import LayerKind, ModelSpec

# Bandwidth of gathering rows over that of a plain pass (SimuMax @4dcaae51, B200: 0.50 of 0.67).
PERMUTE_FRACTION = 0.75
ACTIVATION_ALIGNMENT = 8  # half-precision elements in 16 bytes (tensor-cores)


def layer_kernels(model: ModelSpec, kind: LayerKind, d: Dims) -> tuple[Kernel, ...]:
    """The kernels of one layer, in forward order."""
    mlp = _moe(model, d) if kind == "moe" else _mlp(model, d, model.ffn_hidden_size, "mlp", "")
    return (*_attention(model, d), *_norm(model, d, "mlp norm"), *mlp, *_residual(model, d, "mlp"))


def _norm(model: ModelSpec, d: Dims, name: str) -> Iterable[Kernel]:
    """Half of the layer's norms.

    Fused: read and write once forward; read twice, write once backward.  Eager torch runs the
    gradients of the weights as a kernel of their own, and RMSNorm in fp32 operator by operator
    (torch's composite rms_norm: 7 operators forward, about twice that backward).
    """
    size = d.sharded_tokens * model.hidden_size * model.norms_per_layer / 2.0
    forward, backward = (36.0, 72.0) if model.norm == "rmsnorm" else (4.0, 10.0)
    yield Pass(
        name,
        (4.0 + (forward - 4.0) * d.eager) * size,
        (6.0 + (backward - 6.0) * d.eager) * size,
        "layernorm",
        kind=model.norm,
    )


def _residual(model: ModelSpec, d: Dims, name: str) -> Iterable[Kernel]:
    """Dropout (with its 1-byte mask) and residual add; backward adds the two branches' gradients.

    Eager torch runs dropout and add apart; torch.compile fuses both sums with the norm, so that
    only the second operand is read.
    """
    size = d.sharded_tokens * model.hidden_size
    mask = 1.0 if model.hidden_dropout > 0 else 0.0
    apart = 4.0 * mask * d.eager
    yield Pass(
        f"{name} dropout + add",
        (6.0 + mask + apart - 4.0 * d.compiled) * size,
        (6.0 + 5.0 * mask - 4.0 * d.compiled) * size,
        kind="dropout add" if mask else "add",
    )


def _bias(width: Array, rows: Array, has: bool, name: str) -> Iterable[Kernel]:
    """The gradient of a bias: one reading of its output's gradient (the sum itself is fused)."""
    if has:
        yield Pass(name, 0.0, 2.0 * rows * width, redone=0.0, kind="bias")


def _attention(model: ModelSpec, d: Dims) -> Iterable[Kernel]:
    hidden = float(model.hidden_size)
    yield from _norm(model, d, "attention norm")
    if model.mla is None:
        head_dim = value_dim = float(model.head_dim)
        kv_heads = d.kv_heads
        width = (d.heads + 2.0 * kv_heads) * head_dim
        # torch keeps every second product: queries and values, not keys (see `op` recompute).
        yield Gemm(
            "qkv", d.tokens, width, hidden, gathered_input=True, redone=kv_heads * head_dim / width
        )
        yield from _bias(width, d.tokens, model.qkv_bias, "qkv bias")
        # apex-era Megatron joins the gradients of the three in one copy.
        yield Pass("qkv split", 0.0, 4.0 * width * d.tokens, active=d.apex)
    else:
        mla = model.mla
        head_dim = float(mla.qk_nope_head_dim + mla.qk_rope_head_dim)
        value_dim = float(mla.v_head_dim)
        kv_heads = d.heads
        query_rank = float(mla.q_lora_rank or 0)
        latent = float(mla.kv_lora_rank)
        down = query_rank + latent + mla.qk_rope_head_dim
        up = "mla_up_proj"
        yield Gemm("mla down", d.sharded_tokens, down, hidden, redone=0.5)
        size = d.sharded_tokens * (query_rank + latent)
        yield Pass("mla norms", 4.0 * size, 6.0 * size)
        yield Gemm("mla q up", d.tokens, d.heads * head_dim, query_rank or hidden, up)
        kv_up = d.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        yield Gemm("mla kv up", d.tokens, kv_up, latent, up, redone=1.0)
        # Keys are joined from the up-projected part and the one rotary part that all heads share.
        joined = d.tokens * d.heads * (2.0 * head_dim + mla.v_head_dim)
        yield Pass("mla join", 4.0 * joined, 4.0 * joined, up)
    rotated = d.tokens * (d.heads + kv_heads) * head_dim
    if model.position == "rope":
        # Eager torch rotates in fp32: to fp32, complex product, back (5 bytes for each fused one).
        slow = 1.0 + 4.0 * d.eager
        yield Pass(
            "rope",
            4.0 * rotated * slow,
            4.0 * rotated * slow,
            "mla_up_proj" if model.mla else "",
            kind="" if model.mla else "rope",
        )
    if model.qk_norm != "none":
        yield Pass("qk norm", (4.0 + 32.0 * d.eager) * rotated, (6.0 + 66.0 * d.eager) * rotated)
    if model.mla is None and model.num_query_groups < model.num_attention_heads:
        # torchtitan repeats keys and values up to the number of query heads.
        repeated = 2.0 * d.tokens * d.heads * head_dim * d.gathered_input
        yield Pass(
            "repeat kv", 2.0 * repeated, 2.0 * repeated, active=d.gathered_input, kind="repeat kv"
        )
    yield from _core_attention(model, d, head_dim, value_dim)
    yield Gemm(
        "attention out", d.tokens, hidden, d.heads * value_dim, scattered_output=True, redone=1.0
    )
    yield from _bias(hidden, d.sharded_tokens, model.attention_output_bias, "attention out bias")
    yield from _residual(model, d, "attention")


def _core_attention(
    model: ModelSpec, d: Dims, head_dim: float, value_dim: float
) -> Iterable[Kernel]:
    span = attention_span(model, d.seq_length)
    # Q K^T and P V, causal: half of the square.
    flop = d.tokens * span * d.heads * (head_dim + value_dim)
    yield FlashAttention(
        "attention",
        flop,
        span / d.cp,
        head_dim,
        d.tokens * d.heads,
        head_dim != value_dim,
        d.flash1,
        d.flash2,
        active=d.flash,
    )
    unfused = 1.0 - d.flash
    rows = d.seq_length / d.cp
    batch = d.sequences * d.heads
    # Heads of other than whole 16 bytes keep the tensor cores idle in strided products.
    aligned = head_dim % ACTIVATION_ALIGNMENT == 0
    kw = {
        "module": "core_attn", "fp8": False, "weights": False, "active": unfused,
        "tensor_cores": aligned,
    }  # fmt: skip
    yield Gemm("q k^T", rows, d.seq_length, head_dim, groups=batch, **kw)  # type: ignore[arg-type]
    scores = batch * rows * d.seq_length
    dropped = 1.0 if model.attention_dropout > 0 else 0.0
    # Fused scale-mask-softmax: read, write; backward: read two, write one.  Dropout: one more.
    yield Pass("softmax", 4.0 * scores, 6.0 * scores, "core_attn", unfused)
    if dropped:
        yield Pass("attention dropout", 5.0 * scores, 5.0 * scores, "core_attn", unfused)
    yield Gemm("p v", rows, value_dim, d.seq_length, groups=batch, **kw)  # type: ignore[arg-type]
    # Heads back beside each other: one copy each way.
    context = d.tokens * d.heads * value_dim
    yield Pass("context transpose", 4.0 * context, 4.0 * context, "core_attn", unfused)


def _mlp(model: ModelSpec, d: Dims, width: int, module: str, prefix: str) -> Iterable[Kernel]:
    """Column-parallel in, activation, row-parallel out.

    Eager torch runs a gated activation as two operators forward and three backward.
    """
    local = width / d.tp
    inputs = 2.0 if model.gated_mlp else 1.0
    # torch keeps every second product: one of the two gated ones is redone.
    redone = 0.5 if model.gated_mlp else 0.0
    yield Gemm(
        f"{prefix}fc1", d.tokens, inputs * local, float(model.hidden_size), module,
        gathered_input=True, redone=redone,
    )  # fmt: skip
    yield from _bias(inputs * local, d.tokens, model.mlp_bias, f"{prefix}fc1 bias")
    size = d.tokens * local
    apart = (inputs - 1.0) * d.eager
    forward = (2.0 * inputs + 2.0 + 4.0 * apart) * size
    backward = (4.0 * inputs + 2.0 + 8.0 * apart) * size
    kind = "silu product" if model.gated_mlp else "gelu"
    yield Pass(f"{prefix}activation", forward, backward, module, kind=kind)
    yield Gemm(
        f"{prefix}fc2", d.tokens, float(model.hidden_size), local, module, scattered_output=True
    )
    yield from _bias(
        float(model.hidden_size), d.sharded_tokens, model.mlp_bias, f"{prefix}fc2 bias"
    )


def _moe(model: ModelSpec, d: Dims) -> Iterable[Kernel]:
    moe = model.moe
    assert moe is not None
    hidden = float(model.hidden_size)
    copies = routed_tokens(model, d)
    local_experts = moe.num_experts / d.ep
    width = moe.expert_ffn_hidden_size / d.etp
    inputs = 2.0 if model.gated_mlp else 1.0
    yield Gemm("router", d.sharded_tokens, float(moe.num_experts), hidden, "moe", fp8=False)
    scores = d.sharded_tokens * moe.num_experts
    # fp32 logits: softmax or sigmoid, top-k, and the balancing loss read them about four times.
    yield Pass("top-k", 16.0 * scores, 12.0 * scores, "moe")
    sent = d.sharded_tokens * moe.top_k * hidden
    # Gathered by destination before the exchange, sorted by expert after it, and back again.
    moved = 4.0 * (sent + copies * hidden) / PERMUTE_FRACTION
    yield Pass("permute", moved, moved, "moe")
    rows = copies / local_experts
    yield Gemm(
        "expert fc1", rows, inputs * width, hidden, "moe", groups=local_experts, grouped=True
    )
    size = copies * width
    forward, backward = (2.0 * inputs + 2.0) * size, (4.0 * inputs + 2.0) * size
    yield Pass("expert activation", forward, backward, "moe_act")
    yield Gemm("expert fc2", rows, hidden, width, "moe", groups=local_experts, grouped=True)
    yield Pass("unpermute", moved, moved, "moe")
    if moe.shared_expert_ffn_hidden_size:
        yield from _mlp(model, d, moe.shared_expert_ffn_hidden_size, "shared_experts", "shared ")


def embedding_kernels(model: ModelSpec, d: Dims) -> tuple[Kernel, ...]:
    """Row look-up forward; scatter-add into fp32 gradients backward."""
    size = d.tokens * model.hidden_size
    positions = 1.0 if model.position == "learned" else 0.0
    forward = (4.0 + 4.0 * positions) * size
    kernels: list[Kernel] = [Pass("embedding", forward, 10.0 * size, kind="embedding")]
    if model.embedding_norm:
        kernels.append(Pass("embedding norm", 4.0 * size, 6.0 * size))
    if model.hidden_dropout > 0:
        kernels.append(Pass("embedding dropout", 5.0 * size, 5.0 * size))
    return tuple(kernels)


def head_kernels(model: ModelSpec, d: Dims, vocab: Array) -> tuple[Kernel, ...]:
    """Last norm, logits and vocabulary-parallel cross-entropy; vocab is the padded size.

    Loss in bytes per logit: bf16 to fp32, maximum, shift, exponent, sum, normalise, one pass each:
    38 forward, 12 backward.  Fused (Megatron's native fusion, fp32 inside): conversion and maximum
    2 + 4 + 4, shift and exponent 8, normalise 8: 26; backward 10.

    The projections of multi-token prediction stand here with their share of the head's passes.
    """
    hidden = float(model.hidden_size)
    local = vocab / d.tp
    norm = d.sharded_tokens * hidden
    logits = d.tokens * local
    kernels: list[Kernel] = [
        Pass("last norm", 4.0 * norm, 6.0 * norm, kind=f"last {model.norm}"),
        Gemm("logits", d.tokens, local, hidden, fp8=False),
        Pass(
            "cross-entropy",
            (38.0 - 12.0 * d.fused_loss) * logits,
            (12.0 - 2.0 * d.fused_loss) * logits,
            kind="cross-entropy",
        ),
    ]
    predictions = model.mtp_num_layers
    if predictions:
        share = predictions / (1.0 + predictions)
        width = hidden / d.tp
        kernels.append(Gemm("mtp projection", d.tokens, width, 2.0 * hidden, active=share))
        kernels.append(Pass("mtp norms", 8.0 * norm, 12.0 * norm, active=share))
    return tuple(kernels)
