"""Parameter counts against transformers models built on the meta device from the same config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cost_models.parameters import total_parameters
from planner.huggingface import FAMILIES, model_from_config
from tests.tools.configurations import config_of, table

pytestmark = pytest.mark.slow

# Odd on purpose: no two widths are equal, none is a power of two.
USUAL: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 172,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "vocab_size": 517,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
GPT2: dict[str, Any] = {"n_embd": 84, "n_layer": 3, "n_head": 7, "vocab_size": 517}
DEEPSEEK = USUAL | {
    "num_key_value_heads": 6,
    "kv_lora_rank": 40,
    "q_lora_rank": 56,
    "qk_nope_head_dim": 18,
    "qk_rope_head_dim": 10,
    "v_head_dim": 22,
    "moe_intermediate_size": 37,
    "n_routed_experts": 12,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 2,
}
SHARED_KV = USUAL | {"head_dim": 14}

SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("bloom", {"hidden_size": 96, "n_layer": 3, "n_head": 6, "vocab_size": 517}),
    "cohere": ("cohere", USUAL),
    "cohere, qk norm, bias": (
        "cohere",
        USUAL | {"use_qk_norm": True, "attention_bias": True, "tie_word_embeddings": False},
    ),
    "cohere2": ("cohere2", SHARED_KV),
    "deepseek_v2": ("deepseek_v2", DEEPSEEK),
    "deepseek_v2, plain queries": ("deepseek_v2", DEEPSEEK | {"q_lora_rank": None}),
    "deepseek_v2, groups": (
        "deepseek_v2",
        DEEPSEEK | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
    ),
    "deepseek_v3": ("deepseek_v3", DEEPSEEK | {"n_group": 4, "topk_group": 2}),
    "deepseek_v3, bias": (
        "deepseek_v3",
        DEEPSEEK | {"n_group": 1, "topk_group": 1, "attention_bias": True},
    ),
    "falcon": (
        "falcon",
        {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6, "vocab_size": 517},
    ),
    "falcon, new decoder": (
        "falcon",
        USUAL | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    ),
    "falcon, one parallel norm": (
        "falcon",
        USUAL | {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
    ),
    "falcon, sequential": (
        "falcon",
        USUAL | {"parallel_attn": False, "multi_query": False, "alibi": True, "bias": True},
    ),
    "gemma": ("gemma", SHARED_KV),
    "gemma2": ("gemma2", SHARED_KV),
    "gemma3_text": ("gemma3_text", SHARED_KV),
    "gemma3_text, defaults": (
        "gemma3_text",
        {"hidden_size": 64, "intermediate_size": 100, "num_hidden_layers": 2},
    ),
    "glm": ("glm", SHARED_KV),
    "glm, no bias": ("glm", SHARED_KV | {"attention_bias": False, "tie_word_embeddings": True}),
    "glm4": ("glm4", SHARED_KV),
    "glm4_moe": ("glm4_moe", DEEPSEEK | SHARED_KV | {"use_qk_norm": True, "attention_bias": True}),
    "gpt2": ("gpt2", GPT2 | {"n_positions": 33}),
    "gpt2, n_inner, untied": ("gpt2", GPT2 | {"n_inner": 111, "tie_word_embeddings": False}),
    "gpt_bigcode": ("gpt_bigcode", GPT2),
    "gpt_bigcode, no sharing": ("gpt_bigcode", GPT2 | {"multi_query": False}),
    "gpt_neox": ("gpt_neox", USUAL),
    "gpt_neox, no bias": (
        "gpt_neox",
        USUAL | {"attention_bias": False, "tie_word_embeddings": True},
    ),
    "gpt_oss": ("gpt_oss", SHARED_KV | {"num_local_experts": 7, "num_experts_per_tok": 2}),
    "gptj": ("gptj", GPT2 | {"rotary_dim": 8}),
    "granite": ("granite", USUAL),
    "llama": ("llama", USUAL),
    "llama, biases, tied": (
        "llama",
        SHARED_KV | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "mistral": ("mistral", SHARED_KV),
    "mixtral": ("mixtral", USUAL | {"num_local_experts": 5}),
    "mpt": ("mpt", {"d_model": 96, "n_heads": 6, "n_layers": 3, "vocab_size": 517}),
    "nemotron": ("nemotron", SHARED_KV | {"mlp_bias": True, "attention_bias": True}),
    "olmo2": ("olmo2", USUAL),
    "olmoe": ("olmoe", USUAL | {"num_experts": 9, "num_experts_per_tok": 2}),
    "opt": (
        "opt",
        USUAL | {"ffn_dim": 111, "max_position_embeddings": 33, "word_embed_proj_dim": 96},
    ),
    "opt, no bias": (
        "opt",
        USUAL | {"ffn_dim": 111, "word_embed_proj_dim": 96, "enable_bias": False},
    ),
    "phi": ("phi", USUAL | {"qk_layernorm": True}),
    "phi3": ("phi3", USUAL),
    "qwen2": ("qwen2", USUAL),
    "qwen2, tied": ("qwen2", USUAL | {"tie_word_embeddings": True}),
    "qwen2_moe": (
        "qwen2_moe",
        USUAL
        | {
            "num_experts": 6,
            "moe_intermediate_size": 37,
            "shared_expert_intermediate_size": 53,
            "decoder_sparse_step": 2,
        },
    ),
    "qwen2_moe, dense first layers": (
        "qwen2_moe",
        USUAL | {"num_experts": 6, "mlp_only_layers": [1, 0], "qkv_bias": False},
    ),
    "qwen3": ("qwen3", SHARED_KV | {"attention_bias": True}),
    "qwen3_moe": (
        "qwen3_moe",
        SHARED_KV
        | {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 37,
            "mlp_only_layers": [0],
        },
    ),
    "stablelm": ("stablelm", USUAL | {"use_qkv_bias": True}),
    "stablelm, parallel": ("stablelm", USUAL | {"use_parallel_residual": True}),
    "starcoder2": ("starcoder2", USUAL),
    "starcoder2, no bias": ("starcoder2", USUAL | {"use_bias": False}),
}
PUBLISHED = {
    path.stem: path
    for path in sorted(Path(__file__).parents[1].glob("planner/huggingface_configs/*.json"))
}
# transformers has no class for these: their code comes with the weights.
ELSEWHERE = {
    "chatglm", "deepseek", "internlm", "internlm2", "mimo", "minimax_m3", "nemotron-nas",
    "phi-msft", "step3p5",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def oracle_parameters(config: dict[str, Any]) -> int:
    """Parameters, a tied one once, of the model that transformers builds from `config`."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    kind = config["model_type"]
    rest = {key: value for key, value in config.items() if key != "model_type"}
    built = transformers.AutoConfig.for_model(kind, **rest)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(built)
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.exhaustive
def test_every_family_is_held_against_transformers() -> None:
    """Here by a small configuration, or by a published or default one (test_configurations.py)."""
    small = {kind for kind, _ in SMALL.values()}
    counted = {config_of(row)["model_type"] for row in table().values() if row.parameters}
    assert small <= set(FAMILIES) - ELSEWHERE
    assert set(FAMILIES) - ELSEWHERE <= small | counted
    assert not ELSEWHERE & counted


@pytest.mark.one_in(1, quick=5)
@pytest.mark.parametrize("case", SMALL)
def test_counts_equal_those_of_transformers(case: str) -> None:
    kind, keys = SMALL[case]
    config = {"model_type": kind, **keys}
    assert total_parameters(model_from_config(config).model) == oracle_parameters(config)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", SMALL)
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_drawn_counts_equal_those_of_transformers(case: str, data: st.DataObject) -> None:
    kind, keys = SMALL[case]
    config = {"model_type": kind, **keys}
    for key in ("vocab_size", "intermediate_size", "ffn_dim", "moe_intermediate_size", "head_dim"):
        if key in config:
            config[key] = 2 * data.draw(st.integers(4, 200), key)
    for key in ("num_hidden_layers", "n_layer", "n_layers"):
        if key in config:
            config[key] = data.draw(st.integers(3, 9), key)
    assert total_parameters(model_from_config(config).model) == oracle_parameters(config)


@pytest.mark.parametrize("name", [name for name in PUBLISHED if not name.startswith("chatglm")])
def test_counts_of_published_configs_equal_those_of_transformers(name: str) -> None:
    config = json.loads(PUBLISHED[name].read_text("utf-8"))
    count = total_parameters(model_from_config(config).model)
    # How weights were stored is no part of the model, nor is what looks at images here.
    language = dict(config.get("text_config", config))
    language.pop("quantization_config", None)
    assert count == oracle_parameters(language)
