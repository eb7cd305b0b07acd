"""Seconds of single kernels: ratios that were published, whatever the rates of the machine."""

from __future__ import annotations

import pytest

from cost_models.catalog.hardware import parse_shorthand
from cost_models.estimate import CostModel
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import MLASpec, ModelSpec, MoESpec, TrainingSpec

MODEL = ModelSpec(
    num_layers=2, hidden_size=8192, num_attention_heads=64, vocab_size=32000, norm="rmsnorm"
)
PASSES_PER_S = 0.75 * 3.35e12  # bytes per second, of the H100's in large passes


def kernels(
    model: ModelSpec = MODEL,
    cluster: str = "1x8xh100-sxm",
    precision: str = "bf16",
    fp8_recipe: str = "tensorwise",
    gradient_dtype: str = "fp32",
    **plan: object,
) -> dict[str, tuple[float, float, float]]:
    """Seconds forward, of both gradients and of the weights' own, by kernel."""
    training = TrainingSpec.model_validate(
        {
            "seq_length": 8192,
            "global_batch_size": 8,
            "precision": precision,
            "fp8_recipe": fp8_recipe,
            "gradient_dtype": gradient_dtype,
        }
    )
    rows = Plans.from_rows([ParallelPlan.model_validate(plan)])
    found = CostModel(model, parse_shorthand(cluster), training).evaluate(rows).kernels[0]
    return {
        time.kernel.name: tuple(
            float(max(value)) if getattr(value, "ndim", 0) else float(value)
            for value in (time.forward_s, time.backward_s, time.weight_gradient_s)
        )  # type: ignore[misc]
        for time in found
    }  # fmt: skip


def test_the_first_flash_attention_is_slower_by_what_the_second_gained() -> None:
    """1.4 times forward and 2 times backward."""
    first, second = (kernels(attention_kernel=k)["attention"] for k in ("flash1", "flash2"))
    assert first[0] == pytest.approx(1.4 * second[0], rel=1e-12)
    assert first[1] == pytest.approx(2.0 * second[1], rel=1e-12)
    assert kernels()["attention"][0] <= second[0]


def test_before_ampere_fused_attention_is_of_the_first_generation() -> None:
    older = {"cluster": "1x8xv100-sxm2-32gb", "precision": "fp16"}
    times = [
        kernels(**older, attention_kernel=kernel)["attention"]
        for kernel in ("flash", "flash2", "flash1")
    ]
    assert times[0] == times[1] == times[2]
    newer = kernels(cluster="1x8xa100-sxm", precision="fp16")["attention"]
    assert times[0][1] / times[0][0] == pytest.approx(newer[1] / newer[0] * 2.0 / 1.4, rel=0.1)


def test_flash_attention_takes_no_time_beside_the_unfused_one() -> None:
    flash, unfused = kernels(), kernels(attention_kernel="unfused")
    core = {"q k^T", "softmax", "p v", "context transpose"}
    assert {name for name in flash if flash[name][0] > 0 == unfused[name][0]} == {"attention"}
    assert {name for name in flash if flash[name][0] == 0 < unfused[name][0]} == core
    # Products of two activations have no weights: all of it is the inputs' gradient.
    assert unfused["q k^T"][2] == 0.0 < flash["qkv"][2] < flash["qkv"][1]


def test_heads_of_odd_size_leave_the_tensor_cores_idle() -> None:
    """60 elements are not a multiple of 16 bytes: a sixteenth of the rate; 64 are."""
    even, odd = (
        kernels(
            MODEL.model_copy(update={"head_dim": size}), attention_kernel="unfused",
        )["q k^T"][0]
        for size in (64, 60)
    )  # fmt: skip
    assert odd > 4 * even


def test_widening_is_slower_than_memory_on_an_h200_and_not_on_an_l40s() -> None:
    """Inputs of three products are narrowed; their gradients are widened, at 1.75 TB/s of an H200's
    132 multiprocessors, and added up in fp32 (2 x 12 bytes beside 3 x 6).
    """

    def times(cluster: str) -> tuple[float, float]:
        found = kernels(cluster=cluster, runtime="transformers", zero_stage=0)
        return found["qkv input casts"][:2]

    narrowed, backward = times("1x8xh200")
    widened = 3 * 6.0 * 8192 * 8192 / 1.75e12
    assert backward == pytest.approx(widened + narrowed * 24 / 18, rel=0.02)
    assert widened > 2.0 * narrowed
    narrowed, backward = times("1x8xl40s")
    assert backward == pytest.approx(narrowed * 42 / 18, rel=0.02)


@pytest.mark.parametrize(("cluster", "slower"), [("1x8xh100-sxm", 3.5), ("1x8xtpu-v5p", 1.0)])
def test_rows_of_odd_width_are_read_by_slower_kernels(cluster: str, slower: float) -> None:
    """28,676 halves are not a multiple of 16 bytes: 130.56 against 36.96 us on an H100."""
    even, odd = (
        kernels(MODEL.model_copy(update={"ffn_hidden_size": width}), cluster)
        for width in (28_680, 28_676)
    )
    for side in (0, 1):
        assert odd["fc1"][side] / even["fc1"][side] == pytest.approx(slower, rel=0.05)
        assert odd["qkv"][side] == even["qkv"][side]


@pytest.mark.parametrize("name", ["qkv", "attention out", "fc1", "fc2"])
def test_fp8_products_are_as_fast_as_their_recipe_lets_them(name: str) -> None:
    """Beside the same casts: 1 / 0.64 and 1 / 0.9 of the seconds with one scale per tensor."""
    one, same, rows, blocks = (
        kernels(precision="fp8", fp8_recipe=recipe)[name][0]
        for recipe in ("tensorwise", "delayed", "rowwise", "blockwise")
    )
    assert same == one
    assert (rows - one) / (blocks - one) == pytest.approx((1 / 0.64 - 1) / (1 / 0.9 - 1), rel=1e-6)
    assert one < kernels()[name][0]


def test_fp4_products_are_faster_and_their_attention_is_not() -> None:
    bf16, fp8, fp4 = (
        kernels(cluster="1x8xb200-sxm", precision=precision) for precision in ("bf16", "fp8", "fp4")
    )
    for name in ("qkv", "fc1", "fc2"):
        assert fp4[name][0] < fp8[name][0] < bf16[name][0]
    assert fp4["attention"] == fp8["attention"] == bf16["attention"]


@pytest.mark.parametrize("name", ["qkv", "fc1"])
def test_a_sharded_input_is_cast_before_it_is_gathered(name: str) -> None:
    """Where one scale holds for the tensor each of 8 ranks casts an eighth: it saves 7/8 of it."""
    plan = {"tp": 8, "precision": "fp8"}
    apart, whole = (
        kernels(**plan, fp8_recipe="tensorwise", sequence_parallel=sharded)[name][0]
        for sharded in (True, False)
    )
    blocks = [
        kernels(**plan, fp8_recipe="blockwise", sequence_parallel=sharded)[name][0]
        for sharded in (True, False)
    ]
    assert apart < whole
    assert blocks[0] == blocks[1]
    cast_s = (whole - apart) * 8 / 7
    assert cast_s == pytest.approx(4 * 8192 * 8192 / PASSES_PER_S, rel=1e-3)


def test_adding_gradients_apart_costs_a_pass_of_its_own() -> None:
    """DeepSpeed reads 2 and 4 bytes of a gradient and writes 4; Megatron adds inside the GEMM."""
    fused, apart = (kernels(runtime=r)["fc1"][2] for r in ("megatron", "deepspeed"))
    elements = 8192 * 4 * 8192
    assert apart - fused == pytest.approx(10 * elements / PASSES_PER_S, rel=1e-3)


def test_narrow_values_slow_the_backward_of_latent_attention() -> None:
    """Heads of 192 and 128 run backward at 0.8 of the rate of equal heads."""

    def backward(value_dim: int) -> float:
        mla = MLASpec(
            kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=64, qk_rope_head_dim=64,
            v_head_dim=value_dim,
        )  # fmt: skip
        model = MODEL.model_copy(update={"mla": mla, "head_dim": 128})
        return kernels(model)["attention"][1]

    # 128 + 64 of 128 + 128 of the products, at 0.8.
    assert backward(64) / backward(128) == pytest.approx(0.75 / 0.8, rel=1e-3)


def test_the_product_of_one_local_expert_is_a_plain_one() -> None:
    """Transformer Engine runs each product of a group as cuBLAS's own; XLA one grouped kernel."""
    moe = MoESpec(num_experts=8, top_k=2, expert_ffn_hidden_size=8192)
    wide = MODEL.model_copy(update={"moe": moe})
    dense = MODEL.model_copy(update={"ffn_hidden_size": 8192})
    # 8,192 tokens on each of eight ranks, two copies of each over eight experts.
    alone, xla = (
        kernels(wide, "1x8xh100-sxm", dp=8, ep=8, runtime=runtime, micro_batch_size=1)
        for runtime in ("megatron", "jax")
    )
    plain = kernels(dense, "1x8xh100-sxm", dp=8, micro_batch_size=2, runtime="megatron")
    assert alone["expert fc1"] == pytest.approx(plain["fc1"], rel=1e-9)
    assert xla["expert fc1"][0] > 1.1 * alone["expert fc1"][0]
