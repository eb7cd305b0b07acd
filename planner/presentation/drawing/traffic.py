"""SVG of the traffic on network links."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from planner.answers.plans.network_traffic import Traffic
from planner.documents.formats import amount, share

SVG_LINE = 18


def traffic_svg(traffic: Traffic, x: float, y: float, wide: float) -> Iterator[str]:
    """A line for each tier in use: the load of its busiest link, and the groups that send on it.

    The first baseline is y; lines are SVG_LINE apart.
    """
    bar = 120.0
    for tier in (tier for tier in traffic.tiers if tier.rank_bytes > 0):
        sent = (
            f"{group.name.replace('_', ' ')} {amount(link.rank_bytes)}"
            for group in traffic.groups for link in group.links if link.tier == tier.tier
        )  # fmt: skip
        rate = f"{share(tier.busy)} busy at {amount(tier.link_bytes_per_s)}/s"
        label = f"{rate}; an accelerator sends per iteration {', '.join(sent)}"
        busy = bar * min(tier.busy, 1.0)
        at = x + wide
        yield (
            f'<text x="{x}" y="{y:g}">{escape(tier.tier)}</text>'
            f'<rect class="track" x="{at:g}" y="{y - 9:g}" width="{bar:g}" height="10" rx="2"/>'
            f'<rect class="busy" x="{at:g}" y="{y - 9:g}" width="{busy:.1f}" height="10" rx="2"/>'
            f'<text class="quiet" x="{at + bar + 10:g}" y="{y:g}">{escape(label)}</text>'
        )
        y += SVG_LINE
