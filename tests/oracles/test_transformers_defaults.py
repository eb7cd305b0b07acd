"""Defaults of every family against those of its configuration class in transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cost_models.parameters import total_parameters
from planner.huggingface import FAMILIES, ModelImportError, model_from_config
from planner.huggingface.importer import TEXT_MODELS

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

# Every import refuses a file without these: too much of the model would be guessed.
REQUIRED = {
    *("hidden_size", "n_embd", "d_model"),
    *("num_hidden_layers", "n_layer", "n_layers"),
    *("num_attention_heads", "n_head", "n_heads"),
    *("intermediate_size", "ffn_dim", "vocab_size"),
}
# Published files of Gemma 3 leave these out.
OPTIONAL = {"gemma3_text": {"num_attention_heads", "vocab_size"}}
# Stated where the class default is null and transformers builds no model that runs from it.
STATED: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "nemotron": {"num_key_value_heads": 8},
    "qwen3_omni_moe_text": {"num_attention_heads": 32},
}
# No model that runs comes from transformers 5.23 without the key.
NOT_BUILT = {("nemotron", "num_key_value_heads"), ("deepseek_v2", "num_experts_per_tok")}
# ChatGLM is not in transformers.
KINDS = sorted({*FAMILIES, *TEXT_MODELS} - {"chatglm"})
# Their norm of the queries is as wide as hidden_size, so that no other head width runs.
ONE_WIDTH = {"olmoe"}
# The class of Falcon refuses a head_dim.
NO_HEAD_DIM = {"falcon"}


class Recorded(dict[str, Any]):
    """A config that knows which of its keys were read."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


def defaults(kind: str) -> dict[str, Any]:
    """The class's own configuration, with four layers so that it is built at once."""
    config = transformers.CONFIG_MAPPING[kind]().to_dict() | STATED.get(kind, {})
    layers = next(key for key in ("num_hidden_layers", "n_layer", "n_layers") if key in config)
    # A text_config's embeddings are tied, or not, by the model around it.
    tied = {"tie_word_embeddings": False} if kind in TEXT_MODELS else {}
    config.pop("layer_types", None)
    return {**config, **tied, layers: 4, "model_type": kind}


def built(config: dict[str, Any]) -> int:
    """Parameters of the model that transformers builds; a text_config alone gets a head."""
    kind = config["model_type"]
    rest = {key: value for key, value in config.items() if key != "model_type"}
    configuration = transformers.AutoConfig.for_model(kind, **rest)
    text = kind in TEXT_MODELS
    with torch.device("meta"):
        auto = transformers.AutoModel if text else transformers.AutoModelForCausalLM
        model = auto.from_config(configuration)
    model.tie_weights()
    count = sum(parameter.numel() for parameter in model.parameters())
    return count + configuration.vocab_size * configuration.hidden_size if text else count


def planned(config: dict[str, Any]) -> int:
    return total_parameters(model_from_config(config).model)


# Only the models around these two can be built, in whose tests they are.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "omni" not in kind])
def test_every_default_is_that_of_the_class(kind: str) -> None:
    config = Recorded(defaults(kind))
    assert planned(config) == built(dict(config))
    required = REQUIRED - OPTIONAL.get(kind, set())
    for key in sorted(config.read & config.keys() - {"model_type"}):
        if (kind, key) in NOT_BUILT:
            continue
        rest = {name: value for name, value in config.items() if name != key}
        if key in required:
            with pytest.raises(ModelImportError, match="missing"):
                planned(rest)
        else:
            assert planned(rest) == built(rest), key


@pytest.mark.parametrize("key", ["multi_query", "parallel_attn"])
def test_null_is_a_statement_of_falcon(key: str) -> None:
    config = defaults("falcon") | {key: None}
    assert planned(config) == built(config)


@pytest.mark.parametrize("kind", sorted(FAMILIES.keys() - {"chatglm"} - ONE_WIDTH - NO_HEAD_DIM))
def test_a_written_head_width_is_used_or_ignored_as_by_the_class(kind: str) -> None:
    config = defaults(kind) | {"head_dim": 24}
    if "num_kv_heads" in config:
        del config["num_kv_heads"]
    assert planned(config) == built(config)


def test_a_head_width_that_is_ignored_is_said_to_be() -> None:
    imported = model_from_config(defaults("gpt2") | {"head_dim": 24})
    assert "head_dim: 24 is ignored by gpt2, heads are 64 wide" in imported.left_out
    assert not model_from_config(defaults("gpt2") | {"head_dim": 64}).left_out
    assert not model_from_config(defaults("phi") | {"head_dim": 24}).left_out


@pytest.mark.parametrize("kind", sorted(ONE_WIDTH))
def test_a_head_width_that_cannot_run_is_refused(kind: str) -> None:
    config = defaults(kind) | {"head_dim": 24, "num_experts": 4, "vocab_size": 64}
    with pytest.raises(ModelImportError, match="/head_dim: only 128 can be planned"):
        model_from_config(config)
    kept = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(kind, **kept)
        )
        with pytest.raises(RuntimeError, match="broadcast"):
            model(torch.zeros(1, 4, dtype=torch.long))
