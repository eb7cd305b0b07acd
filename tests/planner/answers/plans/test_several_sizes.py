"""Clusters that differ in nodes only are searched together, and each finds what it finds alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from cost_models.catalog.hardware import cluster_of, node_group, parse_shorthand
from cost_models.catalog.models import model as preset
from cost_models.plans import Plans
from cost_models.spec import ClusterSpec, NodeGroup, TrainingSpec
from planner import frameworks
from planner.answers.plans.competition import (
    any_fits,
    fastest,
    fastest_on_each,
    key_without_node_count,
    prepared,
)
from planner.answers.sizing.request import SPACE
from planner.constraints import RULES, TP_IN_DOMAIN, WORLD_SIZE, Context, Rule
from planner.constraints.host_memory import HOST_MEMORY
from planner.documents.request import PlanRequest
from planner.frameworks.maxtext.mesh import on_tpus
from planner.inputs.requests.parser import parse_request
from planner.search import space as space_module
from planner.search.exhaustive import fits
from tests.fixtures.evaluations import counted


def asked(model: str, training: dict[str, object], search: dict[str, object]) -> PlanRequest:
    whole = {"seq_length": 4096, "global_batch_size": 384, **training}
    document = {"model": model, "cluster": "1x8xh100-sxm", "training": whole, "search": search}
    return parse_request(document)


def of_nodes(card: str, counts: Sequence[int]) -> list[ClusterSpec]:
    return [parse_shorthand(f"{count}x8x{card}") for count in counts]


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "training", "search"),
    [
        ("llama-3.1-8b", {}, SPACE),
        ("deepseek-v2-lite", {}, SPACE),
        pytest.param("gpt-oss-20b", {}, SPACE, marks=pytest.mark.exhaustive),
        pytest.param("llama-3.1-8b", {"lora_rank": 16}, {}, marks=pytest.mark.exhaustive),
        pytest.param(
            "llama-3.1-70b",
            {},
            {"framework": "megatron", "zero_stage": [1]},
            marks=pytest.mark.exhaustive,
        ),
        ("llama-3.1-8b", {}, {"schedule": ["1f1b", "zb-h1", "dualpipe-v"], "tp": [1, 2, 4]}),
        pytest.param(
            "llama-3.1-8b",
            {},
            {"offload_optimizer": [False, True], "tp": [1, 2]},
            marks=pytest.mark.exhaustive,
        ),
        ("llama-3.1-8b", {}, {"objective": "memory_headroom", "tp": [1], "pp": [1], "cp": [1]}),
    ],
)
def test_each_size_finds_what_it_finds_alone(
    model: str, training: dict[str, object], search: dict[str, object]
) -> None:
    """Sizes with common and with few common divisors; on one of them nothing may fit."""
    request = asked(model, training, search)
    clusters = of_nodes("h100-sxm", (1, 3, 4, 12, 32))
    for cluster, found in zip(clusters, fastest_on_each(request, clusters), strict=True):
        alone = fastest(request.model_copy(update={"cluster": cluster}))
        assert found.outcome.best == alone.outcome.best
        assert found.framework == alone.framework
        assert found.request.cluster == cluster
        assert any_fits(request.model_copy(update={"cluster": cluster})) == bool(alone.outcome.best)


@pytest.mark.parametrize(("card", "told"), [("b200", True), ("h100-sxm", False)])
def test_whether_any_plan_fits_is_told_without_a_search(card: str, told: bool) -> None:
    """Adam's states of 8 billion parameters take 128 GB."""
    request = asked("llama-3.1-8b", {}, SPACE)
    one = request.model_copy(update={"cluster": parse_shorthand(f"1x1x{card}")})
    assert fits(*prepared(one.for_framework("megatron"))) is told


@pytest.mark.slow
def test_where_the_spaces_are_too_large_together_each_is_searched_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request, clusters = asked("llama-3.1-8b", {}, SPACE), of_nodes("h100-sxm", (1, 2, 4))
    together = [one.outcome.best for one in fastest_on_each(request, clusters)]
    monkeypatch.setattr(space_module, "MAX_CANDIDATES", 40_000)
    assert [one.outcome.best for one in fastest_on_each(request, clusters)] == together


@pytest.mark.slow
def test_all_sizes_are_priced_in_a_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once per size and framework, and few of the plans that are drawn."""
    calls = counted(monkeypatch)
    request = asked("llama-3.1-8b", {}, SPACE)
    found = fastest_on_each(request, of_nodes("h100-sxm", (1, 2, 4, 8, 16, 32, 64, 128)))
    assert all(one.outcome.best for one in found)
    assert len(calls) <= 12
    assert sum(calls) <= 20_000


def test_what_hangs_on_the_number_of_nodes_is_not_searched_together() -> None:
    one, two = (
        asked("llama-3.1-8b", {}, SPACE).model_copy(update={"cluster": cluster})
        for cluster in of_nodes("h100-sxm", (1, 2))
    )
    assert key_without_node_count(one) == key_without_node_count(two) is not None
    # A rack is one domain of as many accelerators as the job has.
    racks = [cluster_of("rack", node_group("gb200-nvl72", nodes)) for nodes in (2, 4)]
    keys = [
        key_without_node_count(one.model_copy(update={"cluster": cluster})) for cluster in racks
    ]
    assert keys[0] != keys[1]
    offloads = asked("llama-3.1-8b", {}, {"offload_optimizer": [False, True]})
    assert key_without_node_count(offloads) is None
    tpus = cluster_of("pod", node_group("tpu-v5p", 2))
    assert key_without_node_count(one.model_copy(update={"cluster": tpus})) is None
    tuned = asked("llama-3.1-8b", {"lora_rank": 16}, SPACE)
    keys = [
        key_without_node_count(tuned.model_copy(update={"cluster": own.cluster}))
        for own in (one, two)
    ]
    assert keys[0] != keys[1]


def _names() -> list[str]:
    return [name for name in frameworks.FRAMEWORKS if frameworks.get(name).rules]


@pytest.mark.parametrize("name", ["", *_names()])
def test_no_other_rule_reads_the_number_of_nodes(name: str) -> None:
    """Nor does a sentence that is kept beside it: the cluster of these rules has no such number."""
    cluster = parse_shorthand("2x8xh100-sxm")
    group = cluster.groups[0]
    fields = {key: value for key, value in group if key != "nodes"}
    nodeless = cluster.model_copy(update={"groups": (NodeGroup.model_construct(**fields),)})
    with pytest.raises(AttributeError):
        _ = nodeless.accelerators
    training = TrainingSpec(seq_length=4096, global_batch_size=64)
    plans = Plans.build(tp=np.array([1, 2, 8]), dp=np.array([16, 8, 2]), zero_stage=3, ep=1)
    read_nodes = {WORLD_SIZE, TP_IN_DOMAIN, HOST_MEMORY}
    rules: tuple[Rule, ...] = frameworks.get(name).rules if name else RULES
    assert not on_tpus(cluster)
    for model in ("llama-3.1-8b", "deepseek-v2-lite"):
        context = Context(preset(model), nodeless, training)
        for rule in rules:
            if rule not in read_nodes:
                rule.legal(context, plans)
