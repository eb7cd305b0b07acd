"""Translates between Megatron-LM's options and the attributes that its parser sets from them.

Other frameworks set the same attributes in files of their own: Primus in YAML, verl as overrides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from planner.frameworks.arguments import known_arguments
from planner.frameworks.base import Flag

PACKAGE = "planner.frameworks.megatron"
# Options whose attribute has another name, and switches that turn such an attribute off.
_RENAMED = {"--norm-epsilon": "layernorm_epsilon", "--fp8-format": "fp8", "--fp4-format": "fp4"}
_OFF = {
    "--disable-bias-linear": "add_bias_linear",
    "--no-rope-fusion": "apply_rope_fusion",
    "--no-overlap-p2p-communication": "overlap_p2p_comm",
    "--no-position-embedding": "add_position_embedding",
}
# Switches whose attribute keeps the prefix `no`.
_KEPT = frozenset(
    f"--no-{what}"
    for what in ("load-optim", "load-rng", "save-optim", "save-rng", "persist-layer-norm")
)
# Options whose value holds several numbers: a pair, or one per layer.
_NUMBERS = frozenset(
    {
        "--linear-attention-freq",
        "--moe-layer-freq",
        "--no-rope-freq",
        "--window-attn-skip-freq",
        "--window-size",
    }
)


def _row(option: str) -> dict[str, Any]:
    found: dict[str, Any] = known_arguments(PACKAGE)["flags"][option]
    return found


def turns_off(option: str) -> bool:
    """Whether an option is a switch that sets its attribute to false."""
    said = option.startswith("--no-") and _row(option)["kind"] == "switch"
    return option in _OFF or (said and option not in _KEPT)


def attribute(option: str) -> str:
    """The attribute that an option sets."""
    if name := {**_RENAMED, **_OFF}.get(option):
        return name
    return option.removeprefix("--no-" if turns_off(option) else "--").replace("-", "_")


def value(flag: Flag) -> Any:
    """What an option sets its attribute to."""
    row, words = _row(flag.name), flag.words[1:]
    if row["kind"] == "switch":
        return not turns_off(flag.name)
    if flag.name in _NUMBERS:
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
    if _row(option)["kind"] == "switch":
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
    elif option in _NUMBERS:
        yield str(given)
    else:
        yield from map(str, given)


def in_keys(text: str) -> str:
    """A text with each option in it replaced by its attribute."""

    def key(match: re.Match[str]) -> str:
        known = match[0] in known_arguments(PACKAGE)["flags"]
        said = attribute(match[0]) if known else match[0]
        return f"{said}: false" if known and turns_off(match[0]) else said

    return re.sub(r"--[a-z0-9][a-z0-9-]*", key, text)
