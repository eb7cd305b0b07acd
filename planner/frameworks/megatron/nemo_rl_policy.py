"""NeMo-RL's policy on Megatron-Core, translated to Megatron-LM's options.

Follows nemo_rl/models/megatron/setup.py (7ea279a), which builds Megatron-Bridge's configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cost_models.spec import ModelSpec
from planner.frameworks.bash import Argument, ProgramCall
from planner.frameworks.launch_files import GivenValues
from planner.frameworks.megatron import attribute_names, printed_arguments
from planner.frameworks.megatron.printed_arguments import TranslatedLaunch
from planner.frameworks.nemo_rl import policy
from planner.frameworks.nemo_rl.config import Config
from planner.frameworks.read_results import Setting

GROUP = "policy.megatron_cfg"
OPTIMIZER = frozenset({
    "optimizer", "use_distributed_optimizer", "use_precision_aware_optimizer",
    "optimizer_cpu_offload", "optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d",
    "exp_avg_dtype", "exp_avg_sq_dtype", "main_params_dtype", "muon_tp_mode",
})  # fmt: skip
OFFLOADING = ("optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d")
# The only keys of data parallelism that it passes on; it passes on no FSDP.
DATA_PARALLEL = ("overlap_grad_reduce", "overlap_param_gather")
SPLITS = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
)  # fmt: skip
FP8 = {"fp8": "fp8", "fp8_recipe": "fp8_recipe", "fp8_param": "fp8_param_gather"}
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}
# Keys that are read elsewhere, or do not affect a step.
IGNORED_KEYS = frozenset({
    "enabled", "activation_checkpointing", "recompute_granularity", "recompute_modules",
    "mtp_num_layers", "cuda_graph_impl", "cuda_graph_modules", "cuda_graph_warmup_steps",
    "train_iters", "mtp_loss_scaling_factor", "mtp_use_repeated_layer", "mtp_detach_heads",
    "empty_unused_memory_level", "freeze_moe_router",
})  # fmt: skip


def translated(
    config: Config, given: GivenValues, known: Mapping[str, Any], accelerators: int | None
) -> TranslatedLaunch:
    """The run translated to Megatron-LM's options.  Raises Unreadable."""
    config.notes.append(policy.APART)
    has_mtp = config.value(f"{GROUP}.mtp_num_layers", 0) not in (0, "0")
    model = policy.model(config, given, has_mtp)
    training = policy.tuned_fields(config, model, f"{GROUP}.peft")
    world = policy.world(config, accelerators)
    words = (*_sizes(config, known, world.accelerators), *_engine(config, model, known))
    left = policy.left(config, "megatron_cfg", given.model is not None)
    start = config.launch or ProgramCall(program=Argument(config.name, config.name, 1))
    call = replace(start, arguments=words)
    return TranslatedLaunch(call, model, world, tuple(config.notes), left, training)


def _sizes(
    config: Config, known: Mapping[str, Any], accelerators: int | None
) -> Iterator[Argument]:
    replica = 1
    for name in SPLITS:
        replica *= config.whole(f"{GROUP}.{name}", 1)
    found = policy.sizes(config, replica, accelerators or replica)
    sizes = {
        "seq_length": config.word(policy.LENGTH, str(found.length)),
        "global_batch_size": config.word(policy.BATCH, str(found.batch)),
        "micro_batch_size": config.word(policy.MICRO, str(found.micro)),
    }
    yield from printed_arguments.words_of(sizes, known)


def _engine(config: Config, model: ModelSpec, known: Mapping[str, Any]) -> Iterator[Argument]:
    """The policy's Megatron settings as words of Megatron-LM's command line."""
    for name, key in _attributes(config, model):
        value = config.value(key)
        shown = "true" if value is True else "false" if value is False else value
        if isinstance(value, list):
            shown = " ".join(map(str, value))
        file, line = config.place(key)
        text = DTYPES.get(str(shown), str(shown)) if name.endswith("_dtype") else str(shown)
        yield from printed_arguments.words(
            Setting(name=name, value=text, file=file, line=line), known
        )
    if config.value(f"{GROUP}.distributed_data_parallel_config.grad_reduce_in_fp32") is False:
        yield config.word(GROUP, "--grad-reduce-in-bf16")
    if config.on(f"{GROUP}.activation_checkpointing"):
        yield from printed_arguments.words_of(_recompute(config), known)


def _attributes(config: Config, model: ModelSpec) -> Iterator[tuple[str, str]]:
    """Megatron-LM's attributes, each with the key that sets it."""
    yield from _model_attributes(config, model)
    offloads = config.on(f"{GROUP}.optimizer.optimizer_cpu_offload")
    for key in config.group(f"{GROUP}.optimizer"):
        if key in OPTIMIZER and (offloads or key not in OFFLOADING):
            yield key, f"{GROUP}.optimizer.{key}"
    for key in DATA_PARALLEL:
        if config.value(f"{GROUP}.distributed_data_parallel_config.{key}") is not None:
            yield key, f"{GROUP}.distributed_data_parallel_config.{key}"
    if config.on(f"{GROUP}.fp8_cfg.enabled"):
        for key, name in FP8.items():
            if config.value(f"{GROUP}.fp8_cfg.{key}") is not None:
                yield name, f"{GROUP}.fp8_cfg.{key}"
    precision = policy.precision(config)
    if precision != "fp32":
        config.tree["policy"][precision] = True
        yield precision, f"policy.{precision}"


def _model_attributes(config: Config, model: ModelSpec) -> Iterator[tuple[str, str]]:
    for group in (GROUP, f"{GROUP}.model_overrides"):
        for key, value in config.group(group).items():
            name = attribute_names.of_core(key)
            idle = key in IGNORED_KEYS or isinstance(value, dict) or value is None
            known = name in attribute_names.options() and (model.moe or not name.startswith("moe_"))
            if known and not idle:
                yield name, f"{group}.{key}"


def _recompute(config: Config) -> dict[str, Argument]:
    """What is recomputed, as Megatron-LM's attributes."""
    kind = str(config.value(f"{GROUP}.recompute_granularity", "full"))
    said = {"recompute_granularity": kind}
    if kind == "full":
        said |= {"recompute_method": "uniform", "recompute_num_layers": "1"}
    elif modules := config.value(f"{GROUP}.recompute_modules"):
        said["recompute_modules"] = " ".join(map(str, modules))
    key = f"{GROUP}.activation_checkpointing"
    return {name: config.word(key, value) for name, value in said.items()}
