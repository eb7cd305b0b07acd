"""Which accelerators generate and which train, and how long a step takes each way.

The search: engines on the ranks that train, or on nodes of their own, as many as balance the two;
in step, one step behind, or asynchronously.  Training is planned once for each number of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cost_models.estimate import CostModel
from cost_models.plans import ParallelPlan
from cost_models.schedules import SCHEDULES
from planner import frameworks
from planner.answers.plans.competition import fastest
from planner.answers.plans.emission import NothingFits
from planner.answers.plans.explain import report
from planner.answers.plans.near_misses import free_bytes
from planner.answers.plans.plan_answers import IllegalPlan, illegal
from planner.answers.reinforcement.documents import PART, ReinforcementRequest, TransferStep
from planner.answers.reinforcement.engines import Engines, fastest_engines, lengths
from planner.answers.reinforcement.memory import (
    critic_share,
    resident_training_bytes,
    swapped_bytes,
)
from planner.answers.reinforcement.transfer import transfer
from planner.documents.answer import Reason
from planner.documents.formats import size
from planner.documents.plan_report import PlanReport
from planner.documents.problems import RequestError
from planner.documents.request import Bounds, PlanRequest
from planner.frameworks.step_trainers import STALENESS, WayName
from planner.search.exhaustive import cost_model

GENERATION_PARTS = ("generation", "reward")
# Lengths by which packed samples are priced, and node counts that are tried for generation.
QUANTILES, MOST_SPLITS = 16, 15


@dataclass(frozen=True)
class Trained:
    """Training on so many nodes: its plan, and what one optimizer step takes."""

    asked: ReinforcementRequest
    nodes: int
    request: PlanRequest
    plan: ParallelPlan

    @cached_property
    def model(self) -> CostModel:
        """The cost model that prices responses by their lengths."""
        return cost_model(self.request)

    @cached_property
    def report(self) -> PlanReport:
        """One optimizer step, whose batch is full of sequences."""
        return report(self.model, self.request, self.plan)

    @cached_property
    def filled(self) -> float:
        """Tokens of an optimizer step, padding included, over those of the sequences priced."""
        spec = self.asked.reinforcement
        if self.asked.trainer.pads:
            together = max(1.0, spec.sequences / self.plan.dp)  # of a rank, padded to one length
            longest = lengths(self.asked).expected_longest(together)
            return (spec.prompt_tokens + longest) / self.request.training.seq_length
        batch = self.asked.request.training.global_batch_size
        tokens = batch * (spec.prompt_tokens + spec.mean_tokens)
        training = self.request.training
        return min(1.0, tokens / (training.global_batch_size * training.seq_length))

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of one step of reinforcement learning."""
        spec = self.asked.reinforcement
        return spec.sequences // self.asked.request.training.global_batch_size * spec.epochs

    @cached_property
    def parts_s(self) -> dict[str, float]:
        """Seconds of scoring and training."""
        spec = self.asked.reinforcement
        each = self.optimizer_steps // spec.epochs * self.request.training.global_batch_size
        forward_s = self.filled * forward_pass_s(self.model, self.plan, each)
        critic = critic_share(self.asked, active=True)
        trained_s = self.filled * self.optimizer_steps * self.report.iteration_time_s
        return {
            "policy_scoring": forward_s,
            "reference_scoring": forward_s * spec.reference,
            "critic_scoring": forward_s * critic,
            "policy_training": trained_s,
            "critic_training": trained_s * critic,
        }


@dataclass(frozen=True)
class Layout:
    """One way to run the steps on the cluster; parts_s: STEP_PARTS in seconds."""

    name: WayName
    trained: Trained
    engines: Engines
    same: bool
    transfer: tuple[TransferStep, ...]
    parts_s: dict[str, float]

    @property
    def step_time_s(self) -> float:
        """Seconds of a step: one part after the other, or generation beside training."""
        if self.name == "synchronous":
            return sum(self.parts_s.values())
        return max(self.generation_s, self.training_s) + self.parts_s["weight_transfer"]

    @property
    def generation_s(self) -> float:
        """Seconds until the responses have their rewards."""
        return sum(self.parts_s[name] for name in GENERATION_PARTS)

    @property
    def training_s(self) -> float:
        """Seconds of the ranks that train, without the transfer of new weights."""
        apart = (*GENERATION_PARTS, "weight_transfer")
        return sum(taken for name, taken in self.parts_s.items() if name not in apart)

    @property
    def limited_by(self) -> str:
        """The part that would have to be shorter."""
        parts = self.parts_s
        if self.name != "synchronous":
            chosen = self.generation_s >= self.training_s
            parts = {n: s for n, s in parts.items() if (n in GENERATION_PARTS) == chosen}
        longest = max(parts, key=parts.__getitem__)
        made = self.engines.generated
        if longest != "generation" or made is None or self.name == "asynchronous":
            return longest
        return "longest responses" if made.tail_s > made.seconds / 2.0 else longest


def layouts(asked: ReinforcementRequest) -> list[Layout]:
    """The ways to run a step, the fastest that is fresh enough first.

    Raises NothingFits, IllegalPlan, SpaceTooLarge.
    """
    spec = asked.reinforcement
    found: list[Layout] = []
    trained: dict[int, Trained] = {}

    def on(nodes: int) -> Trained:
        if nodes not in trained:
            trained[nodes] = _trained(asked, nodes)
        return trained[nodes]

    ways = asked.trainer.ways_of(spec.algorithm)
    split = spec.generation == "other" or (spec.generation is None and asked.trainer.apart)
    if not split:
        whole = on(asked.nodes)
        engines = fastest_engines(
            asked, asked.nodes * asked.node_accelerators, "same",
            resident_training_bytes(asked, whole.report),
        )  # fmt: skip
        found.append(_layout("synchronous", whole, engines, same=True))
    searched = spec.generation is None and asked.nodes > 1 and asked.request.plan is None
    if split or searched:
        found += _split(asked, on, found[0] if found else None)
    if searched:
        found = [one for one in found if (one.name, "same" if one.same else "other") in ways]
    return _sorted(asked, found)


def _sorted(asked: ReinforcementRequest, found: list[Layout]) -> list[Layout]:
    """The fastest that is fresh enough first.  Raises NothingFits."""
    spec = asked.reinforcement
    if not found:
        raise NothingFits(
            f"no split of the {asked.nodes} nodes has room for engines and for the training; "
            "`planner plan` on fewer nodes says why",
            f"/{PART}/generation_nodes", spec.generation_nodes,
        )  # fmt: skip
    late = {name for name, lag in STALENESS.items() if lag > max(spec.staleness, 0.0)}
    return sorted(found, key=lambda one: (one.name in late, one.step_time_s))


def _step_s(one: Layout) -> float:
    return one.step_time_s


def _split(
    asked: ReinforcementRequest, on: Callable[[int], Trained], whole: Layout | None
) -> Iterator[Layout]:
    """Generation on nodes of their own: each way with the number of nodes that suits it."""
    spec, each = asked.reinforcement, asked.node_accelerators
    if spec.generation_nodes is not None:
        engines = fastest_engines(asked, spec.generation_nodes * each, "other", 0.0)
        for name in STALENESS:
            yield _layout(name, on(asked.nodes - spec.generation_nodes), engines, same=False)
        return
    reference = whole.trained if whole else on(max(1, asked.nodes // 2))
    work_s = sum(reference.parts_s.values()) * reference.nodes
    tried = {}
    most = 1 if asked.trainer.one_server else asked.nodes - 1
    for nodes in np.unique(np.linspace(1, most, MOST_SPLITS).round().astype(int)):
        try:
            tried[int(nodes)] = fastest_engines(asked, int(nodes) * each, "other", 0.0)
        except NothingFits:
            continue
    for name in STALENESS:
        if not tried or (name == "synchronous" and whole is not None):
            continue

        def expected_s(nodes: int, name: WayName = name) -> float:
            engines, training_s = tried[nodes], work_s / (asked.nodes - nodes)
            if name == "asynchronous":
                return max(engines.steady_s, training_s)
            late = name == "one step off-policy"
            return max(engines.seconds, training_s) if late else engines.seconds + training_s

        near = _near(asked, on, tried, name, min(tried, key=expected_s))
        yield from sorted(near, key=_step_s)[:1]


def _near(
    asked: ReinforcementRequest,
    on: Callable[[int], Trained],
    tried: Mapping[int, Engines],
    name: WayName,
    nodes: int,
) -> Iterator[Layout]:
    """Layouts with about so many nodes that generate.

    Training on few nodes takes more than its share, since less memory is left for it; where engines
    are waited for all the same, it needs no more of them.
    """
    first = _on_nodes(asked, on, tried, name, nodes)
    if first is not None:
        yield first
        if name != "synchronous" and first.generation_s >= first.training_s:
            return
    if (more := _on_nodes(asked, on, tried, name, nodes - 1)) is not None:
        yield more


def _on_nodes(
    asked: ReinforcementRequest,
    on: Callable[[int], Trained],
    tried: Mapping[int, Engines],
    name: WayName,
    nodes: int,
) -> Layout | None:
    """The layout with so many nodes that generate; None where training or engines don't fit."""
    if nodes not in tried:
        return None
    try:
        return _layout(name, on(asked.nodes - nodes), tried[nodes], same=False)
    except NothingFits:
        return None


def _trained(asked: ReinforcementRequest, nodes: int) -> Trained:
    """The given plan, or the fastest that fits, by a framework that has the whole step if any."""
    request = asked.training_on(nodes)
    named, trainer = request.search.framework, asked.trainer
    names = (named,) if named else (trainer.framework, None)
    if request.plan is not None:
        return _given(asked, request, request.plan, names)
    missing = dict[str | None, float]()
    for name in names:
        bound = request.for_framework(name)
        if name == trainer.framework and trainer.limits:
            extra = {field: Bounds(values=values) for field, values in trainer.limits.items()}
            limits = {**bound.search.limits, **extra}
            search = bound.search.model_copy(update={"limits": limits})
            bound = bound.model_copy(update={"search": search})
        try:
            outcome = fastest(bound).outcome
        except RequestError:
            if name is None or name == named:
                raise
            continue
        if outcome.best:
            runs = trainer.runs_as if name == trainer.framework else {}
            plan = outcome.best[0].model_copy(update=dict(runs))
            return Trained(asked, nodes, _by_lengths(asked, bound), plan)
        if outcome.nearest:
            missing[name] = -free_bytes(bound, outcome.nearest[0])
    least = min(missing.values(), default=None)
    raise NothingFits(_does_not_fit(asked, nodes, missing), missing_bytes=least)


def _does_not_fit(
    asked: ReinforcementRequest, nodes: int, missing: Mapping[str | None, float]
) -> str:
    """By how much the training misses, and the command that says what would help.

    missing: bytes, by the framework of a plan; None: of any.
    """
    spec = asked.reinforcement
    said = (
        f"no plan of the training fits on {nodes} node{'s' * (nodes > 1)} with sequences of "
        f"{spec.sequence_tokens:,} tokens"
    )
    if not missing:
        return said
    name = next(iter(missing))
    by = f" by {frameworks.get(name).title}" if name else ""
    said += f"; the nearest{by} misses by {size(missing[name])}"
    # Without a framework `planner plan` goes on to what no trainer of steps here does.
    return said if name is None else (
        f"{said}; for this model and these nodes `planner plan --framework {name} --seq-length "
        f"{spec.sequence_tokens} --global-batch-size {spec.sequences}` says what would help"
    )  # fmt: skip


def _given(
    asked: ReinforcementRequest,
    request: PlanRequest,
    plan: ParallelPlan,
    names: tuple[str | None, ...],
) -> Trained:
    """The given plan, bound to the first framework that can run it.  Raises IllegalPlan."""
    reasons: list[Reason] = []
    for name in names:
        bound = request.for_framework(name)
        rules = frameworks.get(name).rules if name else ()
        if not (reasons := illegal(bound, plan, rules)):
            nodes = request.cluster.groups[0].nodes
            return Trained(asked, nodes, _by_lengths(asked, bound), plan)
    raise IllegalPlan(reasons)


def _by_lengths(asked: ReinforcementRequest, request: PlanRequest) -> PlanRequest:
    """The request whose sequences are filled with responses of different lengths."""
    spec = asked.reinforcement
    if spec.mean_tokens == spec.longest_tokens or asked.trainer.pads:
        return request
    found = lengths(asked)
    shares = (np.arange(QUANTILES) + 0.5) / QUANTILES
    ends = np.interp(1.0 - shares, found.survival[::-1], found.edges[::-1])
    samples = tuple(spec.prompt_tokens + max(1, round(end)) for end in ends.tolist())
    update = {"sample_lengths": samples, "packing": "packed"}
    training = request.training.model_copy(update=update)
    return request.model_copy(update={"training": training})


def _layout(name: WayName, trained: Trained, engines: Engines, same: bool) -> Layout:
    asked = trained.asked
    spec, group = asked.reinforcement, asked.request.cluster.groups[0]
    generating = 0 if same else engines.count * engines.tp
    exchanged = transfer(trained.model, trained.plan, generating)
    moved = swapped_bytes(asked, trained.report, same) if spec.offload else 0.0
    link = group.host_link_bytes_per_s
    steady, scored = name == "asynchronous", dict(trained.parts_s)
    scores = asked.trainer.scores
    if scores == "never" or (scores == "in step" and name != "synchronous"):
        scored["policy_scoring"] = 0.0  # log-probabilities of the engines are taken
    parts = {
        "generation": engines.steady_s if steady else engines.seconds,
        "reward": spec.reward_s,
        **scored,
        "weight_transfer": sum(one.seconds for one in exchanged),
        "offload": moved / link if link and moved else 0.0,
    }
    return Layout(name, trained, engines, same, exchanged, parts)


def forward_pass_s(model: CostModel, plan: ParallelPlan, sequences: float) -> float:
    """Seconds of a forward pass of so many sequences through the stages of a plan.

    Stages work at the same time: the busiest one's pace, and one micro-batch through the others.
    Left out: what ZeRO-3 gathers beyond what the forward kernels hide.
    """
    times, links = model.stage_times(plan)
    two_way = plan.pp > 1 and SCHEDULES[plan.schedule].placement == "two-way"
    forward = times.forward_s * (0.5 if two_way else 1.0)
    chunks = plan.vpp if plan.pp > 1 and not two_way else 1
    micro_batches = sequences / (plan.dp * plan.micro_batch_size)
    between = chunks * links.transfer_s if links.blocking else 0.0
    filling = float(forward.sum()) + (plan.pp * chunks - 1) * links.transfer_s
    return filling + (micro_batches - 1.0) * (float(forward.sum(axis=1).max()) + between)
