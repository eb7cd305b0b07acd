"""Activation bytes against Table 2 of Korthikanti et al. (arXiv 2205.05198), to the byte."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.activation_memory import (
    activation_bytes,
    layer_input_bytes,
    saved_tensors,
    tensor_bytes,
)
from cost_models.dims import dims
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import MLASpec, ModelSpec, MoESpec, TrainingSpec
from tests.fixtures.layers import kept_and_dropped, one_micro_batch

# (hidden, heads, sequence, micro-batch): 22B, 175B and 1T of the paper's Table 3.
GPT_SIZES = [(6144, 64, 2048, 4), (12288, 96, 2048, 1), (25600, 160, 2048, 1)]


def gpt(hidden: int, heads: int) -> ModelSpec:
    return ModelSpec(
        num_layers=4,
        hidden_size=hidden,
        num_attention_heads=heads,
        vocab_size=51200,
        position="learned",
        max_position_embeddings=2048,
        hidden_dropout=0.1,
        attention_dropout=0.1,
    )


def layer_bytes(
    model: ModelSpec, seq_length: int, kind: str = "dense", precision: str = "bf16", **plan: object
) -> float:
    training = TrainingSpec.model_validate(
        {"seq_length": seq_length, "global_batch_size": 64, "precision": precision}
    )
    return kept_and_dropped(model, training, kind, **plan)[0]


@pytest.mark.parametrize("t", [1, 2, 4, 8])
@pytest.mark.parametrize(("h", "a", "s", "b"), GPT_SIZES)
class TestTable2:
    """Rows in the paper's order; the attention is the paper's, unfused."""

    def plan(self, t: int, b: int, **more: object) -> dict[str, object]:
        return {"tp": t, "micro_batch_size": b, "attention_kernel": "unfused", **more}

    def test_no_parallelism(self, h: int, a: int, s: int, b: int, t: int) -> None:
        assert layer_bytes(gpt(h, a), s, **self.plan(1, b)) == s * b * (34 * h + 5 * a * s)

    def test_tensor_parallel(self, h: int, a: int, s: int, b: int, t: int) -> None:
        expected = s * b * (10 * h + 24 * h // t + 5 * a * s // t)
        assert layer_bytes(gpt(h, a), s, **self.plan(t, b)) == expected

    def test_tensor_and_sequence_parallel(self, h: int, a: int, s: int, b: int, t: int) -> None:
        expected = s * b * (34 * h + 5 * a * s) // t
        plan = self.plan(t, b, sequence_parallel=t > 1)
        assert layer_bytes(gpt(h, a), s, **plan) == expected

    def test_tensor_parallel_selective(self, h: int, a: int, s: int, b: int, t: int) -> None:
        plan = self.plan(t, b, recompute="selective", recompute_modules=("core_attn",))
        assert layer_bytes(gpt(h, a), s, **plan) == s * b * (10 * h + 24 * h // t)

    def test_tensor_sequence_selective(self, h: int, a: int, s: int, b: int, t: int) -> None:
        plan = self.plan(
            t,
            b,
            sequence_parallel=t > 1,
            recompute="selective",
            recompute_modules=("core_attn",),
        )
        assert layer_bytes(gpt(h, a), s, **plan) == 34 * s * b * h // t

    @pytest.mark.parametrize("sequence_parallel", [False, True])
    def test_full_recompute(
        self, h: int, a: int, s: int, b: int, t: int, sequence_parallel: bool
    ) -> None:
        """The paper's 2sbh is without sequence parallelism; with it 2sbh/t."""
        training = TrainingSpec(seq_length=s, global_batch_size=64)
        plan = ParallelPlan(tp=t, micro_batch_size=b, sequence_parallel=sequence_parallel and t > 1)
        d = dims(training, Plans.from_rows([plan]))
        expected = 2 * s * b * h // (t if sequence_parallel else 1)
        assert float(np.max(layer_input_bytes(gpt(h, a), d))) == expected


def test_fp32_doubles_all_but_masks() -> None:
    """The 2-byte terms of Table 2 twice; its masks (2sbh and as^2b) stay one byte each."""
    h, a, s, _ = GPT_SIZES[0]
    half = layer_bytes(gpt(h, a), s, attention_kernel="unfused")
    masks = 2 * s * h + a * s * s
    assert layer_bytes(gpt(h, a), s, precision="fp32", attention_kernel="unfused") == (
        2 * half - masks
    )


@pytest.mark.parametrize("t", [2, 4, 8])
def test_dtensor_keeps_the_gathered_inputs(t: int) -> None:
    """DTensor saves both gathered inputs at full length: 30/t + 4 instead of 34/t.

    And torch's LayerNorm the mean and 1/deviation of each row, in fp32.
    """
    h, a, s, b = GPT_SIZES[1]
    plan = {"tp": t, "sequence_parallel": True, "micro_batch_size": b, "runtime": "torch"}
    flash = layer_bytes(gpt(h, a), s, **plan)
    log_sum_exp = 4 * a * s * b // t
    statistics = 2 * 2 * 4 * s * b // t
    assert flash == s * b * h * 30 // t + 4 * s * b * h + log_sum_exp + statistics


@pytest.mark.parametrize("compiled", [False, True])
def test_torch_saves_a_gated_mlps_gate_after_its_activation_too(compiled: bool) -> None:
    """Llama-3-70B on one GPU: 4 tensors of the MLP's width, 3 where torch.compile redoes one."""
    model = ModelSpec(
        num_layers=2, hidden_size=8192, num_attention_heads=64, num_query_groups=8,
        ffn_hidden_size=28672, gated_mlp=True, vocab_size=128256, norm="rmsnorm",
    )  # fmt: skip
    tokens, statistics = 8192, 2 * 4
    kept = 8 * 8192 + 2 * (8192 + 2 * 1024) + 4 * 64 + 2 * 8192 + statistics
    mlp = (6 if compiled else 8) * 28672
    assert layer_bytes(model, tokens, runtime="torch", compile=compiled) == tokens * (kept + mlp)


def test_torchs_unfused_attention_saves_fp32() -> None:
    h, a, s, b = GPT_SIZES[1]
    plain = gpt(h, a).model_copy(update={"hidden_dropout": 0.0, "attention_dropout": 0.0})
    flash, unfused = (
        layer_bytes(plain, s, runtime="torch", attention_kernel=kernel)
        for kernel in ("flash", "unfused")
    )
    square, inputs = 4 * a * s * s, 3 * 2 * s * h
    assert unfused - flash == b * (square + inputs - 4 * a * s)


def test_flash_attention_keeps_the_log_sum_exp_instead_of_the_square() -> None:
    h, a, s, b = GPT_SIZES[1]
    assert layer_bytes(gpt(h, a), s, micro_batch_size=b) == 34 * s * b * h + 4 * a * s * b


def test_gated_grouped_query_layer() -> None:
    """Llama-3-70B, by hand: norms 8h, q/k/v, log-sum-exp, output, fc1 (gated), activation."""
    model = ModelSpec(
        num_layers=2, hidden_size=8192, num_attention_heads=64, num_query_groups=8,
        ffn_hidden_size=28672, gated_mlp=True, vocab_size=128256, norm="rmsnorm",
    )  # fmt: skip
    tokens = 8192
    kept = 8 * 8192 + 2 * (8192 + 2 * 1024) + 4 * 64 + 2 * 8192 + 6 * 28672
    assert layer_bytes(model, tokens) == tokens * kept


def test_every_named_tensor_is_counted_once() -> None:
    model = ModelSpec(
        num_layers=2, hidden_size=512, num_attention_heads=8, vocab_size=1000, gated_mlp=True,
        norm="rmsnorm", head_dim=96,
        mla=MLASpec(
            kv_lora_rank=64, q_lora_rank=128, qk_nope_head_dim=64, qk_rope_head_dim=32,
            v_head_dim=64,
        ),
        moe=MoESpec(
            num_experts=8, top_k=2, expert_ffn_hidden_size=128,
            shared_expert_ffn_hidden_size=128, num_dense_layers=1,
        ),
    )  # fmt: skip
    micro = one_micro_batch(model, TrainingSpec(seq_length=256, global_batch_size=8))
    assert [kind.name for kind in micro.kinds] == ["dense", "moe"]
    for records in micro.layers:
        table = list(saved_tensors(records))
        names = [tensor.name for tensor in table]
        assert len(names) == len(set(names)) > 10
        total = sum(float(np.max(tensor_bytes(tensor, micro.d))) for tensor in table)
        kept, dropped = activation_bytes(records, micro.d)
        assert (total, 0.0) == (float(np.max(kept)), float(np.max(dropped)))


@pytest.mark.parametrize(
    ("modules", "names"),
    [
        (("layernorm",), {"attention norm output", "mlp norm output"}),
        (("moe_act",), {"expert activation output"}),
        (("mla_up_proj",), {"query", "key", "value"}),
        (("shared_experts",), {"shared fc1 output", "shared activation output"}),
        (
            ("moe",),
            {
                "router scores", "expert input", "expert fc1 output",
                "expert activation output", "shared fc1 output", "shared activation output",
            },
        ),
    ],
)  # fmt: skip
def test_selective_recompute_drops_its_own_tensors(
    modules: tuple[str, ...], names: set[str]
) -> None:
    model = ModelSpec(
        num_layers=2, hidden_size=512, num_attention_heads=8, vocab_size=1000, gated_mlp=True,
        norm="rmsnorm", head_dim=96,
        mla=MLASpec(
            kv_lora_rank=64, q_lora_rank=128, qk_nope_head_dim=64, qk_rope_head_dim=32,
            v_head_dim=64,
        ),
        moe=MoESpec(
            num_experts=8, top_k=2, expert_ffn_hidden_size=128, shared_expert_ffn_hidden_size=128
        ),
    )  # fmt: skip
    training = TrainingSpec(seq_length=256, global_batch_size=8)

    def table(**plan: object) -> dict[str, float]:
        micro = one_micro_batch(model, training, **plan)
        tensors = saved_tensors(micro.layers[0])
        return {t.name: float(np.max(tensor_bytes(t, micro.d))) for t in tensors}

    plan = {"recompute": "selective", "recompute_modules": modules}
    plain, recomputed = table(), table(**plan)
    _, dropped = kept_and_dropped(model, training, "moe", **plan)
    assert dropped == sum(plain[name] for name in names)
    assert {name for name in plain if recomputed[name] < plain[name]} == names
    assert all(recomputed[name] == 0 for name in names)


@pytest.mark.parametrize(("runtime", "copies"), [("megatron", 0), ("torch", 2), ("deepspeed", 2)])
def test_weights_of_copies_inside_of_experts_leave_their_outputs(runtime: str, copies: int) -> None:
    """Megatron-Core 0.13 weights what an expert's activation puts out, not what it returns."""
    model = ModelSpec(
        num_layers=2, hidden_size=512, num_attention_heads=8, vocab_size=1000,
        moe=MoESpec(num_experts=8, top_k=2, expert_ffn_hidden_size=128),
    )  # fmt: skip
    training = TrainingSpec(seq_length=256, global_batch_size=8)
    micro = one_micro_batch(model, training, runtime=runtime)
    tensors = {t.name: tensor_bytes(t, micro.d) for t in saved_tensors(micro.layers[0])}
    assert np.max(tensors["combine input"]) == 256 * copies * 512 * 2


@pytest.mark.parametrize("runtime", ["megatron", "torch"])
def test_transformer_engine_keeps_what_it_cast(runtime: str) -> None:
    """fp8: two norm outputs and the activation's at one byte, attention's output in both."""
    model = gpt(4096, 32)

    def kept(precision: str) -> float:
        training = TrainingSpec.model_validate(
            {"seq_length": 2048, "global_batch_size": 64, "precision": precision}
        )
        return kept_and_dropped(model, training, runtime=runtime)[0]

    hidden, ffn = model.hidden_size, model.ffn_hidden_size
    saved = 2048 * (2 * hidden + ffn - hidden) if runtime == "megatron" else 0
    assert kept("bf16") - kept("fp8") == saved


@pytest.mark.parametrize("modules", [("op",), ("layernorm", "mlp", "core_attn")])
def test_selective_recompute_leaves_the_ends_of_the_model_whole(modules: tuple[str, ...]) -> None:
    """Embedding and head stand outside of the layers that are run again."""
    training = TrainingSpec(seq_length=2048, global_batch_size=8)
    plan = {"runtime": "torch", "tp": 2, "sequence_parallel": True}
    plain, again = (
        one_micro_batch(gpt(1024, 16), training, **plan, **more)
        for more in ({}, {"recompute": "selective", "recompute_modules": modules})
    )
    for part in ("embedding", "head"):
        kept = float(np.max(activation_bytes(getattr(plain, part), plain.d)[0]))
        assert kept > 0
        found = activation_bytes(getattr(again, part), again.d)
        assert [float(np.max(amount)) for amount in found] == [kept, 0.0]


def test_parallel_branches_read_one_input() -> None:
    """Two norms save it once, and one norm's output is both branches' input."""
    size = {"num_layers": 2, "hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 8192}
    serial = ModelSpec(**size, ffn_hidden_size=4096)
    parallel = serial.model_copy(update={"parallel_residual": True})
    shared = parallel.model_copy(update={"norms_per_layer": 1})
    kept = [layer_bytes(model, 1024, runtime="torch") for model in (serial, parallel, shared)]
    rows = 2 * 1024 * 1024
    assert kept[0] - kept[1] == rows
    # Mean and 1/deviation of each token besides.
    assert kept[1] - kept[2] == rows + 2 * 4 * 1024
