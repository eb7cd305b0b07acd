"""Recurrent mixers over context-parallel ranks: all-to-all by heads, or states passed on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.activation_memory import saved_tensors, tensor_bytes
from cost_models.blocks.records import Collective, MemoryBoundKernel, Record, Scan
from cost_models.dims import dims
from cost_models.estimate import CostModel
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import ModelSpec, TrainingSpec
from tests.fixtures.launches import cluster

MODEL: dict[str, Any] = {
    "name": "one", "num_layers": 1, "hidden_size": 2048, "num_attention_heads": 16,
    "ffn_hidden_size": 4096, "vocab_size": 1024,
}  # fmt: skip
# The layers of Qwen3-Next and of Nemotron-H 8B.
DELTA = {
    "kind": "gated_delta_net", "num_key_heads": 16, "num_value_heads": 32, "key_head_dim": 128,
    "value_head_dim": 128,
}  # fmt: skip
MAMBA2 = {"kind": "mamba2", "num_heads": 128, "head_dim": 64, "num_groups": 8, "state_size": 128}
LENGTH = 32_768


def records(block: dict[str, Any], length: int = LENGTH, **plan: Any) -> tuple[Record, ...]:
    model = ModelSpec(**MODEL, layer_pattern=[[block]])
    training = TrainingSpec(seq_length=length, global_batch_size=8)
    d = dims(training, Plans.of(ParallelPlan(**plan)))
    return tuple(model.layer_pattern[0][0].records(model, d))


def sent(found: tuple[Record, ...]) -> list[tuple[str, float]]:
    """Payloads between the ranks of a sequence."""
    return [
        (one.operations[0], float(np.max(one.payload_bytes)))
        for one in found
        if isinstance(one, Collective) and one.axis == "cp"
    ]


def kept(found: tuple[Record, ...], **plan: Any) -> dict[str, float]:
    d = dims(TrainingSpec(seq_length=LENGTH, global_batch_size=8), Plans.of(ParallelPlan(**plan)))
    return {one.name: float(np.max(tensor_bytes(one, d))) for one in saved_tensors(found)}


def test_one_rank_sends_nothing() -> None:
    assert sent(records(DELTA)) == sent(records(DELTA, runtime="torch")) == []


def test_megatron_trades_a_delta_nets_projection_at_once() -> None:
    """`a2a_cp_to_hp`: queries, keys, values, gate, beta and alpha in one message, then the output,
    all of them of the tokens of a rank.
    """
    tokens, values, keys = LENGTH // 4, 32 * 128, 16 * 128
    projected = 2 * keys + 2 * values + 2 * 32
    found = records(DELTA, cp=4)
    assert sent(found) == [("all_to_all", 2 * tokens * w) for w in (projected, values)]
    (copies,) = (
        one for one in found if isinstance(one, MemoryBoundKernel) and one.name == "exchange copies"
    )
    # Read and written: three times before the scan, twice after it.
    assert float(copies.forward_bytes) == 4 * tokens * (3 * projected + 2 * values)


@pytest.mark.parametrize(("tp", "cp", "copies"), [(1, 4, 1), (2, 4, 1), (8, 4, 4), (4, 8, 4)])
def test_megatron_trades_a_mamba_layers_parts_one_by_one(tp: int, cp: int, copies: int) -> None:
    """`MambaContextParallel`: z, x, B, C and dt; ranks that share a group each get its B and C."""
    tokens, inner = LENGTH // cp, 128 * 64 // tp
    group = 8 * 128 // tp * copies
    widths = (inner, inner, group, group, 128 // tp, inner)
    found = records(MAMBA2, tp=tp, cp=cp)
    assert sent(found) == [("all_to_all", 2 * tokens * w) for w in widths]
    assert kept(found)["mixer in output"] == 2 * tokens * sum(widths[:-1])


@pytest.mark.parametrize("length", [8192, LENGTH])
def test_torch_hands_on_states_whatever_the_length(length: int) -> None:
    """CP x H x K x (K + V) numbers in fp32 (fla-org/flash-linear-attention#691), and the tokens to
    which the convolution looks back.
    """
    found = records(DELTA, length, runtime="torch", cp=4)
    states, tokens = 4 * 32 * 128 * (128 + 128) * 4, 4 * 3 * (2 * 16 + 32) * 128 * 2
    assert sorted(sent(found)) == sorted([("all_gather", states), ("all_gather", tokens)])
    assert kept(found)["states passed between ranks"] == states
    summary, scan = (one for one in found if isinstance(one, Scan))
    assert float(scan.tokens) == length / 4
    assert float(scan.sequences) == 32
    assert float(summary.forward_flop) == pytest.approx(0.47 * scan.forward_flop)


def test_a_scan_of_whole_sequences_gains_nothing_from_ranks_but_one_of_parts_does() -> None:
    """32 heads leave most multiprocessors idle: with fewer of them a scan takes as long."""
    (traded,) = (one for one in records(DELTA, cp=4) if isinstance(one, Scan))
    assert (float(traded.tokens), float(traded.sequences)) == (LENGTH, 8)

    def context_s(length: int, runtime: str) -> dict[str, float]:
        model = ModelSpec(**MODEL, layer_pattern=[[DELTA]])
        training = TrainingSpec(seq_length=length, global_batch_size=8)
        plan = ParallelPlan(cp=8, runtime=runtime, zero_stage=0, cp_kind="a2a")
        found = CostModel(model, cluster(1, 8), training).evaluate(Plans.of(plan))
        return {name: float(values[0]) for name, values in found.time_parts_s.items()}

    # What is exchanged grows with the tokens, what is passed on does not.
    states = [context_s(length, "torch")["cp_comm"] for length in (LENGTH, 4 * LENGTH)]
    heads = [context_s(length, "megatron")["cp_comm"] for length in (LENGTH, 4 * LENGTH)]
    assert states[1] == pytest.approx(states[0], rel=0.01)
    assert heads[1] > 3 * heads[0] > 3 * states[0]


def test_a_short_convolution_looks_back_to_the_rank_before() -> None:
    found = records({"kind": "short_convolution", "taps": 3}, cp=4)
    assert sent(found) == [("all_gather", 4 * 2 * 2048 * 2)]


def test_plans_of_several_runtimes_are_priced_together() -> None:
    """Each as alone."""
    model = ModelSpec(**MODEL, layer_pattern=[[MAMBA2]])
    training = TrainingSpec(seq_length=LENGTH, global_batch_size=8)
    cost = CostModel(model, cluster(1, 8), training)
    rows = [
        ParallelPlan(cp=cp, dp=8 // cp, runtime=runtime, zero_stage=0)
        for cp in (1, 4) for runtime in ("megatron", "torch")
    ]  # fmt: skip
    together = cost.evaluate(Plans.from_rows(rows)).time_parts_s["cp_comm"]
    alone = [float(cost.evaluate(Plans.of(row)).time_parts_s["cp_comm"][0]) for row in rows]
    assert alone[0] == alone[1] == 0.0 < min(alone[2:])
    assert together == pytest.approx(alone)
