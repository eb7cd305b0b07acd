"""The family that docs/adding.md adds as an example: found, read, refused and written back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cost_models.parameters import total_parameters
from cost_models.spec import ModelSpec
from planner.huggingface import ModelImportError, families, model_from_config
from planner.huggingface.export import exporter
from planner.huggingface.families import registry

GUIDE = Path(__file__).parents[3] / "docs" / "adding.md"
CONFIG: dict[str, Any] = {
    "model_type": "sparrow",
    "depth": 6,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "vocab_size": 32_000,
    "mamba_head_dim": 64,
    "wing_width": 512,
}


@pytest.fixture(autouse=True)
def _sparrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The family's file, in a further folder of the package."""
    found = re.search(r"^```python\n(\"\"\"Sparrow.*?)^```", GUIDE.read_text(), re.M | re.S)
    assert found is not None
    assert len(found[1].splitlines()) <= 60
    (tmp_path / "sparrow.py").write_text(found[1])
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    monkeypatch.setitem(registry.FAMILIES, "sparrow", registry.tables()["sparrow"])


def read(**more: object) -> ModelSpec:
    return model_from_config({**CONFIG, **more}).model


def test_it_has_the_parameters_that_its_layers_add_up_to() -> None:
    hidden, inner, groups, state = 1024, 32 * 64, 8, 128
    convolved = inner + 2 * groups * state
    mamba = hidden * (inner + convolved + 32) + inner * hidden  # projections in and out
    mamba += convolved * (4 + 1) + 3 * 32 + inner  # convolution, decay, skip, step, gated norm
    attention = hidden * 128 * (16 + 8 + 8 + 16) + 2 * 128  # and the norms of queries and keys
    experts = (64 + 1) * 3 * hidden * 512 + hidden * 64  # a shared one, and the router
    layers = 4 * mamba + 2 * attention + 6 * (experts + 2 * hidden)
    assert total_parameters(read()) == layers + 2 * 32_000 * hidden + hidden


def test_its_rows_are_written_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "PATTERNED", ("sparrow",))
    model = read(
        num_key_value_heads=2, attention_bias=True, qk_norm=False, flock_size=16,
        birds_per_token=2, shared_birds=3, conv_kernel=3, use_bias=True, sliding_window=256,
        layer_types=["full_attention", *["linear_attention"] * 5],
    )  # fmt: skip
    written = exporter.config_of(model)
    assert written is not None
    assert model_from_config(written, name=model.name).model == model
    assert (written["depth"], written["birds_per_token"], written["shared_birds"]) == (6, 2, 3)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("flock_size", 1, "from 2 to 100000"),
        ("birds_per_token", "many", "from 1 to 10000"),
        ("use_bias", 1, "true or false"),
        ("use_mtp", True, "no public code"),
        ("attention_dropout", 1.0, "from 0 to below 1"),
        ("n_layer", 7, "contradicts /depth, which is 6"),
    ],
)
def test_bounds_are_those_of_its_fields(key: str, value: object, allowed: str) -> None:
    with pytest.raises(ModelImportError) as caught:
        read(**{key: value})
    (problem,) = caught.value.problems
    assert problem.pointer == f"/{key}"
    assert allowed in problem.message
