"""The placement of a plan's ranks: groups as a table, nodes as a picture (text or SVG)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from xml.sax.saxutils import escape

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.answers.ranks import GroupKind, RanksAnswer
from planner.drawing.theme import Theme, colours
from planner.drawing.traffic import SVG_LINE, order_lines, traffic_lines, traffic_svg

_INKS = ("blue", "green", "yellow", "magenta", "cyan", "red")
_MOST_CELLS = 32  # accelerators per node, in text
_MOST_ROWS = 24  # rows of equal neighbouring nodes, in text
_MOST_NODES = 512  # in an SVG
_HUES = (212, 136, 42, 288, 182, 8, 90, 250)
_CELL, _HIGH, _GAP, _MARGIN = 30, 22, 18, 20
_LEAST_WIDE = 760  # px, for the text above the nodes


def ranks_screen(answer: RanksAnswer, console: Console) -> RenderableType:
    """The answer to `planner ranks`."""
    order = ", ".join(f"{axis.name} {axis.size}" for axis in answer.axes)
    lines: list[RenderableType] = [
        Text.assemble(
            (answer.framework, "bold"), f"  {answer.world_size:,} ranks on {answer.nodes:,} x ",
            f"{answer.accelerators_per_node} accelerators",
        ),
        Text(f"fastest axis first: {order}"),
    ]  # fmt: skip
    if answer.expert_axes:
        own = ", ".join(f"{axis.name} {axis.size}" for axis in answer.expert_axes)
        lines.append(Text(f"of experts: {own}"))
    lines += ["", _table(answer), "", *_map(answer), "", *traffic_lines(answer.traffic)]
    lines += order_lines(answer.rank_orders, str(answer.request["plan"]["rank_order"]))
    for warning in answer.warnings:
        lines.append(Text(f"! {warning.text}", "yellow"))
    return Group(*lines)


def _table(answer: RanksAnswer) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name, justify in (("groups", "left"), ("size", "right"), ("count", "right")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for name in ("link", "ranks", "carries"):
        table.add_column(name)
    for kind in answer.groups:
        table.add_row(
            kind.name, f"{kind.size:,}", f"{kind.count:,}", _links(kind),
            " ".join(_short(group) for group in kind.ranks[:2]) + (" ..." * (kind.count > 2)),
            kind.carries,
        )  # fmt: skip
    return table


def _links(kind: GroupKind) -> str:
    if len(kind.links) == 1:
        return next(iter(kind.links))
    return ", ".join(f"{count:,} {name}" for name, count in kind.links.items())


def _short(group: tuple[int, ...]) -> str:
    """The ranks of a group, as a range with its step if they are evenly spaced."""
    step = group[1] - group[0]
    if len(group) > 4 and all(b - a == step for a, b in pairwise(group)):
        each = "" if step == 1 else f" by {step}"
        return f"[{group[0]}..{group[-1]}{each}]"
    return "[" + ",".join(map(str, group[:8])) + (",..." if len(group) > 8 else "") + "]"


def _coloured(answer: RanksAnswer) -> tuple[str, tuple[int, ...]]:
    """The axis that colours the picture, with its coordinates: pp, else the next split axis."""
    sizes = {axis.name: axis.size for axis in answer.axes}
    names = [n for n in ("pp", "dp", "dp_shard", "dp_replicate", "cp", "tp") if sizes.get(n, 1) > 1]
    name = names[0] if names else answer.axes[0].name
    return name, answer.coordinates[name]


def _framed(answer: RanksAnswer) -> bool:
    """Whether the ranks of a tensor-parallel group are adjacent."""
    return any(axis.name == "tp" and axis.size > 1 == axis.stride for axis in answer.axes)


def _map(answer: RanksAnswer) -> Iterator[RenderableType]:
    """One row per run of equal nodes; brackets enclose a tensor-parallel group."""
    name, values = _coloured(answer)
    per_node = answer.accelerators_per_node
    tp = answer.coordinates["tp"]
    grouped = _framed(answer)
    rows = [
        (values[i : i + per_node], tp[i : i + per_node])
        for i in range(0, answer.world_size, per_node)
    ]
    what = {"pp": "pipeline stage", "tp": "tensor-parallel rank", "cp": "context-parallel rank"}
    brackets = ", a bracket for each tensor-parallel group" if grouped else ""
    yield Text(f"{what.get(name, 'data-parallel rank')} of each accelerator{brackets}")
    runs = [(row, len(list(same))) for row, same in groupby(rows)]
    first = 0
    for (cells, places), count in runs[:_MOST_ROWS]:
        label = f"node {first}" if count == 1 else f"nodes {first}-{first + count - 1}"
        line = Text(f"  {label:14s} ")
        for cell, place in list(zip(cells, places, strict=True))[:_MOST_CELLS]:
            if grouped and place == 0:
                line.append("[")
            line.append(f"{cell}", _INKS[cell % len(_INKS)])
            line.append("]" if grouped and place == max(tp) else " ")
        if len(cells) > _MOST_CELLS:
            line.append("...")
        yield line
        first += count
    if len(runs) > _MOST_ROWS:
        yield Text(f"  and {answer.nodes - first:,} nodes more")


def ranks_svg(answer: RanksAnswer, theme: Theme = "auto") -> str:
    """Nodes as boxes of accelerators, each labelled with its rank and coloured by stage."""
    name, values = _coloured(answer)
    per_node = answer.accelerators_per_node
    nodes = min(answer.nodes, _MOST_NODES)
    wide = min(per_node, 8)
    high = -(-per_node // wide)
    columns = max(1, min(4, nodes, 1100 // (wide * _CELL + _GAP)))
    box_wide, box_high = wide * _CELL + 8, high * _HIGH + 26
    lines = -(-nodes // columns)
    width = max(2 * _MARGIN + columns * (box_wide + _GAP) - _GAP, _LEAST_WIDE)
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
        + ("; frame: tensor-parallel group" if _framed(answer) else "")
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
    tp, framed = answer.coordinates["tp"], _framed(answer)
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
