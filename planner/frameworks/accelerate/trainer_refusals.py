"""What a script with options of transformers' Trainer must not ask for: other losses and parts."""

from __future__ import annotations

import re

from planner.frameworks import architecture, training_calls
from planner.frameworks.accelerate import swift, tuning
from planner.frameworks.accelerate.trainer_keys import GRPO_PARTS, PLAIN
from planner.frameworks.bash import ProgramCall
from planner.frameworks.given_values import Values
from planner.frameworks.python.scripts import PYTHON
from planner.frameworks.read_results import OtherTraining, Setting
from planner.frameworks.training_calls import TrainingCall

# Adapters of an image encoder.
OTHER_PART = re.compile(r"vision|backbone|visual|(^|_)vit(_|$)")
WHOLE = frozenset({"full_finetune", "full_finetuning"})
# Options that leave the language model as it is: those that freeze it, and those that train it.
FREEZES = ("freeze_llm", "freeze_language_model", "tune_mm_mlp_adapter")
TRAINS = ("tune_llm", "tune_mm_llm", "tune_language_model", "train_llm")
ADDS = re.compile(
    r"moe_(enable|mode)|n(um)?_experts|use_c?moa|vision_flow.*|medusa_(num_heads|num_layers|heads)|"
    r"(.*_)?(pre_seq_len|num_virtual_tokens|prompt_tuning|prefix_projection)"
)
# Parallelism of another engine under the Trainer: mcore_adapter's, optimum's.
DEGREES = re.compile(
    r"(tp|pp|ep|cp|sp|((tensor|pipeline|expert|context|sequence)_)(model_)?parallel)(_size|_degree)?"
)
TRAINED_PARTS = "mm_tunable_parts"  # LLaVA-NeXT's list
# Options with words of tuning in their names that are read, or are of another part or its files.
TUNED = ("finetuning_type", "adapter", "freeze_backbone", "lora_weight_path", *tuning.DORA)
ASIDE = re.compile(
    rf"{OTHER_PART.pattern}|(^|_)(mm|mlp|projector|image|audio|speech|video|connector)(_|$)|lora|peft"
)
OF_GRPO = re.compile(r"(^|_)grpo(_|\.|$)")
GENERATING = re.compile(r"(^|_)(ppo|grpo|rloo|gspo|reinforce|online)(_|$)")
PAIRED = re.compile(r"(^|_)(?:[a-z]{0,4}(?=dpo))?(dpo|ipo|reward|orpo|simpo|cpo)(_|$|model)")
PAIRED_OTHERWISE = re.compile(r"(^|_)kto(_|$)")


def refuse(values: Values, call: TrainingCall) -> None:
    """Raises Unreadable where what is trained is not the language model, or not by one pass."""
    program = call.launch.program
    name = program.text.rsplit("/", 1)[-1].lower().removesuffix(".py")
    if swift.launches(call.launch) and (kind := values.text("rlhf_type")) is not None:
        asked = values.settings["rlhf_type"]
        if kind in swift.GENERATING:
            raise asked.unreadable(f"{kind} also generates samples: planner rl has its step")
        if kind in swift.PAIRED_OTHERWISE:
            text = f"the loss of {kind} cannot be planned: only sft, dpo and reward"
            raise asked.unreadable(text)
    if not program.file.endswith(PYTHON):  # whose classes say it
        _refuse_by_name(values, call, name)
    _refuse_frozen(values)
    _refuse_options(values, call.launch)
    if values.has("vision_tower", "mm_projector_type", "force_image_size", "vision_lr"):
        values.assume("only the language model is costed, without its image encoder")


def is_grpo(values: Values, call: TrainingCall) -> bool:
    """Whether a program is GRPO's by its name, with the longest prompt or response of TRL's."""
    name = call.launch.program.text.rsplit("/", 1)[-1].lower()
    sized = bool(values.settings.keys() & GRPO_PARTS.keys()) and not swift.launches(call.launch)
    return sized and bool(OF_GRPO.search(name)) and not call.launch.program.file.endswith(PYTHON)


def trained_of_grpo(values: Values) -> dict[str, Setting]:
    """The settings of GRPO's training alone: a sequence is the longest prompt and response."""
    parts = {key: values.integer(key, default=usual) for key, usual in GRPO_PARTS.items()}
    values.assume(
        "only the training of GRPO is read, each sequence as long as the longest prompt and "
        f"response: {' + '.join(map(str, parts.values()))}"
    )
    known = values.settings
    place = next(known[key] for key in GRPO_PARTS if key in known)
    left = {
        key: one
        for key, one in known.items()
        if key not in PLAIN.length and not swift.OF_SAMPLES.fullmatch(key)
    }
    if "gradient_checkpointing" not in left:
        values.assume("gradient_checkpointing: not set, True as in TRL's GRPOConfig")
        usual = {"name": "gradient_checkpointing", "value": "true"}
        left["gradient_checkpointing"] = place.model_copy(update=usual)
    length = place.model_copy(update={"name": "max_length", "value": str(sum(parts.values()))})
    return {**left, "max_length": length}


def _refuse_by_name(values: Values, call: TrainingCall, name: str) -> None:
    """Takes the loss from the program's name; raises Unreadable for one that cannot be planned."""
    program = call.launch.program
    generates = GENERATING.search(name) and not is_grpo(values, call)
    if generates or any(key.startswith("actor_model") for key in values.settings):
        raise program.unreadable(f"{name} also generates samples: its step cannot be read")
    if PAIRED_OTHERWISE.search(name):
        raise program.unreadable(f"the loss of {name} cannot be planned: only sft, dpo and reward")
    kind = PAIRED.search(name)
    if kind and "stage" not in values.settings:
        said = Setting(name="stage", value=kind[2], file=program.file, line=program.line)
        values.settings = {**values.settings, "stage": said}


def _refuse_options(values: Values, call: ProgramCall) -> None:
    """Raises Unreadable if an option adds parts, splits the model, or picks what is trained."""
    known = (*TUNED, *FREEZES, *TRAINS, *WHOLE, *(swift.OWN if swift.launches(call) else ()))
    left = {key: one for key, one in values.settings.items() if key not in known}
    architecture.refuse(
        (one for key, one in left.items() if not ASIDE.search(key) and _says(one)), named=True
    )
    for key, one in left.items():
        if ADDS.fullmatch(key) and tuning.is_on(one):
            raise one.unreadable(f"{one.name} adds parts to the model, which no plan has")
        if DEGREES.fullmatch(key) and one.value != "1" and tuning.is_on(one):
            raise one.unreadable(
                f"{one.name} {one.value or ''}: {call.program.text} runs the Trainer on an engine "
                "with parallelism of its own, which is not read"
            )


def refuse_parts(call: ProgramCall) -> None:
    """Raises OtherTraining if an option of a call adds parts to the model."""
    for one in training_calls.options(call.arguments):
        if ADDS.fullmatch(one.name.lstrip("-")) and tuning.is_on(one):
            text = f"{one.name} adds parts to the model, which no plan has"
            raise OtherTraining(text, one.file, one.line)


def _says(setting: Setting) -> bool:
    return setting.value is None or ("$" not in str(setting.value) and setting.value != "0.0")


def _refuse_frozen(values: Values) -> None:
    """Raises Unreadable if the language model is frozen, without adapters in it."""
    # LLaVA's backbone is the language model, InternVL's, which has freeze_llm too, the encoder.
    freezes = FREEZES if values.has("freeze_llm") else (*FREEZES, "freeze_backbone")
    frozen = [key for key in freezes if values.has(key) and values.boolean(key)]
    frozen += [key for key in TRAINS if values.has(key) and not values.boolean(key)]
    parts = values.text(TRAINED_PARTS)
    frozen += [TRAINED_PARTS] if parts and not re.search(r"language|llm", parts) else []
    if frozen and values.text("finetuning_type") is None:
        one = values.settings[frozen[0]]
        raise one.unreadable(
            f"{one.name} {one.value or ''}: the language model is frozen and another part is "
            "trained, which no plan has"
        )
