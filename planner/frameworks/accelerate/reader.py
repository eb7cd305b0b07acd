"""What a launch with accelerate says: its config, the launch line, config.json and options.

The options of the training script are those of train.py, which are named as in the examples of
transformers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.answer import Reason
from planner.frameworks import yaml_files
from planner.frameworks.accelerate.names import KEYS, OPTIONS, SWITCHES
from planner.frameworks.accelerate.settings import ATTENTION, OPTIMIZERS, ROTATION
from planner.frameworks.accelerate.tuning import tuning_of
from planner.frameworks.reading import Reading, Refusal, Setting, Unreadable
from planner.frameworks.values import DEGREE, Values, hint, malformed, only_launch, options
from planner.huggingface import ModelImportError, model_from_config
from planner.loading import parse_json
from planner.problems import RequestError

LENGTH = ("--block_size", "--max_seq_length", "--max_length", "--seq_length")
CONFIG = ("--config_name", "--model_name_or_path")
# Options of the training script that say nothing a plan has a place for, or are placeholders.
SCRIPT_ONLY = frozenset({"--learning_rate", "--max_train_steps", "--sync_each_batch"})
# Keys of the launch that no plan needs to know.
_LAUNCH_ONLY = """
config_file compute_environment machine_rank main_process_ip main_process_port rdzv_backend
same_network main_training_function use_cpu debug fsdp_auto_wrap_policy fsdp_state_dict_type
fsdp_cpu_ram_efficient_loading dynamo_use_regional_compilation parallelism_config_cp_backend
parallelism_config_sp_backend
"""
LAUNCH_ONLY = frozenset(_LAUNCH_ONLY.split())
# What accelerate reads under fsdp_config without an option for it.
KNOWN = KEYS | OPTIONS | SWITCHES | {"fsdp_ignored_modules"}
TYPES = ("NO", "MULTI_GPU", "MULTI_CPU", "MULTI_NPU", "MULTI_XPU", "FSDP", "DEEPSPEED",
         "MEGATRON_LM", "XLA")  # fmt: skip
ENGINES = ("DEEPSPEED", "MEGATRON_LM", "XLA")
KERNELS = {
    **{name: kernel for kernel, name in ATTENTION.items()},
    "flash_attention_3": "flash",
    "flex_attention": "flash",
}
PRECISIONS = ("no", "bf16", "fp16", "fp8")
MESH = "parallelism_config_"

Keyed = list[tuple[str, Setting]]


def recognises(files: Mapping[str, str]) -> bool:
    """Whether a script calls accelerate's launcher, or a config of it stands alone."""
    scripts = [text for name, text in files.items() if name.endswith(".sh")]
    if scripts:
        return any("accelerate launch" in text for text in scripts)
    return any(
        "distributed_type:" in text for name, text in files.items() if name.endswith(".yaml")
    )


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """The specs and the plan; raises Unreadable."""
    launch = only_launch(files, "accelerate")
    line = options(launch.before[2:], SWITCHES) if launch else []
    script = options(launch.arguments) if launch else []
    file = "launch.sh" if launch is None else launch.program.file
    keyed = [*_of_config(files, line), *((_plain(one.name), one) for one in line)]
    values = Values(dict(keyed), file)
    asked = Values({one.name: one for one in script}, file)
    model = _model(files, asked)
    assumed: list[str] = []
    refusals = list(_refused_keys(keyed))
    try:
        training, plan, shape = _plan(model, values, asked, accelerators, assumed, refusals)
    except ValidationError as error:
        raise malformed(error, file) from None
    unknown = [one for key, one in keyed if key not in KNOWN]
    assumed += _hints(unknown, KNOWN)
    return Reading(
        framework="accelerate",
        model=model,
        training=training,
        plan=plan,
        nodes=shape[0],
        accelerators_per_node=shape[1],
        settings=(*(one for _, one in keyed), *script),
        unknown=tuple(unknown),
        unread=(
            *(one for key, one in keyed if key in KNOWN - values.asked - LAUNCH_ONLY),
            *(one for one in script if one.name not in asked.asked | SCRIPT_ONLY),
        ),
        assumed=tuple(assumed),
        refusals=tuple(refusals),
    )


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _of_config(files: Mapping[str, str], line: Iterable[Setting]) -> Iterator[tuple[str, Setting]]:
    """The keys of the config, sections opened as the launcher opens them."""
    named = next((one.value for one in line if _plain(one.name) == "config_file"), None)
    if isinstance(named, str):
        name = named.rsplit("/", 1)[-1]
        if name not in files:
            raise Unreadable(f"the config {name} that the launch names is not among the files")
    else:
        yamls = [name for name in files if name.endswith((".yaml", ".yml"))]
        if line or not yamls:
            return
        name = yamls[0]
    for one in yaml_files.read(files[name], name).settings():
        section, _, key = one.name.rpartition(".")
        if section in ("fsdp_config", "fp8_config", "dynamo_config"):
            prefix = section.removesuffix("config")
            key = key if key.startswith(prefix.rstrip("_")) else prefix + key
        yield key or one.name, one


def _refused_keys(keyed: Keyed) -> Iterator[Refusal]:
    """Keys at the top of the config that accelerate stops at."""
    for key, one in keyed:
        top = one.name.split(".")[0]
        if not top.startswith("-") and top not in KEYS:
            text = f"accelerate stops at the unknown key {top}{hint(top, KEYS)}"
            yield _refusal(text, one)
        elif one.name.startswith("-") and key not in KNOWN:
            yield _refusal(f"accelerate launch has no option {one.name}{hint(key, KNOWN)}", one)


def _refusal(text: str, setting: Setting | None = None) -> Refusal:
    return Refusal(reason=Reason(code="framework_unsupported", text=text), setting=setting)


def _hints(unknown: Iterable[Setting], known: Iterable[str]) -> list[str]:
    """What is silently left out, with the names that may have been meant."""
    return [
        f"{one.name} is unknown and changes nothing{hint(one.name.rpartition('.')[2], known)}"
        for one in unknown
        if "." in one.name
    ]


def _model(files: Mapping[str, str], asked: Values) -> ModelSpec:
    """The model of the config.json that the script is given."""
    stated = (asked.text(*CONFIG) or "config.json").rsplit("/", 1)[-1]
    name = stated if stated in files else "config.json"
    if name not in files:
        raise Unreadable(f"the config.json of the model ({stated}) is not among the files")
    try:
        document: Any = parse_json(files[name])
        return model_from_config(document, "custom").model
    except (ModelImportError, RequestError, ValueError) as error:
        raise Unreadable(f"holds no model: {error}", name) from None


def _plan(
    model: ModelSpec,
    values: Values,
    asked: Values,
    accelerators: int | None,
    assumed: list[str],
    refusals: list[Refusal],
) -> tuple[TrainingSpec, ParallelPlan, tuple[int | None, int | None]]:
    kind = values.choice("distributed_type", choices=TYPES, default="NO")
    kind = "FSDP" if values.boolean("use_fsdp") else kind
    kind = "MULTI_GPU" if values.boolean("multi_gpu") else kind
    if kind in ENGINES or values.boolean("use_deepspeed"):
        raise values.fault(("distributed_type",), f"{kind}: only FSDP and plain copies are read")
    sharded = kind == "FSDP"
    if sharded and values.integer("fsdp_version", default=1) != 2:
        raise values.fault(("fsdp_version",), "must be 2: FSDP 1 is not read")
    nodes = values.integer("num_machines", default=1, most=DEGREE)
    world = values.integer("num_processes", default=accelerators or 1, most=DEGREE)
    sizes = {
        name: values.integer(f"{MESH}{name}_size", default=1, most=DEGREE)
        for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")
    }
    inner, sequence = sizes["tp"] * sizes["cp"] * sizes["sp"], sizes["cp"] * sizes["sp"]
    meshed = any(name.startswith(MESH) for name in values.settings)
    dp = sizes["dp_replicate"] * sizes["dp_shard"] if meshed else world
    if dp * inner != world:
        product = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
        refusals.append(_refusal(f"ParallelismConfig: {product or 1} is not num_processes {world}"))
    if sizes["cp"] > 1 and sizes["sp"] > 1:
        refusals.append(_refusal("ParallelismConfig: cp_size and sp_size exclude each other"))
    precision = values.choice("mixed_precision", choices=PRECISIONS, default="no")
    if precision == "no":
        assumed.append("mixed_precision: no, which no plan has: bf16")
        precision = "bf16"
    reduced = asked.choice("--reduce_dtype", choices=("bf16", "fp16", "fp32"), default="")
    if sharded and not reduced:
        reduced = "fp16" if precision == "fp16" else "bf16"
        assumed.append(f"--reduce_dtype: not stated, FSDP reduces gradients in {reduced}")
    kernel = asked.choice("--attn_implementation", choices=KERNELS, default="sdpa")
    if not asked.has("--attn_implementation"):
        assumed.append("--attn_implementation: not stated, sdpa")
    if not asked.has("--optim"):
        assumed.append("--optim: not stated, adamw_torch")
    names = {name: optimizer for optimizer, name in OPTIMIZERS.items()}
    micro = asked.integer("--per_device_train_batch_size")
    accumulated = asked.integer(
        "--gradient_accumulation_steps",
        default=values.integer("gradient_accumulation_steps", default=1),
    )
    full = asked.boolean("--gradient_checkpointing")
    full |= sharded and values.boolean("fsdp_activation_checkpointing")
    rotation = {name: kind for kind, name in ROTATION.items()}
    cp_kind = rotation[
        values.choice(f"{MESH}cp_comm_strategy", choices=rotation, default="allgather")
    ]
    training = TrainingSpec(
        seq_length=asked.integer(*LENGTH),
        global_batch_size=micro * accumulated * dp,
        precision=precision,
        gradient_reduce_dtype=reduced if sharded else "fp32",
        optimizer=names[asked.choice("--optim", choices=names, default="adamw_torch")],
        **tuning_of(asked),
    )
    plan = ParallelPlan(
        tp=sizes["tp"],
        cp=sequence,
        cp_kind="a2a" if sizes["sp"] > 1 else cp_kind,
        dp=dp,
        dp_shard=sizes["dp_shard"] * sequence if sharded and sizes["dp_replicate"] > 1 else 0,
        zero_stage=3 if sharded else 0,
        reshard_after_forward=values.boolean("fsdp_reshard_after_forward", default=True),
        micro_batch_size=micro,
        recompute="full" if full else "none",
        recompute_num_layers=model.num_layers if full else 0,
        offload_optimizer=sharded and values.boolean("fsdp_offload_params"),
        offload_activations=sharded and values.boolean("fsdp_activation_checkpointing_offload"),
        attention_kernel=KERNELS[kernel],
        cross_entropy="unfused",
        runtime="torch",
        compile=(values.text("dynamo_backend") or "no").lower() != "no",
    )
    return training, plan, (nodes, world // nodes)
