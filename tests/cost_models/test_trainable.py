"""Frozen weights and adapters, against torch and by hand."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from cost_models.activation_memory import activation_bytes, tensor_bytes
from cost_models.blocks.records import Gemm, MemoryBoundKernel, SavedTensor, Split
from cost_models.catalog.models import model
from cost_models.estimate import CostModel
from cost_models.flops import forward_flop, step_flop
from cost_models.kernels import gemm_flop
from cost_models.layers import layers_of
from cost_models.parameters import total_parameters
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import ModelSpec, Part, TrainingSpec
from cost_models.trainable import INPUTS, NF4_BYTES, TrainableModel
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.layers import one_micro_batch

HIDDEN, FFN, HEADS, VOCAB, TOKENS, RANK = 64, 160, 4, 256, 32, 8
TINY = ModelSpec(
    num_layers=2, hidden_size=HIDDEN, num_attention_heads=HEADS, ffn_hidden_size=FFN,
    vocab_size=VOCAB, gated_mlp=True, norm="rmsnorm",
)  # fmt: skip
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def training(**fields: Any) -> TrainingSpec:
    return TrainingSpec(seq_length=TOKENS, global_batch_size=1, **fields)


class Adapted(nn.Module):
    """A frozen matrix with an adapter, as PEFT has it."""

    def __init__(self, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False).requires_grad_(False)
        self.down, self.up = (
            nn.Linear(inputs, RANK, bias=False),
            nn.Linear(RANK, outputs, bias=False),
        )
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = self.up(self.down(self.dropout(x))) * 2.0
        return self.base(x) + added


class Layer(nn.Module):
    """A layer of TINY with unfused attention, whose products are all counted."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (Adapted(HIDDEN, HIDDEN, dropout) for _ in range(4))
        self.gate, self.up = (Adapted(HIDDEN, FFN, dropout) for _ in range(2))
        self.down = Adapted(FFN, HIDDEN, dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.rms_norm(x, (HIDDEN,))
        q, k, v = (
            one(y).view(TOKENS, HEADS, -1).transpose(0, 1) for one in (self.q, self.k, self.v)
        )
        scores = (q @ k.transpose(1, 2)).softmax(-1)
        x = x + self.o((scores @ v).transpose(0, 1).reshape(TOKENS, HIDDEN))
        return x + self.mlp(functional.rms_norm(x, (HIDDEN,)))

    def mlp(self, y: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(functional.silu(self.gate(y)) * self.up(y))
        return result


@pytest.mark.slow
def test_flop_are_those_that_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode  # imports triton

    layers, head = nn.Sequential(Layer(), Layer()), nn.Linear(HIDDEN, VOCAB, bias=False)
    head.requires_grad_(False)
    # As gradient checkpointing has it (enable_input_require_grads): else the first layer's own
    # input gradients are left out.
    x = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        head(layers(x)).sum().backward()
    mine = step_flop(TINY, training(lora_rank=RANK, lora_targets=ALL))
    assert counter.get_total_flops() == pytest.approx(mine, rel=1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_saved_bytes_of_a_feed_forward_are_those_that_torch_saves(dropout: float) -> None:
    layer = Layer(dropout)
    weights = {p.untyped_storage().data_ptr() for p in layer.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    y = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = layer.mlp(y)
    real = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    assert out.shape == y.shape

    spec = training(
        precision="fp32", lora_rank=RANK, lora_dropout=dropout,
        lora_targets=("gate_proj", "up_proj", "down_proj"),
    )  # fmt: skip
    micro = one_micro_batch(TINY, spec, runtime="torch", attention_kernel="flash2")
    names = ("mlp norm output", "fc", "activation output", "gate output")
    mine = sum(
        float(np.max(tensor_bytes(record, micro.d)))
        for record in micro.layers[0]
        if isinstance(record, SavedTensor) and record.name.startswith(names)
    )
    if dropout:
        # On a CPU the mask is of the type of its input, on a GPU a byte (native_dropout).
        mine += 3.0 * TOKENS * (2 * HIDDEN + FFN)
    assert real == mine


def test_frozen_parts_save_no_input_and_have_no_weight_gradient() -> None:
    frozen = training(frozen=("feed_forwards", "norms", "embedding"))
    for spec, trained in ((training(), {"qkv", "attention out", "fc1", "fc2"}),
                          (frozen, {"qkv", "attention out"})):  # fmt: skip
        records = one_micro_batch(TINY, spec).layers[0]
        gemms = {r.name for r in records if isinstance(r, Gemm) and r.weights and r.trained}
        assert gemms == trained
        kept = {r.name for r in records if isinstance(r, SavedTensor)}
        assert ("activation output" in kept) == ("fc2" in trained)
        assert "attention norm output" in kept
    tokens, mlp = TOKENS, 3 * HIDDEN * FFN * TINY.num_layers
    assert step_flop(TINY, training()) - step_flop(TINY, frozen) == 2 * tokens * mlp


@pytest.mark.parametrize("name", ["llama-3.1-70b", "gpt3-175b", "deepseek-v3", "mixtral-8x7b"])
def test_four_flop_for_each_frozen_parameter_and_token(name: str) -> None:
    spec = model(name)
    lora = TrainingSpec(seq_length=4096, global_batch_size=4, lora_rank=1, lora_targets=("o_proj",))
    forward = forward_flop(spec, float(lora.tokens_per_iteration), 4096.0, causal=True)
    full = step_flop(spec, lora.model_copy(update={"lora_rank": 0}), causal=True)
    assert full == pytest.approx(3 * forward)
    assert 2.0 < step_flop(spec, lora, causal=True) / forward < 2.3  # attention has three
    gemms = {
        r.name
        for records in one_micro_batch(spec, lora).layers
        for r in records
        if isinstance(r, Gemm) and r.weights and not r.trained
    }
    assert gemms - {name for names in INPUTS.values() for name in names} == set()


def test_parameters_of_adapters_are_those_of_published_ones() -> None:
    """PEFT on Llama 2 7B: rank 8 on q and v 4,194,304; rank 16 on all matrices 39,976,960."""
    llama = model("llama-2-7b")

    def count(rank: int, targets: tuple[str, ...], **split: float) -> float:
        spec = TrainingSpec(seq_length=1, global_batch_size=1, lora_rank=rank, lora_targets=targets)
        weights = TrainableModel(llama, spec).weights(layers_of(llama).kinds[0], Split(**split))
        return 32 * float(sum(w.elements for w in weights if w.trained))

    assert count(8, ("q_proj", "v_proj")) == 4_194_304
    assert count(16, ALL) == 39_976_960
    assert count(16, ALL, tp=4.0) == 39_976_960 / 4


def states(lora: dict[str, Any], **plan: Any) -> dict[str, float]:
    spec = TrainingSpec(seq_length=4096, global_batch_size=16, **lora)
    cluster = parse_cluster("1x8xh100-sxm")
    rows = Plans.from_rows([ParallelPlan.model_validate({"dp": 8, "zero_stage": 0, **plan})])
    memory = CostModel(model("llama-2-7b"), cluster, spec).evaluate(rows).memory
    return {name: float(memory.parts[name].max()) for name in ("weights", "gradients", "optimizer")}


def test_states_are_those_of_the_adapters_beside_frozen_weights() -> None:
    llama, adapters = model("llama-2-7b"), 39_976_960
    parameters = total_parameters(llama)
    lora = {"lora_rank": 16, "lora_targets": ALL}
    found = states(lora)
    assert found["weights"] == 2 * (parameters + adapters)
    assert (found["gradients"], found["optimizer"]) == (4 * adapters, 12 * adapters)
    assert states(lora, zero_stage=1)["optimizer"] == 12 * adapters / 8
    quarter = states({**lora, "frozen_dtype": "nf4"})
    ends = 2 * 32000 * 4096 + 4096
    layers = parameters - ends
    assert quarter["weights"] == pytest.approx(2 * (ends + adapters) + NF4_BYTES * layers)
    sharded = states(lora, zero_stage=3)
    assert sharded["weights"] == found["weights"] / 8
    # torch keeps masters of what it trains, half precision of what it does not.
    torch_states = states(lora, runtime="torch", zero_stage=3)
    assert torch_states["weights"] == (2 * parameters + 4 * adapters) / 8


@pytest.mark.parametrize("runtime", ["megatron", "torch", "deepspeed"])
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_adapters_train_faster_in_less_memory_than_all_weights(runtime: str, zero: int) -> None:
    cluster = parse_cluster("2x8xh100-sxm")
    plan = ParallelPlan(dp=16, zero_stage=zero, runtime=runtime)
    times, peaks = [], []
    for lora in ({"lora_rank": 16}, {}):
        spec = TrainingSpec(seq_length=4096, global_batch_size=16, **lora)
        found = CostModel(model("llama-2-7b"), cluster, spec).evaluate(Plans.from_rows([plan]))
        times.append(float(found.iteration_time_s.max()))
        peaks.append(float(found.peak_bytes.max()))
    assert 0.55 < times[0] / times[1] < 0.95
    assert peaks[0] < peaks[1]


def test_recomputed_adapters_keep_nothing() -> None:
    spec = training(lora_rank=RANK)
    micro = one_micro_batch(TINY, spec, recompute="selective", recompute_modules=("mlp",))
    kept, dropped = activation_bytes(micro.layers[0], micro.d)
    names = [r.name for r in micro.layers[0] if isinstance(r, SavedTensor) and "fc" in r.name]
    assert "fc1 adapter rank" in names
    assert np.all(dropped >= 2 * TOKENS * (2 * FFN + FFN + 2 * RANK))
    assert np.all(kept > 0)


def test_times_of_frozen_matrices_are_without_weight_gradients() -> None:
    micro = one_micro_batch(TINY, training(lora_rank=RANK))
    for record in micro.layers[0]:
        if isinstance(record, Gemm) and record.weights:
            assert record.trained == ("adapter" in record.name)
            assert np.all(gemm_flop(record.m, record.n, record.k) > 0)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"lora_rank": 8, "frozen": ("head",)}, "freezes every part"),
        ({"frozen_dtype": "nf4"}, "needs lora_rank or frozen"),
        ({"lora_rank": 8, "lora_targets": ("linear_qkv", "v_proj")}, "linear_qkv and v_proj adapt"),
        ({"lora_rank": 8, "lora_targets": ("o_proj", "o_proj")}, "adapt the same matrix"),
        ({"lora_rank": 8, "lora_targets": ()}, "needs lora_targets"),
        ({"lora_targets": ("linear_kqv",)}, "linear_qkv"),
        ({"frozen": get_args(Part)}, "nothing is left to train"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        training(**fields)


def test_names_of_other_columns_do_not_clash() -> None:
    mla = ("q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
    spec = training(lora_rank=8, lora_targets=(*mla, "gate_proj", "up_proj"))
    deep = model("deepseek-v3")
    weights = TrainableModel(deep, spec).weights(layers_of(deep).kinds[0], Split())
    found = {w.name: w.elements for w in weights if w.trained}
    assert found["mla down adapter"] == 8 * (2 * 7168 + 1536 + 576)
    assert found["mla q up adapter"] == 8 * (1536 + 128 * 192)
    assert found["fc1 adapter"] == 8 * (2 * 7168 + 2 * 18432)


def test_nothing_is_cast_where_nothing_is_narrower() -> None:
    """Adapters without dropout or casts add no pass over their input; fp32 needs no autocast."""

    def names(runtime: str, **training: Any) -> set[str]:
        asked = TrainingSpec(seq_length=128, global_batch_size=1, **training)
        micro = one_micro_batch(model("llama-3.2-1b"), asked, runtime=runtime)
        kernels = (one for one in micro.layers[0] if isinstance(one, MemoryBoundKernel))
        return {one.name for one in kernels}

    adapters: dict[str, Any] = {"lora_rank": 8, "lora_targets": ("q_proj", "o_proj")}
    assert "qkv adapter input" not in names("megatron", **adapters)
    assert "qkv adapter input" in names("megatron", **adapters, lora_dropout=0.1)
    assert "qkv adapter input" in names("transformers", **adapters)
    assert "qkv input casts" in names("transformers")
    assert "qkv input casts" not in names("transformers", precision="fp32")
    assert "qkv input casts" not in names("transformers", master_weights_dtype="none")
