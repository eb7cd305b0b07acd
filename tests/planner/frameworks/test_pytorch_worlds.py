"""Native PyTorch: any rank of any world is built without memory, and schedules are torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from cost_models.plans import ParallelPlan
from cost_models.schedules import SCHEDULES as KNOWN
from planner import frameworks
from planner.documents.request import PlanRequest
from planner.frameworks.rank_orders import grids, order_of
from planner.frameworks.torch_schedules import SCHEDULES
from planner.running.validate.rank_estimate import expected
from planner.running.validate.ranks.worker import load_script
from tests.fixtures.frameworks.pytorch import CASES, PIPE, RUNS, other
from tests.fixtures.launches import launch, written
from tests.planner.frameworks.test_pytorch import SMALL, ask

PYTORCH = frameworks.get("pytorch")


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Imports the script of a case, as one rank of a world that is not there."""

    def imported(case: str | tuple[PlanRequest, ParallelPlan], rank: int) -> Any:
        request, plan = CASES[case] if isinstance(case, str) else case
        written(tmp_path, PYTORCH.write(request, plan))
        module = load_script(tmp_path / "train.py")
        assert not dist.is_initialized()
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=plan.accelerators)
        module.setup(torch.device("cpu"), torch.device("meta"))
        return module

    yield imported
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("case", "rank"), [("llama-zb-v", 5), ("mixtral-pipeline", 14), ("mixtral-hybrid", 6)]
)
def test_any_rank_of_any_world_is_built_without_memory(
    case: str, rank: int, script: Callable[..., Any]
) -> None:
    plan = CASES[case][1]
    train = script(case, rank)
    models = train.build_models()
    assert all(parameter.is_meta for model in models for parameter in model.parameters())
    dense, experts = grids(order_of("pytorch", plan), plan)
    assert models[0].index == dense.coordinates("pp")[rank]
    groups = [(dense, name, train.MESH[name]) for name in ("tp", "cp")]
    if experts:
        mesh = train.EXPERT_MESH
        groups += [(experts, "ep", mesh["ep"]), (experts, "edp", mesh["dp_replicate", "fsdp"])]
    for grid, name, mesh in groups:
        (own,) = [group for group in grid.groups(name).tolist() if rank in group]
        assert mesh.mesh.flatten().tolist() == own


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["hybrid", "delta", "local", "seeing"])
def test_every_block_is_split_over_tensor_ranks(name: str, script: Callable[..., Any]) -> None:
    """A rank holds as many weights, in fp32, as the estimate has it hold."""
    from torch.distributed.tensor import DTensor

    request, plan = ask((1, 2), name, **RUNS, tp=2, sequence_parallel=True)
    request = request.model_copy(
        update={"model": request.model.model_copy(update={"vocab_size": 256}), "plan": plan}
    )
    (model,) = script((request, plan), 1).build_models()
    held = sum(
        (one.to_local() if isinstance(one, DTensor) else one).numel() for one in model.parameters()
    )
    assert 4 * held == expected(request, 0).amounts.parameter_bytes


def test_gathered_context_runs_on_fake_tensors(script: Callable[..., Any]) -> None:
    train = script("llama-gathered-context", 9)
    train.configure(["stage_layers=[2]"])
    (model,) = train.build_models()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        tokens = torch.zeros(1, train.TOKENS, dtype=torch.int64)
        assert model(tokens).shape == (1, 2048 // 4, 32000)


def test_gathered_context_gives_every_token_to_one_rank(script: Callable[..., Any]) -> None:
    train = script("llama-gathered-context", 0)
    found = []
    for rank in range(train.C.cp):
        train.CP_RANK = rank
        found.append(train.positions())
        # As many keys for all ranks: each token attends to itself and to those before.
        assert found[-1].sum() == sum(range(2048)) / 4
    assert torch.cat(found).sort().values.tolist() == [*range(2048)]


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_experts_run_on_fake_tensors_where_their_loads_are_given(
    precision: str, script: Callable[..., Any]
) -> None:
    """What decides how many tokens an expert gets is one function, which a dry run replaces."""
    train = script("mixtral-experts", 3)
    train.configure([f"precision={precision}", "stage_layers=[2]"])
    (model,) = train.build_models()

    def even(chosen: torch.Tensor) -> list[list[int]]:
        count = train.C.num_experts
        return [[chosen.numel() // count] * count] * 2

    train.expert_counts = even
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        tokens = torch.zeros(1, train.TOKENS, dtype=torch.int64)
        train.loss_of(model(tokens), tokens).backward()
        gradients = {name: one.grad.to_local() for name, one in model.named_parameters()}
    # Of 8 experts over 8 ranks one is here, its matrix split over the two that hold it.
    up = gradients["blocks.0._checkpoint_wrapped_module.mlp.experts.up"]
    assert up.shape == (1, 1792 // 2, 512)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "pp"), [*product(SCHEDULES, (2, 3, 4))])
def test_a_schedule_is_legal_where_torch_can_make_it(name: str, pp: int) -> None:
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
    from torch.distributed.pipelining.stage import PipelineStage

    make = get_schedule_class(SCHEDULES[name])
    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.submod = 0, pp, None
    stage.stage_index, stage.is_last = 0, False
    for vpp in KNOWN[name].chunk_counts or (2, 3):
        stage.num_stages = pp * vpp
        for micro_batches in range(1, 4 * pp + 1):
            many = issubclass(make, PipelineScheduleMulti)
            try:
                make([stage] * vpp if many else stage, micro_batches)
                accepted = True
            except ValueError:
                accepted = False
            model = other("llama", **{**SMALL, "num_layers": pp * vpp})
            request, plan = launch(
                model, (1, pp), training={"global_batch_size": micro_batches, "seq_length": 32},
                pp=pp, vpp=vpp, schedule=name, **PIPE,
            )  # fmt: skip
            legal = not PYTORCH.reasons(request, plan)
            assert legal == accepted, (vpp, micro_batches)
