"""The options of a script that change for another plan.

Both plans are written by the framework's own writer, so only options that the plan decides differ;
their present values and spellings come from the script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cost_models.plans import ParallelPlan
from planner.answers.lint.findings import FlagChange
from planner.answers.lint.spellings import spellings
from planner.documents.request import PlanRequest
from planner.frameworks.base import Flag, Framework, Unsupported
from planner.frameworks.read_results import Reading, Setting

ENVIRONMENT = "environment"  # the group of variables in what a framework writes
# Options whose defaults follow from other options.
_DERIVED = frozenset({"--padded-vocab-size", "gradient_accumulation_steps"})
# Options whose meaning, or default, depends on another field of the plan.
_DEPENDS_ON = {
    "--num-layers-per-virtual-pipeline-stage": "pp",
    "--expert-tensor-parallel-size": "tp",
    "zero_optimization.overlap_comm": "zero_stage",
}
# Options that no plan writes: with this value a field of the plan has one value only.
_HOLDS = {
    "--transformer-impl": ("local", "attention_kernel", "local layers have no fused attention"),
}
_NO_LAYOUT = {
    "pp": 1, "vpp": 1, "schedule": "1f1b", "first_stage_layers": 0, "last_stage_layers": 0,
    "stage_layers": (),
}  # fmt: skip


def launched(framework: Framework, request: PlanRequest, reading: Reading) -> dict[str, Flag]:
    """The options that the framework's writer gives the plan of a script, by name.

    A plan whose layers do not split is written without its pipeline, whose options are then those
    of the script.
    """
    try:
        return _options(framework, request, reading.plan)
    except Unsupported:
        plan = reading.plan.model_copy(update=_NO_LAYOUT)
    names = (name for field in _NO_LAYOUT for name in framework.fields[field].names)
    stated = ((name, _setting(framework, reading, name)) for name in names)
    pipeline = {
        name: Flag(name=name, value=said.value, why="") for name, said in stated if said is not None
    }
    return _options(framework, request, plan) | pipeline


def _options(framework: Framework, request: PlanRequest, plan: ParallelPlan) -> dict[str, Flag]:
    return {flag.name: flag for flag in framework.render(request, plan).flags}


def corrections(reading: Reading) -> tuple[FlagChange, ...]:
    """The misspelled options of a script that can mean only one, with their right names."""
    return tuple(
        FlagChange(
            option=refusal.meant, misspelled=said.name, before=_words(said), after=_words(said),
            why="misspelled", file=said.file, line=said.line,
        )
        for refusal in reading.refusals
        if refusal.meant and (said := refusal.setting) is not None and said.line
    )  # fmt: skip


def changes(
    framework: Framework,
    request: PlanRequest,
    reading: Reading,
    plan: ParallelPlan,
    environment: Mapping[str, str],
    goal: PlanRequest | None = None,
) -> tuple[FlagChange, ...]:
    """The options to change in a script, in the order in which the framework writes them.

    environment: the variables that the script sets.  goal: the request of the plan, if it is not
    the script's.
    """
    before = launched(framework, request, reading)
    after = _options(framework, goal or request, plan)
    names = dict.fromkeys([*after, *before])
    moved = {
        name
        for name, field in _DEPENDS_ON.items()
        if getattr(plan, field) != getattr(reading.plan, field)
    }
    found: dict[str, FlagChange] = {}
    for name in names:
        pair = before.get(name), after.get(name)
        if any(flag is not None and flag.group == ENVIRONMENT for flag in pair):
            changed = _variable(reading, environment, *pair)
        else:
            changed = _change(framework, reading, *pair, moved)
        for change in changed:
            found.setdefault(change.option, change)  # an alias of two options is removed once
    for option, (value, field, why) in _HOLDS.items():
        said = reading.find(option)
        differs = getattr(plan, field) != getattr(reading.plan, field)
        if said is not None and said.value == value and differs:
            found.setdefault(option, _removed(said, why))
    return tuple(found.values())


def _change(
    framework: Framework, reading: Reading, before: Flag | None, after: Flag | None, moved: set[str]
) -> Iterator[FlagChange]:
    written = after or before
    assert written is not None
    said = _setting(framework, reading, written.name)
    if _value(before) == _value(after) and (said.name if said else written.name) not in moved:
        return
    if said is None:
        if after is not None and written.name not in _DERIVED:
            yield FlagChange(option=after.name, before=None, after=_value(after), why=after.why)
        return
    if after is None:
        yield _removed(said, "no longer needed")
    elif said.name != written.name:
        yield _removed(said, f"replaced by {after.name}")
        yield FlagChange(option=after.name, before=None, after=_value(after), why=after.why)
    elif _without_quotes(_words(said)) != _without_quotes(_value(after)):
        yield FlagChange(
            option=after.name, before=_words(said), after=_value(after), why=after.why,
            file=said.file, line=said.line,
        )  # fmt: skip


def _removed(said: Setting, why: str) -> FlagChange:
    return FlagChange(
        option=said.name, before=_words(said), after=None, why=why, file=said.file, line=said.line
    )


def _variable(
    reading: Reading, environment: Mapping[str, str], before: Flag | None, after: Flag | None
) -> Iterator[FlagChange]:
    """The change of a variable, if its value differs; a variable too many does no harm."""
    if after is None:
        return
    said = reading.find(after.name)
    missed = any(after.name in text for text in reading.assumed)
    there = environment.get(after.name, None if missed else _value(before))
    there = _words(said) if said else there
    if there != _value(after):
        yield FlagChange(
            option=after.name, before=there, after=_value(after), why=after.why,
            file=said.file if said else "", line=said.line if said else 0,
        )  # fmt: skip


def _setting(framework: Framework, reading: Reading, name: str) -> Setting | None:
    found = (reading.find(spelling) for spelling in spellings(framework.name, name))
    return next((said for said in found if said is not None), None)


def _words(setting: Setting) -> str:
    return _joined(setting.value)


def _without_quotes(text: str | None) -> str:
    """The value without the quotes that a format may put around it."""
    return (text or "").strip("\"'")


def _value(flag: Flag | None) -> str | None:
    return None if flag is None else _joined(flag.value)


def _joined(value: str | tuple[str, ...] | None) -> str:
    return "" if value is None else value if isinstance(value, str) else " ".join(value)
