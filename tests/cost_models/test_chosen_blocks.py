"""Attention to blocks that an indexer picks, as in MiniMax-M3, against what is published."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from cost_models.activation_memory import saved_tensors, tensor_bytes
from cost_models.blocks.attention import Attention
from cost_models.blocks.indexer import BLOCK_RATE
from cost_models.blocks.records import FlashAttention, Gemm, MemoryBoundKernel, Record
from cost_models.dims import dims
from cost_models.estimate import CostModel
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import ModelSpec, TrainingSpec
from tests.fixtures.launches import cluster

MODEL: dict[str, Any] = {
    "name": "one", "num_layers": 1, "hidden_size": 6144, "num_attention_heads": 64,
    "num_query_groups": 4, "head_dim": 128, "ffn_hidden_size": 1024, "vocab_size": 1024,
}  # fmt: skip
INDEXER: dict[str, Any] = {
    "num_heads": 4, "head_dim": 128, "top_k": 16 * 128, "block_size": 128, "key_norm_bias": False,
    "query_norm": True, "head_weights": False,
}  # fmt: skip
MLA = {"kv_lora_rank": 64, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
MILLION = 2**20


def model(**indexer: Any) -> ModelSpec:
    chosen = {"indexer": INDEXER | indexer} if indexer.pop("chosen", True) else {}
    return ModelSpec(**MODEL, layer_pattern=[[{"kind": "attention", **chosen}, {"kind": "mlp"}]])


def records(spec: ModelSpec, length: int) -> tuple[Record, ...]:
    training = TrainingSpec(seq_length=length, global_batch_size=8)
    d = dims(training, Plans.of(ParallelPlan(runtime="torch")))
    return tuple(spec.layer_pattern[0][0].records(spec, d))


def attending_flop(found: tuple[Record, ...]) -> float:
    """Of scores and values, and of the scores by which blocks are chosen."""
    scores = [one for one in found if isinstance(one, Gemm) and one.name == "indexer scores"]
    products = sum(2.0 * np.max(one.m * one.n * one.k * one.groups) for one in scores)
    kernels = [one for one in found if isinstance(one, FlashAttention)]
    return float(products + sum(np.max(one.forward_flop) for one in kernels))


def test_the_published_saving_at_a_million_tokens() -> None:
    """28.4 times fewer FLOP per token (arXiv 2606.13392, abstract)."""
    full, chosen = (attending_flop(records(model(chosen=x), MILLION)) for x in (False, True))
    assert full / chosen == pytest.approx(28.4, rel=0.01)


def test_each_head_of_the_indexer_keeps_the_blocks_it_chose() -> None:
    length = 32_768
    d = dims(TrainingSpec(seq_length=length, global_batch_size=8), Plans.of(ParallelPlan()))
    rows = {one.name: one for one in saved_tensors(records(model(), length))}
    assert float(np.max(tensor_bytes(rows["indexer choice"], d))) == length * 4 * 16 * 4
    single = model(block_size=None)
    rows = {one.name: one for one in saved_tensors(records(single, length))}
    assert float(np.max(tensor_bytes(rows["indexer choice"], d))) == length * 2048 * 4


def test_chosen_blocks_are_attended_to_at_their_own_rate() -> None:
    """The kernels run slower than dense ones, and still gain where a sequence is long."""
    found = records(model(), 131_072)
    (kernel,) = (one for one in found if isinstance(one, FlashAttention))
    assert kernel.rate == BLOCK_RATE == pytest.approx(0.63, abs=0.005)

    def step_s(spec: ModelSpec) -> float:
        training = TrainingSpec(seq_length=131_072, global_batch_size=8)
        plan = ParallelPlan(dp=8, runtime="torch", zero_stage=0)
        return float(
            CostModel(spec, cluster(1, 8), training).evaluate(Plans.of(plan)).iteration_time_s[0]
        )

    full, blocks, keys = (step_s(m) for m in (model(chosen=False), model(), model(block_size=None)))
    assert blocks < full / 4
    assert keys != blocks


@pytest.mark.parametrize(
    ("indexer", "text"),
    [
        ({"top_k": 2000}, "top_k 2000 is not a multiple of block_size 128"),
        ({"num_heads": 3}, "num_query_groups 4 is not a multiple of the indexer's num_heads"),
        ({"head_weights": True}, "an indexer of blocks has no head_weights"),
    ],
)
def test_what_does_not_go_together(indexer: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        model(**indexer)


def test_latent_attention_has_no_groups_to_choose_for() -> None:
    latent = {"kind": "latent_attention", "indexer": INDEXER}
    with pytest.raises(ValidationError, match="groups of heads"):
        ModelSpec(**MODEL, mla=MLA, layer_pattern=[[latent, {"kind": "mlp"}]])


def test_its_name_tells_blocks() -> None:
    block = model().layer_pattern[0][0]
    assert isinstance(block, Attention)
    assert block.title == "top 16 blocks of 128 attention"


@pytest.mark.parametrize(("gate", "gates"), [("head", 64), ("element", 64 * 128)])
def test_an_output_gate_is_a_product_forward_and_two_backward(gate: str, gates: int) -> None:
    """Forward reads the output and the gate and writes their product.  Backward is a product for
    each side: the gradient times the gate, and times the output.
    """
    spec = ModelSpec(**MODEL, layer_pattern=[[{"kind": "attention", "gate": gate}]])
    found = records(spec, 1024)
    (kernel,) = (one for one in found if getattr(one, "name", "") == "attention gate")
    assert isinstance(kernel, MemoryBoundKernel)
    output = 64 * 128
    forward = 2 * output + 2 * gates + 2 * output
    backward = (2 * output + 2 * gates + 2 * output) + (2 * output + 2 * output + 2 * gates)
    assert (kernel.forward_bytes, kernel.backward_bytes) == (1024 * forward, 1024 * backward)
