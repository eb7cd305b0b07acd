"""Options for packed samples dealt to ranks by length (hybrid context parallelism)."""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.plans import ParallelPlan
from cost_models.spec import TrainingSpec
from planner.frameworks.base import Flag, Row, flag, in_group, switch


def are_dealt(plan: ParallelPlan) -> bool:
    """Whether samples are dealt to ranks by their lengths."""
    return plan.dynamic_cp and plan.cp > 1


@in_group("PARALLEL_ARGS")
def sample_options(training: TrainingSpec, plan: ParallelPlan) -> Iterator[Row]:
    if are_dealt(plan):
        yield "--hybrid-context-parallel", "as few cp ranks per sample as its length needs"
        most = training.seq_length // plan.cp
        yield (
            "--max-seqlen-per-dp-cp-rank",
            most,
            "tokens per rank; longer samples take 2, 4, ... ranks",
        )
        yield "--calculate-per-token-loss", "ranks have unequal numbers of tokens"
        yield "--dataloader-type", "single", "the only loader that assigns samples to ranks"


@in_group("DATA_ARGS")
def data(training: TrainingSpec) -> Iterator[Flag]:
    lengths = training.sample_lengths or (training.seq_length,)
    mean = sum(lengths) / len(lengths)
    yield switch("DATA_ARGS", "--sft", "packed samples, which have no mock data")
    yield flag(
        "DATA_ARGS", "--data-path", "samples.jsonl",
        f"conversations, packed to {training.seq_length} tokens; planned: {mean:.0f} tokens on "
        f"average, {max(lengths)} at most", "DATA_PATH",
    )  # fmt: skip
    yield flag("DATA_ARGS", "--tokenizer-type", "SFTTokenizer", "tokenizer for conversations")
    yield flag(
        "DATA_ARGS", "--tokenizer-model", "tokenizer",
        "a folder or a Hugging Face name", "TOKENIZER_MODEL",
    )  # fmt: skip
