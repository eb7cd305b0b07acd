"""Recipes that others published: which plan trains a model on which accelerators.

The catalog's file is made by `python -m tools.accuracy.write_recipes --write`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter

from cost_models.spec import ModelSpec

FILE = Path(__file__).parents[2] / "cost_models" / "catalog" / "recipes.json"


class Recipe(BaseModel, frozen=True, extra="forbid"):
    """A plan that somebody published for a model: a framework's own recipe, or a run's.

    name: of the recipe, or of the run in the catalog.  by: who publishes it, or whose software ran;
    framework: its name here; None where no framework here is like it.  release: of the software,
    a version or a commit; empty where the source names none.  source: where it says so, and url.
    model: the recipe's own word for it; shape: what models of one architecture have in common.
    adapters: whether it trains adapters alone.  accelerator: the catalog's id.  plan: fields that
    are not the default; training: types that it keeps gradients and optimizer states in, likewise.
    model_flop_per_s: of each accelerator, where it was measured.
    """

    name: str
    by: str
    framework: str | None
    release: str
    year: int
    source: str
    url: str
    model: str
    shape: str
    parameters: int
    adapters: bool
    accelerator: str
    accelerators: int
    precision: str
    seq_length: int
    global_batch_size: int
    plan: dict[str, Any]
    training: dict[str, str] = {}
    model_flop_per_s: float | None = None


def shape_of(model: ModelSpec) -> str:
    """What the models of one architecture have in common: layers, widths and experts.

    Not the vocabulary: recipes are run with tokenizers of all sizes.
    """
    moe = model.moe
    sizes = [
        model.num_layers, model.hidden_size, model.num_attention_heads, model.num_query_groups,
        model.ffn_hidden_size,
    ]  # fmt: skip
    if moe is not None:
        sizes += [moe.num_experts, moe.top_k, moe.expert_ffn_hidden_size]
    return "-".join(map(str, sizes))


@cache
def recipes() -> tuple[Recipe, ...]:
    """All of them, in the order of the file."""
    return TypeAdapter(tuple[Recipe, ...]).validate_json(FILE.read_bytes())
