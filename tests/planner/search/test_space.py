"""The space of every framework: every plan that leaves it is legal, and every legal one does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from cost_models.plans import ParallelPlan
from planner import frameworks
from planner.answers.plans.competition import prepared
from planner.inputs.requests.parser import parse_request
from planner.search.space import Space

# 12 heads in 2 groups: which degrees divide them depends on how context is exchanged.
GROUPED = {
    "num_layers": 4, "hidden_size": 768, "num_attention_heads": 12, "num_query_groups": 2,
    "ffn_hidden_size": 2048, "vocab_size": 32768, "max_position_embeddings": 4096,
    "norm": "rmsnorm", "gated_mlp": True, "position": "rope", "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}  # fmt: skip
CLUSTERS = {"mindspeed": "2x8xascend-910b1", "primus": "2x8xmi300x"}
WITHOUT_EXPERTS = {"deepspeed", "gpt-neox", "torchtune", "unsloth"}
SPARSE = GROUPED | {"moe": {"num_experts": 4, "top_k": 2, "expert_ffn_hidden_size": 512}}


def space_of(framework: str, model: object, **limits: object) -> Space:
    document = {
        "model": model,
        "cluster": CLUSTERS.get(framework, "2x8xh100-sxm"),
        "training": {"seq_length": 2048, "global_batch_size": 32},
        "search": {"framework": framework, "pp": [1, 2], "micro_batch_size": [1, 2], **limits},
    }
    request, rules = prepared(parse_request(document).for_framework(framework))
    return Space(request, rules)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "model"),
    [
        pytest.param(name, model, id=f"{name}-{kind}")
        for name in frameworks.FRAMEWORKS
        for kind, model in (("dense", GROUPED), ("experts", SPARSE))
        if kind == "dense" or name not in WITHOUT_EXPERTS
    ],
)
def test_no_rule_refuses_what_is_drawn(framework: str, model: object) -> None:
    space = space_of(framework, model)
    chunks = list(space.chunks(100_000))
    assert chunks
    for plans in chunks:
        for rule in space.rules:
            assert np.all(rule.legal(space.context, plans)), rule.code


@pytest.mark.parametrize("framework", ["pytorch", "accelerate", "colossalai"])
def test_a_kind_of_context_parallelism_beside_others_keeps_its_plans(framework: str) -> None:
    together = space_of(framework, GROUPED)
    kinds = together._axes.values["cp_kind"]
    assert len(kinds) > 1
    alone = {
        row
        for kind in kinds
        for row in _plans(space_of(framework, GROUPED, cp_kind=[kind]))
        if row.cp > 1
    }
    found = {row for row in _plans(together) if row.cp > 1}
    assert found == alone != set()


def _plans(space: Space) -> Iterator[ParallelPlan]:
    return (plans.row(i) for plans in space.chunks(100_000) for i in range(len(plans)))
