"""Mixed clusters against brute force, against equal nodes, and against wrong use."""

from __future__ import annotations

import json
from itertools import combinations, product
from typing import Any

import pytest

from cost_models.plans import ParallelPlan
from planner.answers.mixed_clusters import find
from planner.answers.mixed_clusters.answer import MixedAnswer
from planner.answers.mixed_clusters.compute import _worst
from planner.answers.mixed_clusters.pipeline import Groups
from planner.answers.plans.plan_answers import find as find_equal
from planner.cli import run
from planner.documents.problems import RequestError
from planner.documents.request import PlanRequest
from planner.inputs.requests.parser import parse_request

TRAINING = {"seq_length": 2048, "global_batch_size": 32, "tokens": 1e10}
MODEL = {
    "num_layers": 10, "hidden_size": 4096, "num_attention_heads": 32, "num_query_groups": 8,
    "ffn_hidden_size": 14336, "gated_mlp": True, "norm": "rmsnorm", "vocab_size": 32000,
    "position": "rope",
}  # fmt: skip


def groups(*pairs: tuple[str, int, int]) -> dict[str, Any]:
    return {
        "groups": [
            {"accelerator": name, "nodes": nodes, "accelerators_per_node": each}
            for name, nodes, each in pairs
        ]
    }


FEW = {"cp": 1, "micro_batch_size": [1, 2]}  # so that a search is short


def request(cluster: dict[str, Any], **changes: Any) -> PlanRequest:
    document = {
        "model": MODEL, "cluster": cluster, "training": TRAINING, "search": FEW, **changes,
    }  # fmt: skip
    return parse_request(document, mixed_cluster=True)


FOR_THE_OTHERS = (((0, 1), 4, "none"), ((1, 0), 1, "full"))
SMALL = groups(("a100-sxm-80gb", 1, 2), ("h100-sxm", 1, 2))


@pytest.fixture(scope="module")
def answer() -> MixedAnswer:
    return find(request(SMALL))


@pytest.mark.parametrize(
    ("order", "micro", "recompute"),
    [
        pytest.param(*case, marks=() if case in FOR_THE_OTHERS else pytest.mark.exhaustive)
        for case in product([(0, 1), (1, 0)], [1, 4], ["none", "full"])
    ],
)
def test_layers_are_split_as_well_as_by_brute_force(
    order: tuple[int, int], micro: int, recompute: str
) -> None:
    """Every way to deal 10 layers to 4 stages, each simulated: none that fits is faster."""
    asked = request(SMALL)
    models = Groups(asked.model, asked.cluster, asked.training)
    more = {"recompute_method": "uniform", "recompute_num_layers": 1} if recompute == "full" else {}
    plan = ParallelPlan.model_validate(
        {"pp": 4, "micro_batch_size": micro, "recompute": recompute, **more}
    )
    owner = [g for g in order for _ in range(2)]
    first = models.partition(plan, owner)
    assert first is not None
    split, _ = models.refined(plan.model_copy(update={"stage_layers": first}), owner)
    times = {}
    for stops in combinations(range(1, 10), 3):
        layers = tuple(b - a for a, b in zip((0, *stops), (*stops, 10), strict=True))
        result = models.evaluate(plan.model_copy(update={"stage_layers": layers}), owner)
        if result.fits:
            times[layers] = result.iteration_time_s
    assert times[split.stage_layers] == min(times.values())


@pytest.mark.parametrize("share", [0.5, 0.6, 0.7, 0.8])
def test_as_many_layers_stand_on_a_group_as_its_room_holds(share: float) -> None:
    """Of every way to deal 10 layers to 2 stages: one is found if and only if one fits.

    share: of the memory that five layers on each stage take; the second group has twice as much.
    """
    asked = request(SMALL)
    plan = ParallelPlan(pp=2, dp=2)
    even = Groups(asked.model, asked.cluster, asked.training).evaluate(
        plan.model_copy(update={"stage_layers": (5, 5)}), (0, 1)
    )
    sizes = share * even.stage_bytes * [1, 2]
    cluster = asked.cluster.model_copy(
        update={
            "groups": tuple(
                group.model_copy(
                    update={
                        "accelerator": group.accelerator.model_copy(update={"memory_bytes": size})
                    }
                )
                for group, size in zip(asked.cluster.groups, sizes.tolist(), strict=True)
            )
        }
    )
    models = Groups(asked.model, cluster, asked.training, memory_risk=0.05)
    room = models.room_bytes(plan)
    assert (room < sizes).all()
    fitting = set()
    for layers in range(1, 10):
        split = layers, 10 - layers
        found = models.evaluate(plan.model_copy(update={"stage_layers": split}), (0, 1))
        if (found.stage_bytes <= room).all():
            fitting.add(split)
    assert len(fitting) < 9
    found_split = models.partition(plan, (0, 1))
    assert (found_split in fitting) if fitting else (found_split is None)


def test_equal_nodes_are_the_worst_of_the_groups_in_everything() -> None:
    """By the data sheets: the A100's peak and links, latencies of the slower, prices in shares."""
    few, many = request(groups(("a100-sxm-80gb", 1, 8), ("h100-sxm", 3, 8))).cluster.groups
    slow_link = few.network[0].model_copy(update={"latency_s": 1e-3, "oversubscription": 2.0})
    few = few.model_copy(
        update={"network": (slow_link, *few.network[1:]), "price_usd_per_accelerator_hour": 1.0}
    )
    many = many.model_copy(update={"price_usd_per_accelerator_hour": 3.0})
    worst = _worst((few, many))
    assert worst.accelerator.peak_bf16_flop_per_s == 312e12
    assert worst.accelerator.memory_bytes_per_s == pytest.approx(2.039e12)
    assert worst.network[0].bandwidth_bytes_per_s == 300e9
    assert (worst.network[0].latency_s, worst.network[0].oversubscription) == (1e-3, 2.0)
    assert (worst.nodes, worst.accelerators) == (4, 32)
    assert worst.price_usd_per_accelerator_hour == (1.0 + 3 * 3.0) / 4


def test_the_best_way_is_no_slower_than_any_part(answer: MixedAnswer) -> None:
    kinds = [option.kind for option in answer.options]
    assert sorted(set(kinds)) == ["part", "pipeline", "slowest"]
    assert kinds.count("part") == 2
    times = [option.iteration_time_s for option in answer.options]
    assert times == sorted(times)


def test_a_part_is_the_plan_of_its_nodes_alone(answer: MixedAnswer) -> None:
    for option in answer.options:
        if option.kind == "part":
            (group,) = option.order
            alone = request(SMALL).cluster.groups[group]
            asked = request(groups((alone.accelerator.id, alone.nodes, 2)))
            best = find_equal(asked).best
            assert best is not None
            assert best.plan == option.plan
            assert best.iteration_time_s == option.iteration_time_s
            assert best.cost_usd == option.cost_usd


def test_the_pipeline_keeps_stages_on_one_group_and_all_layers(answer: MixedAnswer) -> None:
    option = next(option for option in answer.options if option.kind == "pipeline")
    assert sum(stage.layers for stage in option.stages) == MODEL["num_layers"]
    per_stage = option.plan.tp * option.plan.cp * option.plan.dp
    for place, group in enumerate(answer.groups):
        held = [stage for stage in option.stages if stage.group == place]
        assert len(held) * per_stage == group.accelerators
        assert all(stage.total_bytes <= stage.capacity_bytes for stage in held)
    fast = [stage.layers for stage in option.stages if stage.group == 1]
    slow = [stage.layers for stage in option.stages if stage.group == 0]
    assert min(fast) > max(slow)


def test_equal_groups_are_one_cluster() -> None:
    """Two groups of equal nodes are asked, and answered, as one."""
    split = request(groups(("h100-sxm", 1, 8), ("h100-sxm", 3, 8)))
    whole = request(groups(("h100-sxm", 4, 8)))
    assert split.cluster.groups == whole.cluster.groups
    assert find_equal(split).plans == find_equal(whole).plans


def test_a_group_that_only_slows_is_left_out() -> None:
    """Eight H100 and a pair of V100s: the pair is not worth a stage."""
    asked = request(
        groups(("h100-sxm", 1, 8), ("v100", 1, 1)),
        model={**MODEL, "num_layers": 6},
        training={**TRAINING, "precision": "fp16"},
    )
    found = find(asked)
    assert found.options[0].kind == "part"
    assert found.groups[found.options[0].order[0]].accelerator == "h100-sxm-80gb"
    assert "alone are fastest" in found.verdict


def test_what_fits_on_neither_part_may_fit_on_all() -> None:
    found = find(request(groups(("a100-sxm-40gb", 1, 8), ("h100-sxm", 1, 8)),
                         model="llama-3.1-70b", search={**FEW, "tp": 8}))  # fmt: skip
    assert [option.kind for option in found.options if option.kind == "part"] == []
    assert all(option.accelerators == 16 for option in found.options)


def test_only_plan_takes_nodes_that_differ(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    with pytest.raises(RequestError, match="only `plan` takes nodes that differ"):
        parse_request({"model": MODEL, "cluster": SMALL, "training": TRAINING})
    file = tmp_path / "mixed.json"
    asked = {
        "model": MODEL,
        "cluster": SMALL,
        "training": TRAINING,
        "search": {"cp": 1, "micro_batch_size": 1},
    }
    file.write_text(json.dumps(asked))
    assert run(["plan", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["options"]
    assert run(["plan", str(file)]) == 0
    text = capsys.readouterr().out
    assert "layers on h100-sxm-80gb" in text
    assert run(["estimate", str(file), "--pp", "2"]) == 2
    assert "/cluster/groups" in capsys.readouterr().err


def test_days_and_money_say_what_they_rest_on() -> None:
    cluster = groups(("h100-sxm", 1, 8), ("l40s", 1, 8))
    cluster["groups"][0]["price_usd_per_accelerator_hour"] = 2.5
    cluster["groups"][1]["price_usd_per_accelerator_hour"] = None
    notes = [note.text for note in find(request(cluster, search={"pp": 1, "tp": 8})).notes]
    assert "h100-sxm-80gb: $2.5 per accelerator-hour, as given" in notes
    assert any(text.startswith("l40s: ") for text in notes)
    assert any(text.startswith("days without failures") for text in notes)
    training = {name: value for name, value in TRAINING.items() if name != "tokens"}
    bare = find(request(cluster, training=training, search={"pp": 1, "tp": 8}))
    assert {note.code for note in bare.notes} == {"pipeline", "slowest", "links"}


FOUR_AND_FOUR = groups(("h100-sxm-80gb", 4, 8), ("a100-sxm-80gb", 4, 8))


@pytest.mark.exhaustive
def test_pipelines_without_room_crowd_out_none_that_fits() -> None:
    """With 512 sequences the sixty fastest at equal layers are all too large."""
    training = {"seq_length": 8192, "global_batch_size": 512}
    found = find(request(FOUR_AND_FOUR, model="llama-3.1-70b", training=training, search={"cp": 1}))
    assert found.options[0].kind == "pipeline"


@pytest.mark.exhaustive
def test_a_stated_pipeline_is_kept() -> None:
    found = find(request(FOUR_AND_FOUR, model="llama-3.1-70b", search={"tp": 8, "cp": 1, "pp": 8}))
    pipelines = [option.plan for option in found.options if option.kind == "pipeline"]
    assert [(plan.tp, plan.pp) for plan in pipelines] == [(8, 8)]
