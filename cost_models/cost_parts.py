"""The parts that add up to the time and the memory of a step: names, texts and letters."""

from __future__ import annotations

from typing import NamedTuple


class TimePart(NamedTuple):
    """One part of the time of a step.

    title: its name within a sentence.  letter: what draws it in text.  measured: the category under
    which a real run measures it.  once: it occurs once per step, outside of the pipeline, and not
    once per micro-batch.
    """

    title: str
    text: str
    letter: str
    measured: str
    once: bool = False


class MemoryPart(NamedTuple):
    """One part of the peak memory; letter: what draws it in text."""

    text: str
    letter: str


TIME_PARTS: dict[str, TimePart] = {
    "forward": TimePart("forward", "forward kernels of the busiest stage", "F", "forward"),
    "backward": TimePart("backward", "backward kernels of the busiest stage", "B", "backward"),
    "recompute": TimePart(
        "recompute", "forward kernels and collectives run again in backward", "R", "backward"
    ),
    "tp_comm": TimePart(
        "TP communication", "tensor-parallel collectives not hidden", "T", "communication"
    ),
    "cp_comm": TimePart(
        "CP communication", "context-parallel communication not hidden", "C", "communication"
    ),
    "ep_comm": TimePart(
        "EP communication", "expert-parallel all-to-all not hidden", "E", "communication"
    ),
    "pp_comm": TimePart("PP messages", "pipeline messages not hidden", "P", "idle"),
    "bubble": TimePart("bubble", "waiting of the busiest stage for the others", ".", "idle"),
    "dp_comm": TimePart(
        "DP communication",
        "gradient reduction and weight gathering not hidden",
        "D",
        "communication",
        once=True,
    ),
    "optimizer": TimePart(
        "optimizer step", "gradient norm and optimizer step", "O", "optimizer", once=True
    ),
    "offload": TimePart("offload", "host transfers not hidden", "H", "other", once=True),
    "stragglers": TimePart(
        "stragglers",
        "waiting for the slowest node where all meet in every layer",
        "S",
        "idle",
        once=True,
    ),
}
MEMORY_PARTS: dict[str, MemoryPart] = {
    "weights": MemoryPart("training weights held by the rank", "W"),
    "gradients": MemoryPart(
        "gradient accumulation buffers, and Transformer Engine's placeholders", "G"
    ),
    "optimizer": MemoryPart("master weights and optimizer moments", "O"),
    "activations": MemoryPart(
        "saved tensors of all micro-batches in flight, transformer layers", "A"
    ),
    "logits": MemoryPart("embedding output, last norm, logits and loss buffers", "L"),
    "working": MemoryPart(
        "tensors alive only at the fullest moment: recompute, backward temporaries, GEMM "
        "workspaces",
        "K",
    ),
    "communication": MemoryPart("gather, reduce and pipeline buffers of the framework", "C"),
    "fragmentation": MemoryPart("held by the allocator and of no use at that moment", "F"),
    "driver": MemoryPart(
        "CUDA context and NCCL buffers; or all that the cluster reserves, where it says so", "D"
    ),
}
