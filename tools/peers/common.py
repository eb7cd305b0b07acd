"""What adapters share: a question, an estimate, and reasons why a peer has no words for a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost_models.plans import ParallelPlan
from planner.evidence.published_runs.cases import Case

Inputs = dict[str, Any]


class InexpressibleError(ValueError):
    """A peer has no inputs for a run; its text is the reason."""


@dataclass(frozen=True)
class Question:
    """One published run: what was trained, on what, by which plan."""

    case: Case
    plan: ParallelPlan

    @property
    def accelerator(self) -> str:
        return self.case.cluster.groups[0].accelerator.id

    @property
    def micro_batches(self) -> int:
        return self.plan.micro_batches(self.case.training.global_batch_size)


@dataclass(frozen=True)
class Estimate:
    """What a peer says; peak_bytes: None where it says nothing of this run's memory."""

    seconds: float
    peak_bytes: float | None


@dataclass(frozen=True)
class Peer:
    """A planner by others.

    express: its inputs for a run, or InexpressibleError; runs here.  estimate: what it says of
    such inputs; runs in a process whose path begins with the checkout.
    assumed: what had to be chosen, in its favour where its documentation leaves a choice.
    validated_on: sources that its authors compared it with, or tuned it on, themselves.
    """

    name: str
    repository: str
    revision: str
    version: str
    express: Callable[[Question], Inputs]
    estimate: Callable[[Path, Inputs], Estimate]
    assumed: tuple[str, ...]
    validated_on: tuple[str, ...] = ()


def need(holds: bool, reason: str) -> None:
    """Raise InexpressibleError with the reason unless it holds."""
    if not holds:
        raise InexpressibleError(reason)


def need_plain_training(question: Question, precisions: tuple[str, ...] = ("bf16", "fp16")) -> None:
    """All weights by Adam, on next tokens, in one of the precisions, nothing on the host."""
    training, plan = question.case.training, question.plan
    need(not training.freezes, "adapters or frozen weights")
    need(training.precision in precisions, f"{training.precision} arithmetic")
    need(training.loss == "next_token", f"the loss {training.loss}")
    need(training.optimizer == "adam" and not training.optimizer_in_backward, "another optimizer")
    need(not training.sample_lengths, "packed or padded samples")
    need(not plan.offload_optimizer and not plan.offload_activations, "offload to the host")


def need_plain_decoder(question: Question) -> None:
    """Equal decoder layers of causal attention over the whole sequence."""
    model = question.case.model
    need(not model.encoders, "an encoder beside the decoder")
    need(not model.layer_pattern, "layers of different blocks")
    need(model.sliding_window is None, "sliding windows")
    need(not model.bidirectional, "bidirectional attention")
    need(not model.mtp_num_layers, "multi-token prediction")
    need(not model.parallel_residual, "attention and MLP in parallel")


def need_even_stages(question: Question) -> None:
    """As many layers on every stage, in a schedule of Megatron's."""
    plan, layers = question.plan, question.case.model.num_layers
    given = plan.stage_layers or plan.first_stage_layers or plan.last_stage_layers
    need(not given and layers % (plan.pp * plan.vpp) == 0, "stages of different numbers of layers")
    known = plan.pp == 1 or plan.schedule in ("1f1b", "interleaved-1f1b")
    need(known, f"the schedule {plan.schedule}")


def recomputed(question: Question) -> str:
    """What is computed again: "none", "attention" (scores and context) or "full"; or refuse."""
    plan = question.plan
    if plan.recompute == "none":
        return "none"
    if plan.recompute == "selective":
        need(plan.recompute_modules == ("core_attn",), "recompute of single modules")
        return "attention"
    layers = question.case.model.num_layers // (plan.pp * plan.vpp)
    uniform = plan.recompute_method == "uniform" and plan.recompute_num_layers == 1
    need(uniform or (plan.recompute_method == "block" and plan.recompute_num_layers >= layers),
         "recompute of some layers")  # fmt: skip
    return "full"
