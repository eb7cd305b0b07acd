"""Engines that generate: bytes by hand, bounds of a pass, batching against each response."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from cost_models.catalog.hardware import parse_shorthand
from cost_models.catalog.models import model, models
from cost_models.continuous_batching import Cut, Lengths, generate, max_concurrent_responses
from cost_models.estimate import CostModel
from cost_models.generation import Engine, cache_read_s, experts_used
from cost_models.parameters import total_parameters
from cost_models.spec import TrainingSpec
from tools.accuracy.generation import ratios

ROOM = 60e9


def engine(
    name: str = "llama-3.1-8b", accelerator: str = "h100-sxm", tp: int = 1, **more: str | bool
) -> Engine:
    training = TrainingSpec(seq_length=4096, global_batch_size=8)
    cluster = parse_shorthand(f"1x8x{accelerator}")
    return Engine(CostModel(model(name), cluster, training), tp, **more)  # type: ignore[arg-type]


class TestCache:
    def test_keys_and_values_of_each_head_group(self) -> None:
        # 32 layers, 8 groups of 128, keys and values in bf16; in fp8 half of it.
        assert engine().cache_bytes(np.array(1000.0)) == 1000 * 32 * 2 * 8 * 128 * 2
        assert engine(cache="fp8").cache_bytes(np.array(1.0)) == 32 * 2 * 8 * 128
        # Ranks share the groups; with more ranks than groups each has a whole one.
        assert engine(tp=8).cache_bytes(np.array(1.0)) == 32 * 2 * 128 * 2
        assert engine("qwen3-30b-a3b", tp=8).cache_bytes(np.array(1.0)) == 48 * 2 * 128 * 2

    def test_latents_are_on_every_rank(self) -> None:
        # DeepSeek-V3: 61 layers, a latent of 512 and rotary keys of 64.
        for tp in (1, 8):
            assert engine("deepseek-v3", tp=tp).cache_bytes(np.array(1.0)) == 61 * 576 * 2

    def test_windows_keep_no_more_than_their_tokens(self) -> None:
        # gpt-oss-20b: 12 of 24 layers see 128 tokens; 8 groups of 64.
        each = 2 * 8 * 64 * 2
        found = engine("gpt-oss-20b").cache_bytes(np.array([100.0, 10_000.0]))
        assert found.tolist() == [24 * each * 100, 12 * each * (128 + 10_000)]

    def test_states_do_not_grow(self) -> None:
        # Qwen3-Next: 36 of 48 layers have 32 states of 128 x 128, and 3 inputs of the convolution
        # over 2 x 16 x 128 + 32 x 128; the other 12 have 2 groups of 256.
        states = 36 * 4 * (32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128))
        found = engine("qwen3-next-80b-a3b").cache_bytes(np.array([0.0, 1000.0]))
        assert found.tolist() == [states, states + 1000 * 12 * 2 * 2 * 256 * 2]

    @pytest.mark.one_in(1, quick=6)
    @pytest.mark.parametrize("entry", models(), ids=lambda entry: entry.id)
    def test_every_preset_keeps_something(self, entry: object) -> None:
        name = entry.id  # type: ignore[attr-defined]
        one = engine(name, tp=1 + (model(name).num_attention_heads % 2 == 0))
        small, large = one.cache_bytes(np.array([64.0, 4096.0]))
        assert 0 < small <= large < np.inf
        assert 0 < one.weight_bytes < 2.3 * total_parameters(model(name))
        assert np.all(np.diff(one.decode_s(np.array([1.0, 64.0, 1024.0]))) >= 0)
        assert np.all(one.read_s(np.array([1.0, 1e5])) > 0)


class TestPass:
    def test_weights_are_read_once_for_all_sequences(self) -> None:
        one = engine()
        assert one.weight_bytes == 2.0 * total_parameters(one.model)
        read_s = one.weight_bytes / 3.35e12
        single, several = one.decode_s(np.array([1.0, 32.0]))
        assert read_s < single < 1.6 * read_s
        assert several < 1.1 * single

    def test_many_sequences_take_their_products(self) -> None:
        flop = 2.0 * total_parameters(model("llama-3.1-8b")) * 4096
        seconds = float(engine().decode_s(np.array(4096.0)))
        assert flop / 989e12 < seconds < 2.5 * flop / 989e12

    def test_fewer_experts_are_read_by_few_tokens(self) -> None:
        assert experts_used(128, 8, 1) == 8 / 128
        assert experts_used(128, 8, 1000) == pytest.approx(1.0)
        single, many = engine("qwen3-30b-a3b").decode_s(np.array([1.0, 128.0]))
        assert many > 3 * single  # all experts are read instead of a sixteenth

    def test_the_slower_of_reading_and_computing_counts(self) -> None:
        assert cache_read_s(6.0, 1.0, 2.0, 1.0) == 3.0
        assert cache_read_s(6.0, 8.0, 2.0, 1.0) == 8.0

    def test_prompts_cost_their_forward_pass(self) -> None:
        flop = 2.0 * total_parameters(model("llama-3.1-8b")) * 1000
        assert flop / 989e12 < engine().prefill_s(1000) < 2.0 * flop / 989e12
        # Twice as long a prompt takes more than twice as long.
        assert engine().prefill_s(64_000) > 2.2 * engine().prefill_s(32_000)

    def test_small_formats_halve_what_is_read(self) -> None:
        wide, narrow = engine().decode_s(np.array(1.0)), engine(weights="fp8").decode_s(1.0)
        assert 0.5 < narrow / wide < 0.75


class TestLengths:
    @pytest.mark.parametrize(
        ("mean", "longest"), [(2000, 8192), (300, 300), (7000, 8192), (9, 1e5)]
    )
    def test_have_the_mean_that_was_asked(self, mean: float, longest: float) -> None:
        found = Lengths.spread(mean, longest)
        assert found.mean == pytest.approx(mean, rel=0.005)
        assert found.longest == pytest.approx(min(longest, mean * np.exp(4.0)))
        assert np.all(np.diff(found.survival) <= 0)
        assert found.survival[-1] == 0

    def test_the_longest_of_many_is_longer_than_that_of_few(self) -> None:
        lengths = Lengths.spread(400, 2048)
        assert lengths.expected_longest(1) == pytest.approx(lengths.mean)
        draws = np.random.default_rng(3)
        tokens = np.array(drawn(lengths, 32 * 40_000, draws)).reshape(-1, 32)
        assert lengths.expected_longest(32) == pytest.approx(tokens.max(axis=1).mean(), rel=0.01)
        assert lengths.expected_longest(1e6) == pytest.approx(lengths.longest, rel=0.01)

    def test_measured_ones_are_taken_as_they_are(self) -> None:
        found = Lengths.of_samples(np.array([100.0, 100.0, 100.0, 400.0]))
        assert found.mean == pytest.approx(175, rel=0.02)
        assert found.survival[64] == 0.25

    def test_shares_are_of_all_responses_and_end_with_the_cut_ones(self) -> None:
        measured = Lengths.of_samples(np.array([100.0, 100.0, 100.0, 400.0]))
        assert list(measured.shares(800, 4)) == pytest.approx([0.75, 0.25, 0, 0], abs=0.02)
        cut = Lengths.spread(7000, 8192).shares(8192, 32)
        assert np.sum(cut) == pytest.approx(1)
        assert np.argmax(cut) == 31

    @pytest.mark.parametrize(("mean", "longest"), [(0, 10), (11, 10)])
    def test_impossible_ones_are_refused(self, mean: float, longest: float) -> None:
        with pytest.raises(ValueError, match="tokens where the longest has"):
            Lengths.spread(mean, longest)


def discrete_s(one: Engine, tokens: list[float], prompt: float, room: int) -> float:
    """Seconds of an engine that decodes token by token (in strides of 16), first come first run."""
    waiting, running, now, stride = list(tokens), [], 0.0, 16.0
    while waiting or running:
        while waiting and len(running) < room:
            heapq.heappush(running, [0.0, waiting.pop(0)])
            now += one.prefill_s(prompt)
        ages = np.array([age for age, _ in running])
        read_s = float(np.sum(one.read_s(prompt + ages)))
        now += stride * (float(one.decode_s(np.array(float(len(running))))) + read_s)
        running = [[age + stride, end] for age, end in running if age + stride < end]
        heapq.heapify(running)
    return now


class TestBatching:
    def test_a_response_waits_for_a_pass_with_all_that_run(self) -> None:
        """Between two of its tokens; several tokens of a pass share it."""
        one, each = engine(), Lengths.of_samples(np.array([256.0]))
        made = generate(one, each, 512, 64, cache_bytes=4e10)
        reads = float(np.mean(one.read_s(512 + np.arange(256.0) + 0.5)))
        expected = float(one.decode_s(np.array(64.0))) + 64 * reads
        assert made.decode_s == pytest.approx(expected, rel=0.01)
        drafting = generate(one, each, 512, 64, cache_bytes=4e10, tokens_per_pass=2)
        assert drafting.decode_s == pytest.approx(made.decode_s / 2)

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize(("count", "room"), [(64, 64), (256, 64), (300, 128)])
    def test_equals_a_simulation_of_each_response(self, count: int, room: int) -> None:
        one = engine()
        lengths = Lengths.spread(400, 2048)
        draws = np.random.default_rng(7)
        each = []
        for _ in range(6):  # orders of the queue
            shares = 1.0 - (draws.permutation(count) + 0.5) / count
            tokens = np.interp(shares, lengths.survival[::-1], lengths.edges[::-1]).tolist()
            each.append(discrete_s(one, tokens, 256, room))
        made = generate(one, lengths, 256, count, cache_bytes=ROOM, max_num_seqs=room)
        assert made.seconds == pytest.approx(np.mean(each), rel=0.08)
        assert made.running == room

    def test_a_long_queue_costs_its_share(self) -> None:
        one, lengths = engine(), Lengths.spread(400, 2048)

        def seconds(count: int) -> float:
            made = generate(one, lengths, 256, count, cache_bytes=ROOM, max_num_seqs=64)
            return made.seconds

        first, second, third = seconds(2_000), seconds(4_000), seconds(6_000)
        assert third - second == pytest.approx(second - first, rel=0.01)
        made = generate(one, lengths, 256, 6_000, cache_bytes=ROOM, max_num_seqs=64)
        assert 2_000 * 400 / (third - second) == pytest.approx(made.steady_tokens_per_s, rel=0.02)

    def test_the_tail_of_equal_lengths_is_nothing(self) -> None:
        even = Lengths.of_samples(np.array([500.0]))
        made = generate(engine(), even, 256, 64, cache_bytes=ROOM)
        assert made.tail_s == 0
        spread = generate(engine(), Lengths.spread(500, 8000), 256, 64, cache_bytes=ROOM)
        assert spread.tail_s > spread.seconds / 2

    def test_caches_bound_what_runs(self) -> None:
        held = np.array([1.0, 2.0, 4.0])
        assert max_concurrent_responses(100.0, held, np.array([1.0, 1.0, 1.0])) == 25
        assert max_concurrent_responses(100.0, held, np.array([1.0, 0.5, 0.25])) == 100 / (3 / 1.75)
        few = generate(engine(), Lengths.spread(400, 2048), 256, 500, cache_bytes=2e9)
        assert few.running < 50
        with pytest.raises(ValueError, match="cache of one sequence"):
            generate(engine(), Lengths.spread(400, 2048), 256, 500, cache_bytes=2e8)

    def test_accepted_drafts_shorten_the_tail(self) -> None:
        lengths = Lengths.spread(500, 8000)
        plain = generate(engine(), lengths, 256, 16, cache_bytes=ROOM)
        drafted = generate(
            engine(), lengths, 256, 16, cache_bytes=ROOM, tokens_per_pass=2.5, drafted=3
        )
        assert 2.0 < plain.seconds / drafted.seconds <= 2.5


def drawn(lengths: Lengths, count: int, draws: np.random.Generator) -> list[float]:
    shares = draws.random(count)
    return np.interp(shares, lengths.survival[::-1], lengths.edges[::-1]).tolist()


def simulated_steps_s(
    one: Engine, lengths: Lengths, prompt: float, wanted: int, started: int, samples: int,
    goes_on: bool, steps: int, seed: int,
) -> list[float]:  # fmt: skip
    """Seconds of steps of an engine with room for all, each response followed by itself.

    A step ends when all samples of `wanted` of its `started` prompts have ended.
    """
    draws, stride, found, left = np.random.default_rng(seed), 16.0, [], []
    for _ in range(steps):
        # Of each response [tokens so far, tokens of it all], by prompt; those left over come first.
        fresh = [[[0.0, n] for n in drawn(lengths, samples, draws)]
                 for _ in range(started - len(left))]  # fmt: skip
        resumed = [r for p in left for r in p if r[0] < r[1]]
        now = sum(one.prefill_s(prompt + age) for age, _ in resumed)
        now += len(fresh) * samples * one.prefill_s(prompt)
        prompts, done = [*left, *fresh], 0
        while done < wanted:
            running = [r for p in prompts for r in p if r[0] < r[1]]
            read_s = float(np.sum(one.read_s(prompt + np.array([age for age, _ in running]))))
            now += stride * (float(one.decode_s(np.array(float(len(running))))) + read_s)
            for response in running:
                response[0] += stride
            done += sum(all(age >= end for age, end in p) for p in prompts)
            prompts = [p for p in prompts if any(age < end for age, end in p)]
        left = prompts if goes_on else []
        found.append(now)
    return found


class TestCut:
    """Over-sampling, partial rollouts and tools, each against a simulation of each response."""

    @pytest.mark.one_in(2, quick=2)
    @pytest.mark.parametrize("samples", [1, 4])
    @pytest.mark.parametrize("goes_on", [False, True])
    def test_a_step_ends_when_enough_prompts_have_ended(self, samples: int, goes_on: bool) -> None:
        one, lengths = engine(), Lengths.spread(400, 4096)
        wanted, started = 96 // samples, 144 // samples
        steps = [
            np.mean(simulated_steps_s(one, lengths, 256, wanted, started, samples, goes_on, 12,
                                      seed)[4:])
            for seed in range(3)
        ]  # fmt: skip
        cut = Cut(1.5, samples, goes_on)
        made = generate(one, lengths, 256, 96, cache_bytes=ROOM, cut=cut)
        whole = generate(one, lengths, 256, 96, cache_bytes=ROOM)
        assert made.seconds == pytest.approx(np.mean(steps), rel=0.08)
        assert made.seconds < 0.7 * whole.seconds
        assert made.running == pytest.approx(144)

    def test_what_goes_on_is_not_lost(self) -> None:
        """Long responses end some day, which takes longer than the short ones alone."""
        one, lengths = engine(), Lengths.spread(400, 8192)

        def seconds(cut: Cut | None) -> float:
            return generate(one, lengths, 256, 96, cache_bytes=ROOM, cut=cut).seconds

        assert seconds(Cut(2.0)) < seconds(Cut(2.0, goes_on=True)) < seconds(None)
        assert seconds(Cut(1.0)) == seconds(None)

    @pytest.mark.slow
    @pytest.mark.parametrize("wait_s", [2.0, 20.0])
    def test_those_that_wait_for_tools_leave_the_engine_to_others(self, wait_s: float) -> None:
        """8 turns of a mean response: it waits after each 50 tokens, its cache held."""
        one, lengths, turn = engine(), Lengths.spread(400, 4096), 48.0
        found = []
        for seed in range(3):
            ends = drawn(lengths, 128, np.random.default_rng(seed))
            ages, until = np.zeros(128), np.zeros(128)
            now = 128 * one.prefill_s(256)
            while np.any(ages < ends):
                decodes = (ages < ends) & (until <= now)
                if not decodes.any():
                    now = float(until[ages < ends].min())
                    continue
                read_s = float(np.sum(one.read_s(256 + ages[decodes])))
                now += 16 * (float(one.decode_s(np.array(float(decodes.sum())))) + read_s)
                ages[decodes] += 16
                until[decodes & (ages % turn == 0)] = now + wait_s * turn / 50
            found.append(now)
        made = generate(one, lengths, 256, 128, cache_bytes=ROOM, tool_wait_s=8 * wait_s)
        assert made.seconds == pytest.approx(np.mean(found), rel=0.12)
        alone = generate(one, lengths, 256, 128, cache_bytes=ROOM)
        assert made.decode_s < alone.decode_s  # fewer of them decode at a time


@pytest.mark.slow
def test_published_throughputs_are_met() -> None:
    found = ratios()
    errors = np.abs(np.concatenate([np.array(each) for each in found.values()]) - 1.0)
    assert len(found) == 12
    assert len(errors) == 117
    assert np.median(errors) < 0.10
    assert np.mean(errors) < 0.15
    middles = {key: float(np.median(each)) for key, each in found.items()}
    assert all(0.85 < middle < 1.4 for middle in middles.values()), middles
