"""One way to tune by one trainer: its request of any length, and what is found for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from cost_models.plans import ParallelPlan
from planner import frameworks
from planner.answers.fits.request import FitRequest, Method, Tuning, usual_batch
from planner.answers.plans.competition import limited, prepared
from planner.answers.plans.near_misses import free_bytes, needed_bytes
from planner.constraints import Context, Rule
from planner.documents.request import Bounds, PlanRequest
from planner.frameworks.accelerate.peft import ATTENTION
from planner.frameworks.plan_defaults import own_trainings
from planner.frameworks.supported import runs
from planner.inputs.requests.parser import parse_request
from planner.search.exhaustive import search
from planner.search.outcome import Outcome
from planner.search.several_spaces import best_of_each

TITLES: dict[Method, str] = {
    "full": "full",
    "full-offload": "full, optimizer in host memory",
    "full-in-backward": "full, updated in the backward pass",
    "lora": "LoRA",
    "qlora": "QLoRA (nf4)",
    "dpo": "DPO with LoRA",
    "grpo": "GRPO with LoRA",
}
RANK = 16
_TRAINING: dict[Tuning, dict[str, Any]] = {
    "full": {},
    "full-offload": {},
    "full-in-backward": {"optimizer_in_backward": True},
    "lora": {"lora_rank": RANK},
    "qlora": {"lora_rank": RANK, "frozen_dtype": "nf4"},
    "dpo": {"lora_rank": RANK, "loss": "dpo"},
}
_OFFLOADED = "offload_optimizer"


@dataclass(frozen=True)
class Tried:
    """One method by one trainer: its request, of any length, and the rules of its plans.

    given: the training fields of a command.  sharded: the same with gradients reduced as FSDP does,
    for where nothing fits otherwise; None where that is no other training.
    """

    method: Tuning
    request: PlanRequest
    rules: tuple[Rule, ...]
    given: dict[str, Any]
    sharded: Tried | None = None

    @property
    def trainer(self) -> str:
        return str(self.request.search.framework)

    @property
    def together(self) -> int:
        """Sequences of a micro-batch, at least: a pair for DPO."""
        return 2 if self.request.training.loss == "dpo" else 1

    @property
    def each(self) -> tuple[Tried, ...]:
        """This training, and the other that the trainer has of it."""
        return (self,) if self.sharded is None else (self, self.sharded)

    def at(self, seq_length: int) -> PlanRequest:
        """The request with sequences of this length."""
        training = self.request.training.model_copy(update={"seq_length": seq_length})
        return self.request.model_copy(update={"training": training})

    def found(self, seq_length: int) -> Outcome:
        """The best plan of a length, or the nearest miss."""
        return self._found(self.at(seq_length))

    def _found(self, request: PlanRequest) -> Outcome:
        (outcome,) = best_of_each([(request, self.rules)])
        return outcome if outcome.best else search(request, self.rules, top_k=1)

    def least(self, seq_length: int) -> ParallelPlan | None:
        """The plan that needs the least memory; None where none is legal."""
        wanted = {**self.request.search.limits, "micro_batch_size": Bounds(values=(self.together,))}
        outcome = self._found(limited(self.at(seq_length), wanted, objective="memory_headroom"))
        return next(iter((*outcome.best, *outcome.nearest)), None)

    def needed_bytes(self, seq_length: int, plan: ParallelPlan) -> float:
        """What a plan needs of an accelerator's memory at a length."""
        return needed_bytes(self.at(seq_length), plan)


@dataclass(frozen=True)
class Found:
    """What is found at one length: of which training, and its outcome."""

    one: Tried
    outcome: Outcome
    seq_length: int

    @property
    def missing_bytes(self) -> float:
        """Bytes by which the nearest plan misses; 0 where one fits, infinite where none runs."""
        if self.outcome.best:
            return 0.0
        request = self.one.at(self.seq_length)
        return min(
            (-free_bytes(request, plan) for plan in self.outcome.nearest), default=float("inf")
        )


def best_at(one: Tried, seq_length: int) -> Found:
    """What fits at a length as the trainer usually trains, else sharded; else the nearer miss."""
    found = []
    for each in one.each:
        found.append(Found(each, each.found(seq_length), seq_length))
        if found[-1].outcome.best:
            return found[-1]
    return min(found, key=lambda own: own.missing_bytes)


def loss_of(method: Tuning) -> str:
    """What a method trains on."""
    return str(_TRAINING[method].get("loss", "next_token"))


def tried(asked: FitRequest, method: Tuning, trainer: str, seq_length: int) -> Tried:
    """A method by a trainer.  Raises RequestError where the training does not go with it."""
    adapts = "lora_rank" in _TRAINING[method]
    given = {n: v for n, v in asked.training.items() if adapts or not n.startswith("lora_")}
    given = {**_TRAINING[method], **{name: v for name, v in given.items() if v is not None}}
    if adapts:
        given = {**targets_beside_experts(asked, trainer), **given}
    if method == "full-in-backward" and asked.base.cluster.accelerators == 1:
        given.setdefault("optimizer", "paged_adam_8bit")
    given["global_batch_size"] = sequences(asked, method)
    search_for: dict[str, Any] = {"framework": trainer}
    if method == "full-offload":
        search_for[_OFFLOADED] = [True]
    document = {
        "model": asked.model,
        "cluster": asked.base.cluster.name,
        "training": {**given, "seq_length": seq_length},
        "search": search_for,
    }
    request = parse_request(document).model_copy(update={"cluster": asked.base.cluster})
    first, *others = (Tried(method, *prepared(one), own) for one, own in _trainings(request, given))
    return replace(first, sharded=others[0]) if others else first


def targets_beside_experts(asked: FitRequest, trainer: str) -> dict[str, Any]:
    """Adapters of attention alone for a mixture of experts: those of experts are not modelled."""
    usual = frameworks.get(trainer).adapters.get("lora_targets", ())
    return {} if asked.base.model.moe is None else {
        "lora_targets": [name for name in usual if name in ATTENTION]
    }  # fmt: skip


def _trainings(
    request: PlanRequest, given: dict[str, Any]
) -> Iterator[tuple[PlanRequest, dict[str, Any]]]:
    """The request as its trainer trains by itself, the usual way first, and what is given then."""
    yield request, given
    usual = request.training
    trainer = frameworks.get(str(request.search.framework))
    for own in own_trainings(trainer, usual, request.training_left_out):
        context = Context(request.model, request.cluster, own)
        if own != usual and context.cluster.accelerators > 1 and runs(trainer.name, context):
            differ = {name: value for name, value in own if value != getattr(usual, name)}
            yield request.model_copy(update={"training": own}), {**given, **differ}


def sequences(asked: FitRequest, method: Tuning) -> int:
    """The batch of a step: one sequence of each card where nothing can be accumulated.

    Preferences are trained with a pair on each card at least, where nobody says how many.
    """
    accelerators, batch = asked.base.cluster.accelerators, int(asked.training["global_batch_size"])
    if method == "full-in-backward":
        return accelerators
    if method == "dpo" and asked.usual_batch:
        return usual_batch(accelerators, together=2)
    return batch
