"""Lightning's Trainer as the arguments of transformers': the same engines under other names.

Defaults are those of Lightning 2.5 (lightning/pytorch/strategies).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from planner.frameworks.python.scripts import Script
from planner.frameworks.python.static_values import Call, Function, Instance, Value
from planner.frameworks.read_results import Unreadable

NAME = re.compile(r"(pl|L|(pytorch_)?lightning(\.pytorch)?(\.trainer){0,2})\.Trainer")
NOTE = "Lightning's Trainer is costed as transformers' Trainer on the same engine"
_MODULES = re.compile(r"(.*\.)?Lightning(Data)?Module")
# Methods that Lightning calls.
_CALLED = ("configure_model", "prepare_data", "setup", "train_dataloader", "configure_optimizers")
_PRECISIONS = {"bf16": "bf16", "bf16-mixed": "bf16", "bf16-true": "bf16", "16": "fp16",
               "16-mixed": "fp16", "16-true": "fp16"}  # fmt: skip
_SHARDING = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard")
_DEEPSPEED = re.compile(r"deepspeed(?:_stage_([123]))?(_offload)?")


def arguments(call: Call) -> Call | None:
    """The arguments of transformers' Trainer that a call of Lightning's amounts to, if it is one.

    Raises Unreadable for a strategy of its own.
    """
    if call.owner is not None or not NAME.fullmatch(call.name):
        return None
    made = Call("TrainingArguments", call.line, lines=dict(call.lines))
    steps = call.kwargs.get("accumulate_grad_batches", 1)
    made.kwargs["gradient_accumulation_steps"] = steps
    stated = str(call.kwargs.get("precision"))
    if stated in _PRECISIONS:
        made.kwargs[_PRECISIONS[stated]] = True
    if stated == "bf16-true":
        made.kwargs["pure_bf16"] = True
    made.kwargs |= _strategy(call.kwargs.get("strategy", "auto"), call.line)
    for key in ("devices", "num_nodes"):
        found = _count(call.kwargs.get(key))
        if found:
            made.kwargs[key] = found
    return made


def _count(value: Value) -> int | None:
    """How many devices `devices` asks for; None where the machine decides."""
    if isinstance(value, list):
        return len(value)
    if isinstance(value, str) and re.fullmatch(r"\d+(,\d+)+", value):
        return value.count(",") + 1
    known = str(value)
    return int(known) if known.isdigit() and 0 < len(known) < 7 else None


def _fsdp(options: Mapping[str, Value]) -> dict[str, Any]:
    kind = str(options.get("sharding_strategy", "full_shard")).rsplit(".", 1)[-1].lower()
    sharded = kind if kind in _SHARDING else "full_shard"
    recomputes = any(one.startswith("activation_checkpointing") for one in options)
    moved = " offload" if options.get("cpu_offload") is True else ""
    return {"fsdp": sharded + moved, "gradient_checkpointing": recomputes}


def _strategy(value: Value, line: int) -> dict[str, Any]:
    """The arguments for a strategy, by its name or its class."""
    name = value.short if isinstance(value, Call) else str(value)
    options = value.kwargs if isinstance(value, Call) else {}
    if name in ("FSDPStrategy", "fsdp") or name.startswith("fsdp_"):
        return _fsdp(options)
    if name == "DeepSpeedStrategy":
        return {"deepspeed": _of_deepspeed(options, line)}
    if (by_name := _DEEPSPEED.fullmatch(name)) is not None:
        return {"deepspeed": _zero(by_name[1] or 2, bool(by_name[2]))}
    if name == "auto" or name.lower().startswith("ddp") or value is None:
        return {}
    text = f"Lightning's strategy {name[:80]} is not read: name DDP, FSDP or DeepSpeed"
    raise Unreadable(text, "", line)


def _of_deepspeed(options: Mapping[str, Value], line: int) -> Any:
    """DeepSpeed's configuration or its file, or what the arguments amount to."""
    config = options.get("config")
    if isinstance(config, dict | str):
        return config
    if config is not None:
        raise Unreadable("the configuration of DeepSpeedStrategy is not known: give it", "", line)
    return _zero(options.get("stage", 2), options.get("offload_optimizer") is True)


def _zero(stage: object, offloads: bool) -> dict[str, Any]:
    to_cpu = {"offload_optimizer": {"device": "cpu"}} if offloads else {}
    return {"zero_optimization": {"stage": int(str(stage)), **to_cpu}}


def follow(script: Script, found: list[Call]) -> None:
    """Follows the methods that Lightning calls of the modules that a script makes."""
    for one in list(found):
        if not isinstance(one, Instance) or one.kind is None:
            continue
        if any(map(_MODULES.fullmatch, one.kind.bases)):
            for name in _CALLED:
                if (method := one.kind.methods.get(name)) is not None:
                    script.run(Function(method.node, method.scope, one), [], {})


def batch_size(found: list[Call]) -> tuple[int, int] | None:
    """The samples of a process in a pass, by the first DataLoader, and its line."""
    for one in found:
        size = one.kwargs.get("batch_size", (*one.args, None, None)[1])
        if one.short == "DataLoader" and isinstance(size, int):
            return size, one.lines.get("batch_size", one.line)
    return None
