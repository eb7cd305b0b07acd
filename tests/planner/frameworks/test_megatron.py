"""Megatron-LM scripts: golden files, flags its parser has, and every refusal."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from cost_models.catalog.hardware import parse_shorthand
from cost_models.plans import VOCABULARIES, ParallelPlan
from cost_models.spec import ModelSpec, MoESpec
from planner import frameworks
from planner.documents.request import PlanRequest
from planner.frameworks import rules
from planner.frameworks.megatron import environment, pattern_rules
from planner.frameworks.megatron.flags import CP_COMM, DISPATCHERS
from tests.fixtures.frameworks.megatron import CASES
from tests.fixtures.launches import (
    FIRST_NODE,
    INTERLEAVED,
    MODELS,
    NO_QUERY_LATENT,
    TP2,
    cluster,
    launch,
    launches,
    misfits,
    run_script,
    stored_flags,
    unreached,
)
from tests.fixtures.tiers import examples

MEGATRON = frameworks.get("megatron")
STORED = stored_flags("megatron")


def script(case: str) -> str:
    return MEGATRON.write(*CASES[case]).files["launch.sh"]


def words(request: PlanRequest, plan: ParallelPlan) -> list[str]:
    flags = MEGATRON.write(request, plan).flags
    return [word for flag in flags if flag.name.startswith("--") for word in flag.words]


def changed(model: str, **update: Any) -> ModelSpec:
    return ModelSpec(**{**MODELS[model].model_dump(), **update})


@pytest.mark.parametrize("version", STORED["versions"])
@pytest.mark.parametrize("case", CASES)
def test_every_flag_exists_and_fits_its_type_and_choices(case: str, version: str) -> None:
    assert misfits(words(*CASES[case]), STORED["flags"], version) == []


@settings(max_examples=examples(200), deadline=None)
@given(drawn=launches())
def test_every_drawn_flag_exists_and_fits(drawn: tuple[PlanRequest, ParallelPlan]) -> None:
    if MEGATRON.reasons(*drawn):
        return
    for version in STORED["versions"]:
        assert misfits(words(*drawn), STORED["flags"], version) == []


def test_the_stored_list_would_catch_a_wrong_flag() -> None:
    wrong = ["--num-layers", "x", "--no-such-flag", "--bf16", "1", "--attention-backend", "fast"]
    assert len(misfits(wrong, STORED["flags"])) == 4


def test_tokens_do_not_lengthen_the_run_on_mock_data() -> None:
    request, plan = launch(training={"tokens": 1e9})
    (iterations,) = [f for f in MEGATRON.write(request, plan).flags if f.name == "--train-iters"]
    assert iterations.value == "20"
    assert "the 1e+09 tokens asked for are 7629 iterations" in iterations.why


def test_several_nodes_must_be_told_apart_and_one_need_not(tmp_path: Path) -> None:
    one, several = launch(shape=(1, 8)), launch(shape=(2, 8))
    (tmp_path / "launch.sh").write_text(MEGATRON.write(*one).files["launch.sh"])
    ((_, *call),) = run_script(tmp_path, "launch.sh", variables={})
    assert call[call.index("--node_rank") + 1] == "0"
    assert call[call.index("--master_addr") + 1] == "localhost"
    (tmp_path / "launch.sh").write_text(MEGATRON.write(*several).files["launch.sh"])
    for missing, text in (
        ("NODE_RANK", "the number of this node, 0 to 1"),
        ("MASTER_ADDR", "the address of node 0"),
    ):
        rest = {name: value for name, value in FIRST_NODE.items() if name != missing}
        with pytest.raises(subprocess.CalledProcessError) as failed:
            run_script(tmp_path, "launch.sh", variables=rest)
        assert f"{missing}: set it to {text}" in failed.value.stderr
        assert list(tmp_path.glob("stubs/*.call")) == []
    ((_, *call),) = run_script(tmp_path, "launch.sh", variables={**FIRST_NODE, "NODE_RANK": "1"})
    assert call[call.index("--node_rank") + 1] == "1"


def test_samples_of_many_lengths_are_said_where_they_are_assigned_to_ranks() -> None:
    lengths = {"sample_lengths": (300, 900, 2048)}
    request, plan = launch(training=lengths, cp=4, dynamic_cp=True)
    said = {flag.name: flag for flag in MEGATRON.write(request, plan).flags}
    assert said["--max-seqlen-per-dp-cp-rank"].value == "512"
    assert {"--hybrid-context-parallel", "--sft", "--calculate-per-token-loss"} <= set(said)
    assert "planned: 1083 tokens on average, 2048 at most" in said["--data-path"].why
    assert not {"--mock-data", "--vocab-size"} & set(said)
    for name in frameworks.FRAMEWORKS:
        refusals = [reason.text for reason in frameworks.get(name).reasons(request, plan)]
        split = frameworks.get(name).fields["dynamic_cp"].note
        assert any(split in text for text in refusals) is (name != "megatron"), name
    whole = plan.model_copy(update={"dynamic_cp": False})
    assert any("one length" in reason.text for reason in MEGATRON.reasons(request, whole))


def test_fused_cross_entropy_is_the_native_one_and_keeps_fp32() -> None:
    said = {flag.name: flag for flag in MEGATRON.write(*launch()).flags}
    assert "keeps fp32 exponentials" in said["--cross-entropy-loss-fusion"].why
    assert said["--cross-entropy-fusion-impl"].value == "native"


@pytest.mark.parametrize("stored", [False, True])
def test_weights_are_stored_in_fp8_where_asked(stored: bool) -> None:
    case = launch(training={"precision": "fp8", "fp8_param_gather": stored})
    said = {flag.name for flag in MEGATRON.write(*case).flags}
    assert ("--fp8-param-gather" in said) is stored


def test_every_name_of_a_vocabulary_has_a_name_here() -> None:
    assert set(DISPATCHERS) == set(VOCABULARIES["moe_dispatcher"])
    assert set(CP_COMM) == set(VOCABULARIES["cp_kind"])


# field of the plan -> a case and another legal value; the emitted files must differ.
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "tp": ("llama-uneven", {"tp": 4, "dp": 1}),
    "sequence_parallel": ("llama-context-hybrid", {"sequence_parallel": False}),
    "cp": ("llama-context-hybrid", {"cp": 1, "dp": 8}),
    "cp_kind": ("llama-context-hybrid", {"cp_kind": "all_gather"}),
    "dynamic_cp": ("llama-dynamic-context", {"dynamic_cp": False}),
    "pp": ("gpt-oss", {"pp": 2, "dp": 4}),
    "vpp": ("switch-interleaved", {"vpp": 1, "schedule": "1f1b"}),
    "schedule": ("switch-interleaved", {"vpp": 1, "schedule": "1f1b"}),
    "dp": ("gpt-oss", {"pp": 2, "dp": 4}),
    "dp_shard": ("llama-context-hybrid", {"dp_shard": 2}),
    "ep": ("gpt-oss", {"ep": 2}),
    "etp": ("mixtral-experts", {"etp": 1}),
    "zero_stage": ("qwen2-fsdp", {"zero_stage": 2}),
    "micro_batch_size": ("gpt-oss", {"micro_batch_size": 2}),
    "recompute": ("mixtral-experts", {"recompute": "none", "recompute_num_layers": 0}),
    "recompute_modules": ("llama-uneven", {"recompute_modules": ("mlp",)}),
    "recompute_method": ("mixtral-experts", {"recompute_method": "uniform"}),
    "recompute_num_layers": ("mixtral-experts", {"recompute_num_layers": 2}),
    "first_stage_layers": ("llama-uneven", {"first_stage_layers": 5}),
    "last_stage_layers": ("llama-uneven", {"last_stage_layers": 5}),
    "stage_layers": ("llama-explicit-stages", {"stage_layers": (3, 3, 5, 5)}),
    "rank_order": ("llama-uneven", {"rank_order": "tp-cp-ep-pp-dp"}),
    "offload_optimizer": ("llama-context-hybrid", {"offload_optimizer": False}),
    "offload_activations": ("qwen2-fsdp", {"offload_activations": False}),
    "offload_num_layers": ("qwen2-fsdp", {"offload_num_layers": 3}),
    "attention_kernel": ("llama-uneven", {"attention_kernel": "unfused"}),
    "cross_entropy": ("llama-uneven", {"cross_entropy": "unfused"}),
    "moe_dispatcher": ("gpt-oss", {"moe_dispatcher": "alltoall"}),
    "overlap_grad_reduce": (
        "gpt-oss",
        {"overlap_grad_reduce": False, "overlap_param_gather": False},
    ),
    "overlap_param_gather": ("gpt-oss", {"overlap_param_gather": False}),
    "overlap_tp": ("llama-uneven", {"overlap_tp": False}),
    "overlap_ep": (
        "gpt-oss",
        {
            "overlap_ep": True,
            "moe_dispatcher": "alltoall",
            "recompute": "none",
            "recompute_num_layers": 0,
            "recompute_modules": (),
        },
    ),
    "overlap_p2p": ("switch-interleaved", {"overlap_p2p": False}),
}


@pytest.mark.parametrize(
    ("degrees", "connections"),
    [
        ({}, []),
        ({"tp": 2}, [1]),
        ({"cp": 2}, [1]),
        ({"ep": 2}, []),
        ({"ep": 2, "overlap_ep": True}, [32]),
        ({"tp": 2, "ep": 2, "overlap_ep": True}, [32]),  # a warning of validate_args, not an error
        ({"tp": 2, "zero_stage": 3}, [8]),
    ],
)
def test_how_many_queues_the_gpu_has(degrees: dict[str, int], connections: list[int]) -> None:
    found = environment(ParallelPlan(dp=4, **degrees))
    assert [int(flag.value) for flag in found] == connections


def test_latent_attention_without_a_latent_of_queries_names_the_releases_that_build_it() -> None:
    """DeepSeek-V2-Lite, Moonlight: core 0.19 puts a norm before the query projection."""
    request, plan = launch(NO_QUERY_LATENT)
    text = MEGATRON.write(request, plan).files["launch.sh"]
    assert "Megatron-LM (core 0.16 to 0.18)" in text
    assert "--q-lora-rank" not in text
    assert any(
        "adds a norm before the query" in reason.text
        for reason in frameworks.get("megatron-bridge").reasons(request, plan)
    )


def test_the_table_of_changes_covers_every_supported_field() -> None:
    supported = {name for name, field in MEGATRON.fields.items() if field.supported}
    assert set(CHANGES) == supported


@pytest.mark.one_in(2)
@pytest.mark.parametrize("field", CHANGES)
def test_every_supported_field_reaches_the_arguments(field: str) -> None:
    case, update = CHANGES[field]
    request, plan = CASES[case]
    other = ParallelPlan(**{**plan.model_dump(), **update})
    assert getattr(other, field) != getattr(plan, field)
    before, after = words(request, plan), words(request, other)
    assert before != after
    differing = {w for w in set(before) ^ set(after) if w.startswith("--")} | {
        flag.name
        for flag in MEGATRON.write(request, other).flags
        if flag not in MEGATRON.write(request, plan).flags
    }
    derived = {"dp"}  # not an option: what the other sizes leave of the world
    assert field in derived or differing & set(MEGATRON.fields[field].names), differing


MOE = {"num_experts": 8, "top_k": 2, "expert_ffn_hidden_size": 1024}
MUON, ADAFACTOR, EIGHT_BIT, FP16 = (
    {"optimizer": "muon"},
    {"optimizer": "adafactor"},
    {"optimizer": "adam_8bit"},
    {"precision": "fp16", "gradient_dtype": "fp16", "gradient_reduce_dtype": "fp16"},
)


def on(shorthand: str, **plan: Any) -> tuple[PlanRequest, ParallelPlan]:
    """Mixtral on a cluster of the catalog, its experts on two ranks."""
    request, chosen = launch("mixtral", ep=2, **plan)
    return request.model_copy(update={"cluster": parse_shorthand(shorthand)}), chosen


TWELVE = changed("mixtral", moe={"num_experts": 12, "top_k": 2, "expert_ffn_hidden_size": 14336})
REFUSED: list[tuple[str, str, tuple[PlanRequest, ParallelPlan]]] = [
    (code, text, launch(changed(base, **update)))
    for code, text, base, update in (
        ("framework_unsupported", "ALiBi", "llama", {"position": "alibi"}),
        ("framework_unsupported", "multiple of 8, not 129", "llama", {"head_dim": 129}),
        ("framework_unsupported", "parallel attention", "llama", {"parallel_residual": True}),
        ("framework_unsupported", "two norms", "llama", {"norms_per_layer": 4}),
        ("framework_unsupported", "after the embedding", "llama", {"embedding_norm": True}),
        ("framework_unsupported", "output layer", "llama", {"lm_head_bias": True}),
        ("framework_unsupported", "LayerNorm", "gpt", {"norm_bias": False}),
        ("framework_unsupported", "norms are per head", "llama", {"qk_norm": "full"}),
        ("framework_unsupported", "latent norms", "deepseek-v3", {"qk_norm": "head"}),
        ("framework_unsupported", "layers have biases", "llama", {"mlp_bias": True}),
        ("framework_unsupported", "layers have biases", "gpt-oss", {"qkv_bias": False}),
        ("framework_unsupported", "rotary", "deepseek-v3", {"position": "none"}),
        ("framework_unsupported", "no bias in", "deepseek-v3", {"qkv_bias": True}),
        ("framework_unsupported", "sliding window", "deepseek-v3", {"sliding_window": 64}),
        (
            "framework_unsupported",
            "does not support learned",
            "gpt",
            {"mtp_num_layers": 1},
        ),
        ("framework_unsupported", "1024 rows", "gpt", {"max_position_embeddings": 1024}),
        (
            "framework_unsupported",
            "shared experts have no biases",
            "gpt-oss",
            {
                "moe": {
                    **(MODELS["gpt-oss"].moe or MoESpec(**MOE)).model_dump(),
                    "shared_expert_ffn_hidden_size": 64,
                }
            },
        ),
        (
            "framework_unsupported",
            "group-limited routing",
            "mixtral",
            {"moe": {**MOE, "num_groups": 4, "top_k_groups": 3}},
        ),
    )
]
REFUSED += [
    ("framework_unsupported", "one dtype", launch(training={"gradient_reduce_dtype": "bf16"})),
    ("framework_unsupported", "master weights", launch(training={"master_weights_dtype": "none"})),
    (
        "framework_unsupported",
        "only Adam",
        launch(training={"optimizer": "sgd", "optimizer_state_dtype": "bf16"}),
    ),
    ("world_size", "the cluster has 16", launch(dp=8)),
    ("batch_identity", "64 is not a multiple", launch(micro_batch_size=3)),
    (
        "heads_not_divisible",
        "over tp 3",
        launch(shape=(3, 1), tp=3, training={"global_batch_size": 3}),
    ),
    ("kv_heads", "4 key/value heads and tp 6", launch(shape=(6, 1), tp=6)),
    ("ffn_not_divisible", "1793", launch(changed("llama", ffn_hidden_size=1793), **TP2)),
    (
        "ffn_not_divisible",
        "expert_ffn_hidden_size 1023",
        launch(changed("mixtral", moe={**MOE, "expert_ffn_hidden_size": 1023}), etp=2, **TP2),
    ),
    ("layers_not_divisible", "16 layers", launch(shape=(3, 1), pp=3)),
    ("layers_not_divisible", "got 17", launch(pp=2, stage_layers=(8, 9))),
    ("vpp_layout", "do not split in 3", launch(**{**INTERLEAVED, "vpp": 3})),
    (
        "vpp_layout",
        "do not split in 2",
        launch(changed("llama", num_layers=13), first_stage_layers=1, **INTERLEAVED),
    ),
    (
        "schedule_micro_batches",
        "multiple of pp 4",
        launch(training={"global_batch_size": 24}, **INTERLEAVED),
    ),
    (
        "schedule_micro_batches",
        "pp > 2",
        launch(overlap_p2p=False, **{**INTERLEAVED, "pp": 2}),
    ),
    ("cp_seq", "2 x cp 2", launch(cp=2, training={"seq_length": 2046})),
    ("cp_seq", "does not split into 2", launch(training={"seq_length": 2047}, **TP2)),
    ("heads_not_divisible", "a2a context", launch(cp=8, cp_kind="a2a")),
    ("sequence_parallel", "needs tp > 1", launch(sequence_parallel=True)),
    ("sequence_parallel", "need sequence_parallel", launch("mixtral", tp=2)),
    ("experts_not_divisible", "has no experts", launch(ep=2)),
    ("experts_not_divisible", "over ep 16", launch("mixtral", ep=16)),
    ("experts_not_divisible", "ep 2 x etp 16", launch("mixtral", ep=2, etp=16)),
    ("experts_not_divisible", "need etp 1", launch("gpt-oss", etp=2, **TP2)),
    (
        "experts_not_divisible",
        "etp x ep = tp x cp",
        launch(pp=2, cp=2, rank_order="tp-cp-ep-pp-dp"),
    ),
    ("framework_unsupported", "runtime is megatron, not torch", launch(runtime="torch")),
    ("framework_unsupported", "not gpipe", launch(pp=2, schedule="gpipe")),
    ("framework_unsupported", "torch.compile", launch(compile=True)),
    ("framework_unsupported", "not zb-v", launch(pp=2, vpp=2, schedule="zb-v")),
    ("zero_stage", "with pp 2", launch(pp=2, zero_stage=3)),
    ("zero_stage", "always frees", launch(zero_stage=3, reshard_after_forward=False)),
    ("zero_stage", "needs Adam", launch(training={"optimizer": "sgd"})),
    ("framework_unsupported", "and Muon, not Adafactor", launch(training=ADAFACTOR)),
    ("framework_unsupported", "and Muon, not 8-bit Adam", launch(training=EIGHT_BIT)),
    ("framework_unsupported", "Muon does not train in fp16", launch(training=MUON | FP16)),
    (
        "framework_unsupported",
        "stored in fp8 need the distributed optimizer with Adam",
        launch(training=MUON | {"precision": "fp8", "fp8_param_gather": True}, **TP2),
    ),
    ("zero_stage", "split by layer over all", launch(training=MUON, zero_stage=3)),
    ("zero_stage", "ZeRO 1, dp_shard 2", launch(training=MUON, dp_shard=2)),
    (
        "zero_stage",
        "bf16 optimizer",
        launch(zero_stage=0, training={"optimizer_state_dtype": "bf16"}),
    ),
    ("zero_stage", "dp_shard 3", launch(dp_shard=3)),
    ("zero_stage", "8 replicas of dp_shard 2", launch("mixtral", ep=4, dp_shard=2)),
    ("framework_unsupported", "weight gathering", launch(overlap_grad_reduce=False)),
    ("framework_unsupported", "overlap_tp needs", launch(tp=2, overlap_tp=True)),
    ("framework_unsupported", "Megatron-FSDP (ZeRO 2", launch(cp=2, dynamic_cp=True, zero_stage=2)),
    ("framework_unsupported", "latent attention", launch("deepseek-v3", cp=2, dynamic_cp=True)),
    (
        "framework_unsupported",
        "gathers no keys",
        launch(cp=2, dynamic_cp=True, cp_kind="all_gather"),
    ),
    ("framework_unsupported", "overlap_ep needs", launch(overlap_ep=True)),
    (
        "framework_unsupported",
        "recompute moe, allgather, 0 such",
        launch(
            "mixtral",
            ep=2,
            overlap_ep=True,
            moe_dispatcher="allgather",
            recompute="selective",
            recompute_modules=("moe",),
        ),
    ),
    ("framework_unsupported", "disabled", launch(cross_entropy="in_place")),
    (
        "recompute",
        "delayed fp8 scales",
        launch(
            training={"precision": "fp8", "fp8_recipe": "delayed"},
            recompute="selective",
            recompute_modules=("layernorm",),
        ),
    ),
    ("framework_unsupported", "flash-attention 1", launch(attention_kernel="flash1")),
    ("framework_unsupported", "pure fp32", launch(training={"precision": "fp32"})),
    (
        "framework_unsupported",
        "fp8 recipe rowwise",
        launch(training={"precision": "fp8", "fp8_recipe": "rowwise"}),
    ),
    ("offload", "distributed optimizer", launch(zero_stage=0, offload_optimizer=True)),
    ("offload", "needs pp 1", launch(pp=2, offload_activations=True)),
    ("recompute", "moe_act", launch(recompute="selective", recompute_modules=("moe_act",))),
    ("recompute", "mla_up_proj", launch(recompute="selective", recompute_modules=("mla_up_proj",))),
    ("recompute", "unfused attention", launch(cp=2, attention_kernel="unfused")),
    (
        "framework_unsupported",
        "not p2p",
        launch(changed("llama", sliding_window=64), cp=2),
    ),
    ("framework_unsupported", "sinks", launch(changed("llama", attention_sinks=True), cp=2)),
    ("framework_unsupported", "deepep", launch("mixtral", moe_dispatcher="deepep")),
    (
        "framework_unsupported",
        "not etp 1 x ep 12",
        launch(TWELVE, (3, 4), ep=12, moe_dispatcher="deepep"),
    ),
    ("framework_unsupported", "kernels for GB300", on("2x8xgb300-nvl72", moe_dispatcher="deepep")),
    ("framework_unsupported", "kernels for MI300X", on("2x8xmi300x", moe_dispatcher="hybridep")),
    (
        "fp8_shape",
        "multiples of 16",
        launch(changed("llama", ffn_hidden_size=1800), training={"precision": "fp8"}),
    ),
    (
        "framework_unsupported",
        "fp8_param_gather needs",
        launch(zero_stage=0, training={"precision": "fp8", "fp8_param_gather": True}),
    ),
    (
        "framework_unsupported",
        "the delayed recipe",
        launch(offload_optimizer=True, training={"precision": "fp8", "fp8_param_gather": True}),
    ),
    (
        "framework_unsupported",
        "steps after the backward pass",
        launch(training={"optimizer_in_backward": True}),
    ),
]


@pytest.mark.parametrize(("code", "text", "case"), REFUSED, ids=[text for _, text, _ in REFUSED])
def test_refusals(code: str, text: str, case: tuple[PlanRequest, ParallelPlan]) -> None:
    reasons = MEGATRON.reasons(*case)
    assert [r for r in reasons if r.code == code and text in r.text], reasons


def test_unequal_nodes_are_refused() -> None:
    request, plan = launch(shape=(1, 12))
    groups = cluster(1, 8).groups + cluster(1, 4).groups
    mixed = request.model_copy(
        update={"cluster": request.cluster.model_copy(update={"groups": groups})}
    )
    (reason,) = [r for r in MEGATRON.reasons(mixed, plan) if "every node" in r.text]
    assert reason.code == "framework_unsupported"


def test_every_rule_is_reached_by_a_refusal() -> None:
    left = {rules.EQUAL_NODES, *pattern_rules.RULES}  # tests/.../test_megatron_patterns.py
    assert unreached(MEGATRON, [case for *_, case in REFUSED]) == left
