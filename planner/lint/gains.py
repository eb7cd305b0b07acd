"""A slow choice's finding: what an iteration takes with that one thing changed.

What a choice costs is never a constant: the plan is priced again, and the finding is kept where
that saves MINIMUM_GAIN of the iteration, or where the choice is a fault whatever it costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from planner.documents.formats import seconds, share, size
from planner.lint.case import MINIMUM_GAIN, Case, Neighbour, finding
from planner.lint.findings import Finding, Severity

# Share of the accelerator's memory that is worth a word where no time is saved.
MINIMUM_SAVED = 0.02


def slow(
    case: Case,
    code: str,
    severity: Severity,
    text: str,
    changes: Iterable[Mapping[str, Any]],
    about: tuple[str, ...],
    base: Mapping[str, Any] | None = None,
    before_s: float | None = None,
    words: str = "",
    same_work: bool = False,
) -> Iterator[Finding]:
    """The finding, where the fastest of some changes saves enough time, and likely does.

    base: what all of the changes go with, and what an iteration takes with that alone.
    words: for the change, where its fields do not speak for themselves.
    same_work: the change only hides or leaves out work, so that no doubt of the model matters.
    """
    own = case.own
    found = case.fastest(changes, base) if own is not None else None
    if own is None or found is None:
        return
    before = own.iteration_time_s if before_s is None else before_s
    gain = 1.0 - found.seconds / before
    if gain >= MINIMUM_GAIN and (same_work or case.likely_faster(found)):
        text = f"{text}: {saves(found, before, words)}"
        yield finding(code, severity, text, case.place(*about), gain=gain, set=found.set)


def saves(neighbour: Neighbour, before: float, words: str = "") -> str:
    """What a change does to an iteration that took `before` seconds; words: for the change."""
    usual = {"recompute_num_layers": 0, "schedule": "interleaved-1f1b", "recompute_method": "block"}
    words = words or ", ".join(
        f"{name} {_word(value)}"
        for name, value in neighbour.set.items()
        if value not in ((), usual.get(name))
    )
    return (
        f"with {words}, an iteration takes {seconds(neighbour.seconds)} and not {seconds(before)}, "
        f"{share(1.0 - neighbour.seconds / before)} less"
    )


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


def wasteful(
    case: Case, code: str, text: str, change: dict[str, Any], about: tuple[str, ...]
) -> Iterator[Finding]:
    """The finding, where a change saves memory or time worth a word."""
    own = case.own
    found = case.fastest([change], fitting=False) if own is not None else None
    if own is None or found is None:
        return
    saved = own.memory.peak_bytes - found.peak_bytes
    gain = 1.0 - found.seconds / own.iteration_time_s
    if saved >= MINIMUM_SAVED * case.capacity_bytes or gain >= MINIMUM_GAIN:
        worst = f"{size(saved)} more than needed on the fullest stage" if saved > 0 else ""
        faster = saves(found, own.iteration_time_s) if gain >= MINIMUM_GAIN else ""
        yield finding(
            code, "warning", f"{text}: {'; '.join(filter(None, (worst, faster)))}",
            case.place(*about), gain=max(gain, 0.0), set=change,
        )  # fmt: skip
