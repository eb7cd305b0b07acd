"""The leaderboard as a page of the documentation, from results.json alone."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import mean, median

from tools.peers import PEERS
from tools.peers.common import Peer
from tools.peers.results import Document

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "leaderboard.md"
FEWEST = 3  # runs of a source or an accelerator that get a line of their own
MOST_REASONS = 6
NOT_RUN = """\
- **vTrain** (VIA-Research/vTrain f8dda8473a48) replays kernels that CUPTI recorded on a GPU of \
the kind; no recordings come with it.
- **Galvatron** (PKU-DAIR/Hetu-Galvatron cea12ffb146a) searches with times that its profilers \
measured on the machine.
- **RAPID-LLM** (gkarfakis19/Rapid-LLM 317a2cbd54ae): the backend that its authors validated needs \
a build of AstraSim. Its analytical one, which its README calls inaccurate, was tried on 267 runs: \
89 ended at Python's recursion limit, and runs under ZeRO 3 came out tens of times too slow, which \
may be our use of it. No figure of it is given.
- **estimate-train-time** (DebarghaG/estimate-train-time 1ac4d5e44116) has regressors of \
two clusters, of A100 with four to a node and of GH200; no adapter was written.
"""
Pairs = list[tuple[str, float, float]]
"""Of each run its group, what was said and what was measured."""


def percent(share: float) -> str:
    """A share in words."""
    return f"{100 * share:.1f} %"


def render(found: Document) -> str:
    """The whole page."""
    return "\n".join([*_head(found), *_time(found), *_groups(found), *_rest(found)])


def _head(found: Document) -> Iterator[str]:
    yield "# Leaderboard"
    yield ""
    yield (
        "Planners that can be run without a GPU, asked about the very runs that this one is scored "
        f"on ({found['scored']:,} published runs). A peer gets only what it has inputs for; "
        "our figures beside it are of exactly those runs."
    )
    yield ""
    yield (
        "Errors are |ln(said / measured)|: 10 % is about a tenth too slow or too fast. Made by "
        "`python -m tools.peers --write`; what peers said is kept in `tools/peers/results.json`."
    )
    yield ""
    yield (
        "**Not an even match**: the physics here was chosen with these runs in sight, while peers "
        "saw few of them. The second table has only runs of which a release of this planner spoke "
        "before anyone had seen them; that comparison is the fair one."
    )
    yield ""
    yield "| peer | version | runs answered | no inputs | gave up | CPU time of one estimate |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for key, peer in PEERS.items():
        said = found["peers"][key]
        yield (
            f"| [{peer.name}](https://github.com/{peer.repository}) | {peer.version}, "
            f"`{peer.revision}` | {len(said['estimates'])} | {sum(said['refused'].values())} | "
            f"{sum(said['failed'].values())} | {said['cpu_s'] * 1e3:.1f} ms |"
        )
    ours = found["peers"]["ours"]["cpu_s"] * 1e3
    yield f"| this planner | this commit | {found['scored']:,} | – | – | {ours:.1f} ms |"
    yield ""


def _time(found: Document) -> Iterator[str]:
    yield "## Time of an iteration"
    yield ""
    yield "As shipped, on all runs that the peer has inputs for:"
    yield ""
    yield from _table(found, "ours_s", fitted=False)
    yield "At first sight: runs that a release of this planner was asked about before it saw them."
    yield ""
    yield from _table(found, "first_sight_s", fitted=False)
    yield (
        "Fitted: each side's times multiplied by one factor for each accelerator, the one that "
        "suits these very runs best. This is what a user gets after calibrating on many runs of "
        "their own."
    )
    yield ""
    yield from _table(found, "ours_s", fitted=True)


def _table(found: Document, own: str, fitted: bool) -> Iterator[str]:
    yield "| peer | runs | sources | median error | mean of source medians | ours: median | mean |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for key, peer in PEERS.items():
        ids = [id_ for id_ in found["peers"][key]["estimates"] if found["runs"][id_][own]]
        theirs, ours = _pairs(found, key, ids), _pairs(found, own, ids)
        if fitted:
            theirs, ours = (_fitted(found, ids, pairs) for pairs in (theirs, ours))
        (middle, average), (own_middle, own_average) = _errors(theirs), _errors(ours)
        sources = len({group for group, _, _ in theirs})
        yield (
            f"| {peer.name} | {len(ids)} | {sources} | {_best(middle, own_middle)} | "
            f"{_best(average, own_average)} | {_best(own_middle, middle)} | "
            f"{_best(own_average, average)} |"
        )
    yield ""


def _pairs(found: Document, who: str, ids: Iterable[str]) -> Pairs:
    """who: a peer, or a field of our own."""
    runs = found["runs"]
    said = found["peers"][who]["estimates"] if who in PEERS else None
    return [
        (runs[id_]["source"], said[id_][0] if said else runs[id_][who], runs[id_]["measured_s"])
        for id_ in ids
    ]


def _fitted(found: Document, ids: Iterable[str], pairs: Pairs) -> Pairs:
    ratios: dict[str, list[float]] = defaultdict(list)
    accelerators = [found["runs"][id_]["accelerator"] for id_ in ids]
    for accelerator, (_, said, measured) in zip(accelerators, pairs, strict=True):
        ratios[accelerator].append(measured / said)
    factors = {accelerator: median(own) for accelerator, own in ratios.items()}
    return [
        (group, said * factors[accelerator], measured)
        for accelerator, (group, said, measured) in zip(accelerators, pairs, strict=True)
    ]


def _by_group(pairs: Pairs) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for group, said, measured in pairs:
        found[group].append(abs(math.log(said / measured)))
    return found


def _errors(pairs: Pairs) -> tuple[float, float]:
    """The median error, and the mean of the medians of groups."""
    groups = _by_group(pairs)
    every = [error for own in groups.values() for error in own]
    return median(every), mean(median(own) for own in groups.values())


def _best(value: float, other: float) -> str:
    """A figure, in bold if it is the smaller one."""
    return f"**{percent(value)}**" if value < other else percent(value)


def _groups(found: Document) -> Iterator[str]:
    yield "### Where a peer is closer"
    yield ""
    yield f"Sources with {FEWEST} runs and more on which the peer's median error is below ours:"
    yield ""
    yield "| peer | source | runs | its error | ours | |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for key, peer in PEERS.items():
        ids = list(found["peers"][key]["estimates"])
        theirs, ours = (_by_group(_pairs(found, who, ids)) for who in (key, "ours_s"))
        for source in sorted(theirs):
            error, own = median(theirs[source]), median(ours[source])
            if len(theirs[source]) >= FEWEST and error < own:
                known = "its authors' own comparison" if source in peer.validated_on else ""
                yield (
                    f"| {peer.name} | {source} | {len(theirs[source])} | {percent(error)} | "
                    f"{percent(own)} | {known} |"
                )
    yield ""
    yield "### By accelerator"
    yield ""
    yield "| peer | accelerator | runs | its error | its bias | ours |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for key, peer in PEERS.items():
        yield from _accelerators(found, key, peer)
    yield ""


def _accelerators(found: Document, key: str, peer: Peer) -> Iterator[str]:
    kinds: dict[str, list[str]] = defaultdict(list)
    for id_ in found["peers"][key]["estimates"]:
        kinds[found["runs"][id_]["accelerator"]].append(id_)
    for kind, ids in sorted(kinds.items(), key=lambda item: -len(item[1])):
        if len(ids) < FEWEST:
            continue
        theirs = _pairs(found, key, ids)
        bias = mean(math.log(said / measured) for _, said, measured in theirs)
        error, own = _errors(theirs)[0], _errors(_pairs(found, "ours_s", ids))[0]
        yield (
            f"| {peer.name} | {kind} | {len(ids)} | {_best(error, own)} | {100 * bias:+.1f} % | "
            f"{_best(own, error)} |"
        )


def _rest(found: Document) -> Iterator[str]:
    yield "## Peak memory"
    yield ""
    yield "Of the runs that publish a peak; errors are shares of it."
    yield ""
    yield "| peer | peaks | mean error | median | ours: mean | median |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for key, peer in PEERS.items():
        theirs, ours = _memory(found, key)
        if theirs:
            yield (
                f"| {peer.name} | {len(theirs)} | {_best(mean(theirs), mean(ours))} | "
                f"{_best(median(theirs), median(ours))} | {_best(mean(ours), mean(theirs))} | "
                f"{_best(median(ours), median(theirs))} |"
            )
    yield ""
    yield "## What was assumed, and what has no inputs"
    for key, peer in PEERS.items():
        said = found["peers"][key]
        yield from ("", f"**{peer.name}**", "")
        yield from (f"- {each}" for each in peer.assumed)
        sources = ", ".join(peer.validated_on)
        yield f"- its authors compared it with, or tuned it to, runs of: {sources}"
        reasons = list(said["refused"].items())
        listed = ", ".join(f"{reason} ({count})" for reason, count in reasons[:MOST_REASONS])
        others = sum(count for _, count in reasons[MOST_REASONS:])
        yield f"- runs without inputs, by the first reason met: {listed}, others ({others})"
        for reason, count in said["failed"].items():
            words = reason.rstrip(":") + " (a check of its own)" * reason.endswith("Error:")
            yield f"- gave up on {count}: `{words}`"
    yield from ("", "## Not run", "", NOT_RUN)


def _memory(found: Document, key: str) -> tuple[list[float], list[float]]:
    theirs, ours = [], []
    for id_, (_, peak_bytes) in found["peers"][key]["estimates"].items():
        measured, own = found["runs"][id_]["measured_bytes"], found["runs"][id_]["ours_bytes"]
        if measured and peak_bytes:
            theirs.append(abs(peak_bytes / measured - 1))
            ours.append(abs(own / measured - 1))
    return theirs, ours
