"""Findings about slow choices: the time of an iteration with that one choice changed.

The cost of a choice is never a constant: the changed plan is priced, and the finding is kept if it
saves MINIMUM_GAIN of the iteration, or if the choice is a fault whatever it costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from planner.answers.lint.findings import Finding, Severity
from planner.answers.lint.linted_launch import MINIMUM_GAIN, LintedLaunch, Neighbour, finding
from planner.documents.formats import seconds, share, size

# Share of the accelerator's memory that a change must save to be reported without a gain in time.
MINIMUM_SAVED = 0.02


def slow(
    launch: LintedLaunch,
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
    """The finding, if the fastest of some changes is likely to save enough time.

    base: fields that all changes share, and the time of an iteration with these alone.
    words: text for the change, if its fields do not explain themselves.
    same_work: whether the change only hides or removes work, so that the error of the model does
    not matter.
    """
    own = launch.own
    found = launch.fastest(changes, base) if own is not None else None
    if own is None or found is None:
        return
    before = own.iteration_time_s if before_s is None else before_s
    gain = 1.0 - found.seconds / before
    if gain >= MINIMUM_GAIN and (same_work or launch.likely_faster(found)):
        text = f"{text}: {saves(found, before, words)}"
        yield finding(code, severity, text, launch.place(*about), gain=gain, set=found.set)


def saves(neighbour: Neighbour, before: float, words: str = "") -> str:
    """A sentence on a change of an iteration that took `before` seconds; words: for the change."""
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
    launch: LintedLaunch, code: str, text: str, change: dict[str, Any], about: tuple[str, ...]
) -> Iterator[Finding]:
    """The finding, if a change saves enough memory or time."""
    own = launch.own
    found = launch.fastest([change], fitting=False) if own is not None else None
    if own is None or found is None:
        return
    saved = own.memory.peak_bytes - found.peak_bytes
    gain = 1.0 - found.seconds / own.iteration_time_s
    if saved >= MINIMUM_SAVED * launch.capacity_bytes or gain >= MINIMUM_GAIN:
        worst = f"{size(saved)} more than needed on the fullest stage" if saved > 0 else ""
        faster = saves(found, own.iteration_time_s) if gain >= MINIMUM_GAIN else ""
        yield finding(
            code, "warning", f"{text}: {'; '.join(filter(None, (worst, faster)))}",
            launch.place(*about), gain=max(gain, 0.0), set=change,
        )  # fmt: skip
