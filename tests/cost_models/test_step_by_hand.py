"""Each part of a step in seconds and of memory in bytes, worked out by hand for a small model.

S tokens, width H, F = 4H, V words, four layers of two norms, attention and an MLP; every part on
the machine of tests/fixtures/ideal.py, which reaches its peaks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cost_models.cost_parts import MEMORY_PARTS, TIME_PARTS
from cost_models.spec import ModelSpec, MoESpec, NetworkTier, TrainingSpec
from tests.fixtures.ideal import BANDWIDTH, CONSTANTS, HOST_LINK, LINK, RATE, estimate, seconds

S, H, V, LAYERS, BATCH = 1024, 1024, 8192, 4, 8
F = 4 * H
MODEL = ModelSpec(
    num_layers=LAYERS, hidden_size=H, num_attention_heads=16, ffn_hidden_size=F, vocab_size=V
)
TRAINING = TrainingSpec(seq_length=S, global_batch_size=BATCH)
MIB = 2**20
# Of queries, keys, values, the output, and both of the MLP; two norms with biases.
LAYER_WEIGHTS = 3 * H * H + H * H + F * H + H * F + 4 * H
WEIGHTS = LAYERS * LAYER_WEIGHTS + 2 * V * H + 2 * H

# FLOP of one micro-batch: a multiply and an add each; of attention's square one half.
LAYER_PRODUCTS = 2 * S * (3 * H * H + H * H + 2 * F * H)
LAYER_ATTENTION = 2 * (2 * S * S * H) / 2
HEAD_PRODUCTS = 2 * S * H * V
# Bytes forward: a norm reads and writes (twice), a sum reads two and writes one (twice), rotation
# reads and writes queries and keys, GELU reads and writes.
LAYER_PASSES = S * H * (2 * (2 + 2) + 2 * (2 + 2 + 2) + 2 * (2 + 2)) + S * F * (2 + 2)
# Backward: a norm reads its input and two gradients' worth, a sum reads two and writes one.
LAYER_PASSES_BACK = S * H * (2 * 6 + 2 * 6 + 2 * (2 + 2)) + S * F * (2 + 2 + 2)
# The row is looked up and written; last norm; per logit the fused loss converts and finds the
# largest (2 + 4 + 4), shifts and takes exponents (4 + 4), normalises (4 + 4).
END_PASSES = S * H * (2 + 2), S * H * (2 + 2) + S * V * (2 + 4 + 4 + 4 + 4 + 4 + 4)
# Backward: a half-precision gradient added to fp32 (2 + 4 + 4); the norm; exponents to gradients.
END_PASSES_BACK = S * H * (2 + 4 + 4), S * H * 6 + S * V * (4 + 4 + 2)
LAYER_FORWARD = (LAYER_PRODUCTS + LAYER_ATTENTION) / RATE + LAYER_PASSES / BANDWIDTH
# Gradients of inputs; those of weights at 0.96 of the rate; five products of attention for two.
BACK = 1 + 1 / 0.96
LAYER_BACKWARD = (BACK * LAYER_PRODUCTS + 2.5 * LAYER_ATTENTION) / RATE
LAYER_BACKWARD += LAYER_PASSES_BACK / BANDWIDTH
EMBEDDING = END_PASSES[0] / BANDWIDTH, END_PASSES_BACK[0] / BANDWIDTH
HEAD = (
    HEAD_PRODUCTS / RATE + END_PASSES[1] / BANDWIDTH,
    BACK * HEAD_PRODUCTS / RATE + END_PASSES_BACK[1] / BANDWIDTH,
)
ACTIVATION = 2 * S * H  # bytes that a message or a collective carries
ALL_REDUCE = 2 * (2 - 1) / 2 * ACTIVATION / LINK  # between two ranks
# Three fp32 numbers per token: the largest logit, the sum of exponentials, the target's logit.
LOSS_ALL_REDUCES = 3 * 4 * S / LINK


def step(**more: Any) -> dict[str, float]:
    return seconds(MODEL, TRAINING, **more)


def test_forward_and_backward() -> None:
    found = step()
    forward = LAYERS * LAYER_FORWARD + EMBEDDING[0] + HEAD[0]
    backward = LAYERS * LAYER_BACKWARD + EMBEDDING[1] + HEAD[1]
    assert found["forward"] == pytest.approx(BATCH * forward, rel=1e-9)
    assert found["backward"] == pytest.approx(BATCH * backward, rel=1e-9)
    others = {name for name in TIME_PARTS if found[name]}
    assert others == {"forward", "backward", "optimizer"}


def test_recompute_runs_layers_forward_once_more() -> None:
    found = step(recompute="full", recompute_method="block", recompute_num_layers=3)
    assert found["recompute"] == pytest.approx(BATCH * 3 * LAYER_FORWARD, rel=1e-9)


def test_selective_recompute_runs_its_module_once_more() -> None:
    found = step(recompute="selective", recompute_modules=("mlp",))
    again = 2 * S * 2 * F * H / RATE + 4 * S * F / BANDWIDTH
    assert found["recompute"] == pytest.approx(BATCH * LAYERS * again, rel=1e-9)


def test_tensor_parallelism_sums_twice_a_layer_in_each_pass() -> None:
    """Those of the backward pass hide under weight gradients; the ends sum once each."""
    found = step(tp=2)["tp_comm"]
    shown = (2 * LAYERS + 2) * ALL_REDUCE + LOSS_ALL_REDUCES
    assert found == pytest.approx(BATCH * shown, rel=1e-9)


def test_context_parallelism_hides_a_ring_under_half_of_attention() -> None:
    """Keys and values go around once forward, twice backward (theirs and their gradients).

    Merging reads the part and the sum and writes the sum, in fp32; backward adds three gradients
    in half precision.
    """
    hop = 2 * (S / 2) * H * 2 / LINK
    attention = LAYER_ATTENTION / 2 / RATE
    query = (S / 2) * H
    forward = hop - attention / 2 + query * (2 + 4 + 4) / BANDWIDTH
    backward = 2 * hop - 2.5 * attention / 2 + 3 * query * (2 + 2 + 2) / BANDWIDTH
    found = step(cp=2)["cp_comm"]
    assert found == pytest.approx(BATCH * LAYERS * (forward + backward), rel=1e-9)


def test_a_pipeline_shows_its_messages() -> None:
    """Two while it fills and drains, then one each way per micro-batch."""
    found = step(pp=2)["pp_comm"]
    assert found == pytest.approx((2 + 2 * BATCH) * ACTIVATION / LINK, rel=1e-9)


def test_the_last_stage_waits_while_the_first_works_on_one_micro_batch() -> None:
    """1F1B's bubble: the others' seconds of one micro-batch; here two layers and the embedding."""
    found = step(pp=2)
    first = LAYERS / 2 * (LAYER_FORWARD + LAYER_BACKWARD) + sum(EMBEDDING)
    assert found["bubble"] == pytest.approx(first, rel=1e-9)
    last = LAYERS / 2 * LAYER_FORWARD + HEAD[0]
    assert found["forward"] == pytest.approx(BATCH * last, rel=1e-9)


@pytest.mark.parametrize(
    ("plan", "bytes_per_parameter"),
    [
        ({"zero_stage": 0}, 2 * 4),  # an all-reduce of fp32 gradients sends each twice
        ({"zero_stage": 1}, 4 + 2),  # scattered, and half-precision weights gathered
        ({"zero_stage": 1, "runtime": "deepspeed"}, 2 * 4 + 2),  # all gradients to all ranks
    ],
)
def test_data_parallelism_sends_gradients_and_weights(
    plan: dict[str, Any], bytes_per_parameter: int
) -> None:
    """Half of each goes over the link between two ranks."""
    apart = {"overlap_grad_reduce": False, "overlap_param_gather": False}
    found = step(dp=2, **apart, **plan)["dp_comm"]
    assert found == pytest.approx(WEIGHTS * bytes_per_parameter / 2 / LINK, rel=1e-9)


def test_of_an_overlapped_reduction_the_last_bucket_shows() -> None:
    """40 million parameters, in fp32 to be reduced and in half precision to be gathered."""
    assert step(dp=2)["dp_comm"] == pytest.approx(40e6 * (4 + 2) / 2 / LINK, rel=1e-9)


def test_experts_get_their_tokens_and_send_them_back() -> None:
    """Two all-to-alls in each pass: of both copies of a token half leave the rank."""
    moe = MoESpec(num_experts=4, top_k=2, expert_ffn_hidden_size=H)
    model = MODEL.model_copy(update={"moe": moe})
    found = seconds(model, TRAINING, dp=2, ep=2)["ep_comm"]
    exchange = 2 * ACTIVATION / 2 / LINK
    assert found == pytest.approx(BATCH / 2 * LAYERS * 4 * exchange, rel=1e-9)


def test_the_step_moves_50_bytes_per_parameter() -> None:
    """See test_synchronisation.py for the bytes; at 0.85 of the bandwidth."""
    assert step()["optimizer"] == pytest.approx(50 * WEIGHTS / (0.85 * BANDWIDTH), rel=1e-9)


def test_an_offloaded_step_crosses_to_the_host_and_back() -> None:
    """fp32 gradients down, half-precision weights up, 4e9 parameters a second on a node."""
    found = step(offload_optimizer=True)
    assert found["optimizer"] == 0
    assert found["offload"] == pytest.approx(WEIGHTS * ((4 + 2) / HOST_LINK + 1 / 4e9), rel=1e-9)


def test_stragglers_take_a_share_per_doubling_of_the_domains_that_meet_in_every_layer() -> None:
    """ZeRO-3 over eight accelerators, two to a domain: two doublings."""
    tiers = tuple(
        NetworkTier(name=name, domain_accelerators=size, bandwidth_bytes_per_s=LINK, latency_s=0)
        for name, size in (("inner", 2), ("outer", None))
    )
    node = {"nodes": 4, "accelerators_per_node": 2, "network": tiers}
    slow = replace(CONSTANTS, straggler=0.1)
    found = step(dp=8, zero_stage=3, constants=slow, node=node)
    rest = sum(value for name, value in found.items() if name != "stragglers")
    assert found["stragglers"] == pytest.approx(0.1 * 2 * rest, rel=1e-9)


def test_the_host_takes_its_time_for_each_kernel() -> None:
    """Eleven in a layer, one in the embedding, three in the head; as many backward."""
    slow = replace(CONSTANTS, host_launch_s=1.0)
    found = step(constants=slow)
    launches = LAYERS * 11 + 1 + 3
    assert found["forward"] == found["backward"] == pytest.approx(BATCH * launches, rel=1e-9)


def memory(**plan: Any) -> dict[str, list[float]]:
    parts = estimate(MODEL, TRAINING, **plan).memory.parts
    return {name: parts[name][:, 0].tolist() for name in MEMORY_PARTS}


LAYER_SAVED = S * (
    2 * H * 2  # inputs of both norms
    + 2 * H * 2  # their outputs
    + 2 * 3 * H + 4 * 16  # queries, keys, values; a log-sum-exp per head
    + 2 * H  # the output of attention
    + 2 * F * 2  # before and after GELU
)  # fmt: skip


def test_states_and_what_is_saved_on_one_accelerator() -> None:
    found = {name: values[0] for name, values in memory(runtime="megatron-2022").items()}
    assert found["weights"] == 2 * WEIGHTS
    assert found["gradients"] == 4 * WEIGHTS
    assert found["optimizer"] == (4 + 4 + 4) * WEIGHTS
    assert found["activations"] == LAYERS * LAYER_SAVED
    # Input and output of the last norm, and fp32 exponentials.
    assert found["logits"] == 2 * 2 * S * H + 4 * S * V
    # At the loss: one workspace of cuBLAS; half-precision logits; a gradient twice.
    assert found["working"] == 32 * MIB + 2 * S * V + 2 * 2 * S * H
    assert found["communication"] == 0
    # 0.3 of what comes and goes, and the whole gradient of the word table, needed later.
    transient = found["activations"] + found["logits"] + found["working"]
    assert found["fragmentation"] == pytest.approx(0.3 * transient + 2 * V * H, rel=1e-12)
    assert found["driver"] == 1.5e9


def test_a_pipeline_keeps_micro_batches_in_flight_and_a_message_each_way() -> None:
    """The first stage has two in flight; each has two layers."""
    found = memory(runtime="megatron-2022", pp=2)
    assert found["activations"] == [2 * 2 * LAYER_SAVED, 2 * LAYER_SAVED]
    assert found["logits"] == [0, 2 * 2 * S * H + 4 * S * V]
    assert found["communication"] == [2 * ACTIVATION, 2 * ACTIVATION]


def test_the_driver_has_buffers_for_each_group() -> None:
    """Two groups (the world, replicas): 16 channels of a ring and a tree, three protocols each."""
    protocols = 4 * MIB + 120 * 640 * 8 * 8 + 8 * 512 * 8 * 16
    (found,) = memory(dp=2)["driver"]
    assert found == 1.5e9 + 2 * 16 * 2 * protocols


def test_every_part_has_a_number_here() -> None:
    """A new part of a step or of its memory is worked out by hand too."""
    text = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in (*TIME_PARTS, *MEMORY_PARTS) if f'["{name}"]' not in text] == []
