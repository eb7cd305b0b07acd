"""The calls of a Python script that decide what its Trainer trains, by the classes they make.

Classes of transformers, of TRL and of PEFT, and those of the script that are derived from them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from planner.frameworks.accelerate import lightning
from planner.frameworks.python.static_values import Call, Instance, Unknown
from planner.huggingface.named_models import is_encoder

PLAIN = ("TrainingArguments", "Seq2SeqTrainingArguments")
# TRL's classes of arguments, whose defaults are its own -> what is trained.
OF_TRL = {
    "SFTConfig": "sft", "DPOConfig": "dpo", "RewardConfig": "rm", "GRPOConfig": "grpo",
    "ORPOConfig": "orpo", "CPOConfig": "cpo",
}  # fmt: skip
OF_PAIRS = ("DPOConfig", "RewardConfig", "ORPOConfig", "CPOConfig")
_OTHERS = r"(?:PPO|RLOO|OnlineDPO|XPO|NashMD|GKD|KTO|BCO|SimPO|PRM)Config"
MARK = re.compile(
    rf"\b(?:{'|'.join((*PLAIN, *OF_TRL, _OTHERS))})\b|(?<![\w.]){lightning.NAME.pattern}\("
)
GENERATING = re.compile(r"(PPO\w*|RLOO|OnlineDPO|XPO|NashMD|GKD|\w+GRPO)Config")
PAIRED_OTHERWISE = re.compile(r"(KTO|BCO|SimPO|PRM)Config")
# Heads other than that of the next token, and models with an encoder beside the decoder.
OTHER_HEADS = re.compile(
    r"\w*(SequenceClassification|TokenClassification|MaskedLM|QuestionAnswering|Seq2SeqLM|"
    r"SpeechSeq2Seq|ForCTC|ImageClassification|MultipleChoice|ObjectDetection)"
)
ADDS_PARTS = ("PromptTuningConfig", "PrefixTuningConfig", "PromptEncoderConfig", "IA3Config")
# Methods of a Trainer that are its step.
_STEP = ("compute_loss", "training_step", "get_batch_loss_metrics", "create_optimizer")
_TRAINER = re.compile(r"\w*Trainer")
_LOADS = re.compile(r"(?:.*\.)?(\w+)\.from_(?:pretrained|config)")
_NO_MODELS = re.compile(r"\w*(Tokenizer|Processor|Config|FeatureExtractor|Pipeline)\w*")
_BUILDS = re.compile(r"\w+(ForCausalLM|LMHeadModel)")
# Losses in the names of trainers, of TRL and derived from them.
_NAMES_LOSS = re.compile(
    r"(OnlineDPO|ORPO|SimPO|DPO|CPO|KTO|GRPO|RLOO|PPO|BCO|GKD)\w*Trainer$|(Reward)(?:Model)?Trainer$"
)
# Packages of these classes, and of those that hand them on.
_THEIRS = re.compile(r"\.*(transformers|trl|peft|alignment|open_r1|tl|hf)\b")


@dataclass
class Calls:
    """The calls of a script, in the order in which they are reached.

    loaded: how many models were loaded before the last trainer was made.  by_lightning: whether
    the last arguments are those of Lightning's Trainer.
    """

    arguments: list[Call] = field(default_factory=list)
    trainers: list[Call] = field(default_factory=list)
    models: list[Call] = field(default_factory=list)
    adapters: list[Call] = field(default_factory=list)
    quantised: list[Call] = field(default_factory=list)
    others: list[Call] = field(default_factory=list)
    loaded: int = 0
    by_lightning: bool = False

    def take(self, call: Call) -> None:
        kind = class_of(call)
        if (by_lightning := lightning.arguments(call)) is not None:
            self.arguments.append(by_lightning)
            self.by_lightning = True
        elif is_arguments(kind) or external_arguments_class(call):
            self.arguments.append(call)
        elif is_trainer(call):
            self.trainers.append(call)
            self.loaded = len(self.models)
        elif kind in ("LoraConfig", "AdaLoraConfig"):
            self.adapters.append(call)
        elif kind in ("BitsAndBytesConfig", "GPTQConfig"):
            self.quantised.append(call)
        elif (loads := loaded_class(call)) and not _NO_MODELS.fullmatch(loads):
            self.models.append(call)
        else:
            self.others.append(call)


def is_arguments(kind: str) -> bool:
    known = kind in PLAIN or kind in OF_TRL
    return known or bool(GENERATING.fullmatch(kind) or PAIRED_OTHERWISE.fullmatch(kind))


def class_of(call: Call) -> str:
    """The class that a call makes an object of, or the one that its own is derived from.

    A class of another library, or of a module that is not here, has another meaning: "".
    """
    if isinstance(call, Instance) and call.kind is not None:
        bases = [one.rsplit(".", 1)[-1] for one in call.kind.bases if _is_theirs(one)]
        return next((one for one in bases if is_arguments(one)), "")
    return call.short if _is_theirs(call.name) else ""


def external_arguments_class(call: Call) -> str:
    """The class of a module that is not among the files, by its name one of Trainer's arguments."""
    kind = call.kind if isinstance(call, Instance) else None
    names = kind.bases if kind is not None else (call.name,)
    return next((one for one in names if one.rsplit(".", 1)[-1] in PLAIN), "")


def is_trainer(call: Call) -> bool:
    """Whether a call makes a trainer: by its name, or by what its class is derived from."""
    kind = call.kind if isinstance(call, Instance) else None
    names = (call.short, *(one.rsplit(".", 1)[-1] for one in (kind.bases if kind else ())))
    return call.owner is None and any(map(_TRAINER.fullmatch, names))


def trainer_class(trainer: Call) -> str:
    """The class of a trainer, or the one of a library that its own is derived from."""
    kind = trainer.kind if isinstance(trainer, Instance) else None
    return kind.bases[-1].rsplit(".", 1)[-1] if kind is not None and kind.bases else trainer.short


def config_of_trainer(trainer: Call | None) -> str:
    """The class of TRL's arguments whose loss a trainer has, by the name of its class; else ""."""
    if trainer is None:
        return ""
    name = re.sub(r"RM(?=Trainer$)", "Reward", trainer_class(trainer))
    found = _NAMES_LOSS.search(name)
    return f"{found[1] or found[2]}Config" if found else ""


def uncosted_step_warning(trainer: Call) -> str:
    """What is not costed of a trainer whose step may be its own; "" of the libraries'."""
    if isinstance(trainer, Instance) and trainer.kind is not None:
        own = ", ".join(one for one in _STEP if one in trainer.kind.methods)
        return f"{own} of {trainer.name} is its own: costed as the trainer's usual" if own else ""
    if _is_theirs(trainer.name):
        return ""
    return f"{trainer.short} is not among the files: costed as transformers' or TRL's own"


def _is_theirs(name: str) -> bool:
    return "." not in name or bool(_THEIRS.match(name))


def loaded_class(call: Call) -> str:
    """The class whose from_pretrained or from_config a call is, or that it builds by its shapes."""
    if (found := _LOADS.fullmatch(call.name)) is not None:
        return found[1]
    first = next(iter(call.args), call.kwargs.get("config"))
    built = isinstance(first, Call) and first.short.endswith("Config")
    return call.short if built and _BUILDS.fullmatch(call.short) else ""


def among(call: Call, known: list[Call]) -> bool:
    """Whether a call is one of these: itself, not one like it."""
    return any(call is one for one in known)


def arguments_of(trainer: Call, known: list[Call]) -> Call | None:
    """The arguments that a trainer is made with."""
    given = [trainer.kwargs.get("args"), *trainer.args[:3]]
    return next((one for one in given if isinstance(one, Call) and among(one, known)), None)


def is_no_limit(length: int) -> bool:
    """Whether a length is so large and round that it only keeps a tokenizer from cutting."""
    return length >= 100_000 and length % 1024 != 0


def may_name(value: Any) -> bool:
    """Whether a value may name a model with a decoder."""
    return isinstance(value, str) and bool(value) and not is_encoder(value)


def given_adapters(calls: list[Call]) -> Call | None:
    """The configuration that get_peft_model is given, of a function that is not here, if any.

    Its rank is unknown where that function is not told it.
    """
    adapts = next((one for one in reversed(calls) if one.short == "get_peft_model"), None)
    if adapts is None:
        return None
    made = adapts.kwargs.get("peft_config", next(iter(adapts.args[1:]), None))
    if isinstance(made, Call) and made.short != "get_peft_model":
        return made if "r" in made.kwargs else _unknown_rank(made.name, made.line)
    return _unknown_rank(made.source, made.line) if isinstance(made, Unknown) else None


def _unknown_rank(source: str, line: int) -> Call:
    return Call("LoraConfig", line, kwargs={"r": Unknown(source, line)})
