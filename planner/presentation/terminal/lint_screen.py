"""`planner lint` on a terminal: the verdict, what is wrong, and what to change, on one screen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console, Group, RenderableType
from rich.text import Text

from planner.answers.lint.findings import Better, Finding, FlagChange, Gain, LintAnswer, Severity
from planner.documents.formats import chance, gib, seconds, share, short, whole_plan_words
from planner.documents.plan_report import TIGHT, PlanReport
from planner.presentation.terminal.bars import memory_bars
from planner.presentation.terminal.plan_rows import free_words
from planner.presentation.terminal.refusal_rows import nearest_rows
from planner.presentation.terminal.text_wrap import Flow, notes, prose

_VERDICTS: dict[str, tuple[str, str]] = {
    "refused": ("will not run", "bold red"),
    "does not fit": ("runs out of memory", "bold red"),
    "may run out": ("may run out of memory", "bold yellow"),
    "improvable": ("runs, and a faster plan is known", "bold yellow"),
    "fine": ("runs, and no plan is known to be faster", "bold green"),
}
_HEADS: dict[Severity, tuple[str, str]] = {
    "error": ("Errors", "bold red"),
    "warning": ("Warnings", "bold yellow"),
    "hint": ("Hints", "bold cyan"),
}
_MAX_VALUE_LENGTH = 30  # longer values (layouts of stages) get their own line
_MAX_HEAD_LENGTH = 48  # an option with its value; longer values stand in the next column
_MAX_UNREAD = 8
_MAX_FINDINGS = {"error": 12, "warning": 8, "hint": 4}  # findings that are listed of a kind


def _head(answer: LintAnswer, parameters: float, main: str) -> list[RenderableType]:
    """The verdict and the number of findings; what was judged."""
    verdict, style = _VERDICTS[answer.verdict]
    if answer.verdict == "improvable" and answer.best is None:
        verdict = "runs, and one change makes it faster"
    elif answer.verdict == "fine" and not answer.searched:
        verdict = "runs, and no change that was tried makes it faster; not all plans were"
    counts = ", ".join(
        f"{n} {name}{'s' * (n != 1)}"
        for name in _HEADS
        if (n := sum(finding.severity == name for finding in answer.findings))
    )
    group, training = answer.request["cluster"]["groups"][0], answer.request["training"]
    judged = [
        answer.framework,
        f"{short(parameters)} parameters",
        f"{group['nodes']} x {group['accelerators_per_node']} {group['accelerator']['name']}",
        f"sequence {training['seq_length']:,}",
        f"batch {training['global_batch_size']:,}",
        training["precision"],
    ]
    return [
        Text.assemble((main, "bold"), " ", (verdict, style), f" · {counts}" if counts else ""),
        Flow(judged, indent=2, style="dim"),
    ]


def lint_screen(
    answer: LintAnswer, parameters: float, main: str, console: Console
) -> RenderableType:
    """The answer to `planner lint`; parameters: of the model; main: the launch script."""
    rows = _head(answer, parameters, main)
    for severity in _HEADS:
        rows += _findings(severity, [f for f in answer.findings if f.severity == severity])
    if answer.estimate is not None:
        rows += [Text(), _plan("As it is", answer.estimate)]
        if not answer.estimate.fits:
            rows += [Text(), *memory_bars(answer.estimate.memory, console)]
    if answer.mended is not None:
        rows += [Text(), _plan(_title(answer.mended), answer.mended.report)]
        rows.append(_changes(answer.mended.changes, main))
    mended = answer.mended and answer.mended.report.plan
    if answer.best is not None and answer.best.report.plan != mended:
        rows += [Text(), _plan("Better plan", answer.best.report)]
        if answer.gain is not None:
            rows.append(_gain(answer.gain))
        if answer.best.caution:
            rows.append(prose(answer.best.caution, 2, 2))
        rows.append(_changes(answer.best.changes, main))
    if answer.nearest:
        rows += [Text(), Text("No plan of this framework fits here", "bold red")]
        rows += [row for nearest in answer.nearest for row in nearest_rows(nearest)]
    rows += list(_open_values(answer))
    return Group(*rows)


def _title(mended: Better) -> str:
    stays = len(mended.stays)
    if not stays:
        return "Fewest changes that run"
    return f"Fewest changes to the plan; {stays} error{'s stay' if stays > 1 else ' stays'}"


def _findings(severity: Severity, findings: list[Finding]) -> list[RenderableType]:
    if not findings:
        return []
    title, style = _HEADS[severity]
    rows: list[RenderableType] = [Text(), Text(title, style)]
    for finding in findings[: _MAX_FINDINGS[severity]]:
        rows.append(_finding(finding, style))
    if (rest := len(findings) - _MAX_FINDINGS[severity]) > 0:
        rows.append(Text(f"  and {rest} more: --json lists all", "dim"))
    return rows


def _finding(finding: Finding, style: str) -> RenderableType:
    location = f"{finding.file}:{finding.line}" if finding.line else finding.file
    parts = [part for part in (location, finding.option) if part]
    head = Flow([Text(f"  {finding.code}", style), *parts], "  ", indent=4)
    return Group(head, prose(finding.text, indent=4))


def _plan(title: str, report: PlanReport) -> RenderableType:
    memory = report.memory
    free = memory.free_share
    return Group(
        Text(title, "bold"),
        Flow(whole_plan_words(report.plan), indent=2, head="  "),
        Flow(
            [
                f"  {seconds(report.iteration_time_s)} per iteration "
                f"({seconds(report.error_band.low_s)} to {seconds(report.error_band.high_s)})",
                f"{report.tokens_per_s:,.0f} tokens/s",
                f"MFU {share(report.mfu)}",
                Text(
                    f"{gib(memory.peak_bytes)} of {gib(memory.capacity_bytes)} GiB"
                    + (f" on stage {memory.worst_stage}" if len(memory.stages) > 1 else "")
                    + (f", {free_words(memory, memory)}" if free >= 0 else "")
                    + (", tight" if 0 <= free < TIGHT else "")
                    + f", {chance(memory.chance_of_running_out)} risk of running out",
                    "red" if free < 0 else "yellow" if free < TIGHT else "",
                ),
            ],
            indent=2,
        ),
    )


def _gain(gain: Gain) -> RenderableType:
    text = f"{gain.low:.2f} to {gain.high:.2f} at 80 %, {chance(gain.chance)} likely to be faster"
    text += ": measure both" if gain.inside_error else ""
    style = "yellow" if gain.inside_error else "bold green"
    return Flow([Text(f"  {gain.speedup:.2f}x faster,", style), *text.split()], " ", indent=2)


def _changes(changes: Iterable[FlagChange], main: str) -> RenderableType:
    """One option after the other, as a diff: + to add, - to remove, ~ another value."""
    rows = [_change(change, main) for change in changes]
    lengths = [head.cell_len for head, _, _ in rows]
    column = max([length for length in lengths if length <= _MAX_HEAD_LENGTH], default=0)
    lines: list[RenderableType] = []
    for head, value, pieces in rows:
        head.pad_right(max(0, column - head.cell_len) + 1)
        lines.append(Flow([head, *pieces], " ", indent=min(column, _MAX_HEAD_LENGTH) + 2))
        if value:
            lines.append(Text(f"      {value}", "bold"))
    return Group(*lines)


def _change(change: FlagChange, main: str) -> tuple[Text, str, list[Text]]:
    """An option with its value, the value where it needs a line of its own, and why in words."""
    sign, style = ("+", "green") if change.before is None else ("~", "yellow")
    if change.after is None:
        sign, style = "-", "red"
    names = filter(None, (change.misspelled, change.option if change.after is not None else ""))
    head = Text(f"  {sign} {' -> '.join(names) or change.option}", style)
    values = (change.before, change.after)
    if change.misspelled and change.before == change.after:
        values = ("", "")
    value = " -> ".join(filter(None, values))
    pieces = [Text(w, "dim") for w in change.why.split()]
    below = ""
    if head.cell_len + len(value) < _MAX_HEAD_LENGTH:
        head.append(f" {value}".rstrip(), "bold")
    elif len(value) > _MAX_VALUE_LENGTH:
        below = value
    elif value and change.after is not None:
        pieces = [*(Text(w, "bold") for w in value.split(" ")), Text("·", "dim"), *pieces]
    if change.line:
        file = "line " if change.file == main else f"{change.file}:"
        pieces.append(Text(f"({file}{change.line})", "dim"))
    return head, below, pieces


def _open_values(answer: LintAnswer) -> Iterator[RenderableType]:
    """The values that the files leave open, and the settings that no plan has a field for."""
    demanded = [finding.option for finding in answer.findings if finding.code == "environment"]
    assumed = (text for text in answer.assumed if not any(name in text for name in demanded))
    yield from notes("Assumed", assumed)
    if answer.unread:
        names = list(dict.fromkeys(setting.name for setting in answer.unread))
        rest = len(names) - _MAX_UNREAD
        more = [f"and {rest} more"] if rest > 0 else []
        title = Text("Not part of a plan ", "bold")
        parts: list[str | Text] = [title, *names[:_MAX_UNREAD], *more]
        yield Text()
        yield Flow(parts, " ", indent=2, style="dim")
