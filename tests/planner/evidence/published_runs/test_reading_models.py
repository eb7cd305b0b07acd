"""Model names as sources print them, and what rows leave out."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.spec import ModelSpec
from planner.evidence.published_runs.models import model_of
from planner.evidence.published_runs.runs import Run, run_of


def row(**cells: str) -> Run:
    return run_of({"id": "r", "seq_len": "4096", **cells})


def read(**cells: str) -> ModelSpec:
    model: ModelSpec = model_of(row(**cells)).value
    return model


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "heads", "experts"),
    [
        ("DeepSeek-V3 671B", 61, 7168, 128, 256),
        ("DeepSeek-V2-236B", 60, 5120, 128, 160),
        ("Kimi K2", 61, 7168, 64, 384),
        ("Mixtral-8x22B", 56, 6144, 48, 8),
        ("Qwen3-235B-A22B", 94, 4096, 64, 128),
        ("GPT-OSS 120B", 36, 2880, 64, 128),
        ("Grok-1 314B", 64, 6144, 48, 8),
        ("DBRX", 40, 6144, 48, 16),
        ("Llama4 Maverick 400B", 48, 5120, 40, 128),
        ("Llama 3.1 405B", 126, 16384, 128, 0),
        ("Meta-Llama/Llama-3.1-70B", 80, 8192, 64, 0),
        ("Llama3-8B [SFT]", 32, 4096, 32, 0),
        ("LLaMA-65B", 80, 8192, 64, 0),
        ("GPT-3 175B", 96, 12288, 96, 0),
        ("MT-NLG 530B", 105, 20480, 128, 0),
        ("Nemotron-4-15B", 32, 6144, 48, 0),
        ("Gemma 2 27B", 46, 4608, 32, 0),
        ("Falcon-40B", 60, 8192, 128, 0),
        ("Qwen2.5 72B", 80, 8192, 64, 0),
    ],
)
def test_a_name_is_a_preset(name: str, layers: int, hidden: int, heads: int, experts: int) -> None:
    model = read(model=name)
    assert (model.num_layers, model.hidden_size, model.num_attention_heads) == (
        layers, hidden, heads,
    )  # fmt: skip
    assert (model.moe.num_experts if model.moe else 0) == experts


def test_what_the_row_states_wins_over_the_preset() -> None:
    model = read(model="Llama 3.1 70B [12 layers]", layers="12", vocab="32000")
    assert (model.num_layers, model.vocab_size, model.ffn_hidden_size) == (12, 32000, 28672)


def test_a_name_with_other_widths_is_no_preset() -> None:
    found = model_of(row(model="GPT-3 175B", layers="10", hidden="1024", heads="16"))
    assert found.value.hidden_size == 1024
    assert not any("preset" in note for note in found.assumptions)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("OLMo-33B", {"norm": "rmsnorm", "gated_mlp": True, "position": "rope"}),
        ("GPT-13B", {"norm": "layernorm", "gated_mlp": False, "position": "learned"}),
        ("BLOOM-3B", {"position": "alibi", "embedding_norm": True}),
        ("Pythia-12B", {"position": "rope", "parallel_residual": True}),
        ("ChatGLM", {"qkv_bias": True, "gated_mlp": True}),
    ],
)
def test_an_unknown_size_has_the_conventions_of_its_family(
    name: str, fields: dict[str, Any]
) -> None:
    model = read(model=name, layers="30", hidden="4096", heads="32", year="2023")
    assert {field: getattr(model, field) for field in fields} == fields


def test_widths_that_are_not_stated_follow_the_time() -> None:
    dims = {"model": "X", "layers": "40", "hidden": "5120", "heads": "40"}
    early, late = read(**dims, year="2023"), read(**dims, year="2025")
    assert (early.vocab_size, late.vocab_size) == (32000, 128256)
    assert early.ffn_hidden_size == 13824  # LLaMA-13B
    assert read(**dims, gated="no").ffn_hidden_size == 20480


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"model": "X"}, "not stated and no preset"),
        ({"model": ""}, "not stated and no preset"),
        ({"model": "Llama 3.1 8B", "kv_heads": "3"}, "not a multiple of num_query_groups 3"),
        ({"model": "Mixtral 8x7B", "topk": "9"}, "top_k 9 is above"),
        ({"model": "X", "layers": "2", "hidden": "100000000", "heads": "8"}, "no such model"),
    ],
)
def test_a_model_that_cannot_be_is_refused(cells: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        model_of(row(**cells))


def test_a_name_is_printable() -> None:
    assert read(model="a\x00b\u2028c", layers="2", hidden="64", heads="2").name == "a b c"
    assert read(model="[2 layers]", layers="2", hidden="64", heads="2").name == "model"


def test_notes_tell_of_experts() -> None:
    dims = {"model": "MoE", "layers": "8", "hidden": "1024", "heads": "8", "experts": "16"}
    moe = read(**dims, notes="first 2 layers dense; 2 shared experts (4096)", moe_ffn="512").moe
    assert moe is not None
    assert (moe.num_dense_layers, moe.shared_expert_ffn_hidden_size) == (2, 4096)
    other = read(**dims, notes="MoE in every other layer", topk="2")
    assert other.feed_forwards[:4] == ("dense", "moe", "dense", "moe")
