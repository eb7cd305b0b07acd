"""What others do: the published recipe that is nearest to a question, priced for its cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd
from typing import Any

import numpy as np
from pydantic import ValidationError

from cost_models.effects import is_read
from cost_models.estimate import CostModel
from cost_models.plans import FIELDS, ParallelPlan, Plans
from planner import frameworks
from planner.answers.plans.explain import reports
from planner.answers.plans.nearest_recipes import family_name, nearest_recipes
from planner.answers.plans.other_degrees import moved
from planner.constraints import RULES, BoolArray, Context, passing, violations
from planner.documents.answer import PublishedRecipe, RecipeChange
from planner.documents.formats import chance, listed, overflow, seconds, value_words
from planner.documents.plan_report import PlanReport
from planner.documents.recipes import Recipe
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty.site_storage import room_of
from planner.frameworks.plan_defaults import own_trainings
from planner.frameworks.supported import obstacles, runs
from planner.search.exhaustive import cost_model

# How much farther than the nearest recipe one may be to stand for it where it does not run, and to
# be told where it is the fastest of those that run: the one to beat.  Less than another precision.
_STANDS_FOR, _AS_NEAR = 0.4, 0.9
# Kernels of today's framework, where a recipe says none.
_KERNELS = ("cp_kind", "attention_kernel", "cross_entropy")
# Fields that change together, by the one that is told.
_TOGETHER = {
    "tp": ("sequence_parallel", "overlap_tp"),
    "cp": ("cp_kind",),
    "vpp": ("schedule", "first_stage_layers", "last_stage_layers", "stage_layers", "overlap_p2p"),
    "pp": ("first_stage_layers", "last_stage_layers", "stage_layers"),
    "stage_layers": ("first_stage_layers", "last_stage_layers"),
    "recompute": (
        "recompute_modules", "recompute_method", "recompute_num_layers", "recompute_layers",
    ),
    "ep": ("etp", "moe_dispatcher", "overlap_ep"),
    "zero_stage": ("reshard_after_forward", "dp_shard"),
    "offload_activations": ("offload_num_layers",),
    "runtime": ("attention_kernel", "cross_entropy", "compile"),
}  # fmt: skip
_UNTOLD = ("dp", "rank_order")
# Those that are told as one although a part of them alone differs.
_AS_ONE = ("recompute", "stage_layers")
# What makes a recipe fit, the least costly first.
_REMEDIES: tuple[dict[str, Any], ...] = (
    {"micro_batch_size": 1},
    {"zero_stage": 2},
    {"zero_stage": 3},
    {"recompute": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    {"offload_optimizer": True},
)


def published_recipe(
    request: PlanRequest, model: CostModel, best: PlanReport | None
) -> PublishedRecipe | None:
    """The nearest recipe that runs here, and the best plan beside it; None where none is known.

    Of the same model, else of one of its family and size; the nearest of all where none runs.
    """
    near, same = nearest_recipes(request)
    if best is None or not near:
        return None
    rows = [_adapted_to_cluster(request, one) for one, _ in near]
    plans = Plans.from_rows(rows)
    apart = np.array([distance for _, distance in near])
    fits = _fitting(request, model, plans)
    fits &= np.array([not _refusal(request, one) for one, _ in near])
    if not fits[apart <= apart[0] + _STANDS_FOR].any():
        problem = _problem(request, model, near[0][0], rows[0])
        return PublishedRecipe(recipe=near[0][0], same_model=same, problem=problem)
    close = np.flatnonzero(fits & (apart <= apart[0] + _AS_NEAR))
    place = int(close[np.argmin(model.evaluate(plans.take(close)).iteration_time_s)])
    recipe, _ = near[place]
    (own,) = reports(model, request, [rows[place]], simulated=False)
    return PublishedRecipe(
        recipe=recipe,
        same_model=same,
        forced=tuple(_forced(recipe, own.plan)),
        plan=own,
        slower_by=own.iteration_time_s / best.iteration_time_s - 1.0,
        changes=tuple(_changes(request, model, own, best.plan)),
        saved_s=moved(best.time_parts_s, own.time_parts_s),
    )


def _refusal(request: PlanRequest, recipe: Recipe) -> str:
    """Why a recipe's own framework trains nothing alike here, in whatever types; empty if it does.

    The types are those asked, or where the request leaves them out the framework's own.
    """
    if recipe.framework is None:
        return ""
    framework = frameworks.get(recipe.framework)
    trainings = own_trainings(framework, request.training, request.training_left_out)
    each = [Context(request.model, request.cluster, own) for own in (request.training, *trainings)]
    if any(runs(framework.name, own) for own in each):
        return ""
    by_model, reasons = obstacles(framework, each[1])
    # A recipe shows that its framework has the family, in a version or way that is not known here;
    # of another model with the same shape it shows nothing (OLMo 2 has that of Llama 2).
    known = by_model and family_name(recipe.model) == family_name(request.model.name)
    if known or not reasons:
        return ""
    return f"{framework.title} cannot {'build' if by_model else 'run'} it: {reasons[0]}"


def _fitting(request: PlanRequest, model: CostModel, plans: Plans) -> BoolArray:
    """Which plans break no rule and fit."""
    fits = passing(RULES, Context(request.model, request.cluster, request.training), plans)
    if fits.any():
        legal = plans.take(fits)
        fits[fits] = model.needed_bytes(legal) <= room_of(request).of(legal)
    return fits


def _adapted_to_cluster(request: PlanRequest, recipe: Recipe) -> ParallelPlan:
    """The plan of a recipe on the request's cluster: dp follows, and what has to divide does."""
    fields = dict(recipe.plan)
    if recipe.framework is not None:
        framework = frameworks.get(recipe.framework)
        for name in (name for name in _KERNELS if name in framework.axes):
            fields.setdefault(name, framework.axes[name][0])
        if framework.fields["recompute_method"].only == ("block",):
            fields |= _each_layer(request, ParallelPlan.model_validate(fields))
        if fields.get("runtime") not in framework.axes.get("runtime", ()):
            fields["runtime"] = framework.runtime
    plan = ParallelPlan.model_validate(fields)
    split = plan.tp * plan.cp * plan.pp
    dp = max(1, request.cluster.accelerators // split)
    changed: dict[str, Any] = {"dp": dp}
    share = request.training.global_batch_size // dp
    if share:
        changed["micro_batch_size"] = gcd(plan.micro_batch_size, share)
    if plan.dp_shard:
        changed["dp_shard"] = gcd(plan.dp_shard, dp * plan.cp)
    if plan.ep > 1:
        ranks = plan.tp * plan.cp * dp // plan.etp
        changed["ep"] = gcd(plan.ep, max(ranks, 1))
    changed |= _fewer_chunks(plan, request.training.global_batch_size, changed)
    return plan.model_copy(update=changed)


def _each_layer(request: PlanRequest, plan: ParallelPlan) -> dict[str, Any]:
    """Checkpoints of one layer each, in the words of a framework that recomputes blocks alone."""
    if (plan.recompute, plan.recompute_method, plan.recompute_num_layers) != ("full", "uniform", 1):
        return {}
    layers = -(-request.model.num_layers // (plan.pp * plan.vpp))
    return {"recompute_method": "block", "recompute_num_layers": layers}


def _fewer_chunks(plan: ParallelPlan, batch: int, changed: dict[str, Any]) -> dict[str, Any]:
    """1F1B where the micro-batches are no whole rounds of an interleaved schedule."""
    mbs = changed.get("micro_batch_size", plan.micro_batch_size)
    count = batch // (changed["dp"] * mbs)
    if plan.schedule != "interleaved-1f1b" or count % plan.pp == 0:
        return {}
    layers: dict[str, Any] = {"vpp": 1, "schedule": "1f1b"}
    if len(plan.stage_layers) != plan.pp:
        layers["stage_layers"] = _ranks(plan)
    return layers


def _ranks(plan: ParallelPlan) -> tuple[int, ...]:
    """The layers of each rank of a plan whose layers are given by virtual stage."""
    return tuple(sum(plan.stage_layers[rank :: plan.pp]) for rank in range(plan.pp))


def _forced(recipe: Recipe, plan: ParallelPlan) -> Iterator[str]:
    """What the cluster and the batch make of a recipe: dp 16 -> 4."""
    published = ParallelPlan.model_validate(recipe.plan)
    split = published.tp * published.cp * published.pp
    before = {"dp": max(1, recipe.accelerators // split)}
    for name in ("dp", "dp_shard", "ep", "micro_batch_size", "vpp"):
        own, its = getattr(plan, name), before.get(name, getattr(published, name))
        if own != its:
            yield f"{name} {its} -> {own}"


def _changes(
    request: PlanRequest, model: CostModel, theirs: PlanReport, ours: ParallelPlan
) -> list[RecipeChange]:
    """The fields that ours has otherwise, and what each saves in their plan on its own.

    All of them are priced as one array; saves is None where a change goes with another alone.
    """
    plan = theirs.plan
    told = _differing(plan, ours)
    alone = [
        _with_fields(
            request, plan, {one: getattr(ours, one) for one in (name, *_TOGETHER.get(name, ()))}
        )
        for name in told
    ]
    rows = list(dict.fromkeys(row for row in alone if row is not None))
    saves = dict(zip(rows, _saved(request, model, theirs, rows), strict=True))
    return [
        RecipeChange(
            field=name, theirs=_field_value_text(plan, name), ours=_field_value_text(ours, name),
            saves=None if row is None else saves[row],
        )
        for name, row in zip(told, alone, strict=True)
    ]  # fmt: skip


def _differing(plan: ParallelPlan, ours: ParallelPlan) -> list[str]:
    """The fields in which two plans differ, without those that go with another of these."""
    names = [name for name in FIELDS if name not in _UNTOLD and _differ(plan, ours, name)]
    as_one = {part: name for name in _AS_ONE for part in _TOGETHER[name]}
    names = list(dict.fromkeys(as_one.get(name, name) for name in names))
    beside = {other for name in names for other in _TOGETHER.get(name, ())}
    return [name for name in names if name not in beside]


def _field_value_text(plan: ParallelPlan, name: str) -> str:
    if name == "recompute":
        modules = "+".join(plan.recompute_modules)
        each = f" of {plan.recompute_num_layers}" if plan.recompute_method == "block" else ""
        return {"none": "none", "selective": modules, "full": f"full{each}"}[plan.recompute]
    if name == "stage_layers" and not plan.stage_layers:
        ends = [(end, getattr(plan, f"{end}_stage_layers")) for end in ("first", "last")]
        return " and ".join(f"{count} on the {end}" for end, count in ends if count) or "even"
    return value_words(getattr(plan, name))


def _differ(plan: ParallelPlan, ours: ParallelPlan, name: str) -> bool:
    """Whether a field is another where either of the plans reads it."""
    theirs, own = getattr(plan, name), getattr(ours, name)
    if theirs == own or (name == "recompute_modules" and set(theirs) == set(own)):
        return False
    return is_read(plan, name) or is_read(ours, name)


def _with_fields(
    request: PlanRequest, plan: ParallelPlan, update: dict[str, Any]
) -> ParallelPlan | None:
    """A plan with other fields, dp as it follows; None where these do not go with the others."""
    fields = {**plan.model_dump(), **update}
    split = fields["tp"] * fields["cp"] * fields["pp"]
    fields["dp"] = max(1, request.cluster.accelerators // split)
    try:
        return ParallelPlan.model_validate(fields)
    except ValidationError:
        return None


def _saved(
    request: PlanRequest, model: CostModel, theirs: PlanReport, rows: Sequence[ParallelPlan]
) -> list[float | None]:
    """The share of their time that each of the plans saves; None of those that break a rule."""
    if not rows:
        return []
    plans = Plans.from_rows(rows)
    legal = passing(RULES, Context(request.model, request.cluster, request.training), plans)
    saved: list[float | None] = [None] * len(rows)
    if legal.any():
        times = model.evaluate(plans.take(legal)).iteration_time_s
        for place, value in zip(np.flatnonzero(legal).tolist(), times.tolist(), strict=True):
            saved[place] = 1.0 - value / theirs.iteration_time_s
    return saved


def _problem(request: PlanRequest, model: CostModel, recipe: Recipe, plan: ParallelPlan) -> str:
    """Why a recipe does not run here, and what would have to change."""
    split, world = plan.tp * plan.cp * plan.pp, request.cluster.accelerators
    if world % split:
        degrees = [(name, getattr(plan, name)) for name in ("tp", "cp", "pp")]
        product = " x ".join(f"{name} {value}" for name, value in degrees if value > 1)
        return f"{product} takes a multiple of {split:,} accelerators, and here are {world:,}"
    if refusal := _refusal(request, recipe):
        return refusal
    context = Context(request.model, request.cluster, request.training)
    if broken := violations(context, plan, RULES):
        return broken[0].text
    said = _misses(request, model, recipe, plan)
    if types := _with_recipe_dtypes(request, recipe, plan):
        return f"{said}; {types}"
    rows = [row for update in _REMEDIES if (row := _remedied(request, plan, update)) is not None]
    fits = _fitting(request, model, Plans.from_rows(rows))
    if not fits.any():
        return said
    row = rows[int(np.argmax(fits))]
    told = [f"{name} {_field_value_text(row, name)}" for name in _differing(plan, row)]
    return f"{said}; it fits with {listed(told)}"


def _misses(request: PlanRequest, model: CostModel, recipe: Recipe, plan: ParallelPlan) -> str:
    """By how much a recipe does not fit, with the degrees that the ranks here change."""
    (own,) = reports(model, request, [plan], simulated=False)
    memory = own.memory
    said = f"{chance(memory.chance_of_running_out)} risk of running out of memory"
    if memory.peak_bytes > memory.capacity_bytes:
        said = overflow(memory)
    forced = [change for change in _forced(recipe, plan) if not change.startswith("dp")]
    return f"with {listed(forced)} to divide the ranks here, {said}" if forced else said


def _with_recipe_dtypes(request: PlanRequest, recipe: Recipe, plan: ParallelPlan) -> str:
    """How a recipe runs in the types that it trains in; empty where it does not in these either."""
    differ = {
        name: value
        for name, value in recipe.training.items()
        if value != getattr(request.training, name)
    }
    training = request.training.model_copy(update=differ)
    asked = request.model_copy(update={"training": training})
    model = cost_model(asked)
    if not differ or not _fitting(asked, model, Plans.from_rows([plan])).all():
        return ""
    (own,) = reports(model, asked, [plan], simulated=False)
    told = listed([f"{name} {value}" for name, value in differ.items()])
    return f"it fits with its own data types, {told}, and takes {seconds(own.iteration_time_s)}"


def _remedied(
    request: PlanRequest, plan: ParallelPlan, update: dict[str, Any]
) -> ParallelPlan | None:
    """The plan with a remedy; None where it has that already."""
    cleared: dict[str, Any] = {}
    if "recompute" in update:
        cleared = {"recompute_modules": (), "recompute_layers": ()}
    row = _with_fields(request, plan, {**cleared, **update})
    higher = update.get("zero_stage", 4) > plan.zero_stage
    return row if row != plan and higher else None
