"""Sensitivities: against direct questions, whole searches, what physics says, and junk."""

from __future__ import annotations

import io
import json
import math
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

import planner
from cost_models.plans import Plans
from planner.answers.plans.emission import NothingFits
from planner.answers.plans.plan_answers import IllegalPlan
from planner.answers.sensitivities.analysis import parse_sensitivity
from planner.answers.sensitivities.documents import InputSensitivity, SensitivityAnswer
from planner.answers.sensitivities.inputs import Input, changed, inputs_of
from planner.documents.problems import RequestError
from planner.inputs.requests.parser import parse_request
from planner.presentation.drawing.tornado_svg import tornado_svg
from planner.presentation.terminal.plan_rows import asked_of
from planner.presentation.terminal.sensitivity_screen import sensitivity_screen
from planner.search.exhaustive import cost_model

ASK: dict[str, Any] = {
    "model": "mixtral-8x7b",
    "cluster": "2x8xh100-sxm",
    "training": {"seq_length": 4096, "global_batch_size": 96, "tokens": 1e11},
    "search": {
        "tp": [1, 2],
        "pp": [1, 2],
        "cp": 1,
        "schedule": "1f1b",
        "zero_stage": [1, 2],
        "memory_risk": 1.0,
    },
}
SLOW = ("latency_s", "oversubscription", "imbalance_factor")
NO_TIME = ("memory_bytes", "price_usd_per_accelerator_hour", "node_power_watts", "pue")


@cache
def whole() -> SensitivityAnswer:
    """All inputs of one question."""
    return planner.sensitivity(ASK)


def named(name: str) -> InputSensitivity:
    (found,) = (one for one in whole().inputs if one.name == name)
    return found


@pytest.mark.exhaustive
def test_every_input_is_answered_or_left_out_with_a_reason() -> None:
    answer = whole()
    assert {one.name for one in answer.inputs} == {
        "matrix_efficiency", "attention_efficiency", "memory_efficiency", "peak_flop_per_s",
        "memory_bytes_per_s", "memory_bytes", "nvlink_bandwidth_bytes_per_s", "nvlink_latency_s",
        "network_bandwidth_bytes_per_s", "network_latency_s", "network_oversubscription",
        "global_batch_size", "seq_length", "nodes", "imbalance_factor",
        "price_usd_per_accelerator_hour", "node_power_watts", "pue",
    }  # fmt: skip
    assert {note.code for note in answer.left_out} == {
        "host_link_bytes_per_s", "reserved_bytes_per_accelerator",
    }  # fmt: skip
    assert all(one.words for one in answer.inputs)
    again = SensitivityAnswer.model_validate_json(answer.model_dump_json())
    assert again == answer


@pytest.mark.slow
@pytest.mark.parametrize("share", [12, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_fixed_numbers_are_those_of_an_estimate(share: int) -> None:
    """Values written into the document at their pointers, and asked: of an input one or all."""
    answer = whole()
    asked = 0
    for number, one in enumerate(answer.inputs):
        for point in one.points[number % share :: share]:
            if not one.pointers or point.fixed is None:
                continue
            document = json.loads(json.dumps(answer.request))
            del document["sensitivity"]
            for pointer in one.pointers:
                *way, last = pointer.split("/")[1:]
                place = document
                for step in way:
                    place = place[int(step)] if isinstance(place, list) else place[step]
                own = place[last] * point.factor
                place[last] = round(own) if isinstance(place[last], int) else own
            plan = answer.held.plan.model_dump(mode="json")
            del plan["dp"]  # it follows
            report = planner.estimate(document, plan=plan).estimate
            assert point.fixed.iteration_time_s == report.iteration_time_s
            assert point.fixed.peak_bytes == report.memory.peak_bytes
            assert (point.fixed.days, point.fixed.cost_usd) == (report.days, report.cost_usd)
            assert (point.fixed.energy_kwh, point.fixed.fits) == (report.energy_kwh, report.fits)
            change = answer.base.tokens_per_s / report.tokens_per_s - 1.0
            assert point.fixed_change == pytest.approx(change, abs=1e-12)
            asked += 1
    assert asked > 40 // share


@pytest.mark.slow
@pytest.mark.parametrize("name", ["matrix", "attention", "memory"])
def test_efficiency_scales_what_it_names(name: str) -> None:
    """Kernels of that kind, and no others, take as much less time as the factor says."""
    request = parse_request(ASK)
    (one,) = (
        i for i in inputs_of(request) if isinstance(i, Input) and i.name == f"{name}_efficiency"
    )
    usual, slow = (
        cost_model(request).context.profile,
        changed(request, one, 0.5).model.context.profile,
    )
    same = {
        "matrix": slow.gemm["bf16"].memory_fraction == usual.gemm["bf16"].memory_fraction
        and slow.memory is usual.memory and slow.attention is usual.attention,
        "attention": slow.gemm is usual.gemm and slow.memory is usual.memory,
        "memory": slow.gemm["bf16"].tile_fraction == usual.gemm["bf16"].tile_fraction
        and slow.attention is usual.attention,
    }  # fmt: skip
    assert same[name]
    key = ("flash", "forward", True)
    ratios = {
        "matrix": slow.gemm["bf16"].tile_fraction / usual.gemm["bf16"].tile_fraction,
        "attention": float((slow.attention[key].fraction / usual.attention[key].fraction).max()),
        "memory": float((slow.memory.y / usual.memory.y).max()),
    }
    assert ratios[name] == pytest.approx(0.5)
    point = named(f"{name}_efficiency").points[0]
    row = Plans.from_rows([whole().held.plan])
    seconds = changed(request, one, point.factor).model.evaluate(row).iteration_time_s[0]
    assert point.fixed is not None
    assert point.fixed.iteration_time_s == pytest.approx(float(seconds), rel=1e-12)


def test_nothing_runs_above_its_peak() -> None:
    for one in whole().inputs:
        if one.unit == "share":
            assert max(point.value for point in one.points) <= 1.0 + 1e-9


def test_monotone() -> None:
    """A faster link is never slower, held or planned again; and planning again never hurts."""
    for one in whole().inputs:
        fits = [p for p in one.points if p.fixed is not None and p.fixed.fits]
        for point in fits:
            assert point.replanned is not None
            assert point.replanned.iteration_time_s <= point.fixed.iteration_time_s * (1 + 1e-12)  # type: ignore[union-attr]
        if one.unit == "count":
            continue
        for times in (
            [p.fixed.iteration_time_s for p in one.points if p.fixed],
            [p.replanned.iteration_time_s for p in one.points if p.replanned],
        ):
            ordered = times if one.name.endswith(SLOW) else times[::-1]
            assert ordered == sorted(ordered), one.name
        if one.name in NO_TIME:
            assert len({p.fixed.iteration_time_s for p in one.points if p.fixed}) == 1


def test_integers_can_be_run() -> None:
    """The batch of 96 at x0.8 and x1.25 becomes one that the held plan divides."""
    request = parse_request(ASK)
    for name in ("global_batch_size", "seq_length", "nodes"):
        one = named(name)
        assert len({point.value for point in one.points}) == len(one.points) >= 2
        for point in one.points:
            assert point.value == round(point.value) != one.value
            assert (point.fixed is None) == bool(point.reasons)
            assert point.fixed is not None or name == "nodes"  # of which one is too few for ep 8
    assert named("nodes").value == request.cluster.groups[0].nodes


def test_most_moving_first() -> None:
    def moves(one: InputSensitivity) -> float:
        fixed = [p.fixed_change for p in one.points if p.fixed is None or p.fixed.fits]
        changes = [*fixed, *(p.replanned_change for p in one.points)]
        return max(abs(math.log1p(change)) for change in changes if change is not None)

    sizes = [moves(one) for one in whole().inputs]
    assert sizes == sorted(sizes, reverse=True)
    assert whole().inputs[-1].name in NO_TIME


def test_elasticity() -> None:
    """Price and cost go together; a batch in whole micro-batches is nearly a multiple of one."""
    answer = planner.sensitivity(
        ASK,
        search={**ASK["search"], "objective": "cost"},
        sensitivity={"inputs": ["price_usd_per_accelerator_hour", "matrix_efficiency"]},
    )
    price, matrix = sorted(answer.inputs, key=lambda one: one.name, reverse=True)
    assert answer.measure == "cost per token"
    assert price.elasticity == pytest.approx(1.0)
    assert [p.fixed_change for p in price.points] == pytest.approx([-0.5, -0.2, 0.25, 1.0])
    # With one cluster and price, cost moves as time does.
    assert matrix.elasticity == pytest.approx(named("matrix_efficiency").elasticity)
    assert -1 < matrix.elasticity < -0.3  # type: ignore[operator]
    nvlink = named("nvlink_bandwidth_bytes_per_s")
    ends = [p.fixed_change for p in nvlink.points if p.factor in (0.8, 1.25)]
    slope = (math.log1p(ends[1]) - math.log1p(ends[0])) / math.log(1.25 / 0.8)  # type: ignore[arg-type]
    assert nvlink.elasticity == pytest.approx(slope, rel=0.5)


def test_a_given_plan_is_held() -> None:
    plan = {"tp": 4, "pp": 2, "sequence_parallel": True, "zero_stage": 1}
    asked = {**ASK, "plan": plan, "sensitivity": {"inputs": ["nvlink_bandwidth_bytes_per_s"]}}
    answer = planner.sensitivity(asked)
    assert answer.held.plan.tp == 4
    assert answer.held.plan != answer.best.plan
    assert answer.base.iteration_time_s == answer.held.iteration_time_s
    assert answer.replanned_base.iteration_time_s == answer.best.iteration_time_s
    (one,) = answer.inputs
    assert one.points[0].fixed_change > 0.01  # type: ignore[operator]
    with pytest.raises(IllegalPlan):
        planner.sensitivity({**asked, "plan": {**plan, "tp": 3}})


def test_memory_as_the_goal() -> None:
    answer = planner.sensitivity(
        ASK,
        search={**ASK["search"], "objective": "memory_headroom"},
        sensitivity={"inputs": ["seq_length", "network_bandwidth_bytes_per_s"]},
    )
    assert answer.measure == "peak memory"
    seq, network = answer.inputs
    assert seq.name == "seq_length"
    assert seq.points[-1].fixed_change > 0  # type: ignore[operator]
    assert all(p.fixed_change == 0 and p.plan == answer.best.plan for p in network.points)


def test_nothing_fits() -> None:
    asked = {**ASK, "cluster": "8xl40s"}
    with pytest.raises(NothingFits):
        planner.sensitivity(asked)


BAD: dict[str, tuple[Any, str, str]] = {
    "a name": ({"inputs": ["network_bandwith"]}, "/sensitivity/inputs/0", "network_bandwidth"),
    "a part of a name": ({"inputs": ["nvlink"]}, "/sensitivity/inputs/0", "nvlink_latency_s"),
    "nothing": ({"inputs": [""]}, "/sensitivity/inputs/0", "no input ''"),
    "a number": ({"inputs": [3]}, "/sensitivity/inputs/0", "must be a string, got 3"),
    "a long name": ({"inputs": ["x" * 9999]}, "/sensitivity/inputs/0", "100"),
    "does not apply": (
        {"inputs": ["host_link_bytes_per_s"]}, "/sensitivity/inputs/0", "nothing is offloaded",
    ),
    "zero": ({"factors": [0]}, "/sensitivity/factors/0", ">= 0.0625, got 0"),
    "less": ({"factors": [1.5, -1]}, "/sensitivity/factors/1", ">= 0.0625, got -1"),
    "huge": ({"factors": [1e300]}, "/sensitivity/factors/0", "<= 16"),
    "not a number": ({"factors": [math.nan]}, "/sensitivity/factors/0", "finite"),
    "text": ({"factors": ["2"]}, "/sensitivity/factors/0", "a number, got the string '2'"),
    "none": ({"factors": []}, "/sensitivity/factors", "at least one"),
    "only ones": ({"factors": [1, 1.0]}, "/sensitivity/factors", "that is not 1"),
    "many": ({"factors": [2.0] * 99}, "/sensitivity/factors", "at most 16"),
    "not a list": ({"factors": 2}, "/sensitivity/factors", "a list, got 2"),
    "too fine": ({"resolution": 1e-9}, "/sensitivity/resolution", ">= 0.001"),
    "a field": ({"input": ["nodes"]}, "/sensitivity/input", "did you mean inputs"),
    "no object": (["nodes"], "/sensitivity", "an object, got a list of 1"),
}  # fmt: skip


@pytest.mark.parametrize(("part", "pointer", "says"), BAD.values(), ids=BAD)
def test_bad_question(part: Any, pointer: str, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        planner.sensitivity(ASK, sensitivity=part)
    (problem,) = caught.value.problems
    assert problem.pointer == pointer
    assert says in str(problem)


def test_all_problems_at_once() -> None:
    with pytest.raises(RequestError) as caught:
        parse_sensitivity({**ASK, "cluster": "8xh10", "sensitivity": {"factors": [0]}})
    pointers = {problem.pointer for problem in caught.value.problems}
    assert pointers == {"/cluster", "/sensitivity/factors/0"}
    for document in (None, [], "nodes"):
        with pytest.raises(RequestError, match="an object"):
            parse_sensitivity(document)


def test_no_price_no_cost() -> None:
    cluster = {"preset": "2x8xh100-sxm", "price_usd_per_accelerator_hour": 0.0}
    search = {**ASK["search"], "objective": "cost"}
    with pytest.raises(RequestError, match="no price is known"):
        planner.sensitivity(ASK, cluster=cluster, search=search)


def test_too_much_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.answers.sensitivities.analysis.MOST_COSTED", 1000)
    with pytest.raises(RequestError, match="name fewer inputs"):
        planner.sensitivity(ASK, sensitivity={"inputs": ["nodes", "memory_bytes"]})


def test_tiers_of_a_name_and_of_strange_names() -> None:
    tiers = [
        {"name": "Fast! " * 30, "domain_accelerators": 4, "bandwidth_bytes_per_s": 4e11,
         "latency_s": 1e-6},
        {"name": "fast", "domain_accelerators": 8, "bandwidth_bytes_per_s": 1e11,
         "latency_s": 0.0},
        {"name": "<&>", "bandwidth_bytes_per_s": 5e10, "latency_s": 1e-5},
    ]  # fmt: skip
    cluster = {"accelerator": "h100-sxm", "nodes": 1, "network": tiers}
    request = parse_request({**ASK, "cluster": cluster})
    found = list(inputs_of(request))
    names = [one.name if isinstance(one, Input) else one[0] for one in found]
    assert len(set(names)) == len(names)
    idle = {one[0]: one[1] for one in found if not isinstance(one, Input)}
    assert idle["fast_latency_s"] == "is 0"
    assert "crossed" in idle["tier_2_bandwidth_bytes_per_s"]
    assert max(len(one.title) for one in found if isinstance(one, Input)) < 45


def test_pictures() -> None:
    answer = whole()
    svg = tornado_svg(answer, "light")
    root = ElementTree.fromstring(svg)
    texts = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "nvlink bandwidth" in texts
    assert any(text.startswith("x0.5: ") for text in texts)
    assert any(text.startswith("little effect:  ") and "price" in text for text in texts)
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("width", [80, 120])
def test_screen(width: int) -> None:
    answer = whole()
    document = {name: part for name, part in answer.request.items() if name != "sensitivity"}
    console = Console(width=width, record=True, file=io.StringIO(), highlight=False)
    console.print(sensitivity_screen(answer, asked_of(parse_request(document)), console))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert "Where the best plan changes" in text
    assert ("elasticity" in text) == (width >= 100)


WORDS = [
    "sensitivity", "--model", "llama-3.1-8b", "--cluster", "1x8xh100-sxm", "--seq-length", "4096",
    "--global-batch-size", "64", "--pp", "1", "--cp", "1", "--tp", "1,2",
]  # fmt: skip


def test_command(ask: Any, tmp_path: Path) -> None:
    pictures = [f"--{kind}={tmp_path / f'x.{kind}'}" for kind in ("svg", "png")]
    names = ["--input", "matrix-efficiency,nodes", "--factors", "0.5,2", *pictures]
    code, out, err = ask(*WORDS, *names)
    assert (code, err) == (0, "")
    assert "half the matrix efficiency (42.6 %)" in out
    for kind in ("svg", "png"):
        assert (tmp_path / f"x.{kind}").stat().st_size > 1000
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    code, out, err = ask(*WORDS, *names[:4], "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["request"]["sensitivity"]["factors"] == [0.5, 2.0]
    # The answer's own request asks the same again, from a file and in Python.
    file = tmp_path / "request.json"
    file.write_text(json.dumps(document["request"]))
    code, out, _ = ask("sensitivity", str(file), "--json")
    assert code == 0
    again = planner.sensitivity(document["request"]).model_dump(mode="json")
    for other in (json.loads(out), again):
        assert {**other, "time_s": 0} == {**document, "time_s": 0}


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--input", "nvlnk_latency_s"], 2, "did you mean nvlink_latency_s"),
        (["--input", "network_latency_s"], 2, "does not apply"),
        (
            ["--factors", "half"],
            2,
            "must be a number, got the string 'half'",
        ),
        (["--factors", "0"], 2, ">= 0.0625"),
        (["--factors", ""], 2, "--factors: must be a number"),
        (["--resolution", "2"], 2, "<= 0.5"),
        (["--model", "llama-3.1-405b"], 4, "Nothing fits"),
        (["absent.yaml"], 2, "No such file"),
    ],
)
def test_bad_words(ask: Any, words: list[str], code: int, says: str) -> None:
    status, out, err = ask(*WORDS, *words)
    assert (status, out) == (code, "")
    assert says in err
    status, out, err = ask(*WORDS, *words, "--json")
    assert (status, err) == (code, "")
    assert json.loads(out)["status"] == 422


def test_illegal_values_are_not_sampled() -> None:
    """Learned positions end at 1,024: no longer sequence has an answer."""
    asked = {
        "model": "gpt2",
        "cluster": "1x2xh100-sxm",
        "training": {"seq_length": 1024, "global_batch_size": 8},
        "sensitivity": {"inputs": ["seq_length"]},
    }
    answer = planner.sensitivity(asked)
    (one,) = answer.inputs
    assert [point.factor for point in one.points] == [0.5, 0.8125]
    assert one.factors_left_out == (1.25, 2.0)
    assert one.elasticity is not None  # from the side below
