"""Dry runs: torch's own model, split as planned, saves and holds what the estimate says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from math import prod
from pathlib import Path
from typing import Any

import pytest

from planner.cli import run
from planner.documents.problems import RequestError
from planner.inputs.requests.parser import parse_request
from planner.running.validate.dryrun.run import DryRunReport, RankReport, dry_run
from planner.running.validate.dryrun.trace_process import Limits, TraceFailed
from tests.fixtures.signals import interruptible

LLAMA = {
    "num_layers": 8,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_query_groups": 4,
    "ffn_hidden_size": 1408,
    "gated_mlp": True,
    "vocab_size": 4096,
    "norm": "rmsnorm",
}
GPT = {
    "num_layers": 8,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "vocab_size": 4096,
    "position": "learned",
    "max_position_embeddings": 1024,
    "qkv_bias": True,
    "attention_output_bias": True,
    "mlp_bias": True,
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
}
MOE = LLAMA | {"moe": {"num_experts": 8, "top_k": 2, "expert_ffn_hidden_size": 512}}
SHARED = {"num_experts": 8, "top_k": 2, "expert_ffn_hidden_size": 512}
SHARED |= {"shared_expert_ffn_hidden_size": 512, "num_dense_layers": 2}
# As in LongCat-Flash and in Nemotron 3.
_MOE = {"num_experts": 8, "top_k": 3, "expert_ffn_hidden_size": 512}
PASSING = LLAMA | {"moe": _MOE | {"zero_experts": 4}}
EXPERT_LATENTS = LLAMA | {
    "gated_mlp": False, "moe": SHARED | {"latent_size": 256, "latent_bias": True},
}  # fmt: skip
MLP = {"kind": "mlp"}
# As in Nemotron-H, Qwen3-Next, Kimi Linear, LFM2, MiniMax-01, Llama 4 and Gemma 3, Jamba, Griffin
# and RWKV-4.
HYBRID = LLAMA | {
    "layer_pattern": [
        [{"kind": "mamba2", "num_heads": 16, "head_dim": 64, "num_groups": 8, "state_size": 128}],
        [MLP],
        [{"kind": "attention"}],
        [MLP | {"width": 768}],
    ]
}
_DELTA_NET = {"kind": "gated_delta_net", "num_value_heads": 8, "value_head_dim": 128}
DELTA = MOE | {
    "layer_pattern": [
        *[[_DELTA_NET | {"num_key_heads": 4, "key_head_dim": 64}, {"kind": "experts"}]] * 3,
        [{"kind": "attention", "gate": "element", "qk_norm": "head"}, {"kind": "experts"}],
    ]
}
_KIMI = {"num_key_heads": 8, "key_head_dim": 128, "channel_decays": True}
_KIMI |= {"decay_rank": 128, "gate_rank": 128}
KIMI = LLAMA | {"layer_pattern": [[_DELTA_NET | _KIMI, MLP], [{"kind": "attention"}, MLP]]}
SHORT = LLAMA | {"layer_pattern": [[{"kind": "short_convolution"}, MLP]] * 2}
SHORT["layer_pattern"] = [*SHORT["layer_pattern"], [{"kind": "attention"}, MLP]]
LIGHTNING = LLAMA | {
    "layer_pattern": [
        [{"kind": "lightning_attention", "output_norm": "head"}, MLP],
        [{"kind": "attention", "rope": False}, MLP],
    ]
}
WINDOWS = LLAMA | {
    "layer_pattern": [
        [{"kind": "attention", "window": 256}, MLP],
        [{"kind": "attention", "chunk": 256, "num_query_groups": 8}, MLP],
        [{"kind": "attention", "key_values": "keys"}, MLP],
    ]
}
_MAMBA = {"kind": "mamba", "inner_size": 1024, "state_size": 16, "time_step_rank": 32}
MAMBA = LLAMA | {"layer_pattern": [[_MAMBA | {"selection_norms": True}, MLP]]}
RECURRENCES = LLAMA | {
    "layer_pattern": [
        [{"kind": "rwkv_time_mix"}, {"kind": "rwkv_channel_mix"}],
        [{"kind": "linear_recurrent_unit", "width": 768, "num_blocks": 4}, MLP],
    ]
}
_PER_LAYER = {"kind": "per_layer_input", "size": 256}
_EARLIER = {"kind": "attention", "key_values": "earlier"}
PER_LAYER = LLAMA | {
    "per_layer_input_size": 256,
    "layer_pattern": [[{"kind": "attention"}, MLP, _PER_LAYER], [_EARLIER, MLP, _PER_LAYER]],
}
_CROSS = {"kind": "cross_attention", "tokens": 256, "source_width": 384}
CROSS = LLAMA | {"layer_pattern": [[{"kind": "attention"}, _CROSS, MLP]]}
STREAMS = LLAMA | {"residual_streams": 4}
SINKS = LLAMA | {"attention_sinks": True, "sliding_window": 256, "full_attention_period": 2}
_MLA = {"kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
LATENT = LLAMA | {"mla": _MLA | {"q_lora_rank": 192}}
_CHOICE = {"num_heads": 4, "head_dim": 64, "top_k": 256}
CHOSEN = LLAMA | {
    "mla": _MLA | {"q_lora_rank": 192, "v_head_dim": 96},
    "layer_pattern": [
        [{"kind": "latent_attention", "indexer": _CHOICE}, MLP],
        [{"kind": "latent_attention", "indexer": _CHOICE | {"shared": True}}, MLP],
        [{"kind": "attention", "indexer": _CHOICE}, MLP],
    ],
}  # fmt: skip
_BLOCKS = {"block_size": 32, "head_weights": False, "query_norm": True, "key_norm_bias": False}
CHOSEN_BLOCKS = LLAMA | {
    "layer_pattern": [
        [{"kind": "attention"}, MLP],
        [{"kind": "attention", "indexer": _CHOICE | _BLOCKS, "qk_norm": "head"}, MLP],
    ],
}  # fmt: skip
# As in DeepSeek-V4.
_COMPRESSED = {
    "kind": "compressed_attention", "q_lora_rank": 192, "o_lora_rank": 96, "o_groups": 4,
    "window": 128,
}  # fmt: skip
COMPRESSED = LLAMA | {
    "num_query_groups": 1, "attention_sinks": True,
    "layer_pattern": [
        [_COMPRESSED, MLP],
        [_COMPRESSED | {"compression": 4, "choice": _CHOICE | {"top_k": 64}}, MLP],
        [_COMPRESSED | {"compression": 128}, MLP],
        [_COMPRESSED | {"compression": 128}, MLP],
    ],
}  # fmt: skip
_LATENT_WINDOW = {"kind": "latent_attention", "window": 256, "gate": "head", "rope_key_norm": True}
LATENT_WINDOW = LLAMA | {
    "mla": _MLA, "layer_pattern": [[_LATENT_WINDOW, MLP], [{"kind": "latent_attention"}, MLP]],
}  # fmt: skip
# Two images of a sample, and a sound, as in Qwen2-VL and in Whisper's encoder.
_VISION = {
    "num_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "ffn_hidden_size": 768,
    "bidirectional": True, "qkv_bias": True, "mlp_bias": True, "tokens": 512, "span": 256,
    "input_width": 192, "merge": 4,
    "projector": [{"inputs": 1024, "outputs": 1024}, {"inputs": 1024, "outputs": 512}],
}  # fmt: skip
_SOUND = {
    "num_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "bidirectional": True,
    "position": "learned", "max_position_embeddings": 256, "hidden_dropout": 0.1, "norm": "rmsnorm",
    "gated_mlp": True, "qk_norm": "head", "final_norm": False, "tokens": 256, "input_width": 80,
    "merge": 2, "projector": [{"inputs": 128, "outputs": 512}],
}  # fmt: skip
SEEING = LLAMA | {"encoders": [_VISION, _SOUND]}
FROZEN = {"frozen": ["encoders"]}
SP = {"tp": 2, "sequence_parallel": True}
A2A = {"cp": 2, "cp_kind": "a2a"}
FSDP = {"zero_stage": 3, "reshard_after_forward": False}
FULL = {"recompute": "full", "recompute_num_layers": 1, "recompute_method": "uniform"}
# What torch saves and no row of the estimate has: it is small, and named in the report.
UNCOUNTED = {
    "convolution input",
    "token ids",
    "encoder output",
    "position ids",
    "encoder position ids",
    "encoder random state",
    "encoder rotary table",
    "image places",
    "targets",
    "rotary table",
    "random state",
    "last norm statistics",
    "loss scalars",
    "expert offsets",
}


def document(model: dict[str, Any], plan: dict[str, Any], **training: Any) -> dict[str, Any]:
    ranks = prod(plan.get(name, 1) for name in ("tp", "cp", "pp", "dp"))
    return {
        "model": model,
        "cluster": "local" if "precision" in training else f"1x{ranks}xh100-sxm",
        "training": {"seq_length": 1024, "global_batch_size": 32, **training},
        "plan": {"zero_stage": 0, "runtime": "torch", **plan},
    }


def check(rank: RankReport, in_flight: bool = True) -> None:
    """Weights and gradients to the byte, activations row by row, what is left over by name.

    in_flight: as many micro-batches are in flight as the closed form of the schedule says.
    """
    traced, estimated = rank.traced, rank.estimated
    assert traced.parameter_bytes == estimated.parameter_bytes
    assert traced.gathered_bytes <= estimated.gathered_bytes
    assert traced.gradient_bytes == estimated.gradient_bytes
    steps = traced.optimizer_bytes - estimated.optimizer_bytes
    assert 0 <= steps <= 4 * 1000  # a count of four bytes for each of at most so many tensors
    rows = {one.term for one in rank.differences if not one.term.endswith("_bytes")}
    assert rows <= UNCOUNTED
    if in_flight:
        named = sum(one.bytes for one in rank.differences if one.term in UNCOUNTED)
        counted = traced.activation_bytes - named
        assert counted == pytest.approx(estimated.activation_bytes, rel=0.01)


@pytest.mark.exhaustive
def test_three_dimensions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """TP with SP, a pipeline and FSDP: the whole command, first and last stage, as JSON."""
    path = tmp_path / "request.json"
    path.write_text(json.dumps(document(LLAMA, SP | FSDP | {"pp": 2, "dp": 2})))
    assert run(["dryrun", str(path), "--ranks", "0,7", "--json"]) == 0
    out, err = capsys.readouterr()
    report = DryRunReport.model_validate_json(out)
    assert "tracing rank 7" in err
    assert (report.micro_batches, report.traced_micro_batches) == (16, 4)
    first, last = report.ranks
    check(first)
    check(last)
    sent = {(one.op, one.group): one for one in first.collectives}
    message = 1024 // 2 * 512 * 2
    assert (sent["send", "pp"].count, sent["send", "pp"].bytes) == (4, message)
    assert sent["receive", "pp"].bytes == message
    assert sent["all_gather", "tp"].ranks == 2
    assert sum(one.count for one in first.collectives if one.op == "reduce_scatter") > 4
    # Attention of one layer: the query of half the heads, in half precision.
    query = next(row for row in first.saved_tensors if row.name == "query")
    assert (query.shape, query.count, query.bytes) == ((1, 4, 1024, 64), 4, 2 * 4 * 1024 * 64)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "gpt-tp-sp-pp": (GPT, SP | {"pp": 2, "dp": 2}, {}),
    "gpt-alone": (GPT, {}, {}),
    "fp32": (LLAMA, {"micro_batch_size": 2}, {"precision": "fp32"}),
    "fsdp": (LLAMA, {"dp": 8, "zero_stage": 3}, {}),
    "hybrid": (LLAMA, {"dp": 4, "dp_shard": 2, "zero_stage": 3, "tp": 2}, {}),
    "muon": (LLAMA, SP | {"dp": 2, "zero_stage": 3}, {"optimizer": "muon"}),
    "muon-moe": (MOE, {"dp": 2, "ep": 2}, {"optimizer": "muon"}),
    "tied": (LLAMA | {"tied_embeddings": True}, SP | {"dp": 2} | FSDP, {}),
    "query-norms": (LLAMA | {"qk_norm": "head"}, SP | {"pp": 2}, {}),
    "all-to-all": (LLAMA, {"cp": 2, "cp_kind": "a2a", "dp": 2, "zero_stage": 3}, {}),
    "unfused": (LLAMA, {"pp": 2, "attention_kernel": "unfused"}, {}),
    "full": (LLAMA, SP | {"pp": 2} | FULL, {}),
    "full-by-stage": (
        LLAMA,
        {
            "pp": 4,
            "dp": 2,
            "recompute": "full",
            "recompute_num_layers": 2,
            "recompute_layers": [2, 1, 0, 0],
        },
        {},
    ),
    "full-some": (LLAMA, {"pp": 2, "recompute": "full", "recompute_num_layers": 1}, {}),
    "parts": (
        LLAMA,
        SP | {"pp": 2, "recompute": "selective", "recompute_modules": ["core_attn", "mlp"]},
        {},
    ),
    "uneven": (LLAMA, {"pp": 4, "stage_layers": [1, 3, 2, 2]} | {"dp": 2} | FSDP, {}),
    "gpipe": (LLAMA, {"pp": 4, "schedule": "gpipe"}, {}),
    "interleaved": (LLAMA, {"pp": 2, "vpp": 2, "schedule": "interleaved-1f1b"}, {}),
    "zb-v": (LLAMA, {"pp": 2, "vpp": 2, "schedule": "zb-v"}, {}),
    "experts": (MOE, {"pp": 2, "dp": 4, "ep": 4} | FSDP, {}),
    "experts-tp": (MOE, SP | {"dp": 2, "ep": 4} | FSDP, {}),
    "shared-experts": (LLAMA | {"moe": SHARED}, SP | {"dp": 2, "ep": 2} | FSDP, {}),
    "zero-experts": (PASSING, {"pp": 2, "dp": 2, "ep": 2} | FSDP, {}),
    "latent-experts": (EXPERT_LATENTS, SP | {"dp": 2, "ep": 2} | FSDP, {}),
    "mamba2-hybrid": (HYBRID, SP | {"pp": 2, "dp": 2}, {}),
    "mamba2-hybrid-full": (HYBRID, SP | {"pp": 2} | FULL, {}),
    "delta-net": (DELTA, {"dp": 2, "ep": 2} | FSDP, {}),
    "delta-net-tp": (DELTA, SP | {"dp": 2, "ep": 2} | FSDP, {}),
    "kimi-delta": (KIMI, {"pp": 2}, {}),
    "short-convolutions": (SHORT, SP | {"pp": 2}, {}),
    "lightning": (LIGHTNING, SP | {"pp": 2, "dp": 2} | FSDP, {}),
    "windows": (WINDOWS, SP | {"cp": 2, "cp_kind": "a2a", "pp": 2}, {}),
    "mamba": (MAMBA, {"pp": 2, "dp": 2} | FSDP, {}),
    "sinks": (SINKS, SP | {"cp": 2, "cp_kind": "a2a", "pp": 2}, {}),
    "per-layer-inputs": (PER_LAYER, {"dp": 2} | FSDP, {}),
    "streams": (STREAMS, {"pp": 2, "dp": 2}, {}),
    "indexer": (CHOSEN, {"dp": 2} | FSDP, {}),
    "compressed": (COMPRESSED, {"pp": 2, "dp": 2}, {}),
    "compressed-fsdp": (COMPRESSED, {"dp": 2} | FSDP, {}),
    "mamba2-hybrid-context": (HYBRID, A2A | {"pp": 2}, {}),
    "delta-net-context": (DELTA, A2A | {"dp": 2, "ep": 2} | FSDP, {}),
    "kimi-delta-context": (KIMI, A2A | {"pp": 2}, {}),
    "lightning-context": (LIGHTNING, A2A | {"dp": 2} | FSDP, {}),
    "recurrences-context": (RECURRENCES, A2A | {"pp": 2}, {}),
    "chosen-blocks": (CHOSEN_BLOCKS, {"dp": 2} | FSDP, {}),
    "cross": (CROSS, SP | {"pp": 2, "dp": 2}, {}),
    "latent": (LATENT, {"pp": 2, "dp": 2} | FSDP, {}),
    "latent-window": (LATENT_WINDOW, {"cp": 2, "cp_kind": "a2a", "pp": 2}, {}),
    "recurrences": (RECURRENCES, {"pp": 2, "dp": 2}, {}),
    "encoders": (SEEING, SP | {"pp": 2, "dp": 2}, {}),
    "encoders-apart": (LLAMA | {"encoders": [_VISION]}, SP | {"pp": 2, "stage_layers": [0, 8]}, {}),
    "encoders-apart-fsdp": (SEEING, {"pp": 2, "dp": 4, "stage_layers": [0, 8]} | FSDP, {}),
    "encoders-alone": (SEEING, {"attention_kernel": "unfused"}, {}),
    "encoders-recompute": (
        SEEING,
        {"dp": 2, "recompute": "selective", "recompute_modules": ["core_attn", "mlp"]} | FSDP,
        {},
    ),
    "encoders-context": (SEEING, SP | {"cp": 2, "cp_kind": "a2a", "dp": 2} | FSDP, {}),
    "encoders-frozen": (SEEING, {}, FROZEN),
    "encoders-frozen-fsdp": (SEEING, SP | {"pp": 2, "dp": 2} | FSDP, FROZEN),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_plan(case: str) -> None:
    model, plan, training = CASES[case]
    request = parse_request(document(model, plan, **training))
    for rank in dry_run(request, _ends(request)).ranks:
        check(rank, in_flight=case != "zb-v")


def _ends(request: Any) -> tuple[int, ...]:
    """A rank of the first stage, and one of the last."""
    return tuple({0, request.plan.accelerators - 1})


FULL_SCALE = {
    "gpt3": (
        {"model": "gpt3-175b", "cluster": "8x8xa100-sxm"},
        {"seq_length": 2048, "global_batch_size": 64},
        SP | {"tp": 8, "pp": 8, "zero_stage": 0},
        (0, 8, 63),
    ),
    "llama-405b": (
        {"model": "llama-3.1-405b", "cluster": "128x8xh100-sxm"},
        {"seq_length": 8192, "global_batch_size": 512},
        SP | FSDP | {"tp": 8, "pp": 16, "dp": 8, "first_stage_layers": 7, "last_stage_layers": 7},
        (0, 64, 1023),
    ),
    "mixtral-8x22b": (
        {"model": "mixtral-8x22b", "cluster": "8x8xh100-sxm"},
        {"seq_length": 4096, "global_batch_size": 64},
        FSDP | {"pp": 8, "dp": 8, "ep": 8},
        (0, 8, 63),
    ),
    "llama-70b": (
        {"model": "llama-2-70b", "cluster": "32x8xh100-sxm"},
        {"seq_length": 4096, "global_batch_size": 256},
        {"dp": 256, "zero_stage": 3},
        (0,),
    ),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", FULL_SCALE)
def test_full_scale_within_a_hundredth_a_minute_and_two_gib(case: str) -> None:
    names, training, plan, ranks = FULL_SCALE[case]
    request = parse_request({**names, "training": training, "plan": {**plan, "runtime": "torch"}})
    for rank in dry_run(request, ranks).ranks:
        check(rank)
        assert rank.cpu_seconds < 60
        assert rank.rss_bytes < 2 * 2**30


@pytest.mark.parametrize(
    ("ranks", "code"),
    [((8,), "out_of_range"), ((-1,), "out_of_range")],
)
def test_ranks_that_are_not_there(ranks: tuple[int, ...], code: str) -> None:
    request = parse_request(document(LLAMA, {"dp": 8}))
    with pytest.raises(RequestError) as caught:
        dry_run(request, ranks)
    assert [(p.pointer, p.code) for p in caught.value.problems] == [("/ranks", code)]


def test_adafactor_is_not_traced() -> None:
    asked = parse_request(document(LLAMA, {}, optimizer="adafactor"))
    with pytest.raises(RequestError, match="fake ones have none"):
        dry_run(asked)


@pytest.mark.parametrize("text", ["a", "1;2", "", "0,", "-1", "٣", "9" * 5000])
def test_hostile_ranks(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(document(LLAMA, {"dp": 8})))
    assert run(["dryrun", str(path), f"--ranks={text}", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["errors"][0]["pointer"] == "/ranks"


def test_too_many_ranks() -> None:
    request = parse_request(
        document(LLAMA, {"dp": 128})
        | {"cluster": "16x8xh100-sxm"}
        | {"training": {"seq_length": 1024, "global_batch_size": 128}}
    )
    with pytest.raises(RequestError, match="at most 64"):
        dry_run(request, range(65))


def test_a_plan_that_the_script_cannot_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(document(LLAMA | {"parallel_residual": True}, {"dp": 8})))
    assert run(["dryrun", str(path)]) == 2
    assert "parallel" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "said"),
    [(Limits(wall_s=0.5), "longer than 0.5 s"), (Limits(rss_bytes=2**20), "more than")],
)
def test_limits_end_the_trace(limits: Limits, said: str) -> None:
    request = parse_request(document(LLAMA, {"dp": 8}))
    with pytest.raises(TraceFailed, match=said):
        dry_run(request, (0,), limits)
    assert not _traces(os.getpid())


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "sign",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive),
        # As SIGKILL does, it ends the command without a word of its own.
        pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGKILL, marks=pytest.mark.exhaustive),
    ],
)
def test_no_trace_outlives_the_command(sign: int, tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(document(LLAMA, {"dp": 8})))
    command = [sys.executable, "-m", "planner.cli", "dryrun", str(path), "--ranks", "0"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, preexec_fn=interruptible
    ) as process:
        deadline = time.monotonic() + 600
        while not (own := _traces(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert own
        process.send_signal(sign)
        assert process.wait(600) != 0
    while _alive(own) and time.monotonic() < deadline + 600:
        time.sleep(0.05)
    assert not _alive(own)


def _traces(parent: int) -> set[int]:
    """Processes that trace a rank for another one."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return {int(child) for child in children if _is_trace(child)}


def _alive(processes: set[int]) -> bool:
    return any(_is_trace(str(process)) for process in processes)


def _is_trace(process: str) -> bool:
    try:
        return (
            b"planner.running.validate.dryrun.rank_trace\0"
            in Path(f"/proc/{process}/cmdline").read_bytes()
        )
    except OSError:
        return False
