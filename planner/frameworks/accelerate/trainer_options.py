"""The options of a Trainer that the calls of a Python script amount to.

Defaults are those of transformers 4.5 and 5, of PEFT 0.18 and of TRL 0.24.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from planner.frameworks import training_calls
from planner.frameworks.accelerate import frozen_bits, trl_releases
from planner.frameworks.accelerate import trainer_calls as calls
from planner.frameworks.accelerate.frozen_bits import LEFT_OPEN
from planner.frameworks.accelerate.trainer_keys import GRPO_PARTS, PARTS, PLAIN
from planner.frameworks.accelerate.tuning import WIDENED
from planner.frameworks.python.scripts import Script, constants
from planner.frameworks.python.static_values import Call, Unknown, Value
from planner.frameworks.read_results import OtherTraining, Unreadable

# Name, value and line.
Option = tuple[str, Any, int]
# Arguments that a plan has: without their values nothing can be planned, or it is said.
_ASKED = ("per_device_train_batch_size", "gradient_accumulation_steps", "deepspeed", "fsdp")
_SHARDS = ("deepspeed", "fsdp")  # as if they were not set, which is said
_SAID = ("gradient_checkpointing", "bf16", "fp16", "optim", "torch_compile", "**",
         "use_liger_kernel", "fsdp_config")  # fmt: skip
# Arguments of a loss, by which a YAML's reader would know it.
_OF_LOSS = ("loss_type", "beta", "max_prompt_length", "max_completion_length", "num_generations",
            "max_target_length")  # fmt: skip
_NOT_HERE = (*PLAIN.length, *_OF_LOSS)
_LENGTHS = ("max_length", "max_seq_length", "model_max_length", "max_seq_len", "cutoff_len",
            "block_size")  # fmt: skip
_CUTS = ("truncation", "padding")
_OF_NAMES = (*PLAIN.length, "max_token_length", "max_tokens", "context_length", "ctx_len")
_NO_CUT = ("generate", "pipeline", "Namespace")
_WITH_LENGTH = (*calls.OF_PAIRS, "SFTConfig", "SFTTrainer", "DPOTrainer")
_USUAL_LENGTH = 1024
_MODEL = re.compile(
    r"((base|pretrained|student|policy|llm|lm|hf)_?)?model(_?(name|path|id|checkpoint))?(_or_path)?|"
    r"(base_)?model_name(_or_path)?|checkpoint|pretrained(_model)?(_name)?(_or_path)?"
)
_ADAPTERS = (("r", "lora_r"), ("lora_dropout", "lora_dropout"),
             ("target_modules", "lora_target_modules"),
             ("modules_to_save", "modules_to_save"), ("use_dora", "use_dora"),
             ("layers_to_transform", "layers_to_transform"))  # fmt: skip
_PREPARES = (WIDENED, "prepare_model_for_int8_training")
# Models that are never trained, by their names.
_NOT_TRAINED = re.compile(r"ref|teacher|reward|judge|embedder", re.IGNORECASE)
_MOST_WRAPPED = 12


def _handed(call: Call) -> dict[str, Value]:
    """The arguments of a call, and those that it hands on to a function (datasets' map)."""
    inner = call.kwargs.get("fn_kwargs")
    return {**(inner if isinstance(inner, dict) else {}), **call.kwargs}


class Options:
    """The options of the last trainer of a script.

    notes: are told what is assumed.  told: the options that the user gives.
    """

    def __init__(
        self,
        script: Script,
        found: calls.Calls,
        file: str,
        notes: list[str],
        told: Collection[str] = (),
    ) -> None:
        self.script, self.found, self.file, self.notes = script, found, file, notes
        self.trainer = self._trainer()
        said = self.trainer and calls.arguments_of(self.trainer, found.arguments)
        self.arguments = said or found.arguments[-1]
        self.kind = calls.class_of(self.arguments)
        self.model = self._model()
        self.adapters = self._adapters()
        self._refuse()
        if "finetuning_type" not in told:
            self._refuse_unseen()
            self._refuse_frozen()

    def _trainer(self) -> Call | None:
        made = [one for one in self.found.trainers
                if calls.arguments_of(one, self.found.arguments)]  # fmt: skip
        if len(made) > 1:
            self.notes.append(f"of {len(made)} trainers in {self.file} the last one is read")
        last = next(reversed(made or self.found.trainers), None)
        if last is not None and (note := calls.uncosted_step_warning(last)):
            self.notes.append(note)
        return last

    @property
    def _trained(self) -> Value:
        """What the trainer is given as its model."""
        if self.trainer is None:
            return None
        return self.trainer.kwargs.get("model", next(iter(self.trainer.args), None))

    def _model(self) -> Call | None:
        """The call that loads what is trained, else the last one before the trainer is made."""
        given = self._trained
        for _ in range(_MOST_WRAPPED):
            if not isinstance(given, Call) or calls.among(given, self.found.models):
                break
            inner = next(iter(given.args), given.kwargs.get("model"))
            given = inner if isinstance(inner, Call) else given.owner
        if isinstance(given, Call) and calls.among(given, self.found.models):
            return given
        before = self.found.models[: self.found.loaded] or self.found.models
        return before[-1] if before else None

    def _adapters(self) -> Call | None:
        """The configuration of the adapters that are trained, if any."""
        linked = self.trainer.kwargs.get("peft_config") if self.trainer is not None else None
        if isinstance(linked, Call) and calls.among(linked, self.found.adapters):
            return linked
        if self.found.adapters:
            return self.found.adapters[-1]
        for one in self.found.others:  # a mapping that a function of another module takes
            for key, value in one.kwargs.items():
                if isinstance(value, dict) and value.keys() >= {"r", "lora_alpha"}:
                    return Call("LoraConfig", one.lines.get(key, one.line), kwargs=dict(value))
        return calls.given_adapters(self.found.others)

    def _refuse(self) -> None:
        """Raises OtherTraining where no plan stands for what is trained."""
        kind, line = self.kind, self.arguments.line
        if kind in calls.PLAIN:
            kind = calls.config_of_trainer(self.trainer) or kind
        if calls.PAIRED_OTHERWISE.fullmatch(kind):
            text = f"the loss of {kind} cannot be planned: only sft, dpo and reward"
            raise OtherTraining(text, self.file, line)
        if calls.GENERATING.fullmatch(kind):
            text = f"{kind} also generates samples: its step cannot be read, planner rl has it"
            raise OtherTraining(text, self.file, line)
        if self.model is not None and kind != "RewardConfig":
            loads = calls.loaded_class(self.model)
            if calls.OTHER_HEADS.match(loads):
                text = f"{loads} is no decoder of the next token: {training_calls.DECODERS_ONLY}"
                raise OtherTraining(text, self.file, self.model.line)
        for one in self.found.others:
            if one.short in calls.ADDS_PARTS:
                text = f"{one.short} adds parts to the model, which no plan has"
                raise OtherTraining(text, self.file, one.line)

    def _refuse_unseen(self) -> None:
        """Raises Unreadable where a function that is not here makes what is trained."""
        given = self._trained
        seen = self.model is not None or isinstance(given, str) or self.adapters is not None
        if self.trainer is None or seen or given is None:
            return
        what = given.source if isinstance(given, Unknown) else getattr(given, "name", "its model")
        text = (
            f"what makes {what[:60]}, all of whose weights may be trained or adapters alone, is "
            "not among the files: give it, or --set finetuning_type=full (or lora) and --model"
        )
        raise Unreadable(text, self.file, self.trainer.line)

    def _refuse_frozen(self) -> None:
        """Raises Unreadable where weights of what is trained are frozen, without adapters."""
        for one in self.script.frozen if self.adapters is None else ():
            other = isinstance(one.owner, Call) and calls.among(one.owner, self.found.models)
            if other and one.owner is not self.model:
                continue
            whose = getattr(one.owner, "name", getattr(one.owner, "source", ""))
            if not _NOT_TRAINED.search(whose):
                text = (
                    f"{one.says}: which weights a script freezes itself is not followed: "
                    "--set finetuning_type=full plans all of them as trained"
                )
                raise Unreadable(text, one.file, one.line)

    # What the calls say.

    def all(self) -> Iterator[Option]:
        """Each option, a default of TRL's own at the line of its class."""
        yield from self._of_arguments()
        yield from self._of_class()
        yield from self._of_length()
        yield from self._of_model()
        yield from self._of_adapters()

    def sections(self) -> dict[str, dict[str, Any]]:
        """The arguments that hold keys themselves: DeepSpeed's and FSDP's."""
        said = {key: self.arguments.kwargs.get(key) for key in ("deepspeed", "fsdp_config")}
        return {key: value for key, value in said.items() if isinstance(value, dict)}

    def _of_arguments(self) -> Iterator[Option]:
        for key, value in self.arguments.kwargs.items():
            line = self.arguments.lines.get(key, self.arguments.line)
            if isinstance(value, Unknown | Call):
                yield from self._open(key, value, line)
            elif isinstance(value, str | int | float | list | tuple) and key not in _NOT_HERE:
                yield key, value, line

    def _open(self, key: str, value: Unknown | Call, line: int) -> Iterator[Option]:
        """What only running decides: asked for if nothing can be planned without it, else said."""
        source = value.source if isinstance(value, Unknown) else f"a call of {value.name}"
        if key in _SHARDS and "$" not in source:
            self.notes.append(f"{key} of {self.kind} is {source[:80]}, {LEFT_OPEN}")
        elif key in _ASKED:
            yield key, source if "$" in source else f"${{{key}}}", line
        elif key in _SAID:
            self.notes.append(f"{key} of {self.kind} is {source[:80]}: {LEFT_OPEN}")

    def _of_class(self) -> Iterator[Option]:
        """The loss of a class, and its own defaults."""
        said, line = self.arguments.kwargs, self.arguments.line
        for name in (self.kind, calls.config_of_trainer(self.trainer)):
            if name in calls.OF_PAIRS:
                yield "stage", calls.OF_TRL[name], line
                break
        own = trl_releases.defaults(self.script.files, said)
        self.notes += own.notes if self.kind in calls.OF_TRL else []
        if self.kind == "SFTConfig" and "use_liger_kernel" not in said and own.chunks_loss:
            yield "chunked_cross_entropy", True, line
        if "gradient_checkpointing" in said:
            return
        if self.kind in calls.OF_TRL and own.checkpoints:
            self.notes.append(f"gradient_checkpointing: not set, True as in TRL's {self.kind}")
            yield "gradient_checkpointing", True, line
        elif (turned_on := self._checkpointing()) is not None:
            yield "gradient_checkpointing", True, turned_on.line

    def _checkpointing(self) -> Call | None:
        """The call that has layers computed again, beside the arguments."""
        for one in self.found.others:
            prepared = one.short in _PREPARES
            on = one.kwargs.get("use_gradient_checkpointing", True) is not False
            if one.short == "gradient_checkpointing_enable" or (prepared and on):
                return one
        return None

    # The length of a sequence.

    def _of_length(self) -> Iterator[Option]:
        found = self._length_of_class() or self._length_of_calls() or self._length_of_names()
        kinds = {self.kind, self.trainer.short if self.trainer is not None else ""}
        if found is None and kinds.intersection(_WITH_LENGTH):
            self.notes.append(f"max_length: not set, {_USUAL_LENGTH} as in TRL")
            found = _USUAL_LENGTH, self.arguments.line
        if found is not None:
            yield "max_length", *found

    def _length_of_class(self) -> tuple[Value, int] | None:
        """The length that the arguments or the trainer have."""
        if self.kind == "GRPOConfig":
            return self._length_of_grpo()
        for one in filter(None, (self.arguments, self.trainer)):
            for key in _LENGTHS:
                value, line = one.kwargs.get(key), one.lines.get(key, one.line)
                if isinstance(value, int) and value > 1:
                    return value, line
                if isinstance(value, Unknown | Call) and key in _LENGTHS[:2]:
                    return f"${{{PLAIN.length[0]}}}", line
        return None

    def _length_of_grpo(self) -> tuple[Value, int] | None:
        parts = {key: self.arguments.kwargs.get(key, usual) for key, usual in GRPO_PARTS.items()}
        if not all(isinstance(one, int) for one in parts.values()):
            return None
        self.notes.append(
            "only the training of GRPO is read, each sequence as long as the longest prompt and "
            f"response: {' + '.join(map(str, parts.values()))}"
        )
        return sum(parts.values()), self.arguments.line

    def _length_of_calls(self) -> tuple[Value, int] | None:
        """The longest length to which a tokenizer cuts or fills up, else one handed to a call."""
        handed = ((one, _handed(one)) for one in self.found.others if one.short not in _NO_CUT)
        stated = [
            (one, said[key], one.lines.get(key, one.line))
            for one, said in handed
            for key in _LENGTHS
            if isinstance(said.get(key), int) and said[key] > 1 and not calls.is_no_limit(said[key])
        ]
        cuts = [
            (value, line) for one, value, line in stated if any(key in one.kwargs for key in _CUTS)
        ]
        if not cuts:
            return next(((value, line) for _, value, line in reversed(stated)), None)
        if len(lengths := sorted({value for value, _ in cuts})) > 1:
            each = ", ".join(map(str, lengths))
            self.notes.append(f"of the lengths {each} the longest is read")
        return max(cuts)

    def _length_of_names(self) -> tuple[Value, int] | None:
        """A constant or an option that is named as a length is, or two of the parts of a sample."""
        named = dict(self._named())
        for parts in PARTS:
            if all(isinstance(named.get(one), int) for one in parts):
                total = sum(named[one] for one in parts)
                self.notes.append(f"the sequence length is {' + '.join(parts)}: {total}")
                return total, 1
        for name, value in self._named():
            if name.lower() in _OF_NAMES and isinstance(value, int) and value > 1:
                self.notes.append(f"the sequence length is {name} of {self.file}: {value}")
                return value, 1
        return None

    def _named(self) -> Iterator[tuple[str, Any]]:
        yield from constants(self.script)
        for rows in self.script.known.options.rows.values():
            yield from rows.items()

    # The model.

    def _of_model(self) -> Iterator[Option]:
        """The model's name, its attention, and whether its weights stay in half precision."""
        given, model = self._trained, self.model
        if isinstance(given, str) and self.trainer is not None:
            yield "model_name_or_path", given, self.trainer.line
        elif (named := self._name() or self._name_of_others()) is not None:
            yield named
        if model is None:
            return
        kernel = model.kwargs.get("attn_implementation")
        if model.kwargs.get("use_flash_attention_2") is True:
            kernel = "flash_attention_2"
        if isinstance(kernel, str):
            yield "attn_implementation", kernel, model.lines.get("attn_implementation", model.line)
        if self._keeps_half(model):
            yield "pure_bf16", True, model.line

    def _name(self) -> Option | None:
        """The name with which the model is loaded."""
        model = self.model
        if model is None:
            return None
        for name in (*model.args[:1], model.kwargs.get("pretrained_model_name_or_path")):
            inner = next(iter(name.args), None) if isinstance(name, Call) else name
            if isinstance(inner, str):
                return "model_name_or_path", inner, model.line
            if isinstance(inner, Unknown):
                self.notes.append(f"the model's name is {inner.source[:80]}: {LEFT_OPEN}")
        return None

    def _name_of_others(self) -> Option | None:
        """A name that is handed to another call, or that stands in the script, as a model's."""
        for one in self.found.others:
            for key, value in one.kwargs.items():
                if _MODEL.fullmatch(key) and isinstance(value, str) and "/" in value:
                    self.notes.append(f"the model is taken to be {key} of {one.short}: {value}")
                    return "model_name_or_path", value, one.lines.get(key, one.line)
        for key, value in self._named():
            if _MODEL.fullmatch(key.lower()) and calls.may_name(value):
                self.notes.append(f"the model is taken to be {key} of {self.file}: {value}")
                return "model_name_or_path", value, 1
        return None

    def _keeps_half(self, model: Call) -> bool:
        """Whether weights that are all trained are kept as they are loaded, in bf16."""
        stated = model.kwargs.get("torch_dtype", model.kwargs.get("dtype"))
        name = stated.name if isinstance(stated, Call) else stated
        said = self.arguments.kwargs
        shards = said.get("deepspeed") or said.get("fsdp") or said.get("fp16") is True
        if self.adapters is not None or shards or not isinstance(name, str):
            return False
        if name == "auto":
            self.notes.append("the weights are loaded as they are stored: taken as bf16")
        return name == "auto" or name.endswith("bfloat16")

    # Adapters.

    def _of_adapters(self) -> Iterator[Option]:
        four, eight = frozen_bits.of_model(self.model, self.found.quantised, self.notes)
        kind, adapters = "qlora" if four else "lora", self.adapters
        if adapters is None:
            yield from self._of_checkpoint(kind)
            return
        for key, name in _ADAPTERS:
            value, line = adapters.kwargs.get(key), adapters.lines.get(key, adapters.line)
            if isinstance(value, str | int | float | list | tuple):
                yield name, value, line
            elif isinstance(value, Unknown | Call) and key == "r":
                yield name, "${lora_r}", line
            elif isinstance(value, Unknown | Call):
                source = value.source if isinstance(value, Unknown) else f"a call of {value.name}"
                self.notes.append(f"{key} of LoraConfig is {source[:60]}: {LEFT_OPEN}")
        if adapters.kwargs.get("target_modules") is None:
            self.notes.append("target_modules: not set, q_proj and v_proj as in PEFT")
            yield "lora_target_modules", "q_proj v_proj", adapters.line
        yield "finetuning_type", kind, adapters.line
        prepared = next((one for one in self.found.others if one.short in _PREPARES), None)
        if four and prepared is not None:
            yield WIDENED, True, prepared.line
        if eight:
            yield "load_in_8bit", True, adapters.line

    def _of_checkpoint(self, kind: str) -> Iterator[Option]:
        """Adapters that are in a checkpoint and trained on."""
        loads = [*self.found.models, *self.found.others]
        trained = next((one for one in loads if one.kwargs.get("is_trainable") is True), None)
        if trained is not None:
            self.notes.append("the adapters trained on are in a checkpoint: a rank of 8 is taken")
            yield "finetuning_type", kind, trained.line
