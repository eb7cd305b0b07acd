"""Native PyTorch: the script really trains, whatever the split, as it does in one process."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from cost_models.parameters import total_parameters
from cost_models.plans import ParallelPlan
from cost_models.schedules import SCHEDULES as KNOWN
from planner import frameworks
from planner.documents.request import PlanRequest
from planner.frameworks.torch_schedules import SCHEDULES
from planner.running.validate.ranks.worker import load_script
from tests.fixtures.frameworks.pytorch import CASES, GATHER, PIPE, RUNS, other
from tests.fixtures.launches import TP2, launch, written

PYTORCH = frameworks.get("pytorch")
# A program of its own, which imports seconds of torch.
SCRIPT = Path(__file__).parents[2] / "fixtures" / "frameworks" / "pytorch_gradients.py"
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
        [sys.executable, "-m", "torch.distributed.run", *count, str(SCRIPT), *words],
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
