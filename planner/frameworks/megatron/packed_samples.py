"""Options for packed samples assigned to ranks by length (hybrid context parallelism)."""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.plans import ParallelPlan
from cost_models.spec import TrainingSpec
from planner.frameworks.base import Row, flag


def are_assigned_by_length(plan: ParallelPlan) -> bool:
    """Whether samples are assigned to ranks by their lengths."""
    return plan.dynamic_cp and plan.cp > 1


def sample_options(training: TrainingSpec, plan: ParallelPlan) -> Iterator[Row]:
    if are_assigned_by_length(plan):
        yield "--hybrid-context-parallel", "as few cp ranks per sample as its length needs"
        most = training.seq_length // plan.cp
        yield (
            "--max-seqlen-per-dp-cp-rank",
            most,
            "tokens per rank; longer samples take 2, 4, ... ranks",
        )
        yield "--calculate-per-token-loss", "ranks have unequal numbers of tokens"
        yield "--dataloader-type", "single", "the only loader that assigns samples to ranks"


def data(training: TrainingSpec) -> Iterator[Row]:
    lengths = training.sample_lengths or (training.seq_length,)
    mean = sum(lengths) / len(lengths)
    yield "--sft", "packed samples, which have no mock data"
    yield flag(
        "", "--data-path", "samples.jsonl",
        f"conversations, packed to {training.seq_length} tokens; planned: {mean:.0f} tokens on "
        f"average, {max(lengths)} at most", "DATA_PATH",
    )  # fmt: skip
    yield "--tokenizer-type", "SFTTokenizer", "tokenizer for conversations"
    yield flag(
        "", "--tokenizer-model", "tokenizer",
        "a folder or a Hugging Face name", "TOKENIZER_MODEL",
    )  # fmt: skip
