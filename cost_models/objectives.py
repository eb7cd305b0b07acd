"""Training objectives: next tokens, preferences, a reward, or a teacher's distribution.

A reference or teacher is frozen and runs forward only, in the plan of the model: a copy of it (DPO,
section 4), the model itself without its adapters (PEFT, disable_adapter), or a dense model of
another size, taken to run at the pace of the model.  Reference log-probabilities are computed in
every step (TRL's default), not beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from cost_models.arrays import sum_of
from cost_models.blocks.records import (
    Collective,
    Gemm,
    MemoryBoundKernel,
    Record,
    SavedTensor,
    Working,
)
from cost_models.parameters import active_parameters, total_parameters
from cost_models.sources import Array, formula
from cost_models.spec import ModelSpec, TrainingSpec

_COMMUNICATION = ("tp_s", "cp_s", "ep_s")
_LOSS = ("logits", "cross-entropy")


@formula("1", "dpo", "distillation")
def forward_share(model: ModelSpec, training: TrainingSpec) -> float:
    """The cost of the reference's forward pass, in forward passes of the model."""
    if training.loss == "dpo":
        return 1.0
    if training.loss != "distillation":
        return 0.0
    active = active_parameters(model)
    return (training.teacher_parameters or active) / active


@formula("1", "dpo", "distillation")
def reference_share(model: ModelSpec, training: TrainingSpec) -> float:
    """Frozen parameters of the reference, in those of the model.

    0 if the reference is the model without its adapters.
    """
    if training.loss == "distillation":
        total = total_parameters(model)
        return (training.teacher_parameters or total) / total
    return float(training.loss == "dpo" and not training.lora_rank)


def with_reference(block: Mapping[str, Array], share: float) -> dict[str, Array]:
    """Seconds of a block whose micro-batches also pass forward through the reference."""
    if not share:
        return dict(block)
    more_s = share * block["forward_comm_s"]
    communication_s = sum_of(block[name] for name in _COMMUNICATION if name in block)
    parts = {
        name: block[name] * (1.0 + more_s / (communication_s + (communication_s == 0)))
        for name in _COMMUNICATION
        if name in block
    }
    forward = {name: block[name] * (1.0 + share) for name in ("forward_s", "forward_comm_s")}
    return {**block, **parts, **forward}


def head_records(records: Iterable[Record], training: TrainingSpec) -> Iterator[Record]:
    """The head's: one score for a token in place of logits, or the teacher's logits besides."""
    for record in records:
        if training.loss == "distillation":
            yield record
            # The divergence reads both distributions, cross-entropy only one.
            if isinstance(record, MemoryBoundKernel) and record.name == "cross-entropy":
                yield replace(record, name="divergence")
            elif isinstance(record, SavedTensor) and record.name == "logits":
                yield replace(record, name="teacher logits")
        elif training.loss != "reward":
            yield record
        elif isinstance(record, Gemm) and record.name == "logits":
            yield replace(record, name="score", n=1.0)
        elif not isinstance(record, Collective | Working) and (
            getattr(record, "name", "") not in _LOSS
        ):
            yield record
