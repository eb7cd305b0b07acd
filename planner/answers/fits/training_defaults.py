"""What each way to tune trains with: its optimizer and number formats, and the batch of a step."""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.optimizers import OPTIMIZERS
from cost_models.spec import TrainingSpec
from planner.answers.fits.answer import Row
from planner.documents.plan_report import Note
from planner.frameworks.accelerate.peft import ATTENTION


def trained_with(training: TrainingSpec, batch: int, sharded: TrainingSpec | None = None) -> str:
    """The optimizer and the formats of what is trained; batch: the sequences that were asked.

    sharded: the training where nothing fits otherwise, if that is so at some length.
    """
    optimizer = OPTIMIZERS[training.optimizer]
    states = training.optimizer_state_dtype if optimizer.moment_bytes is None else "8 bits"
    copy = "no" if training.master_weights_dtype == "none" else "an"
    what = "adapters" if training.lora_rank else "weights"
    said = (
        f"{optimizer.title} with states in {states}, gradients in {training.gradient_dtype}, "
        f"{copy} fp32 copy of the {what}"
    )
    if training.lora_rank and set(training.lora_targets) <= {*ATTENTION}:
        said += ", adapters of attention alone"
    if sharded is not None:
        said += f", gradients reduced in {sharded.gradient_reduce_dtype} where only shards fit"
    own = training.global_batch_size
    if own == batch:
        return said
    sequences = "1 sequence" if own == 1 else f"{own:,} sequences"
    step = "a pair of each card" if training.loss == "dpo" else "one micro-batch"
    return f"{said}, {step} per step ({sequences} here, not {batch:,})"


def trained_with_notes(rows: list[Row]) -> Iterator[Note]:
    """A sentence for each way that has a trainer."""
    for row in rows:
        if row.trains_with:
            text = f"{row.title}, by {row.trainer_title}: {row.trains_with}"
            yield Note(code="trained_with", text=text)
