"""Fine-tuning configured by one YAML on transformers' Trainer: LLaMA-Factory, Axolotl, TRL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from textwrap import dedent
from typing import Any

from pydantic import ValidationError

from cost_models.catalog.names import UnknownName
from cost_models.optimizers import OptimizerName
from cost_models.package_files import table
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.frameworks import architecture, training_calls, yaml_files
from planner.frameworks.accelerate import llama_factory_v1, program_lengths, trl_releases, tuning
from planner.frameworks.accelerate.launch_config import (
    config_beside,
    machines,
    mesh_of,
    overrides,
    started_with,
)
from planner.frameworks.accelerate.rules import kernels
from planner.frameworks.accelerate.settings import ADAM_BY_LISTS, FOREACH, OPTIMIZERS
from planner.frameworks.accelerate.sharding import half_beside, sharding_of
from planner.frameworks.accelerate.trainer_keys import GRPO, GRPO_PARTS, NEWER, TRAINERS, Trainer
from planner.frameworks.accelerate.trainer_losses import PAIRED, loss_of
from planner.frameworks.config_files import model_of_config
from planner.frameworks.given_values import LaunchValues, Values, hints, malformed
from planner.frameworks.launch_files import GivenValues, given_with
from planner.frameworks.read_results import PAIRS_ALONE, Reading, Setting, Unreadable
from planner.huggingface.export.exporter import config_of
from planner.huggingface.named_models import find, is_encoder, is_open, names_none

YAML = (".yaml", ".yml")
PLAIN = ("NO", "MULTI_GPU")
# Liger's kernels at once, and what runs the loss alone in chunks: of Axolotl, which names Liger's
# kernels one by one, and Apple's cut cross-entropy.
LIGER = ("use_liger_kernel", "use_liger", "enable_liger_kernel")
LIGER_LAYERS = ("liger_rms_norm", "liger_rope", "liger_glu_activation")
_CUT_PLUGIN = "CutCrossEntropyPlugin"
CHUNKED = ("liger_fused_linear_cross_entropy", "cut_cross_entropy", "chunked_cross_entropy")
NAMED = ("LLaMA-Factory", "TRL", "Axolotl")  # these have a framework of their own
KERNELS = (
    "flash_attention", "flash_attn", "attn_implementation", "use_flash_attention_2",
    "use_flash_attn",
)  # fmt: skip
ATTENTION = {
    "eager": "unfused", "disabled": "unfused", "fa2": "flash2", "flash_attention_2": "flash2",
    "true": "flash2",  # Axolotl's flash_attention
}  # fmt: skip
OPTIMIZED: dict[str, OptimizerName] = {
    **{name: optimizer for optimizer, name in OPTIMIZERS.items()},
    ADAM_BY_LISTS: "adam",
    "muon": "muon",
}
# The degree that splits sequences: TRL's and v1's, Axolotl's, 360-LLaMA-Factory's and ms-swift's.
SEQUENCE = ("context_parallel_size", "sequence_parallel_degree", "sequence_parallel_size")
# FSDP's own recompute, by its key with the prefix and without.
RECOMPUTED = ("fsdp_config.activation_checkpointing", "fsdp_config.fsdp_activation_checkpointing")
# Keys that may stay unread: they concern data, adapters, or vision and audio towers.
HARMLESS = re.compile(
    r"^(image_|video_|audio_|dataset|freeze_vision|freeze_multi|lora_|peft_|rope)"
)


def trainer_of(files: Mapping[str, str]) -> tuple[Trainer, str] | None:
    """The trainer whose configuration is among the files, and the name of that file."""
    for name, text in files.items():
        if not name.endswith(YAML) or "distributed_type:" in text:
            continue
        if llama_factory_v1.is_one(text):
            return NEWER, name
        keys = set(re.findall(r"^([a-z]\w*):", dedent(text), re.MULTILINE))
        lengths = keys & {*GRPO.length, *GRPO_PARTS}
        generates = lengths and keys >= {*GRPO.marks, *GRPO.model}
        for one in (GRPO,) if generates else TRAINERS:
            marked = keys & set(one.marks) and keys & set(one.model)
            if marked and (not one.beside or keys & set(one.beside)):
                return one, name
    return None


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """The specs and the plan of the configuration; raises Unreadable."""
    found = trainer_of(files)
    assert found is not None
    trainer, name = found
    config, given = yaml_files.read(files[name], name), given_with(files)
    settings = (*config.settings(), *overrides(files, name), *given.settings())
    assumed, tree = [*config.notes(), *_others(files, name)], config.values
    values = LaunchValues({one.name: one for one in settings}, name, assumed)
    if trainer is NEWER:
        values, tree = llama_factory_v1.translated(settings, tree, files, name, assumed)
    if trainer is GRPO and not values.has(*GRPO.length):
        for key, usual in GRPO_PARTS.items():
            if not values.has(key):
                values.assume(f"{key}: not set, {usual} as in TRL")
        parts = [values.integer(key, default=usual) for key, usual in GRPO_PARTS.items()]
        total = Setting(name=GRPO.length[0], value=str(sum(parts)), file=name, line=1)
        values.settings = {**values.settings, total.name: total}
    trainer = _of_release(trainer, files, values)
    beside = config_beside(files, assumed)
    launched = started_with(files, name)
    world = launched.accelerators or beside.integer(
        "num_processes", default=accelerators or 0, least=0
    )
    if not world:
        raise Unreadable("the files do not say how many accelerators run it: give a cluster")
    model = model_of(values, trainer, given, files)
    try:
        training, plan = plan_of(values, trainer, tree, model, files, world, beside)
        nodes = launched.nodes or machines(files, assumed)
    except ValidationError as error:
        raise malformed(error, name) from None
    unknown = _unknown(config.settings(), trainer, assumed)
    unread = _unread(values, unknown)
    assumed += architecture.unplanned(unread)
    return Reading(
        framework="accelerate",
        model=model,
        training=training,
        plan=plan,
        nodes=nodes,
        accelerators_per_node=world // nodes if nodes else None,
        settings=(*beside.settings.values(), *settings),
        unknown=unknown,
        unread=unread,
        assumed=tuple(assumed),
        written=_is_written(beside, model),
    )


def _of_release(trainer: Trainer, files: Mapping[str, str], values: Values) -> Trainer:
    """The trainer with the defaults of the release that is known; else those of the newest."""
    if trainer.title != "TRL":
        return trainer
    own = trl_releases.defaults(files, values.settings)
    values.assumed += own.notes
    chunks = trainer.chunks_loss and own.chunks_loss
    return replace(trainer, checkpoints=own.checkpoints, chunks_loss=chunks)


def _others(files: Mapping[str, str], name: str) -> Iterator[str]:
    """What is said of other configurations that a script starts too."""
    if name == next(iter(files)):
        return
    others = [one for one in files if one != name and trainer_of({one: files[one]}) is not None]
    if others:
        yield f"of several configurations {name} is read, not {', '.join(others)[:200]}"


def _is_written(beside: Values, model: ModelSpec) -> bool:
    """Whether the trainer's own writer can write such a run."""
    kind = beside.text("fsdp_version") == "2" or beside.text("distributed_type") in PLAIN
    return kind and config_of(model) is not None


def _unknown(
    settings: tuple[Setting, ...], trainer: Trainer, assumed: list[str]
) -> tuple[Setting, ...]:
    """Keys that the trainer drops; in the notes, the names that may have been meant."""
    if not trainer.names:
        return ()
    known = table(trainer.names, "keys.json")["keys"]
    found = tuple(one for one in settings if one.name.split(".")[0] not in known)
    assumed += hints(found, known)
    return found


def _unread(values: Values, unknown: tuple[Setting, ...]) -> tuple[Setting, ...]:
    """Keys that no plan needs; raises Unreadable if one decides which weights are trained."""
    left = (one for key, one in values.settings.items() if key not in values.asked)
    unread = tuple(one for one in left if one not in unknown)
    odd = [one for one in unread if "." not in one.name and not HARMLESS.search(one.name)]
    architecture.refuse(odd, named=True)
    return unread


def model_of(
    values: LaunchValues, trainer: Trainer, given: GivenValues, files: Mapping[str, str]
) -> ModelSpec:
    """The given model, else the one that the configuration names, else that of config.json."""
    if given.model is not None:
        values.has(*trainer.model)
        return given.model
    name = values.path(*trainer.model)
    if is_open(name):
        values.text(*trainer.model)
    try:
        return find(name, None if "config.json" in files else values.assumed)
    except UnknownName as error:
        if "config.json" in files:
            return model_of_config(files, "config.json")
        if is_encoder(name):
            text = f"{name[:100]} is an encoder, or has one: {training_calls.DECODERS_ONLY}"
            raise Unreadable(text) from None
        wrong = " is no model's name" if names_none(name) else f": {error}"
        raise Unreadable(
            f"{trainer.model[0]} {name[:100]}{wrong}; give the model by another name or by its "
            "config.json (--model)"
        ) from None


def _length(values: Values, trainer: Trainer, files: Mapping[str, str]) -> int:
    """The sequence length, or the usual one of the trainer's release or checkout."""
    own = program_lengths.of_checkout(files) if trainer.length[0] == "cutoff_len" else None
    length = values.integer(*trainer.length, default=own or trainer.usual_length)
    if not values.has(*trainer.length):
        whose = trainer.title if own is None else "the checkout"
        values.assume(f"{trainer.length[0]}: not set, {length} as in {whose}")
    return length


def plan_of(
    values: LaunchValues,
    trainer: Trainer,
    tree: dict[str, Any],
    model: ModelSpec,
    files: Mapping[str, str],
    world: int,
    beside: Values,
) -> tuple[TrainingSpec, ParallelPlan]:
    """The training and the plan of a trainer's keys; raises Unreadable."""
    degrees, shard = _degrees(values, world)
    dp = degrees["dp"]
    if not values.has(trainer.micro):
        values.assume(f"{trainer.micro}: not set, {trainer.usual_micro} as in {trainer.title}")
    micro = values.integer(trainer.micro, default=trainer.usual_micro)
    length = _length(values, trainer, files)
    steps = values.integer("gradient_accumulation_steps", default=1)
    if trainer is NEWER:
        steps = llama_factory_v1.accumulation(values, micro, dp)
    loss = loss_of(values, trainer)
    _refuse_tasks(values, trainer)
    tuning.refuse_other_ways(values)
    micro *= 2 if loss in PAIRED else 1
    half = tuning.half_of(values, half_beside(values, tree, files, beside))
    sharding = sharding_of(values, tree, files, half, beside)
    optimizer = _optimizer(values)
    # The FSDP 2 engine of v1 always reduces in fp32 (distributed/fsdp2.py).
    reduced = "fp32" if trainer is NEWER and values.has("fsdp_version") else sharding.reduced
    adapters = tuning.adapters_of(values, trainer, tree, model)
    full = _recomputes(values, trainer, bool(adapters))
    full |= beside.boolean("fsdp_activation_checkpointing") or values.boolean(*RECOMPUTED)
    fields: dict[str, Any] = {
        "runtime": runtime_of(optimizer),
        "zero_stage": 0,
        **mesh_of(beside),
        **shard,
    }
    fields |= sharding.fields | ({"offload_activations": True} if _offloads(values) else {})
    training = TrainingSpec(
        seq_length=length,
        global_batch_size=micro * steps * dp,
        precision=half,
        optimizer=optimizer_of(optimizer),
        loss="next_token" if loss == PAIRS_ALONE else loss,
        **tuning.types(values, trainer, sharding, half, reduced, adapters),
    )
    plan = ParallelPlan(
        **degrees,
        cp_kind="a2a" if _is_ulysses(values, trainer) else "all_gather",
        micro_batch_size=micro,
        recompute="full" if full else "none",
        recompute_num_layers=model.num_layers if full else 0,
        attention_kernel=_attention(values, model),
        cross_entropy=_loss_kernels(values, trainer, loss, fields["runtime"]),
        compile=values.boolean("torch_compile"),
        **fields,
    )
    return training, plan


def _attention(values: Values, model: ModelSpec) -> str:
    """The kernel that is asked for, or the one that the model's class in transformers has."""
    asked = ATTENTION.get(values.text(*KERNELS) or "", "flash")
    own = kernels(model)
    if asked in own or values.has(*KERNELS):
        return asked
    values.assume(f"the class of {model.name} in transformers has {own[0]} attention alone")
    return own[0]


def _optimizer(values: Values) -> str:
    """The optimizer, by its key or by LLaMA-Factory's switch; one that is not known is said."""
    name = values.text("optim", "optimizer") or OPTIMIZERS["adam"]
    if values.has("use_muon") and values.boolean("use_muon"):
        return "muon"
    if name not in OPTIMIZED and "adam" not in name:
        values.assume(f"the optimizer {name[:60]} is costed as Adam")
    return name


def runtime_of(optimizer: str) -> str:
    """The runtime whose AdamW this value of `optim` is."""
    return FOREACH if optimizer == ADAM_BY_LISTS else "transformers"


def optimizer_of(name: str) -> OptimizerName:
    """The optimizer of a value of `optim`; of what is not known, the kind of Adam by its name."""
    return OPTIMIZED[name] if name in OPTIMIZED else adam_of(name)


def adam_of(name: str) -> OptimizerName:
    """The kind of Adam of an optimizer's name."""
    if "8bit" in name:
        return "paged_adam_8bit" if name.startswith("paged") else "adam_8bit"
    return "paged_adam" if name.startswith("paged") else "adam"


def _degrees(values: Values, world: int) -> tuple[dict[str, int], dict[str, int]]:
    """The degrees tp, cp and dp, and dp_shard if there are replicas of shard groups."""
    tp = values.integer("tensor_parallel_size", default=1)
    cp = values.integer(*SEQUENCE, default=1)
    if world % (tp * cp):
        raise Unreadable(f"{world} accelerators are not a multiple of tp {tp} x cp {cp}")
    dp = world // (tp * cp)
    shards, copies = (
        values.integer(f"dp_{one}_size", default=0, least=0) for one in ("shard", "replicate")
    )
    if shards and max(shards, 1) * max(copies, 1) != dp:
        raise Unreadable(
            f"dp_shard_size {shards} x dp_replicate_size {max(copies, 1)} is not {dp} = {world} "
            f"accelerators / (tp {tp} x cp {cp}): give its cluster"
        )
    degrees = {"tp": tp, "cp": cp, "dp": dp}
    return degrees, {"dp_shard": shards * cp} if copies > 1 else {}


def _is_ulysses(values: Values, trainer: Trainer) -> bool:
    """Whether ranks exchange heads for parts of a sequence."""
    mode = values.text("sequence_parallel_mode") or "ulysses"
    return trainer is NEWER or (values.has("sequence_parallel_size") and mode == "ulysses")


def _refuse_tasks(values: Values, trainer: Trainer) -> None:
    """Raises Unreadable if the trainer does something else in place of training."""
    tasks = [key for key in trainer.tasks if values.has(key)]
    if tasks and not values.boolean("do_train"):
        raise values.fault(tasks, "without do_train: nothing is trained")
    if not values.boolean("do_train", default=True):
        raise values.fault(("do_train",), "is off: nothing is trained")


def _offloads(values: Values) -> bool:
    """Whether activations go to host memory: by a key of its own, or by Axolotl's older value."""
    if values.boolean("fsdp_config.activation_cpu_offload"):  # ms-swift's
        return True
    named = (values.text(key) or "" for key in ("activation_offloading", "gradient_checkpointing"))
    kept, recomputed = (text.lower() for text in named)
    return kept not in tuning.OFF or recomputed.startswith("offload")


def _recomputes(values: Values, trainer: Trainer, adapted: bool) -> bool:
    if trainer.offloads_instead and adapted and _offloads(values):
        return values.text("activation_offloading") == "hidden_states"
    if values.has("disable_gradient_checkpointing"):
        return not values.boolean("disable_gradient_checkpointing")
    text = values.text("gradient_checkpointing")
    return trainer.checkpoints if text is None else text.lower() not in tuning.OFF


def _cuts_by_plugin(values: Values) -> bool:
    """Whether Axolotl's plugin cuts the loss, which it does unless its key says otherwise."""
    listed = (one.value for key, one in values.settings.items() if key.split(".")[0] == "plugins")
    cuts = any(_CUT_PLUGIN in str(one) for one in listed) and not values.has("cut_cross_entropy")
    if cuts:
        values.assume("cut_cross_entropy: not set, on as in its plugin")
    return cuts


def _loss_kernels(values: Values, trainer: Trainer, loss: str, runtime: str) -> str:
    """TRL takes the output layer and the loss together in chunks of tokens, as Liger does."""
    said = {key: values.boolean(key) for key in (*LIGER, *LIGER_LAYERS, *CHUNKED)}
    said["cut_cross_entropy"] |= _cuts_by_plugin(values)
    each = (CHUNKED[0], *LIGER_LAYERS)
    liger = any(said[key] for key in LIGER) or all(said[key] for key in each)
    chunked = any(said[key] for key in CHUNKED) or liger
    chunked = chunked or (trainer.chunks_loss and loss == "next_token")
    if chunked and runtime == "deepspeed":
        values.assume("the loss in chunks is costed with whole logits under DeepSpeed")
        return "unfused"
    if liger:
        return "liger"
    return "chunked" if chunked else "unfused"
