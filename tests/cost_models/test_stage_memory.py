"""Memory of a stage: against torch's own counters, by hand, and the laws its parts obey."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from cost_models.activation_memory import micro_batch, micro_batch_bytes
from cost_models.catalog.hardware import parse_shorthand
from cost_models.catalog.models import model as preset
from cost_models.cost_parts import MEMORY_PARTS, STATE_PARTS, STEP_PARTS
from cost_models.estimate import CostModel
from cost_models.overheads import gap_bytes, returnable_bytes, stuck_bytes
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import ClusterSpec, ModelSpec, TrainingSpec
from cost_models.stage_memory import StageMemory
from tests.fixtures.ideal import estimate
from tests.fixtures.layers import kept_and_dropped, one_micro_batch
from tests.fixtures.spaces import LEAST, some_plans
from tests.fixtures.traits import GPT, TRAINING, WEIGHTS, F, H, V

GIB = 2.0**30
LLAMA = {"vocab_size": 128256, "gated_mlp": True, "norm": "rmsnorm"}
LLAMA_70B = ModelSpec.model_validate(
    {**LLAMA, "num_layers": 12, "hidden_size": 8192, "num_attention_heads": 64,
     "num_query_groups": 8, "ffn_hidden_size": 28672}
)  # fmt: skip
LLAMA_405B = ModelSpec.model_validate(
    {**LLAMA, "num_layers": 4, "hidden_size": 16384, "num_attention_heads": 128,
     "num_query_groups": 16, "ffn_hidden_size": 53248}
)  # fmt: skip
GPT_18B = ModelSpec(
    num_layers=6, hidden_size=14336, num_attention_heads=64, vocab_size=250880,
    tied_embeddings=True,
)  # fmt: skip


def deeper(model: ModelSpec, num_layers: int) -> ModelSpec:
    return ModelSpec.model_validate(model.model_dump() | {"num_layers": num_layers})


def memory(
    model: ModelSpec,
    plan: ParallelPlan,
    cluster: str | ClusterSpec = "1x8xb200-sxm",
    batch: int = 16,
    seq_length: int = 4096,
    **training: object,
) -> StageMemory:
    """Every stage of one plan."""
    spec = parse_shorthand(cluster) if isinstance(cluster, str) else cluster
    asked = {"seq_length": seq_length, "global_batch_size": batch, **training}
    cost = CostModel(model, spec, TrainingSpec.model_validate(asked))
    return cost.evaluate(Plans.from_rows([plan]), all_stages=True).memory


@pytest.mark.parametrize(
    ("model", "degrees", "measured_gib"),
    [
        (LLAMA_70B, {"pp": 2, "dp": 4}, (66.55, 62.97)),
        (LLAMA_70B, {"tp": 2, "dp": 4}, (60.68,)),
        (LLAMA_70B, {"tp": 8, "dp": 1}, (28.29,)),
        (LLAMA_405B, {"pp": 2, "dp": 4}, (86.61, 87.08)),
        (LLAMA_405B, {"tp": 4, "dp": 2}, (52.89,)),
    ],
)
def test_each_stage_as_torch_counted_it(
    model: ModelSpec, degrees: dict[str, int], measured_gib: tuple[float, ...]
) -> None:
    """max_memory_allocated of the ranks of a stage, Megatron-LM on eight B200 (SimuMax 1.2)."""
    fused = {"cross_entropy": "in_place", "sequence_parallel": degrees.get("tp", 1) > 1}
    held = memory(model, ParallelPlan.model_validate({**degrees, **fused}))
    assert held.allocated_bytes[:, 0] / GIB == pytest.approx(measured_gib, rel=0.01)


@pytest.mark.parametrize("runtime", ["megatron", "torch", "deepspeed", "megatron-2022"])
@pytest.mark.parametrize("degrees", [{"pp": 4, "dp": 2}, {"dp": 8, "zero_stage": 3}])
def test_the_parts_add_up(runtime: str, degrees: dict[str, int]) -> None:
    plan = ParallelPlan.model_validate({"runtime": runtime, **degrees})
    held = memory(preset("llama-3.1-8b"), plan)
    assert tuple(held.parts) == tuple(MEMORY_PARTS)
    for names, total in (
        ((*STATE_PARTS, *STEP_PARTS), held.allocated_bytes),
        ((*STATE_PARTS, *STEP_PARTS, "fragmentation"), held.reserved_bytes),
        (MEMORY_PARTS, held.total_bytes),
    ):
        assert sum(held.parts[name] for name in names) == pytest.approx(total, rel=1e-12)
    assert np.all(held.allocated_bytes < held.reserved_bytes)
    assert np.all(held.reserved_bytes < held.total_bytes)


def test_a_given_reserve_takes_the_place_of_what_is_computed() -> None:
    cluster = parse_shorthand("1x8xb200-sxm")
    given = cluster.model_copy(update={"reserved_bytes_per_accelerator": 3e9})
    plan = ParallelPlan(dp=8)
    held, free = (memory(LLAMA_70B, plan, spec) for spec in (given, cluster))
    assert held.total_bytes == pytest.approx(held.allocated_bytes + 3e9, rel=1e-15)
    assert held.allocated_bytes == free.allocated_bytes


def test_fsdp_holds_the_master_as_the_weight() -> None:
    """16 bytes per parameter over the ranks: fp32 weight, its gradient, two moments."""
    model = preset("llama-3.1-8b")
    held = memory(model, ParallelPlan(dp=8, zero_stage=3, runtime="torch"))
    states = sum(float(held.parts[name][0, 0]) for name in STATE_PARTS)
    assert states == pytest.approx(16.0 * 8.03e9 / 8, rel=1e-3)


@pytest.mark.parametrize(
    ("optimizer", "runtime", "state_bytes"),
    [("paged_adam", "torch", 0), ("paged_adam_8bit", "eager", 0), ("paged_adam", "deepspeed", 4)],
)
def test_paged_states_are_not_counted(optimizer: str, runtime: str, state_bytes: int) -> None:
    """Masters are: of the moments the driver takes what there is no room for."""
    training = TRAINING.model_copy(update={"optimizer": optimizer})
    held = estimate(GPT, training, runtime=runtime).memory
    assert held.parts["optimizer"][0, 0] == state_bytes * WEIGHTS


@pytest.mark.parametrize(("vocabulary", "largest"), [(V, V * H), (64, F * H)])
def test_an_optimizer_in_the_backward_pass_leaves_the_gradient_of_one_matrix(
    vocabulary: int, largest: int
) -> None:
    """That of the largest, in 4 bytes."""
    model = GPT.model_copy(update={"vocab_size": vocabulary})
    training = TRAINING.model_copy(update={"optimizer_in_backward": True, "global_batch_size": 1})
    held = estimate(model, training, runtime="nanotron").memory
    assert held.parts["gradients"][0, 0] == 4 * largest


def test_placeholders_are_one_per_shape() -> None:
    """Transformer Engine keeps a half-precision gradient per shape of a matrix, not per layer."""
    plan = ParallelPlan(dp=8, zero_stage=0)
    deep = deeper(LLAMA_70B, 24)
    pairs = [memory(model, plan, cluster="1x8xb300-sxm") for model in (LLAMA_70B, deep)]
    weights, gradients = (
        [float(held.parts[part][0, 0]) for held in pairs] for part in ("weights", "gradients")
    )
    beside = [g - 2.0 * w for g, w in zip(gradients, weights, strict=True)]
    h, f, v = 8192.0, 28672.0, 128256.0
    shapes = (64 + 16) * 128 * h + h * h + 2 * f * h + f * h + v * h
    assert beside == pytest.approx([2.0 * shapes] * 2, rel=1e-6)


def test_per_operator_recompute_keeps_every_second_product() -> None:
    """Llama-3 8B: input, q, v, attention output and log-sum-exp, gate; eager, down's output too."""
    model, training = preset("llama-3.1-8b"), TrainingSpec(seq_length=8192, global_batch_size=8)

    def kept(compiled: bool, recompute: bool = True) -> float:
        plan = ParallelPlan.model_validate(
            {"dp": 8, "runtime": "torch", "compile": compiled, "attention_kernel": "flash2"}
            | ({"recompute": "selective", "recompute_modules": ("op",)} if recompute else {})
        )
        return kept_and_dropped(model, training, **plan.model_dump())[0] / 8192

    compiled = 2 * (4096 + 4096 + 1024 + 4096 + 14336) + 4 * 32
    assert kept(True) == compiled
    assert kept(False) == compiled + 2 * 4096
    assert kept(True) < 0.5 * kept(True, recompute=False)


def test_per_operator_recompute_brings_the_rest_back_in_one_layer() -> None:
    model, training = preset("llama-3.1-8b"), TrainingSpec(seq_length=8192, global_batch_size=8)
    fields = {"dp": 8, "runtime": "torch", "compile": True}
    chosen = {**fields, "recompute": "selective", "recompute_modules": ("op",)}
    rows = Plans.from_rows([ParallelPlan.model_validate(f) for f in (fields, chosen)])
    block = micro_batch_bytes(model, micro_batch(model, training, rows), len(rows)).layers[0]
    assert block.dropped[0] == 0.0
    assert block.saved[1] + block.dropped[1] == block.saved[0]


def test_some_layers_wait_in_host_memory() -> None:
    """Of 8 layers 5 leave, each as another is done; two at least are there: in use, on its way."""

    def saved(**plan: object) -> float:
        found = memory(deeper(LLAMA_70B, 8), ParallelPlan.model_validate({"dp": 8, **plan}))
        return float(found.parts["activations"][0, 0])

    all_stay, all_leave = saved(), saved(offload_activations=True)
    each = all_stay / 8
    assert all_leave == pytest.approx(2 * each, rel=1e-9)
    for leave, stay in ((5, 3), (6, 2), (7, 2), (8, 2)):
        some = saved(offload_activations=True, offload_num_layers=leave)
        assert some == pytest.approx(stay * each, rel=1e-9)


def test_megatrons_fsdp_keeps_no_placeholders_and_no_transposed_weights() -> None:
    """Without fused accumulation; weights in fp8 as they stand, transposed of the layer in use."""
    fields = {"precision": "fp8", "fp8_param_gather": True}
    sharded, whole = (
        memory(LLAMA_70B, ParallelPlan(dp=8, zero_stage=zero), **fields) for zero in (3, 1)
    )
    blocks = memory(LLAMA_70B, ParallelPlan(dp=8, zero_stage=3), **fields, fp8_recipe="mxfp8")

    def part(found: StageMemory, name: str) -> float:
        return float(found.parts[name][0, 0])

    assert part(sharded, "weights") * 8 == pytest.approx(part(whole, "weights") / 2)
    assert part(blocks, "weights") * 8 == pytest.approx(part(whole, "weights"))
    assert part(blocks, "communication") > part(sharded, "communication")
    parameters = part(sharded, "weights") * 8
    assert part(sharded, "gradients") * 8 == pytest.approx(4.0 * parameters)


@pytest.mark.parametrize(
    ("runtime", "loss", "logit_bytes"),
    [
        ("megatron", "unfused", 6), ("megatron", "fused", 6), ("megatron", "in_place", 2),
        ("torch", "unfused", 14), ("torch", "fused", 4), ("torch", "in_place", 2),
    ],
)  # fmt: skip
def test_bytes_per_logit_of_each_loss(runtime: str, loss: str, logit_bytes: int) -> None:
    """Saved and transient together, beside three tensors of the head's hidden size."""
    model, training = preset("llama-3.1-8b"), TrainingSpec(seq_length=8192, global_batch_size=8)
    plan = ParallelPlan.model_validate({"dp": 8, "runtime": runtime, "cross_entropy": loss})
    amounts = micro_batch_bytes(model, one_micro_batch(model, training, **plan.model_dump()), 1)
    total = float(amounts.head_saved[0] + amounts.head_working[0])
    assert total == 8192 * (128256 * logit_bytes + 4 * 4096 * 2)


def test_deepspeed_steps_in_22_bytes_per_parameter() -> None:
    """fp16 without data parallelism: 2 + 2 + 12, and gradients flattened in fp16 and fp32."""
    plan = ParallelPlan(tp=8, runtime="deepspeed", recompute="full", recompute_num_layers=1,
                        attention_kernel="unfused", cross_entropy="unfused",
                        recompute_method="uniform")  # fmt: skip
    fp16 = {"precision": "fp16", "gradient_dtype": "fp16", "gradient_reduce_dtype": "fp16"}
    deep = deeper(GPT_18B, 10)
    few, many = (
        memory(model, plan, "1x8xb200-sxm", seq_length=2048, **fp16) for model in (GPT_18B, deep)
    )
    more = float((many.parts["weights"] - few.parts["weights"])[0, 0]) / 2.0
    growth = float((many.allocated_bytes - few.allocated_bytes)[0, 0])
    assert growth == pytest.approx(22.0 * more, rel=1e-3)


def test_empty_segments_give_way_and_stuck_gaps_do_not() -> None:
    gaps = gap_bytes(10.0, 0.3, 0.0, 0.0)
    stuck = float(stuck_bytes(gaps, 10.0, 0.0))
    assert (gaps, stuck) == (3.0, pytest.approx(0.8))
    others = 5.0 + gaps - stuck
    plenty, little, none = (
        stuck + float(returnable_bytes(stuck, others, room)) for room in (99.0, 4.0, 0.0)
    )
    assert (plenty, little, none) == (8.0, 4.0, stuck)
    assert stuck_bytes(gaps, 10.0, 1.0) == pytest.approx(2.9)  # full recompute
    assert stuck_bytes(0.5, 10.0, 0.0) == 0.5  # growing segments leave less
    assert [gap_bytes(10.0 * GIB, 0.3, 1.0, logits) for logits in (0.0, GIB, 9.0 * GIB)] == [
        GIB, 2.0 * GIB, 3.0 * GIB,
    ]  # fmt: skip


def test_more_groups_take_more_of_the_driver() -> None:
    one, data, both = (
        float(memory(LLAMA_70B, ParallelPlan.model_validate(f), c).parts["driver"][0, 0])
        for f, c in (
            ({}, "1x1xb300-sxm"), ({"dp": 8}, "1x8xb300-sxm"), ({"tp": 2, "dp": 4}, "1x8xb300-sxm")
        )
    )  # fmt: skip
    assert one == 1.5e9
    assert one < data < both


def test_stages_that_are_composed_alike_differ_in_what_their_schedule_keeps() -> None:
    """PipeDream stashes weights for each micro-batch in flight: p - r copies; activations too."""
    found = memory(GPT_18B, ParallelPlan(pp=6, schedule="pipedream", dp=1), "1x6xb200-sxm", 24)
    weights, activations = found.parts["weights"][:, 0], found.parts["activations"][:, 0]
    assert (weights[1:5] / weights[4]).tolist() == [2.5, 2.0, 1.5, 1.0]
    assert (activations[1:5] / activations[4]).tolist() == [2.5, 2.0, 1.5, 1.0]
    assert found.stage[:, 0].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt2", "gpt-oss-20b"])
def test_every_stage_of_a_plan_is_the_same_alone_as_in_a_batch(name: str) -> None:
    """At least 20 plans of the real space, pipelines of several lengths among them."""
    model, cluster = preset(name), parse_shorthand("2x4xh100-sxm")
    training = TrainingSpec(seq_length=1024, global_batch_size=64)
    draws = (some_plans(model, cluster, training, Random(f"{name} {i}")) for i in range(4))
    plans = sorted({plan for drawn in draws for plan in drawn}, key=repr)
    assert len(plans) >= LEAST
    assert len({plan.pp for plan in plans}) > 1
    cost = CostModel(model, cluster, training)
    together = cost.evaluate(Plans.from_rows(plans), all_stages=True).memory
    for i, plan in enumerate(plans):
        alone = cost.evaluate(Plans.from_rows([plan]), all_stages=True).memory
        assert alone.total_bytes.shape == (plan.pp, 1)
        for part, values in alone.parts.items():
            assert np.array_equal(values[:, 0], together.parts[part][: plan.pp, i]), part
        assert np.array_equal(alone.total_bytes[:, 0], together.total_bytes[: plan.pp, i])
        assert not together.total_bytes[plan.pp :, i].any()
        assert together.peak_bytes[i] == alone.total_bytes.max()
