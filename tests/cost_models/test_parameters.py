"""Parameter counts: by hand, against published sizes, and over ranks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from cost_models.catalog.models import ModelEntry, model, models
from cost_models.catalog.names import UnknownName
from cost_models.layers import layers_of
from cost_models.parameters import (
    active_parameters,
    embedding_parameters,
    output_layer_parameters,
    padded_vocab_size,
    prediction_parameters,
    total_parameters,
)
from cost_models.spec import FeedForwardKind, ModelSpec
from tests.fixtures.layers import block_parameters, kind_of, layer_parameters

TP = np.array([1.0, 2.0, 4.0, 8.0])

# SC'21 (arXiv 2104.04473), table 1: layers, hidden size, billions of parameters as printed.
SC21_TABLE_1 = [
    (24, 2304, "1.7"),
    (30, 3072, "3.6"),
    (36, 4096, "7.5"),
    (40, 6144, "18.4"),
    (48, 8192, "39.1"),
    (60, 10240, "76.1"),
    (80, 12288, "145.6"),
    (96, 16384, "310.1"),
    (105, 20480, "529.6"),
    (128, 25600, "1008.0"),
]


def gpt(**changes: Any) -> ModelSpec:
    spec: dict[str, Any] = {
        "num_layers": 3,
        "hidden_size": 64,
        "num_attention_heads": 16,
        "vocab_size": 512,
        "tied_embeddings": True,
        "qkv_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
        "position": "learned",
        "max_position_embeddings": 128,
    }
    return ModelSpec(**spec | changes)


def attention_parameters(spec: ModelSpec, tp: Any) -> Any:
    return block_parameters(kind_of(spec, "dense").sublayers[0], spec, tp=tp)


def mlp_parameters(spec: ModelSpec, tp: Any) -> Any:
    return block_parameters(kind_of(spec, "dense").sublayers[1], spec, tp=tp)


def sc21_parameters(layers: Any, hidden: Any, vocab_size: float, seq_length: float) -> Any:
    """Equation 2 of SC'21, 12 l h^2 (1 + 13/(12h) + (V+s)/(12 l h)), which leaves out the final
    norm (2h); multiplied out so that it stays an integer.
    """
    return layers * hidden * (12 * hidden + 13) + (vocab_size + seq_length) * hidden


@pytest.mark.parametrize(("layers", "hidden", "billions"), SC21_TABLE_1)
def test_sc21_table_1(layers: int, hidden: int, billions: str) -> None:
    count = sc21_parameters(layers, hidden, 51200, 2048)
    assert f"{count / 1e9:.1f}" == billions


def test_sc21_equation_is_the_exact_count_without_the_final_norm() -> None:
    layers, hidden, _ = zip(*SC21_TABLE_1, strict=True)
    counts = sc21_parameters(np.array(layers, float), np.array(hidden, float), 51200.0, 2048.0)
    presets = [entry.spec for entry in models() if entry.id.startswith("megatron-")]
    exact = [total_parameters(spec) - 2 * spec.hidden_size for spec in presets]
    assert [int(count) for count in np.asarray(counts)] == exact


@pytest.mark.parametrize(
    ("vocab_size", "tp", "divisible_by", "padded"),
    [
        (50257, 1, 128, 50304),
        (50257, 8, 128, 51200),
        (51200, 8, 128, 51200),
        (128256, 8, 128, 129024),
        (32000, 3, 1, 32001),
        (7, 1, 1, 7),
    ],
)
def test_padded_vocabulary(vocab_size: int, tp: int, divisible_by: int, padded: int) -> None:
    assert padded_vocab_size(vocab_size, tp, divisible_by) == padded


def test_one_gpt_layer_by_hand() -> None:
    spec = gpt()
    assert attention_parameters(spec, 1.0) == 4 * 64 * 64 + 4 * 64
    assert mlp_parameters(spec, 1.0) == 8 * 64 * 64 + 5 * 64
    assert layer_parameters(spec, kind_of(spec, "dense"), 1.0, 1.0, 1.0) == (
        12 * 64**2 + 13 * 64,
        0,
    )


def test_row_parallel_biases_are_whole_on_every_rank() -> None:
    spec = gpt()
    assert attention_parameters(spec, 4.0) == (4 * 64 * 64 + 3 * 64) / 4 + 64
    assert mlp_parameters(spec, 4.0) == (8 * 64 * 64 + 4 * 64) / 4 + 64


def test_key_value_heads_are_split_even_when_there_are_too_few() -> None:
    spec = gpt(num_query_groups=2, head_dim=4, qkv_bias=False, attention_output_bias=False)
    heads_per_rank = attention_parameters(spec, TP) / (64 * 4)
    assert heads_per_rank.tolist() == [2 * 16 + 4, 2 * 8 + 2, 2 * 4 + 1, 2 * 2 + 0.5]


@pytest.mark.parametrize(("kind", "whole"), [("head", 2 * 4), ("full", 0)])
def test_qk_norms(kind: str, whole: int) -> None:
    spec = gpt(norm="rmsnorm", qk_norm=kind)
    added = attention_parameters(spec, TP) - attention_parameters(gpt(norm="rmsnorm"), TP)
    assert added.tolist() == ([8.0] * 4 if whole else (2 * 64 / TP).tolist())


# What every tensor-parallel rank holds whole: sum over ranks minus the repeats is the total.
SHARDED: list[tuple[str, FeedForwardKind]] = [
    ("gpt3-175b", "dense"),
    ("llama-3.1-70b", "dense"),
    ("qwen2.5-72b", "dense"),
    ("gpt-oss-120b", "moe"),
    ("deepseek-v3", "dense"),
    ("deepseek-v3", "moe"),
]


@pytest.mark.parametrize(("name", "feed_forward"), SHARDED)
def test_ranks_add_up(name: str, feed_forward: FeedForwardKind) -> None:
    spec = model(name)
    kind = kind_of(spec, feed_forward)
    whole, experts = layer_parameters(spec, kind, 1.0, 1.0, 1.0)
    shards, expert_shards = layer_parameters(spec, kind, TP, 2.0, 8.0)
    repeated = spec.norms_per_layer * spec.hidden_size * (1 + spec.norm_bias)
    repeated += spec.hidden_size * spec.attention_output_bias
    if spec.mla is not None:
        kv, query = spec.mla.kv_lora_rank, spec.mla.q_lora_rank or 0
        down = kv + spec.mla.qk_rope_head_dim + query
        repeated += down * spec.hidden_size + kv + query
    if spec.moe is not None and feed_forward == "moe":
        repeated += spec.moe.num_experts * (spec.hidden_size + spec.moe.router_bias)
    else:
        repeated += spec.hidden_size * spec.mlp_bias
    assert (shards * TP - repeated * (TP - 1)).tolist() == [whole] * len(TP)
    biases = 0.0
    if spec.moe is not None and feed_forward == "moe":
        biases = spec.moe.num_experts * spec.moe.expert_bias * spec.hidden_size
    assert expert_shards * 16 - biases == experts


def test_embedding_and_head() -> None:
    spec = gpt(vocab_size=500, embedding_norm=True)
    assert embedding_parameters(spec, 2.0).item() == 512 / 2 * 64 + 128 * 64 + 2 * 64
    assert output_layer_parameters(spec, 2.0) == 2 * 64
    untied = gpt(vocab_size=500, tied_embeddings=False, lm_head_bias=True)
    assert output_layer_parameters(untied, 2.0) == 512 / 2 * 65 + 2 * 64


def test_a_layer_that_predicts_one_more_token() -> None:
    spec = model("deepseek-v3")
    assert prediction_parameters(spec, 1.0) == 2 * 7168**2 + 3 * 7168
    # The 685 billion of the released weights hold a copy of embedding and head with this layer.
    layer = sum(map(float, layer_parameters(spec, kind_of(spec, "moe"), 1.0, 1.0, 1.0)))
    extra = layer + float(prediction_parameters(spec, 1.0)) + 2 * 129280 * 7168
    assert (total_parameters(spec) + extra) / 1e9 == pytest.approx(684.5, abs=0.1)


def test_models_without_experts_have_no_expert_parameters() -> None:
    spec = gpt()
    assert layer_parameters(spec, kind_of(spec, "dense"), 1.0, 1.0, 1.0)[1] == 0
    assert active_parameters(spec) == total_parameters(spec)


@pytest.mark.slow
@pytest.mark.parametrize("entry", models(), ids=lambda entry: entry.id)
def test_presets_count_what_was_published(entry: ModelEntry) -> None:
    total = total_parameters(entry.spec)
    published = entry.expected_parameters
    if published % 1_000_000:
        assert total == published
    else:
        assert math.isclose(total, published, rel_tol=0.03)


@pytest.mark.parametrize(
    "entry", [e for e in models() if e.expected_active_parameters], ids=lambda entry: entry.id
)
def test_presets_use_for_a_token_what_was_published(entry: ModelEntry) -> None:
    """Authors count word table and head or leave them out, and round to whole billions."""
    most, spec = active_parameters(entry.spec), entry.spec
    least = most - spec.vocab_size * spec.hidden_size * (2 - spec.tied_embeddings)
    assert entry.expected_active_parameters is not None
    assert least - 0.5e9 <= entry.expected_active_parameters <= most + 0.5e9


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mixtral-8x7b", 12.9),
        ("mixtral-8x22b", 39.1),
        ("deepseek-v2", 21.4),
        ("deepseek-v3", 37.6),
        ("qwen3-30b-a3b", 3.3),
        ("qwen3-235b-a22b", 22.2),
    ],
)
def test_active_parameters(name: str, billions: float) -> None:
    assert active_parameters(model(name)) / 1e9 == pytest.approx(billions, abs=0.06)


@pytest.mark.parametrize("name", ["gpt2", "llama-3.1-70b", "deepseek-v3", "gpt-oss-20b"])
def test_arrays_give_what_numbers_give(name: str) -> None:
    spec = model(name)
    kind = layers_of(spec).kinds[-1]
    found = layer_parameters(spec, kind, TP[:, None], 2.0, TP)
    arrays = [np.broadcast_to(part, (len(TP), len(TP))) for part in found]
    for i, tp in enumerate(TP):
        for j, ep in enumerate(TP):
            scalar = layer_parameters(spec, kind, float(tp), 2.0, float(ep))
            assert tuple(float(array[i, j]) for array in arrays) == tuple(map(float, scalar))


def test_presets_are_found_by_id_and_alias() -> None:
    assert len(models()) >= 30
    assert model("Meta-Llama/Llama-3.1-70B-Instruct") is model("llama-3.1-70b")
    names = [name for entry in models() for name in (entry.id, *entry.aliases)]
    assert len(names) == len(set(names))
    assert all(name == name.strip().lower() for name in names)
    assert all(entry.source and entry.spec.name == entry.id for entry in models())


@pytest.mark.parametrize("name", ["lama-3.1-70b", "LLAMA-3.1-70", "llama 3.1 70b"])
def test_an_unknown_name_comes_with_the_nearest(name: str) -> None:
    with pytest.raises(UnknownName) as caught:
        model(name)
    assert (caught.value.kind, caught.value.name) == ("model", name)
    assert caught.value.nearest[0] == "llama-3.1-70b"
    assert len(caught.value.nearest) <= 3


def test_a_name_that_is_nothing_like_a_name() -> None:
    for name in ("", "x" * 100_000, "\0"):
        with pytest.raises(UnknownName) as caught:
            model(name)
        assert caught.value.nearest == ()
