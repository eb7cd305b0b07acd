"""Reads trainings of LLM Foundry: a YAML of its scripts/train, and the call that names it.

Keys and defaults of llmfoundry/utils/config_utils.py, command_utils/train.py (8c8dd48) and
composer/utils/parallelism.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from cost_models.optimizers import OptimizerName
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.frameworks import training_calls
from planner.frameworks.bash import ProgramCall
from planner.frameworks.given_values import DEGREE, LaunchValues, Values, malformed
from planner.frameworks.launch_files import given_with
from planner.frameworks.llm_foundry import models
from planner.frameworks.omegaconf_files import (
    YAML,
    configurations,
    merged,
    named_or_first,
    say_fork_keys,
)
from planner.frameworks.read_results import Reading, Setting, Unreadable

TITLE = "LLM Foundry"
_MARKS = (
    re.compile(r"^\s*global_train_batch_size:", re.MULTILINE),
    re.compile(r"^\s+name: *['\"]?(mpt|hf)_causal_lm|^\s+name: *['\"]?mosaic_gpt", re.MULTILINE),
)
# A job of MosaicML's cloud has the configuration below this key, and its GPUs elsewhere.
_JOB = re.compile(r"^parameters:\s*$", re.MULTILINE)
_INSIDE, _GPUS = "parameters", ("compute.gpus", "gpu_num")
# Groups of keys of a configuration, and of a job beside it.
_GROUPS = {
    "model", "tokenizer", "optimizer", "scheduler", "train_loader", "eval_loader", "eval_loaders",
    "fsdp_config", "tp_config", "loggers", "callbacks", "algorithms", "compile_config", "profiler",
    "variables", "metadata", "icl_tasks", "eval_gauntlet", "lora", "integrations", "compute",
    "env_variables", "scheduling", "dependent_deployment",
}  # fmt: skip
_HALF = {"amp_bf16": "bf16", "amp_fp16": "fp16", "amp_fp8": "fp8", "fp32": "bf16"}
_STAGES = {"FULL_SHARD": 3, "HYBRID_SHARD": 3, "SHARD_GRAD_OP": 2, "_HYBRID_SHARD_ZERO2": 2,
           "NO_SHARD": 0}  # fmt: skip
_NOWHERE = training_calls.World(None, None, None)
_FSDP, _BATCH, _MICRO = "fsdp_config.", "global_train_batch_size", "device_train_microbatch_size"


def launches(call: ProgramCall) -> bool:
    """Whether a call starts a training with a configuration."""
    first = call.arguments[0].text if call.arguments else ""
    started = call.launcher == "composer" or call.program.text.endswith("train.py")
    return started and first.endswith(YAML)


def recognises(files: Mapping[str, str]) -> bool:
    """Whether one of its configurations is among the files."""
    return bool(configurations(files, _MARKS))


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """The specs and the plan; raises Unreadable."""
    call = training_calls.training_call_if_any(files, ("train",), launches, TITLE)
    named = "" if call is None else call.launch.arguments[0].text
    name = named_or_first(configurations(files, _MARKS), named)
    if name is None:
        raise Unreadable(f"no configuration of {TITLE} is among the files")
    inside = _INSIDE if _JOB.search(files[name]) else ""
    settings, notes = merged(files, name, call, inside)
    values = LaunchValues(settings, name, notes)
    given = given_with(files).model
    model = models.model_of(values, given)
    reached = _started(call.launch) if call is not None else _NOWHERE
    world = _world(values, reached, accelerators)
    try:
        training, plan = _plan(values, model, world, reached.per_node)
    except ValidationError as error:
        raise malformed(error, name) from None
    if given is None:
        models.refuse_others(values)
    said = tuple(settings.values())
    unknown = _unknown(values)
    say_fork_keys(values, unknown, TITLE)
    return Reading(
        framework="pytorch",
        model=model,
        training=training,
        plan=plan,
        nodes=reached.nodes,
        accelerators_per_node=reached.per_node,
        settings=said,
        unknown=unknown,
        unread=tuple(one for one in said if one.name not in values.asked and one not in unknown),
        assumed=tuple(dict.fromkeys(values.assumed)),
        refusals=tuple(values.refusals),
        written=False,
    )


def _world(values: Values, reached: training_calls.World, asked: int | None) -> int:
    """All accelerators: those that are started, those of the job, or those of the cluster."""
    stated = next((values.integer(one, most=DEGREE) for one in _GPUS if values.has(one)), None)
    world = reached.accelerators or stated or asked
    if world is None:
        raise Unreadable("a configuration alone has no number of processes: give a cluster")
    return world


def _unknown(values: Values) -> tuple[Setting, ...]:
    """Keys of groups that only forks have; others may be variables."""
    parts = ((one, *one.name.partition(".")[:2]) for one in values.settings.values())
    return tuple(one for one, group, dot in parts if dot and group not in _GROUPS)


def _started(launch: ProgramCall) -> training_calls.World:
    """The processes of `composer -n N --world_size W`; as any launcher's, if it is another."""
    if launch.launcher != "composer":
        return training_calls.world(launch)
    said = {one.name: str(one.value) for one in training_calls.options(launch.before)}
    each = said.get("-n") or said.get("--nproc") or ""
    total = said.get("--world_size") or ""
    per_node = int(each) if re.fullmatch(r"[1-9]\d{0,4}", each) else training_calls.visible(launch)
    if not re.fullmatch(r"[1-9]\d{0,6}", total):  # one node, of all its accelerators without -n
        return training_calls.World(1 if per_node else None, per_node, per_node)
    world = int(total)
    nodes = world // per_node if per_node and world % per_node == 0 else None
    return training_calls.World(nodes, per_node, world)


def _plan(
    values: Values, model: ModelSpec, world: int, per_node: int | None
) -> tuple[TrainingSpec, ParallelPlan]:
    if any(one.startswith("tp_config.") for one in values.settings):
        raise Unreadable("tp_config: its own layer plans are not read", values.file)
    batch = values.integer(_BATCH)
    if batch % world:
        values.refuse(f"a batch of {batch} is not a multiple of {world} ranks", _BATCH)
    share = max(batch // world, 1)
    micro = _micro_batch(values, share)
    stage, sharded, group = _sharding(values, world, per_node)
    precision, own = _precision(values), models.own(values)
    reduced = values.choice(
        f"{_FSDP}mixed_precision", choices=("PURE", "DEFAULT", "FULL"), default="DEFAULT"
    )
    if sharded and reduced == "FULL":
        values.assume("mixed_precision FULL gathers weights in fp32: costed at 16 bits")
    pure = sharded and reduced == "PURE" and world > 1
    training = TrainingSpec(
        seq_length=values.integer("max_seq_len", "train_loader.dataset.max_seq_len", models.LENGTH),
        global_batch_size=share * world,
        precision=precision,
        optimizer=_optimizer(values),
        **({"gradient_reduce_dtype": "fp16" if precision == "fp16" else "bf16"} if pure else {}),
        **models.adapters(values),
    )
    plan = ParallelPlan(
        dp=world,
        dp_shard=group,
        zero_stage=stage if world > 1 else 0,
        micro_batch_size=micro,
        attention_kernel=models.kernel(values),
        cross_entropy="fused" if own else "unfused",
        compile=any(one.startswith("compile_config.") for one in values.settings),
        runtime="torch" if own else "transformers",
        **_kept(values, model.num_layers),
    )
    return training, plan


def _micro_batch(values: Values, share: int) -> int:
    """A divisor of a rank's batch: Composer's last micro-batch may be shorter."""
    stated = values.text(_MICRO) or "auto"
    if stated == "auto":
        values.assume(
            f"{_MICRO} auto: Composer halves {share} until a micro-batch fits, "
            f"1 assumed; --set {_MICRO}=N"
        )
        return 1
    asked = min(values.integer(_MICRO), share)
    micro = next(size for size in range(asked, 0, -1) if share % size == 0)
    if micro != asked:
        values.assume(f"a micro-batch of {asked} does not divide {share}: {micro} assumed")
    return micro


def _precision(values: Values) -> Any:
    """Of matrix products: those of TransformerEngine alone have 8 bits."""
    stated = values.choice("precision", choices=_HALF, default="amp_bf16")
    if stated == "fp32":
        values.assume("precision fp32: plans have no fp32 training, bf16 assumed")
    layers = (values.text(one) or "" for one in ("model.fc_type", "model.ffn_config.ffn_type"))
    if stated == "amp_fp8" and not any(one.startswith("te") for one in layers):
        values.assume("precision amp_fp8 without layers of TransformerEngine trains in bf16")
        return "bf16"
    return _HALF[stated]


def _sharding(values: Values, world: int, per_node: int | None) -> tuple[int, bool, int]:
    """The stage of ZeRO, whether FSDP does it, and the ranks of a group that holds all weights.

    Without FSDP each rank has a copy; a group of 0 is all ranks.
    """
    if not any(one.startswith(_FSDP) for one in values.settings):
        return 0, False, 0
    kind = values.choice(f"{_FSDP}sharding_strategy", choices=_STAGES, default="FULL_SHARD")
    group = per_node if "HYBRID" in kind and per_node and 1 < per_node < world else 0
    if "HYBRID" in kind and not group:
        values.assume(f"{kind} shards within a node: costed as shards over all ranks")
    return _STAGES[kind], True, group


def _optimizer(values: Values) -> OptimizerName:
    name = (values.text("optimizer.name") or "decoupled_adamw").lower()
    if "adam" not in name:
        values.assume(f"the optimizer {name[:60]} is costed as Adam")
    return "adam"


def _kept(values: Values, layers: int) -> dict[str, Any]:
    """Which activations are computed again, and where those that are kept lie."""
    kept: dict[str, Any] = {}
    if values.boolean(f"{_FSDP}activation_checkpointing"):
        kept = {"recompute": "full", "recompute_num_layers": layers}
        if values.has("model.activation_checkpointing_target"):
            values.assume("activation_checkpointing_target is not read: every layer is assumed")
    if values.boolean(f"{_FSDP}activation_cpu_offload"):
        kept["offload_activations"] = True
    return kept
