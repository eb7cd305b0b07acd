"""Blocks held against torch: parameters, FLOP and saved bytes of the modules that train them.

The modules are those of the native training script, one block at a time.  FLOP are what
FlopCounterMode sees of the forward pass, products of matrices; saved bytes are the storages that
autograd keeps, beside weights and the block's own input, which the norm before it has saved.
Streams of hyper-connections are summed element by element, which is no product.

`products` has no module: it stands for modules that are known by their matrices alone, so that a
module made of these would agree by construction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.autograd.graph import saved_tensors_hooks
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from cost_models.activation_memory import saved_tensors, tensor_bytes
from cost_models.blocks import Sublayer
from cost_models.blocks.records import FlashAttention, Gemm, Record, Scan, Split
from cost_models.dims import dims
from cost_models.layers import LayerKind, layers_of
from cost_models.parameters import elements
from cost_models.plans import Plans
from cost_models.spec import ModelSpec
from planner import frameworks
from tests.fixtures.launches import launch

LENGTH, HIDDEN = 256, 256
CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
MODEL: dict[str, Any] = {
    "num_layers": 1, "hidden_size": HIDDEN, "num_attention_heads": 8, "num_query_groups": 4,
    "head_dim": 32, "ffn_hidden_size": 512, "gated_mlp": True, "vocab_size": 128,
    "norm": "layernorm", "tied_embeddings": False,
}  # fmt: skip
MAMBA2 = {"kind": "mamba2", "num_heads": 8, "head_dim": 64, "num_groups": 2, "state_size": 128}
DELTA: dict[str, Any] = {
    "kind": "gated_delta_net", "num_key_heads": 2, "num_value_heads": 4, "key_head_dim": 64,
    "value_head_dim": 128,
}  # fmt: skip
KIMI = DELTA | {"num_key_heads": 4, "key_head_dim": 128, "channel_decays": True}
MAMBA = {"kind": "mamba", "inner_size": 512, "state_size": 16, "time_step_rank": 16}
INDEXER_SPAN = 2 * (64 * (256 - 32) - (256 - 64) * 8) / 256
INDEXER = {"num_heads": 4, "head_dim": 64, "top_k": 64}
LATENT: dict[str, Any] = {"kind": "latent_attention"}
MLA = {
    "kv_lora_rank": 64, "q_lora_rank": None, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
    "v_head_dim": 48,
}  # fmt: skip
COMPRESSED: dict[str, Any] = {
    "kind": "compressed_attention", "q_lora_rank": 96, "o_lora_rank": 48, "o_groups": 2,
    "window": 64,
}  # fmt: skip
EXPERTS = {"kind": "experts"}
MOE: dict[str, Any] = {"num_experts": 6, "top_k": 3, "expert_ffn_hidden_size": 192}
BLOCKS: dict[str, dict[str, Any]] = {
    "mamba2": MAMBA2,
    "mamba2 with biases": MAMBA2 | {"bias": True, "convolution_bias": False, "gated_norm": False},
    "mamba": MAMBA,
    "mamba with norms": MAMBA | {"selection_norms": True, "bias": True},
    "gated delta net": DELTA,
    "delta net without gate": DELTA | {"gated": False, "convolution": 1},
    "kimi delta attention": KIMI | {"decay_rank": 128, "gate_rank": 128},
    "lightning": {"kind": "lightning_attention"},
    "lightning by head": {
        "kind": "lightning_attention", "num_heads": 4, "head_dim": 64, "gate": False,
        "output_norm": "head", "qk_norm": True,
    },
    "short convolution": {"kind": "short_convolution"},
    "short convolution with biases": {"kind": "short_convolution", "taps": 4, "bias": True},
    "linear recurrent unit": {"kind": "linear_recurrent_unit", "width": 320, "num_blocks": 4},
    "rwkv": {"kind": "rwkv_time_mix", "width": 320},
    "rwkv feed-forward": {"kind": "rwkv_channel_mix"},
    "attention": {"kind": "attention"},
    "gated attention": {"kind": "attention", "gate": "element", "qk_norm": "head"},
    "attention gated by head": {"kind": "attention", "gate": "head", "num_query_groups": 8},
    "keys as values": {"kind": "attention", "key_values": "keys"},
    "window": {"kind": "attention", "window": 128},
    "chunk": {"kind": "attention", "chunk": 128, "num_attention_heads": 4},
    "sinks": {"kind": "attention", "sinks": True},
    "window with sinks": {"kind": "attention", "window": 128},
    "earlier keys": {"kind": "attention", "key_values": "earlier", "qk_norm": "head"},
    "per-layer input": {"kind": "per_layer_input", "size": 96},
    "cross": {"kind": "cross_attention", "tokens": 96},
    "cross, other width": {
        "kind": "cross_attention", "tokens": 320, "source_width": 192, "num_query_groups": 8,
    },
    "indexer": {"kind": "attention", "indexer": INDEXER | {"head_weights": False}},
    "indexer of blocks": {
        "kind": "attention", "qk_norm": "head",
        "indexer": INDEXER | {
            "block_size": 16, "head_weights": False, "query_norm": True, "key_norm_bias": False,
        },
    },
    "latent indexer": LATENT | {"indexer": INDEXER | {"query_norm": True}},
    "unfused attention": {"kind": "attention", "num_query_groups": 8},
    "latent attention": LATENT,
    "latent queries": LATENT | {"gate": "head"},
    "latent window": LATENT | {"window": 128, "rope_key_norm": True, "gate": "element"},
    "narrow values": LATENT,
    "attention to a window": COMPRESSED,
    "compressed attention": COMPRESSED | {"compression": 16},
    "choice of compressed": COMPRESSED | {
        "compression": 4, "choice": {"num_heads": 4, "head_dim": 64, "top_k": 16},
    },
    "mlp": {"kind": "mlp", "width": 384, "bias": True},
    "experts": EXPERTS,
    "latent experts": EXPERTS,
    "zero experts": EXPERTS,
    "parallel": {"kind": "parallel", "branches": [{"kind": "attention"}, MAMBA2]},
}  # fmt: skip
# What else its model has, and its plan.
MODELS: dict[str, dict[str, Any]] = {
    "window with sinks": {"attention_sinks": True},
    "cross, other width": {"qk_norm": "head", "qkv_bias": True},
    "per-layer input": {"per_layer_input_size": 96},
    "latent attention": {"mla": MLA},
    "attention to a window": {"attention_sinks": True},
    "choice of compressed": {"attention_sinks": True, "num_query_groups": 1},
    "latent queries": {"mla": MLA | {"q_lora_rank": 96}, "qkv_bias": True},
    "latent window": {"mla": MLA},
    "latent indexer": {"mla": MLA | {"q_lora_rank": 96}},
    "experts": {"moe": MOE},
    "latent experts": {
        "gated_mlp": False,
        "moe": MOE | {"latent_size": 96, "latent_bias": True, "shared_expert_ffn_hidden_size": 96},
    },
    "zero experts": {"moe": MOE | {"zero_experts": 2}},
    "narrow values": {"mla": MLA | {"q_lora_rank": 96, "v_head_dim": 32}},
}  # fmt: skip
# Whole layers, with the norms and residuals between their blocks.
LAYERS: dict[str, dict[str, Any]] = {"layer": {}, "streams": {"residual_streams": 4}}
LAYER = [{"kind": "attention"}, {"kind": "mlp"}]
# The layer before, whose keys and values are used again.
BEFORE: dict[str, Any] = {"earlier keys": [{"kind": "attention"}]}
# The flash kernel of a CPU takes no values of another width than keys.
UNFUSED = {"unfused attention", "narrow values"}


@dataclass(frozen=True)
class Reference:
    """A block or a whole layer, its module, and what the cost model says of it."""

    model: ModelSpec
    block: Sublayer | LayerKind
    script: Any
    module: Any
    records: tuple[Record, ...]
    saved_bytes: dict[str, float]


@pytest.fixture
def world() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def reference(name: str) -> Reference:
    """The module of a block, as the training script makes it."""
    before = [BEFORE[name]] if name in BEFORE else []
    fields = MODEL | {"num_layers": 1 + len(before)} | MODELS.get(name, LAYERS.get(name, {}))
    blocks = LAYER if name in LAYERS else [BLOCKS[name]]
    model = ModelSpec(**fields, layer_pattern=[*before, blocks])
    request, plan = launch(
        model, (1, 1), training={"seq_length": LENGTH, "global_batch_size": 1, "precision": "fp32"},
        runtime="torch", zero_stage=0, cross_entropy="unfused",
        attention_kernel="unfused" if name in UNFUSED else "flash2",
    )  # fmt: skip
    text = frameworks.get("pytorch").write(request, plan).files["train.py"]
    script: Any = ModuleType("train")
    exec(compile(text, "train.py", "exec"), script.__dict__)
    script.setup(torch.device("cpu"))
    make = script.StreamsBlock if model.residual_streams > 1 else script.Block
    module = script.initialise(lambda: make(len(before)))
    block: Sublayer | LayerKind = layers_of(model).kinds[-1]
    if name in BLOCKS:
        (block,), (place,) = model.layer_pattern[-1], module.places
        module = getattr(module, place)
    if model.moe is not None:
        script.expert_parallel(module.experts)
        spread(module.router)
    if hasattr(script, "SHARED"):
        script.SHARED.update(shared())
    d = dims(request.training, Plans.from_rows([plan]))
    records = tuple(block.records(model, d))
    saved = {}
    for tensor in saved_tensors(records):
        saved[tensor.name] = saved.get(tensor.name, 0.0) + one(tensor_bytes(tensor, d))
    return Reference(model, block, script, module, records, saved)


def spread(router: torch.nn.Linear) -> None:
    """Let a router choose experts by turns: each token of `draw` has its place in the sequence."""
    torch.nn.init.zeros_(router.weight)
    for place in range(router.out_features):
        router.weight.data[place, place] = 1.0


def shared() -> dict[Any, Any]:
    """What a layer finds of earlier ones."""
    keys = tuple(torch.randn(1, LENGTH, 4, 32, requires_grad=True) for _ in range(2))
    inputs = torch.randn(1, LENGTH, 1, 96, requires_grad=True)
    return {("keys and values", None, None): keys, "per-layer inputs": inputs}


@pytest.mark.one_in(2, quick=2)
@pytest.mark.parametrize("name", [*BLOCKS, *LAYERS])
@pytest.mark.usefixtures("world")
def test_parameters(name: str) -> None:
    r = reference(name)
    found = sum(parameter.numel() for parameter in r.module.parameters())
    assert found == elements(r.block.weights(r.model, Split()))


def one(value: Any) -> float:
    """Of the one plan there is."""
    return float(np.max(value))


def square(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    """FLOP of all pairs of queries and keys; torch has no formula for a CPU's kernel."""
    batch, heads, queries, head_dim = query
    return 2 * batch * heads * queries * key[2] * (head_dim + value[3])


def flop(records: tuple[Record, ...], seen: float) -> float:
    """Of products, as torch counts them: of attention the whole square, not its causal half.

    seen: the keys for each query in torch's square, where a window leaves out some of them.
    """
    total = 0.0
    for record in records:
        if isinstance(record, Gemm):
            # Scores of an indexer are of the whole square too.
            times = 2.0 + 2.0 * (record.name in ("indexer scores", "choice scores"))
            total += times * one(record.active * record.m * record.n * record.k * record.groups)
        elif isinstance(record, Scan) and record.matrices:
            total += one(record.forward_flop)
        elif isinstance(record, FlashAttention):
            wider = max(seen / record.span, 1.0) * (1.0 + record.causal)
            total += wider * one(record.active * record.forward_flop)
    return total


@pytest.mark.one_in(2, quick=2)
@pytest.mark.parametrize("name", [*BLOCKS, *LAYERS])
@pytest.mark.usefixtures("world")
def test_flop(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode  # imports triton

    r = reference(name)
    # A window is a mask over the whole square, a chunk a shorter sequence.
    options = BLOCKS.get(name, {})
    seen = LENGTH if {"window", "indexer"} & options.keys() else 0.0
    seen += LENGTH / options["compression"] if "compression" in options else 0.0
    x = given(r)
    with FlopCounterMode(display=False, custom_mapping={CPU_ATTENTION: square}) as counted:
        assert r.module(x).shape == x.shape
    assert counted.get_total_flops() == pytest.approx(flop(r.records, seen), rel=0.01)


@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.usefixtures("world")
def test_sinks_are_one_more_score(window: int | None) -> None:
    script = reference("sinks").script
    q, k, v, sinks = draw(1, 48, 8, 32), draw(1, 48, 4, 32), draw(1, 48, 4, 32) + 1, draw(8)
    given = [x.requires_grad_() for x in (q, k, v, sinks)]
    mask = script.window_mask(window or 48, 48, q)
    found = script.attend_fused(q, k, v, mask if window else None, sinks)
    several_k, several_v = (x.repeat_interleave(2, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, several_k) * 32**-0.5 + mask
    scores = torch.cat((scores, sinks[None, :, None, None].expand(1, 8, 48, 1)), -1)
    wanted = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1)[..., :-1], several_v)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    weight = draw(1, 48, 8, 32) - 0.5
    gradients = [torch.autograd.grad((x * weight).sum(), given) for x in (found, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "reach"),
    [("attention to a window", 64), ("compressed attention", 256), ("choice of compressed", 256)],
)
@pytest.mark.usefixtures("world")
def test_compressed_tokens_are_of_the_past(name: str, reach: int) -> None:
    """A token sees those before it alone, and through compressed ones beyond its window."""
    r = reference(name)
    x, query = given(r).requires_grad_(), 199
    (gradient,) = torch.autograd.grad(r.module(x)[0, query].sum(), x)
    seen = gradient[0].abs().sum(-1) > 0
    assert seen[query]
    assert not seen[query + 1 :].any()
    assert seen[: query - 63].any() == (reach > 64)


@pytest.mark.usefixtures("world")
def test_a_choice_of_keys_is_a_mask() -> None:
    script = reference("indexer").script
    given = [draw(1, 48, 8, 32), draw(1, 48, 4, 32) + 1, draw(1, 48, 4, 32) - 1]
    q, k, v = (x.requires_grad_() for x in given)
    choice = torch.rand(1, 48, 48, generator=torch.Generator().manual_seed(1)).tril()
    choice = choice.topk(8).indices.int()
    seen = torch.zeros(1, 1, 48, 48, dtype=torch.bool).scatter(-1, choice[:, None].long(), True)
    mask = torch.zeros(1, 1, 48, 48).masked_fill(~seen.tril(), -torch.inf)
    weight = draw(1, 48, 8, 32) - 0.5
    outputs = script.attend_fused(q, k, v, choice=choice), script.attend(q, k, v, mask)
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)
    gradients = [torch.autograd.grad((out * weight).sum(), given) for out in outputs]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("world")
def test_a_choice_of_blocks_is_a_mask_for_each_group() -> None:
    """Each head of the indexer picks the blocks with the highest scores, its query's own first."""
    r = reference("indexer of blocks")
    x, indexer = draw(1, LENGTH, HIDDEN), r.module.indexer
    for norm in (indexer.query_norm, indexer.key_norm):
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    choice, (q, k) = indexer(x, x)
    assert choice.shape == (1, 4, LENGTH, 4)
    q, k = indexer.query_norm(q.unflatten(-1, (4, 64))), indexer.key_norm(k)[:, :, None]
    q, k = (r.script.rotate(x, r.script.rotary_of(64)).transpose(1, 2) for x in (q, k))
    scores = q @ k.mT
    place = torch.arange(LENGTH)
    later = place[None] > place[:, None]
    best = scores.masked_fill(later, -torch.inf).unflatten(-1, (16, 16)).amax(-1)
    best[..., place, place // 16] = torch.inf
    wanted, query = best.topk(4).indices, 200  # of block 12, with others to choose from
    found = [one[0, :, query].long().sort().values for one in (choice, wanted)]
    torch.testing.assert_close(*found)
    chosen = torch.zeros(1, 4, LENGTH, 16, dtype=torch.bool).scatter(-1, choice.long(), True)
    seen = chosen.repeat_interleave(16, -1).repeat_interleave(2, 1) & ~later
    shapes = ((1, LENGTH, 8, 32), (1, LENGTH, 4, 32), (1, LENGTH, 4, 32))
    q, k, v = (draw(*shape).requires_grad_() for shape in shapes)
    mask = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
    outputs = (
        r.script.attend_fused(q, k, v, choice=choice, block=16), r.script.attend(q, k, v, mask),
    )  # fmt: skip
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)
    weight = draw(1, LENGTH, 8, 32) - 0.5
    gradients = [torch.autograd.grad((out * weight).sum(), (q, k, v)) for out in outputs]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)
    # As many pairs as the span says: of 64 keys at most, less half of the query's own block.
    pairs = seen[0, 0].sum().item() - LENGTH / 2  # the diagonal is half a pair
    assert pairs == pytest.approx(INDEXER_SPAN * LENGTH / 2, rel=0.01)


def given(r: Reference) -> torch.Tensor:
    """What goes into the module; tokens that experts choose by turns, as often each."""
    x = draw(1, LENGTH, HIDDEN * r.model.residual_streams)
    if r.model.moe is not None:
        choices = r.module.router.out_features
        turns = (torch.arange(LENGTH)[:, None] + torch.arange(r.model.moe.top_k)) % choices
        x[0, :, :choices] = torch.zeros(LENGTH, choices).scatter(1, turns, 5.0)
    return x


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.usefixtures("world")
def test_products_by_chunks_are_the_recurrence() -> None:
    script = reference("mamba2").script
    q, k, v, decay = (
        draw(2, 48, 2, 8),
        draw(2, 48, 2, 8) / 2,
        draw(2, 48, 4, 6),
        -draw(2, 48, 4).exp(),
    )
    state, outputs = torch.zeros(2, 4, 6, 8), []
    for t in range(48):
        several_q, several_k = (x[:, t].repeat_interleave(2, 1) for x in (q, k))
        state = state * decay[:, t, :, None, None].exp()
        state = state + v[:, t, :, :, None] * several_k[:, :, None]
        outputs.append((state @ several_q[..., None])[..., 0])
    found = script.linear_attention(q, k, v, decay, 16)
    torch.testing.assert_close(found, torch.stack(outputs, 1), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gated delta net", "kimi delta attention"])
@pytest.mark.usefixtures("world")
def test_the_delta_rule_by_chunks_is_the_recurrence(name: str) -> None:
    options, module = BLOCKS[name], reference(name).module
    heads, dim, width = options["num_value_heads"], options["key_head_dim"], 128
    groups = options["num_key_heads"]
    q, k = (module.normed(draw(1, 192, groups * dim) + i) for i in range(2))
    v, beta = draw(1, 192, heads * width), draw(1, 192, heads)
    decay = draw(1, 192, groups * dim if module.o.channel_decays else heads)
    inverse = module.correction(k, beta, decay)
    found = module.scan(q, k, v, beta, decay, inverse).unflatten(-1, (heads, width))
    kept = (-torch.nn.functional.softplus(decay + module.step_bias)).exp()
    kept = kept.unflatten(-1, (-1, dim if module.o.channel_decays else 1))
    state, outputs = torch.zeros(1, heads, dim, width), []
    for t in range(192):
        read, key, keep = (
            x[:, t].repeat_interleave(heads // x.size(2), 1)[..., None] for x in (q, k, kept)
        )
        state = state * keep
        value = v[:, t].unflatten(-1, (heads, 1, width))
        state = state + key @ (value - key.mT @ state) * beta[:, t, :, None, None].sigmoid()
        outputs.append((read.mT @ state)[..., 0, :] * dim**-0.5)
    torch.testing.assert_close(found, torch.stack(outputs, 1), rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("world")
def test_doubling_is_the_recurrence() -> None:
    script = reference("mamba").script
    decay, x = draw(2, 37, 5).sigmoid(), draw(2, 37, 5)
    state, states = torch.zeros(2, 5), []
    for t in range(37):
        state = decay[:, t] * state + x[:, t]
        states.append(state)
    torch.testing.assert_close(script.linear_scan(decay, x), torch.stack(states, 1))


@pytest.mark.one_in(2, quick=2)
@pytest.mark.parametrize("name", [*BLOCKS, *LAYERS])
@pytest.mark.usefixtures("world")
def test_saved_bytes(name: str) -> None:
    r = reference(name)
    x = given(r).requires_grad_()
    kept: dict[int, tuple[int, torch.Tensor]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in apart:
            kept[storage._cdata] = storage.nbytes(), tensor
        return tensor

    r.module(x)  # makes what the layers share
    tables = (table for pair in getattr(r.script, "TABLES", {}).values() for table in pair)
    tables_of_all = (*r.script.ROTARY, *getattr(r.script, "MASKS", {}).values(), *tables)
    passed = tree_leaves([getattr(r.script, name, {}) for name in ("SHARED", "MEMORY")])
    # A block's own input is saved with the norm before it.
    own = (x,) if name in BLOCKS else ()
    weights = (getattr(p, "_local_tensor", p) for p in r.module.parameters())
    apart = {t.untyped_storage()._cdata for t in (*own, *tables_of_all, *passed, *weights)}
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        out = r.module(x)
    found = sum(size for size, _ in kept.values())
    out.sum().backward()
    assert all(parameter.grad is not None for parameter in r.module.parameters())
    assert found == pytest.approx(sum(r.saved_bytes.values()), rel=0.01), (
        r.saved_bytes, [(tuple(t.shape), size) for size, t in kept.values()],
    )  # fmt: skip
