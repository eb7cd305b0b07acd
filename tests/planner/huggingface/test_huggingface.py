"""Models from config.json files: published ones, defaults that are listed, faults with names."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cost_models.catalog.models import model as preset
from cost_models.parameters import total_parameters
from cost_models.spec import ModelSpec
from planner.huggingface import FAMILIES, ModelImportError, model_from_config
from tests.fixtures.tiers import examples

PUBLISHED = {
    path.stem: json.loads(path.read_text("utf-8"))
    for path in sorted((Path(__file__).parents[1] / "huggingface_configs").glob("*.json"))
}
LLAMA: dict[str, Any] = PUBLISHED["llama-3.1-70b"]


def problems(config: object) -> dict[str, str]:
    """Message and value by pointer of what is wrong with a config."""
    with pytest.raises(ModelImportError) as caught:
        model_from_config(config)
    return {problem.pointer: str(problem) for problem in caught.value.problems}


def within(model: ModelSpec, expected: ModelSpec) -> bool:
    """Equal, but that excerpts of files state fewer numerics."""
    found, whole = model.numerics, expected.numerics
    assert all(getattr(found, name) == getattr(whole, name) for name in found.stated)
    return model.model_copy(update={"numerics": whole}) == expected


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_the_presets(name: str) -> None:
    expected = preset(name.removeprefix("chatglm-"))
    assert within(model_from_config(PUBLISHED[name], name=expected.name).model, expected)


def test_what_is_not_stated_is_listed() -> None:
    assert model_from_config(LLAMA).guessed == (
        "head_dim: not stated, hidden_size / num_attention_heads = 128",
    )
    rest = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    imported = model_from_config({**rest, "tie_word_embeddings": None})
    assert imported.model.num_query_groups == 64
    assert imported.guessed == (
        "tie_word_embeddings: not stated, false (the default of llama)",
        "num_key_value_heads: not stated, num_attention_heads = 64",
        "head_dim: not stated, hidden_size / num_attention_heads = 128",
    )


def test_defaults_are_those_of_the_family() -> None:
    config = {**PUBLISHED["mistral-7b"], "num_key_value_heads": None}
    assert model_from_config(config).model.num_query_groups == 32
    del config["num_key_value_heads"], config["sliding_window"]
    imported = model_from_config(config)
    assert (imported.model.num_query_groups, imported.model.sliding_window) == (8, 4096)
    assert "sliding_window: not stated, 4096 (the default of mistral)" in imported.guessed


def test_name_is_given_or_found() -> None:
    assert model_from_config(LLAMA).model.name == "llama"
    assert model_from_config(LLAMA, name="mine").model.name == "mine"
    assert model_from_config({**LLAMA, "_name_or_path": "/models/ours/"}).model.name == "ours"
    assert model_from_config({**LLAMA, "_name_or_path": 7}).model.name == "llama"


def test_the_text_config_of_a_model_of_images_is_a_model() -> None:
    text = {**PUBLISHED["gemma-3-27b"]["text_config"], "model_type": "gemma3_text"}
    text["architectures"] = ["Gemma3ForConditionalGeneration"]
    assert within(model_from_config(text, "gemma-3-27b").model, preset("gemma-3-27b"))

    # That of Qwen2.5-VL 7B, whose text is Qwen2.5 7B.
    text = {key: value for key, value in PUBLISHED["qwen2.5-7b"].items() if "key_value" not in key}
    text |= {"model_type": "qwen2_5_vl_text", "num_attention_heads": 32}
    imported = model_from_config(text | {"architectures": ["Qwen2_5_VLForConditionalGeneration"]})
    assert imported.model.num_query_groups == 8
    assert imported.model.qkv_bias
    assert imported.guessed[:2] == (
        "model_type: qwen2_5_vl_text alone, read as qwen2 with a head",
        "num_key_value_heads: not stated, 8 (the default of qwen2_5_vl_text)",
    )


def test_the_name_of_a_file_is_no_key_of_it() -> None:
    found = problems({"model_type": "mixtrall", "_name_or_path": "mine", "hidden_size": 1})
    assert "keys model_type, hidden_size)" in found["/model_type"]


def test_architecture_names_the_family_when_the_type_does_not() -> None:
    imported = model_from_config({**PUBLISHED["deepseek-v3"], "model_type": "kimi_k2"})
    assert imported.model.moe == preset("deepseek-v3").moe
    assert imported.guessed[0] == (
        "model_type: 'kimi_k2' is not known, deepseek_v3 by its architecture"
    )
    rest = {key: value for key, value in LLAMA.items() if key != "model_type"}
    assert model_from_config(rest).guessed[0].startswith("model_type: not stated, llama")


def test_a_model_without_a_head_is_planned_with_one() -> None:
    imported = model_from_config({**LLAMA, "architectures": ["LlamaModel"]})
    assert imported.guessed[0] == "architectures: 'LlamaModel' has no head, planned with one"
    assert model_from_config({**LLAMA, "architectures": []}).guessed == (
        "head_dim: not stated, hidden_size / num_attention_heads = 128",
    )


def test_windows_follow_layer_types() -> None:
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 8
    imported = model_from_config({**PUBLISHED["gpt-oss-20b"], "layer_types": kinds})
    assert imported.model.full_attention_period == 3
    imported = model_from_config(
        {**PUBLISHED["gpt-oss-20b"], "layer_types": ["full_attention"] * 24}
    )
    assert imported.model.sliding_window is None


def test_a_pattern_without_a_period_is_kept_layer_by_layer() -> None:
    kinds = ["full_attention", *["sliding_attention"] * 22, "full_attention"]
    model = model_from_config({**PUBLISHED["gpt-oss-20b"], "layer_types": kinds}).model
    assert model.sliding_window is None
    windows = [getattr(layer[0], "window", 0) for layer in model.layer_pattern]
    assert windows == [None, *[128] * 22, None]


@pytest.mark.parametrize(
    "kinds",
    [
        "sliding_attention",
        ["full_attention"] * 3,
        [[]] * 24,
        ["full_attention", "x"] * 12,
    ],
)
def test_other_patterns_of_layers_are_refused(kinds: object) -> None:
    assert "/layer_types" in problems({**PUBLISHED["gpt-oss-20b"], "layer_types": kinds})


@pytest.mark.parametrize(
    ("use", "full", "size"), [(False, 0, None), (True, 0, 131072), (True, 28, None)]
)
def test_window_of_qwen(use: bool, full: int, size: int | None) -> None:
    config = {**PUBLISHED["qwen2.5-7b"], "use_sliding_window": use, "max_window_layers": full}
    assert model_from_config(config).model.sliding_window == size


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "opt-350m, projected embeddings": (
        "/word_embed_proj_dim",
        {
            "model_type": "opt",
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "ffn_dim": 4096,
            "vocab_size": 50272,
            "word_embed_proj_dim": 512,
        },
        "as wide as the layers",
    ),
    "qwen2, some layers with a window": (
        "/max_window_layers",
        {**PUBLISHED["qwen2.5-7b"], "use_sliding_window": True, "max_window_layers": 5},
        "only 0 or all",
    ),
    "qwen3-moe, a dense layer in the middle": (
        "/mlp_only_layers",
        {**PUBLISHED["qwen3-30b-a3b"], "mlp_only_layers": [0, 7]},
        "only the first layers",
    ),
    "qwen3-moe, layers that are no list": (
        "/mlp_only_layers",
        {**PUBLISHED["qwen3-30b-a3b"], "mlp_only_layers": 3},
        "list of layer numbers",
    ),
    "mpt, no alibi": (
        "/attn_config/alibi",
        {**PUBLISHED["mpt-7b"], "attn_config": {"alibi": False}},
        "ALiBi",
    ),
    "mpt, attn_config of another type": (
        "/attn_config",
        {**PUBLISHED["mpt-7b"], "attn_config": [1]},
        "must be an object",
    ),
    "deepseek, experts in every second layer": (
        "/moe_layer_freq",
        {**PUBLISHED["deepseek-v3"], "moe_layer_freq": 2},
        "only 1",
    ),
    "gemma that looks both ways": (
        "/use_bidirectional_attention",
        {**PUBLISHED["gemma-2-27b"], "use_bidirectional_attention": True},
        "causal",
    ),
    "cross attention": (
        "/add_cross_attention",
        {**PUBLISHED["gpt2"], "add_cross_attention": True},
        "only decoders",
    ),
    "pruned": ("/pruned_heads", {**PUBLISHED["gpt2"], "pruned_heads": {"0": [1]}}, "pruned"),
    "a classifier": (
        "/architectures/0",
        {**LLAMA, "architectures": ["LlamaForSequenceClassification"]},
        "did you mean LlamaForCausalLM",
    ),
    "two families": (
        "/architectures/0",
        {**LLAMA, "architectures": ["Qwen2ForCausalLM"]},
        "did you mean LlamaForCausalLM",
    ),
    "gemma 3 without its language model": ("/text_config", {"model_type": "gemma3"}, "object"),
    "heads that do not divide": (
        "/num_attention_heads",
        {**LLAMA, "num_attention_heads": 60, "num_key_value_heads": 4},
        "8192 is not a multiple",
    ),
    "key/value heads that do not divide": (
        "/num_key_value_heads",
        {**LLAMA, "num_key_value_heads": 7},
        "64 heads are not a multiple of 7",
    ),
    "a head width that the norms do not have": (
        "/head_dim",
        {
            "model_type": "olmoe",
            "hidden_size": 2048,
            "intermediate_size": 1024,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "vocab_size": 50304,
            "head_dim": 96,
        },
        "only 128 can be planned",
    ),
    "the family's key/value heads do not divide": (
        "/num_key_value_heads",
        {key: value for key, value in PUBLISHED["qwen2.5-7b"].items() if "key_value" not in key},
        "28 heads are not a multiple of 32, the default",
    ),
    "two values for one thing": (
        "/hidden_size",
        {**PUBLISHED["gpt2"], "hidden_size": 1024},
        "contradicts /n_embd, which is 768",
    ),
    "more experts per token than experts": (
        "",
        {**PUBLISHED["mixtral-8x7b"], "num_experts_per_tok": 9},
        "top_k 9 is above num_experts 8",
    ),
    "more than can be counted": (
        "",
        {
            **LLAMA,
            "num_hidden_layers": 10_000,
            "intermediate_size": 1_000_000,
            "hidden_size": 2**19,
        },
        "counted exactly",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_reason(case: str) -> None:
    pointer, config, reason = REFUSED[case]
    found = problems(config)
    assert list(found) == [pointer]
    assert reason in found[pointer]


OTHER_KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "T5": (
        {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 512}
        | {"is_encoder_decoder": True},
        "an encoder-decoder",
    ),
    "BERT": (
        {"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 768}
        | {"type_vocab_size": 2},
        "an encoder such as BERT",
    ),
    "ViT": ({"model_type": "vit", "image_size": 224, "patch_size": 16}, "a vision model"),
    "Mllama": ({"model_type": "mllama", "vision_config": {"image_size": 1}}, "a model of images"),
    "tokenizer": ({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>"}, "a tokenizer"),
    "image processor": ({"image_processor_type": "ViTImageProcessor"}, "an image processor"),
    "diffusers": ({"_class_name": "UNet2DConditionModel"}, "a diffusion pipeline"),
    "generation": ({"temperature": 0.6, "top_p": 0.9}, "generation settings"),
    "weights": ({"metadata": {}, "weight_map": {"lm_head": "x"}}, "an index of weight files"),
    "quantiser": ({"bits": 4, "group_size": 128}, "the settings of a quantiser"),
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_other_files_are_recognised(kind: str) -> None:
    config, what = OTHER_KINDS[kind]
    text = problems(config)["/model_type"]
    assert f"this is {what}" in text
    assert all(key in text for key in config)


def test_an_adapter_is_refused() -> None:
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "x", "r": 16}
    assert "its base model" in problems(adapter)["/peft_type"]
    assert "its base model" in problems({**LLAMA, "peft_type": "LORA"})["/peft_type"]


def test_an_unknown_architecture_lists_what_was_found() -> None:
    config = {"model_type": "mixtrall", "architectures": ["MixtrallForCausalLM"], "hidden_size": 1}
    text = problems(config)["/model_type"]
    assert "unknown architecture" in text
    assert "architectures 'MixtrallForCausalLM'" in text
    assert "keys model_type, architectures, hidden_size" in text
    assert "did you mean mixtral" in text


@pytest.mark.parametrize("config", [None, [], "llama", 7, math.nan, True, b"{}"])
def test_only_an_object_is_a_config(config: object) -> None:
    assert "is an object" in problems(config)[""]


def test_an_empty_object_is_refused() -> None:
    assert problems({}) == {"": "/: the object is empty"}


BAD_NUMBERS = [0, -1, math.nan, math.inf, 1e30, 10**30, 10**5000, "4096", 1.5, True, [1], {"a": 1}]


@pytest.mark.parametrize("value", BAD_NUMBERS, ids=range(len(BAD_NUMBERS)))
@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"]
)
def test_bad_numbers_are_named(key: str, value: object) -> None:
    found = problems({**LLAMA, key: value})
    assert list(found) == [f"/{key}"]
    assert "must be a whole number from 1 to" in found[f"/{key}"]
    assert len(found[f"/{key}"]) < 250


@pytest.mark.parametrize("value", ["yes", 1, [], 0.0])
def test_bad_flags_are_named(value: object) -> None:
    assert "must be true or false" in problems({**LLAMA, "mlp_bias": value})["/mlp_bias"]


@pytest.mark.parametrize("value", ["0.1", -0.1, 1.0, math.nan, True])
def test_bad_probabilities_are_named(value: object) -> None:
    assert "/attention_dropout" in problems({**LLAMA, "attention_dropout": value})


def test_all_faults_are_found_at_once() -> None:
    config = {**LLAMA, "hidden_size": -1, "vocab_size": "many", "num_hidden_layers": None}
    config["num_hiden_layers"] = 80
    found = problems(config)
    assert set(found) == {"/hidden_size", "/vocab_size", "/num_hidden_layers"}
    assert "did you mean num_hiden_layers?" in found["/num_hidden_layers"]


KEYS = sorted({key for config in PUBLISHED.values() for key in config})
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([*FAMILIES, "LlamaForCausalLM", "GPT2LMHeadModel", 10**400, 2**31]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=6,
)


def faults(config: object) -> tuple[str, ...]:
    """What is wrong with a config, nothing where a model can be read from it."""
    try:
        imported = model_from_config(config)
    except ModelImportError as error:
        return tuple(map(str, error.problems)) or ("an error without a problem",) * 1000
    assert 0 < total_parameters(imported.model) <= 2**53
    return ()


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(PUBLISHED)), st.dictionaries(st.sampled_from(KEYS), JUNK, max_size=4))
def test_junk_gives_a_model_or_named_faults(name: str, junk: dict[str, Any]) -> None:
    found = faults({**PUBLISHED[name], **junk})
    assert len(found) < 100
    assert all(len(text) < 1500 for text in found)


@settings(max_examples=examples(200), deadline=None)
@given(JUNK)
def test_arbitrary_values_give_named_faults(value: object) -> None:
    with pytest.raises(ModelImportError):
        model_from_config(value)


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "compressed-tensors", "fp8"])
def test_quantised_weights_are_planned_by_the_shapes_of_the_model(method: str) -> None:
    plain = model_from_config(LLAMA)
    read = model_from_config({**LLAMA, "quantization_config": {"quant_method": method, "bits": 4}})
    assert read.model == plain.model
    assert [f"{method!r}" in one or method in one for one in read.left_out] == [True]


def test_a_class_is_known_however_its_release_spelled_it() -> None:
    older = {**LLAMA, "architectures": ["LLaMAForCausalLM"]}
    assert model_from_config(older).model == model_from_config(LLAMA).model
