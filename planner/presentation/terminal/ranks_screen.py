"""The placement of a plan's ranks: groups as a table, nodes as rows of accelerators."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.answers.plans.ranks import GroupKind, RanksAnswer
from planner.presentation.terminal.traffic_rows import order_lines, traffic_lines

_INKS = ("blue", "green", "yellow", "magenta", "cyan", "red")
_MAX_CELLS = 32  # accelerators per node
_MAX_ROWS = 24  # rows of equal neighbouring nodes


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
        axes = ", ".join(f"{axis.name} {axis.size}" for axis in answer.expert_axes)
        lines.append(Text(f"of experts: {axes}"))
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


def _map(answer: RanksAnswer) -> Iterator[RenderableType]:
    """One row per run of equal nodes; brackets enclose a tensor-parallel group."""
    name, values = answer.coloured()
    per_node = answer.accelerators_per_node
    tp = answer.coordinates["tp"]
    grouped = answer.framed()
    rows = [
        (values[i : i + per_node], tp[i : i + per_node])
        for i in range(0, answer.world_size, per_node)
    ]
    meanings = {"pp": "pipeline stage", "tp": "tensor-parallel rank", "cp": "context-parallel rank"}
    brackets = ", a bracket for each tensor-parallel group" if grouped else ""
    yield Text(f"{meanings.get(name, 'data-parallel rank')} of each accelerator{brackets}")
    runs = [(row, len(list(same))) for row, same in groupby(rows)]
    first = 0
    for (cells, ranks), count in runs[:_MAX_ROWS]:
        label = f"node {first}" if count == 1 else f"nodes {first}-{first + count - 1}"
        line = Text(f"  {label:14s} ")
        for cell, rank in list(zip(cells, ranks, strict=True))[:_MAX_CELLS]:
            if grouped and rank == 0:
                line.append("[")
            line.append(f"{cell}", _INKS[cell % len(_INKS)])
            line.append("]" if grouped and rank == max(tp) else " ")
        if len(cells) > _MAX_CELLS:
            line.append("...")
        yield line
        first += count
    if len(runs) > _MAX_ROWS:
        yield Text(f"  and {answer.nodes - first:,} nodes more")
