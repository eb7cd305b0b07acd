"""Runs and sites on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cost_models.parameters import total_parameters
from planner.documents.formats import gib, or_dash, seconds, share, short, whole_plan_words
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty.learned_steps import LearnedStep
from planner.evidence.uncertainty.site_corrections import (
    Calibrated,
    LearnedFactor,
    LearnedKind,
    SiteAnswer,
)
from planner.learning.sites.learn_answer import LearnAnswer, ReadRun
from planner.learning.sites.learned_step import LearnedStepAnswer
from planner.presentation.terminal.plain_table import plain_table
from planner.presentation.terminal.text_wrap import Flow, prose

_MAX_IN_FULL = 4  # runs that are shown one by one
_MAX_NOTES = 6
_MAX_ROWS = 40


def learn_screen(answer: LearnAnswer) -> RenderableType:
    """What was read, before or after it is kept."""
    rows: list[RenderableType] = []
    if len(answer.runs) <= _MAX_IN_FULL:
        for read in answer.runs:
            rows += [*_full_rows(read), Text()]
    else:
        rows += [_short_table(answer.runs), Text()]
        rows += [prose(text, 0, 2) for text in _open_in(answer.runs)]
        rows += [
            prose(f"doubt: {r.run.file} {text}", 0, 2) for r in answer.runs for text in r.doubts
        ]
    rows += [prose(f"not learned: {r.why}", 0, 2) for r in answer.refused]
    return Group(*rows)


def _full_rows(read: ReadRun) -> Iterator[RenderableType]:
    run = read.run
    request = PlanRequest.model_validate(run.request)
    model, training, group = request.model, request.training, request.cluster.groups[0]
    yield Flow([Text(run.file, "bold"), run.code_base, f"run {run.id}"], "  ")
    name = [] if model.name == "custom" else [model.name]
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    parameters = f"{short(total_parameters(model))} parameters"
    shape = f"{model.num_layers} layers of {model.hidden_size:,}"
    facts.add_row("model", Flow([*name, parameters, shape]))
    batch = f"{training.global_batch_size:,} x {training.seq_length:,} tokens"
    facts.add_row("batch", Flow([batch, training.precision]))
    nodes = f"{group.nodes} x {group.accelerators_per_node} {group.accelerator.id}"
    facts.add_row("ran on", nodes)
    plan = whole_plan_words(request.named_plan)
    facts.add_row("plan", Flow([*plan, f"runtime {run.groups[2]}"]))
    facts.add_row("step", Flow(_step(read)))
    if run.left_out:
        counts = [f"{steps:,} {reason}" for reason, steps in run.left_out.items()]
        facts.add_row("left out", Flow(counts, ", "))
    if run.peak_bytes is not None and run.estimated_peak_bytes is not None:
        memory = [f"{gib(run.peak_bytes)} GiB {run.memory_quantity}"]
        off = run.estimated_peak_bytes / run.peak_bytes - 1.0
        memory.append(f"{gib(run.estimated_peak_bytes)} GiB estimated")
        facts.add_row("memory", Flow([*memory, _error_text(off, "high", "low")]))
    off = run.estimated_s / run.step_s - 1.0
    parts = [f"{seconds(run.estimated_s)} without a site", _error_text(off, "long", "short")]
    facts.add_row("estimated", Flow(parts))
    for title, notes in (("left open", run.left_open), ("assumed", run.assumed)):
        for i, text in enumerate(notes[:_MAX_NOTES]):
            facts.add_row("" if i else title, prose(text, 0))
        if len(notes) > _MAX_NOTES:
            facts.add_row("", f"and {len(notes) - _MAX_NOTES} more: --json lists them")
    for text in read.doubts:
        facts.add_row(Text("doubt", "bold yellow"), prose(text, 0))
    yield facts


def _open_in(runs: Sequence[ReadRun]) -> Iterator[str]:
    """The settings that runs leave open, each with the number of such runs."""
    for text, count in Counter(chain(*(r.run.left_open for r in runs))).items():
        yield f"left open in {count} of {len(runs)}: {text}"
    if any(r.run.assumed for r in runs):
        yield "--json lists the assumptions for each run"


def _step(read: ReadRun) -> Iterator[str]:
    run = read.run
    yield f"{run.step_s:.4g} s"
    if read.low_s is not None and read.high_s is not None:
        yield f"{read.low_s:.4g} to {read.high_s:.4g} s"
    if run.code_base != "table":
        yield f"{run.steps:,} steps used"


def _error_text(off: float, above: str, below: str) -> str:
    """How far an estimate is off, in words."""
    return f"{abs(100.0 * off):.1f} % too {above if off > 0 else below}"


def _signed(value: float) -> str:
    """A change in per cent, with its sign."""
    percent = 100.0 * value
    return f"{percent:+.1f} %" if abs(percent) < 10 else f"{percent:+,.0f} %"


def _short_table(runs: Sequence[ReadRun]) -> RenderableType:
    table = plain_table()
    table.add_column("run", no_wrap=True, overflow="ellipsis", ratio=1, max_width=40)
    for title in ("ranks", "measured", "estimated", "off"):
        table.add_column(title, justify="right", no_wrap=True, min_width=len(title))
    table.add_column("", no_wrap=True)
    for read in runs[:_MAX_ROWS]:
        run = read.run
        group = run.request["cluster"]["groups"][0]
        ranks = group["nodes"] * group["accelerators_per_node"]
        table.add_row(
            run.file, f"{ranks:,}", seconds(run.step_s), seconds(run.estimated_s),
            _signed(run.estimated_s / run.step_s - 1.0), "known" if read.known else "",
        )  # fmt: skip
    if (rest := len(runs) - _MAX_ROWS) > 0:
        return Group(table, Text(f"and {rest} more: --json lists them"))
    return table


def sites_screen(answers: Sequence[SiteAnswer]) -> RenderableType:
    """All sites, one a line."""
    table = plain_table()
    table.add_column("site", no_wrap=True, overflow="ellipsis", max_width=24)
    for title in ("calibrated", "runs", "learned", "error without", "left out"):
        table.add_column(title, justify="right", vertical="bottom")
    for site in answers:
        last = max((run.learned_at for run in site.runs), default=None)
        table.add_row(
            site.name, site.calibration.measured_at[:10] if site.calibration else "-",
            str(len(site.runs)), f"{last:%Y-%m-%d}" if last else "-",
            or_dash(site.median_error_without, share), or_dash(site.median_error_left_out, share),
        )  # fmt: skip
    note = "error: median over a site's runs, without the site and with each run left out in turn"
    return Group(table, Text(), prose(note, 0))


def site_screen(answer: SiteAnswer) -> RenderableType:
    """One site: what it learned, what it cannot tell, and its errors."""
    count = len(answer.runs)
    rows: list[RenderableType] = [
        Flow([Text(f"Site {answer.name}", "bold"), f"{count:,} run{'s' * (count != 1)}"], "  ")
    ]
    if answer.calibration is not None:
        rows += [Text(), *_calibration(answer.calibration)]
    for kind in answer.kinds:
        rows += [Text(), *_kind(kind)]
    if answer.steps:
        rows += [Text(), Text("Generation of responses", "bold")]
        rows += [prose(_generation(step), 2, 2) for step in answer.steps[-_MAX_ROWS:]]
    if answer.errors:
        rows += [Text(), Text("Error of estimates", "bold"), _errors(answer)]
    return Group(*rows)


def _generation(step: LearnedStep) -> str:
    ratio = step.generation_s / step.estimated_s
    return (
        f"{step.file} ({step.trainer}, step {step.id}): {seconds(step.generation_s)}, "
        f"{ratio:.2f} times the {seconds(step.estimated_s)} modelled"
    )


def learned_step_screen(answer: LearnedStepAnswer) -> RenderableType:
    """What a log's steps teach a site, before or after it is kept."""
    rows: list[RenderableType] = [prose(_generation(answer.step), 0, 2)]
    if (run := answer.update) is not None:
        update = f"an optimizer step: {seconds(run.step_s)} with full sequences"
        rows.append(prose(f"{update}, {seconds(run.estimated_s)} estimated without a site", 0, 2))
    rows += [prose(text, 0, 2) for text in answer.notes]
    if answer.known:
        rows.append(prose(f"site {answer.site} has this log already", 0, 2))
    else:
        note = "kept" if answer.kept else "nothing is kept: --yes keeps it"
        rows.append(prose(f"{note}, with site {answer.site}", 0, 2))
    return Group(*rows)


def _calibration(calibration: Calibrated) -> Iterator[RenderableType]:
    yield Flow([Text("Calibrated", "bold"), calibration.measured_at[:10]], "  ")
    yield prose(f"on {calibration.hardware.get('device', 'another machine')}", 2)
    yield prose(
        f"points of {', '.join(f'{name} {n:,}' for name, n in calibration.points.items())}", 2, 2
    )


def _kind(kind: LearnedKind) -> Iterator[RenderableType]:
    runs = f"{kind.runs} run{'s' * (kind.runs != 1)}"
    yield Flow([Text(f"On {kind.accelerator} with {kind.runtime}", "bold"), runs], "  ")
    learned = [f for f in kind.factors if f.verdict == "learned"]
    yield Text("  learned" if learned else "  learned: nothing certain yet")
    for factor in learned:
        more = "more" if factor.longer > 0 else "less"
        text = (
            f"{factor.title}: {abs(100 * factor.longer):.0f} ±{100 * factor.deviation:.0f} % "
            f"{more} time than estimated without the site "
            f"(±{100 * factor.deviation_before:.0f} before)"
        )
        yield prose(text, 4, 2)
    if open_ones := [f for f in kind.factors if f.verdict == "cannot tell yet"]:
        yield Text("  cannot tell yet")
        for factor in open_ones:
            yield prose(_open(factor), 4, 2)
    if unused := [f.title for f in kind.factors if f.verdict == "unused"]:
        yield prose(f"no run covers: {', '.join(unused)}", 2, 2)


def _open(factor: LearnedFactor) -> str:
    return f"{factor.title}: {100 * factor.longer:+.0f} ±{100 * factor.deviation:.0f} %"


def _errors(answer: SiteAnswer) -> RenderableType:
    table = plain_table()
    table.add_column("run", no_wrap=True)
    table.add_column("log", no_wrap=True, overflow="ellipsis", max_width=32)
    table.add_column("taught", no_wrap=True, overflow="ellipsis", max_width=26)
    for title in ("measured", "without site", "left out"):
        table.add_column(title, justify="right", vertical="bottom", min_width=8)
    single = len(answer.errors) < 2
    for row, run in zip(answer.errors[:_MAX_ROWS], answer.runs, strict=False):
        taught = f"{run.learned_at:%Y-%m-%d} {run.taught_by or ''}".rstrip()
        table.add_row(
            row.id[:6], row.file, taught, seconds(row.measured_s), _signed(row.error_without),
            "-" if single else _signed(row.error_left_out),
        )  # fmt: skip
    rows: list[RenderableType] = [table]
    if (rest := len(answer.errors) - _MAX_ROWS) > 0:
        rows.append(Text(f"and {rest} more: --json lists them"))
    rows.append(_medians(answer))
    return Group(*rows)


def _medians(answer: SiteAnswer) -> RenderableType:
    without = f"median {or_dash(answer.median_error_without, share)} without the site"
    if answer.median_error_left_out is None:
        parts: Iterable[str] = [without, "a second run shows what the site is worth"]
    else:
        share_left = share(answer.median_error_left_out)
        parts = [without, f"{share_left} when each run is left out in turn"]
    return Flow(parts, ", ")
