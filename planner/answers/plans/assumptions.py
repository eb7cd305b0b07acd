"""The assumptions of an estimate about the plan, the training and the hardware, as sentences."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from cost_models.catalog.hardware import accelerator_entry
from cost_models.catalog.names import UnknownName
from cost_models.dynamic_context import ranks_of
from cost_models.effects import is_read
from cost_models.estimate import CostModel
from cost_models.fields import Spec
from cost_models.optimizers import OPTIMIZERS, Optimizer
from cost_models.packing import lengths_of
from cost_models.plans import ParallelPlan
from cost_models.runtimes import RUNTIMES
from cost_models.spec import ClusterSpec, TrainingSpec
from cost_models.state_memory import element_bytes
from cost_models.units import GIB
from planner import frameworks
from planner.documents.formats import value_words
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks.devices import other_stack


def assumptions(model: CostModel, request: PlanRequest, plan: ParallelPlan) -> list[Note]:
    """The assumptions behind the numbers of this plan, as sentences."""
    profile, group = model.context.profile, request.cluster.groups[0]
    kinds = {
        "built in": "measured on this accelerator by public micro-benchmarks",
        "scaled": "large matrix products measured on this accelerator, the rest medians of others",
        "fallback": "no measurement of this accelerator: medians of others",
        "calibrated": f"measured by planner calibrate: {', '.join(profile.measured_terms)}",
    }
    notes = [
        ("efficiency", f"kernels and links as in profile {profile.id}: {kinds[profile.kind]}"),
        ("reserved", _reserved(request)),
        (
            "precision",
            f"{request.training.precision}: {_weight_bytes(request.training, plan):g} bytes of "
            f"weights per parameter, {request.training.gradient_dtype} gradients, "
            f"{request.training.optimizer_bytes_per_parameter:g} bytes of optimizer state per "
            "parameter",
        ),
        ("vocabulary", "vocabulary padded to a multiple of 128 tp"),
        (
            "overlap",
            "hidden: "
            + (", ".join(_hidden(plan)) or "nothing")
            + "; the rest of every collective is exposed",
        ),
    ]
    notes.extend(_hardware(request.cluster, plan))
    rule = OPTIMIZERS[request.training.optimizer]
    if rule.by_matrix:
        notes.append(("optimizer", _matrices(rule, plan)))
    notes.extend(_tuning(request.training))
    moe = request.model.moe
    if moe is not None:
        load = f"busiest expert rank at {moe.imbalance_factor:g} x the mean load"
        notes.append(("moe_imbalance", load))
    if plan.pp > 1 and group.network[0].domain_accelerators is not None:
        notes.append(("rank_order", f"ranks laid out {plan.rank_order}, fastest axis first"))
    if plan.dynamic_cp and plan.cp > 1 and request.training.packs:
        notes.append(("dynamic_cp", _ranks_of_samples(request.training, plan)))
    if plan.zero_stage and plan.dp * plan.cp > 1:
        notes.append(("sharding", f"ZeRO {plan.zero_stage} over dp x cp"))
    notes.extend(_values_of_framework(request, plan))
    notes.extend(("guessed", text) for text in request.guessed)
    return [_note(*each) for each in notes]


@lru_cache(maxsize=4096)
def _note(code: str, text: str) -> Note:
    """Most plans rest on the same sentences."""
    return Note(code=code, text=text)


# Plan fields that follow from others, or from the framework's name.
_FOLLOW = ("dp", "schedule", "runtime")


def _values_of_framework(request: PlanRequest, plan: ParallelPlan) -> Iterator[tuple[str, str]]:
    """What the plan and the training left out, where the framework has it otherwise than usual."""
    if request.search.framework is None or plan != request.plan:
        return
    parts: dict[str, Spec] = {"plan": plan, "training": request.training}
    found = [
        f"{name} {value_words(getattr(spec, name))}"
        for part, spec in parts.items()
        for name, field in type(spec).model_fields.items()
        if f"/{part}/{name}" in request.defaulted and is_read(spec, name)
        if name not in _FOLLOW and getattr(spec, name) != field.default
    ]
    if found:
        title = frameworks.get(request.search.framework).title
        yield "framework_defaults", f"left out, and as {title} has it: {', '.join(found)}"


def _hardware(cluster: ClusterSpec, plan: ParallelPlan) -> Iterator[tuple[str, str]]:
    """Notes on coarsely modelled links, and on kernels that stand in for the accelerator's own."""
    group = cluster.groups[0]
    try:
        node = accelerator_entry(group.accelerator.id).node
    except UnknownName:
        return
    if node.coarse and group.network[0].name == node.domains[0].name:
        yield "links", node.coarse
    if stack := other_stack(cluster):
        yield "stack", f"{stack}; priced with the kernels of {RUNTIMES[plan.runtime].title}"


def _matrices(rule: Optimizer, plan: ParallelPlan) -> str:
    """The assumed update of a matrix by the optimizer."""
    if rule.factored:
        return "a matrix keeps one number per row and per column, in place of bytes per parameter"
    where = "each rank updates all of its matrices"
    if plan.zero_stage and RUNTIMES[plan.runtime].gathers_sharded_matrices:
        where = "every rank gathers and updates all matrices of its shard group"
    elif plan.zero_stage:
        where = "each rank of a shard group updates whole matrices of its own"
    return (
        f"matrices keep one moment less; {rule.newton_schulz_steps} Newton-Schulz steps on whole "
        f"ones, {where}; tables, head, norms and biases have Adam"
    )


def _tuning(training: TrainingSpec) -> Iterator[tuple[str, str]]:
    """The trained weights, and the contents of sequences."""
    if training.lora_rank:
        kind = "in 4 bits (NF4) " if training.packs_frozen else ""
        kind += "and fp32 " if training.widens_frozen else ""
        yield (
            "adapters",
            f"adapters of rank {training.lora_rank} on {', '.join(training.lora_targets)}; all "
            f"other weights frozen {kind}without gradients",
        )
    elif training.frozen:
        yield "frozen", f"not trained: {', '.join(training.frozen)}"
    if training.loss in ("dpo", "distillation"):
        whose = "reference" if training.loss == "dpo" else "teacher"
        own = training.loss == "dpo" and training.lora_rank
        beside = "the weights without adapters" if own else "frozen weights of its own"
        yield "reference", f"a {whose} runs forward in every micro-batch: {beside}"
    if training.sample_lengths:
        share = training.tokens_per_iteration / training.positions_per_iteration
        yield (
            "packing",
            (
                "samples packed into full sequences, each attends within itself"
                if training.packs
                else f"samples padded: {share:.1%} of positions are tokens, which alone count"
            ),
        )


def _ranks_of_samples(training: TrainingSpec, plan: ParallelPlan) -> str:
    """The number of ranks on which samples run."""
    ranks = np.asarray(ranks_of(lengths_of(training), float(training.seq_length), plan.cp))
    kinds, counts = np.unique(ranks, return_counts=True)
    shares = ", ".join(
        f"{count / len(ranks):.0%} on {kind:g}" for kind, count in zip(kinds, counts, strict=True)
    )
    return (
        f"samples run one by one on the fewest ranks that hold {training.seq_length // plan.cp} "
        f"tokens each ({shares}), assigned so that ranks are about as busy; memory is that of the "
        "longest"
    )


def _weight_bytes(training: TrainingSpec, plan: ParallelPlan) -> float:
    """The bytes per parameter that a runtime holds in addition to the optimizer states."""
    return float(element_bytes(training, RUNTIMES[plan.runtime]).weights)


def _reserved(request: PlanRequest) -> str:
    given = request.cluster.reserved_bytes_per_accelerator
    if given is None:
        return "CUDA context, NCCL buffers and fragmentation as computed for the plan"
    return (
        f"{given / GIB:.1f} GiB per accelerator kept for CUDA context, NCCL and fragmentation, "
        "as given"
    )


_HIDDEN = {
    "overlap_grad_reduce": "gradient reduction under backward",
    "overlap_param_gather": "weight gathering under forward",
    "overlap_tp": "tensor-parallel chunks under GEMMs",
    "overlap_ep": "expert-parallel communication under another micro-batch",
    "overlap_p2p": "pipeline messages under the next chunk",
}


def _hidden(plan: ParallelPlan) -> list[str]:
    hidden = {name for name in _HIDDEN if getattr(plan, name) and is_read(plan, name)}
    if plan.dp * plan.cp == 1:
        hidden -= {"overlap_grad_reduce"}
    return [text for name, text in _HIDDEN.items() if name in hidden]
