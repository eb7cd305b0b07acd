"""torchtitan bundles: its real Trainer's verdict, every refusal, and registry modules read back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cost_models.layers import layers_of
from cost_models.parameters import (
    embedding_parameters,
    layer_parameters,
    output_layer_parameters,
    prediction_parameters,
    total_parameters,
)
from cost_models.plans import ParallelPlan
from cost_models.schedules import SCHEDULES as OURS
from cost_models.spec import ModelSpec
from cost_models.stage_layers import forward_layers, virtual_stages
from planner import frameworks
from planner.documents.request import PlanRequest
from planner.frameworks.base import Unsupported
from planner.frameworks.launch_files import CONFIG, Given, LaunchFiles
from planner.frameworks.reading import Reading, Unreadable
from planner.frameworks.torch_schedules import SCHEDULES
from planner.frameworks.torchtitan import registry
from planner.frameworks.torchtitan.expressions import MAX_STEPS
from planner.frameworks.torchtitan.python import Program
from tests.fixtures.frameworks.torchtitan import (
    CASES,
    FULL,
    PIPE,
    QWEN3,
    RUNS,
    drawn,
    other,
)
from tests.fixtures.launches import (
    FIRST_NODE,
    INTERLEAVED,
    TP2,
    launch,
    run_script,
    unreached,
    written,
)
from tests.fixtures.tiers import examples
from tests.oracles.torchtitan_check import ask
from tests.oracles.torchtitan_registry import package_path

TITAN = frameworks.get("torchtitan")
Case = tuple[PlanRequest, ParallelPlan]


# The real Trainer.


def question(request: PlanRequest, plan: ParallelPlan, stages: int | None = None) -> dict[str, Any]:
    """The module, written whatever the rules say of the plan."""
    files = TITAN.render(request, plan).files
    world = plan.accelerators
    return {"module": files["plan_config.py"], "world": world, "stages": stages or plan.pp}


def part_parameters(model: ModelSpec, start: int, stop: int) -> int:
    """Parameters of a model part that holds some layers, and the ends if it has the end layers."""
    layers = layers_of(model)
    each = [float(sum(layer_parameters(model, kind, 1.0, 1.0, 1.0))) for kind in layers.kinds]
    count = sum(each[place] for place in layers.order[start:stop])
    if start == 0:
        count += float(embedding_parameters(model, 1.0, 1))
    if stop == model.num_layers:
        count += float(output_layer_parameters(model, 1.0, 1))
        prediction = each[layers.order[-1]] + float(prediction_parameters(model, 1.0))
        count += model.mtp_num_layers * prediction
    return int(count)


def expected(request: PlanRequest, plan: ParallelPlan) -> dict[str, Any]:
    """What torchtitan must have built."""
    placement = OURS[plan.schedule].placement
    layers = forward_layers(request.model.num_layers, plan)
    sizes, owner, _ = virtual_stages(placement, plan.pp, layers)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    shard = 1 if plan.zero_stage == 0 else (plan.dp_shard or plan.dp * plan.cp) // plan.cp
    micro, count = plan.micro_batch_size, request.training.global_batch_size // plan.dp
    return {
        "tokens": [[micro, request.training.seq_length]] * 2,
        "accumulation": 1 if plan.pp > 1 else count // micro,
        "micro_batches": count // micro if plan.pp > 1 else 1,
        "schedule": f"Schedule{SCHEDULES[plan.schedule]}" if plan.pp > 1 else "",
        "mesh": {
            "dp_replicate": plan.dp // shard, "dp_shard": shard, "cp": plan.cp, "tp": plan.tp,
            "pp": plan.pp, "ep": plan.ep,
        },
        "optimizer": "AdamW",
        "stages": {
            (int(rank), index if plan.pp > 1 else 0): (
                list(range(starts[index], starts[index + 1])),
                part_parameters(request.model, int(starts[index]), int(starts[index + 1])),
            )
            for index, rank in enumerate(owner)
        },
    }  # fmt: skip


def built(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer in the shape of `expected`."""
    stages = {
        (one["rank"], one["stage"]): (one["layers"], one["parameters"])
        for one in answer.get("stages", ())
    }
    return {**answer, "stages": stages}


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(list(CASES)[::3], id="every third", marks=pytest.mark.slow),
        pytest.param(list(CASES), id="all", marks=pytest.mark.exhaustive),
    ],
)
def test_the_real_trainer_builds_what_every_case_says(cases: list[str]) -> None:
    broken = question(*CASES["llama-fsdp"])
    broken["module"] = broken["module"].replace(" seq_len=2048", " sequence_length=2048")
    sized = question(*CASES["llama-fsdp"]) | {"world": 12}
    *answers, bad_name, bad_world = ask(
        [*(question(*CASES[name]) for name in cases), broken, sized]
    )
    for name, answer in zip(cases, answers, strict=True):
        assert built(answer) == expected(*CASES[name]), name
    assert "sequence_length" in bad_name["error"]
    assert "WORLD_SIZE(12)" in bad_world["error"]


def collect(strategy: Any, count: int) -> list[Case]:
    """So many different draws."""
    found: dict[str, Case] = {}

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(case: Case) -> None:
        found.setdefault(repr(case), case)

    draw()
    return list(found.values())


@pytest.mark.exhaustive
def test_the_real_trainer_builds_what_drawn_plans_say() -> None:
    cases = [case for case in collect(drawn(), 320) if not TITAN.reasons(*case)]
    assert len(cases) >= 200
    for case, answer in zip(cases, ask([question(*case) for case in cases]), strict=True):
        assert built(answer) == expected(*case), (case, answer)


# Reasons that the constructor has nothing against: why they stand all the same.
EXPLAINED = {
    "do not split in": "a plan has even chunks",
    "evenly over": "a plan has even chunks",
    "do not divide over": "a plan has even stages but for its ends",
    "nothing to shard": "a module says ZeRO-0 and ZeRO-3 of one rank alike",
    "not tensorwise": "torchao, which has the recipes, stands aside",
    "padded groups": "torchao, which pads, stands aside",
    "multiples of 128": "torchao, whose kernels they are, stands aside",
    "whole groups of cp": "the module says the nearest degree",
    "x 128": "seen with the first batch, not before",
    "beside fp32": "seen with the first step, not before",
    "splits the backward pass": "compiled in place, where torch's own test does not look",
    "a pass of the compiler": "without sequence_parallel it has nothing to do",
    "it needs compile": "without sequence_parallel it has nothing to do",
}


@pytest.mark.exhaustive
def test_rules_refuse_what_the_real_trainer_refuses_and_little_else() -> None:
    """Legal and illegal draws, written whatever the rules say: the two verdicts agree."""
    cases, questions = [], []
    for case in collect(drawn(wild=True), 400):
        with suppress(Unsupported):  # layers lost or parts empty: nothing can be written
            questions.append(question(*case, stages=1))
            cases.append(case)
    answers = ask(questions)
    refused = ["error" in answer for answer in answers]
    assert min(sum(refused), len(refused) - sum(refused)) >= 60
    for case, answer in zip(cases, answers, strict=True):
        reasons = TITAN.reasons(*case)
        if "error" in answer:
            assert reasons, (case, answer)
        else:
            open_ = [r.text for r in reasons if not any(text in r.text for text in EXPLAINED)]
            assert open_ == [], case


# Refusals.


def runs(model: str | ModelSpec = "llama", shape: tuple[int, int] = (2, 8), **plan: Any) -> Case:
    return launch(model, shape, **{**RUNS, **plan})


def moe(model: ModelSpec, **update: Any) -> ModelSpec:
    assert model.moe is not None
    return ModelSpec(**{**model.model_dump(), "moe": {**model.moe.model_dump(), **update}})


OSS = other("gpt-oss")
FP8 = {"precision": "fp8", "fp8_recipe": "rowwise"}
NARROW = {"master_weights_dtype": "none", "optimizer_state_dtype": "bf16"}
REFUSED: list[tuple[str, str, Case]] = [
    ("framework_unsupported", "DistMuon wants", runs(training={"optimizer": "muon"})),
    (
        "layers_not_divisible",
        "a model part has modules, got parts of 8,0,4,4 layers",
        launch(pp=4, stage_layers=(8, 0, 4, 4), **PIPE),
    ),
    ("framework_unsupported", "rotary", runs("nope")),
    ("framework_unsupported", "RMSNorm", runs(other("llama", norm="layernorm", norm_bias=True))),
    ("framework_unsupported", "two norms", runs(other("llama", norms_per_layer=4))),
    ("framework_unsupported", "in parallel", runs(other("llama", parallel_residual=True))),
    ("framework_unsupported", "after the embedding", runs(other("llama", embedding_norm=True))),
    ("framework_unsupported", "output layer has no bias", runs(other("llama", lm_head_bias=True))),
    ("framework_unsupported", "SwiGLU", runs(other("llama", gated_mlp=False))),
    ("framework_unsupported", "MLPs have no biases", runs(other("llama", mlp_bias=True))),
    ("framework_unsupported", "dropout", runs(other("llama", hidden_dropout=0.1))),
    ("framework_unsupported", "span one head", runs(other("llama", qk_norm="full"))),
    (
        "framework_unsupported",
        "output projection",
        runs(other("llama", attention_output_bias=True)),
    ),
    (
        "framework_unsupported",
        "latent attention has no biases",
        runs(other("deepseek-v3", qkv_bias=True)),
    ),
    (
        "framework_unsupported",
        "no sinks and no window",
        runs(other("deepseek-v3", sliding_window=8)),
    ),
    ("framework_unsupported", "whose attention has sinks", runs(other("llama", sliding_window=8))),
    (
        "framework_unsupported",
        "every layer of gpt_oss",
        runs(moe(OSS, num_dense_layers=1)),
    ),
    ("framework_unsupported", "experts have biases", runs(moe(OSS, expert_bias=False))),
    (
        "framework_unsupported",
        "gpt_oss has no shared",
        runs(moe(OSS, shared_expert_ffn_hidden_size=64)),
    ),
    ("framework_unsupported", "have no gate", runs(moe(QWEN3, shared_expert_gate=True))),
    ("framework_unsupported", "no token is dropped", runs(moe(QWEN3, capacity_factor=1.5))),
    (
        "framework_unsupported",
        "at least two experts",
        runs(moe(QWEN3, num_groups=16, top_k_groups=8)),
    ),
    ("framework_unsupported", "multi-token", runs(other("llama", mtp_num_layers=1))),
    ("framework_unsupported", "in pairs", runs(other("llama", head_dim=33))),
    ("framework_unsupported", "megatron runtime", runs(runtime="megatron")),
    ("framework_unsupported", "loss scaling", runs(training={"precision": "fp16"})),
    (
        "framework_unsupported",
        "not tensorwise",
        runs(training={"precision": "fp8", "fp8_recipe": "tensorwise"}),
    ),
    ("framework_unsupported", "never in fp8", runs(training=FP8 | {"fp8_param_gather": True})),
    (
        "framework_unsupported",
        "none for experts",
        runs("mixtral", training={"precision": "fp4"}),
    ),
    (
        "framework_unsupported",
        "multiples of 128",
        runs(other("llama", ffn_hidden_size=1800), training={"precision": "fp4"}),
    ),
    ("framework_unsupported", "not SGD", runs(training={"optimizer": "sgd"})),
    ("framework_unsupported", "states fp8", runs(training={"optimizer_state_dtype": "fp8"})),
    (
        "framework_unsupported",
        "states fp32",
        runs(training={"master_weights_dtype": "none", "gradient_dtype": "bf16"}),
    ),
    (
        "framework_unsupported",
        "reduced in fp32",
        runs(training={"gradient_reduce_dtype": "bf16"}),
    ),
    ("framework_unsupported", "accumulate in bf16", runs(training=NARROW)),
    ("kv_heads", "over tp 8", runs(tp=8, sequence_parallel=True)),
    ("cp_seq", "not p2p", runs(cp=2, cp_kind="p2p")),
    ("cp_seq", "needs FlexAttention", runs(cp=2, attention_kernel="flash2")),
    ("cp_seq", "x 128", runs(cp=2, training={"seq_length": 2080})),
    ("framework_unsupported", "not unfused", runs(attention_kernel="unfused")),
    ("framework_unsupported", "tied embeddings", runs("qwen2", pp=2, **PIPE)),
    ("framework_unsupported", "multi-token prediction runs", runs("deepseek-v3", cp=2)),
    ("framework_unsupported", "no schedule zb-h1", runs(pp=2, schedule="zb-h1", **PIPE)),
    (
        "framework_unsupported",
        "splits the backward",
        runs(pp=2, vpp=2, schedule="zb-v", compile=True, **PIPE),
    ),
    ("framework_unsupported", "outermost", runs(rank_order="tp-cp-ep-pp-dp")),
    ("experts_not_divisible", "got ep 2, etp 2", runs("mixtral", ep=2, etp=2, **TP2)),
    ("experts_not_divisible", "borrows", runs("mixtral", ep=8, dp_shard=4)),
    ("framework_unsupported", "not allgather", runs("mixtral", moe_dispatcher="allgather")),
    ("framework_unsupported", "got ep 1", runs("mixtral", moe_dispatcher="deepep")),
    (
        "framework_unsupported",
        "padded groups",
        runs("mixtral", ep=2, moe_dispatcher="deepep", training=FP8),
    ),
    ("zero_stage", "not ZeRO-1", runs(zero_stage=1)),
    ("zero_stage", "not ZeRO-2", runs(zero_stage=2)),
    ("zero_stage", "needs cp 1", runs(zero_stage=0, cp=2)),
    ("zero_stage", "nothing to shard", runs(shape=(1, 1))),
    ("zero_stage", "nothing to shard", runs(dp_shard=1)),
    ("zero_stage", "whole groups of cp 4", runs(cp=4, dp_shard=2)),
    ("recompute", "by operator", runs(recompute="selective", recompute_modules=("core_attn",))),
    ("recompute", "not block, 1", runs(**{**FULL, "recompute_method": "block"})),
    ("recompute", "not uniform, 2", runs(recompute="full", recompute_num_layers=2)),
    ("offload", "needs ZeRO-3", runs(zero_stage=0, offload_optimizer=True)),
    (
        "offload",
        "not bf16 beside fp32",
        runs(offload_optimizer=True, training={"optimizer_state_dtype": "bf16"}),
    ),
    ("framework_unsupported", "at least 16, got 8", runs(other("llama", head_dim=8))),
    ("offload", "does not offload activations", runs(offload_activations=True)),
    ("framework_unsupported", "works in place", runs(cross_entropy="in_place")),
    ("framework_unsupported", "always, without a pipeline", runs(overlap_grad_reduce=False)),
    (
        "framework_unsupported",
        "under a pipeline reduces after",
        runs(pp=2, **{**PIPE, "overlap_grad_reduce": True}),
    ),
    ("framework_unsupported", "gathers weights ahead", runs(overlap_param_gather=False)),
    ("framework_unsupported", "a pass of the compiler", runs(overlap_tp=True, **TP2)),
    (
        "framework_unsupported",
        "always overlaps its messages",
        runs(overlap_p2p=False, **INTERLEAVED, **PIPE),
    ),
    ("framework_unsupported", "not overlapped with another", runs("mixtral", overlap_ep=True)),
]
# Tested with Megatron-LM, whose rules they are too.
SHARED_RULES = unreached(frameworks.get("megatron"), [])


@pytest.mark.parametrize(("code", "text", "case"), REFUSED, ids=[text for _, text, _ in REFUSED])
def test_refusals(code: str, text: str, case: Case) -> None:
    reasons = TITAN.reasons(*case)
    assert [r for r in reasons if r.code == code and text in r.text], reasons


def test_every_rule_is_reached_by_a_refusal() -> None:
    assert unreached(TITAN, [case for *_, case in REFUSED]) <= SHARED_RULES


@pytest.mark.parametrize("case", CASES)
def test_every_setting_exists_and_has_its_type(case: str) -> None:
    fields = registry.document()["fields"]
    for flag in TITAN.write(*CASES[case]).flags:
        section, _, name = flag.name.partition(".")
        if section in fields:
            default = fields[section][name]
            if isinstance(default, bool | str):
                assert isinstance(json.loads(str(flag.value).lower()), type(default)), flag


# Registry modules read back.

HEAD = "from torchtitan.trainer import Trainer\n"
LLAMA8 = HEAD + "from torchtitan.models.llama3.config_registry import llama3_8b\n"
ATTRIBUTES = (
    LLAMA8
    + """
WORLD = {"tp": 2}

def config() -> Trainer.Config:
    c = llama3_8b()
    c.training.disable_cuda_graphs = True
    c.training.local_batch_size = 8
    c.parallelism.tensor_parallel_degree = WORLD["tp"]
    c.parallelism.pipeline_parallel_degree = 4
    c.activation_checkpoint = None
    return c
"""
)


def told(text: str, size: int | None = 16, arguments: str = "") -> Reading:
    """A module, and a script that runs it with more arguments where there are any."""
    files = {"mine.py": text}
    if arguments:
        files["run.sh"] = (
            f"torchrun --nproc_per_node {size} -m torchtitan.train --module mine "
            f"--config config {arguments}\n"
        )
        size = None
    assert TITAN.read is not None
    assert TITAN.recognises(files)
    return TITAN.read(files, size)


def test_a_config_of_torchtitan_with_attributes_set() -> None:
    reading = told(ATTRIBUTES)
    plan, model = reading.plan, reading.model
    assert (model.num_layers, model.hidden_size, model.num_query_groups) == (32, 4096, 8)
    assert total_parameters(model) == 8_030_261_248
    assert (plan.tp, plan.pp, plan.dp, plan.zero_stage) == (2, 4, 2, 3)
    assert (plan.micro_batch_size, reading.training.global_batch_size) == (1, 16)
    assert (plan.recompute, plan.sequence_parallel) == ("none", True)
    assert reading.training.seq_length == 8192
    # torchtitan counts the embedding and the head as a layer each.
    assert plan.stage_layers == (8, 9, 8, 7)
    assert any("8, 9, 8, 7" in text for text in reading.assumed)
    assert any("chunks" in text for text in reading.assumed)
    assert reading.refusals == ()
    found = reading.find("parallelism.tensor_parallel_degree")
    assert found is not None
    assert (found.value, found.file, found.line) == ("2", "mine.py", 10)


def test_the_command_line_wins() -> None:
    reading = told(
        ATTRIBUTES,
        16,
        "--parallelism.tensor_parallel_degree=4 --parallelism.pipeline-parallel-degree 1 "
        "--compile.enable --compile.components model --training.no-disable-cuda-graphs "
        "--training.global_batch_size 64 --parallelism.fsdp_reshard_after_forward never "
        "--metrics.log_freq 1 activation-checkpoint:full",
    )
    plan = reading.plan
    assert (plan.tp, plan.pp, plan.dp) == (4, 1, 4)
    assert (plan.compile, plan.cross_entropy, plan.recompute) == (True, "unfused", "full")
    assert not plan.reshard_after_forward
    assert (plan.micro_batch_size, reading.training.global_batch_size) == (8, 64)
    assert "metrics.log_freq" in {one.name for one in reading.unread}
    assert reading.refusals == ()
    assert (reading.nodes, reading.accelerators_per_node) == (1, 16)


def test_a_config_by_name_alone() -> None:
    script = (
        "torchrun --nnodes 2 --nproc_per_node 8 -m torchtitan.train --module deepseek_v3 "
        "--config deepseek_v3_16b --parallelism.expert_parallel_degree 8 "
    )
    assert TITAN.read is not None
    reading = TITAN.read({"run.sh": script}, None)
    assert reading.model.mla is not None
    assert reading.plan.ep == 8
    assert reading.model.moe is not None
    assert reading.model.moe.num_experts == 64
    with pytest.raises(Unreadable, match="has no config 'deepseek_v3_17b'"):
        TITAN.read({"run.sh": script.replace("16b", "17b")}, None)


def test_a_registry_module_of_torchtitan_is_read_by_itself() -> None:
    """It imports model_registry from beside it: the function's name says whose that is."""
    text = (package_path() / "models" / "qwen3" / "config_registry.py").read_text()
    files = LaunchFiles({"config_registry.py": text}, Given(values={CONFIG: "qwen3_30b_a3b"}))
    assert TITAN.read is not None
    reading = TITAN.read(files, 64)
    assert (reading.model.num_layers, reading.plan.moe_dispatcher) == (48, "alltoall")
    assert any("torchtitan's own of qwen3" in one for one in reading.assumed)
    own = text.replace("def qwen3_30b_a3b(", "def mine(")
    with pytest.raises(Unreadable, match="model_registry is none of"):
        TITAN.read(LaunchFiles({"a.py": own}, Given(values={CONFIG: "mine"})), 64)


def test_a_model_of_ones_own_by_the_helpers_of_torchtitan() -> None:
    text = (
        HEAD
        + """
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.models.common import Embedding, RMSNorm, compute_ffn_hidden_dim
from torchtitan.models.common.config_utils import make_gqa_config, make_ffn_config
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock
from torchtitan.protocols.model_spec import ModelSpec

def layers(n, dim, *, heads=8):
    result = []
    for i in range(n):
        result.append(
            Llama3TransformerBlock.Config(
                attention=make_gqa_config(dim=dim, n_heads=heads, n_kv_heads=heads // 4, rope=ROPE),
                feed_forward=make_ffn_config(
                    dim=dim, hidden_dim=compute_ffn_hidden_dim(dim, multiple_of=256)
                ),
            )
        )
    return result

def config() -> Trainer.Config:
    parts = [["tok_embeddings", "layers.0"], [f"layers.{i}" for i in range(1, 6)]]
    return Trainer.Config(
        model_spec=ModelSpec(
            model=Llama3Model.Config(dim=512, vocab_size=1000, layers=layers(6, 512))
        ),
        training=TrainingConfig(local_batch_size=4, seq_len=1024, disable_cuda_graphs=True),
        parallelism=ParallelismConfig(
            pipeline_parallel_degree=2,
            module_fqns_per_model_part=[parts[0], parts[1] + ["norm", "lm_head"]],
        ),
    )
"""
    )
    reading = told(text, 4)
    model = reading.model
    assert (model.num_layers, model.num_query_groups, model.ffn_hidden_size) == (6, 2, 1536)
    assert (reading.plan.first_stage_layers, reading.plan.last_stage_layers) == (1, 0)
    assert reading.refusals == ()


WRONG: list[tuple[str, str, str]] = [
    ("tensor_parallel_degree = WORLD", "tensor_parallel = WORLD", "has no parallelism.tensor_par"),
    ("disable_cuda_graphs = True", "disable_cuda_graphs = False", "CUDA graphs"),
    ("c.parallelism.tensor_parallel_degree = WORLD", "c.pipeline = WORLD", "has no pipeline"),
    ('WORLD["tp"]', "0", "at least 1 is needed"),
    ('WORLD["tp"]', "3", "is not the 16 accelerators"),
    ("local_batch_size = 8", "global_batch_size = 9", "not a multiple of local batch 1"),
    (
        "c.activation_checkpoint = None",
        'c.parallelism.pipeline_parallel_schedule = "dualpipe"',
        "no schedule 'dualpipe'",
    ),
    (
        "c.activation_checkpoint = None",
        "c.parallelism.pipeline_parallel_microbatch_size = 3",
        "pipeline micro-batches of 3",
    ),
    (
        "c.activation_checkpoint = None",
        "c.compile.enable_async_tensor_parallel = True",
        "needs compile.enable",
    ),
    (
        "c.activation_checkpoint = None",
        'c.parallelism.module_fqns_per_model_part = [["norm"]] * 4',
        "name 0 layers",
    ),
    (
        "c.activation_checkpoint = None",
        "c.parallelism.pipeline_parallel_layers_per_stage = 4",
        "do not divide over pp 4",
    ),
]


@pytest.mark.parametrize(("old", "new", "text"), WRONG, ids=[text for *_, text in WRONG])
def test_what_torchtitan_refuses_is_a_refusal(old: str, new: str, text: str) -> None:
    assert old in ATTRIBUTES
    refusals = told(ATTRIBUTES.replace(old, new)).refusals
    assert [one for one in refusals if text in one.reason.text], refusals


UNREADABLE: list[tuple[str, str]] = [
    (HEAD + "def config(:\n", "no Python"),
    (HEAD, "which function"),
    (HEAD + "def config() -> Trainer.Config:\n    return config()\n", "nest too deeply"),
    (HEAD + "def config() -> Trainer.Config:\n    return 3\n", "returns 3"),
    (LLAMA8 + "def config():\n    return Trainer.Config()\n", "model_spec is"),
    (ATTRIBUTES.replace('WORLD["tp"]', "int(open('x').read())"), "write the value out"),
    (ATTRIBUTES.replace('WORLD["tp"]', '"two"'), "must be an integer"),
    (ATTRIBUTES.replace('WORLD["tp"]', "10**30"), "write the value out"),
    (
        HEAD + "def config() -> Trainer.Config:\n"
        "    for a in range(90000):\n        for b in range(90000):\n            c = a\n",
        f"more than {MAX_STEPS} steps",
    ),
    (
        HEAD + "def config() -> Trainer.Config:\n    x = 'a'\n"
        "    for a in range(90):\n        x = x + x\n    return x\n",
        f"more than {MAX_STEPS} steps",
    ),
    (HEAD + "x = " + "(" * 5000 + ")" * 5000, "no Python"),
    (HEAD + "x = " + "-" * 50_000 + "1", "no Python"),
]


@pytest.mark.parametrize(("text", "found"), UNREADABLE, ids=[found for _, found in UNREADABLE])
def test_what_cannot_be_read_says_why(text: str, found: str) -> None:
    assert TITAN.read is not None
    with pytest.raises(Unreadable, match=found.replace("(", r"\(")):
        TITAN.read({"mine.py": text}, 16)


def test_nothing_of_a_module_is_run(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write = "open('pwned', 'w').write('x')"
    text = ATTRIBUTES.replace("WORLD =", f"{write}\nimport os; os.system('touch pwned')\nWORLD =")
    text = text.replace("c = llama3_8b()", f"{write}\n    c = llama3_8b()")
    reading = told(text)
    assert reading.plan.tp == 2
    assert any("is not followed" in note for note in reading.assumed)
    assert not (tmp_path / "pwned").exists()


def test_arithmetic_names_and_branches_are_followed() -> None:
    program = Program(
        "import a.b as c\n"
        "from m import K\n"
        "N = 2 ** 3 - 1\n"
        "def f(x, *rest, y=3, **more):\n"
        "    if x > 2 and not rest:\n"
        "        x += y\n"
        "    return [x, len(rest), sorted, K.Config(z=x).z, more['w'], N // 2, f'{x}-{y}']\n"
        "def g():\n"
        "    a, (b) = f(4, w=1), 5\n"
        "    return a[:1] if unknown else a\n"
        "def h():\n"
        "    return [f(4, w=1)[0], f(1, 2, w={'k': 1}['k'])[1], 7 if N in range(9) else 8]\n",
        "x.py",
    )
    assert program.call("h") == [7, 1, 7]


def test_toml_and_other_files_are_told_apart() -> None:
    assert TITAN.read is not None
    script = "torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file x.toml\n"
    with pytest.raises(Unreadable, match=r"--job.config_file is x.toml .*none that configures"):
        TITAN.read({"run.sh": script, "x.toml": "[model]\n"}, None)
    with pytest.raises(Unreadable, match="no script calls a training program"):
        TITAN.read({"run.sh": "echo\n"}, None)
    assert not TITAN.recognises({"train.py": "import torch\n"})


@pytest.mark.slow
def test_the_stored_registry_is_that_of_the_installed_torchtitan() -> None:
    from tests.oracles.torchtitan_registry import document

    assert document() == registry.document()


@pytest.mark.parametrize(
    "most",
    [
        pytest.param(1, id="the smallest of each package", marks=pytest.mark.slow),
        pytest.param(None, id="all", marks=pytest.mark.exhaustive),
    ],
)
def test_flavors_have_the_parameters_that_torchtitan_builds(most: int | None) -> None:
    def size(flavor: tuple[str, Any]) -> float:
        return total_parameters(ModelSpec(**flavor[1]))

    rows = [
        (package, flavor, model)
        for package, row in registry.document()["models"].items()
        for flavor, model in sorted(row["flavors"].items(), key=size)[:most]
    ]
    counts = ask_flavors([[package, flavor] for package, flavor, _ in rows])
    for (package, flavor, model), count in zip(rows, counts, strict=True):
        assert total_parameters(ModelSpec(**model)) == count, (package, flavor)


def ask_flavors(names: Sequence[Sequence[str]]) -> list[int]:
    """Parameters of torchtitan's own models, built on the meta device."""
    from importlib import import_module

    import torch

    counts = []
    for package, flavor in names:
        spec = import_module(f"torchtitan.models.{package}").model_registry(flavor)
        with torch.device("meta"):
            built = spec.model.build()
        counts.append(sum({id(w): w.numel() for w in built.parameters()}.values()))
    return counts


PIECES = (
    "", "(", ")", "[", "]", ":", ",", ".", "=", "*", "**", "%", "-", "lambda x: x", "None", "c",
    "0", "-1", "1e400", "10**18", "'x' * 10**9", "[0] * 10**9", "[c for c in c]", "f'{c}'",
    "{**c}", "*c", "if c:\n        ", "while True:\n        ", "del c", "c.x.y.z", "c()", "\n",
    "config()", "int('9' * 9999)", "range(10**12)", "max([])", "[].append(c)", "import os", "\t",
    "\x00", "é", "c = c\n    ", "replace(c, training=3)", "Trainer.Config(model_spec=c)",
    "class A: pass\n    ", "@c\n    ", "list(range(10**12))", "c in range(10**12)",
    "list(range(-(10**18), 9 * 10**18))",
)  # fmt: skip
ADDED_ARGUMENTS = (
    "--training.seq_len", "--training.seq_len=x", "--parallelism.tensor_parallel_degree -3",
    "--compile.components=", "activation-checkpoint:other", "--", "-x", "stray", "--a.b.c 1",
    "--parallelism.module_fqns_per_model_part 3", "--parallelism", "--training.steps $X",
    "--parallelism.pipeline_parallel_degree 99999999999999999999",
    "--parallelism.pipeline_parallel_layers_per_stage 0",
    "--parallelism.pipeline_parallel_first_stage_less_layers 99",
)  # fmt: skip


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_whatever_stands_in_a_module_it_is_read_or_the_reason_is_given(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([ATTRIBUTES, question(*CASES["gpt-oss"])["module"]]))
    for _ in range(data.draw(st.integers(0, 3))):
        start = data.draw(st.integers(0, len(text)))
        stop = start + data.draw(st.sampled_from([0, 0, 1, 3, 10, 100]))
        text = text[:start] + data.draw(st.sampled_from(PIECES)) + text[stop:]
    words = " ".join(data.draw(st.lists(st.sampled_from(ADDED_ARGUMENTS), max_size=3)))
    call = f"torchrun --nproc_per_node 16 -m torchtitan.train --module mine {words}\n"
    assert TITAN.read is not None
    with suppress(Unreadable):
        assert TITAN.read({"mine.py": text, "run.sh": call}, None).plan.runtime == "torch"


def test_the_script_runs_the_module_beside_it_for_a_few_steps(tmp_path: Path) -> None:
    main = written(tmp_path, TITAN.write(*CASES["llama-fsdp"]))
    variables = {**FIRST_NODE, "TRAIN_ITERS": "5; touch pwned"}
    (default,) = run_script(tmp_path, main.name)
    (asked,) = run_script(tmp_path, main.name, variables=variables)
    words = ["-m", "torchtitan.train", "--module", "plan_config", "--config", "config"]
    assert default[-8:] == [*words, "--training.steps", "20"]
    assert asked[-2:] == ["--training.steps", "5; touch pwned"]
    assert 'export PYTHONPATH="$BUNDLE' in main.read_text()


def test_names_in_the_field_table_are_names_torchtitan_has() -> None:
    fields = registry.document()["fields"]
    written_names = {f.name for case in CASES.values() for f in TITAN.write(*case).flags}
    for field in TITAN.fields.values():
        for name in field.names:
            section, _, rest = name.partition(".")
            known = section in fields and rest in fields[section]
            assert known or any(one.endswith(name) for one in written_names), name
