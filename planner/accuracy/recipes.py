"""What published recipes recompute and offload, where a row of theirs does not say."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from planner.accuracy.runs import Run


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
           {"recompute": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
           "maxtext_trillium_model_configs.py: layer inputs on the device, the rest remat"),
    Recipe("maxtext", "gpt-?oss", "v7", {**_BY_OPERATOR, **_OFFLOADED},
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
