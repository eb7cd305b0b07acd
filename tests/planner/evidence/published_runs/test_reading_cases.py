"""Rows as cases: open and contradictory inputs, uneven layers, and that nothing else can happen."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cost_models.stage_layers import forward_layers, virtual_stages
from planner.evidence.published_runs.cases import MAX_VARIANTS, Case, case_of
from planner.evidence.published_runs.runs import (
    DECIMALS,
    FLAGS,
    INTEGERS,
    run_of,
)
from planner.learning.accuracy.predict import predict
from tests.fixtures.tiers import examples
from tests.planner.learning.accuracy.published import predictions

PLAIN = {
    "id": "r", "year": "2025", "gpu": "H100 SXM5 80GB", "n_gpus": "64", "gpus_per_node": "8",
    "model": "Llama 3.1 70B", "seq_len": "8192", "precision": "bf16", "tp": "4", "sp": "1",
    "cp": "1", "pp": "4", "vpp": "1", "zero_stage": "1", "micro_batch": "1", "global_batch": "128",
    "recompute": "none", "schedule": "1F1B", "stack": "megatron-core-2025",
}  # fmt: skip
MOE = {"model": "Qwen3-30B-A3B", "tp": "2", "pp": "1"}


def case(**cells: Any) -> Case:
    return case_of(run_of({**PLAIN, **{name: str(value) for name, value in cells.items()}}))


def test_a_complete_row_is_one_plan() -> None:
    found = case()
    (plan,) = found.variants
    assert (plan.tp, plan.pp, plan.dp, plan.vpp, plan.zero_stage) == (4, 4, 4, 1, 1)
    assert found.open_inputs == ()


@pytest.mark.parametrize(
    ("cells", "opened"),
    [
        ({"tp": "", "pp": ""}, {"tp", "pp"}),
        ({"tp": ""}, {"tp"}),
        ({"micro_batch": ""}, {"micro_batch"}),
        ({"recompute": "unknown"}, {"recompute"}),
        ({"schedule": "", "vpp": ""}, {"vpp"}),
        ({**MOE, "ep": ""}, {"ep"}),
        ({**MOE, "ep": "8"}, set()),
    ],
)
def test_what_a_row_leaves_open_is_tried(cells: dict[str, str], opened: set[str]) -> None:
    found = case(**cells)
    assert set(found.open_inputs) == opened
    assert 1 <= len(found.variants) <= MAX_VARIANTS
    assert all(plan.accelerators == 64 for plan in found.variants)


def test_open_degrees_stay_inside_a_node_and_divide_layers_and_heads() -> None:
    for plan in case(tp="", pp="").variants:
        assert plan.tp in (1, 2, 4, 8)
        assert 80 % plan.pp == 0
        assert 128 % plan.dp == 0


def test_a_degree_follows_from_the_others() -> None:
    assert {plan.pp for plan in case(pp="", dp="2").variants} == {8}
    assert {plan.tp for plan in case(tp="", dp="16").variants} == {1}


@pytest.mark.parametrize(
    ("cells", "etp"),
    [
        ({}, 2),  # ModelParallelConfig's default: as tp
        ({"notes": "etp 1"}, 1),
        ({"notes": "expert TP 4"}, 4),
        ({"stack": "nemo-mlperf"}, 1),
        ({"stack": "torchtitan (2025-10)"}, 1),
        ({"ep": "64"}, 1),  # ep 64 x etp 2 is more than there are ranks
    ],
)
def test_how_experts_are_split(cells: dict[str, str], etp: int) -> None:
    assert {plan.etp for plan in case(**{**MOE, "ep": "8", **cells}).variants} == {etp}


@pytest.mark.parametrize("cells", [{"stack": "fsdp2", "zero_stage": ""}, {"zero_stage": "3"}])
def test_sharded_data_parallel_without_degrees_has_none(cells: dict[str, str]) -> None:
    (plan,) = case(tp="", pp="", **cells).variants
    assert (plan.tp, plan.pp, plan.dp, plan.zero_stage) == (1, 1, 64, 3)


def test_sequences_are_split_where_there_are_fewer_than_ranks() -> None:
    found = case(tp="8", pp="1", global_batch="2", seq_len="131072")
    assert (found.variants[0].cp, found.variants[0].dp) == (4, 2)
    assert any(note.startswith("cp 4, not 1") for note in found.assumptions)


@pytest.mark.parametrize(
    ("vocabulary", "last"), [("32000", 4), ("64000", 3), ("128000", 1), ("256000", 0)]
)
def test_layers_make_room_for_a_vocabulary_where_the_notes_say_so(
    vocabulary: str, last: int
) -> None:
    """The head of GPT-4B counts as 0.8 to 6.3 of its 32 layers."""
    cells = {
        "model": "GPT-4B", "layers": 32, "hidden": 3072, "heads": 24, "seq_len": 2048,
        "vocab": vocabulary, "tp": 1, "pp": 8, "n_gpus": 8, "ffn_hidden": 12288, "gated": 0,
    }  # fmt: skip
    (plan,) = case(**cells, notes="1F1B with layers redistributed to balance it").variants
    assert (len(plan.stage_layers), sum(plan.stage_layers)) == (8, 32)
    assert plan.stage_layers[-1] == last
    assert not case(**cells).variants[0].stage_layers


LITGPT = {
    "model": "Phi-2 [lora]", "layers": "32", "hidden": "2560", "heads": "32", "gated": "0",
    "ffn_hidden": "10240", "vocab": "51200", "seq_len": "512", "tp": "1", "pp": "1", "dp": "4",
    "n_gpus": "4", "zero_stage": "3", "micro_batch": "1", "global_batch": "8", "recompute": "",
    "stack": "litgpt", "source": "litgpt config_hub/finetune/README.md", "year": "2024",
    "method": "lora", "notes": "config @HEAD: micro 1 precision bf16-true devices 4 lora_r 8",
}  # fmt: skip


def test_litgpt_recomputes_under_fsdp_alone() -> None:
    found = case(**LITGPT)
    assert (found.variants[0].dp, found.variants[0].recompute) == (4, "full")
    assert not found.model.tied_embeddings
    notes = LITGPT["notes"].replace("devices 4", "devices 1")
    one = case(**{**LITGPT, "notes": notes})
    plan = one.variants[0]
    assert (one.cluster.accelerators, plan.dp, plan.zero_stage, plan.recompute) == (1, 1, 0, "none")
    assert "1 of 4 accelerators: its configuration's devices" in one.assumptions


def test_litgpt_pages_the_optimizer_beside_weights_of_four_bits() -> None:
    packed = {"model": "Phi-2 [qlora]", "method": "qlora", "quantization": "nf4"}
    assert case(**{**LITGPT, **packed}).training.optimizer == "paged_adam"
    assert case(**LITGPT).training.optimizer == "adam"


def test_notes_say_that_a_run_was_not_compiled() -> None:
    cells = {"compiled": "1", "stack": "torchtune", "pp": "1", "dp": "16"}
    assert case(**cells).variants[0].compile
    assert not case(**cells, notes="AdamW bf16, not compiled").variants[0].compile


def test_notes_tell_of_hybrid_sharding() -> None:
    cells = {"tp": "1", "pp": "1", "zero_stage": "3"}
    assert case(**cells, notes="HSDP groups of 8").variants[0].dp_shard == 8
    assert case(**cells, notes="FSDP group 64").variants[0].dp_shard == 0


def layers_by_chunk(layers: int, pp: int, vpp: int, schedule: str = "") -> list[int]:
    """What the model holds of a row's layers, in forward order."""
    plan = case(
        layers=layers, pp=pp, vpp=vpp, schedule=schedule, tp=1, global_batch=512,
    ).variants[0]  # fmt: skip
    placement: Any = {"dualpipe": "two-way", "zb-v": "wave"}.get(plan.schedule, "loop")
    sizes, _, _ = virtual_stages(placement, pp, forward_layers(layers, plan))
    return [int(size) for size in sizes]


@pytest.mark.parametrize(
    ("layers", "pp", "vpp", "ends"),
    [
        (80, 4, 5, (4, 4)),
        (61, 4, 8, (1, 0)),  # DeepSeek-V3: the ends count as a layer each, one chunk has the head
        (61, 8, 4, (1, 0)),
        (126, 16, 1, (7, 7)),  # Llama 3.1 405B
        (126, 16, 4, (1, 1)),
        (94, 4, 1, (23, 23)),
        (61, 16, 1, (3, 3)),
        (40, 8, 3, (2, 1)),
        (62, 2, 4, (8, 7)),
    ],
)
def test_uneven_layers_all_stand_somewhere(
    layers: int, pp: int, vpp: int, ends: tuple[int, int]
) -> None:
    held = layers_by_chunk(layers, pp, vpp)
    assert sum(held) == layers
    assert len(held) == pp * vpp
    assert (held[0], held[-1]) == ends


def test_waves_and_two_directions_lose_no_layer() -> None:
    assert sum(layers_by_chunk(61, 16, 1, "zb-v")) == 61
    assert sum(layers_by_chunk(61, 16, 1, "dualpipe")) == 2 * 61  # two copies


@pytest.mark.parametrize(
    ("cells", "assumption"),
    [
        ({"dp": "7"}, "the row prints 7"),
        ({"vpp": "4", "pp": "1"}, ""),
        ({"ep": "8"}, "ep 8 without experts"),
        ({"micro_batch": "3"}, "does not divide"),
        ({"micro_batch": "1000"}, "micro-batch 32"),
        ({"schedule": "DualPipe", "global_batch": "16"}, "priced as 1F1B"),
        ({"tp": "8", "model": "X", "layers": "8", "hidden": "768", "heads": "12"}, "12 heads over"),
        ({"global_batch": "", "dp": "4", "micro_batch": "2"}, "global batch 8"),
        ({"n_gpus": "", "dp": "4"}, "64 accelerators: tp x cp x pp x dp"),
        ({"gpus_per_node": "7"}, "whole nodes"),
        ({"zero_stage": ""}, "ZeRO stage 1: not stated"),
    ],
)
def test_what_does_not_agree_is_settled_and_listed(cells: dict[str, str], assumption: str) -> None:
    found = case(**cells)
    assert any(assumption in note for note in found.assumptions), found.assumptions


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"tp": "3"}, "does not divide 64"),
        ({"cp": "3"}, "cp 3 does not divide"),
        ({"pp": "64", "tp": "1", "layers": "8"}, "more chunks than the 8 layers"),
        ({**MOE, "ep": "96"}, "ep 96 does not divide"),
        ({**MOE, "ep": "256"}, "ep 256 is above the 128 experts"),
        ({**MOE, "ep": "64", "notes": "etp=4"}, "ep 64 x etp 4 does not divide"),
        ({"tp": "1", "pp": "1", "global_batch": "63"}, "below dp 64"),
        ({"seq_len": ""}, "seq_len is not stated"),
        (
            {"global_batch": "", "dp": "", "micro_batch": ""},
            "global_batch is not stated, nor dp or micro_batch",
        ),
        ({"n_gpus": ""}, "n_gpus is not stated"),
        ({"tp": "four"}, "tp: four is not a whole number"),
        ({"precision": "int8"}, "precision 'int8' is not modelled"),
        ({"gpu": "abacus"}, "not in the catalog"),
    ],
)
def test_what_contradicts_itself_has_a_reason(cells: dict[str, str], reason: str) -> None:
    found = predict(run_of({**PLAIN, **cells}))
    assert found.case is None
    assert reason in found.reason


def test_words_stand_for_flags_and_grouped_digits_for_numbers() -> None:
    run = run_of({**PLAIN, "sp": "yes", "compiled": "off", "global_batch": "1,024", "vpp": "none"})
    assert not run.errors
    assert (run.flag("sp"), run.flag("compiled"), run.integer("global_batch")) == (
        True,
        False,
        1024,
    )


@pytest.mark.slow
def test_published_runs_are_covered_and_plausible() -> None:
    found = predictions()
    predicted = [p for p in found if not p.reason]
    assert len(predicted) >= 0.95 * len(found)
    for p in predicted:
        assert p.case is not None
        assert p.iteration_time_s is not None
        assert p.case.assumptions
        if p.run.is_layer:
            continue
        model, training = p.case.model, p.case.training
        accelerator = p.case.cluster.groups[0].accelerator
        # Model FLOP of the dense part of each layer, from below: a bound on any model's share.
        width = model.hidden_size * model.head_dim * (model.num_attention_heads * 2)
        flop = 6.0 * training.tokens_per_iteration * model.num_layers * width
        peak = accelerator.peak_flop_per_s(training.precision) or math.inf
        assert flop / (p.iteration_time_s * p.case.cluster.accelerators * peak) < 0.8


CELLS = st.one_of(
    st.sampled_from([
        "", "0", "1", "2", "3", "4", "7", "8", "16", "64", "1e3", "1e9", "1e400", "-1", "none",
        "yes", "unknown", "1,024", "8 x 8", "\u00b2", "not stated", "9" * 40,
    ]),
    st.integers(0, 4096).map(str),
    st.text(max_size=20),
)  # fmt: skip
WORDS = {
    "gpu": ["H100", "GB200 NVL72", "MI250X", "V100", "gpu"],
    "model": ["Llama 3.1 8B", "DeepSeek-V3", "Mixtral-8x7B", "GPT-oss", "m"],
    "interconnect": ["8x400Gb/s", "NVLink 900GB/s", "4x", "EFA 3.2 Tbps", "100 GbE"],
    "precision": ["bf16", "fp8-mx", "nvfp4", "tf32", ""],
    "schedule": ["1F1B", "zb-v", "DualPipe", "hanayo", "interleaved", "not stated or 1f1b"],
    "recompute": ["full", "selective", "unknown", "3 layers", "mlp, core_attn"],
    "stack": ["megatron", "fsdp2", "deepspeed-zero3", "hai-llm", "alpa", ""],
    "notes": [
        "etp 2",
        "first 99 layers dense",
        "head_dim 0",
        "7 shared experts",
        "hsdp",
        "ulysses",
    ],
}


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    words=st.fixed_dictionaries(
        {},
        optional={k: st.one_of(st.sampled_from(v), st.text(max_size=30)) for k, v in WORDS.items()},
    ),
    cells=st.dictionaries(st.sampled_from([*INTEGERS, *FLAGS, *DECIMALS]), CELLS, max_size=12),
)
def test_any_row_is_a_prediction_or_a_reason(words: dict[str, str], cells: dict[str, str]) -> None:
    found = predict(run_of({**PLAIN, **words, **cells}))
    if found.case is None:
        assert found.reason
    else:
        assert found.iteration_time_s is not None
        assert 0 < found.iteration_time_s < math.inf
        assert found.case.assumptions
