"""Configs without a reader: transformers builds them, in a process with limits."""

from __future__ import annotations

import json
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from cost_models.layers import layers_of
from cost_models.parameters import total_parameters
from planner.documents.problems import RequestError
from planner.huggingface import built_models
from planner.inputs.requests import model_import
from planner.inputs.requests.models import import_model

pytestmark = pytest.mark.slow

UNKNOWN: dict[str, Any] = {
    "model_type": "doge", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
}  # fmt: skip
OWN_CONFIG = """
from transformers import PretrainedConfig

class OwnConfig(PretrainedConfig):
    model_type = "own"
    hidden_size: int = 64
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    vocab_size: int = 1000
"""
OWN_MODEL = """
from pathlib import Path
from torch import nn
from transformers import PreTrainedModel
from .configuration_own import OwnConfig

Path(%r).touch()

class Attention(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.head_dim = 16
        self.q_proj, self.o_proj = nn.Linear(h, h, bias=False), nn.Linear(h, h, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(h, h // 2, bias=False) for _ in range(2))

class Layer(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(h), nn.RMSNorm(h)
        self.attention = Attention(h)
        self.feed_forward = nn.Sequential(nn.Linear(h, 4 * h), nn.GELU(), nn.Linear(4 * h, h))

class OwnForCausalLM(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        h = config.hidden_size
        self.embed = nn.Embedding(config.vocab_size, h)
        self.layers = nn.ModuleList([Layer(h) for _ in range(config.num_hidden_layers)])
        self.norm = nn.RMSNorm(h)
        self.lm_head = nn.Linear(h, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed

    def get_output_embeddings(self):
        return self.lm_head
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with code of its own, which leaves a file `ran` where it is run."""
    (tmp_path / "configuration_own.py").write_text(OWN_CONFIG)
    (tmp_path / "modeling_own.py").write_text(OWN_MODEL % str(tmp_path / "ran"))
    return tmp_path


OWN: dict[str, Any] = {
    "model_type": "own", "architectures": ["OwnForCausalLM"],
    "auto_map": {
        "AutoConfig": "configuration_own.OwnConfig",
        "AutoModelForCausalLM": "modeling_own.OwnForCausalLM",
    },
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 1000,
}  # fmt: skip


@pytest.mark.exhaustive
def test_a_family_without_a_reader_is_built() -> None:
    found = import_model(UNKNOWN)
    layers = layers_of(found.model)
    assert layers.counts == (3,)
    kinds = [block.kind for block in layers.kinds[0].sublayers]
    assert kinds == ["attention", "mlp", "products", "products"]
    assert any("matched exactly: mlp" in note for note in found.guessed)
    assert any("approximately: self_attn" in note for note in found.guessed)


def test_without_transformers_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = util.find_spec
    monkeypatch.setattr(
        built_models, "find_spec", lambda name: None if name == "transformers" else whole(name)
    )
    with pytest.raises(RequestError, match=r"pip install 'transformers>=5.20' torch"):
        import_model(UNKNOWN)


def test_code_in_a_folder_is_run_only_when_asked(folder: Path) -> None:
    with pytest.raises(RequestError, match="is run with --trust-remote-code"):
        import_model({**OWN, "_name_or_path": str(folder)})
    assert not (folder / "ran").exists()
    (folder / "config.json").write_text(json.dumps(OWN))
    answer = model_import.with_own_code(OWN, folder)
    assert (folder / "ran").exists()
    hidden, layers, rows = 64, 3, 1000
    layer = 3 * hidden**2 + 2 * 4 * hidden**2 + 5 * hidden + 2 * hidden
    assert total_parameters(answer.model) == layers * layer + 2 * rows * hidden + hidden
    assert answer.model.mlp_bias


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": -1},
        {"hidden_size": "wide"},
        {"num_attention_heads": 0},
        {"vocab_size": None},
    ],
    ids=str,
)
def test_what_cannot_be_built_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="/model_type"):
        import_model({**UNKNOWN, **changes})


@pytest.mark.parametrize("count", [10**9, 1e300])
def test_too_many_layers_are_refused_before_they_are_built(count: float) -> None:
    with pytest.raises(RequestError, match="/num_hidden_layers: at most 10,000 layers, got"):
        import_model({**UNKNOWN, "num_hidden_layers": count})


def test_a_model_that_takes_long_to_build_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(built_models, "LIMIT_S", 0.5)
    with pytest.raises(RequestError, match="takes too long or too much memory to build"):
        import_model({**UNKNOWN, "hidden_size": 128})


@pytest.mark.exhaustive
def test_an_encoder_is_refused() -> None:
    with pytest.raises(RequestError, match="only decoders can be planned"):
        import_model({"model_type": "bert"})
