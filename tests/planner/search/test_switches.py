"""What is compiled, fused or overlapped is never slower, so the search leaves the rest out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from cost_models.catalog.hardware import parse_shorthand
from cost_models.catalog.models import model as preset
from cost_models.plans import Plans, encoded
from cost_models.spec import TrainingSpec
from planner import frameworks
from planner.answers.plans.competition import prepared
from planner.documents.request import PlanRequest
from planner.search.exhaustive import cost_model, search
from planner.search.option_axes import SWITCHES, weighs_overlaps
from planner.search.space import Space

CASES = [
    ("torchtitan", "llama-3.1-8b"),
    ("torchtitan", "qwen3-30b-a3b"),
    ("deepspeed", "llama-3.1-8b"),
    ("pytorch", "llama-3.1-8b"),
    ("nanotron", "llama-3.1-8b"),
    ("megatron", "qwen3-30b-a3b"),
]


# Plans that take so many times what the best takes do not become the best by a switch.
NEAR = 1.25


def asked(model: str, cluster: str, framework: str) -> PlanRequest:
    return PlanRequest(
        model=preset(model),
        cluster=parse_shorthand(cluster),
        training=TrainingSpec(seq_length=4096, global_batch_size=64),
    ).for_framework(framework)


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize(("framework", "model"), CASES)
def test_a_better_switch_is_never_slower_nor_larger(framework: str, model: str) -> None:
    """Of every schedule.  Not slower: among the plans that may become the best."""
    request, rules = prepared(asked(model, "2x8xh100-sxm", framework))
    costs, drawn = cost_model(request), np.random.default_rng(0)
    axes = frameworks.get(framework).axes
    best = costs.evaluate(Plans.from_rows(search(request, rules, top_k=1).best))
    most_s = NEAR * best.iteration_time_s[0]
    tried = 0
    for plans in Space(request, rules).chunks(1 << 18):
        for name in np.unique(plans.schedule):
            own = plans.take(np.broadcast_to(plans.schedule == name, (len(plans),)))
            near = np.flatnonzero(costs.evaluate(own).iteration_time_s <= most_s)
            some = own.take(np.r_[near[:500], drawn.integers(0, len(own), 100)])
            weighed = weighs_overlaps(request.cluster, some)
            for field, chain in SWITCHES.items():
                priced = [
                    costs.evaluate(
                        some.with_columns(**{field: np.full(len(some), encoded(field, value))})
                    )
                    for value in chain
                    if value in axes.get(field, ())
                ]
                for better, worse in pairwise(priced):
                    close = worse.iteration_time_s <= most_s
                    if field == "overlap_ep":
                        close &= ~weighed
                    tried += int(close.sum())
                    slack = 1.001
                    slower = better.iteration_time_s > worse.iteration_time_s * slack
                    assert not np.any(slower & close), field
                    assert np.all(better.needed_bytes <= worse.needed_bytes * (1.0 + 1e-9)), field
    assert tried > 50


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["torchtitan", "deepspeed", "nanotron"])
def test_the_best_plan_is_that_of_every_combination(framework: str) -> None:
    request, rules = prepared(asked("llama-3.1-8b", "1x8xh100-sxm", framework))
    some, every = search(request, rules, top_k=1), search(request, rules, top_k=1, full=True)
    assert some.counts is not None
    assert every.counts is not None
    assert 0 < some.counts.costed < every.counts.costed
    seconds = [
        cost_model(request).evaluate(Space(request).legal([found.best[0]])).iteration_time_s[0]
        for found in (some, every)
    ]
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-3)
