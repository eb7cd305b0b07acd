"""The step, ZeRO traffic and offload in seconds, by hand on machines with round numbers."""

from __future__ import annotations

import pytest

from cost_models.catalog.hardware import parse_shorthand
from cost_models.data_parallel import bucket_parameters
from cost_models.estimate import CostModel
from cost_models.parameters import total_parameters
from cost_models.plans import ParallelPlan, Plans
from cost_models.runtimes import RUNTIMES
from cost_models.spec import ClusterSpec, ModelSpec, TrainingSpec
from cost_models.synchronisation import optimizer_step_bytes
from tests.fixtures.layers import kept_and_dropped

MODEL = ModelSpec(num_layers=4, hidden_size=1024, num_attention_heads=16, vocab_size=8192)
PARAMETERS = total_parameters(MODEL)
TRAINING = TrainingSpec(seq_length=512, global_batch_size=8)


def node(accelerators: int, **changes: object) -> ClusterSpec:
    """One node of H100s, changed."""
    cluster = parse_shorthand(f"1x{accelerators}xh100-sxm")
    group = cluster.groups[0].model_copy(update=changes)
    return cluster.model_copy(update={"groups": (group,)})


def parts(
    cluster: ClusterSpec, training: TrainingSpec = TRAINING, **plan: object
) -> dict[str, float]:
    rows = Plans.from_rows([ParallelPlan.model_validate(plan)])
    found = CostModel(MODEL, cluster, training).evaluate(rows)
    return {name: float(value[0]) for name, value in found.time_parts_s.items()}


@pytest.mark.parametrize(
    ("runtime", "changes", "moved"),
    [
        # Three fp32 states and back 24, gradient 4, norm and clipping 12, master, weight, clearing.
        ("megatron", {}, 24 + 4 + 12 + 4 + 2 + 4),
        ("torch", {}, 24 + 4 + 12),
        # Half-precision gradients: read 2, written 4, unscaled 8; cleared 2.
        ("megatron", {"gradient_dtype": "bf16"}, 24 + 4 + 12 + 14 + 4 + 2 + 2),
        ("megatron", {"optimizer": "sgd"}, 16 + 4 + 12 + 4 + 2 + 4),
        ("megatron", {"precision": "fp32"}, 16 + 4 + 12 + 4 + 4 + 4),
    ],
)
def test_bytes_of_the_step(runtime: str, changes: dict[str, str], moved: int) -> None:
    training = TrainingSpec.model_validate(TRAINING.model_dump() | changes)
    assert optimizer_step_bytes(training, RUNTIMES[runtime]) == moved


@pytest.mark.parametrize(("ranks", "zero", "share"), [(1, 0, 1), (1, 1, 1), (4, 0, 1), (4, 1, 4)])
def test_the_step_reads_and_writes_the_ranks_own_share(ranks: int, zero: int, share: int) -> None:
    """At 85 % of the bandwidth of memory, 3.35 TB/s."""
    found = parts(node(ranks), dp=ranks, zero_stage=zero)["optimizer"]
    assert found == pytest.approx(50 * PARAMETERS / share / (0.85 * 3.35e12), rel=1e-3)


@pytest.mark.parametrize(("ranks", "zero", "share"), [(1, 0, 1), (2, 0, 1), (2, 1, 2)])
@pytest.mark.parametrize("gradient_bytes", [2, 4])
def test_an_offloaded_step_runs_on_the_hosts_processors(
    ranks: int, zero: int, share: int, gradient_bytes: int
) -> None:
    """Gradients down and 2-byte weights up at 1 GB/s; 4e9 parameters per second and node."""
    training = TRAINING.model_copy(
        update={"gradient_dtype": {2: "bf16", 4: "fp32"}[gradient_bytes]}
    )
    found = parts(
        node(ranks, host_link_bytes_per_s=1e9), training, dp=ranks, zero_stage=zero,
        offload_optimizer=True,
    )  # fmt: skip
    assert found["optimizer"] == 0
    each = (gradient_bytes + 2) / 1e9 + ranks / 4e9
    assert found["offload"] == pytest.approx(PARAMETERS / share * each, rel=1e-9)


def test_shards_in_host_memory_pass_beside_the_kernels() -> None:
    """Of each micro-batch 2-byte weights twice and 4-byte gradients once, less its passes."""
    plan = {"dp": 2, "zero_stage": 3, "runtime": "torch", "micro_batch_size": 2}
    slow, fast = (
        parts(node(2, host_link_bytes_per_s=link), **plan, offload_optimizer=True)
        for link in (1e8, 1e15)
    )
    own, step_s = PARAMETERS / 2, PARAMETERS / 2 * 2 / 4e9
    passes = slow["forward"] + slow["backward"]
    moved_s = 2 * own * (2 * 2 + 4) / 1e8
    assert slow["offload"] == pytest.approx(moved_s - passes + step_s, rel=1e-9)
    assert fast["offload"] == pytest.approx(step_s, rel=1e-9)


@pytest.mark.parametrize(
    ("optimizer", "state_bytes"), [("paged_adam", 8), ("paged_adam_8bit", 2 + 8 / 256)]
)
def test_paged_states_pass_where_the_rest_of_a_step_leaves_them_no_room(
    optimizer: str, state_bytes: float
) -> None:
    training = TRAINING.model_copy(update={"optimizer": optimizer})
    plans = Plans.from_rows([ParallelPlan(runtime="torch")])
    spacious = node(1, host_link_bytes_per_s=1e9)
    needed = float(CostModel(MODEL, spacious, training).needed_bytes(plans)[0])
    assert parts(spacious, training, runtime="torch")["offload"] == 0
    card = spacious.groups[0].accelerator
    for free in (1.5, 0.0):
        less = card.model_copy(update={"memory_bytes": needed + free * PARAMETERS})
        found = parts(
            node(1, host_link_bytes_per_s=1e9, accelerator=less), training, runtime="torch"
        )
        passing = (state_bytes - free) * PARAMETERS
        assert found["offload"] == pytest.approx(2 * passing / 1e9, rel=1e-4)


def test_offloaded_tensors_show_where_they_outlast_the_kernels() -> None:
    """Each way of each of the 4 micro-batches: what 4 layers save, less the pass above it."""
    plan = {"micro_batch_size": 2, "offload_activations": True}
    saved = 4 * kept_and_dropped(MODEL, TRAINING, micro_batch_size=2)[0]
    slow = parts(node(1, host_link_bytes_per_s=1e8), **plan)
    each_s = slow["forward"] + slow["backward"]
    assert slow["offload"] == pytest.approx(4 * 2 * saved / 1e8 - each_s, rel=1e-9)
    fast = parts(node(1, host_link_bytes_per_s=1e15), **plan)
    assert fast["offload"] == 0
    some = parts(node(1, host_link_bytes_per_s=1e8), **plan, offload_num_layers=3)
    assert some["offload"] == pytest.approx(4 * 2 * 3 / 4 * saved / 1e8 - each_s, rel=1e-9)
    # Of a recomputed layer only its input leaves: 2 bytes x 1024 x 1024.
    again = parts(
        node(1, host_link_bytes_per_s=1e8), **plan, recompute="full", recompute_num_layers=1
    )
    inside = again["forward"] + again["backward"] + again["recompute"]
    one = 3 * saved / 4 + 2 * 1024 * 1024
    assert again["offload"] == pytest.approx(4 * 2 * one / 1e8 - inside, rel=1e-9)


def test_buckets_grow_with_the_ranks() -> None:
    assert [float(bucket_parameters(ranks)) for ranks in (1, 40, 64)] == [40e6, 40e6, 64e6]


def test_an_exposed_reduction_is_no_longer_than_all_of_it_and_no_shorter_than_its_end() -> None:
    """Replicas: 4-byte gradients over a slow link; overlap hides some, never the last bucket."""
    plan = {"dp": 8, "zero_stage": 0, "overlap_param_gather": False}
    tiers = parse_shorthand("1x8xh100-sxm").groups[0].network
    slow = tuple(tier.model_copy(update={"bandwidth_bytes_per_s": 1e9}) for tier in tiers)
    shown = parts(node(8, network=slow), **plan, overlap_grad_reduce=False)["dp_comm"]
    # A ring sends each byte twice but for the rank's own share.
    assert shown >= 2 * 7 / 8 * 4 * PARAMETERS / 1e9
    hidden = parts(node(8, network=slow), **plan, overlap_grad_reduce=True)["dp_comm"]
    assert 40e6 / PARAMETERS * shown <= hidden < shown
