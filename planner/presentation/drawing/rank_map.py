"""The placement of a plan's ranks as a picture: nodes as boxes of accelerators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from planner.answers.plans.ranks import RanksAnswer
from planner.presentation.drawing.theme import Theme, colours
from planner.presentation.drawing.traffic import SVG_LINE, traffic_svg

_MAX_NODES = 512
_HUES = (212, 136, 42, 288, 182, 8, 90, 250)
_CELL, _HIGH, _GAP, _MARGIN = 30, 22, 18, 20
_MIN_WIDTH_PX = 760  # px, for the text above the nodes


def ranks_svg(answer: RanksAnswer, theme: Theme = "auto") -> str:
    """Nodes as boxes of accelerators, each labelled with its rank and coloured by stage."""
    name, values = answer.coloured()
    per_node = answer.accelerators_per_node
    nodes = min(answer.nodes, _MAX_NODES)
    wide = min(per_node, 8)
    high = -(-per_node // wide)
    columns = max(1, min(4, nodes, 1100 // (wide * _CELL + _GAP)))
    box_wide, box_high = wide * _CELL + 8, high * _HIGH + 26
    lines = -(-nodes // columns)
    width = max(2 * _MARGIN + columns * (box_wide + _GAP) - _GAP, _MIN_WIDTH_PX)
    links = list(traffic_svg(answer.traffic, _MARGIN, 74, 90))
    top = 78 + SVG_LINE * len(links)
    height = top + lines * (box_high + _GAP) + _MARGIN
    order = " · ".join(f"{axis.name} {axis.size}" for axis in answer.axes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-labelledby="rm-title">',
        f'<title id="rm-title">{escape(answer.framework)}: {escape(order)}</title>',
        f"<style>{colours(theme, 'svg')}"
        "text{font:11px system-ui,sans-serif;fill:var(--ink);font-variant-numeric:tabular-nums}"
        ".quiet{fill:var(--quiet)}.title{font-size:17px;font-weight:600}"
        ".page{fill:var(--page)}.node{fill:var(--idle);stroke:var(--grid)}"
        ".track{fill:var(--idle);stroke:var(--grid)}.busy{fill:var(--C)}"
        ".cell{text-anchor:middle}.group{fill:none;stroke:var(--ink);stroke-width:1.2}</style>",
        '<rect class="page" width="100%" height="100%"/>',
        f'<text class="title" x="{_MARGIN}" y="30">{escape(answer.framework)}: '
        f"{answer.world_size:,} ranks</text>",
        f'<text class="quiet" x="{_MARGIN}" y="50">fastest axis first: {escape(order)}; '
        f"colour: {name}"
        + ("; frame: tensor-parallel group" if answer.framed() else "")
        + ("" if nodes == answer.nodes else f"; the first {nodes} of {answer.nodes:,} nodes")
        + "</text>",
        *links,
    ]
    for node in range(nodes):
        x0 = _MARGIN + node % columns * (box_wide + _GAP)
        y0 = top + node // columns * (box_high + _GAP)
        parts.append(
            f'<rect class="node" x="{x0}" y="{y0}" width="{box_wide}" height="{box_high}" rx="4"/>'
            f'<text class="quiet" x="{x0 + 4}" y="{y0 + 13}">node {node}</text>'
        )
        parts += _node_ranks(answer, values, node, (x0 + 4, y0 + 20), wide)
    parts.append("</svg>")
    return "\n".join(parts)


def _node_ranks(
    answer: RanksAnswer, values: Sequence[int], node: int, at: tuple[int, int], wide: int
) -> Iterator[str]:
    """The ranks of a node, `wide` to a row; a frame around each tensor-parallel group.

    values: for each rank, the coordinate that colours it.
    """
    x0, y0 = at
    tp, framed = answer.coordinates["tp"], answer.framed()
    last, first = max(tp), node * answer.accelerators_per_node
    for slot in range(min(answer.accelerators_per_node, answer.world_size - first)):
        rank = first + slot
        x, y = x0 + slot % wide * _CELL, y0 + slot // wide * _HIGH
        hue = _HUES[values[rank] % len(_HUES)]
        yield (
            f'<rect x="{x + 1}" y="{y + 1}" width="{_CELL - 2}" height="{_HIGH - 2}" '
            f'fill="hsl({hue} 70% 50% / .38)"/>'
            f'<text class="cell" x="{x + _CELL / 2:g}" y="{y + 15}">{rank}</text>'
        )
        if framed and tp[rank] == 0 and slot % wide + last < wide:
            yield (
                f'<rect class="group" x="{x + 1}" y="{y + 1}" '
                f'width="{(last + 1) * _CELL - 2}" height="{_HIGH - 2}" rx="3"/>'
            )
