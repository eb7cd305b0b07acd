"""Samples dealt to context-parallel ranks by length, against a simulation of every rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.catalog.models import model
from cost_models.dynamic_context import length_groups, ranks_of, waiting_share
from cost_models.estimate import CostModel
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import TrainingSpec
from planner.inputs.requests.parser import parse_cluster

LLAMA = model("llama-3.1-8b")
CLUSTER = parse_cluster("2x8xh100-sxm")
LENGTHS = (300, 800, 1500, 1500, 2500, 6000, 7000, 15000, 32768)


def training(**fields: Any) -> TrainingSpec:
    return TrainingSpec(**{"seq_length": 32768, "global_batch_size": 64, **fields})


def plan(cp: int, **fields: Any) -> ParallelPlan:
    return ParallelPlan(cp=cp, dp=16 // cp, **fields)


def parts(spec: TrainingSpec, *plans: ParallelPlan) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    found = CostModel(LLAMA, CLUSTER, spec).evaluate(Plans.from_rows(list(plans)))
    return {**found.time_parts_s, "all": found.iteration_time_s, "bytes": found.peak_bytes}


def test_a_sample_takes_the_least_power_of_two_of_ranks_that_holds_it() -> None:
    lengths = np.array([1.0, 4096.0, 4097.0, 8192.0, 16384.0, 16385.0, 32768.0])
    assert ranks_of(lengths, 32768.0, 8).tolist() == [1, 1, 2, 2, 4, 8, 8]


def test_samples_that_are_priced_as_one_take_the_same_ranks_and_are_all_there() -> None:
    spec = training(sample_lengths=LENGTHS)
    means, shares = map(np.array, zip(*length_groups(spec), strict=True))
    assert shares.sum() == pytest.approx(1.0)
    assert (means * shares).sum() == pytest.approx(np.mean(LENGTHS))
    for cp in (2, 8, 32):
        of_samples = ranks_of(np.array(LENGTHS), 32768.0, cp).mean()
        assert (ranks_of(means, 32768.0, cp) * shares).sum() == pytest.approx(of_samples)


def passes_s(spec: TrainingSpec, length: int, ranks: int) -> float:
    """Seconds of one sample alone on some of the ranks, forward and backward."""
    alone = spec.model_copy(
        update={"seq_length": length, "sample_lengths": (), "global_batch_size": 16 // ranks}
    )
    found = parts(alone, plan(ranks))
    return float(sum(found[name][0] for name in ("forward", "backward", "cp_comm")))


def dealt_s(spec: TrainingSpec, cp: int, draws: int) -> float:
    """Mean of the fullest rank's seconds: the longest first, each to the ranks with least work."""
    random, seconds = np.random.default_rng(0), []
    count = round(spec.positions_per_iteration / np.mean(spec.sample_lengths))
    price = {
        length: (ranks, passes_s(spec, length, ranks))
        for length in set(spec.sample_lengths)
        for ranks in [int(ranks_of(float(length), 32768.0, cp))]
    }
    for _ in range(draws):
        load = np.zeros(16)
        for length in sorted(random.choice(spec.sample_lengths, count), reverse=True):
            ranks, own = price[int(length)]
            groups = load.reshape(-1, ranks)
            groups[groups.max(axis=1).argmin()] += own
        seconds.append(load.max() * spec.positions_per_iteration / (count * np.mean(LENGTHS)))
    return float(np.mean(seconds))


@pytest.mark.slow
@pytest.mark.parametrize("cp", [4, 8])
@pytest.mark.parametrize("batch", [64, 512])
def test_the_step_is_that_of_samples_dealt_to_ranks_one_by_one(cp: int, batch: int) -> None:
    spec = training(sample_lengths=LENGTHS, global_batch_size=batch)
    found = parts(spec, plan(cp, dynamic_cp=True))
    busy = float(sum(found[n][0] for n in ("forward", "backward", "cp_comm", "stragglers")))
    assert busy == pytest.approx(dealt_s(spec, cp, draws=20), rel=0.05)


def test_only_long_samples_exchange_keys() -> None:
    spec = training(sample_lengths=LENGTHS)
    found = parts(spec, plan(8), plan(8, dynamic_cp=True))
    whole, dealt = found["cp_comm"]
    assert 0 < dealt < 0.8 * whole
    short = training(sample_lengths=(1000, 4096))
    assert parts(short, plan(8, dynamic_cp=True))["cp_comm"][0] == 0.0
    assert found["bytes"][0] == found["bytes"][1]  # a rank holds as many tokens of the longest


def test_without_shorter_samples_it_is_the_whole_pool() -> None:
    for fields in ({}, {"sample_lengths": (32768,)}):
        whole, dealt = parts(training(**fields), plan(8), plan(8, dynamic_cp=True))["all"]
        assert dealt == pytest.approx(whole, rel=1e-12)


def test_plans_priced_together_and_alone_are_the_same() -> None:
    spec = training(sample_lengths=LENGTHS)
    plans = [plan(cp, dynamic_cp=dynamic) for cp in (1, 2, 8) for dynamic in (False, True)]
    together = parts(spec, *plans)["all"]
    alone = [parts(spec, one)["all"][0] for one in plans]
    assert together == pytest.approx(alone, rel=1e-12)


def test_few_passes_and_unequal_ones_make_ranks_wait() -> None:
    def share(batch: int, *lengths: int) -> float:
        spec = training(sample_lengths=lengths, global_batch_size=batch)
        return float(waiting_share(spec, Plans.of(plan(8, dynamic_cp=True))))

    assert share(64, 4096) == 0.0
    assert share(64, 500, 4096) == pytest.approx(8 * share(512, 500, 4096))
    assert share(64, 500, 4096) > share(64, 3000, 4096)
