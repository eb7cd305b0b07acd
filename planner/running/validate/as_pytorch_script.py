"""A request's plan adapted to the native PyTorch script, with the differences.

Validations train with the script that `planner emit --framework pytorch` writes.  Choices of a plan
that this script lacks, such as those of Megatron-LM, are replaced by the nearest that it has, each
with the reason; without a near one, the script's own rules refuse the plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from cost_models.fields import Spec
from cost_models.parameters import padded_vocab_size
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.documents.request import PlanRequest
from planner.frameworks.base import Unsupported
from planner.frameworks.pytorch import FRAMEWORK, patterns
from planner.frameworks.rules import on_cpus

S = TypeVar("S", bound=Spec)
Change = tuple[str, Any, str]
# Modules that the script can checkpoint separately.
_MODULES = ("core_attn", "mlp", "moe", "op")


class Difference(Spec):
    """A field in which the run differs from the plan, and the reason."""

    field: str
    asked: Any
    used: Any
    why: str


@dataclass(frozen=True)
class Native:
    """A request whose plan the script runs unchanged, and its differences from the original."""

    request: PlanRequest
    differences: tuple[Difference, ...]

    @property
    def plan(self) -> ParallelPlan:
        return self.request.named_plan


def native(request: PlanRequest, *, compiled: bool | None = None) -> Native:
    """The request with plan, model and training adapted to the script.

    compiled: whether torch.compile is worth its time on the machine of the run; None: on the
    accelerators of the request, unless they are CPUs.
    Raises Unsupported, with all reasons, if the script cannot come close.
    """
    named = request.named_plan
    compiled = not on_cpus(request.cluster) if compiled is None else compiled
    differences: list[Difference] = []
    model = _with_changes("model", request.model, _model(request.model, named), differences)
    model = _encoders(model, differences)
    training = _with_changes(
        "training", request.training, _training(request.training, named), differences
    )
    plan = _with_changes("plan", named, _plan(named, model, compiled), differences)
    changed = request.model_copy(update={"model": model, "training": training, "plan": plan})
    reasons = FRAMEWORK.reasons(changed, plan)
    if reasons:
        raise Unsupported(FRAMEWORK.title, reasons)
    return Native(changed, tuple(differences))


def _with_changes(
    part: str, spec: S, changes: Iterator[Change], differences: list[Difference]
) -> S:
    """The spec with the changes applied; those that change a value are recorded as differences."""
    update: dict[str, Any] = {}
    for name, used, why in changes:
        given = getattr(spec, name)
        if given != used:
            update[name] = used
            differences.append(Difference(field=f"{part}/{name}", asked=given, used=used, why=why))
    return spec.model_copy(update=update)


def _model(model: ModelSpec, plan: ParallelPlan) -> Iterator[Change]:
    padded = int(padded_vocab_size(model.vocab_size, plan.tp))
    yield "vocab_size", padded, "padded to a multiple of 128 tp, as every framework pads it"
    if plan.pp > 1:
        reason = "the ends of a pipeline hold a table each, and the script ties none over stages"
        yield "tied_embeddings", False, reason


def _encoders(model: ModelSpec, differences: list[Difference]) -> ModelSpec:
    """The model with its encoders as the script builds them."""
    unknown = sum(encoder.other_parameters for encoder in model.encoders)
    if not unknown:
        return model
    reason = "of biases and tables whose number alone is known nothing can be built"
    field = "model/encoders/other_parameters"
    differences.append(Difference(field=field, asked=unknown, used=0, why=reason))
    built = tuple(e.model_copy(update={"other_parameters": 0}) for e in model.encoders)
    return model.model_copy(update={"encoders": built})


def _training(training: TrainingSpec, plan: ParallelPlan) -> Iterator[Change]:
    if training.optimizer == "adam_8bit":
        yield "optimizer", "adam", "torch's own optimizers have no 8-bit states"
    if training.optimizer == "adafactor" and (plan.tp > 1 or plan.ep > 1 or plan.zero_stage):
        yield "optimizer", "adam", "torch's Adafactor fails on weights that are split"
    if training.precision not in ("bf16", "fp32"):
        yield "precision", "bf16", "the script scales no loss and has no fp8 or fp4 layers"
    yield "master_weights_dtype", "fp32", "stored weights are the fp32 master copy"
    yield "optimizer_state_dtype", "fp32", "torch's fused Adam keeps states as its weights"
    yield "gradient_dtype", "fp32", "FSDP2 accumulates as the weights are stored"
    yield "gradient_reduce_dtype", "fp32", "FSDP2 is told to reduce in fp32"


def _plan(plan: ParallelPlan, model: ModelSpec, compiled: bool) -> Iterator[Change]:
    yield "runtime", "torch", "the run has torch's kernels and overlap"
    yield "cross_entropy", "unfused", "the loss is torch's own"
    yield "rank_order", "tp-cp-ep-dp-pp", "the script's mesh has stages outermost"
    yield "overlap_tp", False, "DTensor's collectives block"
    yield "overlap_ep", False, "the expert-parallel communication blocks"
    yield "dynamic_cp", False, "the script splits every sequence over all cp ranks"
    yield "moe_dispatcher", "alltoall", "the only dispatcher of the script"
    yield "offload_optimizer", False, "the script keeps nothing in host memory"
    yield "offload_activations", False, "the script keeps nothing in host memory"
    yield "offload_num_layers", 0, "the script keeps nothing in host memory"
    if plan.attention_kernel == "flash1":
        yield "attention_kernel", "flash2", "torch has no flash-attention 1"
    if plan.cp > 1 and plan.cp_kind != "a2a" and patterns.in_order(model):
        yield "cp_kind", "a2a", "states pass from rank to rank in the order of the tokens"
    elif plan.cp > 1 and plan.cp_kind == "p2p":
        reason = "torch's ring is experimental and runs on GPUs only; keys and values are gathered"
        yield "cp_kind", "all_gather", reason
    yield from _sharded(plan)
    if plan.pp > 1 and plan.vpp > 1:
        yield "overlap_p2p", True, "torch's schedules of several stages per rank always overlap"
    yield from _eager(plan, model, compiled)
    yield from _recompute(plan)


def _sharded(plan: ParallelPlan) -> Iterator[Change]:
    """What FSDP2 does with weights and gradients."""
    data = plan.dp * plan.cp
    if data > 1:
        yield "overlap_grad_reduce", plan.pp == 1, "FSDP2 reduces in the backward pass"
    if plan.zero_stage in (1, 2):
        stage = 3 if data > 1 else 0
        yield "zero_stage", stage, "FSDP2 shards weights between steps as well"
        reason = "FSDP2 without resharding: weights stay gathered, as ZeRO-1 and 2 keep them whole"
        yield "reshard_after_forward", False, reason
    elif plan.zero_stage == 3 and plan.pp > 1:
        reason = "FSDP2 keeps gathered weights from one micro-batch of a pipeline to the next"
        yield "reshard_after_forward", False, reason
    if plan.zero_stage and data > 1:
        yield "overlap_param_gather", True, "FSDP2 always gathers ahead"


def _eager(plan: ParallelPlan, model: ModelSpec, compiled: bool) -> Iterator[Change]:
    """The first reason not to compile, where the plan does."""
    for plain, reason in (
        (plan.tp > 1, "compiled layers over tp train wrongly in torch 2.13"),
        (bool(patterns.layers(model)), "loops over chunks of a sequence would be unrolled"),
        (model.moe is not None, "routing depends on the data, which no compiled layer allows"),
        (not compiled, "compiling takes longer than the run, and a CPU's kernels are others"),
    ):
        if plain and plan.compile:
            yield "compile", False, reason
            break


def _recompute(plan: ParallelPlan) -> Iterator[Change]:
    if plan.recompute == "selective":
        known = tuple(name for name in plan.recompute_modules if name in _MODULES)
        if known != plan.recompute_modules:
            reason = "torch's checkpointing has no such module apart"
            yield "recompute_modules", known, reason
            if not known:
                yield "recompute", "none", reason
    if plan.recompute == "full" and plan.recompute_method == "uniform":
        yield "recompute_num_layers", 1, "the script checkpoints layer by layer"
