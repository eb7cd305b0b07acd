"""Translates between Megatron-LM's options and the attributes that its parser sets from them.

Other frameworks set the same attributes in files of their own: Primus in YAML, verl as overrides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from planner.frameworks.arguments import Arguments, known_arguments
from planner.frameworks.base import Field, Flag
from planner.frameworks.bash import Argument
from planner.frameworks.megatron.options import OPTIONS
from planner.frameworks.read_results import Unreadable

PACKAGE = "planner.frameworks.megatron"
# Switches whose attribute keeps the prefix `no`.
_KEPT = frozenset(
    f"--no-{what}"
    for what in ("load-optim", "load-rng", "save-optim", "save-rng", "persist-layer-norm")
)
# Field of Megatron-Core's configurations -> the parser's other name for it.
_CORE = {
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "grad_reduce_in_fp32": "accumulate_allreduce_grads_in_fp32",
}
_OF_CORE = {name: field for field, name in _CORE.items()}


def _row(option: str) -> dict[str, Any]:
    found: dict[str, Any] = known_arguments(PACKAGE)["flags"][option]
    return found


def is_switch(option: str) -> bool:
    return bool(_row(option)["kind"] == "switch")


def turns_off(option: str) -> bool:
    """Whether an option is a switch that sets its attribute to false."""
    if option in OPTIONS and OPTIONS[option].off:
        return True
    return option.startswith("--no-") and is_switch(option) and option not in _KEPT


def attribute(option: str) -> str:
    """The attribute that an option sets."""
    if option == "--no-position-embedding":
        return "add_position_embedding"
    if option in OPTIONS and (name := OPTIONS[option].attribute):
        return name
    return option.removeprefix("--no-" if turns_off(option) else "--").replace("-", "_")


def of_core(field: str) -> str:
    """The attribute for a field of Megatron-Core's configurations, or for an attribute itself."""
    return _CORE.get(field, field)


def core_name(option: str) -> str:
    """The field of Megatron-Core's configurations that an option sets."""
    name = attribute(option)
    return _OF_CORE.get(name, name)


def _has_numbers(option: str) -> bool:
    """Whether the option's value holds several numbers: a pair, or one per layer."""
    return option in OPTIONS and OPTIONS[option].numbers


def value(flag: Flag) -> Any:
    """What an option sets its attribute to."""
    row, words = _row(flag.name), flag.words[1:]
    if is_switch(flag.name):
        return not turns_off(flag.name)
    if _has_numbers(flag.name):
        return _numbers(words[0])
    kind = {"int": int, "float": float}.get(row.get("type", "str"), str)
    made = [kind(word) for word in words]
    return made if row.get("nargs", 1) in ("+", "*") else made[0]


def _numbers(text: str) -> int | list[int]:
    """The value of `127,0`, `4` or `[0]*1+[1]*2`."""
    if "[" not in text:
        found = [int(part) for part in text.split(",")]
        return found if len(found) > 1 else found[0]
    runs = re.findall(r"\[([\d,\s]+)\](?:\*(\d+))?", text)
    return [int(digit) for digits, times in runs for digit in digits.split(",") * int(times or 1)]


@cache
def options() -> dict[str, str]:
    """Attribute -> the option that sets it; one that turns on goes before one that turns off."""
    every = sorted(known_arguments(PACKAGE)["flags"], key=turns_off, reverse=True)
    return {attribute(option): option for option in every}


def words(option: str, given: Any) -> Iterator[str]:
    """The words of a command line that set the option's attribute; none if it keeps its default.

    Raises ValueError if no words can set it.
    """
    if given is None:
        return
    if is_switch(option):
        if given not in (True, False):
            raise ValueError("must be true or false")
        if bool(given) is not turns_off(option):
            yield option
        return
    yield option
    if not isinstance(given, list):
        yield str(given)
    elif option == "--window-size":
        yield ",".join(map(str, given))
    elif _has_numbers(option):
        yield str(given)
    else:
        yield from map(str, given)


def take(args: Arguments, option: str, value: Any, name: str, file: str, line: int) -> None:
    """Sets an option to the value of its attribute; a value with ${ in it is not known.

    name: of the setting in the file.  Raises Unreadable if no words set the option so.
    """
    try:
        said = [Argument(one, file, line, "${" not in one) for one in words(option, value)]
    except ValueError as error:
        raise Unreadable(f"{name} {error}, got {str(value)[:60]!r}", file, line) from None
    if said:
        row = args.known[option]
        args.option(option, said[0], said[1:], 0 if is_switch(option) else row.get("nargs", 1))


def with_keys(
    fields: Mapping[str, Field], key: Callable[[str], str] = attribute
) -> dict[str, Field]:
    """Fields of a plan with keys in place of Megatron-LM's options.

    key: that of an option; empty: it has none.  Other names, such as a launcher's, stay.
    """

    def named(name: str) -> str:
        return key(name) if name in options().values() else name

    return {
        name: replace(
            one,
            names=tuple(dict.fromkeys(filter(None, map(named, one.names)))),
            note=in_keys(one.note),
        )
        for name, one in fields.items()
    }


def in_keys(text: str) -> str:
    """A text with each option in it replaced by its attribute."""
    return respelled(
        text, lambda one: f"{attribute(one)}: false" if turns_off(one) else attribute(one)
    )


def respelled(text: str, spell: Callable[[str], str]) -> str:
    """A text with each option of Megatron-LM in it replaced by another name."""

    def said(match: re.Match[str]) -> str:
        return spell(match[0]) if match[0] in known_arguments(PACKAGE)["flags"] else match[0]

    return re.sub(r"--[a-z0-9][a-z0-9-]*", said, text)
