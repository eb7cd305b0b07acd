"""Printed arguments of the Megatron family as the options that a launch would have given.

The framework's own table of options and its own reader take them from there, so that a log and a
script are read by the same rules.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from cost_models.package_files import table
from planner import frameworks
from planner.frameworks.arguments import known_arguments
from planner.frameworks.read_results import Reading, Unreadable
from planner.inputs.logs.megatron import words_of
from planner.inputs.logs.run_log import CodeBase

FRAMEWORKS: dict[CodeBase, str] = {
    "megatron-lm": "megatron",
    "megatron-deepspeed": "deepspeed",
    "megatron-bridge": "megatron",
    "mindspeed": "mindspeed",
}
Printed = Mapping[str, tuple[str, int]]

_NAMES = table("planner.inputs.logs", "names.json")
# Printed name -> the option that stores it, where the two differ.
STORED: dict[str, str] = _NAMES["stored_by"]
# Printed name -> the option that turns it off.
TURNED_OFF: dict[str, str] = _NAMES["turned_off_by"]
# What says the same as another that was printed too: the parser would refuse both.
SAME: dict[str, str] = _NAMES["same"]
# Options that matter for neither the model nor the plan, and whose values are people's paths.
PRIVATE = frozenset({"path", "dir", "file", "load", "save", "prefix", "wandb", "url"})
_NONE = ("None", "", "null")


def reading(code_base: CodeBase, printed: Printed, name: str, size: int | None) -> Reading:
    """What the framework reads from the printed arguments, its settings at the log's lines.

    Raises Unreadable.
    """
    framework = frameworks.get(FRAMEWORKS[code_base])
    module = f"planner.frameworks.{framework.name}"
    options = list(_options(known_arguments(module)["flags"], printed))
    lines = [0, *(line for _, line in options)]
    body = " \\\n".join(shlex.join(option) for option, _ in options)
    script = f"srun python pretrain_gpt.py \\\n{body}\n"
    if framework.read is None:
        raise Unreadable(f"launches of {framework.title} are not read")
    read = at_lines(framework.read({"launch.sh": script}, size), name, lines)
    # Refusals are those of a newer parser than the one that ran; the run itself was not refused.
    noise = ("CUDA_DEVICE_MAX_CONNECTIONS", "may add options", "the JSON ")
    assumed = tuple(note for note in read.assumed if not note.startswith(noise))
    return read.model_copy(update={"assumed": assumed, "refusals": ()})


def at_lines(reading: Reading, name: str, lines: Sequence[int]) -> Reading:
    """A reading with its settings at lines of a log: where each line that was read stands."""
    fields = {}
    for field in ("settings", "unknown", "unread"):
        items = getattr(reading, field)
        origins = [lines[item.line - 1] if 0 < item.line <= len(lines) else 0 for item in items]
        fields[field] = tuple(
            item.model_copy(update={"file": name, "line": line})
            for item, line in zip(items, origins, strict=True)
        )
    return reading.model_copy(update=fields)


def _allowed_words(row: Mapping[str, object], text: str) -> tuple[str, ...]:
    """The values of an option as words; none where it does not take them."""
    values = words_of(text)
    if "nargs" not in row:
        values = (",".join(values) if len(values) == 1 else f"[{','.join(values)}]",)
    choices = row.get("choices")
    return values if not isinstance(choices, list) or set(values) <= set(choices) else ()


def _options(
    known: Mapping[str, dict[str, object]], printed: Printed
) -> Iterator[tuple[list[str], int]]:
    """(the words of an option, the line of the log that prints it)."""
    for name, (text, line) in _old_names(printed).items():
        if text in _NONE or printed.get(SAME.get(name, ""), ("None", 0))[0] not in _NONE:
            continue
        plain = "--" + name.replace("_", "-")
        option = STORED.get(name, plain if plain in known else "")
        off = TURNED_OFF.get(name, f"--no-{plain[2:]}")
        kind = known.get(option, {}).get("kind")
        if kind == "switch":
            if text == "True":
                yield [option], line
        elif kind == "store" and PRIVATE.isdisjoint(name.split("_")):
            if option == plain and text in ("False", "True"):
                continue
            if values := _allowed_words(known[option], text):
                yield [option, *values], line
        elif text == "False" and off in known:
            yield [off], line


def _old_names(printed: Printed) -> dict[str, tuple[str, int]]:
    """The arguments with those of older versions as today's say them."""
    known = dict(printed)
    full, line = known.pop("checkpoint_activations", ("False", 0))
    if full == "True":
        layers = known.get("checkpoint_num_layers", ("1", line))
        known |= {
            "recompute_granularity": ("full", line),
            "recompute_method": ("uniform", line),
            "recompute_num_layers": layers,
        }
    rotary = known.get("use_rotary_position_embeddings", ("False", 0))[0] == "True"
    if known.get("add_position_embedding", ("True", 0))[0] == "False" and not rotary:
        known.setdefault("position_embedding_type", ("none", known["add_position_embedding"][1]))
    grouped = known.get("group_query_attention")
    if grouped is None and "num_query_groups" in known:
        # A configuration that has no switch for it says the number alone.
        known["group_query_attention"] = "True", known["num_query_groups"][1]
    elif grouped is not None and grouped[0] != "True":
        known.pop("num_query_groups", None)
    if known.get("recompute_granularity", ("None", 0))[0] in _NONE:
        for name in ("recompute_method", "recompute_num_layers"):
            known.pop(name, None)
    return known
