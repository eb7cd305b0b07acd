"""Reads a launch of torchtune: the config of a recipe, and what `tune run` starts.

The keys of 0.6 are read too; a config that comes with torchtune is read by its file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from cost_models.optimizers import OptimizerName
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.frameworks import yaml_files
from planner.frameworks.accelerate import trainers
from planner.frameworks.bash import Argument
from planner.frameworks.given_values import (
    DEGREE,
    SCRIPTS,
    LaunchValues,
    Values,
    hint,
    launch_by,
    launcher_options,
    malformed,
)
from planner.frameworks.launch_files import given_with
from planner.frameworks.read_results import Reading, Setting, Unreadable
from planner.frameworks.torchtune.components import (
    BUILDERS,
    FAMILIES,
    MODELS,
    RECIPES,
    SIGNATURES,
    model_of,
    path_of,
)
from planner.frameworks.torchtune.settings import ATTENTION, CHUNKED, MLP, WHOLE
from planner.frameworks.training_calls import visible

YAML = (".yaml", ".yml")
# Of recipes that distil, or train for quantization.
OTHERS = ("teacher_model", "quantizer")
SIZES = ("vocab_size", "num_layers", "num_heads", "num_kv_heads", "embed_dim")
_COMPONENT = re.compile(r"_component_:\s*torchtune\.")
# Component of the loss -> whether the output layer runs with it, in chunks of tokens.
LOSSES = {
    CHUNKED: "chunked",
    "torchtune.modules.loss.CEWithChunkedOutputLoss": "chunked",
    WHOLE: "unfused",
}
# DPO's, which takes whole logits: a sample is two sequences, which go through one pass.
PAIRED = ("torchtune.rlhf.loss.DPOLoss", "torchtune.modules.rlhf.loss.DPOLoss")
OPTIMIZERS: dict[str, OptimizerName] = {"sgd": "sgd", "adafactor": "adafactor"}
# Where a config leaves samples as long as they are.
USUAL_LENGTH = 2048
# Keys that may stay unread: they concern data, files and logs.
HARMLESS = re.compile(
    r"^(dataset|tokenizer|checkpointer|metric_logger|profiler|lr_scheduler|optimizer|collate_fn|"
    r"ref_checkpointer|output_dir|seed|shuffle|epochs|max_steps|log_|save_|resume_|batch_size_val|run_val|device$|"
    r"clip_grad|cudnn|low_cpu_ram|enable_async|tensor_parallel_plan|loss\.|"
    r"activation_offloading_use_streams|custom_sharded_layers|compile\.|model\.(attn_dropout|lora_alpha))"
)


# The recipe that a config's comment starts, or its folders are named after.
_SINGLE = re.compile(r"single[ _-]device", re.IGNORECASE)
_STARTED = re.compile(
    rf"^[^#\n]{{0,200}}\btune\s+run\s(?:[^\n;|&]|\\\n){{0,400}}\b(?:{'|'.join(RECIPES)})\b",
    re.MULTILINE,
)
_MANY = re.compile(r"tune run .*nproc|\w+_distributed\b")


@dataclass(frozen=True)
class Call:
    """What starts a recipe, and keys that it overrides; 0 processes: nothing says how many."""

    recipe: str = ""
    config: str = ""
    processes: int = 0
    nodes: int | None = None
    overrides: tuple[Setting, ...] = ()


def recognises(files: Mapping[str, str]) -> bool:
    """Whether a config of torchtune is among the files, or a script starts a recipe of it."""
    return any(
        bool((_COMPONENT if name.endswith(YAML) else _STARTED).search(text))
        for name, text in files.items()
        if name.endswith((*YAML, *SCRIPTS))
    )


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """The specs and the plan; raises Unreadable."""
    assumed = list[str]()
    call, given = _call(files, assumed), given_with(files)
    name = _config(files, call)
    config = yaml_files.read(files[name], name)
    settings = (*config.settings(), *call.overrides, *given.settings())
    notes = [*assumed, *config.notes()]
    values = LaunchValues({one.name: one for one in settings}, name, notes)
    _refuse_generation(settings, name)
    call = _alone(call, files[name], name, values)
    world = call.processes or accelerators or 0
    if not world:
        raise Unreadable("the files do not say how many accelerators run it: give a cluster")
    if other := next((key for key in OTHERS if values.has(f"{key}._component_")), None):
        raise values.fault((f"{other}._component_",), "is of a recipe that cannot be read")
    try:
        adapted, model = _model(values, given.model)
        training, plan = _plan(values, model, adapted, world)
    except ValidationError as error:
        raise malformed(error, name) from None
    recipe = call.recipe or _recipe(adapted, world, training.loss == "dpo")
    unknown = _unknown(config.settings(), recipe, values)
    return Reading(
        framework="torchtune",
        model=model,
        training=training,
        plan=plan,
        nodes=call.nodes,
        accelerators_per_node=world // call.nodes if call.nodes else None,
        settings=settings,
        unknown=unknown,
        unread=tuple(one for one in settings if one not in unknown and _is_left(one, values)),
        assumed=tuple(values.assumed),
        refusals=tuple(values.refusals),
        written=training.loss != "dpo",
    )


def _refuse_generation(settings: Iterable[Setting], name: str) -> None:
    """Raises Unreadable for a config of RL's, or without an optimizer."""
    if any(one.name.startswith("policy_model.") for one in settings):
        text = "is of reinforcement learning, which also generates samples: planner rl has its step"
        raise Unreadable(f"policy_model {text}", name)
    if not any(one.name.startswith("optimizer.") for one in settings):
        raise Unreadable("has no optimizer: it generates or evaluates, and trains nothing", name)


def _is_left(one: Setting, values: Values) -> bool:
    """Whether a setting that may matter was not read."""
    idle = one.value in ("null", "false") or HARMLESS.match(one.name)
    return one.name not in values.asked and not idle


def _unknown(keys: Iterable[Setting], recipe: str, values: Values) -> tuple[Setting, ...]:
    """The keys that a recipe does not read, which `values` is told."""
    unknown = tuple(one for one in keys if not _known(one.name, recipe, values))
    for one in unknown:
        meant = hint(one.name.partition(".")[0], RECIPES[recipe])
        values.assume(f"{recipe} does not read {one.name}{meant}")
    return unknown


def _recipe(adapted: bool, world: int, paired: bool) -> str:
    """The recipe of a config that no script starts."""
    kind, task = "lora" if adapted else "full", "dpo" if paired else "finetune"
    alone = world == 1 and (adapted or not paired)
    return f"{kind}_{task}_{'single_device' if alone else 'distributed'}"


def _call(files: Mapping[str, str], assumed: list[str]) -> Call:
    """What `tune run` says, if a script is among the files."""
    launch = launch_by(files, "tune", "run", assumed)
    if launch is None:
        return Call()
    words = launch.arguments
    names = [word.text.rsplit("/", 1)[-1].removesuffix(".py") for word in words]
    place = next((i for i, name in enumerate(names) if name in RECIPES), None)
    if place is None:
        raise launch.program.unreadable(f"tune run: starts none of {', '.join(RECIPES)}")
    line = launcher_options(words[:place], assumed)
    told = {one.name.lstrip("-").replace("-", "_"): one for one in line}
    torchrun = Values(told, launch.program.file)
    nodes = torchrun.integer("nnodes", default=1, most=DEGREE)
    each = torchrun.integer("nproc_per_node", default=0, least=0, most=DEGREE)
    each = each or visible(launch) or 0
    if names[place].endswith("single_device"):
        nodes = each = 1
    pairs = zip(words[place:], words[place + 1 :], strict=False)
    config = next((word.text for before, word in pairs if before.text == "--config"), "")
    return Call(
        names[place],
        config,
        nodes * each,
        nodes if each else None,
        tuple(_overrides(words[place + 1 :])),
    )


def _alone(call: Call, text: str, name: str, values: Values) -> Call:
    """One process where nothing starts the config and it is of a recipe for a single device."""
    said = _SINGLE.search(text) or "single_device" in name
    if call.recipe or not said or _MANY.search(text):
        return call
    values.assume("the config is of a recipe for a single device: one process")
    return replace(call, processes=1, nodes=1)


def _overrides(words: Sequence[Argument]) -> Iterator[Setting]:
    """The words key=value."""
    for word in words:
        name, equals, value = word.text.partition("=")
        if equals and not name.startswith("-"):
            yield Setting(name=name, value=value, file=word.file, line=word.line)


def _config(files: Mapping[str, str], call: Call) -> str:
    """The config that the launch names, or the only one."""
    mine = [name for name in files if name.endswith(YAML) and _COMPONENT.search(files[name])]
    last = call.config.rsplit("/", 1)[-1]
    named = [name for name in mine if name.rsplit("/", 1)[-1] in (last, f"{last}.yaml")]
    if not named and last and "$" not in call.config:
        text = f"its config {call.config} is not among the files: give it"
        comes = "" if last.endswith(YAML) else f" (tune cp {call.config} . writes it)"
        raise Unreadable(text + comes)
    if not mine:
        raise Unreadable(f"no config of torchtune among the files: {', '.join(files)}")
    return (named or mine)[0]


def _known(name: str, recipe: str, values: Values) -> bool:
    """Whether the recipe reads a key, and its component takes an argument."""
    top, _, argument = name.partition(".")
    if top not in RECIPES[recipe]:
        return False
    component = values.settings.get(f"{top}._component_")
    takes = SIGNATURES.get(str(component.value)) if component is not None else None
    one = argument.partition(".")[0]
    return takes is None or one in (*takes, "_component_") or top == "dataset"


def _model(values: Values, given_model: ModelSpec | None) -> tuple[bool, ModelSpec]:
    """Whether the model has adapters, and the given model or that of the component."""
    path = values.text("model._component_")
    if path is None:
        raise Unreadable("model._component_ is missing", values.file)
    name = path.rpartition(".")[2]
    plain = re.sub(r"^q?lora_", "", name)
    package = path.removeprefix(MODELS).partition(".")[0]
    adapted = plain != name
    if given_model is not None:
        return adapted, given_model
    builder = BUILDERS.get(f"{MODELS}{package}.{plain}")
    family = builder["component"] if builder else plain
    if family not in FAMILIES:
        known = sorted({path.rpartition(".")[2] for path in BUILDERS} | set(FAMILIES))
        raise values.fault(
            ("model._component_",),
            f"{path[:100]} has no model here{hint(plain, known)}; give the model (--model)",
        )
    given = {
        argument: _number(values, f"model.{argument}")
        for argument in SIGNATURES[path_of(family, adapted)]
        if not argument.startswith(("lora_", "apply_lora", "quantize", "use_dora", "scaler"))
        and values.has(f"model.{argument}")
    }
    sizes = {**(builder or {}), **given}
    said = {**SIGNATURES[path_of(family)], **sizes}
    if missing := next((one for one in SIZES if said.get(one) is None), None):
        raise Unreadable(f"model.{missing} is missing: give the model (--model)", values.file)
    return adapted, model_of(family, sizes)


def _number(values: Values, name: str) -> Any:
    """An argument of a component: true, false or a number."""
    text = values.text(name) or ""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    number = 0.0 if re.fullmatch(r"0(\.0*)?", text) else values.number(name)
    return int(number) if number.is_integer() else number


def _plan(
    values: Values, model: ModelSpec, adapted: bool, world: int
) -> tuple[TrainingSpec, ParallelPlan]:
    mesh = _mesh(values, world)
    paired = values.text("loss._component_") in PAIRED
    micro = values.integer("batch_size") * (2 if paired else 1)
    steps = values.integer("gradient_accumulation_steps", default=1)
    lengths = ("tokenizer.max_seq_len", "dataset.max_seq_len")  # the latter of older releases
    length = values.integer(*lengths, default=0, least=0)
    if not length:
        length = USUAL_LENGTH
        values.assume(f"tokenizer.max_seq_len: not set, samples of {length} tokens taken")
    if not paired and not values.boolean("dataset.packed"):
        values.assume("dataset.packed: samples are padded, but costed as full sequences")
    kind = values.choice("dtype", choices=("bf16", "fp32"))
    if values.has("ac_mode"):
        raise values.fault(("ac_mode",), "cannot be read: only full activation checkpointing")
    full = values.boolean("enable_activation_checkpointing")
    training = TrainingSpec(
        seq_length=length,
        global_batch_size=micro * steps * mesh["dp"],
        precision=kind,
        gradient_dtype=kind,
        gradient_reduce_dtype=kind,
        master_weights_dtype="fp32" if kind == "fp32" else "none",
        optimizer_state_dtype=kind,
        optimizer=_optimizer(values),
        loss="dpo" if paired else "next_token",
        optimizer_in_backward=not adapted and values.boolean("optimizer_in_bwd"),
        **(_adapters(values) if adapted else {}),
    )
    plan = ParallelPlan(
        **mesh,
        sequence_parallel=mesh["tp"] > 1,
        zero_stage=3 if mesh["dp"] > 1 else 0,
        reshard_after_forward=values.boolean("fsdp_reshard_after_forward", default=True),
        micro_batch_size=micro,
        recompute="full" if full else "none",
        recompute_num_layers=model.num_layers if full else 0,
        offload_optimizer=values.boolean("fsdp_cpu_offload"),
        offload_activations=values.boolean("enable_activation_offloading"),
        attention_kernel="flash2",
        cross_entropy=_loss(values, mesh["tp"]),
        overlap_tp=False,
        compile=values.boolean("compile.model", "compile"),
        runtime="eager",
    )
    return training, plan


def _mesh(values: Values, world: int) -> dict[str, int]:
    """The degrees, and dp_shard if there are copies of shard groups."""
    tp = values.integer("tensor_parallel_dim", default=1, most=DEGREE)
    cp = values.integer("context_parallel_dim", default=1, most=DEGREE)
    copies = values.integer("data_parallel_replicate_dim", default=1, most=DEGREE)
    inferred = values.text("data_parallel_shard_dim") in (None, "-1")
    shards = world // (tp * cp * copies)
    if not inferred:
        shards = values.integer("data_parallel_shard_dim", most=DEGREE)
    if shards * copies * tp * cp != world:
        raise Unreadable(
            f"data_parallel_replicate_dim {copies} x data_parallel_shard_dim {shards} x "
            f"tensor_parallel_dim {tp} x context_parallel_dim {cp} are not the {world} processes"
        )
    if copies > 1 and shards == 1:
        text = "the recipe wraps no model that is not sharded: its copies never reduce gradients"
        values.refuse(text, "data_parallel_replicate_dim", "zero_stage")
    degrees = {"tp": tp, "cp": cp, "dp": copies * shards}
    return {**degrees, "dp_shard": shards * cp} if copies > 1 else degrees


def _optimizer(values: Values) -> OptimizerName:
    path = values.text("optimizer._component_") or ""
    name = path.rpartition(".")[2].lower()
    if name not in OPTIMIZERS and "adam" not in name:
        values.assume(f"the optimizer {path[:60]} is costed as Adam")
    return OPTIMIZERS.get(name) or trainers.adam_of(name)


def _loss(values: Values, tp: int) -> str:
    """How the loss is computed; with tensor parallelism chunks are costed as one."""
    if re.search(r"\.rl\.|GRPO|PPO", values.text("loss._component_") or ""):
        text = "is of reinforcement learning, which also generates samples: planner rl has its step"
        raise values.fault(("loss._component_",), text)
    if values.text("loss._component_") in PAIRED:
        return "unfused"
    path = values.choice("loss._component_", choices=LOSSES)
    return LOSSES[path] if tp == 1 else "unfused"


def _adapters(values: Values) -> dict[str, Any]:
    """The fields of adapters in the training spec."""
    listed = re.findall(r"\w+", values.text("model.lora_attn_modules") or "")
    names = {module: name for name, module in ATTENTION.items()}
    for module in listed:
        if module not in names:
            raise values.fault(
                ("model.lora_attn_modules",), f"are {', '.join(names)}, not {module[:60]!r}"
            )
    if values.boolean("model.apply_lora_to_output"):
        raise values.fault(("model.apply_lora_to_output",), "adapters of the head are not costed")
    if values.boolean("model.use_dora"):
        values.assume("model.use_dora: DoRA is costed as LoRA")
    mlp = MLP if values.boolean("model.apply_lora_to_mlp") else ()
    path = values.text("model._component_") or ""
    packed = ".qlora_" in path or values.boolean("model.quantize_base")
    return {
        "lora_rank": values.integer("model.lora_rank"),
        "lora_targets": (*(names[module] for module in listed), *mlp),
        "lora_dropout": values.probability("model.lora_dropout"),
        "frozen_dtype": "nf4" if packed else "as trained",
    }
