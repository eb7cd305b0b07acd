"""Steps that were measured on one GPU, held against the estimate: tools/gpu_day/h200.json.

What is not modelled of a run stands beside it; the others keep memory to one percent and time to
a tenth.  Rates of the host (lora-8b-short, qlora-8b-small), of a widening copy (lora-1b) and of
8-bit Adam (full-4b-8bit) were read off runs here: their times hold constants, and prove nothing.
"""

from __future__ import annotations

import pytest

from tools.gpu_day.compare import Compared, compared

# Runs whose estimate lacks something, which docs/not-modelled.md says.
OTHER_MEMORY = {
    "qlora-8b-small": "two percent less than estimated, of something not known",
    "full-4b-8bit": "the grid of bitsandbytes' blocks",
    "lora-1b-packed": "packed samples are read with a mask, chunks do not hold every token",
    "lora-8b-long": "the gradients of seven adapters of the layer that runs backward",
    "lora-moe": "PEFT adapts the experts as well, which `all-linear` names there",
}
OTHER_TIME = {
    "full-4b-8bit": "the norms of queries and keys, the casts of gradients",
    "lora-4b-eager": "masks that are copied for every head",
    "lora-1b-packed": "attention with a mask",
    "lora-moe": "adapters of the experts",
}
FOUND = {one.name: one for one in compared()}


@pytest.mark.parametrize("name", [name for name in FOUND if name not in OTHER_MEMORY])
def test_memory_is_what_torch_handed_out(name: str) -> None:
    one = FOUND[name]
    assert one.predicted_bytes == pytest.approx(one.measured_bytes, rel=0.01)


@pytest.mark.parametrize("name", [name for name in FOUND if name not in OTHER_TIME])
def test_time_is_what_a_step_took(name: str) -> None:
    one = FOUND[name]
    assert one.predicted_s == pytest.approx(one.measured_s, rel=0.10)


def test_most_runs_are_held_to_it() -> None:
    assert len(FOUND) >= 15
    assert len(FOUND) - len(OTHER_MEMORY) >= 8
    assert len(FOUND) - len(OTHER_TIME) >= 10


def test_it_is_nearer_than_at_first_sight() -> None:
    """What was said of the runs before any of this physics was there stays in the file."""

    def mean(errors: list[float]) -> float:
        return sum(errors) / len(errors)

    def far(said: float | None, measured: float) -> float:
        assert said is not None
        return abs(said / measured - 1.0)

    runs: list[Compared] = list(FOUND.values())
    memory = mean([far(one.first_bytes, one.measured_bytes) for one in runs])
    assert mean([far(one.predicted_bytes, one.measured_bytes) for one in runs]) < 0.5 * memory
