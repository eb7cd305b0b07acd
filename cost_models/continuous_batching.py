"""How long an engine takes for many responses of different lengths, by continuous batching.

Responses start together, as many as there is room for; each that ends makes room for the next one.
The number that runs is followed in expectation, by how many tokens each has so far, so that a run
of a million responses costs as much as one of a hundred.  At the end, the longest run on alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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
MAX_TURNS = 4.0


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
        """The lengths of measured responses, each equally likely."""
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
            lengths = cls(edges, _ending(1.0 - normal(logs - middle)))
            low, high = (middle, high) if lengths.mean < mean else (low, middle)
        return lengths


def _ending(survival: FloatArray) -> FloatArray:
    """The survival with its end at 0: no response is longer than the longest."""
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
def max_concurrent_responses(
    cache_bytes: float, held_bytes: FloatArray, survival: FloatArray
) -> float:
    """Responses whose caches fit without preemption, at each moment and in the steady state.

    held_bytes, survival: of a response, by its tokens so far.
    """
    in_step = float(np.max(held_bytes * survival))
    steady = float(np.sum(held_bytes * survival) / np.sum(survival))
    return cache_bytes / max(in_step, steady, 1.0)


@dataclass(frozen=True)
class Cut:
    """When a step ends while some responses still run.

    started: prompts that are started for each whose responses must all have ended.  samples: of a
    prompt.  goes_on: whether cut responses go on in the next step, with new weights and so with
    caches that are computed again; else they are lost.
    """

    started: float = 1.0
    samples: float = 1.0
    goes_on: bool = False


# Steps after which as many responses are left over as before, where cut ones go on.
STEPS_TO_STEADY = 8
# Rounds in which the share of responses that decode while others wait for tools is found.
WAITING_ROUNDS = 6


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
    cut: Cut | None = None,
    tool_wait_s: float = 0.0,
) -> Generated:
    """Seconds of `responses` on one engine, one of `engines` with as many each.

    cache_bytes: for keys and values on each accelerator.  prompts_per_response: the share of
    responses whose prompt isn't in the cache yet.  tokens_per_pass: of speculative decoding, with
    `drafted` tokens of a sequence verified at once.  cut: None where all must end.  tool_wait_s: of
    a mean response; it waits with its cache held, and longer ones in proportion.  Raises
    ValueError where not one fits.
    """
    width, survival = lengths.longest / BINS, lengths.survival[:-1]
    ages = lengths.edges[:-1] + width / 2.0
    cache_bytes_at_age = np.asarray(engine.cache_bytes(prompt_tokens + ages))
    read_s = np.asarray(engine.read_s(prompt_tokens + ages))
    longest = float(engine.cache_bytes(np.array(prompt_tokens + lengths.longest)))
    if longest > cache_bytes:
        raise ValueError("the cache of one sequence does not fit")
    fitting = max_concurrent_responses(cache_bytes, cache_bytes_at_age, survival)
    room = min(max_num_seqs, max(1.0, fitting))
    ends = cut or Cut()
    started = responses * ends.started
    running = min(room, started)
    ticks, waited_s = width / tokens_per_pass, tool_wait_s * width / lengths.mean
    stride_s = _strides(engine, running, read_s * (1.0 + drafted), 1.0 + drafted, ticks, waited_s)
    prompt_s = engine.prefill_s(prompt_tokens) * prompts_per_response
    ended = _ended_shares(lengths.survival)
    steady = running * survival / np.sum(survival)
    per_turn = float(np.sum(steady * ended))
    steady_stride_s = stride_s(steady)
    turn_s = steady_stride_s + per_turn * prompt_s
    waiting, skipped_s = started - running, 0.0
    skipped = min(waiting, max(0.0, responses - running)) - MAX_TURNS * running
    if skipped > 0.0:
        skipped_s = skipped / per_turn * turn_s
        waiting -= skipped
        responses -= skipped
    prompts_ended = _ended_shares(1.0 - (1.0 - lengths.survival) ** ends.samples)
    needed = responses / ends.samples if ends.started > 1.0 else np.inf
    run = _Run(room, engines, ended, prompts_ended, ends.samples, needed, stride_s, prompt_s)
    seconds = run.step(running, waiting)
    for _ in range(STEPS_TO_STEADY if ends.goes_on and ends.started > 1.0 else 0):
        age = prompt_tokens + float(run.running @ ages) / max(run.in_flight, 1e-9)
        seconds = run.in_flight * engine.prefill_s(age) + run.next_step(running + waiting)
    return Generated(
        skipped_s + seconds, run.tail_s, started * prompt_s, running,
        (steady_stride_s - waited_s) / width, per_turn * lengths.mean / turn_s,
    )  # fmt: skip


def _strides(
    engine: Engine, most: float, read_s: FloatArray, queries: float, ticks: float, waited_s: float
) -> Callable[[FloatArray], float]:
    """Seconds of one stride of responses in flight, by their stride so far.

    read_s: of the caches in one pass.  ticks: passes of a stride.  waited_s: for tools.
    """
    counts = np.unique(np.geomspace(1.0, max(most, 1.0), POINTS))
    passes = engine.decode_s(counts, queries)

    def pass_s(running: FloatArray) -> float:
        count = float(np.sum(running))
        return float(np.interp(count, counts, passes)) + float(running @ read_s)

    def stride_s(running: FloatArray) -> float:
        seconds = ticks * pass_s(running) + waited_s
        for _ in range(WAITING_ROUNDS if waited_s else 0):
            # As many decode as do not wait.
            decoding = 1.0 - waited_s / seconds
            seconds = ticks * pass_s(running * decoding) + waited_s
        return seconds

    return stride_s


def _ended_shares(survival: FloatArray) -> FloatArray:
    """The share of the responses that reach each stride that ends within it."""
    return 1.0 - survival[1:] / np.maximum(survival[:-1], 1e-12)


def _after_a_stride(running: FloatArray, ended: FloatArray) -> FloatArray:
    """One stride later, without those that ended."""
    later = np.empty_like(running)
    later[0] = 0.0
    np.multiply(running[:-1], 1.0 - ended[:-1], out=later[1:])
    return later


@dataclass
class _Run:
    """Responses in flight by their stride, and prompts by that of their responses.

    ended, prompts_ended: shares that end within each stride.  needed_prompts: those of which all
    responses must end.  stride_s: seconds of one stride of those in flight.
    """

    room: float
    engines: int
    ended: FloatArray
    prompts_ended: FloatArray
    samples: float
    needed_prompts: float
    stride_s: Callable[[FloatArray], float]
    prompt_s: float
    tail_s: float = 0.0
    running: FloatArray = field(default_factory=lambda: np.zeros(BINS))
    prompts: FloatArray = field(default_factory=lambda: np.zeros(BINS))

    @property
    def in_flight(self) -> float:
        """Responses that run."""
        return float(np.sum(self.running))

    def step(self, first: float, waiting: float) -> float:
        """Seconds until enough have ended: `first` start beside those that run, others wait."""
        self.tail_s = 0.0
        self._start(first)
        seconds, at_start, missing = first * self.prompt_s, self.in_flight, self.needed_prompts
        while (in_flight := self.in_flight) * self.engines > 0.5 and missing > 1e-9:
            passed = self.stride_s(self.running)
            if missing < np.inf:
                done = float(self.prompts @ self.prompts_ended)
                passed *= min(1.0, missing / done) if done else 1.0
                missing -= done
                self.prompts = _after_a_stride(self.prompts, self.prompts_ended)
            seconds += passed
            if waiting <= 0.0 and in_flight < at_start / 2.0:
                self.tail_s += passed
            self.running = _after_a_stride(self.running, self.ended)
            if waiting > 0.0:
                more = min(waiting, max(0.0, self.room - self.in_flight))
                self._start(more)
                waiting -= more
                seconds += more * self.prompt_s
        return seconds

    def next_step(self, started: float) -> float:
        """Seconds of a step of so many responses, of which those left over are the first."""
        fresh = max(0.0, started - self.samples * float(np.sum(self.prompts)))
        first = min(fresh, max(0.0, self.room - self.in_flight))
        return self.step(first, fresh - first)

    def _start(self, count: float) -> None:
        self.running[0] += count
        self.prompts[0] += count / self.samples
