"""What published recipes recompute, offload, dispatch and overlap, where a row does not say."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from planner.accuracy.runs import Run

_RELEASES = Path(__file__).with_name("recipes.json")


@dataclass(frozen=True)
class Recipe:
    """Fields of plan and training by patterns of the stack, the model (or the source's path) and
    the accelerator; source: where they are documented.
    """

    stack: str
    model: str
    accelerator: str
    plan: dict[str, Any]
    source: str
    training: dict[str, Any] = field(default_factory=dict)


_BY_OPERATOR = {"recompute": "selective", "recompute_modules": ("op",)}
_FULL = {"recompute": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
_OFFLOADED = {"offload_activations": True}
RECIPES: tuple[Recipe, ...] = (
    Recipe("megatron", "test_cases/moe/.*_fine_grained_offloading", "",
           {"attention_kernel": "unfused", **_OFFLOADED},
           "Megatron-LM tests/functional_tests, model_config.yaml: unfused, --offload-modules"),
    Recipe("megatron", "test_cases/moe/gpt3_(moe_)?mcore_te_tp2_pp2_ep4_etp1_[a-z]", "",
           {"attention_kernel": "unfused"},
           "Megatron-LM tests/functional_tests, model_config.yaml: --attention-backend unfused"),
    Recipe("nemo", "deepseek-?v3", "h100",
           {"recompute": "selective", "recompute_modules": ("mla_up_proj",)},
           "NeMo scripts/performance/recommended_model_configs/model_configs_h100.csv"),
    Recipe("maxtext", "405b", "v5p|v7", {**_BY_OPERATOR, **_OFFLOADED},
           "maxtext_v5p_model_configs.py, tpu-recipes: remat_policy=custom, mlpwo=offload"),
    Recipe("maxtext", "llama3.1-70b-maxtext/v6e-32|mixtral-8x22b-maxtext", "v6e",
           {**_BY_OPERATOR, **_OFFLOADED},
           "maxtext_trillium_model_configs.py: weight_dtype=bfloat16, which moments inherit",
           {"master_weights_dtype": "none", "optimizer_state_dtype": "bf16"}),
    Recipe("maxtext", "gemma-?3", "v6e",
           _FULL,
           "maxtext_trillium_model_configs.py: layer inputs on the device, the rest remat"),
    Recipe("maxtext", "deepseek|gpt-?oss|qwen3-235", "v5p|v7", {**_FULL, **_OFFLOADED},
           "tpu-recipes training/ironwood: remat_policy=custom, decoder_layer_input=offload"),
)  # fmt: skip


def recipe_for(run: Run) -> Recipe | None:
    """The recipe that a row ran; one that recomputes: as far as the row leaves that open, or says
    no more than `selective`.
    """
    is_open = not run.known("recompute") or run["recompute"].lower() == "selective"
    stack, accelerator = run["stack"].lower(), run["gpu"].lower()
    model = f"{run['model']} {run['source']}".lower()
    return next(
        (
            known
            for known in RECIPES
            if (is_open or "recompute" not in known.plan)
            and re.search(known.stack, stack)
            and re.search(known.model, model)
            and re.search(known.accelerator, accelerator)
        ),
        None,
    )


# A container or release of NVIDIA's is named after its year and month.
_RELEASE = re.compile(r"(?:container|release|nemo)[ -](2\d\.\d\d)")


def release_of(run: Run) -> str:
    """Year and month of the software's release, as the row says; else the middle of its year."""
    found = _RELEASE.search(f"{run['stack']} {run['source']} {run.notes}".lower())
    return found[1] if found else f"{run.year % 100}.05"


def recipe_plan(run: Run) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The plan fields that the recipes of a row's release set, and what was assumed of them."""
    release, plan, notes = release_of(run), {}, []
    for recipe in _recipes():
        if recipe.get("since", "") <= release < recipe.get("until", "99") and _matches(recipe, run):
            plan.update(recipe["plan"])
            notes.append(f"recipe of {release}: {recipe['source']}")
    return plan, tuple(notes)


def _matches(recipe: Mapping[str, Any], run: Run) -> bool:
    words = {name: run[name].lower() for name in ("stack", "model", "gpu", "precision")}
    words["notes"] = run.notes.lower()
    patterns = all(re.search(recipe.get(name, ""), text) for name, text in words.items())
    return patterns and all(
        run.integer(name) == recipe[name] for name in ("ep", "micro_batch") if name in recipe
    )


@cache
def _recipes() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(_RELEASES.read_text(encoding="utf-8"))["recipes"])
