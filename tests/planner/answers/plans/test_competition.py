"""The best plan is that of a named framework, the picks stand beside it."""

from __future__ import annotations

import re

import pytest

from cost_models.catalog.hardware import parse_shorthand
from cost_models.catalog.models import model as preset
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import TrainingSpec
from planner import frameworks
from planner.answers.plans import emission
from planner.answers.plans.competition import compete, fastest, prepared
from planner.answers.plans.plan_answers import find
from planner.constraints import Context
from planner.documents.answer import PlanAnswer
from planner.documents.problems import RequestError
from planner.documents.request import Bounds, PlanRequest, SearchSpec
from planner.frameworks.supported import runners
from planner.search.exhaustive import search
from planner.search.several_spaces import best_of_each
from planner.search.simplicity import MOST_FULL, MOST_SLOWER, kinds
from tests.fixtures.evaluations import counted

MODELS = (
    "llama-3.1-8b", "gpt-oss-20b",
    pytest.param("deepseek-v2-lite", marks=pytest.mark.exhaustive),
)  # fmt: skip


def asked(
    model: str = "llama-3.1-8b", cluster: str = "2x8xh100-sxm", **search: object
) -> PlanRequest:
    return PlanRequest(
        model=preset(model),
        cluster=parse_shorthand(cluster),
        training=TrainingSpec(seq_length=8192, global_batch_size=128),
        search=SearchSpec.model_validate(search),
    )


@pytest.fixture(scope="module")
def answer() -> PlanAnswer:
    return find(asked())


@pytest.mark.slow
def test_the_headline_is_the_fastest_of_all_frameworks(answer: PlanAnswer) -> None:
    request = asked()
    able = runners(Context(request.model, request.cluster, request.training))
    alone = {name: find(request.for_framework(name)).best for name in able}
    seconds = {name: best.iteration_time_s for name, best in alone.items() if best}
    assert answer.best is not None
    assert answer.launch is not None
    assert answer.best.iteration_time_s == min(seconds.values())
    assert answer.launch.plan == answer.best
    found = {one.framework: one.plan.iteration_time_s for one in answer.frameworks}
    assert found == pytest.approx(seconds)
    assert list(found.values()) == sorted(found.values())


@pytest.mark.slow
def test_by_memory_the_frameworks_stand_in_the_order_of_their_free_memory() -> None:
    answer = find(asked(objective="memory_headroom", top_k=1))
    peaks = [one.plan.memory.peak_bytes for one in answer.frameworks]
    assert len(set(peaks)) > 2
    assert peaks == sorted(peaks)
    # Their times are in another order.
    assert min(one.slower_by for one in answer.frameworks) < 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "cluster", "why"),
    [
        (
            "falcon-40b",
            "8x8xh100-sxm",
            "Megatron-LM cannot run this plan: it has no parallel attention",
        ),
        ("llama-3.1-8b", "2x8xgaudi3", "Gaudi 3 .* needs .*, which no framework here writes for"),
    ],
)
def test_a_plan_that_no_framework_launches_says_why(model: str, cluster: str, why: str) -> None:
    request = PlanRequest(
        model=preset(model), cluster=parse_shorthand(cluster),
        training=TrainingSpec(seq_length=2048, global_batch_size=64), search=SearchSpec(top_k=1),
    )  # fmt: skip
    found = find(request)
    assert found.best is not None
    assert found.launch is None
    assert re.match(why, found.no_launch or "")


@pytest.mark.slow
def test_a_plan_that_is_launched_says_no_such_thing(answer: PlanAnswer) -> None:
    assert answer.no_launch is None


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_the_best_plan_alone_is_that_of_the_whole_search(model: str) -> None:
    """Of each framework, though fewer plans are priced: the others cannot be the best."""
    request = asked(model)
    context = Context(request.model, request.cluster, request.training)
    costed = []
    for name in runners(context):
        bound, rules = prepared(request.for_framework(name))
        whole, (alone,) = search(bound, rules), best_of_each([(bound, rules)])
        assert alone.best == whole.best[:1], name
        assert whole.counts is not None
        assert alone.counts is not None
        costed.append((alone.counts.costed, whole.counts.costed))
    assert sum(alone for alone, _ in costed) < 0.7 * sum(whole for _, whole in costed)


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_frameworks_searched_together_find_what_each_finds_alone(model: str) -> None:
    request = asked(model)
    names = runners(Context(request.model, request.cluster, request.training))
    questions = [prepared(request.for_framework(name)) for name in names]
    alone = [search(*question) for question in questions]
    for one, own in zip(best_of_each(questions), alone, strict=True):
        assert one.best == own.best[:1]
        assert one.score == pytest.approx(own.score, rel=1e-12)
    best = min(alone, key=lambda one: one.score)
    assert fastest(request).outcome.best == best.best[:1]


@pytest.mark.slow
def test_all_frameworks_are_priced_in_a_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several sizes too: not once per framework."""
    calls = counted(monkeypatch)
    for cluster in ("2x8xh100-sxm", "64x8xh100-sxm"):
        calls.clear()
        request = asked(cluster=cluster)
        assert len(runners(Context(request.model, request.cluster, request.training))) >= 7
        assert fastest(request).outcome.best
        assert len(calls) <= 6
        assert sum(calls) <= 20_000


def test_where_the_first_framework_is_not_the_fastest_all_is_told_of_the_fastest() -> None:
    """On one accelerator torch's compiled kernels win."""
    request = asked(cluster="1x1xb200")
    entries = compete(request)
    assert (
        entries[0].framework
        != runners(Context(request.model, request.cluster, request.training))[0]
    )
    bound, rules = prepared(request.for_framework(entries[0].framework))
    alone = search(bound, rules)
    assert entries[0].outcome.counts == alone.counts
    assert entries[0].outcome.pareto == alone.pareto


@pytest.mark.slow
def test_every_plan_of_the_list_can_be_launched(answer: PlanAnswer) -> None:
    assert answer.launch is not None
    framework = frameworks.get(answer.launch.framework)
    for one in (*answer.plans, *(pick.plan for pick in answer.picks)):
        assert not framework.reasons(asked(), one.plan)


@pytest.mark.slow
def test_picks(answer: PlanAnswer) -> None:
    first, recommended, roomy = (pick.plan for pick in answer.picks)
    assert first == answer.best
    assert recommended.memory.peak_bytes <= MOST_FULL * recommended.memory.capacity_bytes
    assert recommended.iteration_time_s <= first.iteration_time_s * (1.0 + MOST_SLOWER)
    assert roomy.memory.peak_bytes <= min(
        first.memory.peak_bytes, *(one.memory.peak_bytes for one in answer.plans)
    )


@pytest.mark.slow
def test_the_recommended_is_simpler_than_a_fastest_that_has_room() -> None:
    """What is nearly full is not recommended, however simple."""
    answer = find(asked("llama-3.1-70b", cluster="8x8xh100-sxm"))
    first, recommended, _ = (pick.plan for pick in answer.picks)
    assert first.memory.peak_bytes <= MOST_FULL * first.memory.capacity_bytes
    simple, fast = kinds(Plans.from_rows([recommended.plan, first.plan]))
    assert simple < fast


def test_experts_are_exchanged_over_more_ranks_than_usual_only_where_that_is_much_faster() -> None:
    """A plan over more than 64 ranks counts as less simple than any over fewer."""
    rows = [
        ParallelPlan(ep=64, tp=2, pp=4, vpp=2, schedule="interleaved-1f1b", zero_stage=2),
        ParallelPlan(ep=128),
    ]
    usual, wide = kinds(Plans.from_rows(rows))
    assert usual < wide


@pytest.mark.slow
def test_what_is_recommended_is_written(answer: PlanAnswer) -> None:
    bundle = emission.emit(asked())
    assert answer.launch is not None
    assert bundle.framework == answer.launch.framework
    own = emission.emit(asked().model_copy(update={"plan": answer.picks[1].plan.plan}))
    said = "".join(f"# {line}\n" for line in emission.pick_words(answer.picks[1], answer.picks))
    assert said.startswith("# The recommended plan, ")
    assert said.endswith("# planner emit --pick fastest writes the fastest.\n")
    assert said in bundle.files[bundle.main]
    written = {name: text.replace(said, "") for name, text in bundle.files.items()}
    assert written == own.files


@pytest.mark.slow
def test_another_pick_is_written(answer: PlanAnswer) -> None:
    assert answer.best is not None
    bundle = emission.emit(asked(), pick="fastest")
    own = emission.emit(asked().model_copy(update={"plan": answer.best.plan}))
    lines = [line for line in bundle.files[bundle.main].splitlines() if "fastest plan" in line]
    assert lines == ["# The fastest plan."]
    assert set(own.files[own.main].splitlines()) < set(bundle.files[bundle.main].splitlines())
    with pytest.raises(RequestError, match="must be one of recommended"):
        emission.emit(asked(), pick="fast")
    with pytest.raises(RequestError, match="goes without a plan"):
        emission.emit(asked().model_copy(update={"plan": answer.best.plan}), pick="fastest")


@pytest.mark.slow
def test_a_schedule_that_no_framework_runs_is_priced_without_a_launch() -> None:
    found = find(asked(limits={"schedule": Bounds(values=("zb-h2",)), "pp": Bounds(values=(4,))}))
    assert found.best is not None
    assert found.best.plan.schedule == "zb-h2"
    assert found.launch is None
    assert not found.frameworks
    with pytest.raises(emission.NothingFits, match="no framework here runs"):
        emission.emit(
            asked(limits={"schedule": Bounds(values=("zb-h2",)), "pp": Bounds(values=(4,))})
        )


@pytest.mark.slow
def test_no_framework_reduces_gradients_in_fp32_on_a_tpu() -> None:
    found = find(asked(cluster="1x16xtpu-v5p"))
    assert found.best is not None
    assert found.launch is None
