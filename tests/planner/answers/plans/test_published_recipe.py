"""What others do: which recipe is told, what the cluster makes of it, and what ours gains."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from cost_models.catalog.models import models
from cost_models.plans import ParallelPlan, Plans
from planner.answers.plans import plan_answers
from planner.answers.plans.emission import NothingFits, emit
from planner.answers.plans.explain import report
from planner.answers.plans.published_recipe import published_recipe
from planner.constraints import RULES, Context, passing
from planner.documents.answer import PlanAnswer, PublishedRecipe
from planner.documents.recipes import FILE, recipes, shape_of
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty.site_storage import room_of
from planner.inputs.requests.parser import parse_request
from planner.search.exhaustive import cost_model
from tools.accuracy import write_recipes


def asked(model: Any, cluster: str, length: int, batch: int, **training: Any) -> PlanRequest:
    fields = {"seq_length": length, "global_batch_size": batch, **training}
    return parse_request({"model": model, "cluster": cluster, "training": fields})


@cache
def answered(model: str, cluster: str, length: int, batch: int) -> tuple[PlanRequest, PlanAnswer]:
    request = asked(model, cluster, length, batch)
    return request, plan_answers.find(request)


def beside(request: PlanRequest, **plan: Any) -> PublishedRecipe | None:
    """The recipe beside a plan that stands for the best, without a search."""
    model = cost_model(request)
    best = ParallelPlan.model_validate({"dp": request.cluster.accelerators, **plan})
    return published_recipe(request, model, report(model, request, best))


@pytest.mark.exhaustive
def test_the_file_is_what_the_planner_carries() -> None:
    """Else: python -m tools.accuracy.write_recipes --write."""
    assert FILE.read_text(encoding="utf-8") == write_recipes.text(write_recipes.recipes())


def test_every_recipe_is_a_plan_of_a_model_that_is_known() -> None:
    shapes = {shape_of(entry.spec) for entry in models()}
    for one in recipes():
        assert one.shape in shapes
        ParallelPlan.model_validate(one.plan)
        assert one.accelerators >= 1
        assert one.url.startswith("https://") or one.name == "glm130b-001" or not one.url
    assert sum(bool(one.url) for one in recipes()) >= 0.99 * len(recipes())
    assert len({one.shape for one in recipes()}) >= 60


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("question", "name"),
    [
        (("llama-3.1-8b", "8x8xh100-sxm", 8192, 256), "llama3_8b_pretrain_64gpu_h100_bf16"),
        (("llama-3.1-8b", "1x8xb200", 8192, 128), "llama3_8b_pretrain_8gpu_b200_bf16"),
        (("llama-3.1-70b", "8x8xh100-sxm", 8192, 256), "llama3_70b_pretrain_64gpu_h100_bf16"),
        (("llama-3.1-70b", "8x8xb200", 8192, 256), "llama3_70b_pretrain_64gpu_b200_bf16"),
    ],
)
def test_the_recipe_of_the_same_model_accelerator_and_scale(
    question: tuple[str, str, int, int], name: str
) -> None:
    request, answer = answered(*question)
    found, best = answer.recipe, answer.best
    assert found is not None
    assert best is not None
    assert found.same_model
    assert found.recipe.name.startswith(name)
    assert "/blob/067f987df03b/src/megatron/bridge/perf_recipes/llama/" in found.recipe.url
    assert found.plan is not None
    assert found.plan.plan.accelerators == request.cluster.accelerators
    # Priced as any other plan: no figure of the recipe's own is in it.
    own = plan_answers.estimate(request, found.plan.plan).estimate
    assert found.plan.iteration_time_s == own.iteration_time_s
    assert found.slower_by == own.iteration_time_s / best.iteration_time_s - 1.0
    assert found.slower_by >= -1e-9


@pytest.mark.slow
def test_field_by_field_the_recipe_becomes_the_best_plan() -> None:
    """What both plans say of all fields is in the changes, and each is priced on its own."""
    request, answer = answered("llama-3.1-70b", "8x8xb200", 8192, 256)
    found, best = answer.recipe, answer.best
    assert found is not None
    assert found.plan is not None
    assert best is not None
    theirs, ours = found.plan.plan, best.plan
    degrees = ("tp", "cp", "pp", "vpp", "zero_stage", "micro_batch_size", "recompute")
    differ = {name for name in degrees if getattr(theirs, name) != getattr(ours, name)}
    assert differ <= {one.field for one in found.changes}
    assert differ
    alone = next(one for one in found.changes if one.field == "cp")
    changed = theirs.model_copy(update={"cp": ours.cp, "dp": theirs.dp * theirs.cp // ours.cp})
    seconds = plan_answers.estimate(request, changed).estimate.iteration_time_s
    assert alone.saves == pytest.approx(1.0 - seconds / found.plan.iteration_time_s)
    assert sum(found.saved_s.values()) > 0.0


def test_dp_follows_the_cluster_and_the_batch_divides() -> None:
    """The recipe has 64 replicas of two sequences each; here there are 24, and a batch of 24."""
    found = beside(asked("llama-3.1-8b", "3x8xb200", 8192, 24))
    assert found is not None
    assert found.plan is not None
    assert found.recipe.name.startswith("llama3_8b_pretrain_64gpu_b200_bf16")
    assert (found.plan.plan.dp, found.plan.plan.micro_batch_size) == (24, 1)
    assert found.forced == ("dp 64 -> 24", "micro_batch_size 2 -> 1")


def test_what_does_not_divide_says_what_it_takes() -> None:
    found = beside(asked("llama-3.1-70b", "1x8xh100-sxm", 8192, 64), tp=8, dp=1)
    assert found is not None
    assert found.plan is None
    assert found.slower_by is None
    text = "takes a multiple of 32 accelerators, and here are 8"
    assert found.problem == f"tp 4 x cp 2 x pp 4 {text}"


def test_what_needs_other_degrees_here_says_them() -> None:
    """EP 64 does not divide racks of 72; with EP 8 a rank has eight times as many experts."""
    question = asked("deepseek-v3", "4x72xgb200", 4096, 4608, precision="fp8")
    found = beside(question, tp=2, sequence_parallel=True, pp=3, dp=48, ep=32)
    assert found is not None
    assert found.problem is not None
    assert found.problem.startswith("with ep 64 -> 8 to divide the ranks here, stage 1 needs ")


def test_what_does_not_fit_says_in_which_types_it_does() -> None:
    """The recipe of 405B keeps gradients in bf16; the default of a request is fp32."""
    question = ("llama-3.1-405b", "128x8xh100-sxm", 8192, 2048)
    plan = {"tp": 8, "sequence_parallel": True, "pp": 16, "dp": 8}
    found = beside(asked(*question), **plan)
    assert found is not None
    assert found.plan is None
    assert found.problem is not None
    assert "it fits with its own data types, gradient_dtype bf16" in found.problem
    types = {"gradient_dtype": "bf16", "gradient_reduce_dtype": "bf16"}
    fits = beside(asked(*question, **types), **plan)
    assert fits is not None
    assert fits.plan is not None
    assert fits.recipe == found.recipe


def test_what_fits_with_less_at_a_time_says_so() -> None:
    found = beside(asked("gemma-3-27b", "4x8xh100-sxm", 8192, 512), tp=8, dp=4)
    assert found is not None
    assert not found.same_model
    assert found.problem is not None
    assert found.problem.endswith("it fits with micro_batch_size 1")


def test_adapters_are_compared_with_recipes_of_adapters() -> None:
    tuned = beside(asked("llama-3.1-8b", "1x1xh100-sxm", 2048, 32, lora_rank=16))
    assert tuned is not None
    assert tuned.recipe.adapters
    whole = beside(asked("llama-3.1-8b", "1x8xh100-sxm", 2048, 32), zero_stage=1)
    assert whole is not None
    assert not whole.recipe.adapters


def test_tpus_are_compared_with_what_runs_there() -> None:
    found = beside(asked("llama-3.1-8b", "8x4xtpu-v5p", 8192, 256), zero_stage=3, runtime="jax")
    assert found is not None
    assert found.recipe.accelerator.startswith("tpu")
    on_gpus = beside(asked("llama-3.1-8b", "8x8xmi300x", 8192, 256))
    assert on_gpus is None or not on_gpus.recipe.accelerator.startswith("tpu")


def test_a_model_without_recipes_has_none_and_no_error() -> None:
    spec = {"num_layers": 9, "hidden_size": 576, "num_attention_heads": 9, "vocab_size": 32000}
    assert beside(asked({"name": "own", **spec}, "1x8xh100-sxm", 1024, 64)) is None
    assert beside(asked({"name": "7", **spec}, "1x8xh100-sxm", 1024, 64)) is None
    request = asked("gpt2-medium", "1x8xh100-sxm", 1024, 512)
    assert published_recipe(request, cost_model(request), None) is None


@pytest.mark.slow
@pytest.mark.one_in(1, quick=3)
@pytest.mark.parametrize("share", [6, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("cluster", ["3x8xh100-sxm", "1x1xrtx-4090", "4x4xtpu-v5p"])
def test_no_preset_is_an_error(cluster: str, share: int) -> None:
    """Whatever a recipe needs that a cluster has not; what is told as running does run."""
    for entry in models()[::share]:
        request = asked(entry.id, cluster, 1024, 96)
        found = beside(request)
        if found is None or found.plan is None:
            assert found is None or found.problem
            continue
        context = Context(request.model, request.cluster, request.training)
        plans = Plans.from_rows([found.plan.plan])
        assert passing(RULES, context, plans).all()
        needed = cost_model(request).needed_bytes(plans)
        assert np.all(needed <= room_of(request).of(plans))


@pytest.mark.slow
def test_it_is_written_by_its_own_framework_or_says_why_not() -> None:
    bundle = emit(asked("llama-3.1-8b", "1x8xb200", 8192, 128), pick="published-recipe")
    assert bundle.framework == "megatron-bridge"
    assert "# The published recipe llama3_8b_pretrain_8gpu_b200_bf16" in bundle.files[bundle.main]
    with pytest.raises(NothingFits, match="no recipe of gpt2-medium is known here"):
        emit(asked("gpt2-medium", "1x8xh100-sxm", 1024, 512), pick="published-recipe")
    with pytest.raises(NothingFits, match="multiple of 32 accelerators"):
        emit(asked("llama-3.1-70b", "2x8xh100-sxm", 8192, 64), pick="published-recipe")


def test_a_recipe_that_its_framework_cannot_run_here_is_not_offered() -> None:
    """A T4 has no bf16, torchtune no fp16; and it trains on no preferences."""
    packed = {"lora_rank": 16, "frozen_dtype": "nf4"}
    on_t4 = beside(asked("llama-3.1-8b", "1x1xt4", 1024, 16, **packed))
    assert on_t4 is not None
    assert on_t4.recipe.framework == "torchtune"
    assert on_t4.plan is None
    assert on_t4.problem == (
        "torchtune cannot run it: its recipes train in bf16 or fp32, not in fp16"
    )
    pairs = beside(asked("llama-3.1-8b", "1x1xh100-sxm", 1024, 16, lora_rank=16, loss="dpo"))
    assert pairs is not None
    assert "cannot run it: its launch files train on the next" in (pairs.problem or "")


@pytest.mark.slow
def test_a_recipe_is_written_in_the_types_that_its_framework_trains_in() -> None:
    """Torchtune has no fp32 copy of adapters, and calls whole layers blocks."""
    bundle = emit(
        asked("llama-3.1-8b", "1x1xrtx-4090", 1024, 16, lora_rank=16), pick="published-recipe"
    )
    assert bundle.framework == "torchtune"
    assert "enable_activation_checkpointing: true" in bundle.files["config.yaml"]


def test_of_several_releases_the_fastest_published_is_told() -> None:
    """Megatron-Bridge 26.04 runs gpt-oss-120b with EP 8 at 470 TFLOP/s, 26.02 with EP 64 at 279."""
    question = ("gpt-oss-120b", "8x8xb200-sxm", 4096, 1280)
    types = {"gradient_dtype": "bf16", "gradient_reduce_dtype": "bf16"}
    found = beside(asked(*question, **types), ep=8)
    assert found is not None
    assert (found.recipe.release, found.recipe.plan["ep"]) == ("26.04", 8)
    assert found.plan is not None
    # In fp32 it does not fit: that is said, not that an older one is slow.
    wide = beside(asked(*question), ep=8)
    assert wide is not None
    assert wide.recipe == found.recipe
    assert "it fits with its own data types" in (wide.problem or "")


def test_how_layers_are_dealt_is_told_as_one_with_its_value() -> None:
    """The recipe says what its last stage has, the plan beside it the layers of each chunk."""
    request = asked("deepseek-v3", "256xgb200", 4096, 4096, precision="fp8")
    even = tuple([4] * 15 + [1])
    found = beside(
        request, pp=4, vpp=4, dp=64, ep=64, schedule="interleaved-1f1b", stage_layers=even
    )
    assert found is not None
    assert found.plan is not None
    layers = [one for one in found.changes if one.field.endswith("stage_layers")]
    (told,) = layers
    assert (told.field, told.theirs) == ("stage_layers", "13 on the last")
    assert all(one.theirs for one in found.changes)


def test_a_recipe_of_another_family_shows_nothing_of_the_model() -> None:
    """OLMo 2 has the shape of Llama 2 and norms that Megatron's layers do not have."""
    found = beside(asked("olmo-2-13b", "4x8xh100-sxm", 4096, 256), dp=32, zero_stage=3)
    assert found is not None
    assert found.plan is None
    assert found.problem is not None
    assert "cannot build it: " in found.problem
    llama = beside(asked("llama-2-13b", "4x8xh100-sxm", 4096, 256), dp=32, zero_stage=3)
    assert llama is not None
    assert llama.plan is not None
