"""Screen lines of the traffic on network links, and of rank orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from planner.answers.plans.network_traffic import Traffic
from planner.documents.answer import RankOrder
from planner.documents.formats import amount, gap, seconds, share
from planner.presentation.terminal.text_wrap import Flow, prose


def traffic_lines(traffic: Traffic) -> Iterator[RenderableType]:
    """Tables of the bytes of each kind of group, and of the load and time of each network tier."""
    if not traffic.tiers:
        yield Text("Nothing crosses a link")
        return
    yield Text(f"Traffic of one iteration of {seconds(traffic.iteration_time_s)}", style="bold")
    tiers = [tier for tier in traffic.tiers if tier.rank_bytes > 0]
    table = _columns("groups", *(f"over {tier.tier}" for tier in tiers), "transfers", "carries")
    for group in traffic.groups:
        sent = {link.tier: amount(link.rank_bytes) for link in group.links}
        cells = (sent.get(tier.tier, "-") for tier in tiers)
        name = group.name.replace("_", " ")
        table.add_row(name, *cells, seconds(group.transfer_s), group.carries)
    yield table
    yield Text()
    table = _columns("links", "rate", "an accelerator sends", "together", "", "takes", "busy")
    for tier in tiers:
        many = tier.domain_accelerators
        table.add_row(
            tier.tier, f"{amount(tier.link_bytes_per_s)}/s", amount(tier.rank_bytes),
            amount(tier.domain_bytes) if many > 1 else "", f"of {many:,}" if many > 1 else "",
            seconds(tier.line_s), share(tier.busy),
        )  # fmt: skip
    yield table
    yield prose(_verdict(traffic), indent=0, hanging=2)


def _columns(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, name in enumerate(names):
        text = i == 0 or name in ("", "carries")
        table.add_column(name, justify="left" if text else "right", no_wrap=name != "carries")
    return table


def _verdict(traffic: Traffic) -> str:
    hidden = traffic.transfer_s - traffic.shown_s
    text = f"busiest link: {traffic.busiest}"
    if hidden > 0:
        return (
            f"{text}; of {seconds(traffic.transfer_s)} of transfers {seconds(traffic.shown_s)} "
            f"show, the rest hides under kernels"
        )
    return f"{text}; transfers take {seconds(traffic.shown_s)} of the iteration"


def order_lines(orders: Sequence[RankOrder], used: str) -> Iterator[RenderableType]:
    """The iteration time with each rank order, and the option that selects the fastest."""
    if not orders:
        return
    yield Text()
    yield Text("Orders of the ranks, fastest axis first", style="bold")
    for order in orders:
        slower = "" if order is orders[0] else f", {gap(order.slower_by)} slower"
        mark = " (this plan)" if order.rank_order == used else ""
        by = ", ".join(order.frameworks) or "no framework, as it is"
        yield Flow(
            [f"  {order.rank_order}  {seconds(order.iteration_time_s)}{slower}{mark}",
             f"run by {by}"],
            indent=4,
        )  # fmt: skip
    if orders[0].rank_order != used and orders[0].iteration_time_s < orders[1].iteration_time_s:
        yield Text(f"  --rank-order {orders[0].rank_order} has it")
