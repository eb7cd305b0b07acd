"""Reads the block of parsed arguments that Megatron-LM prints when it starts.

The arguments are translated back to options, and these are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_models.spec import ModelSpec
from planner.frameworks.bash import Argument, ProgramCall
from planner.frameworks.megatron import attribute_names
from planner.frameworks.read_results import Setting
from planner.frameworks.training_calls import World

EMPTY = (None, "", "null", "None", "none", "[]")
BLOCK = "- arguments -"
_PRINTED = re.compile(r"^\s*(?:\S+\s)?\s*([a-z_]\w*) \.{2,} (.*?)\s*$", re.MULTILINE)
_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True)
class TranslatedLaunch:
    """Another trainer's call translated to Megatron-LM's options, and what these cannot express.

    left: settings that were not looked up, by their own names.  training: TrainingSpec fields that
    have no options.
    """

    launch: ProgramCall
    model: ModelSpec | None
    world: World
    notes: tuple[str, ...]
    left: tuple[Setting, ...]
    training: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Namespace:
    """Printed arguments, and the processes of the job that printed them."""

    settings: tuple[Setting, ...]
    world: World

    def launch(self, fields: Mapping[str, Any]) -> ProgramCall:
        """A call with the equivalent options."""
        said = tuple(word for one in self.settings for word in words(one, fields))
        first = self.settings[0]
        program = Argument("pretrain_gpt.py", first.file, first.line)
        return ProgramCall(program=program, arguments=said)


def is_one(files: Mapping[str, str]) -> bool:
    """Whether some file has such a block."""
    return any(BLOCK in text and len(_PRINTED.findall(text)) > 20 for text in files.values())


def of_files(files: Mapping[str, str]) -> Namespace | None:
    """The first block in the files; None if there is none."""
    return next(
        (_printed(name, text) for name, text in files.items() if is_one({name: text})), None
    )


def words(setting: Setting, fields: Mapping[str, Any], sure: bool = True) -> Iterator[Argument]:
    """The option and values that set an attribute; sure: whether the value is in the files."""
    text = str(setting.value)
    if setting.value in EMPTY:
        return
    option = attribute_names.options().get(setting.name, "--" + setting.name.replace("_", "-"))
    row, truth = fields.get(option), _TRUTH.get(text.lower())
    said = Argument(option, setting.file, setting.line)
    if row is not None and row["kind"] == "switch":
        if truth is not None and truth is not attribute_names.turns_off(option):
            yield said
        return
    if truth is False:
        return
    yield said
    if row is None and truth:
        return
    several = row is not None and row.get("nargs") not in (None, 1, "?")
    for part in re.findall(r"[^\s,'\"\[\]]+", text) if several else [text]:
        yield Argument(part, setting.file, setting.line, sure)


def words_of(values: Mapping[str, Argument], fields: Mapping[str, Any]) -> Iterator[Argument]:
    """The options and values that set attributes."""
    for name, word in values.items():
        one = Setting(name=name, value=word.text, file=word.file, line=word.line)
        yield from words(one, fields, word.known)


def _printed(name: str, text: str) -> Namespace:
    block = text[text.index(BLOCK) :]
    first = text[: len(text) - len(block)].count("\n")
    found: dict[str, Setting] = {}
    for match in _PRINTED.finditer(block):
        line = first + block[: match.start(1)].count("\n") + 1
        found[match[1]] = Setting(name=match[1], value=match[2], file=name, line=line)
    size = found.pop("world_size", None)
    text_of_size = str(size.value) if size is not None else ""
    total = int(text_of_size) if re.fullmatch(r"[1-9]\d{0,6}", text_of_size) else None
    kept = tuple(one for key, one in found.items() if key not in _DERIVED)
    return Namespace(kept, World(None, None, total))


# Arguments that follow from others, or belong to the process that printed them.
_DERIVED = frozenset(
    {"data_parallel_size", "rank", "local_rank", "params_dtype", "consumed_train_samples"}
    | {"consumed_valid_samples", "virtual_pipeline_model_parallel_size", "main_params_dtype"}
    | {"exp_avg_dtype", "exp_avg_sq_dtype", "main_grads_dtype", "padded_vocab_size"}
    | {"encoder_num_layers", "encoder_seq_length", "deprecated_use_mcore_models"}
    | {"use_tokenizer_model_from_checkpoint_args", "add_position_embedding"}
    | {"transformer_pipeline_model_parallel_size", "start_weight_decay", "end_weight_decay"}
)
