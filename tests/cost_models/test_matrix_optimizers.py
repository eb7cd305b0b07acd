"""Optimizers: states against torch's own, products against torch's count, hand-made transfers."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import nn

from cost_models.blocks.records import Split, Weight
from cost_models.catalog.hardware import parse_shorthand
from cost_models.estimate import CostModel, Estimates
from cost_models.kernels import gemm_flop
from cost_models.layers import layers_of
from cost_models.matrix_optimizers import newton_schulz_s
from cost_models.optimizer_matrices import Matrix, matrices, newton_schulz_products
from cost_models.optimizers import OPTIMIZERS, QUANTISED_BLOCK, OptimizerName
from cost_models.placement import Axis
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import ModelSpec, TrainingSpec

HIDDEN, FFN, HEADS, GROUPS, VOCAB, LAYERS = 64, 176, 8, 2, 128, 3
MODEL = ModelSpec(
    num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, num_query_groups=GROUPS,
    ffn_hidden_size=FFN, gated_mlp=True, vocab_size=VOCAB, norm="rmsnorm",
)  # fmt: skip
CLUSTER = parse_shorthand("2x8xh100-sxm")
KEYS = HIDDEN * GROUPS // HEADS
SHAPES = [(HIDDEN, HIDDEN), (KEYS, HIDDEN), (KEYS, HIDDEN), (HIDDEN, HIDDEN)]
SHAPES += [(FFN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN)]


def estimate(
    optimizer: OptimizerName, model: ModelSpec = MODEL, **plan: Any
) -> tuple[CostModel, Estimates]:
    training = TrainingSpec(seq_length=128, global_batch_size=16, optimizer=optimizer)
    cost = CostModel(model, CLUSTER, training)
    return cost, cost.evaluate(Plans.from_rows([ParallelPlan.model_validate(plan)]))


def state_bytes(found: Estimates) -> float:
    return float(found.memory.parts["optimizer"].max())


class Tensors(nn.Module):
    """The parameters of the model, as torch's modules have them."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(VOCAB, HIDDEN), (VOCAB, HIDDEN), (HIDDEN,)]  # word table, head, last norm
        for _ in range(LAYERS):
            sizes += [*SHAPES, (HIDDEN,), (HIDDEN,)]
        self.all = nn.ParameterList(torch.zeros(size) for size in sizes)
        self.hidden = [p for p in self.all[2:] if p.ndim == 2]


def kept(*optimizers: torch.optim.Optimizer) -> int:
    """Bytes of states after a step, without the counters of steps."""
    total = 0
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        for state in optimizer.state.values():
            total += sum(v.nbytes for name, v in state.items() if name != "step")
    return total


def torch_states(name: OptimizerName) -> int:
    tensors = Tensors()
    every = list(tensors.all)
    if name == "adam":
        return kept(torch.optim.AdamW(every))
    if name == "sgd":
        return kept(torch.optim.SGD(every, lr=0.1, momentum=0.9))
    if name == "adafactor":
        return kept(torch.optim.Adafactor(every))
    own = {id(p) for p in tensors.hidden}
    rest = torch.optim.AdamW([p for p in every if id(p) not in own])
    return kept(torch.optim.Muon(tensors.hidden), rest)


def test_every_name_has_a_rule() -> None:
    assert tuple(OPTIMIZERS) == get_args(OptimizerName)


@pytest.mark.parametrize("name", ["adam", "sgd", "adafactor", "muon"])
def test_states_are_those_of_torch(name: OptimizerName) -> None:
    """On the torch runtime the stored weight is the master copy."""
    _, found = estimate(name, runtime="torch")
    assert state_bytes(found) == torch_states(name)


def test_8_bit_states_have_a_scale_per_block() -> None:
    parameters = sum(p.numel() for p in Tensors().all)
    _, found = estimate("adam_8bit", runtime="torch")
    assert state_bytes(found) == 2 * (parameters + parameters / QUANTISED_BLOCK * 4)


def orthogonal(x: torch.Tensor) -> torch.Tensor:
    """A plain Newton-Schulz iteration of five steps."""
    x = x.T if x.size(0) > x.size(1) else x
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return x


@pytest.mark.parametrize("shape", [(64, 64), (16, 96), (96, 16), (352, 128)])
def test_newton_schulz_products_are_counted_by_torch(shape: tuple[int, int]) -> None:
    from torch.utils.flop_counter import FlopCounterMode  # imports triton

    with FlopCounterMode(display=False) as counter:
        orthogonal(torch.randn(shape))
    flop = 5 * sum(gemm_flop(*product) for product in newton_schulz_products(*shape))
    assert flop == pytest.approx(counter.get_total_flops(), rel=1e-2)


def test_the_matrices_of_a_layer_are_those_of_torch() -> None:
    (kind,) = layers_of(MODEL).kinds
    found = list(matrices(kind.weights(MODEL, Split()), HIDDEN, tables=False))
    shapes = [(m.rows, m.columns) for m in found for _ in range(int(m.count))]
    assert sorted(map(sorted, shapes)) == sorted(map(sorted, SHAPES))


def test_stacked_experts_are_a_matrix_each() -> None:
    weight = Weight("fc1", 8 * 2 * 32 * 64.0, True, expert=True, copies=8.0, tensors=2)
    (found,) = matrices([weight], 64, tables=False)
    assert (found.rows, found.columns, found.count, found.expert) == (32, 64, 16, True)


def test_muon_orthogonalises_every_hidden_matrix_where_nothing_is_sharded() -> None:
    cost, found = estimate("muon", runtime="megatron")
    _, adam = estimate("adam", runtime="megatron")
    machine = cost.context.machine
    products = LAYERS * sum(newton_schulz_s(Matrix(*s, 1.0, False), machine, 5) for s in SHAPES)
    hidden = LAYERS * sum(rows * columns for rows, columns in SHAPES)
    # One state less, read and written, and the passes of an update that is not fused.
    moved = hidden * (34.0 - 8.0) / (0.85 * CLUSTER.groups[0].accelerator.memory_bytes_per_s)
    more = found.time_parts_s["optimizer"] - adam.time_parts_s["optimizer"]
    assert float(more[0]) == pytest.approx(products + moved, rel=1e-9)


@pytest.mark.parametrize(("ranks", "whole"), [(8, False), (16, True)])
def test_layer_wise_ranks_hold_whole_matrices(ranks: int, whole: bool) -> None:
    """21 matrices: each rank has at least the largest, of 176 x 64; the rest is split evenly."""
    _, found = estimate("muon", runtime="megatron", dp=ranks, zero_stage=1)
    hidden = LAYERS * sum(rows * columns for rows, columns in SHAPES)
    others = 2 * VOCAB * HIDDEN + (2 * LAYERS + 1) * HIDDEN
    assert (hidden / ranks < FFN * HIDDEN) == whole
    own = max(hidden / ranks, FFN * HIDDEN)
    assert state_bytes(found) == pytest.approx(own * (4 + 4) + others * (4 + 8) / ranks)


def gathered(optimizer: OptimizerName, part: str, **plan: Any) -> float:
    """Seconds that Muon adds to a kind of traffic."""
    _, found = estimate(optimizer, **plan)
    _, adam = estimate("adam", **plan)
    return float(found.time_parts_s[part][0] - adam.time_parts_s[part][0])


def transfer(cost: CostModel, payload: float, ranks: int) -> float:
    axis = Axis(np.array([ranks]), np.array([1]))
    return float(np.max(cost.context.fabric.transfer("all_gather", payload, axis)))


def test_momenta_are_gathered_over_tensor_parallel_ranks() -> None:
    """Megatron gathers them in fp32, of every matrix."""
    cost, _ = estimate("muon", tp=2)
    by_hand = LAYERS * sum(transfer(cost, 4.0 * r * c, 2) for r, c in SHAPES)
    assert gathered("muon", "tp_comm", tp=2) == pytest.approx(by_hand, rel=1e-9)
    assert gathered("muon", "tp_comm", dp=2, zero_stage=1) == 0


def test_torch_gathers_sharded_matrices_on_every_rank() -> None:
    """In half precision, and each rank does all the products."""
    plan: dict[str, Any] = {"runtime": "torch", "dp": 4, "zero_stage": 3}
    cost, found = estimate("muon", **plan)
    by_hand = LAYERS * sum(transfer(cost, 2.0 * r * c, 4) for r, c in SHAPES)
    assert gathered("muon", "dp_comm", **plan) == pytest.approx(by_hand, rel=1e-9)
    machine = cost.context.machine
    products = LAYERS * sum(newton_schulz_s(Matrix(*s, 1.0, False), machine, 5) for s in SHAPES)
    assert float(found.time_parts_s["optimizer"][0]) > products


def test_traffic_counts_what_muon_gathers() -> None:
    plan = ParallelPlan(tp=2, runtime="megatron")
    bytes_of = {}
    for name in ("adam", "muon"):
        cost, _ = estimate(name, tp=2)
        (tensor,) = [group for group in cost.traffic(plan) if group.name == "tp"]
        bytes_of[name] = float(tensor.link_bytes.sum())
    hidden = LAYERS * sum(rows * columns for rows, columns in SHAPES)
    # Of two ranks, each sends its half of every momentum.
    assert bytes_of["muon"] - bytes_of["adam"] == pytest.approx(4.0 * hidden / 2)


def test_experts_are_shared_out_over_their_own_ranks() -> None:
    moe = {"num_experts": 8, "top_k": 2, "expert_ffn_hidden_size": 32}
    model = MODEL.model_copy(update={"moe": ModelSpec.model_validate(
        MODEL.model_dump() | {"moe": moe}).moe})  # fmt: skip
    _, alone = estimate("muon", model)
    _, shared = estimate("muon", model, dp=4, ep=4, zero_stage=0)
    experts = LAYERS * 8 * 3 * 32 * HIDDEN
    assert state_bytes(alone) - state_bytes(shared) == pytest.approx(8 * experts * 3 / 4)
