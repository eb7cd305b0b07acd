"""Reads a launch with accelerate: its config, the launch line, config.json and options.

The training script has the options of train.py, which are named as in transformers' examples.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pydantic import ValidationError

from cost_models.catalog.names import UnknownName
from cost_models.plans import ParallelPlan
from cost_models.plans.plan import CPKind
from cost_models.spec import ModelSpec, TrainingSpec
from planner.frameworks import architecture, training_calls, unread_trainers, verl_overrides
from planner.frameworks.accelerate import (
    automodel,
    nemo_rl_policy,
    python_trainer,
    trainer_config,
    trainer_launch,
    trainers,
    verl_actor,
    verl_sft,
)
from planner.frameworks.accelerate.engines import engine
from planner.frameworks.accelerate.launch_config import KEYS, OPTIONS, SWITCHES, kind_of, plain
from planner.frameworks.accelerate.launch_config import of_config as of_config_file
from planner.frameworks.accelerate.peft import tuning_of
from planner.frameworks.accelerate.settings import ADAM_BY_LISTS, ATTENTION, OPTIMIZERS, ROTATION
from planner.frameworks.config_files import model_of_config
from planner.frameworks.given_values import (
    DEGREE,
    SCRIPTS,
    Values,
    hint,
    hints,
    launch_by,
    launcher_options,
    malformed,
    options,
)
from planner.frameworks.launch_files import given_with
from planner.frameworks.nemo_rl import policy as nemo_rl
from planner.frameworks.nemo_rl.config import of_files
from planner.frameworks.openrlhf import reader as openrlhf
from planner.frameworks.read_results import Reading, Setting, Unreadable
from planner.huggingface.export.exporter import config_of
from planner.huggingface.named_models import find, is_encoder

LENGTH = ("--block_size", "--max_seq_length", "--max_length", "--seq_length")
COMPILES = ("--compile", "--torch_compile")
CONFIG = ("--config_name", "--model_name_or_path")
# Options of the training script without a plan field, and placeholders.
SCRIPT_ONLY = frozenset({"--learning_rate", "--max_train_steps", "--sync_each_batch"})
# Keys of the launch that no plan needs to know.
_LAUNCH_ONLY = """
config_file compute_environment machine_rank main_process_ip main_process_port rdzv_backend
same_network main_training_function use_cpu debug fsdp_auto_wrap_policy fsdp_state_dict_type
fsdp_cpu_ram_efficient_loading dynamo_use_regional_compilation parallelism_config_cp_backend
parallelism_config_sp_backend
"""
LAUNCH_ONLY = frozenset(_LAUNCH_ONLY.split())
# fsdp_ignored_modules is a key of fsdp_config that has no option.
KNOWN = KEYS | OPTIONS | SWITCHES | {"fsdp_ignored_modules"}
# Options of the program that are shown where one is missing.
_SHOWN = (*CONFIG, "--per_device_train_batch_size", "--gradient_accumulation_steps")
# The default of transformers' Trainer.
USUAL_MICRO_BATCH = 8
KERNELS = {
    **{name: kernel for kernel, name in ATTENTION.items()},
    "flash_attention_3": "flash",
    "flex_attention": "flash",
}
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
# TRL's options of its losses, and LLaMA-Factory's.
_OTHER_LOSS = re.compile(r"--(beta|max_prompt_length|loss_type|stage)(?![\w-])")
_ALONE = (
    "accelerate's configuration names no model and no batch: give the script that it launches, or "
    "--model NAME --set max_length=... --set per_device_train_batch_size=..."
)
PRECISIONS = ("no", "bf16", "fp16", "fp8")
MESH = "parallelism_config_"

Keyed = list[tuple[str, Setting]]


def recognises(files: Mapping[str, str]) -> bool:
    """Whether the files launch accelerate or a trainer on it, or are its config alone."""
    texts = [_COMMENT.sub("", text) for name, text in files.items() if name.endswith(SCRIPTS)]
    if (found := trainers.trainer_of(files)) is not None:
        return found[0].title not in trainers.NAMED
    if verl_overrides.call(files, verl_overrides.on_fsdp) is not None:
        return True
    if _is_of_another(files):
        return True
    if texts:
        return any("accelerate launch" in text for text in texts) or trainer_launch.is_one(files)
    return any(
        "distributed_type:" in text
        for name, text in files.items()
        if name.endswith((".yaml", ".yml"))
    )


def _is_of_another(files: Mapping[str, str]) -> bool:
    """Whether they are of a trainer whose launches are read as those of accelerate."""
    return (
        openrlhf.recognises(files)
        or verl_sft.call(files) is not None
        or trainer_config.of_files(files) is not None
        or python_trainer.is_one(files)
        or nemo_rl.is_on(files, "dtensor_cfg")
        or automodel.file_of(files) is not None
    )


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """The specs and the plan; raises Unreadable."""
    if trainers.trainer_of(files) is not None:
        return trainers.read(files, accelerators)
    if (call := verl_overrides.call(files, verl_overrides.on_fsdp)) is not None:
        return verl_actor.read(call, files, accelerators)
    if openrlhf.recognises(files):
        return openrlhf.read(files, accelerators)
    if (call := verl_sft.call(files)) is not None:
        return verl_sft.read(call, files, accelerators)
    if (run := of_files(files)) is not None:
        return nemo_rl_policy.read(run, given_with(files), accelerators)
    if (recipe := automodel.file_of(files)) is not None:
        return automodel.read(recipe, files, accelerators)
    if python_trainer.is_one(files):
        return trainer_launch.read(files, accelerators)
    written = trainer_config.of_files(files) is not None
    if (written or trainer_launch.is_one(files)) and not _has_config(files):
        return trainer_launch.read(files, accelerators)
    return _read_launch(files, accelerators)


def _has_config(files: Mapping[str, str]) -> bool:
    """Whether accelerate's config is there, with a mesh or keys to check.

    Not beside adapters or a loss of pairs, which only transformers' and TRL's trainers have.
    """
    scripts = [text for name, text in files.items() if name.endswith(SCRIPTS)]
    named = any("accelerate launch" in text for text in scripts)
    tunes = any("lora" in text or "peft" in text for text in scripts)
    tunes |= any(_OTHER_LOSS.search(_COMMENT.sub("", text)) for text in scripts)
    others = trainer_launch.is_one(files) and not any(
        re.search(rf"{name}\b", text) for name in LENGTH for text in scripts
    )
    return (
        named
        and not (tunes or others)
        and any("distributed_type:" in text for text in files.values())
    )


def _read_launch(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """Reads accelerate's own launch, or its config alone."""
    assumed, line, script, file = list[str](), list[Setting](), list[Setting](), "launch.sh"
    launch = launch_by(files, "accelerate", assumed=assumed)
    if launch is not None:
        line = launcher_options(launch.before[2:], assumed, SWITCHES)
        script, file = options(launch.arguments), launch.program.file
    keyed = [*of_config_file(files, line, assumed), *((plain(one.name), one) for one in line)]
    given = given_with(files)
    script += [one.model_copy(update={"name": f"--{plain(one.name)}"}) for one in given.settings()]
    values = Values(dict(keyed), file, assumed)
    asked = Values({f"--{plain(one.name)}": one for one in script}, file, assumed)
    model = given.model or _model(files, asked)
    _refuse_keys(keyed, values)
    try:
        training, plan, shape, own = _plan(
            model, values, asked, files, accelerators, launch is not None
        )
    except ValidationError as error:
        raise malformed(error, file) from None
    unknown = [one for key, one in keyed if key not in KNOWN]
    assumed += _hints(unknown)
    unread = (
        *(one for key, one in keyed if key in KNOWN - values.asked - LAUNCH_ONLY),
        *(one for one in script if one.name not in asked.asked | SCRIPT_ONLY),
    )
    assumed += architecture.unplanned(unread)
    return Reading(
        framework="accelerate",
        model=model,
        training=training,
        plan=plan,
        nodes=shape[0],
        accelerators_per_node=shape[1],
        settings=(*(one for _, one in keyed), *script),
        unknown=tuple(unknown),
        unread=unread,
        assumed=tuple(assumed),
        refusals=tuple(values.refusals),
        written=own and config_of(model) is not None,
    )


def _refuse_keys(keyed: Keyed, values: Values) -> None:
    """Refuses unknown top-level keys and launch options, at which accelerate stops."""
    for key, one in keyed:
        top = one.name.split(".")[0]
        if not top.startswith("-") and top not in KEYS:
            text = f"accelerate stops at the unknown key {top}{hint(top, KEYS)}"
            values.refuse_at(one, text)
        elif one.name.startswith("-") and key not in KNOWN:
            values.refuse_at(one, f"accelerate launch has no option {one.name}{hint(key, KNOWN)}")


def _hints(unknown: Iterable[Setting]) -> list[str]:
    """Notes on keys below the top level: at others, accelerate stops."""
    return hints((one for one in unknown if "." in one.name), KNOWN)


def _model(files: Mapping[str, str], arguments: Values) -> ModelSpec:
    """The model of the script's config.json, or of that name."""
    stated = (arguments.text(*CONFIG) or "config.json").rsplit("/", 1)[-1]
    name = stated if stated in files else "config.json"
    if name not in files:
        if is_encoder(stated):
            raise Unreadable(f"{stated} is an encoder, or has one: {training_calls.DECODERS_ONLY}")
        try:
            return find(arguments.text(*CONFIG) or stated, arguments.assumed)
        except UnknownName:
            if not arguments.has(*CONFIG, *LENGTH, "--per_device_train_batch_size"):
                raise Unreadable(unread_trainers.called(files) or _ALONE) from None
            stated = f"of the model ({stated}) is" if arguments.has(*CONFIG) else "is"
            raise Unreadable(
                f"the config.json {stated} not among the files: give it, or the model by its name "
                "(--model)"
            ) from None
    return model_of_config(files, name)


def _plan(
    model: ModelSpec,
    values: Values,
    arguments: Values,
    files: Mapping[str, str],
    accelerators: int | None,
    launched: bool,
) -> tuple[TrainingSpec, ParallelPlan, tuple[int | None, int | None], bool]:
    kind = kind_of(values)
    nodes = values.integer("num_machines", default=1, most=DEGREE)
    world = values.integer("num_processes", default=accelerators or 1, most=DEGREE)
    sizes, dp = _mesh(values, world)
    sequence = sizes["cp"] * sizes["sp"]
    precision = values.choice("mixed_precision", choices=PRECISIONS, default="no")
    if precision == "no":
        values.assume("mixed_precision no: plans have no fp32 training, bf16 assumed")
        precision = "bf16"
    shards = engine(kind, values, files, precision, world // nodes)
    sharded = kind == "FSDP"
    reduced = _reduced(arguments, shards.reduced) if sharded else shards.reduced
    kernel = _stated(arguments, "--attn_implementation", KERNELS, "sdpa")
    names = {name: optimizer for optimizer, name in OPTIMIZERS.items()} | {ADAM_BY_LISTS: "adam"}
    optimizer = _stated(arguments, "--optim", names, OPTIMIZERS["adam"])
    micro = _micro_batch(arguments, launched)
    accumulated = arguments.integer("--gradient_accumulation_steps", default=_accumulated(values))
    full = arguments.boolean("--gradient_checkpointing")
    full |= sharded and values.boolean("fsdp_activation_checkpointing")
    offload = {"offload_optimizer": True} if arguments.boolean("--cpu_offload") else {}
    mesh = {}
    if sharded and sizes["dp_replicate"] > 1:
        mesh["dp_shard"] = sizes["dp_shard"] * sequence
    training = TrainingSpec(
        seq_length=_length(arguments),
        global_batch_size=micro * accumulated * dp,
        precision=precision,
        gradient_dtype=shards.kept,
        gradient_reduce_dtype=reduced,
        optimizer=names[optimizer],
        **tuning_of(arguments),
    )
    plan = ParallelPlan(
        tp=sizes["tp"],
        cp=sequence,
        cp_kind="a2a" if sizes["sp"] > 1 else _rotation(values),
        dp=dp,
        micro_batch_size=micro,
        recompute="full" if full else "none",
        recompute_num_layers=model.num_layers if full else 0,
        attention_kernel=KERNELS[kernel],
        cross_entropy="unfused",
        compile=(values.text("dynamo_backend") or "no").lower() != "no"
        or arguments.boolean(*COMPILES),
        **{"runtime": trainers.runtime_of(optimizer), **mesh, **shards.fields, **offload},
    )
    return training, plan, (nodes, world // nodes), shards.own


def _stated(arguments: Values, name: str, choices: Iterable[str], default: str) -> str:
    """The value of an option; the default if it is not stated, noted as an assumption."""
    if not arguments.has(name):
        arguments.assume(f"{name}: not set, {default} assumed")
    return arguments.choice(name, choices=choices, default=default)


def _mesh(values: Values, world: int) -> tuple[dict[str, int], int]:
    """The sizes of the mesh's axes, and the data-parallel ranks."""
    sizes = {
        name: values.integer(f"{MESH}{name}_size", default=1, most=DEGREE)
        for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")
    }
    meshed = any(name.startswith(MESH) for name in values.settings)
    dp = sizes["dp_replicate"] * sizes["dp_shard"] if meshed else world
    if dp * sizes["tp"] * sizes["cp"] * sizes["sp"] != world:
        product = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
        text = f"ParallelismConfig: {product or 1} is not num_processes {world}"
        widest = max(sizes, key=lambda name: sizes[name])
        values.refuse(text, f"{MESH}{widest}_size")
    if sizes["cp"] > 1 and sizes["sp"] > 1:
        values.refuse("ParallelismConfig: cp_size and sp_size exclude each other")
    return sizes, dp


def _reduced(arguments: Values, usual: str) -> str:
    """The type in which FSDP reduces gradients; usual: the default."""
    stated = arguments.choice("--reduce_dtype", choices=("bf16", "fp16", "fp32"), default="")
    if not stated:
        arguments.assume(f"--reduce_dtype: not set, FSDP reduces gradients in {usual}")
    return stated or usual


def _rotation(values: Values) -> CPKind:
    """How context parallelism exchanges keys and values between ranks."""
    kinds = {name: kind for kind, name in ROTATION.items()}
    return kinds[values.choice(f"{MESH}cp_comm_strategy", choices=kinds, default="allgather")]


def _micro_batch(arguments: Values, launched: bool) -> int:
    """Sequences per pass of a process, an option of the training script only."""
    name = "--per_device_train_batch_size"
    if not arguments.has(name) and launched:
        arguments.assume(f"{name}: not set, {USUAL_MICRO_BATCH} as in transformers' Trainer")
        return USUAL_MICRO_BATCH
    if not arguments.has(name):
        raise Unreadable(
            "accelerate's configuration has no batch size: give the launch line, or --set "
            "per_device_train_batch_size=..."
        )
    return arguments.integer(name)


def _accumulated(values: Values) -> int:
    """Micro-batches per step in the config; 1 for none or "auto", which defers to the script."""
    name = "gradient_accumulation_steps"
    return 1 if values.text(name) == "auto" else values.integer(name, default=1)


def _length(arguments: Values) -> int:
    if not arguments.has(*LENGTH):
        said = [f"{key} {one.value}" for key, one in arguments.settings.items() if key in _SHOWN]
        read_ones = f" (read: {', '.join(said)[:300]})" if said else ""
        raise Unreadable(f"the files have no sequence length: --set max_length=...{read_ones}")
    return arguments.integer(*LENGTH)
