"""A recipe's values as Megatron-LM's attributes, resolved as Bridge's container resolves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import not_
from typing import Any

from cost_models.package_files import table
from planner.frameworks.read_results import StatedValue

SECTIONS = ("model", "train", "ddp", "optimizer", "comm_overlap")
_TABLE = table("planner.frameworks.megatron_bridge", "attributes.json")
# Function or class of training/mixed_precision.py -> the attributes that it sets.
PRECISIONS: dict[str, dict[str, Any]] = _TABLE["precisions"]
_NO_GATHER = ("bf16_with_fp8_subchannel_scaling_mixed",)
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}
# Attributes that define the model; those in RECIPE_OVERRIDES may override a preset's.
RECIPE_OVERRIDES = ("num_layers", "mtp_num_layers", "vocab_size")
SHAPES = frozenset(_TABLE["shapes"])
# Attribute, the test of its value without which others have no effect, those others; in order.
_DEPENDENT: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("cpu_offloading", bool, "cpu_offloading_num_layers"),
    ("use_megatron_fsdp", bool, "data_parallel_sharding_strategy"),
    ("use_precision_aware_optimizer", bool, "exp_avg_dtype exp_avg_sq_dtype main_params_dtype"),
    ("moe_token_dispatcher_type", lambda kind: kind == "flex", "moe_flex_dispatcher_backend"),
    ("recompute_granularity", lambda kind: kind == "selective", "recompute_modules"),
    ("attention_backend", lambda kind: kind != "auto", "attention_backend"),
    ("pipeline_model_parallel_layout", not_, "virtual_pipeline_model_parallel_size"),
    ("optimizer_cpu_offload", bool, "optimizer_offload_fraction"),
    ("cuda_graph_impl", lambda kind: kind != "none", "cuda_graph_scope cuda_graph_modules"),
    ("cuda_graph_impl", lambda kind: kind != "none", "cuda_graph_impl"),
    ("use_distributed_optimizer", bool, "overlap_param_gather"),
)


def attributes(values: Mapping[str, StatedValue]) -> dict[str, StatedValue]:
    """The values by the names of Megatron-LM's attributes, as the container resolves them."""
    found: dict[str, StatedValue] = {}
    for key, one in values.items():
        section, _, name = key.partition(".")
        if not name or section not in SECTIONS or name in (*SHAPES, *RECIPE_OVERRIDES):
            continue
        value = one.value
        if name.endswith("_dtype"):
            value = _DTYPES.get(str(value), value)
        if isinstance(value, list) and not value:
            continue
        found[name] = replace(one, value=value)
    place = next(iter(found.values()))
    _precision(values, found)
    _overlap(values, found)
    _settle_dependent(found)
    found["bf16"] = replace(place, value=True)
    if "use_megatron_fsdp" in found and found["use_megatron_fsdp"].value:
        found["ckpt_format"] = replace(place, value="fsdp_dtensor")
    # Bridge's own default.
    found.setdefault("micro_batch_size", replace(place, value=1))
    return found


def _precision(values: Mapping[str, StatedValue], found: dict[str, StatedValue]) -> None:
    """Sets the attributes of mixed precision, which override those of other sections."""
    one = values.get("mixed_precision")
    if one is None:
        return
    kind = str(one.value).replace("-", "_")
    if kind not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise one.unreadable(f"mixed_precision {kind[:80]} is not known ({known})")
    settled = {**PRECISIONS[kind], "grad_reduce_in_fp32": True}
    settled["fp8_param_gather"] = "fp8" in settled and kind not in _NO_GATHER
    for key, other in values.items():
        if key.startswith("mixed_precision."):
            settled[key.partition(".")[2]] = other.value
    for name, value in settled.items():
        found[name] = replace(one, value=value)


def _overlap(values: Mapping[str, StatedValue], found: dict[str, StatedValue]) -> None:
    """Sets the overlaps that a CommOverlapConfig turns on unless it has other values."""
    container = values.get("comm_overlap")
    if container is not None:
        for name in ("overlap_grad_reduce", "overlap_param_gather"):
            own = values.get(f"comm_overlap.{name}")
            found[name] = own or replace(container, value=True)


def _settle_dependent(found: dict[str, StatedValue]) -> None:
    """Drops or sets attributes that depend on others."""

    def value(name: str) -> Any:
        return found[name].value if name in found else None

    if value("tp_comm_overlap") and not (
        (value("tensor_model_parallel_size") or 1) > 1 and value("sequence_parallel")
    ):
        del found["tp_comm_overlap"]
    for name, needed, names in _DEPENDENT:
        if not needed(value(name)):
            for dependent in names.split():
                found.pop(dependent, None)
    if value("grad_reduce_in_fp32") is False:
        # Megatron-LM's parser accumulates in fp32 without this option.
        found["grad_reduce_in_bf16"] = replace(found["grad_reduce_in_fp32"], value=True)
