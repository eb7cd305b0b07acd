"""Nanotron bundles: its config classes, its own code if there is a checkout, refusals, reader."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cost_models.balanced_layers import stages
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner import frameworks
from planner.documents.request import PlanRequest
from planner.frameworks.nanotron import reader
from planner.frameworks.nanotron.settings import ENGINES
from planner.frameworks.rank_orders import grids, order_of
from tests.fixtures.frameworks.nanotron import (
    BF16,
    CASES,
    RUNS,
    WIDE,
    changed,
    drawn,
    full,
    pipeline,
    split,
)
from tests.fixtures.goldens import GOLDEN
from tests.fixtures.launches import (
    FIRST_NODE,
    LLAMA,
    MODELS,
    launch,
    run_script,
    unreached,
    written,
)
from tests.fixtures.tiers import examples
from tests.tools.checkouts import checkout, environment

NANOTRON = frameworks.get("nanotron")
CLASSES: dict[str, dict[str, Any]] = json.loads((GOLDEN / "nanotron_config.json").read_text())[
    "classes"
]
# The dataclasses of each section; several where any of them may stand there.
SECTIONS: dict[str, list[str]] = {
    "": ["Config"],
    "general": ["GeneralArgs"],
    "parallelism": ["ParallelismArgs"],
    "model": ["ModelArgs"],
    "model.model_config": ["Qwen2Config", "LlamaConfig", "Starcoder2Config"],
    "model.model_config.moe_config": ["MoEConfig"],
    "model.init_method": ["RandomInit", "SpectralMupInit", "ExistingCheckpointInit"],
    "tokenizer": ["TokenizerArgs"],
    "checkpoints": ["CheckpointsArgs"],
    "logging": ["LoggingArgs"],
    "metrics_logging": ["MetricsLoggingArgs"],
    "tokens": ["TokensArgs"],
    "optimizer": ["OptimizerArgs"],
    "optimizer.optimizer_factory": ["AdamWOptimizerArgs", "SGDOptimizerArgs"],
    "optimizer.learning_rate_scheduler": ["LRSchedulerArgs"],
    "data_stages.*": ["DatasetStageArgs"],
    "data_stages.*.data": ["DataArgs"],
    "data_stages.*.data.dataset": [
        "PretrainDatasetsArgs",
        "NanosetDatasetsArgs",
        "SFTDatasetsArgs",
    ],
    "profiler": ["ProfilerArgs"],
    "s3_upload": ["S3UploadArgs"],
    "lighteval": ["LightEvalConfig"],
    "lighteval.generation": ["GenerationArgs"],
    "lighteval.tasks": ["LightEvalTasksArgs"],
    "lighteval.logging": ["LightEvalLoggingArgs"],
    "lighteval.wandb": ["LightEvalWandbLoggerConfig"],
    "lighteval.slurm": ["LightEvalSlurm"],
}


def test_the_known_keys_are_those_of_the_dataclasses() -> None:
    assert set(reader.KEYS) == set(SECTIONS)
    for section, classes in SECTIONS.items():
        assert reader.KEYS[section] == {field for one in classes for field in CLASSES[one]}
        if len(classes) == 1:
            must = {
                field
                for field, (kind, required) in CLASSES[classes[0]].items()
                if required and not optional(kind)
            }
            assert set(reader.REQUIRED[section]) == must


def optional(kind: str) -> bool:
    return kind.startswith("Optional") or "NoneType" in kind


def misfits(document: Any, section: str = "") -> list[str]:
    """What dacite would refuse, by the stored dataclasses: unknown, missing, wrong types."""
    return min((_misfits(document, section, name) for name in SECTIONS[section]), key=len)


def _misfits(document: Any, section: str, name: str) -> list[str]:
    fields, found = CLASSES[name], []
    for key, (kind, required) in fields.items():
        if key not in document and required and not optional(kind):
            found.append(f"{name}.{key} is missing")
    for key, value in document.items():
        kind = fields.get(key, [""])[0]
        inner = f"{section}.{key}".lstrip(".")
        if not kind:
            found.append(f"{name}.{key} is unknown")
        elif value is None:
            found += [] if optional(kind) else [f"{inner} cannot be null"]
        elif isinstance(value, dict):
            found += misfits(value, inner)
        elif isinstance(value, list) and f"{inner}.*" in SECTIONS:
            found += [fault for item in value for fault in misfits(item, f"{inner}.*")]
        elif type(value).__name__ not in kind.lower() and not (
            isinstance(value, str) and re.search("dtype|Path|Engine|LinearMode|Literal", kind)
        ):
            found.append(f"{inner} wants {kind}, got {value!r}")
    return found


def config_of(case: tuple[PlanRequest, ParallelPlan]) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(NANOTRON.write(*case).files["config.yaml"])
    return document


@pytest.mark.parametrize("case", CASES)
def test_every_key_exists_and_fits_its_type(case: str) -> None:
    document = config_of(CASES[case])
    assert misfits(document) == []
    assert misfits({**document, "tokens": {**document["tokens"], "micro_batch": 1}})
    assert misfits({**document, "parallelism": {**document["parallelism"], "tp": "2"}})


@settings(max_examples=examples(150), deadline=None)
@given(case=drawn())
def test_every_drawn_key_exists_and_fits(case: tuple[PlanRequest, ParallelPlan]) -> None:
    if not NANOTRON.reasons(*case):
        assert misfits(config_of(case)) == []


def test_the_launch_line_starts_the_planned_processes(tmp_path: Path) -> None:
    main = written(tmp_path, NANOTRON.write(*CASES["wide-3d"]))
    ((_, *words),) = run_script(tmp_path, main.name, variables=FIRST_NODE)
    assert words[:4] == ["--nnodes", "2", "--nproc_per_node", "8"]
    assert words[-3:-1] == ["./run_train.py", "--config-file"]
    assert Path(words[-1]).name == "config.yaml"


@pytest.mark.parametrize("pp", [1, 2, 4, 8])
@pytest.mark.parametrize("model", [WIDE, MODELS["llama"], MODELS["qwen2"]])
def test_stages_hold_all_layers_and_the_first_more_than_its_share(
    model: ModelSpec, pp: int
) -> None:
    counts = stages(model, pp, 1)
    assert len(counts) == pp
    assert sum(counts) == model.num_layers
    # A stage takes the block that passes its share.
    assert pp == 1 or counts[0] > model.num_layers / pp


# With nanotron's own code.

ORACLE = Path(__file__).parents[2] / "oracles" / "nanotron_check.py"


def oracle(command: str, cases: list[dict[str, Any]] | None = None) -> Any:
    result = subprocess.run(
        [sys.executable, ORACLE, command],
        env=environment(NANOTRON_PATH=checkout("huggingface/nanotron")),
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.split("ANSWERS")[-1])


@pytest.mark.exhaustive
def test_the_stored_dataclasses_are_those_of_the_checkout() -> None:
    assert oracle("fields") == CLASSES


def question(request: PlanRequest, plan: ParallelPlan) -> dict[str, Any]:
    """The config of a plan, written whether it is legal or not."""
    config = NANOTRON.render(request, plan).files["config.yaml"]
    return {
        "config": config.replace("expert_parallel_size: 1", f"expert_parallel_size: {plan.ep}"),
        "world": request.cluster.accelerators,
        "local": request.cluster.groups[0].accelerators_per_node,
    }


def understood(request: PlanRequest, plan: ParallelPlan) -> dict[str, Any]:
    """What nanotron must make of it."""
    model, training, moe = request.model, request.training, request.model.moe
    grid, _ = grids(order_of("nanotron", plan), plan)
    kinds = [i for i, kind in enumerate(model.feed_forwards) if kind == "moe"]
    return {
        "model": "Qwen2Config",
        "layers": model.num_layers,
        "vocab_size": model.vocab_size,
        "experts": moe and [moe.num_experts, moe.top_k, kinds, moe.shared_expert_gate],
        "engine": ENGINES[plan.schedule] if plan.pp > 1 else "1f1b",
        "tp_mode": "REDUCE_SCATTER" if plan.sequence_parallel else "ALL_REDUCE",
        "async": plan.overlap_tp,
        "recompute": plan.recompute == "full",
        "dtype": "torch.bfloat16",
        "optimizer": {"adam": "adamW", "sgd": "sgd"}[training.optimizer],
        "zero_stage": plan.zero_stage,
        "fp32": training.gradient_dtype == "fp32",
        "global_batch_size": training.global_batch_size,
        "sequence_length": training.seq_length,
        "data": None,
        "groups": {axis: grid.groups(axis)[0].tolist() for axis in ("tp", "dp", "pp")},
        "stages": list(plan.stage_layers) or [model.num_layers // plan.pp] * plan.pp,
    }


@st.composite
def either(draw: st.DrawFn) -> tuple[PlanRequest, ParallelPlan]:
    """Degrees and models of which nanotron's own code takes some and refuses the others."""
    pick = lambda *values: draw(st.sampled_from(values))  # noqa: E731
    tp, pp, dp = pick(1, 2, 3, 4), pick(1, 2, 4), pick(1, 2)
    heads = pick(4, 6, 8, 12)
    groups = pick(*(n for n in range(1, heads + 1) if heads % n == 0 and (n % tp == 0 or n < tp)))
    model = ModelSpec(
        num_layers=pick(4, 7, 12),
        hidden_size=48 * heads,
        num_attention_heads=heads,
        num_query_groups=groups,
        ffn_hidden_size=pick(768, 3072),
        vocab_size=pick(1200, 36000),
        moe=pick(None, None, {"num_experts": 4, "top_k": 2, "expert_ffn_hidden_size": 96}),
        **LLAMA,
    )
    counts = stages(model, pp, tp)
    wanted = split(model, pp, tp) if min(counts) else ()
    if pp > 1 and draw(st.booleans()):
        wanted = pick(wanted, (), (model.num_layers - pp + 1, *[1] * (pp - 1)))
    plan: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "dp": dp,
        "ep": pick(1, 1, 2) if model.moe is not None else 1,
        "sequence_parallel": tp > 1 and (model.moe is not None or draw(st.booleans())),
        "stage_layers": wanted,
        "schedule": pick("1f1b", "gpipe"),
        **RUNS,
    }
    shape = (1, pick(1, 1, 1, 2) * tp * pp * dp)
    batch = {"global_batch_size": 16 * dp, "seq_length": 768}
    return launch(model, shape, training=batch, **plan)


@pytest.mark.exhaustive
def test_what_is_written_is_understood_as_planned() -> None:
    legal: list[tuple[PlanRequest, ParallelPlan]] = list(CASES.values())
    collect(drawn(), legal, 200, lambda case: not NANOTRON.reasons(*case))
    for case, answer in zip(legal, oracle("check", [question(*c) for c in legal]), strict=True):
        assert answer == understood(*case)


@pytest.mark.exhaustive
def test_rules_and_nanotron_agree_on_what_can_be_started() -> None:
    cases: list[tuple[PlanRequest, ParallelPlan]] = []
    collect(either(), cases, 200, lambda case: True)
    answers = oracle("check", [question(*case) for case in cases])
    verdicts = []
    for case, answer in zip(cases, answers, strict=True):
        starts = isinstance(answer, dict) and answer == understood(*case)
        assert starts == (not NANOTRON.reasons(*case)), (answer, NANOTRON.reasons(*case))
        verdicts.append(starts)
    assert min(verdicts.count(True), verdicts.count(False)) > 40


def collect(strategy: Any, into: list[Any], count: int, wanted: Any) -> None:
    """So many draws that are wanted."""
    end = len(into) + count

    @settings(
        max_examples=20 * count,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def gather(case: Any) -> None:
        if len(into) < end and wanted(case):
            into.append(case)

    gather()
    assert len(into) == end


# Refusals.


def runs(model: str | ModelSpec = "llama", shape: tuple[int, int] = (2, 8), **plan: Any) -> Any:
    return launch(model, shape, **{**RUNS, **plan})


def experts(**update: Any) -> ModelSpec:
    moe = MODELS["mixtral"].moe
    assert moe is not None
    return changed("mixtral", moe={**moe.model_dump(), **update})


SHARED_RULES = unreached(frameworks.get("megatron"), [])
SELECTIVE: dict[str, Any] = {"recompute": "selective", "recompute_modules": ("core_attn",)}
PP4 = pipeline(WIDE, 4)
REFUSED: list[tuple[str, str, Any]] = [
    ("framework_unsupported", "momentum, not Adafactor", runs(training={"optimizer": "adafactor"})),
    ("framework_unsupported", "RMSNorm", runs("gpt")),
    ("framework_unsupported", "MLP is gated", runs("nope")),
    ("framework_unsupported", "rotary", runs("gpt")),
    ("framework_unsupported", "no dropout", runs("gpt")),
    ("framework_unsupported", "only the query/key/value", runs("gpt")),
    ("framework_unsupported", "two norms", runs(changed("llama", norms_per_layer=4))),
    ("framework_unsupported", "after the embedding", runs(changed("llama", embedding_norm=True))),
    ("framework_unsupported", "in parallel", runs(changed("llama", parallel_residual=True))),
    ("framework_unsupported", "queries and keys", runs(changed("llama", qk_norm="head"))),
    ("framework_unsupported", "latent", runs("deepseek-v3")),
    ("framework_unsupported", "multi-token", runs("deepseek-v3")),
    ("framework_unsupported", "without groups", runs("deepseek-v3")),
    ("framework_unsupported", "sinks", runs("gpt-oss")),
    ("framework_unsupported", "applies to every layer", runs("gpt-oss")),
    ("framework_unsupported", "have no biases", runs("gpt-oss")),
    (
        "framework_unsupported",
        "have no sliding window",
        runs(changed("llama", position="none", sliding_window=8)),
    ),
    ("framework_unsupported", "head width must be", runs(changed("llama", head_dim=64))),
    (
        "framework_unsupported",
        "always has a gate",
        runs(experts(shared_expert_ffn_hidden_size=64)),
    ),
    ("framework_unsupported", "more than 10 tokens", runs(training={"seq_length": 8})),
    ("framework_unsupported", "runtime is nanotron, not deepspeed", runs(runtime="deepspeed")),
    ("kv_heads", "do not divide over tp 8", runs(tp=8)),
    ("cp_seq", "random weights", runs(cp=2)),
    ("framework_unsupported", "its rank grid", runs("mixtral", ep=2)),
    (
        "framework_unsupported",
        "alltoall or allgather",
        runs("mixtral", ep=2, moe_dispatcher="deepep"),
    ),
    ("layers_not_divisible", "needs stage_layers 9, 8, 9, 6", runs(WIDE, pp=4)),
    (
        "layers_not_divisible",
        "stages get none",
        runs("qwen2", pp=4),
    ),
    ("layers_not_divisible", "needs pp > 1", runs(stage_layers=(16,))),
    (
        "framework_unsupported",
        "not zb-h1",
        runs(WIDE, schedule="zb-h1", **PP4),
    ),
    ("framework_unsupported", "the grid is fixed", runs(WIDE, rank_order="tp-cp-ep-pp-dp", **PP4)),
    ("zero_stage", "zero_stage is 0 or 1, not 3", runs(zero_stage=3, training=BF16)),
    ("zero_stage", "NotImplementedError", runs(zero_stage=1)),
    ("zero_stage", "over all data-parallel ranks", runs(zero_stage=1, dp_shard=8, training=BF16)),
    ("recompute", "whole layers", runs(**SELECTIVE)),
    ("recompute", "16 layers, got 1", runs(recompute="full", recompute_num_layers=1)),
    ("recompute", "not uniform", runs(recompute_method="uniform", **full(MODELS["llama"]))),
    ("offload", "nothing is offloaded", runs(offload_optimizer=True)),
    ("framework_unsupported", "not flash", runs(attention_kernel="flash")),
    ("framework_unsupported", "fp32 copy", runs(cross_entropy="fused")),
    ("framework_unsupported", "during the backward pass", runs(overlap_grad_reduce=False)),
    (
        "framework_unsupported",
        "gathered after the step",
        runs(zero_stage=1, overlap_param_gather=True, training=BF16),
    ),
    ("framework_unsupported", "needs tp_mode", runs(tp=2, overlap_tp=True)),
    ("framework_unsupported", "compiled", runs(compile=True)),
    ("framework_unsupported", "no loss scaling", runs(training={"precision": "fp16"})),
    (
        "framework_unsupported",
        "no master copy",
        runs(training={"gradient_dtype": "bf16"}),
    ),
]


@pytest.mark.parametrize(("code", "text", "case"), REFUSED, ids=[text for _, text, _ in REFUSED])
def test_refusals(code: str, text: str, case: tuple[PlanRequest, ParallelPlan]) -> None:
    reasons = NANOTRON.reasons(*case)
    assert [r for r in reasons if r.code == code and text in r.text], reasons


def test_every_rule_is_reached_by_a_refusal() -> None:
    assert unreached(NANOTRON, [case for *_, case in REFUSED]) <= SHARED_RULES
