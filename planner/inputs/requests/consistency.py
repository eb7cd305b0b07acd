"""Parts of a request that are fine alone and contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from cost_models.spec import ClusterSpec, ModelSpec, Part, Precision, TrainingSpec
from planner.documents.problems import Problem, problem


def contradictions(
    model: ModelSpec, cluster: ClusterSpec, training: TrainingSpec, mixed_cluster: bool = False
) -> Iterator[Problem]:
    """Parts of the request that contradict each other, each at the place that is easiest to change.

    mixed_cluster: the question is one that a cluster of different nodes has an answer to.
    """
    count = len(cluster.groups)
    if count > 1 and not mixed_cluster:
        detail = f"only `plan` takes nodes that differ: here one group, got {count}"
        yield problem("/cluster/groups", "mixed_cluster", detail, count)
    yield from _cluster_problems(cluster, training)
    yield from _model_problems(model, training)


def _cluster_problems(cluster: ClusterSpec, training: TrainingSpec) -> Iterator[Problem]:
    """A precision that accelerators cannot compute in, and memory that is all reserved."""
    precision, reserved = training.precision, cluster.reserved_bytes_per_accelerator
    for group in cluster.groups:
        accelerator = group.accelerator
        known = [p for p in get_args(Precision) if accelerator.peak_flop_per_s(p) is not None]
        if precision not in known:
            has = f"; it has {', '.join(known)}" if known else ""
            detail = f"{accelerator.id} has no {precision} matrix units{has}"
            pointer = "/training/precision"
            yield problem(pointer, "unsupported_precision", detail, precision, allowed=known)
        if reserved is not None and reserved >= accelerator.memory_bytes:
            limit = f"the {accelerator.memory_bytes:.0f} bytes of {accelerator.id}"
            detail = f"must be below {limit}, got {reserved:.0f}"
            pointer = "/cluster/reserved_bytes_per_accelerator"
            yield problem(pointer, "no_memory_left", detail, reserved)


def _model_problems(model: ModelSpec, training: TrainingSpec) -> Iterator[Problem]:
    """Positions, parts and encoders that the model does not have."""
    rows, length = model.max_position_embeddings, training.seq_length
    if model.position == "learned" and rows is not None and length > rows:
        detail = f"must be <= {rows}, the learned positions of {model.name}, got {length}"
        yield problem("/training/seq_length", "less_than_equal", detail, length)
    absent = {
        part for part, has in (("encoders", model.encoders), ("routers", model.moe)) if not has
    }
    if set(get_args(Part)) == absent | set(training.frozen):
        detail = f"nothing of {model.name} is left to train"
        yield problem("/training/frozen", "inconsistent", detail, ", ".join(training.frozen))
    tokens = training.encoder_tokens
    if tokens is not None and not model.encoders:
        detail = f"{model.name} has no encoder"
        yield problem("/training/encoder_tokens", "inconsistent", detail, tokens)
