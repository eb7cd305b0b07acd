"""Calibrating this machine, and what that is worth for real runs on it."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from cost_models.calibrations import Points
from cost_models.catalog import local
from planner import cli
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty import profiles
from planner.inputs.requests.parser import parse_request
from planner.running.validate.calibrate import measurement_points
from planner.running.validate.calibrate.job import Kernels
from planner.running.validate.run import Options, validate

GPT: dict[str, Any] = {
    "name": "gpt", "num_layers": 4, "hidden_size": 512, "num_attention_heads": 8,
    "vocab_size": 4096, "gated_mlp": False, "norm": "layernorm", "position": "learned",
    "max_position_embeddings": 512, "qkv_bias": True, "attention_output_bias": True,
    "mlp_bias": True,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "name": "llama", "num_layers": 4, "hidden_size": 512, "num_attention_heads": 8,
    "num_query_groups": 4, "ffn_hidden_size": 1536, "vocab_size": 4096, "gated_mlp": True,
    "norm": "rmsnorm", "position": "rope",
}  # fmt: skip
NARROW = {"hidden_size": 256, "num_attention_heads": 4, "num_query_groups": 2}
DEEP = {"num_layers": 8, "hidden_size": 384, "num_attention_heads": 6}
FULL = {"recompute": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
CORE = {"recompute": "selective", "recompute_modules": ["core_attn"]}
INTERLEAVED = {"pp": 2, "vpp": 2, "schedule": "interleaved-1f1b"}


def asked(
    model: dict[str, Any], seq_length: int, batch: int, precision: str = "fp32", **plan: Any
) -> PlanRequest:
    """A request whose plan the script runs as it stands, on as many processes as it has ranks."""
    degrees = [plan.get(name, 1) for name in ("tp", "cp", "pp", "dp")]
    ranks = degrees[0] * degrees[1] * degrees[2] * degrees[3]
    usual = {
        "runtime": "torch", "cross_entropy": "unfused", "attention_kernel": "flash2",
        "micro_batch_size": 1, "zero_stage": 0, "cp_kind": "a2a",
        "overlap_grad_reduce": plan.get("pp", 1) == 1,
    }  # fmt: skip
    training = {"seq_length": seq_length, "global_batch_size": batch, "precision": precision}
    return parse_request(
        {
            "model": model, "training": training, "plan": usual | plan,
            "cluster": local.cluster(ranks).model_dump(mode="json"),
        }
    )  # fmt: skip


TEN: dict[str, PlanRequest] = {
    "GPT, one process": asked(GPT, 128, 8, micro_batch_size=4),
    "GPT, core attention again": asked(GPT | DEEP, 256, 4, micro_batch_size=2, **CORE),
    "Llama, one process": asked(LLAMA, 256, 8, micro_batch_size=2),
    "Llama, all layers again": asked(LLAMA | NARROW, 512, 8, micro_batch_size=1, **FULL),
    "GPT, TP 2": asked(GPT, 256, 8, micro_batch_size=2, tp=2),
    "Llama, TP 2 with SP": asked(LLAMA, 256, 8, micro_batch_size=2, tp=2, sequence_parallel=True),
    "GPT, PP 2": asked(GPT | DEEP, 256, 8, pp=2),
    "Llama, PP 2 interleaved": asked(LLAMA, 256, 8, **INTERLEAVED),
    "GPT, DP 2": asked(GPT, 256, 8, micro_batch_size=2, dp=2),
    "Llama, DP 2 with ZeRO 3": asked(LLAMA, 256, 8, micro_batch_size=2, dp=2, zero_stage=3),
    "Llama, CP 2": asked(LLAMA | NARROW, 512, 8, micro_batch_size=2, cp=2),
}


def test_a_plan_needs_its_own_kernels_only() -> None:
    (ranks, job), (both, together) = measurement_points.of_request(TEN["Llama, TP 2 with SP"], 60.0)
    assert (ranks, both) == (1, 2)
    shapes = {(g.m, g.n, g.k) for g in job.kernels.gemm}
    tokens, hidden = 2 * 256, 512
    qkv, up, vocab = (8 + 2 * 4) * 64 // 2, 2 * 1536 // 2, 4096 // 2
    assert shapes == {
        (tokens, qkv, hidden), (tokens, hidden, hidden // 2), (tokens, up, hidden),
        (tokens, hidden, 1536 // 2), (tokens, vocab, hidden),
    }  # fmt: skip
    kinds = {p.kernel for p in job.kernels.passes}
    assert {"rmsnorm", "silu product", "rope", "add", "embedding", "cross-entropy"} <= kinds
    assert not {"layernorm", "gelu", "bias"} & kinds
    assert together.kernels == Kernels()
    assert {c.op for c in together.collectives} == set(measurement_points.COLLECTIVES)
    assert together.tensor_parallel


def test_the_full_set_has_both_kinds_of_model_and_every_size_once() -> None:
    request = parse_request(measurement_points.EXAMPLE, need_plan=True)
    (_, alone), *several = measurement_points.full(request.model, request.training, (2, 4), 60.0)
    kinds = {p.kernel for p in alone.kernels.passes}
    assert {"rmsnorm", "layernorm", "gelu", "silu product", "rope", "bias"} <= kinds
    assert len(set(alone.kernels.gemm)) == len(alone.kernels.gemm) > 40
    assert [ranks for ranks, _ in several] == [2, 4]


@pytest.mark.exhaustive
def test_a_calibration_of_a_plan_is_a_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLANNER_DATA_DIR", str(tmp_path / "data"))
    # In 16 bits, as most plans are: weights and what flows between layers are of one type.
    small = asked(LLAMA | NARROW | {"num_layers": 2}, 64, 4, precision="bf16", tp=2)
    request = tmp_path / "request.json"
    request.write_text(json.dumps(small.document()))
    assert cli.run(["calibrate", str(request), "--name", "here", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    points = Points.model_validate_json(json.dumps(found["points"]))
    assert all(getattr(points, kind) for kind in Points.model_fields)
    assert found["device"] in ("cpu", "cuda")
    assert found["software"]["torch"].startswith("2.")
    profile = profiles.find("here")
    assert set(profile.measured_terms) == set(Points.model_fields)
    assert cli.run(["estimate", str(request), "--profile", "here", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["profile"]["kind"] == "calibrated"


@pytest.mark.exhaustive
def test_calibrated_estimates_are_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plans of at most two processes, each measured right after a calibration for it."""
    monkeypatch.setenv("PLANNER_DATA_DIR", str(tmp_path))
    lines: list[str] = []
    errors: dict[str, list[float]] = {"built in": [], "calibrated": []}
    for name, request in TEN.items():
        path = tmp_path / "request.json"
        path.write_text(json.dumps(request.document()))
        assert cli.run(["calibrate", str(path), "--name", "here"]) == 0
        report = validate(request.model_copy(update={"profile": "here"}), Options(steps=10))
        found = report.measured_iteration_time_s
        (before,) = (s for id, s in report.predictions_s.items() if id != "here")
        after = report.predicted_iteration_time_s
        for which, seconds in (("built in", before), ("calibrated", after)):
            errors[which].append(abs(seconds / found.median - 1.0))
        spread = f"{found.p10:.3f} to {found.p90:.3f}"
        measured = f"{found.median:10.3f}  {spread}  {after / found.median - 1.0:+.0%}"
        lines.append(f"{name:28}{before:10.3f}{after:12.3f}{measured}")
    middle = {which: statistics.median(found) for which, found in errors.items()}
    with capsys.disabled():
        print(f"\n{'seconds':28}{'built in':>10}{'calibrated':>12}{'measured':>10}  10 % to 90 %")
        print(*lines, f"median absolute error: {middle}", sep="\n")
    assert middle["calibrated"] <= 0.20
    assert middle["calibrated"] < middle["built in"]
