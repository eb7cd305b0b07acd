"""MindSpeed scripts: options its parsers have, the real validation, and every refusal."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from cost_models.plans import VOCABULARIES, ParallelPlan
from planner import frameworks
from planner.documents.request import PlanRequest
from planner.frameworks.mindspeed.flags import CHANGES as RENAMED
from planner.frameworks.mindspeed.flags import CP_ALGORITHMS
from tests.fixtures.draws import legal_draws
from tests.fixtures.frameworks import legal_cases
from tests.fixtures.frameworks.mindspeed import CASES, DRAWN, V, on_ascend
from tests.fixtures.launches import (
    INTERLEAVED,
    TP2,
    launch,
    misfits,
    run_script,
    stored_flags,
    unreached,
    written,
)
from tests.fixtures.tiers import examples
from tests.tools.checkouts import checkout, environment, megatron_lm_of

MINDSPEED = frameworks.get("mindspeed")
STORED = stored_flags("mindspeed")
ORACLE = Path(__file__).parents[2] / "oracles" / "mindspeed_check.py"
Case = tuple[PlanRequest, ParallelPlan]


def words(request: PlanRequest, plan: ParallelPlan) -> list[str]:
    flags = MINDSPEED.write(request, plan).flags
    return [word for flag in flags if flag.name.startswith("--") for word in flag.words]


@pytest.mark.parametrize("case", CASES)
def test_every_option_exists_and_fits_its_type_and_choices(case: str) -> None:
    assert misfits(words(*CASES[case]), STORED["flags"]) == []


@settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=legal_draws(MINDSPEED, DRAWN, CASES))
def test_every_drawn_option_exists_and_fits(drawn: Case) -> None:
    assert MINDSPEED.reasons(*drawn) == ()
    assert misfits(words(*drawn), STORED["flags"]) == []


def test_what_is_replaced_is_what_the_older_core_lacks_or_the_npu_does_otherwise() -> None:
    changed = {*RENAMED.names.values(), *RENAMED.left_out, *RENAMED.replaced}
    kept = {name for name in changed if name in STORED["flags"]}
    assert kept == {
        "--attention-backend",
        "--ckpt-format",
        "--cp-comm-type",
        "--no-gradient-accumulation-fusion",
        "--num-virtual-stages-per-pipeline-rank",
        "--optimizer-cpu-offload",
        "--optimizer-offload-fraction",
        "--overlap-cpu-optimizer-d2h-h2d",
        "--tp-comm-overlap",
        "--use-precision-aware-optimizer",
        "--vocab-size",
    }


def test_every_kind_of_context_parallelism_has_an_algorithm() -> None:
    assert set(CP_ALGORITHMS) == set(VOCABULARIES["cp_kind"])
    known = STORED["flags"]["--context-parallel-algo"]["choices"]
    assert set(CP_ALGORITHMS.values()) <= set(known)


def test_megatron_starts_under_mindspeeds_patches(tmp_path: Path) -> None:
    made = MINDSPEED.write(*CASES["llama-uneven"])
    main = written(tmp_path, made)
    ((launcher, *call),) = run_script(tmp_path, main.name)
    assert (launcher, call[10]) == ("torchrun", str(tmp_path / "pretrain_gpt.py"))
    assert 'export MEGATRON_PATH="${MEGATRON_PATH:-.}"' in main.read_text()
    imports = [
        name.name
        for node in ast.parse(made.files["pretrain_gpt.py"]).body
        if isinstance(node, ast.Import)
        for name in node.names
    ]
    assert imports[-2:] == ["torch", "mindspeed.megatron_adaptor"]


# field of the plan -> a case and another legal value; the options must differ.
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "tp": ("llama-uneven", {"tp": 4, "dp": 1}),
    "sequence_parallel": ("llama-ulysses", {"sequence_parallel": False}),
    "cp": ("llama-ulysses", {"cp": 1, "dp": 8}),
    "cp_kind": ("llama-ulysses", {"cp_kind": "all_gather"}),
    "pp": ("mixtral-experts", {"pp": 2, "dp": 4}),
    "vpp": ("llama-interleaved", {"vpp": 1, "schedule": "1f1b"}),
    "schedule": ("llama-dualpipe-v", {"schedule": "interleaved-1f1b"}),
    "dp": ("mixtral-experts", {"pp": 2, "dp": 4}),
    "dp_shard": ("llama-ulysses", {"dp_shard": 2}),
    "ep": ("mixtral-experts", {"ep": 2}),
    "etp": ("mixtral-experts", {"etp": 1}),
    "zero_stage": ("qwen2-fsdp", {"zero_stage": 2}),
    "micro_batch_size": ("mixtral-experts", {"micro_batch_size": 2}),
    "recompute": ("mixtral-experts", {"recompute": "none", "recompute_num_layers": 0}),
    "recompute_modules": ("llama-uneven", {"recompute_modules": ("mlp",)}),
    "recompute_method": ("mixtral-experts", {"recompute_method": "uniform"}),
    "recompute_num_layers": ("mixtral-experts", {"recompute_num_layers": 2}),
    "first_stage_layers": ("llama-uneven", {"first_stage_layers": 5}),
    "last_stage_layers": ("llama-uneven", {"last_stage_layers": 5}),
    "stage_layers": ("llama-explicit-stages", {"stage_layers": (3, 3, 5, 5)}),
    "rank_order": ("llama-uneven", {"rank_order": "tp-cp-ep-pp-dp"}),
    "offload_optimizer": ("llama-ulysses", {"offload_optimizer": False}),
    "cross_entropy": ("llama-uneven", {"cross_entropy": "unfused"}),
    "moe_dispatcher": ("mixtral-experts", {"moe_dispatcher": "allgather"}),
    "overlap_grad_reduce": (
        "mixtral-experts",
        {"overlap_grad_reduce": False, "overlap_param_gather": False},
    ),
    "overlap_param_gather": ("mixtral-experts", {"overlap_param_gather": False}),
    "overlap_tp": ("llama-uneven", {"overlap_tp": False}),
    "overlap_ep": ("mixtral-hidden-exchanges", {"overlap_ep": False}),
    "overlap_p2p": ("llama-interleaved", {"overlap_p2p": True}),
}


def test_the_table_of_changes_covers_every_supported_field() -> None:
    supported = {name for name, field in MINDSPEED.fields.items() if field.supported}
    assert set(CHANGES) == supported - {"attention_kernel"}  # one value only


@pytest.mark.parametrize("field", CHANGES)
def test_every_supported_field_reaches_the_options(field: str) -> None:
    case, update = CHANGES[field]
    request, plan = CASES[case]
    other = ParallelPlan(**{**plan.model_dump(), **update})
    before, after = (
        {(flag.name, flag.value) for flag in MINDSPEED.write(request, one).flags}
        for one in (plan, other)
    )
    differing = {name for name, _ in before ^ after}
    derived = {"dp"}  # not an option: what the other sizes leave of the world
    assert differing
    assert field in derived or differing & set(MINDSPEED.fields[field].names), differing


EP2: dict[str, Any] = {"ep": 2, "overlap_ep": True}
HIDDEN: dict[str, Any] = {"overlap_grad_reduce": False, "overlap_param_gather": False}
REFUSED: list[tuple[str, str, Case]] = [
    (
        "framework_unsupported",
        "its distributed optimizer, not",
        launch(training={"optimizer": "muon"}),
    ),
    ("framework_unsupported", "attention sinks", launch("gpt-oss")),
    (
        "vpp_layout",
        "splits layers evenly",
        launch(pp=2, vpp=2, schedule="dualpipe-v", stage_layers=(3, 4, 4, 5), **HIDDEN),
    ),
    ("framework_unsupported", "for a sliding window", launch("gpt-oss")),
    ("framework_unsupported", "a gate on the shared", launch("switch")),
    (
        "framework_unsupported",
        "only with cp 1, got 2",
        launch("deepseek-v3", cp=2),
    ),
    (
        "framework_unsupported",
        "support bf16, not fp16",
        launch("mixtral", training={"precision": "fp16"}),
    ),
    ("framework_unsupported", "no fp4", launch(training={"precision": "fp4"})),
    (
        "framework_unsupported",
        "stored in fp8",
        launch(training={"precision": "fp8", "fp8_param_gather": True}),
    ),
    ("framework_unsupported", "Adam", launch(training={"optimizer_state_dtype": "bf16"})),
    ("framework_unsupported", "not unfused", launch(attention_kernel="unfused")),
    ("framework_unsupported", "not flash2", launch(attention_kernel="flash2")),
    ("framework_unsupported", "in_place needs", launch(cross_entropy="in_place")),
    (
        "framework_unsupported",
        "deepep and hybridep",
        launch("mixtral", ep=2, moe_dispatcher="deepep"),
    ),
    (
        "recompute",
        "not shared_experts",
        launch("deepseek-v3", recompute="selective", recompute_modules=("shared_experts",)),
    ),
    ("offload", "swaps modules", launch(offload_activations=True)),
    (
        "framework_unsupported",
        "MC2",
        launch(training={"precision": "fp8"}, overlap_tp=True, **TP2),
    ),
    ("framework_unsupported", "fb overlap", launch("mixtral", **EP2)),
    (
        "framework_unsupported",
        "fb overlap",
        launch("mixtral", moe_dispatcher="allgather", **EP2, **HIDDEN),
    ),
    ("framework_unsupported", "got etp 2", launch("mixtral", etp=2, **TP2, **EP2, **HIDDEN)),
    (
        "framework_unsupported",
        "more than pp micro-batches",
        launch("mixtral", training={"global_batch_size": 16}, **INTERLEAVED, **EP2, **HIDDEN),
    ),
    ("framework_unsupported", "not zb-h1", launch(pp=2, schedule="zb-h1")),
    ("framework_unsupported", "got cp 2", launch(cp=2, **V)),
    ("framework_unsupported", "tied True", launch("qwen2", **{**V, "pp": 2})),
    (
        "framework_unsupported",
        "overlap_grad_reduce True",
        launch(**{**V, "overlap_grad_reduce": True}),
    ),
    ("framework_unsupported", "overlap_p2p False", launch(overlap_p2p=False, **V)),
    (
        "schedule_micro_batches",
        "7 micro-batches or more",
        launch(training={"global_batch_size": 16}, **V),
    ),
]


@pytest.mark.parametrize(("code", "text", "case"), REFUSED, ids=[text for _, text, _ in REFUSED])
def test_refusals(code: str, text: str, case: Case) -> None:
    reasons = MINDSPEED.reasons(*on_ascend(case))
    assert [r for r in reasons if r.code == code and text in r.text], reasons


def other_vendor() -> Case:
    request, plan = on_ascend(launch())
    (group,) = request.cluster.groups
    chip = group.accelerator.model_copy(update={"vendor": "NVIDIA", "name": "H100"})
    groups = (group.model_copy(update={"accelerator": chip}),)
    cluster = request.cluster.model_copy(update={"groups": groups})
    return request.model_copy(update={"cluster": cluster}), plan


def test_only_ascend_or_a_vendor_that_nobody_named() -> None:
    (reason,) = MINDSPEED.reasons(*other_vendor())
    assert reason.text == "it runs on Ascend NPUs; the cluster has H100"
    assert MINDSPEED.reasons(*launch()) == ()


def test_every_own_rule_is_reached_by_a_refusal() -> None:
    megatron = set(frameworks.get("megatron").rules)
    refused = [on_ascend(case) for *_, case in REFUSED] + [other_vendor()]
    assert unreached(MINDSPEED, refused) <= megatron


def ask(cases: list[Case], *arguments: str) -> Any:
    """What the real parsers say; skips without the checkouts."""
    own = environment(
        MINDSPEED_PATH=checkout("Ascend/MindSpeed"),
        MEGATRON_0_12_PATH=megatron_lm_of("Ascend/MindSpeed"),
    )
    questions = []
    for request, plan in cases:
        made = MINDSPEED.write(request, plan)
        variables = {f.name: f.words[1] for f in made.flags if f.group == "environment"}
        questions.append(
            {
                "words": words(request, plan),
                "world": plan.accelerators,
                "environment": variables,
            }
        )
    result = subprocess.run(
        [sys.executable, ORACLE, *arguments],
        env=own,
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert result.returncode == 0, result.stderr
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("ANSWERS")]
    return json.loads(line.removeprefix("ANSWERS"))


@pytest.mark.exhaustive
def test_the_stored_list_is_that_of_the_real_parser() -> None:
    assert ask([], "flags") == STORED["flags"]


@pytest.mark.exhaustive
def test_the_real_validation_accepts_every_case_and_every_legal_draw() -> None:
    legal = legal_cases("mindspeed", 300)
    assert len(legal) > 20
    assert [answer for answer in ask([*CASES.values(), *legal]) if answer] == []


SCRIPT = """\
export CUDA_DEVICE_MAX_CONNECTIONS=1
ARGS=(
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel
  --context-parallel-size 2 --context-parallel-algo {algorithm} --swap-optimizer
  --num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 2048
  --max-position-embeddings 2048 --position-embedding-type rope --normalization RMSNorm --swiglu
  --untie-embeddings-and-output-weights --disable-bias-linear --use-flash-attn
  --micro-batch-size 1 --global-batch-size 16 --use-distributed-optimizer --bf16
  --use-ascend-coc --tokenizer-type NullTokenizer --vocab-size 31999 --mock-data {more}
)
torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py "${{ARGS[@]}}"
"""


@pytest.mark.parametrize(
    ("algorithm", "kind", "said"),
    [
        ("ulysses_cp_algo", "a2a", ""),
        ("kvallgather_cp_algo", "all_gather", ""),
        ("hybrid_cp_algo", "p2p", "context parallelism by hybrid_cp_algo is costed as p2p"),
    ],
)
def test_scripts_of_others_are_read(algorithm: str, kind: str, said: str) -> None:
    files = {"pretrain.sh": SCRIPT.format(algorithm=algorithm, more="")}
    assert MINDSPEED.recognises(files)
    assert not frameworks.get("megatron").recognises(files)
    assert MINDSPEED.read is not None
    reading = MINDSPEED.read(files, None)
    plan = reading.plan
    assert (plan.tp, plan.pp, plan.cp, plan.dp, plan.cp_kind) == (2, 2, 2, 1, kind)
    assert (plan.overlap_tp, plan.offload_optimizer, plan.attention_kernel) == (True, True, "flash")
    assert reading.model.vocab_size == 32000
    assert [text for text in reading.assumed if "algo" in text or "NullTok" in text] == (
        [said] if said else []
    )


def test_options_that_nobody_has_are_shown() -> None:
    files = {"pretrain.sh": SCRIPT.format(algorithm="megatron_cp_algo", more="--no-such-option 3")}
    assert MINDSPEED.read is not None
    reading = MINDSPEED.read(files, None)
    assert [setting.name for setting in reading.unknown] == ["--no-such-option"]
    assert [one for one in reading.assumed if one.endswith("upstream: --no-such-option")]
