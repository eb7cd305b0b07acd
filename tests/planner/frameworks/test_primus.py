"""Primus configs: keys it has, its own parser and Megatron-LM's validation, and every refusal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cost_models.plans import ParallelPlan
from planner import frameworks
from planner.documents.request import PlanRequest
from planner.frameworks.megatron import attribute_names
from planner.frameworks.megatron.rules import RULES as CORE
from planner.frameworks.primus.names import OWN, PRESETS
from planner.frameworks.read_results import Unreadable
from tests.fixtures.frameworks import legal_cases
from tests.fixtures.frameworks.mindspeed import on_ascend
from tests.fixtures.frameworks.primus import (
    CASES,
    IN_A_V,
    NO_OVERLAP,
    ZERO_BUBBLE,
    on_instinct,
)
from tests.fixtures.launches import NO_QUERY_LATENT, TP2, launch, unreached
from tests.planner.frameworks.test_megatron import CHANGES
from tests.tools.checkouts import checkout, environment, megatron_lm_of

PRIMUS, MEGATRON = frameworks.get("primus"), frameworks.get("megatron")
ORACLE = Path(__file__).parents[2] / "oracles" / "primus_check.py"
# What the presets set that neither costs nor is said: data, logs, checkpoints, optimizer figures.
_LEFT = """
    add_position_embedding attention_backend cp_comm_type cuda_graph_scope dataloader_type
    distributed_timeout_minutes eval_interval exit_on_missing_checkpoint fp8_amax_compute_algo
    fp8_amax_history_len gradient_accumulation_fusion log_timers_to_tensorboard lr_decay_style
    manual_gc_eval manual_gc_interval mscale_all_dim muon_momentum num_query_groups num_workers
    override_opt_param_scheduler profile_ranks replication_factor rerun_mode save_interval
    suggested_communication_unit_size use_flash_attn
"""
LEFT = set(_LEFT.split())


def stated(request: PlanRequest, plan: ParallelPlan) -> dict[str, Any]:
    """The overrides of the config."""
    config = yaml.safe_load(PRIMUS.write(request, plan).files["config.yaml"])
    found: dict[str, Any] = config["modules"]["pre_trainer"]["overrides"]
    return found


@pytest.mark.parametrize("case", CASES)
def test_every_key_is_an_attribute_or_its_own(case: str) -> None:
    assert [
        key for key in stated(*CASES[case]) if key not in {*attribute_names.options(), *OWN}
    ] == []


def test_options_are_attributes_and_attributes_options() -> None:
    assert attribute_names.attribute("--norm-epsilon") == "layernorm_epsilon"
    assert attribute_names.attribute("--disable-bias-linear") == "add_bias_linear"
    for request, plan in CASES.values():
        flags = [one for one in MEGATRON.render(request, plan).flags if one.name[:2] == "--"]
        for one in flags:
            option = attribute_names.options()[attribute_names.attribute(one.name)]
            words = tuple(attribute_names.words(option, attribute_names.value(one)))
            expected = tuple(map(str, (one.name, *map(_number, one.words[1:]))))
            if one.name != "--moe-layer-freq":
                assert words == expected


def _number(word: str) -> object:
    try:
        return float(word) if "." in word or "e" in word else word
    except ValueError:
        return word


def test_presets_that_say_otherwise_are_overridden() -> None:
    plain = stated(*CASES["gpt-one-accelerator"])
    for name in ("use_distributed_optimizer", "sequence_parallel", "swiglu", "finetune"):
        assert plain[name] is False
        assert PRESETS["pre_trainer.yaml"].get(name, True)
    assert plain["add_bias_linear"] is True
    assert stated(*CASES["llama-explicit-stages"])["bf16"] is False
    assert stated(*CASES["llama-uneven"])["attention_backend"] == "fused"


def test_foreign_configs_are_read_with_the_presets_at_hand() -> None:
    preset = "extends:\n  - language_model.yaml\nnum_layers: 4\nhidden_size: 256\n"
    preset += "num_attention_heads: 4\nposition_embedding_type: rope\nvocab_size: 1000\n"
    config = """
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: small.yaml
    overrides:
      seq_length: ${LENGTH:512}
      global_batch_size: 16
      norm_epsilon: 1.0e-6
      tensor_model_parallel_size: 2
      sequence_parallel: 1
"""
    assert PRIMUS.read is not None
    files = {"exp.yaml": config, "small.yaml": preset}
    reading = PRIMUS.read(files, 8)
    assert (reading.model.num_layers, reading.model.gated_mlp) == (4, True)
    assert (reading.training.seq_length, reading.plan.micro_batch_size) == (512, 2)
    assert (reading.plan.tp, reading.plan.dp, reading.plan.sequence_parallel) == (2, 4, True)
    # Megatron-LM calls the attribute layernorm_epsilon: this one does nothing.
    assert [one.name for one in reading.unknown] == ["norm_epsilon"]
    said = reading.find("tensor_model_parallel_size")
    assert said is not None
    assert (said.value, said.line) == ("2", 11)
    for broken, text in (
        ({"exp.yaml": config}, "preset small.yaml is not among"),
        ({"exp.yaml": config.replace("megatron", "maxtext")}, "framework is 'maxtext'"),
        ({"exp.yaml": config.replace("pre_trainer:", "sft:")}, "no pre_trainer"),
        ({**files, "exp.yaml": config.replace("parallel: 1", "parallel: 7")}, "true or false"),
    ):
        with pytest.raises(Unreadable, match=text):
            PRIMUS.read(broken, 8)
    with pytest.raises(Unreadable, match="give a cluster"):
        PRIMUS.read(files, None)


@pytest.mark.parametrize("field", [name for name in CHANGES if PRIMUS.fields[name].supported])
def test_every_supported_field_reaches_the_config(field: str) -> None:
    case, update = CHANGES[field]
    request, plan = CASES[case]
    other = ParallelPlan(**{**plan.model_dump(), **update})
    before, after = (
        {(flag.name, flag.value) for flag in PRIMUS.write(request, one).flags}
        for one in (plan, other)
    )
    differing = {name for name, _ in before ^ after}
    derived = {"dp"}  # no key: what the other sizes leave of the world
    assert differing
    assert field in derived or differing & set(PRIMUS.fields[field].names), differing


REFUSED: list[tuple[str, tuple[PlanRequest, ParallelPlan]]] = [
    ("the cluster has Ascend 910B3", on_ascend(launch())),
    ("no flash-attention on ROCm", on_instinct(launch(attention_kernel="flash2"))),
    ("adds a norm before the query projection", on_instinct(launch(NO_QUERY_LATENT))),
    ("hybridep", on_instinct(launch("mixtral", ep=4, moe_dispatcher="hybridep"))),
    ("nvfp4", on_instinct(launch(training={"precision": "fp4"}))),
    (
        "Muon with overlap_grad_reduce",
        on_instinct(launch(training={"optimizer": "muon"}, zero_stage=0)),
    ),
    (
        "does not support fp8",
        on_instinct(launch(training={"precision": "fp8"}, overlap_tp=True, **TP2)),
    ),
    ("not gpipe", on_instinct(launch(pp=2, schedule="gpipe"))),
    ("overlap_grad_reduce off", on_instinct(launch(pp=4, schedule="zb-h1"))),
    (
        "prediction layers",
        on_instinct(launch("deepseek-v3", pp=2, schedule="zb-h1", ep=8, **NO_OVERLAP)),
    ),
    (
        "2 x pp - 1 = 7 micro-batches",
        on_instinct(launch(schedule="zb-v", training={"global_batch_size": 24}, **IN_A_V)),
    ),
    (
        "split layers evenly",
        on_instinct(launch(schedule="zb-v", stage_layers=(1, 3, 2, 2, 2, 2, 2, 2), **IN_A_V)),
    ),
]


@pytest.mark.parametrize(("text", "case"), REFUSED, ids=[text for text, _ in REFUSED])
def test_refusals(text: str, case: tuple[PlanRequest, ParallelPlan]) -> None:
    assert [reason.text for reason in PRIMUS.reasons(*case) if text in reason.text]


def test_every_own_rule_is_reached_by_a_refusal() -> None:
    shared = set(MEGATRON.rules) & set(PRIMUS.rules)
    assert unreached(PRIMUS, [case for _, case in REFUSED]) <= shared | set(CORE)


def test_its_own_schedules_are_its_own_pipeline_runtime() -> None:
    said = stated(*CASES["llama-zero-bubble"])
    assert (said["patch_primus_pipeline"], said["pp_algorithm"]) == (True, "zero-bubble")
    assert ZERO_BUBBLE["schedule"] == "zb-h1"
    assert "patch_primus_pipeline" not in stated(*CASES["llama-uneven"])


def left(plan: ParallelPlan) -> set[str]:
    """What Primus sets in its own way for this plan, other than Megatron-LM's options."""
    by_number = {"recompute_method", "recompute_num_layers"} if plan.recompute_layers else set()
    return by_number | (
        {"cross_entropy_fusion_impl"} if plan.cross_entropy == "in_place" else set()
    )


@pytest.mark.exhaustive
def test_primus_and_megatron_accept_every_case_and_every_legal_draw() -> None:
    own = environment(
        PRIMUS_PATH=checkout("AMD-AGI/Primus"), MEGATRON_LM_PATH=megatron_lm_of("AMD-AGI/Primus")
    )
    drawn = legal_cases("primus", 2000)
    assert len(drawn) >= 100
    questions, own_ways = [], []
    for request, plan in [*CASES.values(), *drawn]:
        own_ways.append(left(plan))
        made = PRIMUS.write(request, plan)
        flags = MEGATRON.render(request, plan).flags
        questions.append(
            {
                "config": made.files["config.yaml"],
                "argv": [word for one in flags if one.name[:2] == "--" for word in one.words],
                "world_size": plan.accelerators,
                "environment": {f.name: f.words[1] for f in made.flags if f.group == "environment"},
                "last": "groups",
            }
        )
    result = subprocess.run(
        [sys.executable, ORACLE],
        input="\n".join(map(json.dumps, questions)),
        env=own,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(answers) == len(questions), result.stderr
    assert [one["error"] for one in answers if one["failed"]] == []
    for answer, own_way in zip(answers, own_ways, strict=True):
        assert set(answer["differ"]) <= LEFT | own_way
