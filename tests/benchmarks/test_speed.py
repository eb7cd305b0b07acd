"""Speed of the cost model and the search, warm, on one core.

Run with `pytest tests/benchmarks -n 0`; the figures stand in docs/answers.md.  Nothing here fails
by the clock: the numbers are for reading, and for `pytest-benchmark compare`.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import planner
from cost_models.catalog.hardware import parse_shorthand
from cost_models.catalog.models import model as preset
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import TrainingSpec
from planner.answers.plans.competition import compete
from planner.documents.request import PlanRequest
from planner.inputs.requests.parser import parse_request
from planner.search.exhaustive import CHUNK, cost_model, search
from planner.search.space import Space


@pytest.fixture(autouse=True)
def one_core() -> Iterator[None]:
    """Everything on one core, whatever the machine has."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def ask(model: str, cluster: str, seq: int, batch: int) -> PlanRequest:
    training = TrainingSpec(seq_length=seq, global_batch_size=batch)
    return PlanRequest(model=preset(model), cluster=parse_shorthand(cluster), training=training)


GPT3 = [("gpt3-175b", f"{n // 8}x8xa100-sxm-80gb", 2048, 1536) for n in (64, 512, 1024, 4096)]
LLAMA_70B = ("llama-3.1-70b", "8x8xh100-sxm", 8192, 1024)
QWEN = ("qwen3-235b-a22b", "32x8xh100-sxm", 4096, 1024)
LLAMA = ("llama-3.1-405b", "2048x8xh100-sxm", 8192, 2048)
DEEPSEEK = ("deepseek-v3", "256x8xh100-sxm", 4096, 15360)


@pytest.mark.parametrize("every_stage", [False, True], ids=["undominated", "every-stage"])
@pytest.mark.parametrize("question", [GPT3[2], LLAMA, DEEPSEEK], ids=lambda q: f"{q[0]}-{q[1]}")
def test_plans_per_second(
    benchmark: BenchmarkFixture, question: tuple[str, str, int, int], every_stage: bool
) -> None:
    """Every time part, and the memory parts of the stages, of all legal plans of a real space.

    The search prices only the stages that no other one bounds; `every-stage` prices all of them.
    """
    request = ask(*question)
    model = cost_model(request)
    chunks = list(Space(request).chunks(CHUNK))
    if benchmark.disabled:  # under pytest-xdist: only whether it runs
        chunks = chunks[:1]
    plans = sum(len(chunk) for chunk in chunks)

    def evaluate() -> None:
        for chunk in chunks:
            model.evaluate(chunk, all_stages=every_stage)

    benchmark.pedantic(evaluate, rounds=3, warmup_rounds=1)
    benchmark.extra_info["plans"] = plans
    if benchmark.stats:  # none where pytest-xdist has switched benchmarks off
        benchmark.extra_info["plans_per_s"] = round(plans / benchmark.stats.stats.median)


@pytest.mark.parametrize("question", [*GPT3, LLAMA, DEEPSEEK], ids=lambda q: f"{q[0]}-{q[1]}")
def test_search(benchmark: BenchmarkFixture, question: tuple[str, str, int, int]) -> None:
    """One question over the default space."""
    request = ask(*question)
    outcome = benchmark.pedantic(search, args=(request,), rounds=5, warmup_rounds=1)
    assert outcome.best
    benchmark.extra_info["costed"] = outcome.counts.costed
    benchmark.extra_info["enumerated"] = outcome.counts.enumerated
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    benchmark.extra_info["process_peak_mib"] = peak_kib // 1024


@pytest.mark.parametrize(
    "question", [GPT3[2], LLAMA_70B, LLAMA, QWEN, DEEPSEEK], ids=lambda q: f"{q[0]}-{q[1]}"
)
def test_public_plan(
    benchmark: BenchmarkFixture,
    capsys: pytest.CaptureFixture[str],
    question: tuple[str, str, int, int],
) -> None:
    """`planner.plan` over all frameworks, beside its own search and the same for Megatron alone."""
    document = asked(*question)
    alone = document | {"search": {"framework": "megatron"}}
    request = parse_request(document)
    benchmark.pedantic(planner.plan, args=(document,), rounds=3, warmup_rounds=1)
    if benchmark.stats:
        all_s, search_s, alone_s = cpu_s(
            lambda: planner.plan(document),
            lambda: compete(request),
            lambda: planner.plan(alone),
            rounds=5,
        )
        with capsys.disabled():
            print(
                f"\nplan {question[0]}: {all_s:.2f} s of CPU, {all_s / search_s:.2f} x its search, "
                f"{all_s / alone_s:.2f} x Megatron alone"
            )


def test_public_estimate(benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str]) -> None:
    """`planner.estimate` of a document, beside `CostModel.evaluate` of its plan."""
    given = {"tp": 8, "sequence_parallel": True, "pp": 4, "dp": 2}
    document = asked(*LLAMA_70B) | {"plan": given}
    model = cost_model(ask(*LLAMA_70B))
    plans = Plans.from_rows([ParallelPlan.model_validate(given)])
    benchmark(planner.estimate, document)
    if benchmark.stats:
        own_s, evaluated_s = cpu_s(
            lambda: planner.estimate(document), lambda: model.evaluate(plans), rounds=200
        )
        with capsys.disabled():
            print(f"\nestimate: {1e3 * own_s:.2f} ms, {own_s / evaluated_s:.2f} x evaluate")


def asked(model: str, cluster: str, seq: int, batch: int) -> dict[str, Any]:
    training = {"seq_length": seq, "global_batch_size": batch}
    return {"model": model, "cluster": cluster, "training": training}


def cpu_s(*calls: Callable[[], object], rounds: int) -> list[float]:
    """Median CPU seconds of warm calls, in turns: so what else runs does not move their ratios."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(1 + rounds):
        for call, seconds in zip(calls, taken, strict=True):
            began = time.process_time()
            call()
            seconds.append(time.process_time() - began)
    return [median(seconds[1:]) for seconds in taken]


def test_one_estimate(benchmark: BenchmarkFixture) -> None:
    """Time and memory of one plan, parsing aside."""
    request = ask("llama-3.1-70b", "8x8xh100-sxm", 8192, 1024)
    model = cost_model(request)
    plan = Plans.from_rows([ParallelPlan(tp=8, sequence_parallel=True, pp=4, dp=2)])
    benchmark(model.evaluate, plan)
