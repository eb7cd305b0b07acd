"""A model that a Primus config gives by name, with the config's overrides."""

from __future__ import annotations

import re

from cost_models.catalog.names import UnknownName
from cost_models.spec import ModelSpec
from planner.frameworks.primus.experiment import Experiment
from planner.frameworks.read_results import Unreadable
from planner.huggingface.named_models import find

# Attributes that may override a named model, and those that would make it another model.
RECIPE_OVERRIDES = ("num_layers", "mtp_num_layers")
SHAPES = frozenset(
    {"hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels"}
    | {"num_experts", "moe_ffn_hidden_size", "moe_layer_freq", "moe_router_topk", "q_lora_rank"}
    | {"kv_lora_rank", "moe_shared_expert_intermediate_size"}
)


def adapted(experiment: Experiment) -> ModelSpec:
    """The named model with its overrides.  Raises Unreadable."""
    file = experiment.config.name
    name = experiment.model.rsplit("/", 1)[-1].removesuffix(".yaml")
    try:
        model = find(name)
    except UnknownName as error:
        raise Unreadable(
            f"the model {name} is no preset ({error}), and the preset {experiment.model} is not "
            "among the files: give its YAML and those that it extends, or the model by another "
            "name (--model)",
            file,
        ) from None
    changes: dict[str, int] = {}
    for key, one in experiment.overrides.items():
        if key in SHAPES and one.value is not None:
            raise one.unreadable(
                f"{key} changes {name}: give the model's YAML and those that it extends, or "
                "the model (--model)"
            )
        if key in RECIPE_OVERRIDES and re.fullmatch(r"\d{1,5}", str(one.value)):
            changes[key] = int(one.value)
    if changes.get("num_layers", model.num_layers) != model.num_layers and model.layer_pattern:
        raise Unreadable(f"num_layers cannot change the layer pattern of {name}", file)
    return ModelSpec(**{**model.model_dump(), **changes}) if changes else model
