"""The rules of one search applied to arrays of plans, and counts of what they refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
from pydantic import ValidationError

from cost_models.plans import ParallelPlan, Plans
from planner.constraints import BoolArray, Context, Rule, judged
from planner.search.option_axes import OptionAxes


class Legality:
    """Applies the rules of a search to plans.

    options: the axes that are drawn after process groups and layouts.  `rejected` counts refused
    plans by their first reason; `examples` has, for each reason, the sentence on the first plan.
    """

    def __init__(self, context: Context, rules: Iterable[Rule], options: OptionAxes) -> None:
        self.context, self.rules, self._options = context, tuple(rules), options
        self.rejected: Counter[str] = Counter()
        self.examples: dict[str, str] = {}

    def rules_of(self, level: str) -> list[Rule]:
        """The rules of one level; for whole plans also those that read fields only they have."""
        rules = [rule for rule in self.rules if rule.level == level]
        return [*rules, *self._late_rules] if level == "plan" else rules

    def passed(self, plans: Plans, level: str) -> Plans:
        """The plans that every rule of a level passes."""
        legal = self.legal(plans, level)
        return plans if legal.all() else plans.take(legal)

    def legal(self, plans: Plans, level: str, rules: Sequence[Rule] | None = None) -> BoolArray:
        """Which plans pass every rule of a level (or the given rules); others are counted."""
        n = len(plans.vpp) if level == "layout" else len(plans.tp)
        legal = np.ones(n, dtype=np.bool_)
        for rule in self.rules_of(level) if rules is None else rules:
            passes = legal & self._passes(rule, plans, level)
            self.refuse(rule, plans, legal & ~passes)
            legal = passes
        return legal

    def refuse(self, rule: Rule, plans: Plans, refused: BoolArray, each: int = 1) -> None:
        """Count the plans that a rule refuses, and keep its sentence on the first of them.

        each: the number of plans that a row represents.
        """
        if refused.any():
            self.rejected[rule.code] += each * int(np.count_nonzero(refused))
            if rule.code not in self.examples:
                self.examples[rule.code] = self._explained(rule, plans, refused)

    @cached_property
    def _late_rules(self) -> dict[Rule, set[str]]:
        """Rules of process groups and layouts, by what they read that only whole plans have."""
        late = {*self._options.columns, *self._options.switches.columns, "micro_batch_size"}
        plan = Plans.of(ParallelPlan())
        read = {
            rule: late & judged(rule, self.context, plan)[1]
            for rule in self.rules
            if rule.level != "plan"
        }
        return {rule: fields for rule, fields in read.items() if fields}

    def _passes(self, rule: Rule, plans: Plans, level: str) -> BoolArray:
        """Which plans pass a rule with at least one value of the open fields that it reads."""
        open_fields = sorted(self._late_rules.get(rule, ())) if level != "plan" else []
        if not open_fields:
            return rule.legal(self.context, plans)
        options = self._options.columns
        if not options.keys() >= set(open_fields):
            return np.ones((), dtype=np.bool_)
        values = np.unique(np.stack([options[name] for name in open_fields]), axis=1)
        passes = [
            rule.legal(
                self.context, plans.with_columns(**dict(zip(open_fields, each, strict=True)))
            )
            for each in values.T
        ]
        return np.asarray(np.logical_or.reduce(passes), dtype=np.bool_)

    def _explained(self, rule: Rule, plans: Plans, refused: BoolArray) -> str:
        """The sentence of a rule for the first plan it refuses (columns still open: defaults)."""
        try:
            plan = plans.row(int(np.argmax(refused)))
        except ValidationError:
            return ""  # a combination that is not even a plan, such as vpp 2 on 1F1B
        return rule.explain(self.context, plan)
