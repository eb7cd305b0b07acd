"""A timeline as one self-contained HTML file: a static SVG and the page's interactive timeline.

Without scripts, and in print, the SVG is the whole picture. With scripts, the canvas of the page's
Pipeline timeline replaces the lanes of the SVG; its modules are inlined in the file.
"""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path

import numpy as np

from cost_models.package_files import filled, text
from planner.answers.pipelines.timeline import TimelineAnswer
from planner.answers.pipelines.timeline_lanes import Lane, headline, lanes
from planner.documents.formats import seconds, share
from planner.presentation.drawing.page import document
from planner.presentation.drawing.svg import WIDTH, legend_notes, svg, top
from planner.presentation.drawing.theme import Theme, colours, sheet

_TICKS = 10**10  # ticks in the makespan; the file stores times as whole ticks
_DIGITS = 4  # decimals of the activations held

_CHARTS = Path(__file__).parents[3] / "web" / "charts"
# In order of their imports; the last module starts the others.
_MODULES = (
    *(_CHARTS / name for name in ("canvas.js", "lanes.js", "timeline_draw.js", "timeline_view.js")),
    Path(__file__).with_name("exported_timeline.js"),
)
_IMPORT, _EXPORT = re.compile(r"^import .*;\n", re.M), re.compile(r"^export ", re.M)
# The page's colour tokens, as the canvas modules name them, and the theme's names for the same.
_TOKENS = {
    "tl-F": "F", "tl-B": "B", "tl-I": "I", "tl-W": "W", "bad": "C", "tl-idle": "idle",
    "tl-memory": "memory", "muted": "quiet", "line": "grid",
}  # fmt: skip
_STYLE = sheet("timeline_page")


def html(answer: TimelineAnswer, theme: Theme = "auto") -> str:
    """The HTML document of a timeline."""
    drawn = lanes(answer)
    name = escape(f"{answer.title}: {headline(answer)}")
    notes = (escape(legend_notes(answer, dense, numbered=True)) for dense in (False, True))
    style = f"""{colours(theme, ":root")}{_STYLE}{_aliases()}
@media screen{{.moving .crop{{aspect-ratio:{WIDTH}/{top(answer) - 16:g}}}}}"""
    values = {
        "actions": next(notes), "columns": next(notes), "picture": svg(answer, theme),
        "table": _table(answer, drawn), "data": _data(answer, drawn), "script": _script(),
    }  # fmt: skip
    body = filled(text("planner.presentation.drawing", "timeline_page.html"), values)
    return document(name, style, body.rstrip("\n"))


def _aliases() -> str:
    return ":root{" + ";".join(f"--{name}:var(--{token})" for name, token in _TOKENS.items()) + "}"


def _script() -> str:
    """All modules as one; their names do not clash, or a browser test would fail."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in _MODULES)
    return _EXPORT.sub("", _IMPORT.sub("", text))


def _table(answer: TimelineAnswer, lanes: list[Lane]) -> str:
    """A table with the numbers of each rank."""
    causes = list(answer.idle_s[0])
    head = "".join(f"<th scope=col>idle: {escape(cause)}</th>" for cause in causes)
    rows = "\n".join(
        f"<tr><th scope=row>{lane.rank}</th><td>{seconds(lane.busy_s)}</td>"
        f"<td>{share(max(0.0, 1 - lane.busy_s / answer.makespan_s))}</td>"
        + "".join(f"<td>{seconds(answer.idle_s[lane.rank][cause])}</td>" for cause in causes)
        + f"<td>{answer.peak_in_flight[lane.rank]:.4g}</td></tr>"
        for lane in lanes
    )
    return (
        "<details><summary>Ranks in numbers</summary><table>"
        "<caption>Seconds of work and of idle by cause; activations held at most</caption>"
        f"<thead><tr><th scope=col>rank</th><th scope=col>work</th><th scope=col>idle</th>{head}"
        f"<th scope=col>peak</th></tr></thead>\n<tbody>{rows}</tbody></table></details>"
    )


def _data(answer: TimelineAnswer, lanes: list[Lane]) -> str:
    """The JSON for the canvas: per rank a flat list of kind, micro-batch, chunk, gap and length.

    Activations held are rounded.
    """
    fields = {"title", "stages", "micro_batches", "chunks", "makespan_s", "ideal_s"}
    document = {
        **answer.model_dump(include=fields | {"peak_in_flight"}),
        "in_flight": [[round(count, _DIGITS) for count in rank] for rank in answer.in_flight],
        "ticks": _TICKS,
        "ranks": [_flat(answer, lane) for lane in lanes],
    }
    # Inside a script element only "<" could end it.
    return json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")


def _flat(answer: TimelineAnswer, lane: Lane) -> list[int]:
    start = np.rint(lane.start_s / answer.makespan_s * _TICKS).astype(np.int64)
    end = np.rint(lane.end_s / answer.makespan_s * _TICKS).astype(np.int64)
    gap = start - np.concatenate([[0], end[:-1]])
    columns = (lane.kind, lane.micro_batch, lane.chunk, gap, end - start)
    return np.column_stack(columns).ravel().tolist()
