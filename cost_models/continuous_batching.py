"""How long an engine takes for many responses of different lengths, by continuous batching.

Responses start together, as many as there is room for; each that ends makes room for the next one.
The number that runs is followed in expectation, by how many tokens each has so far, so that a run
of a million responses costs as much as one of a hundred.  At the end, the longest run on alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from cost_models.generation import Engine
from cost_models.profiles import FloatArray
from cost_models.sources import formula

# Steps in which the longest response is followed, and points at which a pass is priced.
BINS, POINTS = 128, 24
# Lengths of responses scatter as a log-normal with this deviation of the logarithm, cut at the
# longest one that is allowed: the 99th of a hundred is 6 times the median.
SPREAD = 0.8
FARTHEST = 5.0
# Turnovers of a full engine that are followed one by one; more of them are like the last.
MOST_TURNS = 4.0


@dataclass(frozen=True)
class Lengths:
    """Tokens of responses: `survival[i]` of them are longer than `edges[i]` tokens.

    edges: (B + 1,) ascending from 0; the last is the longest response.
    """

    edges: FloatArray
    survival: FloatArray

    @property
    def mean(self) -> float:
        """Mean tokens of a response."""
        middle = (self.survival[1:] + self.survival[:-1]) / 2.0
        return float(np.sum(middle * np.diff(self.edges)))

    @property
    def longest(self) -> float:
        """Tokens of the longest response."""
        return float(self.edges[-1])

    def expected_longest(self, count: float) -> float:
        """Tokens of the longest of so many responses, on average."""
        some_longer = 1.0 - (1.0 - self.survival) ** count
        return float(np.sum((some_longer[1:] + some_longer[:-1]) / 2.0 * np.diff(self.edges)))

    def shares(self, longest: float, bins: int) -> FloatArray:
        """(bins,): shares of the responses by their length, in equal steps up to the longest."""
        edges = np.linspace(0.0, longest, bins + 1)
        return -np.diff(np.interp(edges, self.edges, self.survival))

    @classmethod
    def of_samples(cls, lengths: FloatArray) -> Lengths:
        """Of measured lengths, each equally likely."""
        ordered = np.sort(np.asarray(lengths, dtype=np.float64))
        edges = np.linspace(0.0, ordered[-1], BINS + 1)
        longer = 1.0 - np.searchsorted(ordered, edges, side="left") / len(ordered)
        return cls(edges, _ending(longer))

    @classmethod
    def spread(cls, mean: float, longest: float, deviation: float = SPREAD) -> Lengths:
        """A log-normal that is cut at the longest response and has this mean.

        The longest is at most FARTHEST deviations above the mean, beyond which none is expected.
        Raises ValueError unless 0 < mean <= longest.
        """
        if not 0.0 < mean <= longest:
            raise ValueError(f"a mean of {mean:g} tokens where the longest has {longest:g}")
        longest = min(longest, mean * float(np.exp(FARTHEST * deviation)))
        edges = np.linspace(0.0, longest, BINS + 1)
        normal = np.vectorize(NormalDist().cdf)
        logs = np.log(np.maximum(edges, 1e-9)) / deviation
        low, high = np.log(mean) / deviation - 5.0, np.log(longest) / deviation + 30.0
        for _ in range(60):
            middle = (low + high) / 2.0
            found = cls(edges, _ending(1.0 - normal(logs - middle)))
            low, high = (middle, high) if found.mean < mean else (low, middle)
        return found


def _ending(survival: FloatArray) -> FloatArray:
    """None is longer than the longest."""
    return np.append(survival[:-1], 0.0)


@dataclass(frozen=True)
class Generated:
    """How a batch of responses ran on one of `engines` equal engines.

    seconds: until the last response of all engines ended.  tail_s: of these, after the engine was
    last full or half of its responses had ended.  prefill_s: of prompts.  running: most responses
    at a time.  decode_s: between two tokens of a response with so many, in the steady state.
    steady_tokens_per_s: of one engine that never runs out of prompts.
    """

    seconds: float
    tail_s: float
    prefill_s: float
    running: float
    decode_s: float
    steady_tokens_per_s: float


@formula("1", "derived")
def most_running(cache_bytes: float, held_bytes: FloatArray, survival: FloatArray) -> float:
    """Responses whose caches fit without preemption, at each moment and in the steady state.

    held_bytes, survival: of a response, by its tokens so far.
    """
    together = float(np.max(held_bytes * survival))
    steady = float(np.sum(held_bytes * survival) / np.sum(survival))
    return cache_bytes / max(together, steady, 1.0)


def generate(
    engine: Engine,
    lengths: Lengths,
    prompt_tokens: float,
    responses: float,
    *,
    engines: int = 1,
    cache_bytes: float,
    max_num_seqs: float = 1024,
    prompts_per_response: float = 1.0,
    tokens_per_pass: float = 1.0,
    drafted: float = 0.0,
) -> Generated:
    """Seconds of `responses` on one engine, one of `engines` with as many each.

    cache_bytes: for keys and values on each accelerator.  prompts_per_response: the share of
    responses whose prompt isn't in the cache yet.  tokens_per_pass: of speculative decoding, with
    `drafted` tokens of a sequence verified at once.  Raises ValueError where not one fits.
    """
    width = lengths.longest / BINS
    ages = lengths.edges[:-1] + width / 2.0
    survival: FloatArray = lengths.survival[:-1]
    held = np.asarray(engine.cache_bytes(prompt_tokens + ages))
    read = np.asarray(engine.read_s(prompt_tokens + ages))
    longest = float(engine.cache_bytes(np.array(prompt_tokens + lengths.longest)))
    if longest > cache_bytes:
        raise ValueError("the cache of one sequence does not fit")
    room = min(max_num_seqs, max(1.0, most_running(cache_bytes, held, survival)))
    most = min(room, responses)
    counts = np.unique(np.geomspace(1.0, max(most, 1.0), POINTS))
    passes = engine.decode_s(counts, 1.0 + drafted)
    prompt_s = engine.prefill_s(prompt_tokens) * prompts_per_response

    def pass_s(running: FloatArray) -> float:
        count = float(np.sum(running))
        return float(np.interp(count, counts, passes)) + float(running @ read) * (1.0 + drafted)

    rest = 1.0 - lengths.survival[1:] / np.maximum(survival, 1e-12)
    steady = most * survival / np.sum(survival)
    per_turn = float(np.sum(steady * rest))
    ticks = width / tokens_per_pass
    decode_s = pass_s(steady) / tokens_per_pass
    turn_s = width * decode_s + per_turn * prompt_s
    waiting, skipped_s = responses - most, 0.0
    if waiting > MOST_TURNS * most:
        skipped = waiting - MOST_TURNS * most
        skipped_s = skipped / per_turn * turn_s
        waiting -= skipped
    passed_s, tail_s = _followed(
        most, waiting, room, engines, rest, lambda now: ticks * pass_s(now), prompt_s
    )
    seconds = skipped_s + most * prompt_s + passed_s
    steady_tokens_per_s = per_turn * lengths.mean / turn_s
    return Generated(seconds, tail_s, responses * prompt_s, most, decode_s, steady_tokens_per_s)


def _followed(
    most: float, waiting: float, room: float, engines: int, ended_share: FloatArray,
    stride_s: Callable[[FloatArray], float], prompt_s: float,
) -> tuple[float, float]:  # fmt: skip
    """Seconds until no response runs, and those of the tail.

    ended_share: of responses that end within each stride.  stride_s: of one stride of those that
    run, by their stride.
    """
    running = np.zeros(BINS)
    running[0] = most
    seconds, tail_s = 0.0, 0.0
    while (left := float(np.sum(running))) * engines > 0.5:
        passed = stride_s(running)
        seconds += passed
        if waiting <= 0.0 and left < most / 2.0:
            tail_s += passed
        running = np.roll(running * (1.0 - ended_share), 1)
        running[0] = min(waiting, room - float(np.sum(running)))
        waiting -= running[0]
        seconds += running[0] * prompt_s
    return seconds, tail_s
