"""Reads a Python script, or a notebook, that calls transformers' Trainer or one of TRL's itself.

The arguments of its calls become the options of a call with TrainingArguments, of which the rest
is read as that of any script (trainer_launch).  Defaults are those of TRL 0.24.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from planner.frameworks import training_calls
from planner.frameworks.accelerate.trainer_keys import PLAIN
from planner.frameworks.bash import Argument, ProgramCall, evaluate
from planner.frameworks.launch_files import given_with
from planner.frameworks.python.scripts import Script, constants
from planner.frameworks.python.static_values import Call, Instance, Unknown, Value
from planner.frameworks.read_results import Unreadable
from planner.frameworks.training_calls import TrainingCall, scripts

PYTHON = (".py", ".ipynb")
_OTHER_LIBRARIES = re.compile(r"\bFast(?:Language|Vision)?Model\.from_pretrained\b")
# Classes of arguments -> what is trained; those of TRL have defaults of their own.
_OF_TRL = {"SFTConfig": "sft", "DPOConfig": "dpo", "RewardConfig": "rm", "GRPOConfig": "grpo"}
_PLAIN = ("TrainingArguments", "Seq2SeqTrainingArguments")
_GENERATING = re.compile(r"(PPO\w*|RLOO|OnlineDPO|XPO|NashMD|GKD|\w*GRPO)Config")
_PAIRS_OTHERWISE = re.compile(r"(KTO|ORPO|CPO|BCO|SimPO|PRM)Config")
_TRAINER = re.compile(r"\w*Trainer")
_LOADS = re.compile(r"(\w+)\.from_(pretrained|config)")
_DECODERS = re.compile(
    r"\w*(CausalLM|LMHeadModel|LMHead|ImageTextToText|Vision2Seq|ForConditionalGeneration)\w*|"
    r"AutoModel|\w*LanguageModel\w*|\w*Model"
)
_OTHER_HEADS = re.compile(
    r"\w*(SequenceClassification|TokenClassification|MaskedLM|QuestionAnswering|Seq2SeqLM|"
    r"SpeechSeq2Seq|ForCTC|ImageClassification|MultipleChoice|SentenceTransformer|ObjectDetection)"
)
_NO_MODELS = re.compile(r"\w*(Tokenizer|Processor|Config|FeatureExtractor|Peft\w*Config|Pipeline)\w*")
# What the class of a model's configuration is called -> of its model.
_SHAPES = re.compile(r"(\w+)Config")
# How a note ends on what only running decides.
LEFT_OPEN = "known only at run time"
MARK = re.compile(
    r"\b(?:TrainingArguments|Seq2SeqTrainingArguments|SFTConfig|DPOConfig|RewardConfig|GRPOConfig)\b"
)
_LENGTH_CALLS = ("truncation", "padding")
_GRPO_PARTS = {"max_prompt_length": 512, "max_completion_length": 256}
# Arguments of a loss, by which a YAML's reader would know it.
_LOSS = ("loss_type", "beta", "max_prompt_length", "max_completion_length", "num_generations",
         "max_target_length")  # fmt: skip
# Packages of these classes, and of those that hand them on.
_THEIRS = re.compile(r"\.*(transformers|trl|peft|alignment|open_r1|tl|hf)\b")
# Arguments that a plan has, of which a value that is not known is said or asked for.
_ASKED = ("per_device_train_batch_size", "gradient_accumulation_steps", "deepspeed", "fsdp")
_OF_PLANS = ("gradient_checkpointing", "bf16", "fp16", "optim", "torch_compile", "**",
             "use_liger_kernel", "fsdp_config")  # fmt: skip
_NAMES_MODEL = re.compile(
    r"((base|pretrained|student|policy|llm|lm|hf)_?)?model(_?(name|path|id|checkpoint))?(_or_path)?|"
    r"(base_)?model_name(_or_path)?|checkpoint|pretrained(_model)?(_name)?(_or_path)?"
)


@dataclass
class Found:
    """The calls of a script that decide its training."""

    arguments: list[Call] = field(default_factory=list)
    trainers: list[Call] = field(default_factory=list)
    models: list[Call] = field(default_factory=list)
    adapters: list[Call] = field(default_factory=list)
    quantized: list[Call] = field(default_factory=list)
    others: list[Call] = field(default_factory=list)

    def take(self, call: Call) -> None:
        short = _kind(call)
        if short in (*_PLAIN, *_OF_TRL) or _GENERATING.fullmatch(short) or (
            _PAIRS_OTHERWISE.fullmatch(short)
        ):
            self.arguments.append(call)
        elif _TRAINER.fullmatch(short) and call.owner is None:
            self.trainers.append(call)
        elif short in ("LoraConfig", "AdaLoraConfig"):
            self.adapters.append(call)
        elif short in ("BitsAndBytesConfig", "GPTQConfig"):
            self.quantized.append(call)
        elif (loads := _loaded_class(call)) and not _NO_MODELS.fullmatch(loads):
            self.models.append(call)
        else:
            self.others.append(call)

    @property
    def enough(self) -> bool:
        return bool(self.arguments)


def _kind(call: Call) -> str:
    """The class that a call makes an object of, also by a class of the file derived from it.

    A class of another library, or of a module that is not here, has another meaning: "".
    """
    if isinstance(call, Instance) and call.kind is not None:
        known = [one.rsplit(".", 1)[-1] for one in call.kind.bases if _is_theirs(one)]
        return next((one for one in known if one in (*_PLAIN, *_OF_TRL)), known[0] if known else "")
    return call.short if _is_theirs(call.name) else ""


def _is_theirs(name: str) -> bool:
    return "." not in name or bool(_THEIRS.match(name))


def _loaded_class(call: Call) -> str:
    """The class whose from_pretrained or from_config a call is, or whose constructor with one."""
    text = call.name
    if (found := _LOADS.fullmatch(".".join(text.split(".")[-2:]))) is not None:
        return found[1]
    short = call.short
    takes = call.args[:1] or [call.kwargs.get("config")]
    built = isinstance(takes[0], Call) and _SHAPES.fullmatch(_kind(takes[0]).split(".")[0])
    return short if built and re.fullmatch(r"\w+(ForCausalLM|LMHeadModel)", short) else ""


def script_of(files: Mapping[str, str]) -> tuple[str, TrainingCall | None] | None:
    """The script that makes the arguments of a Trainer, and the call of it in a shell's script.

    It is the launch itself or the program that this starts; None without one.
    """
    first = next(iter(files), "")
    if first.endswith(PYTHON):
        python = [text for name, text in files.items() if name.endswith(PYTHON)]
        own = not any(map(_OTHER_LIBRARIES.search, python))
        return (first, None) if own and any(map(MARK.search, python)) else None
    for name in scripts(files):
        try:
            outcome = evaluate(files, name)
        except Unreadable:
            continue
        for one in reversed(outcome.launches):
            program = one.program.text.rsplit("/", 1)[-1]
            at_hand = next((f for f in files if f.rsplit("/", 1)[-1] == program), None)
            if at_hand is not None and at_hand.endswith(PYTHON) and _makes(files[at_hand]):
                call = TrainingCall(one, name, {**files, **outcome.files}, notes=tuple(outcome.notes))
                return at_hand, call
    return None


def _makes(text: str) -> bool:
    return bool(MARK.search(text)) and not _OTHER_LIBRARIES.search(text)


def is_one(files: Mapping[str, str]) -> bool:
    """Whether the launch is such a script, or calls one."""
    return script_of(files) is not None


def call(
    files: Mapping[str, str], accelerators: int | None
) -> tuple[TrainingCall, dict[str, Any]]:
    """The call with the options that the script amounts to, and those that are sections.

    Raises Unreadable where it is followed to no training.
    """
    which = script_of(files)
    assert which is not None
    name, base = which
    words = [one.text for one in base.launch.arguments] if base is not None else []
    words += given_with(files).arguments if base is None else ()
    found = Found()
    ranks = str(accelerators or 1)
    environment = {"WORLD_SIZE": ranks, "LOCAL_RANK": "0", "RANK": "0"}
    environment |= dict(base.launch.environment) if base is not None else {}
    all_files = base.files if base is not None else files
    script = Script(all_files, name, found.take, words, environment)
    followed = script.follow(lambda: found.enough)
    notes = list(base.notes) if base is not None else []
    if not found.arguments:
        raise Unreadable(
            "it makes no arguments of a Trainer, as far as it can be followed: give the script "
            "that is started",
            name,
        )
    if followed:
        notes.append(f"{', '.join(followed[:4])} of {name} is taken to be what is called")
    chosen = Choice(script, found, name, notes)
    pairs = list(chosen.options())
    arguments = [Argument(f"--{key}={_shown(value)}", name, line) for key, value, line in pairs]
    sections = {key: one for key, one, _ in chosen.sections()}
    program = Argument(name, name, 1)
    launch = ProgramCall(program) if base is None else replace(base.launch, program=program)
    return (
        TrainingCall(
            replace(launch, arguments=tuple(arguments)), name, all_files, notes=tuple(notes)
        ),
        sections,
    )


def _shown(value: Value) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


Option = tuple[str, Any, int]


class Choice:
    """The calls that are read where there are several, and their options."""

    def __init__(self, script: Script, found: Found, file: str, notes: list[str]) -> None:
        self.script, self.found, self.file, self.notes = script, found, file, notes
        self.trainer = self.last_trainer()
        self.arguments = self.of_trainer()
        self.kind = _kind(self.arguments)
        self.model = self.of_model()
        self.refuse()

    def last_trainer(self) -> Call | None:
        with_arguments = [one for one in self.found.trainers if _argument(one, self.found.arguments)]
        if len(with_arguments) > 1:
            self.notes.append(f"of {len(with_arguments)} trainers in {self.file} the last is read")
        return with_arguments[-1] if with_arguments else next(reversed(self.found.trainers), None)

    def of_trainer(self) -> Call:
        said = _argument(self.trainer, self.found.arguments) if self.trainer is not None else None
        return said if said is not None else self.found.arguments[-1]

    def of_model(self) -> Call | None:
        """The call that loads what the trainer trains, else the last one that loads a model."""
        given = None
        if self.trainer is not None:
            given = self.trainer.kwargs.get("model", next(iter(self.trainer.args), None))
        for _ in range(12):
            if not isinstance(given, Call):
                break
            if any(given is one for one in self.found.models):
                return given
            inner = given.args[0] if given.args else given.kwargs.get("model", given.owner)
            given = inner if isinstance(inner, Call) else given.owner
        return self.found.models[-1] if self.found.models else None

    def refuse(self) -> None:
        """Raises Unreadable where no plan stands for what is trained."""
        kind, line = self.kind, self.arguments.line
        if _PAIRS_OTHERWISE.fullmatch(kind):
            text = f"the loss of {kind} cannot be planned: only sft, dpo and reward"
            raise Unreadable(text, self.file, line)
        if kind != "GRPOConfig" and _GENERATING.fullmatch(kind):
            text = f"{kind} also generates samples: its step cannot be read, planner rl has it"
            raise Unreadable(text, self.file, line)
        loads = _loaded_class(self.model) if self.model is not None else ""
        if _OTHER_HEADS.match(loads) and not (kind == "RewardConfig"):
            text = f"{loads} is no decoder of the next token: {training_calls.DECODERS_ONLY}"
            raise Unreadable(text, self.file, self.model.line if self.model is not None else line)
        for one in self.found.others:
            if one.short in ("PromptTuningConfig", "PrefixTuningConfig", "IA3Config"):
                text = f"{one.short} adds parts to the model, which no plan has"
                raise Unreadable(text, self.file, one.line)

    # What the calls say.

    def options(self) -> Iterator[Option]:
        """Each option with its value and line, that of TRL's own defaults with its class's."""
        said = dict(self.arguments.kwargs)
        yield from self.of_arguments(said)
        yield from self.of_length(said)
        yield from self.of_loading()
        yield from self.of_adapters()

    def of_arguments(self, said: dict[str, Value]) -> Iterator[Option]:
        lengths = (*PLAIN.length, *_LOSS)
        own_fields = isinstance(self.arguments, Instance)
        for key, value in said.items():
            line = self.arguments.lines.get(key, self.arguments.line)
            if isinstance(value, Unknown | Call) and key in _ASKED:
                source = value.source if isinstance(value, Unknown) else ""
                yield key, source if "$" in source else f"${{{key}}}", line
            elif isinstance(value, Unknown | Call):
                self.at_run_time(key, value)
            elif value is None or key in lengths or isinstance(value, dict):
                continue
            elif key == "fsdp_config" or (own_fields and key.startswith("_")):
                continue
            elif isinstance(value, str | int | float | list | tuple):
                yield key, value, line
        line = self.arguments.line
        if self.kind in _OF_TRL:
            if "gradient_checkpointing" not in said:
                self.notes.append(f"gradient_checkpointing: not set, True as in TRL's {self.kind}")
                yield "gradient_checkpointing", True, line
            if self.kind == "SFTConfig" and "use_liger_kernel" not in said:
                yield "chunked_cross_entropy", True, line
            if self.kind in ("DPOConfig", "RewardConfig"):
                yield "stage", _OF_TRL[self.kind], line
        elif self.trainer is not None and self.trainer.short in ("DPOTrainer", "RewardTrainer"):
            yield "stage", {"D": "dpo", "R": "rm"}[self.trainer.short[0]], self.trainer.line
        if "gradient_checkpointing" not in said and self.kind not in _OF_TRL:
            yield from self.of_checkpoints()

    def at_run_time(self, key: str, value: Value) -> None:
        """Notes an argument that only running decides, if a plan would have it."""
        if key not in _OF_PLANS:
            return
        source = value.source if isinstance(value, Unknown) else f"a call of {value.name}"
        self.notes.append(f"{key} of {self.kind} is {source[:80]}: {LEFT_OPEN}")

    def of_checkpoints(self) -> Iterator[Option]:
        """Recompute that a call turns on beside the arguments."""
        for one in self.found.others:
            if one.short == "gradient_checkpointing_enable":
                yield "gradient_checkpointing", True, one.line
                return
            if one.short == "prepare_model_for_kbit_training":
                on = one.kwargs.get("use_gradient_checkpointing", True)
                if on is not False:
                    yield "gradient_checkpointing", True, one.line
                return

    def of_length(self, said: dict[str, Value]) -> Iterator[Option]:
        found = self.length_of_class(said) or self.length_of_calls() or self.length_of_names()
        if found is None and self.kind in ("SFTConfig", "DPOConfig", "RewardConfig") or (
            found is None and self.trainer is not None
            and self.trainer.short in ("SFTTrainer", "DPOTrainer")
        ):
            self.notes.append("max_length: not set, 1024 as in TRL")
            found = ("max_length", 1024, self.arguments.line)
        if found is not None:
            yield "max_length", found[1], found[2]

    def length_of_class(self, said: dict[str, Value]) -> Option | None:
        """The length that the arguments or the trainer have."""
        if self.kind == "GRPOConfig":
            parts = {key: said.get(key, usual) for key, usual in _GRPO_PARTS.items()}
            if not all(isinstance(one, int) for one in parts.values()):
                return None
            self.notes.append(
                "only the training of GRPO is read, each sequence as long as the longest prompt "
                f"and response: {' + '.join(map(str, parts.values()))}"
            )
            return "max_length", sum(parts.values()), self.arguments.line
        for one in filter(None, (self.arguments, self.trainer)):
            for key in ("max_length", "max_seq_length", "model_max_length", "max_seq_len",
                        "cutoff_len", "block_size"):  # fmt: skip
                value = one.kwargs.get(key)
                if isinstance(value, int) and value > 1:
                    return key, value, one.lines.get(key, one.line)
                if isinstance(value, Unknown | Call) and key in ("max_length", "max_seq_length"):
                    return key, f"${{{PLAIN.length[0]}}}", one.lines.get(key, one.line)
        return None

    def length_of_calls(self) -> Option | None:
        """The longest length to which a tokenizer cuts or fills up."""
        cuts = [
            one
            for one in self.found.others
            if any(key in one.kwargs for key in _LENGTH_CALLS)
            and isinstance(one.kwargs.get("max_length"), int)
            and one.short not in ("generate", "pipeline")
        ]
        loads = [
            (key, one.kwargs[key], one.line)
            for one in self.found.others
            for key in ("model_max_length", "max_seq_length", "seq_length", "block_size")
            if isinstance(one.kwargs.get(key), int) and one.kwargs[key] > 1
        ]
        handed = [
            (key, one.kwargs[key], one.lines.get(key, one.line))
            for one in self.found.others
            for key in ("max_length", "max_seq_length", "max_seq_len", "max_len", "block_size")
            if isinstance(one.kwargs.get(key), int) and one.kwargs[key] > 1
            and one.short not in ("generate", "pipeline", "Namespace")
        ]  # fmt: skip
        lengths = {one.kwargs["max_length"] for one in cuts}
        if not cuts:
            return next(iter([*loads[-1:], *handed[-1:]]), None)
        longest = max(cuts, key=lambda one: one.kwargs["max_length"])
        if len(lengths) > 1:
            self.notes.append(
                f"of the lengths {', '.join(map(str, sorted(lengths)))} the longest is read"
            )
        return "max_length", longest.kwargs["max_length"], longest.line

    def length_of_names(self) -> Option | None:
        """A constant or an option that is named as a length is."""
        names = (*PLAIN.length, "max_token_length", "max_tokens", "context_length", "ctx_len")
        for name, value in self.named():
            if name.lower() in names and isinstance(value, int) and value > 1:
                self.notes.append(f"the sequence length is {name} of {self.file}: {value}")
                return name, value, 1
        return None

    def named(self) -> Iterator[tuple[str, Any]]:
        yield from constants(self.script)
        for rows in self.script.known.options.rows.values():
            yield from rows.items()

    def of_loading(self) -> Iterator[Option]:
        """The model's name, the type of its weights and its attention."""
        model, trainer = self.model, self.trainer
        given = trainer.kwargs.get("model", next(iter(trainer.args), None)) if trainer else None
        if isinstance(given, str) and trainer is not None:
            yield "model_name_or_path", given, trainer.line
        elif (named := self.model_name()) is not None:
            yield named
        if model is None:
            return
        kernel = model.kwargs.get("attn_implementation")
        if model.kwargs.get("use_flash_attention_2") is True:
            kernel = "flash_attention_2"
        if isinstance(kernel, str):
            yield "attn_implementation", kernel, model.lines.get("attn_implementation", model.line)
        if self.half_weights(model):
            yield "pure_bf16", True, model.line

    def model_name(self) -> Option | None:
        """The name with which the model is loaded, else what is named as one is."""
        model = self.model
        names = [] if model is None else [
            *model.args[:1], model.kwargs.get("pretrained_model_name_or_path")
        ]  # fmt: skip
        for name in names:
            if isinstance(name, Call):  # a configuration, which names it
                name = next(iter(name.args), None)
            if isinstance(name, str) and model is not None:
                return "model_name_or_path", name, model.line
            if isinstance(name, Unknown):
                self.notes.append(f"the model's name is {name.source[:80]}: {LEFT_OPEN}")
        for one in self.found.others:
            for key, value in one.kwargs.items():
                if _NAMES_MODEL.fullmatch(key) and isinstance(value, str) and "/" in value:
                    self.notes.append(f"the model is taken to be {key} of {one.short}: {value}")
                    return "model_name_or_path", value, one.lines.get(key, one.line)
        for key, value in self.named():
            if _NAMES_MODEL.fullmatch(key.lower()) and isinstance(value, str) and value:
                self.notes.append(f"the model is taken to be {key} of {self.file}: {value}")
                return "model_name_or_path", value, 1
        return None

    def half_weights(self, model: Call) -> bool:
        """Whether weights that are all trained are kept as they are loaded, in bf16."""
        stated = model.kwargs.get("torch_dtype", model.kwargs.get("dtype"))
        name = stated.name if isinstance(stated, Call) else stated
        said = self.arguments.kwargs
        shards = said.get("deepspeed") or said.get("fsdp") or said.get("fp16") is True
        if self.adapted() or shards or not isinstance(name, str):
            return False
        if name == "auto":
            self.notes.append("the weights are loaded as they are stored: taken as bf16")
        return name == "auto" or name.endswith("bfloat16")

    def adapted(self) -> Call | None:
        """The configuration of the adapters that are trained, if any."""
        stated = [None] if self.trainer is None else [self.trainer.kwargs.get("peft_config")]
        linked = next((one for one in stated if isinstance(one, Call)), None)
        if linked in self.found.adapters or self.found.adapters:
            return linked if linked in self.found.adapters else self.found.adapters[-1]
        for one in self.found.others:  # a mapping that a function of another module takes
            for key, value in one.kwargs.items():
                if isinstance(value, dict) and value.keys() >= {"r", "lora_alpha"}:
                    line = one.lines.get(key, one.line)
                    return Call("LoraConfig", line, kwargs=dict(value))
        return None

    def of_adapters(self) -> Iterator[Option]:
        adapters = self.adapted()
        packed, eight = self.bits()
        if adapters is None:
            loads = _loaded_class(self.model) if self.model is not None else ""
            trains = [one for one in (*self.found.models, *self.found.others)
                      if one.kwargs.get("is_trainable") is True]  # fmt: skip
            if loads.startswith("AutoPeft") or trains:
                one = trains[0] if trains else self.model
                line = one.line if one is not None else 1
                self.notes.append("the adapters that are trained on are in a checkpoint")
                yield "finetuning_type", "qlora" if packed else "lora", line
            return
        for key, name in (("r", "lora_r"), ("lora_dropout", "lora_dropout"),
                          ("target_modules", "lora_target_modules"),
                          ("modules_to_save", "modules_to_save")):  # fmt: skip
            value = adapters.kwargs.get(key)
            if isinstance(value, str | int | float | list | tuple):
                yield name, value, adapters.lines.get(key, adapters.line)
            elif isinstance(value, Unknown | Call) and key == "r":
                yield name, "${lora_r}", adapters.lines.get(key, adapters.line)
            elif isinstance(value, Unknown):
                self.notes.append(f"{key} of LoraConfig is {value.source[:60]}: {LEFT_OPEN}")
        if adapters.kwargs.get("target_modules") is None:
            self.notes.append("target_modules: not set, q_proj and v_proj as in PEFT")
            yield "lora_target_modules", "q_proj v_proj", adapters.line
        yield "finetuning_type", "qlora" if packed else "lora", adapters.line
        if eight:
            yield "load_in_8bit", True, adapters.line

    def bits(self) -> tuple[bool, bool]:
        """Whether the frozen weights are stored in four bits, or in eight."""
        model = self.model
        stated = model.kwargs.get("quantization_config") if model is not None else None
        where = [one for one in (model, stated) if isinstance(one, Call)]
        if not isinstance(stated, Call) and stated is not None:
            where += self.found.quantized
        said = [one.kwargs for one in where]
        four = any(one.get("load_in_4bit") is True or one.get("bits") == 4 for one in said)
        eight = any(one.get("load_in_8bit") is True or one.get("bits") == 8 for one in said)
        return four, eight

    def sections(self) -> Iterator[Option]:
        """The arguments that hold keys themselves: DeepSpeed's and FSDP's."""
        for key in ("deepspeed", "fsdp_config"):
            value = self.arguments.kwargs.get(key)
            if isinstance(value, dict):
                yield key, value, self.arguments.lines.get(key, self.arguments.line)


def _argument(trainer: Call, known: list[Call]) -> Call | None:
    """The arguments that a trainer is made with."""
    given = [trainer.kwargs.get("args"), *trainer.args[:3]]
    return next((one for one in given if any(one is arguments for arguments in known)), None)
