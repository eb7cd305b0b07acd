"""What is read from a framework's launch files, without running any of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.fields import Spec
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import ClusterSpec, ModelSpec, TrainingSpec
from planner.documents.answer import Reason
from planner.documents.request import PlanRequest

# A sentence of `assumed` where whatever shards the run may be in a file that is not given.
# The loss of pairs that no reference scores, and what is said of how it is costed.
PAIRS_ALONE = "pairs"
COSTED_AS_TWICE = "no reference scores its pairs: costed as training on twice as many sequences"
UNSHARDED = "no sharding: the files name no DeepSpeed, FSDP or accelerate config"


class Setting(Spec):
    """One option, variable or key as it stands in a file.

    value: None for a switch; several words for an option that takes several.  line: from 1.
    """

    name: str
    value: str | tuple[str, ...] | None = None
    file: str
    line: int

    def unreadable(self, text: str) -> Unreadable:
        """An error at its place."""
        return Unreadable(text, self.file, self.line)


class Refusal(Spec):
    """An error that the framework itself would raise at the start, and the setting it is about.

    meant: the one option that a misspelled one may stand for; empty: none, or several.
    """

    reason: Reason
    setting: Setting | None = None
    meant: str = ""


class Reading(Spec):
    """The specs and the plan of a launch, and everything that was not understood.

    settings: all of them, in the order in which they take effect; unknown: those that the
    framework does not have; unread: those that it has and a plan has no place for.  assumed: a
    sentence for each thing that the files leave open, with the value taken.  refusals: settings
    that the framework refuses and no plan can hold; the plan has the nearest value that it can.
    open: sentences on options whose value is not in the files, and how to give it; the plan has
    their defaults.
    written: whether the framework's writer can write such a launch; else no other plan is offered.
    nodes, accelerators_per_node: None if the files leave them to the machine.
    """

    framework: str
    model: ModelSpec
    training: TrainingSpec
    plan: ParallelPlan
    nodes: int | None = None
    accelerators_per_node: int | None = None
    settings: tuple[Setting, ...] = ()
    unknown: tuple[Setting, ...] = ()
    unread: tuple[Setting, ...] = ()
    assumed: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    written: bool = True

    def request(self, cluster: ClusterSpec) -> PlanRequest:
        """The request to evaluate the launch's plan on a cluster."""
        return PlanRequest(
            model=self.model, cluster=cluster, training=self.training, plan=self.plan
        )

    def find(self, name: str) -> Setting | None:
        """The setting of that name that takes effect: the last one."""
        return next((one for one in reversed(self.settings) if one.name == name), None)


class Unreadable(ValueError):
    """The files hold no launch that can be read; text: what was found, and what is needed."""

    def __init__(self, text: str, file: str = "", line: int = 0) -> None:
        self.text, self.file, self.line = text, file, line
        place = f"{file}:{line}: " if line else f"{file}: " if file else ""
        super().__init__(place + text)


class OtherTraining(Unreadable):
    """A program trains something else than the next token; options alone would not show it."""


@dataclass(frozen=True)
class StatedValue:
    """A value with its file and line; line 0: it is in none of the given files."""

    value: Any
    file: str
    line: int

    def unreadable(self, text: str) -> Unreadable:
        """An error at its place."""
        return Unreadable(text, self.file, self.line)

    def setting(self, name: str) -> Setting:
        return Setting(name=name, value=str(self.value), file=self.file, line=self.line)


# Where a field has no effect, beyond what its document declares: of one plan, or of many.
_IDLE: dict[str, Callable[[Any, ModelSpec], Any]] = {
    "dp_shard": lambda p, model: p.dp_shard == p.dp * p.cp,
    "etp": lambda p, model: model.moe is None,
    "schedule": lambda p, model: p.pp == 1,
    "rank_order": lambda p, model: p.dp == 1,
    "moe_dispatcher": lambda p, model: model.moe is None,
    "overlap_grad_reduce": lambda p, model: p.dp * p.cp == 1,
    "overlap_param_gather": lambda p, model: p.dp * p.cp == 1,
    "overlap_p2p": lambda p, model: p.pp == 1,
    "overlap_ep": lambda p, model: model.moe is None,
}


def has_effect(field: str, plans: Plans, model: ModelSpec) -> NDArray[np.bool_]:
    """In which plans another value of the field would run another way."""
    idle = _IDLE[field](plans, model) if field in _IDLE else False
    return np.asarray(plans.reads(field) & np.logical_not(idle))
