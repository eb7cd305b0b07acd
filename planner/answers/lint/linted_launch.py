"""A launch script's plan on a cluster, and the costs of plans that differ a little from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from pydantic import ValidationError

from cost_models.estimate import CostModel
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import ClusterSpec
from planner.answers.lint.findings import Finding, Severity
from planner.answers.lint.spellings import spellings
from planner.answers.plans.chance_to_be_first import compared_prices
from planner.answers.plans.explain import report
from planner.constraints import RULES, Context, Rule, violations
from planner.documents.answer import Reason
from planner.documents.plan_report import PlanReport
from planner.documents.problems import Problem
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty.memory_risk import Room
from planner.evidence.uncertainty.site_storage import room_of
from planner.frameworks.base import Framework
from planner.frameworks.read_results import Reading, Setting
from planner.frameworks.restrictions import ATTENTION_CODE, SCALING_CODE
from planner.inputs.requests.consistency import contradictions
from planner.search.exhaustive import cost_model
from planner.search.outcome import Priced

# Rules that hold for every script, whether its framework is written here for it or not.
_ALWAYS = frozenset({ATTENTION_CODE, SCALING_CODE})
# Rules that hold for an existing script too, although its framework accepts it.
_RUNS_INTO = frozenset({"fp8_shape", *_ALWAYS})
# Share of the iteration time that a faster neighbour must save to be reported.
MINIMUM_GAIN = 0.005
# Chance from which a neighbour is reported as faster: two to one; below, only measuring can tell.
LIKELY = 2 / 3


@dataclass(frozen=True)
class Place:
    """A place in the script; line 0: no line states it."""

    file: str = ""
    line: int = 0
    option: str = ""


def at(setting: Setting) -> Place:
    """The place of a setting."""
    return Place(setting.file, setting.line, setting.name)


def finding(code: str, severity: Severity, text: str, place: Place, /, **more: Any) -> Finding:
    """A finding at a place."""
    return Finding(
        code=code, severity=severity, text=text, file=place.file, line=place.line,
        option=place.option, **more,
    )  # fmt: skip


@dataclass(frozen=True)
class Neighbour:
    """A plan that differs from the script's: the fields that are set, and its cost."""

    set: dict[str, Any]
    priced: Priced
    seconds: float
    peak_bytes: float


class LintedLaunch:
    """One launch script on one cluster, with cached answers of the cost model for the checks.

    request: the contents of the script, on the accelerators that the script uses.
    """

    def __init__(
        self, reading: Reading, framework: Framework, request: PlanRequest, files: Mapping[str, str]
    ) -> None:
        self.reading, self.framework, self.request = reading, framework, request
        self.files = files
        self.plan = reading.plan
        self.model = request.model
        self.training = request.training

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """Every runtime's rules and the framework's, or those of these that always hold."""
        if self.reading.written:
            return (*RULES, *self.rules_of_framework)
        return (*RULES, *(rule for rule in self.framework.rules if rule.code in _ALWAYS))

    @cached_property
    def rules_of_framework(self) -> tuple[Rule, ...]:
        """The framework's rules without those that the script disproves."""
        excused = {rule for rule, _ in self.excused}
        return tuple(rule for rule in self.framework.rules if rule not in excused)

    @cached_property
    def excused(self) -> tuple[tuple[Rule, Reason], ...]:
        """Rules of the framework that the script breaks whatever its plan, each with its reason.

        These rules say that the planner cannot write a launch of this model or training.  Since the
        script exists, the framework runs it, or the reader refuses it.
        """
        world = self.request.cluster.accelerators
        if not self.reading.written:
            return ()
        plain = ParallelPlan(dp=world, runtime=self.framework.runtime)
        return tuple(
            (rule, reason)
            for rule in self.framework.rules
            for reason in violations(self.context, self.plan, (rule,))
            if reason.code not in _RUNS_INTO
            and not self._keeps(plain, rule)
            and self._mending_field(rule) is None
        )

    @cached_property
    def context(self) -> Context:
        return Context(self.model, self.request.cluster, self.training)

    @cached_property
    def broken(self) -> tuple[tuple[Rule, Reason], ...]:
        """The rules that the script's plan breaks, each with its reason."""
        return tuple(
            (rule, reason)
            for rule in self.rules
            for reason in violations(self.context, self.plan, (rule,))
        )

    @cached_property
    def contradictions(self) -> tuple[Problem, ...]:
        """The reasons why no plan of the script's model can be priced on this cluster."""
        return tuple(contradictions(self.model, self.request.cluster, self.training))

    @cached_property
    def own(self) -> PlanReport | None:
        """The full report of the script's plan; None if no runtime could run it."""
        if self.contradictions or any(rule in RULES for rule, _ in self.broken):
            return None
        return report(self.costs, self.request, self.plan)

    @cached_property
    def costs(self) -> CostModel:
        """The cost model of the request."""
        return cost_model(self.request)

    @property
    def domain(self) -> int:
        """Accelerators of the fastest network domain."""
        tier = self.request.cluster.groups[0].network[0]
        return tier.domain_accelerators or self.request.cluster.accelerators

    @property
    def capacity_bytes(self) -> float:
        return self.request.cluster.groups[0].accelerator.memory_bytes

    def room_bytes(self, plan: ParallelPlan) -> float:
        """Bytes that a changed plan may need: the request's limit, or the script's own if more."""
        own = self.own.memory.needed_bytes if self.own is not None and self.own.fits else 0.0
        return max(self._room.of_plan(plan), own)

    @cached_property
    def _room(self) -> Room:
        return room_of(self.request)

    def fastest(
        self,
        changes: Iterable[Mapping[str, Any]],
        base: Mapping[str, Any] | None = None,
        fitting: bool = True,
    ) -> Neighbour | None:
        """The fastest plan with one of these changes that fits.

        None if there is none, or the script's own plan cannot run.  base: further changes that all
        of them share.  fitting: False also accepts plans that do not fit.  A neighbour may not
        break a rule that the script's plan keeps, also where the framework's files are not written
        here for such scripts: advice has to be one that can be followed.
        """
        rules = (*RULES, *self.framework.rules)
        own = self._breaks(self.plan, rules)
        found = []
        changes = changes if self.own is not None else ()
        for change in changes:
            plan = changed(self.plan, {**(base or {}), **change})
            if plan is not None and not (self._breaks(plan, rules) - own):
                found.append((dict(change), plan))
        if not found:
            return None
        costs = self.costs.evaluate(Plans.from_rows([plan for _, plan in found]))
        room = [self.room_bytes(plan) for _, plan in found]
        fits = (costs.needed_bytes <= np.array(room)) | (not fitting)
        seconds = np.where(fits, costs.iteration_time_s, np.inf)
        best = int(np.argmin(seconds))
        if not np.isfinite(seconds[best]):
            return None
        change, plan = found[best]
        parts_s = {name: float(part[best]) for name, part in costs.time_parts_s.items()}
        return Neighbour(
            change, Priced(plan, parts_s), float(seconds[best]), float(costs.peak_bytes[best])
        )

    def likely_faster(self, neighbour: Neighbour) -> bool:
        """Whether a neighbour is faster than the script with a chance of at least LIKELY."""
        if self.own is None:
            return False
        own = Priced(self.own.plan, self.own.time_parts_s)
        return compared_prices(self.request, neighbour.priced, own).chance >= LIKELY

    def _breaks(self, plan: ParallelPlan, rules: Iterable[Rule]) -> set[Rule]:
        row = Plans.from_rows([plan])
        return {rule for rule in rules if not np.all(rule.legal(self.context, row))}

    def place(self, *names: str) -> Place:
        """The place of the first of these that the script states: plan fields, or options."""
        wanted = [
            option
            for name in names
            for option in (
                self.framework.fields[name].names if name in self.framework.fields else (name,)
            )
        ]
        for option in wanted:
            for spelling in spellings(self.framework.name, option):
                if (said := self.reading.find(spelling)) is not None:
                    return Place(said.file, said.line, said.name)
        # Files of a program of another kind need not have the option that would be written here.
        ours = self.reading.written and names[0] in self.framework.fields
        named = wanted[0] if ours and wanted else ""
        return Place(self.main, 0, named)

    def accepts(self, plan: ParallelPlan) -> bool:
        """Whether a plan breaks no rule."""
        return not self._breaks(plan, self.rules)

    def culprit(self, rule: Rule) -> Place:
        """The option that breaks a rule: that of the field whose default would keep the rule."""
        field = self._mending_field(rule)
        place = self.place(field) if field is not None else None
        return place if place is not None and place.line else Place(self.main)

    def _mending_field(self, rule: Rule) -> str | None:
        """The first field of the script's plan whose default would keep a rule."""
        default = ParallelPlan()
        for name in ParallelPlan.model_fields:
            mended = self.plan.model_copy(update={name: getattr(default, name)})
            if mended != self.plan and self._keeps(mended, rule):
                return name
        return None

    def _keeps(self, plan: ParallelPlan, rule: Rule) -> bool:
        return bool(np.all(rule.legal(self.context, Plans.from_rows([plan]))))

    @property
    def main(self) -> str:
        """The file with the launch."""
        return self.reading.settings[0].file if self.reading.settings else ""


# Words by which a script leaves the choice of the attention kernel to its framework.
_LEFT_OPEN = ("auto", "autoselected", "sdpa")


def on_accelerators(reading: Reading, framework: Framework, cluster: ClusterSpec) -> Reading:
    """The reading with an attention kernel that the accelerators have.

    The reading itself where it has one, or where the script names one that they lack.
    """
    rules = [rule for rule in framework.rules if rule.code == ATTENTION_CODE]
    context = Context(reading.model, cluster, reading.training)
    options = framework.fields["attention_kernel"].names
    names = (name for option in options for name in spellings(framework.name, option))
    said = next(filter(None, map(reading.find, names)), None)
    named = said is not None and said.value not in _LEFT_OPEN
    if named or reading.plan.attention_kernel != "flash":
        return reading
    for kernel in ("flash", "unfused"):
        plan = reading.plan.model_copy(update={"attention_kernel": kernel})
        if not violations(context, plan, rules):
            return reading.model_copy(update={"plan": plan})
    return reading


def changed(plan: ParallelPlan, change: Mapping[str, Any]) -> ParallelPlan | None:
    """The plan with some fields set; None where they contradict each other."""
    try:
        return ParallelPlan(**{**plan.model_dump(), **change})
    except ValidationError:
        return None
