"""The sharding of a run under accelerate: by FSDP 1 or 2, by DeepSpeed, or none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.frameworks.config_files import json_value
from planner.frameworks.given_values import Values
from planner.frameworks.read_results import Setting, Unreadable

# FSDP 1's strategies by name and number, as ZeRO stages; hybrid ones shard inside a node.
STRATEGIES = {
    "full_shard": 3, "1": 3,
    "shard_grad_op": 2, "2": 2,
    "no_shard": 0, "3": 0,
    "hybrid_shard": 3, "4": 3,
    "hybrid_shard_zero2": 2, "5": 2,
}  # fmt: skip
HYBRID = ("hybrid_shard", "4", "hybrid_shard_zero2", "5")
# Values of distributed_type; runs with one of ENGINES are not read.
TYPES = ("NO", "MULTI_GPU", "MULTI_CPU", "MULTI_NPU", "MULTI_XPU", "FSDP", "DEEPSPEED",
         "MEGATRON_LM", "XLA")  # fmt: skip
ENGINES = ("MEGATRON_LM", "XLA")
# The default stage of DeepSpeed in accelerate.
USUAL_STAGE = 2
DEVICES = ("none", "cpu", "nvme")


@dataclass(frozen=True)
class Engine:
    """Fields of the plan, and the types of the gradients.

    reduced: type of the reduction; kept: type between micro-batches.
    own: FSDP 2 or plain replicas, which this framework also writes.
    """

    fields: dict[str, Any]
    reduced: str
    kept: str = "fp32"
    own: bool = True


def engine(
    kind: str, values: Values, files: Mapping[str, str], precision: str, per_node: int
) -> Engine:
    """The sharding of a configuration with this distributed_type."""
    if kind == "DEEPSPEED":
        return _deepspeed(values, files, precision)
    if kind != "FSDP":
        return Engine({"zero_stage": 0}, "fp32")
    reduced = "fp16" if precision == "fp16" else "bf16"
    shared = {
        "offload_optimizer": values.boolean("fsdp_offload_params"),
        "offload_activations": values.boolean("fsdp_activation_checkpointing_offload"),
    }
    if values.integer("fsdp_version", default=1) == 2:
        kept = values.boolean("fsdp_reshard_after_forward", default=True)
        return Engine({"zero_stage": 3, "reshard_after_forward": kept, **shared}, reduced)
    names = ("fsdp_sharding_strategy", "fsdp_reshard_after_forward")
    strategy = values.choice(*names, choices=STRATEGIES, default="full_shard")
    stage = STRATEGIES[strategy]
    hybrid = {"dp_shard": per_node} if strategy in HYBRID and stage else {}
    if not values.has(*names):
        values.assume("fsdp_sharding_strategy: not set, FULL_SHARD assumed")
    return Engine({"zero_stage": stage, **hybrid, **shared}, reduced, own=False)


def fsdp_keys(values: Values, section: Mapping[str, Any]) -> Values:
    """The keys of FSDP in a trainer's own YAML, by accelerate's names."""
    keys = {f"fsdp_{key.removeprefix('fsdp_')}": f"fsdp_config.{key}" for key in section}
    keys |= {"fsdp_version": "fsdp_version"} if values.has("fsdp_version") else {}
    known = values.settings
    values.has(*keys.values())
    inner = {name: known[path] for name, path in keys.items() if path in known}
    if values.has("fsdp"):  # "full_shard auto_wrap offload", or a list
        for word in re.findall(r"\w+", str(known["fsdp"].value)):
            name = "fsdp_offload_params" if word == "offload" else "fsdp_sharding_strategy"
            if word == "offload" or word in STRATEGIES:
                value = "true" if word == "offload" else word
                inner.setdefault(name, known["fsdp"].model_copy(update={"value": value}))
    return Values(inner, values.file, values.assumed)


def of_document(files: Mapping[str, str], name: str, precision: str, assumed: list[str]) -> Engine:
    """The sharding in the DeepSpeed JSON of that name."""
    named = Setting(name="deepspeed_config_file", value=name, file=name, line=0)
    return _deepspeed(Values({named.name: named}, name, assumed), files, precision)


def _deepspeed(values: Values, files: Mapping[str, str], precision: str) -> Engine:
    zero = _zero_of(values, files)
    stage = zero.get("stage")
    if stage is None:
        stage = values.integer("zero_stage", default=USUAL_STAGE, least=0, most=3)
        if not values.has("zero_stage"):
            values.assume(f"zero_stage: not set, {USUAL_STAGE} assumed")
    if not isinstance(stage, int) or not 0 <= stage <= 3:
        raise Unreadable(f"zero_optimization.stage is {stage}, must be 0 to 3")
    device, weights = (
        (zero.get(f"offload_{part}") or {}).get("device")
        or values.choice(f"offload_{part}_device", choices=DEVICES, default="none")
        for part in ("optimizer", "param")
    )
    if weights != "none":
        values.assume("weight offload is ignored: plans do not have it")
    half = "fp16" if precision == "fp16" else "bf16"
    fields = {
        "zero_stage": stage,
        "offload_optimizer": stage > 0 and device != "none",
        "overlap_param_gather": stage == 3,
        "runtime": "deepspeed",
    }
    return Engine(fields, half, half if stage else "fp32", own=False)


def _zero_of(values: Values, files: Mapping[str, str]) -> dict[str, Any]:
    """zero_optimization of DeepSpeed's JSON; empty if the configuration names none."""
    named = (values.text("deepspeed_config_file") or "").rsplit("/", 1)[-1]
    if not named:
        return {}
    name = next((one for one in files if one.rsplit("/", 1)[-1] == named), None)
    if name is None:
        raise Unreadable(f"the configuration names {named}, which is not among the files")
    document = json_value(files[name], name)
    zero = document.get("zero_optimization", {}) if isinstance(document, dict) else None
    if not isinstance(zero, dict):
        raise Unreadable("zero_optimization must be an object", name)
    return zero
