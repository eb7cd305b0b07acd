"""Rules on models and nodes, and numbers of a launch, that several frameworks share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from cost_models.catalog.local import CPU_ID
from cost_models.optimizers import OPTIMIZERS, OptimizerName
from cost_models.plans import ParallelPlan, Plans, is_one_of
from cost_models.spec import ClusterSpec, ModelSpec, MoESpec, TrainingSpec
from planner.constraints import BoolArray, Context, Rule
from planner.documents.formats import value_words
from planner.frameworks.base import Flag, flag, rule, unsupported

SMOKE_ITERATIONS = 20


def accelerators_per_node(cluster: ClusterSpec) -> int:
    """Processes that a launcher starts on each node; EQUAL_NODES requires the same on all."""
    return cluster.groups[0].accelerators_per_node


def nodes(cluster: ClusterSpec) -> int:
    return sum(group.nodes for group in cluster.groups)


def on_cpus(cluster: ClusterSpec) -> bool:
    """Whether the accelerators are CPU cores, which a scheduler allocates with the node."""
    return cluster.groups[0].accelerator.id == CPU_ID


def accumulation(c: Context, p: ParallelPlan) -> int:
    """Micro-batches per iteration and data-parallel rank."""
    return c.training.global_batch_size // (p.micro_batch_size * p.dp)


def is_named(p: Plans, field: str, *names: str) -> BoolArray:
    """Where a plan's field has one of these names."""
    return np.asarray(is_one_of(getattr(p, field), field, *names) > 0)


def train_iterations(group: str, training: TrainingSpec, name: str = "--train-iters") -> Flag:
    """The option for a short smoke run on mock data, whatever tokens the request asks for."""
    each = training.tokens_per_iteration
    why = f"a smoke run: iterations of {each} tokens"
    if training.tokens is not None:
        steps = max(1, round(training.tokens / each))
        why += f"; the {training.tokens:.4g} tokens asked for are {steps} iterations"
    return flag(group, name, SMOKE_ITERATIONS, why, variable="TRAIN_ITERS")


LEARNING_RATE, PLACEHOLDER = 1.0e-4, "PLACEHOLDER for the smoke run: set your own"


def learning_rate(group: str, name: str = "--lr") -> Flag:
    """A placeholder that lets a smoke run start: a plan has no learning rate."""
    return flag(group, name, "1.0e-4", PLACEHOLDER)


def accumulated(c: Context, plan: ParallelPlan) -> tuple[int, str]:
    """The micro-batches per iteration, and how they make the batch."""
    count = accumulation(c, plan)
    batch, micro = c.training.global_batch_size, plan.micro_batch_size
    return count, f"train batch {batch} = micro batch {micro} x this x dp {plan.dp}"


EQUAL_NODES = unsupported(
    lambda c, p: len({group.accelerators_per_node for group in c.cluster.groups}) == 1,
    lambda c, p: (
        "the launcher starts the same number of processes on every node; these have "
        + ", ".join(str(group.accelerators_per_node) for group in c.cluster.groups)
    ),
    "degrees",
)
LEARNED_POSITIONS = unsupported(
    lambda c, p: (
        c.model.position != "learned"
        or c.training.seq_length <= (c.model.max_position_embeddings or 0)
    ),
    "the position table has {c.model.max_position_embeddings} rows, "
    "the sequence {c.training.seq_length} tokens",
    "degrees",
)

HALF_PRECISION = unsupported(
    lambda c, p: c.training.precision != "fp32",
    "pure fp32 training is written for native PyTorch only, to compare runs",
)
HALF_BESIDE_PACKED = unsupported(
    lambda c, p: not c.training.widens_frozen,
    "weights that are not in 4 bits stay in half precision: frozen_dtype nf4, not nf4 and fp32",
)
KV_HEADS = rule(
    "kv_heads",
    lambda c, p: c.model.num_query_groups % p.tp == 0,
    "{c.model.num_query_groups} key/value heads do not divide over tp {p.tp}",
    "degrees",
)
FP32_STATES = unsupported(
    lambda c, p: (
        c.training.master_weights_dtype == "fp32" and c.training.optimizer_state_dtype == "fp32"
    ),
    "master weights and states are always fp32, got {c.training.master_weights_dtype} and "
    "{c.training.optimizer_state_dtype}",
)
OFFLOADED_ADAM = rule(
    "offload",
    lambda c, p: (
        (p.offload_optimizer == 0) | ((p.zero_stage > 0) & (c.training.optimizer == "adam"))
    ),
    "optimizer offload needs Adam with ZeRO, got {c.training.optimizer} with ZeRO {p.zero_stage}",
)
NO_EMPTY_STAGE = rule(
    "layers_not_divisible",
    lambda c, p: p.of_stage_layers(min, 1) >= 1,
    lambda c, p: f"every stage needs a layer, got {value_words(p.stage_layers)}",
)
# The first and last stage may have no layers: only the embedding, encoders or output layer.
NO_EMPTY_MIDDLE = rule(
    "layers_not_divisible",
    lambda c, p: p.of_stage_layers(lambda layers: min(layers[1:-1], default=1), 1) >= 1,
    lambda c, p: (
        f"stages between the first and last need a layer, got {value_words(p.stage_layers)}"
    ),
)


@cache
def optimizers(*names: OptimizerName, others: str = "") -> Rule:
    """The optimizer is one of these; others: why other ones of the framework are not written."""
    known = " and ".join(OPTIMIZERS[name].title for name in names)
    return unsupported(
        lambda c, p: c.training.optimizer in names,
        lambda c, p: (
            f"its optimizers are {known}, not {OPTIMIZERS[c.training.optimizer].title}"
            + (f" ({others})" if others else "")
        ),
        "degrees",
    )


def fixed_part(ok: Callable[[ModelSpec], bool], text: str) -> Rule:
    """A rule about a part of the model that the framework has in one form only."""
    return unsupported(lambda c, p: ok(c.model), text, "degrees")


def fixed_experts(ok: Callable[[MoESpec], bool], text: str) -> Rule:
    """The same about the experts of a model that has some."""
    return fixed_part(lambda m: m.moe is None or ok(m.moe), text)


def vendor_alone(vendor: str, text: str) -> Rule:
    """All accelerators are of this vendor, or of none that is known; text: what it runs on."""
    return unsupported(
        lambda c, p: all(group.accelerator.vendor in ("", vendor) for group in c.cluster.groups),
        lambda c, p: (
            f"{text}; the cluster has "
            + ", ".join(sorted({group.accelerator.name for group in c.cluster.groups}))
        ),
        "degrees",
    )


def schedules(*names: str) -> Rule:
    """A pipeline runs by one of these schedules."""
    return unsupported(
        lambda c, p: (p.pp == 1) | is_named(p, "schedule", *names),
        f"its pipeline schedules are {', '.join(names)}, not {{p.schedule}}",
    )


TWO_NORMS = fixed_part(
    lambda m: m.norms_per_layer == 2, "a layer has two norms, before attention and before the MLP"
)
# Parts that no GPT model of the Megatron family has.
GPT_PARTS: tuple[Rule, ...] = (
    fixed_part(lambda m: m.position != "alibi", "it has no ALiBi positions"),
    fixed_part(lambda m: not m.parallel_residual, "it has no parallel attention and MLP"),
    TWO_NORMS,
    fixed_part(lambda m: not m.embedding_norm, "it has no norm after the embedding"),
    fixed_part(lambda m: not m.lm_head_bias, "the output layer has no bias"),
    fixed_part(lambda m: m.norm_bias == (m.norm == "layernorm"), "a LayerNorm always has a bias"),
)
