"""In how many bits a Python script stores the weights of the model that it loads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.frameworks.python.static_values import Call, Unknown

# How a note ends on what only running decides.
LEFT_OPEN = "known only at run time"
_MOST_WRAPPED = 12


def of_model(model: Call | None, quantised: Sequence[Call], notes: list[str]) -> tuple[bool, bool]:
    """Whether the frozen weights are stored in four bits, or in eight.

    quantised: the configurations that the script makes.  notes: are told what is assumed.
    """
    loads = list(_loads(model))
    stated = [one.kwargs.get("quantization_config") for one in loads]
    where = [one.kwargs for one in (*loads, *stated) if isinstance(one, Call)]
    if any(one is not None and not isinstance(one, Call) for one in stated):
        where += [one.kwargs for one in quantised]
    for one in where:
        if isinstance(one.get("load_in_4bit"), Unknown) and "bnb_4bit_quant_type" in one:
            notes.append(f"load_in_4bit, {LEFT_OPEN}, is taken as on beside its type")
            one["load_in_4bit"] = True
    four = any(one.get("load_in_4bit") is True or one.get("bits") == 4 for one in where)
    eight = any(one.get("load_in_8bit") is True or one.get("bits") == 8 for one in where)
    return four, eight


def _loads(model: Call | None) -> Iterator[Call]:
    """The calls that load a model: its own, and that of the one inside it."""
    one = model
    for _ in range(_MOST_WRAPPED):
        if not isinstance(one, Call):
            return
        yield one
        one = next(iter(one.args), one.kwargs.get("model"))
