"""What several frameworks share: rules about models and nodes, and figures of a launch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from cost_models.catalog.local import CPU_ID
from cost_models.plans import ParallelPlan, code
from cost_models.spec import ClusterSpec, ModelSpec, TrainingSpec
from planner.constraints import Context, Rule
from planner.frameworks.base import Flag, flag, unsupported

SMOKE_ITERATIONS = 20


def accelerators_per_node(cluster: ClusterSpec) -> int:
    """Processes that a launcher starts on each node (one rule holds them equal)."""
    return cluster.groups[0].accelerators_per_node


def nodes(cluster: ClusterSpec) -> int:
    return sum(group.nodes for group in cluster.groups)


def on_cpus(cluster: ClusterSpec) -> bool:
    """Whether the accelerators are CPU cores, which a scheduler gives out with the node."""
    return cluster.groups[0].accelerator.id == CPU_ID


def accumulation(c: Context, p: ParallelPlan) -> int:
    """Micro-batches per iteration and data-parallel rank."""
    return c.training.global_batch_size // (p.micro_batch_size * p.dp)


def train_iterations(group: str, training: TrainingSpec) -> Flag:
    """A short run by default, whatever the tokens: the data are mock ones."""
    each = training.tokens_per_iteration
    why = f"a smoke run: iterations of {each} tokens"
    if training.tokens is not None:
        steps = max(1, round(training.tokens / each))
        why += f"; the {training.tokens:.4g} tokens asked for are {steps} iterations"
    return flag(group, "--train-iters", SMOKE_ITERATIONS, why, variable="TRAIN_ITERS")


def learning_rate(group: str) -> Flag:
    """A value that lets a smoke run start; the plan has none."""
    return flag(group, "--lr", "1.0e-4", "PLACEHOLDER for the smoke run: set your own")


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
    lambda c, p: (
        f"the position table has {c.model.max_position_embeddings} rows, "
        f"the sequence {c.training.seq_length} tokens"
    ),
    "degrees",
)
NO_COMPILE = unsupported(
    lambda c, p: p.compile == 0, "the model's layers are not compiled by torch.compile"
)

HALF_PRECISION = unsupported(
    lambda c, p: c.training.precision != "fp32",
    "training wholly in fp32 is written for native PyTorch only, to compare runs",
)


@cache
def own_runtime(name: str) -> Rule:
    """The plan's kernels and overlaps were costed as those of this runtime."""
    return unsupported(
        lambda c, p: p.runtime == code("runtime", name),
        lambda c, p: f"the plan is costed for the {p.runtime} runtime, it runs on {name}",
    )


def fixed_part(ok: Callable[[ModelSpec], bool], text: str) -> Rule:
    """A rule about a part of the model that the framework has in one form only."""
    return unsupported(lambda c, p: ok(c.model), text, "degrees")


# What no GPT model of the Megatron family has.
GPT_PARTS: tuple[Rule, ...] = (
    fixed_part(lambda m: m.position != "alibi", "ALiBi positions have no option"),
    fixed_part(lambda m: not m.parallel_residual, "attention and MLP never run in parallel"),
    fixed_part(lambda m: m.norms_per_layer == 2, "a layer has two norms, one before each part"),
    fixed_part(lambda m: not m.embedding_norm, "there is no norm after the embedding"),
    fixed_part(lambda m: not m.lm_head_bias, "the output layer has no bias"),
    fixed_part(lambda m: m.norm_bias == (m.norm == "layernorm"), "a LayerNorm always has a bias"),
)
