"""What published recipes recompute and offload, where a row of theirs does not say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from planner.accuracy.runs import Run


@dataclass(frozen=True)
class Recipe:
    """Plan fields by patterns of the stack, the model and the accelerator; source: where."""

    stack: str
    model: str
    accelerator: str
    plan: dict[str, Any]
    source: str


_BY_OPERATOR = {"recompute": "selective", "recompute_modules": ("op",)}
_OFFLOADED = {"offload_activations": True}
RECIPES: tuple[Recipe, ...] = (
    Recipe("nemo", "deepseek-?v3", "h100",
           {"recompute": "selective", "recompute_modules": ("mla_up_proj",)},
           "NeMo scripts/performance/recommended_model_configs/model_configs_h100.csv"),
    Recipe("maxtext", "405b", "v5p|v7", {**_BY_OPERATOR, **_OFFLOADED},
           "maxtext_v5p_model_configs.py, tpu-recipes: remat_policy=custom, mlpwo=offload"),
    Recipe("maxtext", "gpt-?oss", "v7", {**_BY_OPERATOR, **_OFFLOADED},
           "tpu-recipes training/ironwood: remat_policy=custom, decoder_layer_input=offload"),
)  # fmt: skip


def recipe_for(run: Run) -> Recipe | None:
    """The recipe that a row ran, as far as it leaves recomputation open or says `selective`."""
    open_or_plain = not run.known("recompute") or run["recompute"].lower() == "selective"
    if not open_or_plain:
        return None
    stack, model, accelerator = (run[c].lower() for c in ("stack", "model", "gpu"))
    return next(
        (
            known
            for known in RECIPES
            if re.search(known.stack, stack)
            and re.search(known.model, model)
            and re.search(known.accelerator, accelerator)
        ),
        None,
    )
