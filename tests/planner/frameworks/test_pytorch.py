"""Native PyTorch: the script really trains, whatever the split, as it does in one process."""

from __future__ import annotations

import json
import math
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.distributed.pipelining.stage import PipelineStage
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from cost_models.parameters import total_parameters
from cost_models.plans import ParallelPlan
from cost_models.schedules import SCHEDULES as KNOWN
from cost_models.spec import ModelSpec
from planner import frameworks
from planner.documents.request import PlanRequest
from planner.frameworks.pytorch.config import EXPERTS, KEYS
from planner.frameworks.rank_orders import ORDERS, grids, order_of
from planner.frameworks.reading import Unreadable
from planner.frameworks.torch_schedules import SCHEDULES
from planner.validate.rank_estimate import expected
from planner.validate.worker import load_script
from tests.fixtures.frameworks import pytorch_gradients, pytorch_patterns
from tests.fixtures.frameworks.pytorch import CASES, GATHER, GPT, PIPE, RUNS, other
from tests.fixtures.launches import MODELS, TP2, launch, unreached, written

PYTORCH = frameworks.get("pytorch")
MLP = {"kind": "mlp"}
MAMBA2 = {
    "kind": "mamba2", "num_heads": 8, "head_dim": 16, "num_groups": 4, "state_size": 8,
    "chunk_size": 8,
}  # fmt: skip
HYBRID: Any = [
    [MAMBA2],
    [{"kind": "mlp", "width": 128}],
    [{"kind": "short_convolution"}, MLP],
    [{"kind": "parallel", "branches": [{"kind": "attention", "gate": "head"}, MAMBA2]}, MLP],
]
DELTA: Any = [
    [
        {
            "kind": "gated_delta_net", "num_key_heads": 4, "num_value_heads": 8, "key_head_dim": 8,
            "value_head_dim": 16,
        },
        {"kind": "experts"},
    ],
    [{"kind": "attention", "gate": "element", "qk_norm": "head"}, {"kind": "experts"}],
]  # fmt: skip
LOCAL: Any = [
    [{"kind": "attention", "window": 8}, MLP],
    [{"kind": "attention", "chunk": 16, "rope": False}, MLP],
    [{"kind": "attention", "key_values": "keys", "num_query_groups": 8}, MLP],
    [{"kind": "lightning_attention", "output_norm": "head"}, MLP],
]
RECURRENT: Any = [
    [{"kind": "mamba", "inner_size": 96, "state_size": 8, "time_step_rank": 4}, MLP],
    [{"kind": "rwkv_time_mix"}, {"kind": "rwkv_channel_mix"}],
    [{"kind": "linear_recurrent_unit", "width": 96, "num_blocks": 4}, MLP],
    [{"kind": "lightning_attention"}, MLP],
]
VISION: dict[str, Any] = {
    "num_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "ffn_hidden_size": 48,
    "bidirectional": True, "position": "learned", "max_position_embeddings": 16, "qkv_bias": True,
    "mlp_bias": True, "tokens": 32, "span": 16, "input_width": 12, "merge": 2,
    "projector": [{"inputs": 64, "outputs": 64}, {"inputs": 64, "outputs": 64}],
}  # fmt: skip
SOUND: dict[str, Any] = VISION | {
    "tokens": 16, "merge": 4, "position": "rope", "norm": "rmsnorm", "norm_bias": False,
    "gated_mlp": True, "qk_norm": "head", "final_norm": False,
    "projector": [{"inputs": 32, "outputs": 64}],
}  # fmt: skip
SMALL: dict[str, Any] = {
    "num_layers": 8,
    "hidden_size": 64,
    "head_dim": 8,
    "num_attention_heads": 8,
    "num_query_groups": 4,
    "ffn_hidden_size": 96,
    "vocab_size": 128,
    "max_position_embeddings": 32,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}
MODELS_SMALL = {
    "llama": other("llama", **SMALL),
    "gpt": other("gpt", **{**SMALL, "tied_embeddings": False}),
    "tied": other("qwen2", **SMALL),
    "normed": other(
        "llama", **SMALL, norm="layernorm", gated_mlp=False, qk_norm="head", embedding_norm=True,
        lm_head_bias=True,
    ),
    "nope": other("nope", **SMALL),
    "moe": other(
        "mixtral", **SMALL, moe={"num_experts": 8, "top_k": 2, "expert_ffn_hidden_size": 48}
    ),
    "shared": other(
        "llama", **SMALL, qk_norm="head",
        moe={
            "num_experts": 8, "top_k": 3, "expert_ffn_hidden_size": 48, "router_bias": True,
            "shared_expert_ffn_hidden_size": 32, "shared_expert_gate": True,
            "num_dense_layers": 1, "layer_frequency": 2, "layer_offset": 1,
        },
    ),
    "hybrid": other("llama", **SMALL, layer_pattern=HYBRID),
    "delta": other(
        "mixtral", **SMALL, layer_pattern=DELTA,
        moe={"num_experts": 8, "top_k": 2, "expert_ffn_hidden_size": 48},
    ),
    "local": other("llama", **SMALL, layer_pattern=LOCAL),
    "recurrent": other("llama", **SMALL, layer_pattern=RECURRENT),
    "seeing": other("llama", **SMALL, encoders=[VISION, SOUND]),
}  # fmt: skip
# fp32 sums in another order, over five steps of Adam; and in one step of it.
SAME_LOSS = 2e-5
SAME_GRADIENT = 1e-5


def ask(
    shape: tuple[int, int], model: str = "llama", **plan: Any
) -> tuple[PlanRequest, ParallelPlan]:
    plan = {"attention_kernel": "flash2", **plan}
    training = {
        "seq_length": 32, "global_batch_size": 16,
        "optimizer": plan.pop("optimizer", "adam"), "frozen": plan.pop("frozen", ()),
    }  # fmt: skip
    return launch(MODELS_SMALL[model], shape, training=training, **plan)


def train(folder: Path, request: PlanRequest, plan: ParallelPlan, *words: str) -> dict[str, Any]:
    """The last line of a real run of the emitted bundle: 5 steps, fp32, on CPUs."""
    folder.mkdir()
    main = written(folder, PYTORCH.write(request, plan))
    with socket.socket() as one:
        one.bind(("localhost", 0))
        port = one.getsockname()[1]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {
        **os.environ, "PATH": path, "MASTER_PORT": str(port), "TRAIN_ITERS": "5",
        "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    result = subprocess.run(
        ["/bin/bash", str(main), "precision=fp32", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    summary: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return summary


@cache
def alone(model: str, optimizer: str, frozen: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """The same model and batch in one process, with nothing split."""
    asked = ask(
        (1, 1), model, optimizer=optimizer, frozen=frozen, micro_batch_size=4,
        **{**RUNS, "zero_stage": 0},
    )  # fmt: skip
    return train(folder / "-".join((model, optimizer, *frozen)), *asked)


def trains_as_one_process(
    folders: pytest.TempPathFactory, request: PlanRequest, plan: ParallelPlan
) -> None:
    (model,) = [name for name, one in MODELS_SMALL.items() if one == request.model]
    training = request.training
    expected = alone(model, training.optimizer, training.frozen, folders.getbasetemp())
    found = train(folders.mktemp("run") / "bundle", request, plan)
    assert found["steps"] == len(found["losses"]) == 5
    assert found["parameters"] == expected["parameters"] == total_parameters(request.model)
    assert abs(found["losses"][0] - math.log(request.model.vocab_size)) < 0.5
    assert all(later < before for before, later in pairwise(found["losses"]))
    assert found["losses"] == pytest.approx(expected["losses"], rel=SAME_LOSS)
    assert found["tokens_per_s"] > 0
    assert found["peak_memory_bytes"] > 0


@pytest.mark.exhaustive  # the validator's tests hold such a plan's gradients against one process
def test_the_script_trains_in_four_processes_as_in_one(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    trains_as_one_process(tmp_path_factory, *ask((1, 4), pp=2, **TP2, **PIPE))


@pytest.mark.parametrize("shape", [(96, 32), (32, 96)])
def test_muon_makes_the_update_of_torchs_own(tmp_path: Path, shape: tuple[int, int]) -> None:
    written(tmp_path, PYTORCH.write(*CASES["llama-muon"]))
    orthogonal = load_script(tmp_path / "train.py").orthogonal
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(shape))
    weight.grad = torch.randn(shape)
    found = orthogonal(weight.grad.bfloat16()).float()
    torch.optim.Muon([weight], lr=1.0, weight_decay=0.0).step()
    larger = max(1, shape[0] / shape[1]) ** 0.5
    torch.testing.assert_close(-found * larger, weight.detach(), atol=0.03, rtol=0.03)


REAL: dict[str, tuple[PlanRequest, ParallelPlan]] = {
    "tp2 pp2 dp2": ask((1, 8), pp=2, **TP2, **PIPE),
    "tp2 pp2 dp2, replicas": ask(
        (1, 8), pp=2, **TP2, **{**PIPE, "zero_stage": 0}
    ),
    "without sequence parallelism": ask((1, 4), tp=2, **RUNS),
    "learned positions, biases": ask((1, 4), "gpt", pp=2, **TP2, **PIPE),
    "learned positions over cp, biases": ask((1, 4), "gpt", cp=2, tp=2, **RUNS),
    "tied embeddings": ask((1, 4), "tied", **TP2, **RUNS),
    "norms, head bias, context": ask((1, 4), "normed", cp=2, **TP2, **RUNS),
    "no positions, kept weights": ask(
        (1, 2), "nope", **{**RUNS, "reshard_after_forward": False}, optimizer="sgd"
    ),
    "Muon over tp and dp": ask((1, 4), "nope", **TP2, **RUNS, optimizer="muon"),
    "Muon of experts": ask((1, 2), "moe", ep=2, **RUNS, optimizer="muon"),
    "Adafactor": ask((1, 2), "nope", **{**RUNS, "zero_stage": 0}, optimizer="adafactor"),
    "hybrid shards": ask((1, 8), cp=2, dp_shard=4, **RUNS),
    "hybrid shards, pipeline": ask((1, 8), pp=2, dp_shard=2, **PIPE),
    "replicas over context": ask((1, 4), cp=2, **{**RUNS, "zero_stage": 0}),
    "uneven stages": ask((1, 4), pp=4, first_stage_layers=1, last_stage_layers=3, **PIPE),
    "explicit stages": ask((1, 4), pp=4, stage_layers=(1, 3, 3, 1), schedule="gpipe", **PIPE),
    "unfused attention": ask((1, 2), attention_kernel="unfused", **RUNS),
    "recompute by operator": ask(
        (1, 4), recompute="selective", recompute_modules=("op",), **TP2, **RUNS
    ),
    "recompute of modules": ask(
        (1, 4), pp=2, recompute="selective", recompute_modules=("core_attn", "mlp"), **TP2, **PIPE
    ),
    "full recompute of some, by stage": ask(
        (1, 4), pp=4, recompute="full", recompute_num_layers=2, recompute_layers=(2, 1, 1, 0),
        **PIPE,
    ),
    "full recompute": ask((1, 4), pp=2, recompute="full", recompute_num_layers=2, **PIPE),
    "gathered context": ask((1, 4), cp=4, **{**RUNS, **GATHER}),
    "gathered context, learned positions": ask((1, 4), "gpt", cp=2, **TP2, **{**RUNS, **GATHER}),
    "experts": ask((1, 2), "moe", ep=2, **RUNS),
    "experts and a pipeline": ask((1, 4), "moe", ep=2, pp=2, **PIPE),
    "compiled": ask((1, 4), compile=True, pp=2, **PIPE),
    "compiled, recompute by operator": ask(
        (1, 2), compile=True, recompute="selective", recompute_modules=("op",), **RUNS
    ),
    "compiled, context, full recompute": ask(
        (1, 2), compile=True, cp=2, recompute="full", recompute_method="uniform",
        recompute_num_layers=1, **RUNS,
    ),
    "hybrid": ask((1, 8), "hybrid", pp=2, **TP2, **PIPE),
    "hybrid, recompute of modules": ask(
        (1, 4), "hybrid", recompute="selective", recompute_modules=("core_attn", "mlp"), **TP2,
        **RUNS,
    ),
    "delta net and experts": ask((1, 4), "delta", ep=2, pp=2, **PIPE),
    "windows and chunks": ask((1, 4), "local", pp=2, **TP2, **PIPE),
    "recurrences": ask(
        (1, 4), "recurrent", pp=2, recompute="full", recompute_num_layers=2, **PIPE
    ),
    "recurrences, zero bubble": ask(
        (1, 2), "recurrent", pp=2, vpp=2, schedule="zb-v", **PIPE
    ),
    "encoders": ask((1, 4), "seeing", pp=2, **TP2, **PIPE),
    "frozen encoders": ask((1, 2), "seeing", frozen=("encoders",), **RUNS),
    "compiled, encoders": ask((1, 2), "seeing", compile=True, **RUNS),
    "full recompute of replicas": ask(
        (1, 2), recompute="full", recompute_method="uniform", recompute_num_layers=1,
        **{**RUNS, "zero_stage": 0},
    ),
    **{
        f"{name}{'' if vpp == 1 else f' x {vpp}'}, {text}": ask(
            (1, 8), pp=2, vpp=vpp, schedule=name, **TP2, **PIPE, **recompute
        )
        for name in SCHEDULES
        for vpp in KNOWN[name].chunk_counts or (2, 4)
        for text, recompute in {
            "plain": {},
            "recomputed": {"recompute": "full", "recompute_num_layers": 1},
        }.items()
    },
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", REAL)
def test_any_split_trains_as_one_process(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    trains_as_one_process(tmp_path_factory, *REAL[name])


def gradients(folder: Path, request: PlanRequest, plan: ParallelPlan) -> dict[str, torch.Tensor]:
    """Of the first step, whole, in fp32: the script imported by a program that drives it."""
    folder.mkdir()
    written(folder, PYTORCH.write(request, plan))
    count = ("--standalone", "--nproc_per_node", str(plan.accelerators))
    words = (str(folder / "train.py"), str(folder / "gradients.pt"), "precision=fp32")
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *count, pytorch_gradients.__file__, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    found: dict[str, torch.Tensor] = torch.load(folder / "gradients.pt")
    return found


@cache
def gradients_alone(model: str, frozen: tuple[str, ...], folder: Path) -> dict[str, torch.Tensor]:
    asked = ask((1, 1), model, frozen=frozen, micro_batch_size=4, **{**RUNS, "zero_stage": 0})
    return gradients(folder / "-".join(("gradients", model, *frozen)), *asked)


def has_the_gradients_of_one_process(
    folders: pytest.TempPathFactory, request: PlanRequest, plan: ParallelPlan
) -> None:
    (model,) = [name for name, one in MODELS_SMALL.items() if one == request.model]
    expected = gradients_alone(model, request.training.frozen, folders.getbasetemp())
    frozen = bool(request.training.frozen)
    assert any("encoders" in name for name in expected) == bool(request.model.encoders) - frozen
    found = gradients(folders.mktemp("gradients") / "bundle", request, plan)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        # A bias of keys adds the same to all scores of a query: its gradient is 0 but for rounding.
        least = 1e-9 if name.endswith("attention.key.bias") else 0.0
        assert (found[name] - gradient).norm() <= SAME_GRADIENT * gradient.norm() + least, name


@pytest.mark.exhaustive
def test_experts_over_two_processes_have_the_gradients_of_one(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    has_the_gradients_of_one_process(tmp_path_factory, *ask((1, 2), "moe", ep=2, **RUNS))


GRADIENTS: dict[str, tuple[PlanRequest, ParallelPlan]] = {
    "one rank": ask((1, 1), "moe", **{**RUNS, "zero_stage": 0}),
    "shards": ask((1, 2), "moe", **RUNS),
    "replicas": ask((1, 2), "moe", ep=2, **{**RUNS, "zero_stage": 0}),
    "replicas of some experts": ask((1, 4), "moe", ep=2, **{**RUNS, "zero_stage": 0}),
    "shards of some experts": ask((1, 4), "moe", ep=2, **RUNS),
    "pipeline": ask((1, 4), "moe", ep=2, pp=2, **PIPE),
    "pipeline, replicas": ask((1, 8), "moe", ep=2, pp=2, **{**PIPE, "zero_stage": 0}),
    "zero bubble": ask((1, 4), "moe", ep=2, pp=2, vpp=2, schedule="zb-v", **PIPE),
    "tensor parallel": ask((1, 4), "moe", ep=2, **TP2, **RUNS),
    "more ranks of experts than of data": ask((1, 4), "shared", ep=4, **TP2, **RUNS),
    "hybrid shards, full recompute": ask(
        (1, 4), "shared", ep=2, dp_shard=2, recompute="full", recompute_num_layers=8, **RUNS
    ),
    "hybrid shards of some experts": ask((1, 8), "shared", ep=2, dp_shard=4, **RUNS),
    "context, recompute of modules": ask(
        (1, 4), "shared", ep=2, cp=2, recompute="selective",
        recompute_modules=("core_attn", "mlp", "moe"), **{**RUNS, **GATHER},
    ),
    "pipeline, recompute of modules": ask(
        (1, 8), "shared", ep=4, pp=2, recompute="selective", recompute_modules=("moe",),
        **TP2, **PIPE,
    ),
    "gathered context": ask((1, 2), cp=2, **{**RUNS, **GATHER}),
    "delta nets": ask((1, 4), "delta", ep=2, **TP2, **RUNS),
    "encoders": ask((1, 2), "seeing", **TP2, **{**RUNS, "zero_stage": 0}),
    "encoders over tp without sequence parallelism": ask((1, 2), "seeing", tp=2, **RUNS),
    "encoders over cp and tp": ask((1, 4), "seeing", cp=2, **TP2, **RUNS),
    "encoders, gathered context": ask((1, 2), "seeing", cp=2, **{**RUNS, **GATHER}),
    "encoders, zero bubble": ask((1, 2), "seeing", pp=2, vpp=2, schedule="zb-v", **PIPE),
    "encoders apart": ask((1, 2), "seeing", pp=2, stage_layers=(0, 8), **PIPE),
    "frozen encoders apart, head apart": ask(
        (1, 3), "seeing", frozen=("encoders",), pp=3, stage_layers=(0, 8, 0), **PIPE
    ),
    "frozen encoders": ask(
        (1, 2), "seeing", frozen=("encoders",), **TP2, **{**RUNS, "zero_stage": 0}
    ),
    "gathered context, pipeline": ask((1, 8), "gpt", cp=2, pp=2, **TP2, **{**PIPE, **GATHER}),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", GRADIENTS)
def test_any_split_has_the_gradients_of_one_process(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    has_the_gradients_of_one_process(tmp_path_factory, *GRADIENTS[name])


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


@pytest.mark.parametrize("name", ["hybrid", "delta", "local", "seeing"])
def test_every_block_is_split_over_tensor_ranks(name: str, script: Callable[..., Any]) -> None:
    """A rank holds as many weights, in fp32, as the estimate has it hold."""
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


@pytest.mark.exhaustive
def test_dropout_trains(tmp_path: Path) -> None:
    eager = train(tmp_path / "eager", *ask((1, 4), **TP2, **RUNS))
    dropped = train(
        tmp_path / "dropped",
        *ask((1, 4), **TP2, **RUNS),
        "hidden_dropout=0.1",
        "attention_dropout=0.1",
    )
    assert dropped["losses"][-1] < dropped["losses"][0]
    assert dropped["losses"] != pytest.approx(eager["losses"], rel=1e-3)


@pytest.mark.parametrize(("name", "pp"), [*product(SCHEDULES, (2, 3, 4))])
def test_a_schedule_is_legal_where_torch_can_make_it(name: str, pp: int) -> None:
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


def test_only_the_config_block_differs() -> None:
    # Layers of other kinds, encoders and recompute by stage bring lines of their own.
    cases = [
        (request, plan)
        for request, plan in CASES.values()
        if not (request.model.layer_pattern or request.model.encoders or plan.recompute_layers)
    ]
    texts = [PYTORCH.write(*case).files["train.py"] for case in cases]
    blocks = [re.search(r"^CONFIG = \{\n(    .*\n)+\}$", text, re.MULTILINE) for text in texts]
    assert all(blocks)
    rest = {
        re.sub(r"^#.*\n", "", text.replace(block[0], ""), flags=re.MULTILINE)
        for text, block in zip(texts, blocks, strict=True)
        if block
    }
    assert len(rest) == 1


def test_every_entry_is_used_and_every_use_is_an_entry() -> None:
    text = PYTORCH.write(*CASES["llama-3d"]).files["train.py"]
    assert set(re.findall(r"\bC\.(\w+)", text)) == KEYS | EXPERTS.keys()


def test_the_mesh_is_the_order_of_ranks() -> None:
    text = PYTORCH.write(*CASES["llama-3d"]).files["train.py"]
    names = re.search(r"mesh_dim_names=\((.*)\)", text)
    assert names
    said = tuple(re.findall(r'"(\w+)"', names[1]))
    assert said == ORDERS["pytorch"].axes[::-1] == ORDERS["torchtitan"].axes[::-1]


def changed(name: str, value: str) -> dict[str, str]:
    files = dict(PYTORCH.write(*CASES["llama-3d"]).files)
    text, count = re.subn(
        rf'^(    "{name}": ).*?,(  #|$)', rf"\g<1>{value},\2", files["train.py"], flags=re.MULTILINE
    )
    assert count == 1
    return files | {"train.py": text}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("tp", "__import__('os').getpid()", "plain values only"),
        ("tp", "-1", "tp: Input should be greater"),
        ("hidden_size", "'wide'", "hidden_size: Input should be a valid integer"),
        ("stage_layers", "[4, 4, 4]", "3 stages for pp 4"),
        ("stage_layers", "[4, 0, 4, 4]", "an empty one"),
        ("stage_layers", "'4444'", "list of integers"),
        ("stage_layers", "[4, 4, 4, 4, 1, 4, 4, 4]", "vpp 2 does not go with schedule 1f1b"),
        ("schedule", "'Ring'", "no schedule 'Ring'"),
        ("schedule", "'ZBVZeroBubble'", "vpp 1 does not go with schedule zb-v"),
        ("pp", "0", "degrees are 1 or more"),
        ("pp", "'4'", "list of integers"),
        ("dp_shard", "10 ** 9", "plain values only"),
        ("dp_shard", "1000000000", "dp: Input should be less"),
    ],
)
def test_what_makes_no_sense_is_not_read_and_says_where(name: str, value: str, text: str) -> None:
    assert PYTORCH.read
    with pytest.raises(Unreadable, match=re.escape(text)) as caught:
        PYTORCH.read(changed(name, value), None)
    assert caught.value.file == "train.py"
    assert caught.value.line > 0


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("", "no CONFIG block"),
        ("CONFIG = [", "not Python"),
        ("CONFIG = dict(tp=1)", "no dictionary"),
        ("CONFIG = {**__import__('os').environ}", "plain values only"),
        ("CONFIG = {'tp': 1}", "CONFIG has no"),
        ("CONFIG = \0", "not Python"),
        ("CONFIG = " + "(" * 5000, "not Python"),
    ],
)
def test_scripts_without_a_config_are_not_read(script: str, text: str) -> None:
    assert PYTORCH.read
    with pytest.raises(Unreadable, match=text):
        PYTORCH.read({"train.py": script}, None)


@pytest.mark.parametrize(
    ("was", "now", "text"),
    [
        ('"encoders": [', '"encoders": ["none", ', "a list of options by name"),
        ("[[1024, 1024], [1024, 512]]", "[1024, 512]", "a list of pairs"),
        ("[[1024, 1024], [1024, 512]]", "1024", "a list of pairs"),
        ('"frozen": ["encoders"]', '"frozen": ["all"]', "frozen"),
    ],
)
def test_encoders_that_make_no_sense_are_not_read(was: str, now: str, text: str) -> None:
    files = dict(PYTORCH.write(*CASES["encoders-frozen"]).files)
    assert PYTORCH.read
    assert files["train.py"].count(was) == 1
    with pytest.raises(Unreadable, match=text):
        PYTORCH.read(files | {"train.py": files["train.py"].replace(was, now)}, None)


def test_a_script_alone_is_read_and_leaves_the_machine_open() -> None:
    assert PYTORCH.read
    request, plan = CASES["llama-3d"]
    script = PYTORCH.write(request, plan).files["train.py"]
    reading = PYTORCH.read({"train.py": script.replace('"tp": 2', '"tq": 1, "tp": 2')}, None)
    assert (reading.plan, reading.nodes, reading.accelerators_per_node) == (
        plan.model_copy(update={"dp_shard": 0}),
        None,
        None,
    )
    assert [one.name for one in reading.unknown] == ["tq"]
    with pytest.raises(Unreadable, match="missing"):
        PYTORCH.read({}, None)


def refused(model: str | ModelSpec = "llama", **asked: Any) -> tuple[PlanRequest, ParallelPlan]:
    return launch(model, **{**RUNS, **asked})


def experts(**changed: Any) -> ModelSpec:
    """Mixtral with something changed in its experts."""
    return other("mixtral", moe={**MODELS["mixtral"].model_dump()["moe"], **changed})


UNEVEN = launch(**RUNS)[0]
GROUP = UNEVEN.cluster.groups[0]
REFUSED: dict[str, tuple[PlanRequest, ParallelPlan]] = {
    "the same number of processes": (
        UNEVEN.model_copy(
            update={
                "cluster": UNEVEN.cluster.model_copy(
                    update={
                        "groups": (
                            GROUP.model_copy(update={"nodes": 1}),
                            GROUP.model_copy(update={"nodes": 2, "accelerators_per_node": 4}),
                        )
                    }
                )
            }
        ),
        launch(**RUNS)[1],
    ),
    "position table has 4096 rows": refused(GPT, training={"seq_length": 8192}),
    "between the ends have a layer, got 8,0,8": refused(stage_layers=(8, 0, 8, 0), pp=4, **PIPE),
    "ALiBi": refused(other("llama", position="alibi")),
    "odd head width": refused(other("llama", head_dim=33)),
    "never run in parallel": refused(other("llama", parallel_residual=True)),
    "two norms": refused(other("llama", norms_per_layer=4)),
    "over one head": refused(other("llama", qk_norm="full")),
    "not within groups": refused("deepseek-v3"),
    "a bias that balances": refused(experts(score_correction_bias=True)),
    "no biases of their own": refused(experts(expert_bias=True)),
    "no capacity factor": refused("switch"),
    "needs shared experts": refused(experts(shared_expert_gate=True)),
    "never split by tensors": refused("mixtral", etp=2, **TP2),
    "ep 8 does not divide": refused("mixtral", ep=8, dp_shard=4),
    "do not divide over the 16 ranks": refused(experts(expert_ffn_hidden_size=1800)),
    "no multiples of 8": refused(experts(expert_ffn_hidden_size=1796)),
    "not deepep": refused("mixtral", ep=2, moe_dispatcher="deepep"),
    "are not compiled": refused("mixtral", compile=True),
    "chosen in turn": refused("mixtral", recompute="selective", recompute_modules=("op",)),
    "multi-token": refused(other("llama", mtp_num_layers=1)),
    "megatron runtime": refused(runtime="megatron"),
    "asked: fp16": refused(training={"precision": "fp16"}),
    "none and fp32": refused(training={"master_weights_dtype": "none"}),
    "fp32 and bf16": refused(training={"optimizer_state_dtype": "bf16"}),
    "asked: bf16, reduced": refused(training={"gradient_dtype": "bf16"}),
    "reduced in bf16 with ZeRO 3, pp 2": launch(
        training={"gradient_reduce_dtype": "bf16"}, pp=2, **PIPE
    ),
    "Muon, not 8-bit Adam": refused(training={"optimizer": "adam_8bit"}),
    "fails on DTensors that are split": refused(training={"optimizer": "adafactor"}),
    "needs sequence_parallel": refused(GPT, tp=2),
    "key/value heads do not divide": refused(tp=8),
    "pads none": refused(other("llama", vocab_size=32001), **TP2),
    "by all-to-all": refused(cp=2, cp_kind="p2p"),
    "no flash-attention 1": refused(attention_kernel="flash1"),
    "asked: fused": refused(cross_entropy="fused"),
    "cannot be one": launch("qwen2", pp=2, **PIPE),
    "no schedule zb-h1": launch(pp=2, schedule="zb-h1", **PIPE),
    "compiled blocks": launch(pp=2, vpp=2, schedule="zb-v", compile=True, **PIPE),
    "train differently": refused(compile=True, **TP2),
    "outermost": refused(rank_order="tp-cp-ep-pp-dp"),
    "ZeRO-1": refused(zero_stage=1),
    "whole groups of cp": refused(cp=4, dp_shard=2),
    "deals out whole key/value heads": refused(cp=4, **TP2),
    "core_attn, mlp and moe, or operators": refused(
        recompute="selective", recompute_modules=("layernorm",)
    ),
    "runs backward twice": launch(
        pp=2, vpp=2, schedule="zb-v", recompute="selective", recompute_modules=("op",), **PIPE
    ),
    "one layer: uniform": refused(
        recompute="full", recompute_method="uniform", recompute_num_layers=2
    ),
    "host memory": refused(offload_optimizer=True),
    "overlap_grad_reduce true with pp 2": launch(pp=2, **{**PIPE, "overlap_grad_reduce": True}),
    "gathers weights ahead": refused(overlap_param_gather=False),
    "traffic blocks": refused(overlap_tp=True),
    "overlaps its messages": launch(pp=2, vpp=2, schedule="looped-bfs", overlap_p2p=False, **PIPE),
    **pytorch_patterns.REFUSED,
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused_says_why(text: str) -> None:
    assert any(text in reason.text for reason in PYTORCH.reasons(*REFUSED[text]))


def test_every_rule_is_reached() -> None:
    assert unreached(PYTORCH, list(REFUSED.values())) == set()


def test_models_of_the_field_are_what_the_cases_are_about() -> None:
    """Everything that the shared models have and the script does not is refused above."""
    for name, model in MODELS.items():
        reasons = PYTORCH.reasons(*refused(model))
        assert bool(reasons) == (name not in ("gpt", "llama", "mixtral", "nope", "qwen2")), name
