"""Orders against those of sail-sg/zero-bubble-pipeline-parallelism (commit 39f2c18), row by row.

golden/zero_bubble_reference.csv has what its schedulers make for p = 2 and 4, four sets of times
and a message time, on a clock of its own.  They are greedy and make a new order for every set of
times; ours are one order per size.  So at equal times without communication ours must not be
worse, and elsewhere every row in which it is stands in golden/zero_bubble_exceptions.csv with both
numbers and the reason.  Run as a script, this file writes that table anew.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from cost_models.schedules import SCHEDULES
from cost_models.schedules.simulate import Links, Times, simulate

GOLDEN = Path(__file__).parents[2] / "golden"
EXCEPTIONS = GOLDEN / "zero_bubble_exceptions.csv"
EPSILON = 1e-9

# Their 1F1B in V placement has V-Half's memory, so it is held against V-Half.  Rows of their
# schedulers with limits that no schedule here has (2p, 1.5p) are left out.
OURS = {
    "zb.ZB1P(limit=p)": "zb-h1",
    "zb.H2-like(limit=2p-1)": "zb-h2",
    "zbv(max_mem=2p chunks)": "zb-v",
    "vhalf": "v-half",
    "vmin": "v-min",
    "v1f1b": "v-half",
    "vpp": "interleaved-1f1b",
}
ONE_ORDER = "one order for all times; theirs is made for these"
EARLIER = "holds more on this rank because it waits less"
MORE_ELSEWHERE = "one order for all times; no more than theirs on the worst rank"


class Row(NamedTuple):
    """One configuration: seconds of a chunk, of a message, and what came out."""

    scheduler: str
    stages: int
    micro_batches: int
    chunks: int
    times: tuple[float, float, float]
    message_s: float
    makespan_s: float
    peak: tuple[float, ...]
    peak_freed_at_input: tuple[float, ...]

    @property
    def plain(self) -> bool:
        """Whether it has equal times and no communication."""
        return len(set(self.times)) == 1 and not self.message_s


def units(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(";"))


def reference() -> list[Row]:
    with (GOLDEN / "zero_bubble_reference.csv").open(newline="") as file:
        return [
            Row(
                line["scheduler"],
                int(line["p"]),
                int(line["m"]),
                int(line["v"]),
                (
                    float(line["cost_f"]),
                    float(line["cost_b_input"]),
                    float(line["cost_b_weight"]),
                ),
                float(line["comm"]),
                float(line["makespan"]),
                units(line["peak_inflight_per_rank"]),
                units(line["peak_inflight_released_at_b_input"]),
            )
            for line in csv.DictReader(file)
        ]


ROWS = [row for row in reference() if row.scheduler in OURS]


def ours(row: Row, name: str) -> Row:
    """The same row with what our schedule takes and holds."""
    schedule = SCHEDULES[name]
    size = (row.stages, row.chunks, row.micro_batches)
    times, links = Times.equal(row.stages, row.chunks, *row.times), Links(row.message_s)
    at_weight, at_input = (
        simulate(schedule, *size, times, links, freed_at_input=share) for share in (0.0, 1.0)
    )
    return row._replace(
        makespan_s=at_weight.makespan_s,
        peak=tuple(at_weight.peak_units.tolist()),
        peak_freed_at_input=tuple(at_input.peak_units.tolist()),
    )


def worse(theirs: Row, mine: Row) -> list[tuple[str, str, str, str]]:
    """What is worse in ours: its name, their number, our number, the reason."""
    found = []
    if mine.makespan_s > theirs.makespan_s * (1 + EPSILON):
        numbers = (f"{theirs.makespan_s:.6g}", f"{mine.makespan_s:.6g}")
        found.append(("makespan_s", *numbers, ONE_ORDER))
    for name in ("peak", "peak_freed_at_input"):
        before, now = getattr(theirs, name), getattr(mine, name)
        if any(a > b + EPSILON for a, b in zip(now, before, strict=True)):
            faster = mine.makespan_s < theirs.makespan_s * (1 - EPSILON)
            numbers = tuple(";".join(f"{unit:g}" for unit in row) for row in (before, now))
            found.append((name, *numbers, EARLIER if faster else MORE_ELSEWHERE))
    return found


HEADER = (
    "scheduler", "schedule", "p", "m", "t_f", "t_b_input", "t_b_weight", "message_s",
    "what", "theirs", "ours", "reason",
)  # fmt: skip


def exceptions() -> list[tuple[str, ...]]:
    """Every number of every row in which ours is worse."""
    return [
        (
            row.scheduler,
            OURS[row.scheduler],
            str(row.stages),
            str(row.micro_batches),
            *(f"{time:g}" for time in row.times),
            f"{row.message_s:g}",
            *difference,
        )
        for row in ROWS
        for difference in worse(row, ours(row, OURS[row.scheduler]))
    ]


@pytest.mark.slow
def test_every_exception_is_listed() -> None:
    with EXCEPTIONS.open(newline="") as file:
        header, *listed = (tuple(line) for line in csv.reader(file))
    assert header == HEADER
    assert exceptions() == listed


def test_never_worse_at_equal_times() -> None:
    """Makespan, and activations of every rank, whichever gradient frees them."""
    plain = [row for row in ROWS if row.plain]
    assert plain
    for row in plain:
        assert not worse(row, ours(row, OURS[row.scheduler])), row


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_one_wave_is_faster_than_their_1f1b_in_a_v(share: float) -> None:
    """Hanayo's one wave is the other 1F1B in a V: less time, in p units instead of p/2 + 1."""
    for row in ROWS:
        if row.scheduler != "v1f1b" or row.message_s:
            continue
        size = (row.stages, row.chunks, row.micro_batches)
        times = Times.equal(row.stages, row.chunks, *row.times)
        result = simulate(SCHEDULES["hanayo"], *size, times, freed_at_input=share)
        assert result.makespan_s <= row.makespan_s * (1 + EPSILON)
        assert np.all(result.peak_units <= row.stages)


if __name__ == "__main__":
    with EXCEPTIONS.open("w", newline="") as target:
        csv.writer(target, lineterminator="\n").writerows([HEADER, *exceptions()])
