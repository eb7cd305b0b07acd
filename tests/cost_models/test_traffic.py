"""Bytes on the links: by hand on three kinds of fabric, and against the estimate's own seconds."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.catalog.hardware import accelerator, cluster_of, node_group
from cost_models.catalog.models import model as model_of
from cost_models.estimate import CostModel
from cost_models.parameters import total_parameters
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import ClusterSpec, NetworkTier, NodeGroup, TrainingSpec
from cost_models.traffic import GroupTraffic

LLAMA = model_of("llama-3.1-8b")
PARAMETERS = total_parameters(LLAMA)
TRAINING = TrainingSpec(seq_length=4096, global_batch_size=64)
# Of one of eight tensor-parallel ranks: norms stand whole on each, both word tables are padded to a
# multiple of 8 x 128 rows.
NORMS = 4096 * 65
HELD_BY_EIGHTH = NORMS + (PARAMETERS - NORMS + 2 * (129_024 - 128_256) * 4096) / 8
NVLINK = NetworkTier(
    name="nvlink", domain_accelerators=8, bandwidth_bytes_per_s=450e9, latency_s=2e-6
)


def tier(name: str, domain: int | None, **other: Any) -> NetworkTier:
    return NetworkTier(
        name=name, domain_accelerators=domain, bandwidth_bytes_per_s=50e9, latency_s=1e-5, **other
    )


def h100s(nodes: int, *outer: NetworkTier) -> ClusterSpec:
    group = NodeGroup(
        accelerator=accelerator("h100-sxm"), nodes=nodes, accelerators_per_node=8,
        network=(NVLINK, *outer),
    )  # fmt: skip
    return cluster_of("by hand", group)


def traffic(cluster: ClusterSpec, **plan: Any) -> dict[str, GroupTraffic]:
    row = ParallelPlan(**plan)
    return {one.name: one for one in CostModel(LLAMA, cluster, TRAINING).traffic(row)}


def test_an_oversubscribed_fat_tree() -> None:
    """32 replicas all-reduce fp32 gradients: each sends 2 x 31/32 of them on NVLink.

    Eight links leave a node and sixteen a leaf, so each carries an eighth and a sixteenth; above
    the leaf an accelerator has a quarter of 50 GB/s.
    """
    cluster = h100s(4, tier("nic", 16), tier("spine", None, oversubscription=4))
    found = traffic(cluster, dp=32, zero_stage=0)
    assert set(found) == {"data"}
    sent = PARAMETERS * 4 * 2 * 31 / 32
    expected = [sent, sent / 8, sent / 16]
    assert found["data"].link_bytes[:, 0] == pytest.approx(expected)
    line_s = [sent / 450e9, sent / 8 / 50e9, sent / 16 / (50e9 / 4)]
    assert found["data"].line_s[:, 0] == pytest.approx(line_s)


def test_rails_are_not_oversubscribed_for_groups_of_one_place() -> None:
    """Tensor parallel in the node, replicas on rails: one rail each, at its full rate.

    A shard group reduces fp32 gradients (4 bytes) and gathers weights (2 bytes), 3/4 of them.
    """
    cluster = h100s(4, tier("rails", None, oversubscription=4, topology="rail"))
    on_rails = traffic(cluster, tp=8, sequence_parallel=True, dp=4)["shard"]
    sent = HELD_BY_EIGHTH * 6 * 3 / 4
    assert on_rails.link_bytes[1, 0] == pytest.approx(sent)
    assert on_rails.link_bytes[0, 0] == 0
    assert on_rails.line_s[1, 0] == pytest.approx(sent / 50e9)
    across = traffic(cluster, dp=32, zero_stage=0)["data"]
    assert across.line_s[1, 0] == pytest.approx(across.link_bytes[1, 0] / (50e9 / 4))


def test_a_rack_of_72_keeps_most_inside() -> None:
    """Two NVL72 racks, tp 8, dp 18: nine of eighteen replicas in a rack, so a ninth leaves it."""
    racks = node_group("gb200-nvl72", 36)
    assert racks.network[0].domain_accelerators == 72
    cluster = cluster_of("two racks", racks)
    assert cluster.accelerators == 144
    found = CostModel(LLAMA, cluster, TRAINING.model_copy(update={"global_batch_size": 72}))
    by_name = {g.name: g for g in found.traffic(ParallelPlan(tp=8, dp=18, zero_stage=0))}
    data, tp = by_name["data"], by_name["tp"]
    held = HELD_BY_EIGHTH * 4
    assert data.link_bytes[0, 0] == pytest.approx(held * 2 * 17 / 18)
    assert data.link_bytes[1, 0] == pytest.approx(held * 2 * 17 / 18 / 9)
    assert tp.link_bytes[1, 0] == 0


def test_tensor_and_pipeline_messages_by_hand() -> None:
    """Four all-reduces of 2 b s h bytes in each layer, 2 x 3/4 of them over a link; and one
    activation of a micro-batch on and one gradient back, from the last rank of a node.
    """
    cluster = h100s(4, tier("nic", None))
    found = traffic(cluster, tp=4, pp=4, dp=2)
    activation = 4096 * 4096 * 2
    micro_batches = 64 / 2
    each_layer = 4 * activation * 2 * 3 / 4
    middle = 1
    assert found["tp"].link_bytes[0, middle] == pytest.approx(micro_batches * 8 * each_layer)
    messages = micro_batches * 2 * activation
    assert found["pp"].link_bytes[:, middle] == pytest.approx([0, messages])
    assert found["pp"].mean_bytes[1, middle] == pytest.approx(messages)
    # Stages next to each other: two in a node, so only every second of a node's ranks sends out.
    inside = traffic(cluster, tp=4, pp=4, dp=2, rank_order="tp-cp-ep-pp-dp")["pp"]
    assert inside.link_bytes[:, middle] == pytest.approx([messages, messages])
    assert inside.mean_bytes[:, middle] == pytest.approx([messages / 2, messages / 2])


OPEN = {
    "overlap_grad_reduce": False,
    "overlap_param_gather": False,
    "overlap_p2p": False,
    "runtime": "megatron-2021",
}
# Time part -> the groups whose transfers it prices.
PRICED = {
    "tp_comm": ("tp", "etp"),
    "cp_comm": ("cp",),
    "ep_comm": ("ep",),
    "dp_comm": (
        "data", "shard", "replicate", "expert_data", "expert_shard", "expert_replicate",
        "embedding",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("llama-3.1-8b", {"tp": 4, "pp": 2, "dp": 4}),
        ("llama-3.1-8b", {"tp": 2, "sequence_parallel": True, "cp": 4, "cp_kind": "a2a", "dp": 4}),
        ("llama-3.1-8b", {"tp": 4, "cp": 2, "cp_kind": "all_gather", "dp": 4, "zero_stage": 0}),
        ("llama-3.1-8b", {"dp": 32, "dp_shard": 8, "zero_stage": 3}),
        ("llama-3.1-8b", {"tp": 4, "dp": 8, "zero_stage": 2, "runtime": "deepspeed"}),
        ("mixtral-8x7b", {"ep": 8, "pp": 2, "dp": 16, "moe_dispatcher": "allgather"}),
        ("mixtral-8x7b", {"tp": 2, "sequence_parallel": True, "etp": 2, "ep": 4, "dp": 16}),
        ("mixtral-8x7b", {"ep": 8, "dp": 32, "moe_dispatcher": "deepep", "zero_stage": 3}),
        ("gpt2-xl", {"pp": 4, "dp": 8, "rank_order": "tp-cp-ep-pp-dp"}),
    ],
)
def test_groups_add_up_to_what_the_estimate_says(name: str, plan: dict[str, Any]) -> None:
    """Where the plan hides nothing, each part of the time is the sum of its groups' transfers."""
    model = CostModel(model_of(name), h100s(4, tier("nic", None)), TRAINING)
    row = ParallelPlan(**{**OPEN, **plan})
    found = model.traffic(row)
    parts = model.evaluate(Plans.from_rows([row])).time_parts_s
    for part, groups in PRICED.items():
        own = [one.seconds for one in found if one.name in groups]
        assert parts[part][0] == pytest.approx(max(sum(own)) if own else 0.0, rel=1e-9), part
    sends = next((one for one in found if one.name == "pp"), None)
    waits = 0.0
    if sends is not None:
        micro_batches = TRAINING.global_batch_size / row.dp
        waits = float(sends.seconds[0]) * (1 + (row.pp - 1) / micro_batches)
    assert parts["pp_comm"][0] == pytest.approx(waits)


def test_what_hides_is_counted_all_the_same() -> None:
    """Overlap changes the time, not the bytes."""
    cluster = h100s(4, tier("nic", None))
    shown = traffic(cluster, **{**OPEN, "runtime": "megatron"}, tp=4, pp=2, dp=4)
    hidden = traffic(cluster, tp=4, pp=2, dp=4)
    for name, one in hidden.items():
        assert one.link_bytes == pytest.approx(shown[name].link_bytes)
        assert one.seconds == pytest.approx(shown[name].seconds)
