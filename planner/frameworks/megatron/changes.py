"""What a trainer on Megatron-LM changes of its options, as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from cost_models.plans import ParallelPlan, code
from planner.constraints import Rule
from planner.documents.request import PlanRequest
from planner.frameworks.arguments import Arguments
from planner.frameworks.base import Field, Flag, cannot, unsupported
from planner.frameworks.megatron.options import OPTIONS
from planner.frameworks.megatron_option_rows import PLANS

# (Megatron-LM's flag, request, plan) -> the flags in its place.
Replacement = Callable[[Flag, PlanRequest, ParallelPlan], Iterator[Flag]]


@dataclass(frozen=True)
class Changes:
    """The options that a trainer renames, lacks, leaves out or says otherwise.

    names: its own name of an option -> Megatron-LM's, for the same values.
    missing: option that says a field of a plan alone, and that it does not have -> why.
    left_out: options that it does not need for the same training.
    replaced: options with other values, which its reader reads back by itself.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()
    replaced: Mapping[str, Replacement] = field(default_factory=dict)

    @property
    def _own(self) -> dict[str, str]:
        return {option: name for name, option in self.names.items()}

    def written(
        self, flags: Iterable[Flag], request: PlanRequest, plan: ParallelPlan
    ) -> Iterator[Flag]:
        """The trainer's flags for those of Megatron-LM."""
        for one in flags:
            if one.name in self.replaced:
                yield from self.replaced[one.name](one, request, plan)
            elif one.name not in self.left_out and one.name not in self.missing:
                yield one.model_copy(update={"name": self._own.get(one.name, one.name)})

    def translate(self, args: Arguments) -> None:
        """Replaces its names of options by Megatron-LM's, and refuses those that it lacks."""
        for name, option in self.names.items():
            args.rename(name, option)
        for option, why in self.missing.items():
            if args.has(option):
                args.refuse(f"{args.title} has no {option}: {why}", option)

    def fields(self, fields: Mapping[str, Field]) -> dict[str, Field]:
        """The fields of a plan with the trainer's names in place of Megatron-LM's."""
        return {name: self._field(one) for name, one in fields.items()}

    def _field(self, one: Field) -> Field:
        lacking = [self.missing[name] for name in one.names if name in self.missing]
        if lacking:
            return cannot(lacking[0])
        return replace(one, names=tuple(self._own.get(name, name) for name in one.names))

    def rules(self) -> tuple[Rule, ...]:
        """A field that a missing option says has the value that it has without the option."""
        return tuple(_unsaid(option, why) for option, why in self.missing.items())


def _unsaid(option: str, why: str) -> Rule:
    row = OPTIONS[option]
    if row.record not in PLANS or row.codec is None:
        raise ValueError(f"{option} does not say a field of a plan alone")
    usual = row.codec.usual
    value = code(row.own, usual) if isinstance(usual, str) else usual
    return unsupported(lambda c, p: np.equal(getattr(p, row.own), value), why)
