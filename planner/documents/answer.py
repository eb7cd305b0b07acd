"""What the planner answers: the documents of `--json`, REST and Python, one and the same.

The parts of time and memory are named in cost_models/cost_parts.json, the reasons of refusals in
reasons.json.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import Field

from cost_models.package_files import table
from cost_models.plans import ParallelPlan
from planner.documents.plan_report import Answer, Document, PlanReport
from planner.documents.recipes import Recipe
from planner.documents.scored_runs import Evidence


class Meaning(NamedTuple):
    """What a code says: after "refused for", short enough for a list; and as a sentence."""

    short: str
    sentence: str


REASONS = {code: Meaning(*said) for code, said in table(__package__ or "", "reasons.json").items()}


class Reason(Document):
    """Why a plan cannot run: a code of REASONS, a sentence with numbers, and the numbers."""

    code: str = Field(
        json_schema_extra={"x-meanings": {code: said.sentence for code, said in REASONS.items()}}
    )
    text: str
    numbers: dict[str, float] = Field({})


class LimitConflict(Document):
    """Limits of a request, by plan field, that no plan meets whatever else is varied, and why."""

    fields: tuple[str, ...]
    text: str


class SpaceAxis(Document):
    """One axis of the space that was searched."""

    axis: str
    values: tuple[Any, ...]
    count: int
    note: str = ""


class Counts(Document):
    """enumerated = dominated + costed + rejected before costing; costed = feasible + memory.

    examples: for each reason, one refused combination explained with its numbers.  cut_short:
    the search was ended before it had seen all plans.
    """

    enumerated: int
    dominated: int
    costed: int
    feasible: int
    rejected: dict[str, int]
    examples: dict[str, str] = Field({})
    cut_short: bool = False


class Change(Document):
    """A change that fits: fields of the plan (or `nodes`) to set, the plan, what comes of it."""

    set: dict[str, Any]
    plan: ParallelPlan
    peak_bytes: float
    iteration_time_s: float
    tokens_per_s: float


class Nearest(Document):
    """When nothing fits: the plan that misses by least, and changes that do fit.

    Without a plan: no combination is even legal.
    """

    plan: ParallelPlan | None
    stage: int | None
    over_by_bytes: float | None
    changes: tuple[Change, ...]


class Baseline(Document):
    """What a careful hand would pick, and how much faster the best plan is."""

    rule: str
    report: PlanReport
    speedup: float


class ProfileInfo(Document):
    """The efficiency profile in use and where it comes from.

    measured: the terms that a calibration measured on one machine, each with the parts of the
    step's time that it prices; empty where none did.
    """

    id: str
    name: str
    source: str
    kind: Literal["built in", "scaled", "fallback", "calibrated"]
    measured: dict[str, tuple[str, ...]] = Field({})


class Launch(Document):
    """The fastest plan of a framework, priced with its own kernels; slower_by: than the best, below
    zero where no run was published of its kernels, so that it is not the best.
    """

    framework: str
    slower_by: float
    plan: PlanReport


class Pick(Document):
    """One of three plans to choose from; slower_by: than the fastest."""

    name: Literal["fastest", "recommended", "most headroom"]
    plan: PlanReport
    slower_by: float
    why: str


class RecipeChange(Document):
    """A field that the best plan has otherwise than a recipe.

    saves: the share of the recipe's time that this change alone would save, below zero where it
    costs; None where it goes with another change only.
    """

    field: str
    theirs: str
    ours: str
    saves: float | None


class PublishedRecipe(Document):
    """What others do: the nearest published recipe, priced for this cluster, batch and length.

    same_model: whether it is of the same model, else of one of its family and size.  forced: what
    cluster and batch change of it (dp 16 -> 4).  plan: None where it does not run here, for the
    reason in `problem`.  slower_by: than the best plan; below zero where it is faster.  changes:
    what the best plan has otherwise; saved_s: the time that this saves, by part, below zero where
    it costs.
    """

    recipe: Recipe
    same_model: bool
    forced: tuple[str, ...] = ()
    plan: PlanReport | None = None
    problem: str | None = None
    slower_by: float | None = None
    changes: tuple[RecipeChange, ...] = ()
    saved_s: dict[str, float] = Field({})


class Unbuildable(Document):
    """Why the framework asked for runs no plan at all, and who does.

    builds: whether it builds the model, and refuses the rest.  able: names of frameworks that
    train it; instead: the fastest plan among theirs that fits.
    """

    framework: str
    title: str
    builds: bool
    reasons: tuple[str, ...]
    able: tuple[str, ...]
    instead: Launch | None

    @property
    def sentence(self) -> str:
        """What it cannot, and who can."""
        task = "run it as asked" if self.builds else "build it"
        none = "no framework can, as they are modelled here"
        able = f"{', '.join(self.able)} can" if self.able else none
        return f"{self.title} cannot {task}: {'; '.join(self.reasons)}; {able}."


class Replanned(Document):
    """What planning with the profile of the request, or of its site, changed.

    plan: the best by the accelerator's own profile, priced with that; usual_time_s: its
    iteration by the former; differences: the fields of the best plan that differ from it.
    """

    usual_profile: str
    usual_time_s: float
    plan: PlanReport
    slower_by: float
    differences: dict[str, Any]


class RankOrder(Document):
    """A plan with its ranks in one order; slower_by: than in the fastest order.

    frameworks: those that accept the plan in this order.
    """

    rank_order: str
    iteration_time_s: float
    slower_by: float
    frameworks: tuple[str, ...]


class Contender(Document):
    """One of the first plans of a search, with the doubt in its time counted.

    chance_best: that it is the fastest of them.  chance_slower: that the first is faster than it.
    tie: that is not sure, so the two cannot be told apart.  expected_time_s: the mean of the times
    that it may take.
    """

    id: str
    plan: ParallelPlan
    iteration_time_s: float
    expected_time_s: float
    chance_best: float
    chance_slower: float
    tie: bool


class Selection(Document):
    """The best plan's time with it counted that the first of `plans` close plans was picked.

    share: by how much it is likely to be slower than estimated; expected_time_s: with that.
    """

    plans: int
    share: float
    expected_time_s: float


class MeasureNext(Document):
    """Of the contenders the one whose run would tell most about the times of all of them.

    id: of the contender.  left: the share of what is not known of them that its run leaves (of the
    variance of errors that runs share).
    """

    id: str
    plan: ParallelPlan
    left: float


class HeldFixed(Document):
    """A choice that the search held fixed, and the value with which the best plan is fastest.

    saves: of its time, with all else as it is; negative where it is slower.  runs_in: of a
    schedule, the frameworks that run it.
    """

    field: str
    value: Any
    other: Any
    saves: float
    runs_in: tuple[str, ...] = ()


class Rival(Document):
    """The best plan that splits the work otherwise than the fastest: other TP, CP, PP, EP or ZeRO.

    chance_slower: that the fastest is faster than it, the doubt counted.  saved_s: the parts of
    the time that tell them apart most, and what the fastest saves; below zero: what it costs.
    sentence: all of it in words; claim: of these only which choice beats which, and by how much.
    """

    plan: ParallelPlan
    iteration_time_s: float
    slower_by: float
    chance_slower: float
    saved_s: dict[str, float]
    claim: str
    sentence: str


class PlanAnswer(Answer):
    """The answer to `planner plan` and POST /v1/plans.

    best: of the framework whose best is the fastest, which `launch` names; no_launch: why no
    framework can start it, where none can.  frameworks: the best of each, in the order of the
    objective.  picks: the fastest, the one to start with, the one with most room.
    held_fixed: what the search left as it is, and what another value there would save.
    layers: how many of each kind the model has; rank_orders: the best plan in every order of its
    ranks, the fastest first; none where the order is of no effect.  contenders: the first plans,
    however many are listed; none where the search is not for time.  best_expected: the id of that
    with the lowest expected time, where it is not the first.  selection: how far the best plan's
    time is understated because it was picked as the shortest.  measure_next: the contender to run
    for knowing, and not for speed.  opened: what was searched besides, since nothing fits without
    it on a single node, and pointers to what was left out and is as the trainer of the plan has it;
    `request` has both; fallback: a sentence on it.  unbuildable: where the framework
    asked for runs no plan at all.  evidence: what was measured near the best plan.
    rival: of other degrees of parallelism; none where the search is not for time or saw none.
    conflicts: where nothing fits, limits of the request that no plan can meet.
    recipe: what others do with this model; None where no recipe of it is known.
    """

    layers: dict[str, int] = Field({})
    profile: ProfileInfo
    best: PlanReport | None
    evidence: Evidence | None = None
    rival: Rival | None = None
    rank_orders: tuple[RankOrder, ...] = ()
    launch: Launch | None
    no_launch: str | None = None
    frameworks: tuple[Launch, ...] = ()
    picks: tuple[Pick, ...] = ()
    held_fixed: tuple[HeldFixed, ...] = ()
    unbuildable: Unbuildable | None = None
    replanned: Replanned | None
    plans: tuple[PlanReport, ...]
    contenders: tuple[Contender, ...] = ()
    best_expected: str | None = None
    selection: Selection | None = None
    measure_next: MeasureNext | None = None
    opened: tuple[str, ...] = ()
    fallback: str | None = None
    pareto: tuple[PlanReport, ...]
    nearest: tuple[Nearest, ...]
    conflicts: tuple[LimitConflict, ...] = ()
    space: tuple[SpaceAxis, ...]
    counts: Counts
    baseline: Baseline | None
    recipe: PublishedRecipe | None = None
    search_time_s: float


class EstimateAnswer(Answer):
    """The answer to `planner estimate` and POST /v1/estimates.

    layers: as in PlanAnswer.  evidence: what was measured near the plan.
    """

    layers: dict[str, int] = Field({})
    profile: ProfileInfo
    estimate: PlanReport
    evidence: Evidence | None = None


class WhyAnswer(Answer):
    """The answer to `planner why`: what binds, and the smallest change that fits.

    layers: as in PlanAnswer.  chance_slower: that the best plan is faster, the doubt counted.
    """

    layers: dict[str, int] = Field({})
    profile: ProfileInfo
    verdict: Literal["illegal", "does not fit", "may run out", "slower", "best"]
    reasons: tuple[Reason, ...]
    estimate: PlanReport | None
    smallest_change: Change | None
    best: PlanReport | None
    slower_by: float | None
    chance_slower: float | None = None
    differences_s: dict[str, float]
