"""A model as its layers in order: patterns are exact, and a new mixer needs no other file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import ClassVar, Literal

import numpy as np
import pytest

from cost_models.blocks.attention import Attention, attention_span
from cost_models.blocks.base import Block, End, Mixer
from cost_models.blocks.embedding import Embedding
from cost_models.blocks.head import Head
from cost_models.blocks.mlp import MLP
from cost_models.blocks.records import (
    Collective,
    Gemm,
    MemoryBoundKernel,
    Record,
    SavedTensor,
    Split,
    TensorParallel,
    Weight,
)
from cost_models.catalog.hardware import parse_shorthand
from cost_models.catalog.models import model as preset
from cost_models.catalog.models import models
from cost_models.dims import Dims
from cost_models.estimate import CostModel
from cost_models.flops import forward_flop
from cost_models.layers import layers_of
from cost_models.parameters import total_parameters
from cost_models.plans import RECOMPUTE_MODULES, ParallelPlan, Plans
from cost_models.sources import SOURCES
from cost_models.spec import MLASpec, ModelSpec, MoESpec, TrainingSpec
from tests.fixtures.layers import one_micro_batch

DENSE = ModelSpec(num_layers=8, hidden_size=1024, num_attention_heads=16, vocab_size=32000)
WINDOW, FULL = Attention(window=256), Attention()


def patterned(*mixers: Mixer) -> ModelSpec:
    pattern = [(mixer, MLP()) for mixer in mixers]
    return ModelSpec.model_validate(DENSE.model_dump() | {"layer_pattern": pattern})


def seconds(model: ModelSpec, **plan: object) -> float:
    training = TrainingSpec(seq_length=8192, global_batch_size=64)
    cost = CostModel(model, parse_shorthand("1x8xh100-sxm"), training)
    rows = Plans.from_rows([ParallelPlan.model_validate(plan)])
    return float(cost.evaluate(rows).iteration_time_s[0])


def test_a_pattern_repeats_over_the_layers() -> None:
    layers = layers_of(patterned(WINDOW, WINDOW, FULL))
    assert layers.order == (0, 0, 1, 0, 0, 1, 0, 0)
    assert [kind.name for kind in layers.kinds] == ["window 256 dense", "full dense"]
    assert layers.counts == (6, 2)
    assert [kind.name for kind in layers_of(preset("deepseek-v3")).kinds] == ["dense", "moe"]


def test_a_window_with_a_period_is_such_a_pattern() -> None:
    short = ModelSpec.model_validate(
        DENSE.model_dump() | {"sliding_window": 256, "full_attention_period": 4}
    )
    long = patterned(WINDOW, WINDOW, WINDOW, FULL)
    assert layers_of(short) == layers_of(long)
    assert seconds(short, dp=4, pp=2) == seconds(long, dp=4, pp=2)


def test_flop_of_a_pattern_are_those_of_its_layers() -> None:
    half, rest = (
        forward_flop(patterned(mixer), 8192.0, 8192.0, causal=True) for mixer in (WINDOW, FULL)
    )
    mixed = forward_flop(patterned(WINDOW, FULL), 8192.0, 8192.0, causal=True)
    assert mixed == pytest.approx((half + rest) / 2, rel=1e-12)
    assert half < rest
    assert attention_span(256, 8192.0) == 2 * 256 * (8192 - 128) / 8192


def test_stages_are_as_slow_as_the_layers_they_hold() -> None:
    """Full attention all in the last of two stages: as slow as a model that has it in both."""
    gathered = seconds(patterned(*(WINDOW,) * 4, *(FULL,) * 4), dp=4, pp=2)
    spread = seconds(patterned(WINDOW, FULL), dp=4, pp=2)
    everywhere = seconds(patterned(FULL), dp=4, pp=2)
    assert spread < gathered < everywhere
    assert gathered > 0.9 * everywhere


@pytest.mark.slow
@pytest.mark.parametrize("entry", models(), ids=lambda entry: entry.id)
def test_every_block_of_every_preset_cites_its_sources(entry: object) -> None:
    blocks = {b for kind in layers_of(entry.spec).kinds for b in kind.blocks}  # type: ignore[attr-defined]
    assert len(blocks) >= 6
    for block in (*blocks, Embedding(), Head()):
        assert isinstance(block, Block | End)
        assert block.sources
        assert set(block.sources) <= set(SOURCES)


class Gate(Mixer):
    """A mixer that nothing else in the project knows: a gated product, exchanged over cp."""

    sources: ClassVar[tuple[str, ...]] = ("derived",)
    kind: Literal["gate"] = "gate"
    width: int

    def weights(self, model: ModelSpec, split: Split) -> Iterator[Weight]:
        yield Weight("gate in", model.hidden_size * self.width / split.tp, matrix=True)
        yield Weight("gate out", self.width * model.hidden_size / split.tp, matrix=True)

    def records(self, model: ModelSpec, d: Dims) -> Iterator[Record]:
        hidden, width = float(model.hidden_size), self.width / d.tp
        into = Gemm("gate in", d.tokens, width, hidden)
        out = Gemm("gate out", d.tokens, hidden, width)
        yield into
        yield MemoryBoundKernel("gate", 4.0 * d.tokens * width, 6.0 * d.tokens * width)
        yield Collective(("all_gather",), d.tokens * width * d.activation_bytes * d.cp, "cp")
        yield out
        yield TensorParallel(hidden, (into,), (out,))
        yield SavedTensor("gated", d.tokens * width, d.activation_bytes)


def test_a_new_mixer_is_counted_everywhere() -> None:
    """Parameters, FLOP, memory, time and exchanges follow from its own records."""
    hidden, width = DENSE.hidden_size, 2048
    model = DENSE.model_copy(update={"layer_pattern": ((Gate(width=width), MLP()), (FULL, MLP()))})
    gates, attentions = 4, 4
    attention = 4 * hidden**2
    added = gates * (2 * hidden * width - attention)
    assert total_parameters(model) - total_parameters(DENSE) == added
    tokens = 8192.0
    flop = [forward_flop(m, tokens, tokens, causal=True) for m in (model, DENSE)]
    # Of an attention layer: QKV and output matrices, and two products over half of the square.
    products = 2 * tokens * tokens * hidden
    assert flop[0] - flop[1] == pytest.approx(2 * tokens * added - gates * products, rel=1e-9)
    training = TrainingSpec(seq_length=8192, global_batch_size=64)
    cost = CostModel(model, parse_shorthand("1x8xh100-sxm"), training)
    plans = [ParallelPlan(dp=8), ParallelPlan(cp=2, dp=4), ParallelPlan(tp=2, dp=4, pp=1)]
    found = cost.evaluate(Plans.from_rows(plans))
    assert np.all(found.iteration_time_s > 0)
    assert found.time_parts_s["cp_comm"][1] > found.time_parts_s["cp_comm"][0] == 0
    names = [[time.kernel.name for time in kind] for kind in found.kernels]
    assert [("gate in" in kernels, "qkv" in kernels) for kernels in names] == [
        (True, False),
        (False, True),
    ]
    layer = found.gathered.bytes.layers
    saved = [float(one.saved[0]) for one in layer]
    # Attention keeps queries, keys, values, output and log-sum-exp where the gate keeps its width.
    assert saved[1] - saved[0] == 8192 * (2 * (4 * hidden - width) + 4 * 16)
    assert attentions == layers_of(model).counts[1]


WORDS = re.compile(r"(?:[a-z0-9 +-]|\^T)+")
# Of memory-bound kernels: what a calibration runs, and what it leaves out where nothing repeats.
KINDS = {
    "", "layernorm", "rmsnorm", "last layernorm", "last rmsnorm", "add", "dropout add", "bias",
    "gelu", "silu product", "rope", "embedding", "cross-entropy", "repeat kv",
}  # fmt: skip


def every_record(model: ModelSpec) -> list[Record | Weight]:
    training = TrainingSpec(seq_length=4096, global_batch_size=8)
    micro = one_micro_batch(model, training, tp=2, sequence_parallel=True, cp=2, runtime="torch")
    ends = (Embedding(), Head())
    weights = [w for part in (*micro.kinds, *ends) for w in part.weights(model, Split())]
    return [*chain(*micro.layers, micro.embedding, micro.head), *weights]


@pytest.mark.parametrize(
    "changes",
    [
        {"qkv_bias": True, "attention_output_bias": True, "mlp_bias": True, "lm_head_bias": True},
        {"position": "learned", "max_position_embeddings": 4096, "embedding_norm": True},
        {"hidden_dropout": 0.1, "attention_dropout": 0.1, "norms_per_layer": 4},
        {"num_query_groups": 4, "gated_mlp": True, "qk_norm": "head", "attention_sinks": True},
        {"mtp_num_layers": 1, "moe": MoESpec(
            num_experts=8, top_k=2, expert_ffn_hidden_size=64, shared_expert_ffn_hidden_size=64,
            shared_expert_gate=True, router_bias=True, expert_bias=True)},
        {"qkv_bias": True, "qk_norm": "head", "mla": MLASpec(
            kv_lora_rank=64, q_lora_rank=128, qk_nope_head_dim=64, qk_rope_head_dim=32,
            v_head_dim=64)},
    ],
    ids=" ".join,
)  # fmt: skip
def test_records_are_named_in_plain_words(changes: dict[str, object]) -> None:
    """Names and kinds reach tables and calibrations; modules are those that a plan may name."""
    records = every_record(ModelSpec.model_validate(DENSE.model_dump() | changes))
    assert len(records) > 40
    for record in records:
        assert WORDS.fullmatch(getattr(record, "name", "part"))
        assert getattr(record, "kind", "") in KINDS
        modules = {getattr(record, "module", ""), *getattr(record, "dropped_by", ())} - {""}
        assert modules <= set(RECOMPUTE_MODULES)
