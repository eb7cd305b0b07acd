"""The timeline of one step: what each group of accelerators does, and when it waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from planner.answers.reinforcement.documents import Bar, Lane
from planner.answers.reinforcement.layouts import GENERATION_PARTS, Layout


def lanes(way: Layout) -> Iterator[Lane]:
    """A lane for all accelerators, or one for the engines and one for the ranks that train."""
    training = way.trained.request.cluster.accelerators
    if way.same:
        yield Lane(name="all", accelerators=training, bars=tuple(_after(way, way.parts_s, 0.0)))
        return
    late = way.name != "synchronous"
    apart = [name for name in way.parts_s if name not in (*GENERATION_PARTS, "weight_transfer")]
    generated = tuple(_after(way, GENERATION_PARTS, 0.0, ahead=late))
    trained = tuple(_after(way, apart, 0.0 if late else _end(generated)))
    # New weights go to the engines when both are done.
    last = tuple(_after(way, ("weight_transfer",), max(_end(generated), _end(trained))))
    engines = way.engines.count * way.engines.tp
    yield Lane(name="generation", accelerators=engines, bars=generated + last)
    yield Lane(name="training", accelerators=training, bars=trained + last)


def _after(
    way: Layout, parts: Iterable[str], start_s: float, *, ahead: bool = False
) -> Iterator[Bar]:
    """Bars of parts that take time, one after the other."""
    for part in parts:
        if taken := way.parts_s[part]:
            yield Bar(part=part, start_s=start_s, end_s=start_s + taken, ahead=ahead)
            start_s += taken


def _end(bars: tuple[Bar, ...]) -> float:
    return bars[-1].end_s if bars else 0.0
