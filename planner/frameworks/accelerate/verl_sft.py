"""verl's SFT trainers: a transformers model under FSDP, with Ulysses.

Keys and defaults of verl/trainer/config/sft_trainer.yaml (005a83db) and sft_trainer_engine.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.frameworks import post_training, training_calls
from planner.frameworks.accelerate.settings import FOREACH
from planner.frameworks.bash import ProgramCall
from planner.frameworks.given_values import malformed
from planner.frameworks.launch_files import GivenValues, given_with
from planner.frameworks.lora_settings import adapter_fields
from planner.frameworks.read_results import Reading
from planner.frameworks.verl_overrides import Overrides, config_name, configured

TITLE = "verl's SFT trainer"
HINTS = ("fsdp_sft_trainer", "verl.trainer.sft_trainer")
MODELS = ("model.partial_pretrain", "model.path")
ULYSSES = ("ulysses_sequence_parallel_size", "engine.ulysses_sequence_parallel_size")
CHECKPOINTING = "model.enable_gradient_checkpointing"
MICRO, OF_ALL = "data.micro_batch_size_per_gpu", "data.micro_batch_size"
# verl's own defaults, and the one of a micro-batch there.
_DEFAULTS = "sft_trainer.yaml"
_OWN = re.compile(r"^\s+micro_batch_size_per_gpu:\s*(\d{1,6})\b", re.MULTILINE)


def call(files: Mapping[str, str]) -> training_calls.TrainingCall | None:
    """The call of one of its SFT trainers; None if there is none."""
    return training_calls.training_call_if_any(files, HINTS, _launches, TITLE)


def _launches(launch: ProgramCall) -> bool:
    name = launch.program.text.removesuffix(".py").replace("/", ".")
    return name.endswith(HINTS)


def read(
    found: training_calls.TrainingCall, files: Mapping[str, str], accelerators: int | None
) -> Reading:
    """The specs and the plan of the call; raises Unreadable."""
    given, launch = given_with(files), configured(found.launch, found.files)
    said, notes = Overrides(launch, given), list(found.notes)
    if said.text("engine", "fsdp") not in ("fsdp", "fsdp2"):
        raise said.words["engine"].unreadable("only the engine fsdp of verl's SFT is read")
    model = _model(said, given, notes)
    reached = training_calls.world(launch)
    size = training_calls.accelerators(found, reached, accelerators, notes)
    cp = max(said.positive_int(key, 1) for key in ULYSSES)
    dp = max(size // cp, 1)
    if CHECKPOINTING not in said.words:
        notes.append(f"{CHECKPOINTING}: not set, on as in releases from 0.5")
    if said.is_true("model.use_liger"):
        # trainer/fsdp_sft_trainer.py, _compute_loss_and_backward.
        notes.append(
            "model.use_liger: its loss reads the logits of all tokens all the same; norms and "
            "activations are costed as plain ones"
        )
    full = said.is_true(CHECKPOINTING, default=True)
    offloads = said.is_true("model.fsdp_config.cpu_offload") or said.is_true(
        "engine.optimizer_offload"
    )
    try:
        training = TrainingSpec(
            seq_length=said.positive_int("data.max_length", 1024),
            global_batch_size=said.positive_int("data.train_batch_size", 256),
            gradient_dtype="fp32",
            gradient_reduce_dtype="fp32",
            **_adapters(said, model),
        )
        plan = ParallelPlan(
            cp=cp,
            cp_kind="a2a",
            dp=dp,
            zero_stage=3,
            micro_batch_size=_micro(said, dp, files, notes),
            recompute="full" if full else "none",
            recompute_num_layers=model.num_layers if full else 0,
            offload_optimizer=offloads,
            attention_kernel="flash2",
            cross_entropy="unfused",
            runtime=FOREACH,
        )
    except ValidationError as error:
        raise malformed(error, found.script) from None
    return Reading(
        framework="accelerate",
        model=model,
        training=training,
        plan=plan,
        nodes=reached.nodes,
        accelerators_per_node=reached.per_node,
        settings=tuple(map(said.setting, said.words)),
        unread=tuple(said.setting(key) for key in said.words if key not in said.asked),
        assumed=tuple(notes),
        written=False,
    )


def _model(said: Overrides, given: GivenValues, notes: list[str]) -> ModelSpec:
    said.asked.update(MODELS)
    if given.model is not None:
        return given.model
    key = next((key for key in MODELS if key in said.words), MODELS[0])
    place = said.words.get(key, said.launch.program)
    name = place.text if key in said.words else ""
    beside = config_name(said.launch)
    missing = f"{key} is missing" + (f", unless {beside} has it" if beside else "")
    return post_training.preset(name, missing, (place.file, place.line), notes)


def _micro(said: Overrides, ranks: int, files: Mapping[str, str], notes: list[str]) -> int:
    """Sequences per pass of a rank; the first releases have those of all ranks together.

    Later ones keep that key in their sft_trainer.yaml, and do not look at it.
    """
    if said.text(OF_ALL) and not said.text(MICRO):
        usual = (_OWN.search(text) for name, text in files.items() if name.endswith(_DEFAULTS))
        if (own := next(filter(None, usual), None)) is not None:
            notes.append(f"{OF_ALL} is not looked at by the release at hand: {MICRO} is {own[1]}")
            return int(own[1])
        notes.append(f"{OF_ALL} is of all ranks, as in release 0.1; later ones do not look at it")
        return max(said.positive_int(OF_ALL) // ranks, 1)
    said.text(OF_ALL)
    return said.positive_int(MICRO, 4)


def _adapters(said: Overrides, model: ModelSpec) -> dict[str, Any]:
    rank = said.text("model.lora_rank", "0")
    listed = said.text("model.target_modules")
    said.text("model.lora_alpha")
    targets = said.setting("model.target_modules") if listed else None
    return adapter_fields(model, int(rank) if rank.isdecimal() else 0, targets, 0.0)
