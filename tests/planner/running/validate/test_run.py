"""Real runs: a split plan has the gradients of one process, and saves what the estimate says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planner.documents.request import PlanRequest
from planner.inputs.requests.parser import parse_request
from planner.running.validate import run, run_files
from planner.running.validate.rank_estimate import expected
from planner.running.validate.report import GRADIENT_TOLERANCE
from planner.running.validate.run_files import RankResult
from tests.fixtures.ranks import Ranks
from tests.fixtures.small_patterns import PATTERNS

LLAMA: dict[str, Any] = {
    "name": "llama", "num_layers": 4, "hidden_size": 32, "num_attention_heads": 4,
    "num_query_groups": 2, "head_dim": 8, "ffn_hidden_size": 64, "vocab_size": 512,
    "position": "rope", "norm": "rmsnorm", "gated_mlp": True, "tied_embeddings": False,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "gpt": {
        **LLAMA, "name": "gpt", "num_query_groups": 4, "position": "learned", "norm": "layernorm",
        "gated_mlp": False, "qkv_bias": True, "attention_output_bias": True, "mlp_bias": True,
        "max_position_embeddings": 16,
    },
    "moe": {
        **LLAMA, "name": "moe", "moe": {"num_experts": 4, "top_k": 2, "expert_ffn_hidden_size": 32},
    },
}  # fmt: skip
MODELS["zero experts"] = {
    **LLAMA, "name": "zero experts", "moe": {**MODELS["moe"]["moe"], "zero_experts": 2},
}  # fmt: skip
MODELS["latent experts"] = {
    **LLAMA, "name": "latent experts",
    "moe": {**MODELS["moe"]["moe"], "latent_size": 16, "latent_bias": True},
}  # fmt: skip
MODELS |= {
    name: {**LLAMA, "name": name, "layer_pattern": layers} for name, layers in PATTERNS.items()
}
_KIMI = PATTERNS["delta"][0][0] | {"channel_decays": True, "decay_rank": 4, "gate_rank": 4}
MODELS["channel decays"] = {
    **LLAMA,
    "name": "channel decays",
    "layer_pattern": [[_KIMI, {"kind": "mlp"}]],
}
MODELS["delta alone"] = {
    **LLAMA,
    "name": "delta alone",
    "layer_pattern": PATTERNS["delta"][:1],
}
MODELS["delta-experts"] = {
    **MODELS["moe"], "name": "delta-experts",
    "layer_pattern": [[mixer, {"kind": "experts"}] for mixer, _ in PATTERNS["delta"]],
}  # fmt: skip
MODELS["sinks"] = {
    **LLAMA, "name": "sinks", "num_query_groups": 4, "attention_sinks": True, "sliding_window": 4,
    "full_attention_period": 2,
}  # fmt: skip
_PER_LAYER = {"kind": "per_layer_input", "size": 16}
MODELS["per layer"] = {
    **LLAMA, "name": "per layer", "norm": "layernorm", "per_layer_input_size": 16,
    "layer_pattern": [
        [{"kind": "attention", "qk_norm": "head"}, {"kind": "mlp"}, _PER_LAYER],
        [{"kind": "attention", "key_values": "earlier"}, {"kind": "mlp"}, _PER_LAYER],
    ],
}  # fmt: skip
_CROSS = {"kind": "cross_attention", "tokens": 12}
MODELS["cross"] = {
    **LLAMA,
    "name": "cross",
    "layer_pattern": [[{"kind": "attention"}, _CROSS, {"kind": "mlp"}]],
}
MODELS["streams"] = {**LLAMA, "name": "streams", "residual_streams": 4}
MODELS["latent"] = {
    **LLAMA, "name": "latent", "norm": "layernorm",
    "mla": {
        "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
        "v_head_dim": 12,
    },
}  # fmt: skip
_CHOICE = {"num_heads": 2, "head_dim": 8, "top_k": 6}
MODELS["indexer"] = {
    **MODELS["latent"], "name": "indexer",
    "layer_pattern": [
        [{"kind": "latent_attention", "indexer": _CHOICE}, {"kind": "mlp"}],
        [{"kind": "attention", "indexer": _CHOICE}, {"kind": "mlp"}],
    ],
}  # fmt: skip
_BLOCKS = {"block_size": 4, "top_k": 8, "head_weights": False, "query_norm": True}
MODELS["blocks"] = {
    **LLAMA, "name": "blocks", "norm": "layernorm",
    "layer_pattern": [
        [{"kind": "attention", "indexer": _CHOICE | _BLOCKS}, {"kind": "mlp"}],
        [{"kind": "attention"}, {"kind": "mlp"}],
    ],
}  # fmt: skip
_COMPRESSED = {
    "kind": "compressed_attention", "q_lora_rank": 24, "o_lora_rank": 12, "o_groups": 2,
    "window": 4,
}  # fmt: skip
MODELS["compressed"] = {
    **LLAMA, "name": "compressed", "norm": "layernorm", "num_query_groups": 1,
    "attention_sinks": True,
    "layer_pattern": [
        [_COMPRESSED | {"compression": 2, "choice": {**_CHOICE, "top_k": 4}}, {"kind": "mlp"}],
        [_COMPRESSED | {"compression": 4}, {"kind": "mlp"}],
    ],
}  # fmt: skip
TP = {"tp": 2, "sequence_parallel": True}
FSDP = {"zero_stage": 3, "reshard_after_forward": True}
KEPT = {"zero_stage": 3, "reshard_after_forward": False}
CUBE = {"pp": 2, "dp": 2, **TP, **KEPT}
FULL = {"recompute": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def asked(model: str = "llama", batch: int = 8, **plan: Any) -> PlanRequest:
    """A request whose plan the script runs as it stands."""
    data = plan.get("dp", 1) * plan.get("cp", 1)
    usual = {
        "runtime": "torch", "cross_entropy": "unfused", "attention_kernel": "flash2",
        "micro_batch_size": 1, "zero_stage": 0, "cp_kind": "all_gather",
        "overlap_grad_reduce": plan.get("pp", 1) == 1 or data == 1,
    }  # fmt: skip
    training = {
        "seq_length": 16, "global_batch_size": batch, "precision": "fp32",
        "gradient_reduce_dtype": "fp32",
    }  # fmt: skip
    return parse_request(
        {"model": MODELS[model], "cluster": "local", "training": training, "plan": usual | plan}
    )


# Each dimension once, in runs of few ranks and micro-batches, of which a pipeline of two stages has
# more than it keeps; all of them at once are exhaustive.
FULL_TIER: dict[str, PlanRequest] = {
    "experts, ep2": asked("moe", batch=4, dp=2, ep=2, **FSDP),
}
EXHAUSTIVE: dict[str, PlanRequest] = {
    "tp2 pp2, 1f1b": asked(batch=4, schedule="1f1b", pp=2, **TP),
    "tp2 pp2, 1f1b, more micro-batches": asked(schedule="1f1b", pp=2, **TP),
    "experts, ep2, more micro-batches": asked("moe", dp=2, ep=2, **FSDP),
    "tp2 pp2 dp2, 1f1b": asked(schedule="1f1b", **CUBE),
    "dp2, zero 3": asked(dp=2, **FSDP),
    "cp2": asked(cp=2),
    "hybrid, tp2 pp2": asked("hybrid", pp=2, schedule="1f1b", **TP),
    "tp2 pp2 dp2, interleaved": asked(schedule="interleaved-1f1b", vpp=2, **CUBE, overlap_p2p=True),
    "tp2 pp2 dp2, zb-v": asked(schedule="zb-v", vpp=2, **CUBE, overlap_p2p=True),
    "tp2 pp2 dp2, gpt": asked("gpt", schedule="1f1b", **CUBE),
    "tp4": asked("gpt", tp=4, sequence_parallel=True),
    "tp2 without sequence parallelism": asked(tp=2),
    "pp4": asked(pp=4, schedule="1f1b"),
    "dp4, zero 0": asked(dp=4),
    "dp4, zero 1 and 2": asked(dp=4, **KEPT),
    "dp4, zero 3": asked(dp=4, **FSDP),
    "cp2, all-to-all": asked(cp=2, cp_kind="a2a"),
    "cp2, gpt": asked("gpt", cp=2),
    "full recompute": asked(dp=2, **FSDP, **FULL),
    "full recompute, pipeline": asked(pp=2, schedule="1f1b", **FULL),
    "selective recompute": asked(**TP, recompute="selective", recompute_modules=("core_attn",)),
    "selective recompute of the mlp": asked(
        "gpt", **TP, recompute="selective", recompute_modules=("core_attn", "mlp")
    ),
    "experts, ep4 of tp2": asked("moe", dp=2, ep=4, **TP, **FSDP),
    "zero experts, ep2": asked("zero experts", dp=2, ep=2, **FSDP),
    "latent experts, ep2 of tp2": asked("latent experts", ep=2, **TP, **FSDP),
    "hybrid, full recompute": asked("hybrid", dp=2, **FSDP, **FULL),
    "hybrid, zb-v": asked("hybrid", pp=2, schedule="zb-v", vpp=2, overlap_p2p=True, **TP),
    "delta nets, tp2 pp2": asked("delta", pp=2, schedule="1f1b", **TP),
    "delta nets and experts": asked("delta-experts", dp=2, ep=2, **TP, **FSDP),
    "short convolutions, tp2 pp2": asked("convolutions", pp=2, schedule="1f1b", **TP),
    "lightning, tp2 dp2": asked("lightning", dp=2, **TP, **FSDP),
    "windows, cp2": asked("windows", cp=2, cp_kind="a2a"),
    "sinks, tp2": asked("sinks", **TP),
    "sinks, cp2": asked("sinks", cp=2, cp_kind="a2a"),
    "inputs by layer and earlier keys, dp2": asked("per layer", dp=2, **FSDP),
    "inputs by layer and earlier keys, cp2": asked("per layer", cp=2),
    "streams, pp2": asked("streams", pp=2, schedule="1f1b"),
    "streams, dp2": asked("streams", dp=2, **FSDP),
    "indexer, pp2": asked("indexer", pp=2, schedule="1f1b"),
    "chosen blocks, pp2 dp2": asked("blocks", pp=2, dp=2, schedule="1f1b", **KEPT),
    "indexer, dp2": asked("indexer", dp=2, **FSDP),
    "compressed, pp2": asked("compressed", pp=2, schedule="1f1b"),
    "compressed, dp2": asked("compressed", dp=2, **FSDP),
    "cross, tp2": asked("cross", **TP),
    "cross, pp2": asked("cross", pp=2, schedule="1f1b"),
    "latent, cp2": asked("latent", cp=2),
    "latent, pp2": asked("latent", pp=2, schedule="1f1b"),
    **{
        f"{name}, cp2": asked(name, cp=2, cp_kind="a2a")
        for name in ("hybrid", "delta", "channel decays", "convolutions", "lightning")
    },
    "recurrences, cp4": asked("recurrences", cp=4, cp_kind="a2a"),
    "delta alone, cp2 of tp2": asked("delta alone", cp=2, cp_kind="a2a", **TP, **FULL),
    "recurrences, pp2 dp2": asked("recurrences", pp=2, dp=2, schedule="1f1b", **KEPT),
}  # fmt: skip
EVERY = {**FULL_TIER, **EXHAUSTIVE}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    one = Ranks()
    yield one
    one.close()


def ran(
    ranks: Ranks, folder: Path, request: PlanRequest, job: run_files.Job, count: int
) -> list[RankResult]:
    """The results of a job, each rank a process of its own."""
    run.prepare(folder, request, job)
    codes = ranks.run(folder, count)
    logs = "\n".join(path.read_text()[-3000:] for path in sorted(folder.glob("rank-*.log")))
    assert codes == [0] * count, logs
    return run.collect(folder, count)


@pytest.fixture(scope="module")
def reference(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a model's gradients of a batch, of one process."""

    @cache
    def alone(model: str, batch: int) -> Path:
        folder = tmp_path_factory.mktemp("reference") / model
        request = asked(model, batch)
        ran(ranks, folder, request, run.alone(request), 1)
        return folder / run_files.GRADIENTS

    return alone


# What autograd saves in a real run on CPUs and the estimate has no row for, and why.
UNCOUNTED = {
    "encoder output": "made up, and one for all layers",
    "token ids": "token ids in int64, of all micro-batches at once",
    "position ids": "position numbers in int64",
    "targets": "token ids in int64",
    "loss scalars": "one number per micro-batch",
    "rotary table": "cosines and sines, one table for all layers",
    "last norm statistics": "one number per token",
    "window mask": "one for all layers",
    "causal mask": "over gathered keys: what a rank's two parts do not see",
    "attention output by heads": "over gathered keys: outputs of the two parts, before they join",
}
# Other names of the same rows, by the operators of a CPU.
ALIASES = {
    "query": "attention inputs", "key": "attention inputs", "value": "attention inputs",
    "attention.core: cat": "attention inputs",
    "mlp: native_layer_norm": "mlp norm output",
    "mlp: div.Tensor": "routing",
    "expert input": "experts", "expert fc1 output": "experts", "expert gate output": "experts",
    "expert activation output": "experts",
}  # fmt: skip


# Rows of copies for experts.  With some that pass their tokens on, how many is for the router.
COPIES, COPIES_TOLERANCE = {"experts", "combine input", "routing"}, 0.02


def unexplained(request: PlanRequest, ranks: list[RankResult]) -> dict[str, tuple[int, int]]:
    """Bytes of rows that are not as estimated: of all ranks, saved and expected.

    Of all ranks, since only together do they have as many tokens for experts as were sent.
    """
    plan = request.plan
    assert plan is not None
    found: Counter[str] = Counter()
    wanted: Counter[str] = Counter()
    for rank in ranks:
        estimate = expected(request, rank.rank * plan.pp // rank.ranks)
        for rows, theirs in zip(rank.saved_tensors, estimate.saved, strict=True):
            for row in rows:
                found[ALIASES.get(row.name, row.name)] += row.bytes * row.count
            for name, value in theirs.items():
                wanted[ALIASES.get(name, name)] += round(factor(name, request) * value)
    extra = {name for name in UNCOUNTED if not wanted[name]}
    if request.model.moe is not None and request.model.moe.zero_experts:
        near = {name for name in COPIES if abs(found[name] / wanted[name] - 1) < COPIES_TOLERANCE}
        extra |= near
    return {
        name: (found[name], wanted[name])
        for name in {*found, *wanted} - extra
        if found[name] != wanted[name]
    }


def factor(row: str, request: PlanRequest) -> float:
    """How much of a row torch saves on CPUs, where the estimate is of GPUs or of Megatron."""
    plan = request.plan
    assert plan is not None
    if request.model.norm == "rmsnorm" and row.endswith(" norm input"):
        return 2.0  # not fused there: the normed rows are kept as well
    if row == "per-layer inputs":
        return 1.5  # their norm is not fused there either
    if row in ("key", "value") and plan.cp_kind == "all_gather":
        return float(plan.cp)  # those of all ranks, as they were gathered
    if row == "convolution input" and plan.cp == 1:
        return 1 + 2 / request.training.seq_length  # three taps, with zeros before the first token
    return 1.0


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in FULL_TIER),
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in EXHAUSTIVE),
    ],
)
def test_gradients_and_saved_tensors(
    name: str, ranks: Ranks, reference: Any, tmp_path: Path
) -> None:
    request = EVERY[name]
    assert request.plan is not None
    gradients = reference(request.model.name, request.training.global_batch_size)
    job = run_files.Job(
        warmup_steps=2, steps=0, profiled_steps=0, gradients="compare", reference=str(gradients)
    )
    found = ran(ranks, tmp_path / "run", request, job, request.plan.accelerators)
    errors = {key: value for rank in found for key, value in rank.gradient_errors.items()}
    assert set(errors) == {path.stem for path in gradients.glob("*.pt")}
    assert max(errors.values()) <= GRADIENT_TOLERANCE
    assert all(rank.losses == found[0].losses for rank in found)
    first, second = found[0].losses[:2]
    assert abs(first - math.log(request.model.vocab_size)) < 0.5
    assert second < first
    assert unexplained(request, found) == {}


@pytest.mark.exhaustive
def test_a_wrong_gradient_is_found(ranks: Ranks, reference: Any, tmp_path: Path) -> None:
    job = run_files.Job(
        words=("rotary_base=9000.0",), warmup_steps=0, steps=0, profiled_steps=0, memory=False,
        gradients="compare", reference=str(reference("llama", 4)),
    )  # fmt: skip
    (found,) = ran(ranks, tmp_path / "run", asked(batch=4, dp=1), job, 1)
    wrong = {name for name, error in found.gradient_errors.items() if error > GRADIENT_TOLERANCE}
    assert "blocks.0.attention.query.weight" in wrong
    assert max(found.gradient_errors.values()) < 0.5  # so little is wrong
