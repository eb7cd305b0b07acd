"""Defaults of every family against those of its configuration class in transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cost_models.parameters import total_parameters
from planner.huggingface import FAMILIES, ModelImportError, model_from_config
from planner.huggingface.families.registry import TEXT_MODELS
from tests.tools.configurations import auto_class

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

# Every import refuses a file without these: too much of the model would be guessed.
REQUIRED = {
    *("hidden_size", "n_embd", "d_model"),
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    *("num_attention_heads", "n_head", "n_heads"),
    *("intermediate_size", "ffn_dim", "ffn_hidden_size", "vocab_size"),
}
# Published files of Gemma 3 leave these out; the others' classes have a rule for them.
OPTIONAL = {
    "falcon": {"ffn_hidden_size"},
    "gemma3_text": {"num_attention_heads", "vocab_size"},
    "rwkv": {"intermediate_size"},
}
# Stated where the class default is null and transformers builds no model that runs from it.
STATED: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 8, "moe_topk": 2},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "qwen3_omni_moe_text": {"num_attention_heads": 32},
}
# No model that runs comes from transformers 5.23 without the key.
NOT_BUILT = {
    ("deepseek_v2", "num_experts_per_tok"),
    ("dots1", "n_routed_experts"),
    ("dots1", "n_shared_experts"),
    ("dots1", "num_experts_per_tok"),
    ("gemma3n_text", "num_kv_shared_layers"),
    ("hunyuan_v1_dense", "head_dim"),
    ("hunyuan_v1_moe", "head_dim"),
    ("hunyuan_v1_moe", "num_experts"),
    ("lfm2_moe", "layer_types"),
    ("ministral", "head_dim"),
    ("nemotron", "num_key_value_heads"),
}
# Not in transformers under these names, or only inside a larger model.
ABSENT = {
    *("chatglm", "deepseek", "internlm", "internlm2", "mimo", "minimax_m3", "nemotron-nas"),
    *("phi-msft", "step3p5"),
}
KINDS = sorted({*FAMILIES, *TEXT_MODELS} - ABSENT)
# Their norm of the queries is as wide as hidden_size, so that no other head width runs.
ONE_WIDTH = {"olmoe"}
# The classes of Falcon and Mamba-2 refuse a head_dim, Helium's runs with one only, and for
# GLM-4.7-Flash it is another name of qk_rope_head_dim.
NO_HEAD_DIM = {"falcon", "glm4_moe_lite", "helium", "mamba2"}
COUNTS: dict[str, int] = {}  # of every configuration that was built


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
    import transformers

    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


def defaults(kind: str, layers: int = 4) -> dict[str, Any]:
    """The class's own configuration, with few layers so that it is built at once."""
    import transformers

    own = transformers.CONFIG_MAPPING[kind]
    keys = own().to_dict()
    names = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
    few = (
        {next(key for key in names if key in keys): 4} if any(key in keys for key in names) else {}
    )
    config = own.from_dict({**few, **STATED.get(kind, {})}).to_dict()
    # A text_config's embeddings are tied, or not, by the model around it.
    tied = {"tie_word_embeddings": False} if kind in TEXT_MODELS else {}
    config.pop("layer_types" if kind not in STATED else "", None)
    return {**config, **STATED.get(kind, {}), **tied, **few, "model_type": kind}


def built(config: dict[str, Any]) -> int:
    """Parameters of the model that transformers builds; a text_config alone gets a head."""
    import transformers

    kind = config["model_type"]
    rest = {key: value for key, value in config.items() if key != "model_type"}
    configuration = transformers.AutoConfig.for_model(kind, **rest)
    # A model is built from its configuration alone, and most keys left out give the same one.
    same = f"{kind} {configuration.to_json_string(use_diff=False)}"
    if same not in COUNTS:
        COUNTS[same] = counted(kind, configuration)
    return COUNTS[same]


def counted(kind: str, configuration: Any) -> int:
    """Parameters of the model of a configuration."""
    import transformers

    found = auto_class(kind)
    auto = found[1] if found else transformers.AutoModel
    with torch.device("meta"):
        model = auto.from_config(configuration)
    model.tie_weights()
    count = sum(parameter.numel() for parameter in model.parameters())
    if kind in TEXT_MODELS:
        return count + int(configuration.vocab_size * configuration.hidden_size)
    return count - unused(configuration)


def unused(configuration: Any) -> int:
    """Inputs that LongCat's class allocates for experts that compute nothing."""
    experts = getattr(configuration, "zero_expert_num", None) or 0
    if not experts:
        return 0
    width = 2 * configuration.hidden_size * configuration.expert_ffn_hidden_size
    return int(experts * width * configuration.num_layers)


def planned(config: dict[str, Any]) -> int:
    return total_parameters(model_from_config(config).model)


# Only the models around these two can be built, in whose tests they are.
@pytest.mark.one_in(3)
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


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", sorted(FAMILIES.keys() - ABSENT - ONE_WIDTH - NO_HEAD_DIM))
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
    import transformers

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
