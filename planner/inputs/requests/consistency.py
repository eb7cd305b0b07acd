"""Parts of a request that are fine alone and contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from cost_models.spec import ClusterSpec, ModelSpec, Part, Precision, TrainingSpec
from planner.documents.problems import Problem


def contradictions(
    model: ModelSpec, cluster: ClusterSpec, training: TrainingSpec, mixed_cluster: bool = False
) -> Iterator[Problem]:
    """Parts of the request that contradict each other, each at the place that is easiest to change.

    mixed_cluster: the question is one that a cluster of different nodes has an answer to.
    """
    if len(cluster.groups) > 1 and not mixed_cluster:
        yield Problem(
            pointer="/cluster/groups",
            code="mixed_cluster",
            detail="only `plan` takes nodes that differ: here one group, got "
            f"{len(cluster.groups)}",
            got=len(cluster.groups),
        )
    yield from _of_cluster(cluster, training)
    yield from _of_model(model, training)


def _of_cluster(cluster: ClusterSpec, training: TrainingSpec) -> Iterator[Problem]:
    """A precision that accelerators cannot compute in, and memory that is all reserved."""
    for group in cluster.groups:
        accelerator = group.accelerator
        known = [p for p in get_args(Precision) if accelerator.peak_flop_per_s(p) is not None]
        if training.precision not in known:
            yield Problem(
                pointer="/training/precision",
                code="unsupported_precision",
                detail=f"{accelerator.id} has no {training.precision} matrix units"
                + (f"; it has {', '.join(known)}" if known else ""),
                got=training.precision,
                allowed=tuple(known),
            )
        reserved = cluster.reserved_bytes_per_accelerator
        if reserved is not None and reserved >= accelerator.memory_bytes:
            yield Problem(
                pointer="/cluster/reserved_bytes_per_accelerator",
                code="no_memory_left",
                detail=f"must be below the {accelerator.memory_bytes:.0f} bytes of "
                f"{accelerator.id}, got {reserved:.0f}",
                got=reserved,
            )


def _of_model(model: ModelSpec, training: TrainingSpec) -> Iterator[Problem]:
    """Positions, parts and encoders that the model does not have."""
    rows = model.max_position_embeddings
    if model.position == "learned" and rows is not None and training.seq_length > rows:
        yield Problem(
            pointer="/training/seq_length",
            code="less_than_equal",
            detail=f"must be <= {rows}, the learned positions of {model.name}, "
            f"got {training.seq_length}",
            got=training.seq_length,
        )
    absent = {
        part for part, has in (("encoders", model.encoders), ("routers", model.moe)) if not has
    }
    if set(get_args(Part)) == absent | set(training.frozen):
        yield Problem(
            pointer="/training/frozen",
            code="inconsistent",
            detail=f"nothing of {model.name} is left to train",
            got=", ".join(training.frozen),
        )
    if training.encoder_tokens is not None and not model.encoders:
        yield Problem(
            pointer="/training/encoder_tokens",
            code="inconsistent",
            detail=f"{model.name} has no encoder",
            got=training.encoder_tokens,
        )
