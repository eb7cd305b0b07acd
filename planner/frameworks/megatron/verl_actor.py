"""Launches of verl with a Megatron actor, translated to Megatron-LM's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cost_models.spec import ModelSpec
from planner.frameworks import verl_overrides
from planner.frameworks.bash import Argument, ProgramCall
from planner.frameworks.launch_files import GivenValues
from planner.frameworks.megatron import attribute_names, printed_arguments
from planner.frameworks.megatron.printed_arguments import TranslatedLaunch
from planner.frameworks.verl_overrides import ACTOR

ENGINE = ACTOR + "megatron."
# Groups whose keys are Megatron-LM's own attributes.
GROUPS = (
    ENGINE + "override_transformer_config.",
    ENGINE + "override_ddp_config.",
    ENGINE + "override_mcore_model_config.",
    ACTOR + "optim.override_optimizer_config.",
)
DEGREES = frozenset(
    {"tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"}
    | {"expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel"}
    | {"virtual_pipeline_model_parallel_size", "use_distributed_optimizer"}
)
DEFAULTS = {
    "sequence_parallel": "true",
    "use_distributed_optimizer": "true",
    "accumulate_allreduce_grads_in_fp32": "true",
    "attention_backend": "flash",
}
EXPERTS = {"moe_token_dispatcher_type": "alltoall"}
DTYPES = {"bfloat16": "bf16", "float16": "fp16"}
OFFLOADS = ("param_offload", "grad_offload", "optimizer_offload")


def translated(
    launch: ProgramCall, given: GivenValues, fields: Mapping[str, Any]
) -> TranslatedLaunch:
    """The call translated to Megatron-LM's options.  Raises Unreadable."""
    said, notes = verl_overrides.Overrides(launch, given), [verl_overrides.NOTE_APART]
    model = verl_overrides.model(said, given, notes)
    training = verl_overrides.adapted(said, model, "lora.")
    attributes = _sizes(said, notes) | _engine(said, model, notes)
    words = tuple(printed_arguments.words_of(attributes, fields))
    world, unread = verl_overrides.world(said), said.unread(given.model is not None)
    call = replace(launch, arguments=words)
    return TranslatedLaunch(call, model, world, tuple(notes), unread, training)


def _sizes(overrides: verl_overrides.Overrides, notes: list[str]) -> dict[str, Argument]:
    """The sequence length and batch sizes, as Megatron-LM's attributes."""
    splits = (ENGINE + "tensor_model_parallel_size", ENGINE + "pipeline_model_parallel_size")
    found = verl_overrides.sizes(overrides, ENGINE + "context_parallel_size", splits, notes)
    return {
        "seq_length": _word(overrides, verl_overrides.LENGTH, found.length),
        "global_batch_size": _word(overrides, verl_overrides.MINI, found.batch),
        "micro_batch_size": _word(overrides, verl_overrides.MICRO, found.micro),
    }


def _word(overrides: verl_overrides.Overrides, key: str, value: object) -> Argument:
    """The value at the place of its key, or of the program if that is not given."""
    place = overrides.words.get(key, overrides.launch.program)
    return Argument(str(value), place.file, place.line)


def _engine(
    overrides: verl_overrides.Overrides, model: ModelSpec, notes: list[str]
) -> dict[str, Argument]:
    """The actor's Megatron attributes, with verl's defaults for those that are not given."""
    program = overrides.launch.program
    usual = DEFAULTS | (EXPERTS if model.moe is not None else {})
    attributes = {
        name: Argument(value, program.file, program.line) for name, value in usual.items()
    }
    dtype = overrides.text(ENGINE + "dtype", "bfloat16")
    attributes[DTYPES.get(dtype, "bf16")] = Argument("true", program.file, program.line)
    for key, word in overrides.words.items():
        group = next((one for one in (*GROUPS, ENGINE) if key.startswith(one)), None)
        name = key.removeprefix(group or "")
        if group is None or (group == ENGINE and name not in DEGREES):
            continue
        name = attribute_names.of_core(name)
        if name in attribute_names.options():
            overrides.asked.add(key)
            attributes[name] = word
    if "pipeline_model_parallel_layout" in attributes:
        # Megatron-Core checks that both agree; Megatron-LM's arguments take one of them.
        attributes.pop("num_virtual_stages_per_pipeline_rank", None)
    if [name for name in OFFLOADS if overrides.is_true(ENGINE + name)]:
        notes.append(verl_overrides.NOTE_OFFLOADED)
    name = ACTOR + "optim.optimizer"
    return attributes | {"optimizer": _word(overrides, name, overrides.text(name, "adam"))}
