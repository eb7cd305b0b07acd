"""A timeline as one HTML file that needs nothing else: the SVG, and a script to zoom and point.

Without scripts it is still the whole picture and the table.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

import numpy as np

from planner.documents.formats import seconds, share
from planner.drawing.svg import LEFT, SEPARATED_PX, SPAN, Rows, svg, top
from planner.drawing.theme import Theme, colours
from planner.drawing.timeline_lanes import KINDS, WAIT, Lane, headline, lanes, p10_action_s, unit
from planner.pipelines.timeline import TimelineAnswer

# Above this many actions the picture is columns, also when magnified.
_MOST_ACTIONS = 150_000
_TICKS = 10**8  # the makespan, in the whole numbers that the file stores

_SCRIPT = Path(__file__).with_name("page.js")
_STYLE = """
body{margin:0 auto;max-width:1240px;padding:12px 20px;background:var(--page);color:var(--ink);
font:14px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
#tools{display:flex;flex-wrap:wrap;gap:8px;align-items:center;position:sticky;top:0;padding:6px 0;
background:var(--page)}
#tools[hidden]{display:none}
button{font:inherit;color:inherit;background:var(--idle);border:1px solid var(--quiet);
border-radius:5px;min-width:34px;padding:3px 10px;cursor:pointer}
#says{font-variant-numeric:tabular-nums}
kbd{font:12px ui-monospace,monospace;border:1px solid var(--grid);border-radius:3px;padding:0 4px}
.hint,caption{color:var(--quiet)}
figure{margin:0;overflow-x:auto;touch-action:pan-y;cursor:crosshair}
:focus-visible{outline:2px solid var(--F);outline-offset:2px}
figure>svg{width:100%;min-width:760px;height:auto;user-select:none;-webkit-user-select:none}
table{border-collapse:collapse;margin:10px 0;font-variant-numeric:tabular-nums}
th,td{padding:3px 12px;text-align:right;border-bottom:1px solid var(--grid)}
th{font-weight:600}caption{text-align:left}
summary{cursor:pointer}
"""


def html(answer: TimelineAnswer, theme: Theme = "auto") -> str:
    """The page."""
    drawn = lanes(answer)
    picture = svg(answer, theme, most_actions=_MOST_ACTIONS, decimals=3)
    name = escape(f"{answer.title}: {headline(answer)}")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title>
<style>{colours(theme, ":root")}{_STYLE}</style>
</head>
<body>
<main>
<div id="tools" hidden>
<button data-key="+" aria-label="Zoom in">+</button>
<button data-key="-" aria-label="Zoom out">−</button>
<button data-key="0">Fit</button>
<span id="says" role="status" aria-live="polite"></span>
</div>
<figure id="figure" tabindex="0" aria-label="Timeline; arrow keys go from step to step">
{picture}</figure>
<p class="hint">Zoom: <kbd>+</kbd> <kbd>−</kbd> <kbd>0</kbd>, <kbd>Ctrl</kbd> and wheel, or double
click. Move: drag, or <kbd>Shift</kbd> and <kbd>←</kbd> <kbd>→</kbd>. Arrow keys go from step to
step and rank to rank; the outline follows one micro-batch.</p>
{_table(answer, drawn)}
</main>
<script type="application/json" id="data">{_data(answer, drawn)}</script>
<script>{_SCRIPT.read_text(encoding="utf-8")}</script>
</body>
</html>
"""


def _table(answer: TimelineAnswer, lanes: list[Lane]) -> str:
    """The numbers of each rank, for who would rather read."""
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
    """The page script's data: per rank a flat list of kind, micro-batch, chunk, gap and length."""
    scale, sign = unit(answer.makespan_s)
    shortest = min(float((lane.end_s - lane.start_s)[lane.kind != WAIT].min()) for lane in lanes)
    document = {
        "makespan_s": answer.makespan_s,
        "scale": scale,
        "unit": sign,
        "chunks": answer.chunks,
        "kinds": list(KINDS.values()),
        "span": SPAN,
        "left": LEFT,
        "top": top(answer),
        "pitch": Rows.of(answer.stages).pitch,
        "usual_px": p10_action_s(lanes) / answer.makespan_s * SPAN,
        "separated_px": SEPARATED_PX,
        "ticks": _TICKS,
        # Enough to see the shortest action in half of the window, and no more.
        "most_zoom": min(1e5, max(4.0, answer.makespan_s / max(2 * shortest, 1e-12))),
        "ranks": [_flat(answer, lane) for lane in lanes],
    }
    # Inside a script element only "<" could end it.
    return json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")


def _flat(answer: TimelineAnswer, lane: Lane) -> list[int]:
    start = np.rint(lane.start_s / answer.makespan_s * _TICKS).astype(np.int64)
    end = np.rint(lane.end_s / answer.makespan_s * _TICKS).astype(np.int64)
    gap = start - np.concatenate([[0], end[:-1]])
    columns = (lane.kind, lane.micro_batch, lane.chunk, gap, end - start)
    flat: list[int] = np.column_stack(columns).ravel().tolist()
    return flat
