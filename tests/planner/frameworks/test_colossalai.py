"""ColossalAI scripts: arguments its plugins have, the real plugins and policies, every refusal."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner import frameworks
from planner.constraints import Context
from planner.documents.request import PlanRequest
from planner.frameworks.colossalai.settings import plugin
from planner.huggingface.importer import model_from_config
from tests.fixtures.frameworks import legal_cases
from tests.fixtures.frameworks.colossalai import CASES, DRAWN, PIPED, QWEN3, runs
from tests.fixtures.goldens import GOLDEN
from tests.fixtures.launches import (
    INTERLEAVED,
    MODELS,
    TP2,
    run_script,
    unreached,
    written,
)
from tests.fixtures.tiers import examples
from tests.tools.checkouts import checkout, environment

COLOSSAL = frameworks.get("colossalai")
CLASSES = json.loads((GOLDEN / "colossalai_fields.json").read_text())["classes"]
ORACLE = Path(__file__).parents[2] / "oracles" / "colossalai_check.py"
Case = tuple[PlanRequest, ParallelPlan]


def train(request: PlanRequest, plan: ParallelPlan) -> str:
    return COLOSSAL.write(request, plan).files["train.py"]


def built(source: str) -> ast.Call:
    """The call that builds the plugin."""
    (function,) = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "plugin"
    ]
    (statement,) = function.body
    assert isinstance(statement, ast.Return)
    assert isinstance(statement.value, ast.Call)
    return statement.value


def fits(value: ast.expr, annotation: str) -> bool:
    """Whether an argument annotated so takes the value."""
    if isinstance(value, ast.Attribute):
        return annotation == f"Optional[{ast.unparse(value.value)}.dtype]"
    if isinstance(value, ast.Call):
        name = ast.unparse(value.func)
        if name.endswith("get_v_schedule"):
            return annotation == "List"
        return name in annotation or name.removeprefix("Pipeline") in annotation
    kind = type(ast.literal_eval(value)).__name__
    plain = annotation.removeprefix("Optional[").removesuffix("]").lower()
    return plain == kind or plain.startswith(f"{kind}[") or (kind, plain) == ("int", "float")


def misfits(source: str) -> list[str]:
    """What the plugins would not take, by their stored list."""
    call = built(source)
    known = CLASSES[ast.unparse(call.func)]
    found = []
    for one in call.keywords:
        if one.arg not in known:
            found.append(f"there is no {one.arg}")
        elif not fits(one.value, known[one.arg]):
            found.append(f"{one.arg} cannot be {ast.unparse(one.value)}")
    return found


@pytest.mark.parametrize("case", CASES)
def test_every_argument_exists_and_takes_its_value(case: str) -> None:
    assert misfits(train(*CASES[case])) == []


@settings(max_examples=examples(100), deadline=None)
@given(drawn=DRAWN)
def test_every_drawn_argument_exists_and_the_config_is_the_model(drawn: Case) -> None:
    request, plan = drawn
    if COLOSSAL.reasons(request, plan):
        return
    files = COLOSSAL.write(request, plan).files
    assert misfits(files["train.py"]) == []
    read = model_from_config(json.loads(files["config.json"])).model
    free = {"name": "", "max_position_embeddings": None}
    if "dense" not in request.model.feed_forwards:
        free["ffn_hidden_size"] = 1
    assert read.model_copy(update=free) == request.model.model_copy(update=free)


def test_the_stored_list_would_catch_a_wrong_argument() -> None:
    source = train(*CASES["llama-zb-v"])
    wrong = (
        source.replace("tp_size=", "tensor_size=")
        .replace("pp_size=4", 'pp_size="4"')
        .replace("torch.bfloat16,  # gradient", "torch.nn.silu,  # gradient")
        .replace('precision="bf16"', "precision=16")
    )
    assert len(misfits(wrong)) == 4


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("llama-gemini", "GeminiPlugin"),
        ("llama-zero2", "HybridParallelPlugin"),
        ("mixtral-experts", "MoeHybridParallelPlugin"),
    ],
)
def test_the_plugin_is_the_one_that_shards_so(case: str, name: str) -> None:
    request, plan = CASES[case]
    assert plugin(Context(request.model, request.cluster, request.training), plan) == name
    assert ast.unparse(built(train(request, plan)).func) == name


def test_the_script_starts_the_training_beside_it_on_every_node(tmp_path: Path) -> None:
    made = COLOSSAL.write(*CASES["llama-zero2"])
    written(tmp_path, made)
    ((launcher, *call),) = run_script(tmp_path, made.main)
    assert launcher == "torchrun"
    assert call[-1] == str(tmp_path / "train.py")
    assert call[call.index("--nnodes") + 1] == "2"
    assert 'STEPS = int(os.environ.get("TRAIN_ITERS") or 20)' in made.files["train.py"]
    assert "the 1e+12 tokens asked for are" in made.files["train.py"]


# field of the plan -> a case and another legal value; what is written must differ.
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "tp": ("qwen3-recompute", {"tp": 2, "dp": 8}),
    "sequence_parallel": ("llama-zero2", {"sequence_parallel": False}),
    "cp": ("llama-ulysses", {"cp": 2, "dp": 8}),
    "cp_kind": ("llama-ulysses", {"cp_kind": "p2p"}),
    "pp": ("gpt-3d", {"pp": 4, "dp": 2}),
    "vpp": ("llama-zb-v", {"vpp": 4, "schedule": "interleaved-1f1b"}),
    "schedule": ("llama-zb-v", {"schedule": "interleaved-1f1b"}),
    "dp": ("gpt-3d", {"pp": 4, "dp": 2}),
    "ep": ("mixtral-experts", {"ep": 2}),
    "zero_stage": ("llama-zero2", {"zero_stage": 1}),
    "micro_batch_size": ("llama-uneven", {"micro_batch_size": 2}),
    "recompute": ("llama-uneven", {"recompute": "none", "recompute_num_layers": 0}),
    "recompute_method": (
        "llama-uneven",
        {"recompute_method": "uniform", "recompute_num_layers": 1},
    ),
    "recompute_num_layers": ("llama-uneven", {"recompute_num_layers": 1}),
    "recompute_layers": ("llama-uneven", {"recompute_layers": (2, 1, 1, 0)}),
    "first_stage_layers": ("llama-uneven", {"first_stage_layers": 5}),
    "last_stage_layers": ("llama-uneven", {"last_stage_layers": 5}),
    "stage_layers": ("llama-explicit-stages", {"stage_layers": (3, 3, 5, 5)}),
    "rank_order": ("llama-uneven", {"rank_order": "tp-cp-ep-pp-dp"}),
    "offload_optimizer": ("llama-zero2", {"offload_optimizer": True}),
    "attention_kernel": ("llama-zero2", {"attention_kernel": "unfused"}),
    "overlap_grad_reduce": ("llama-zero2", {"overlap_grad_reduce": False}),
    "overlap_param_gather": ("llama-zero2", {"overlap_param_gather": False}),
    "overlap_p2p": ("llama-interleaved", {"overlap_p2p": True}),
}


def test_the_table_of_changes_covers_every_supported_field() -> None:
    supported = {name for name, field in COLOSSAL.fields.items() if field.supported}
    assert set(CHANGES) == supported


@pytest.mark.parametrize("field", CHANGES)
def test_every_supported_field_reaches_the_script(field: str) -> None:
    case, update = CHANGES[field]
    request, plan = CASES[case]
    other = ParallelPlan(**{**plan.model_dump(), **update})
    before, after = (
        {(flag.name, flag.value) for flag in COLOSSAL.write(request, one).flags}
        for one in (plan, other)
    )
    differing = {name for name, _ in before ^ after}
    derived = {"dp"}  # no argument: what the other sizes leave of the world
    assert differing
    assert field in derived or differing & set(COLOSSAL.fields[field].names), differing


def test_every_name_in_the_field_table_is_written_somewhere() -> None:
    given = {flag.name for case in CASES.values() for flag in COLOSSAL.write(*case).flags}
    said = {name for field in COLOSSAL.fields.values() for name in field.names}
    assert said <= given | {"--nnodes", "--nproc_per_node"}


def changed(model: str, **update: Any) -> ModelSpec:
    return ModelSpec(**{**MODELS[model].model_dump(), **update})


FULL: dict[str, Any] = {"recompute": "full"}
REFUSED: list[tuple[str, str, Case]] = [
    ("framework_unsupported", "its own variant", runs(training={"optimizer": "adafactor"})),
    ("framework_unsupported", "no family of transformers", runs("deepseek-v3")),
    ("framework_unsupported", "gpt_oss models are not among", runs("gpt-oss")),
    ("framework_unsupported", "no sliding window", runs("gpt-oss")),
    (
        "framework_unsupported",
        "has no dropout",
        runs(changed("llama", attention_dropout=0.1)),
    ),
    ("framework_unsupported", "fp8: its fp8", runs(training={"precision": "fp8"})),
    (
        "framework_unsupported",
        "states are always fp32",
        runs(training={"optimizer_state_dtype": "bf16"}),
    ),
    (
        "framework_unsupported",
        "not fp32",
        runs(training={"gradient_dtype": "fp32"}),
    ),
    (
        "framework_unsupported",
        "fp32 with ZeRO 0",
        runs(training={"gradient_reduce_dtype": "fp32"}, zero_stage=0),
    ),
    ("framework_unsupported", "not sgd", runs(training={"optimizer": "sgd"}, zero_stage=3)),
    ("framework_unsupported", "1024 rows", runs(changed("gpt", max_position_embeddings=1024))),
    ("kv_heads", "4 key/value heads do not divide over tp 8", runs(tp=8)),
    ("cp_seq", "by all-to-all, not p2p", runs(QWEN3, cp=2)),
    ("cp_seq", "gpt2 models do not split", runs("gpt", cp=2, cp_kind="a2a")),
    ("cp_seq", "or ring attention (p2p), not all_gather", runs(cp=2, cp_kind="all_gather")),
    ("cp_seq", "exclude each other", runs(cp=2, **TP2)),
    ("cp_seq", "puts cp inside tp", runs(cp=2, cp_kind="a2a", tp=2)),
    ("experts_not_divisible", "etp = tp", runs("mixtral", etp=2)),
    (
        "framework_unsupported",
        "cannot split the sequence in a pipeline",
        runs("mixtral", etp=2, **TP2, **PIPED),
    ),
    ("framework_unsupported", "not gpipe", runs(schedule="gpipe", **PIPED)),
    ("layers_not_divisible", "got 0,8,8,0", runs(stage_layers=(0, 8, 8, 0), **PIPED)),
    (
        "layers_not_divisible",
        "split evenly",
        runs(
            changed("llama", num_layers=14),
            first_stage_layers=3,
            last_stage_layers=3,
            **{**PIPED, **INTERLEAVED},
        ),
    ),
    (
        "schedule_micro_batches",
        "at least pp 4",
        runs(training={"global_batch_size": 8}, **PIPED),
    ),
    (
        "framework_unsupported",
        "untied",
        runs("qwen2", vpp=2, schedule="zb-v", **{**PIPED, "pp": 2}),
    ),
    ("framework_unsupported", "runtime is torch, not megatron", runs(runtime="megatron")),
    ("framework_unsupported", "modified in place", runs(compile=True)),
    ("zero_stage", "cannot split the sequence", runs(zero_stage=3, **TP2)),
    (
        "zero_stage",
        "a pipeline needs",
        runs(zero_stage=2, reshard_after_forward=False, **PIPED),
    ),
    ("zero_stage", "MoE models need", runs("mixtral", zero_stage=2)),
    ("zero_stage", "always frees", runs(zero_stage=3, reshard_after_forward=False)),
    ("zero_stage", "span all data-parallel ranks", runs(dp_shard=4)),
    (
        "recompute",
        "not selective",
        runs(recompute="selective", recompute_modules=("core_attn",)),
    ),
    ("recompute", "not 2 by block", runs(recompute_num_layers=2, **FULL)),
    (
        "recompute",
        "by stage only for",
        runs("gpt", recompute_num_layers=2, recompute_layers=(2, 1, 1, 0), **FULL, **PIPED),
    ),
    ("recompute", "not 2 by block", runs("gpt", recompute_num_layers=2, **FULL, **PIPED)),
    (
        "recompute",
        "not 2 by uniform",
        runs(recompute_num_layers=2, recompute_method="uniform", **FULL, **PIPED),
    ),
    ("offload", "needs Adam", runs(zero_stage=0, offload_optimizer=True)),
    ("offload", "stay on", runs(offload_activations=True)),
    ("framework_unsupported", "not flash1", runs(attention_kernel="flash1")),
    ("framework_unsupported", "cross entropy", runs(cross_entropy="fused")),
    ("framework_unsupported", "not allgather", runs("mixtral", ep=2, moe_dispatcher="allgather")),
    ("framework_unsupported", "tensor-parallel communication", runs(overlap_tp=True, **TP2)),
    (
        "framework_unsupported",
        "expert-parallel communication is",
        runs("mixtral", ep=2, overlap_ep=True),
    ),
    ("framework_unsupported", "after all micro-batches of a pipeline", runs(pp=4)),
    ("framework_unsupported", "after all micro-batches of a pipeline", runs("mixtral")),
    (
        "framework_unsupported",
        "after all micro-batches of a pipeline",
        runs(zero_stage=0, overlap_grad_reduce=False),
    ),
]


@pytest.mark.parametrize(("code", "text", "case"), REFUSED, ids=[text for _, text, _ in REFUSED])
def test_refusals(code: str, text: str, case: Case) -> None:
    reasons = COLOSSAL.reasons(*case)
    assert [r for r in reasons if r.code == code and text in r.text], reasons


def test_every_rule_is_reached_by_a_refusal() -> None:
    shared = set(frameworks.get("megatron").rules)  # tested with Megatron-LM
    assert unreached(COLOSSAL, [case for *_, case in REFUSED]) <= shared


def ask(cases: list[Case], *arguments: str) -> Any:
    """What the real ColossalAI says; skips without its checkout.

    COLOSSALAI_PYTHON: an interpreter with what its oracle names; without it, that of the tests.
    """
    own = environment(COLOSSALAI_PATH=checkout("hpcaitech/ColossalAI"))
    questions = []
    for request, plan in cases:
        files = COLOSSAL.write(request, plan).files
        questions.append(
            {
                "train": files["train.py"],
                "config": json.loads(files["config.json"]),
                "world": plan.accelerators,
                "batch": request.training.global_batch_size,
            }
        )
    result = subprocess.run(
        [os.environ.get("COLOSSALAI_PYTHON", sys.executable), ORACLE, *arguments],
        env=own,
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert result.returncode == 0, result.stderr
    (line,) = [line for line in result.stdout.splitlines() if "ANSWERS" in line]
    return json.loads(line.partition("ANSWERS")[2])


@pytest.mark.exhaustive
def test_the_stored_list_is_that_of_the_real_plugins() -> None:
    assert ask([], "fields") == CLASSES


@pytest.mark.exhaustive
def test_the_real_plugins_and_policies_take_every_case_and_every_legal_draw() -> None:
    legal = legal_cases("colossalai", 40)
    assert len(legal) > 10
    assert [answer for answer in ask([*CASES.values(), *legal]) if answer] == []
