"""Steady steps: one rule for the logs of every code base.

A log prints the time of single steps, or the mean over the steps since its last report.  Left out,
in this order:

1. warm-up: the first 5 steps that the log shows (a third of them where it shows fewer than 15),
   and reports that hold one of these;
2. reports with skipped or NaN iterations;
3. the first report after an evaluation or a checkpoint;
4. implausible step times, such as after the clock was set; where most are of this kind, the log is
   refused, as its times are in another unit;
5. stragglers: reports of more than 1.5 times the median of the rest.

The time is the median of what is left, its spread the 10th to 90th percentile.  At least 2 steps
must be left.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from planner.documents.problems import RequestError
from planner.inputs.logs.run_log import LeftOut, StepTime, refused

WARM_UP = 5
STRAGGLER = 1.5
LEAST = 2
MOST = 2_000_000
# No training step is shorter or longer: what is outside is not in the unit it is taken for.
SHORTEST_S, LONGEST_S = 1e-4, 1e5

_REASONS = (
    "warm-up",
    "skipped or NaN iterations",
    "after an evaluation or checkpoint",
    "implausible step times",
)


@dataclass
class Series:
    """The reports of one kind: step number, seconds per step, and why it is excluded.

    interval: steps per report, where the log says it.
    """

    basis: str
    interval: int = 0
    numbers: array[int] = field(default_factory=lambda: array("q"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    against: bytearray = field(default_factory=bytearray)
    paused: bool = False
    odd: tuple[float, int] = (0.0, 0)

    def take(self, number: int, seconds: float, line: int, skipped: bool = False) -> None:
        """One report.  Raises RequestError where they are too many."""
        possible = SHORTEST_S <= seconds <= LONGEST_S
        if not possible and not self.odd[1]:
            self.odd = seconds, line
        if len(self.seconds) == MOST:
            raise refused("too_large", f"more than {MOST:,} steps: give fewer of them")
        self.numbers.append(number)
        self.seconds.append(seconds if possible else 0.0)
        self.against.append(3 if not possible else 1 if skipped else 2 if self.paused else 0)
        self.paused = False

    def counts(self) -> np.ndarray:
        """Steps that each report stands for."""
        numbers = np.frombuffer(self.numbers, dtype=np.int64)
        gaps = np.diff(numbers)
        least = int(gaps[gaps > 0].min()) if (gaps > 0).any() else self.interval or 1
        interval = min(self.interval or least, least)
        first = min(interval, int(numbers[0])) if numbers[0] > 0 else interval
        return np.concatenate([[first], np.clip(gaps, 1, interval)])


@dataclass
class Rates:
    """Rates of steps, kept until what they are rates of is known: step number, rate, line."""

    numbers: array[int] = field(default_factory=lambda: array("q"))
    rates: array[float] = field(default_factory=lambda: array("d"))
    lines: array[int] = field(default_factory=lambda: array("q"))

    def take(self, number: int, rate: float, line: int) -> None:
        self.numbers.append(number)
        self.rates.append(rate)
        self.lines.append(line)

    def __iter__(self) -> Iterator[tuple[int, float, int]]:
        return zip(self.numbers, self.rates, self.lines, strict=True)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def last(self) -> int | None:
        """The number of the last step; None where there is none."""
        return self.numbers[-1] if self.numbers else None


def steady(series: Series) -> StepTime:
    """The steady step of a series.

    Raises RequestError where too few steps are left, or where the unit of their times is unclear.
    """
    if not series.seconds:
        raise too_few(0)
    if series.against.count(3) * 2 > len(series.against):
        seconds_odd, line = series.odd
        step = f"line {line}: a step of {seconds_odd:g} s ({series.basis})"
        raise refused("unit", f"{step}: is it in another unit?", seconds_odd)
    seconds, counts = np.frombuffer(series.seconds), series.counts()
    total = int(counts.sum())
    first = np.cumsum(counts) - counts
    reasons = np.frombuffer(bytes(series.against), dtype=np.uint8).astype(int)
    warm = first < min(WARM_UP, total // 3)
    codes = np.where(warm, 0, np.where(reasons > 0, reasons, -1))
    in_mean = codes < 0
    if not in_mean.any():
        raise too_few(total)
    slow = in_mean & (seconds > STRAGGLER * float(np.median(seconds[in_mean])))
    in_mean &= ~slow
    used = int(counts[in_mean].sum())
    if used < LEAST:
        raise too_few(total)
    parts = [(reason, codes == code) for code, reason in enumerate(_REASONS)]
    parts.append(("stragglers", slow))
    low, middle, high = np.quantile(seconds[in_mean], (0.1, 0.5, 0.9))
    return StepTime(
        seconds=float(middle),
        low_s=float(low),
        high_s=float(high),
        steps=used,
        left_out=tuple(
            LeftOut(reason=reason, steps=int(counts[mask].sum()))
            for reason, mask in parts
            if mask.any()
        ),
        basis=series.basis,
    )


def too_few(total: int) -> RequestError:
    """The error of a log whose steps are too few for a steady one."""
    shown = f"{total:,} step{'s' * (total != 1)} in the log" if total else "no step with a time"
    detail = f"{shown}: at least {LEAST} are needed after warm-up, evaluations and stragglers"
    return refused("too_few_steps", detail, total)
