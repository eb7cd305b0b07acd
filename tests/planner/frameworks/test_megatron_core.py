"""Megatron-LM's arguments against the installed megatron-core: its TransformerConfig refuses none.

The whole of Megatron-LM, argument parser and models included, is asked in the exhaustive tier
(tests/oracles/test_megatron_acceptance.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from planner.frameworks.base import Unsupported
from tests.fixtures.draws import Case, legal
from tests.fixtures.frameworks.megatron import CASES
from tests.fixtures.near_misses import near_misses
from tests.fixtures.patterns import PATTERNED
from tests.oracles.megatron_questions import MEGATRON, question
from tests.planner.frameworks.test_megatron_patterns import drawn

SCRIPT = Path(__file__).parents[2] / "oracles" / "megatron_core_check.py"

# The installed version is older than those that the output is for; core 0.18 dropped this.
DROPPED = "when enabling overlap_moe_expert_parallel_comm with MTP layer"


@pytest.fixture(scope="module")
def said() -> dict[str, list[tuple[Case, dict[str, Any]]]]:
    """Cases by their kind, each with its answer: one process is asked, since it reads for long."""
    fine = [*CASES.values(), *legal(MEGATRON, 100, seed=6)]
    kinds = {
        "patterned": [case for name in PATTERNED for case in drawn(name, 3)],
        "fine": fine,
        "near": [case for case in near_misses(fine, 200, seed=7) if writable(case)],
    }
    answers = iter(ask([case for cases in kinds.values() for case in cases]))
    return {
        kind: list(zip(cases, islice(answers, len(cases)), strict=True))
        for kind, cases in kinds.items()
    }


def fields(*kinds: list[tuple[Case, dict[str, Any]]]) -> set[str]:
    return {field for kind in kinds for _, answer in kind for field in answer["fields"]}


def ask(cases: list[Case]) -> list[dict[str, Any]]:
    questions = [question(MEGATRON.render(*case), case[1])["argv"] for case in cases]
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        input="\n".join(map(json.dumps, questions)),
        capture_output=True,
        text=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(questions), done.stderr
    for answer in answers:
        if DROPPED in (answer["error"] or ""):
            answer["error"] = None
    return answers


@pytest.mark.exhaustive
def test_it_takes_models_whose_layers_differ(said: Any) -> None:
    errors = [answer["error"] for _, answer in said["patterned"] if answer["error"]]
    # The installed version has no context parallelism for sparse attention and delta nets.
    assert [error for error in errors if "context parallel" not in error.lower()] == []
    assert {
        "attention_output_gate",
        "dsa_indexer_topk",
        "experimental_attention_variant",
        "is_hybrid_model",
        "linear_attention_freq",
        "mamba_num_heads",
        "moe_latent_size",
        "no_rope_freq",
        "window_attn_skip_freq",
    } <= fields(said["patterned"])


def writable(case: Case) -> bool:
    try:
        MEGATRON.render(*case)
    except (Unsupported, KeyError):
        return False
    return True


@pytest.mark.slow
def test_what_we_write_it_takes_and_what_it_refuses_we_refuse(said: Any) -> None:
    assert [answer for _, answer in said["fine"] if answer["error"]] == []
    refused = 0
    for case, answer in said["near"]:
        if answer["error"]:
            assert MEGATRON.reasons(*case), (answer, case)
            refused += 1
    assert refused > 5
    assert {
        "num_moe_experts",
        "recompute_modules",
        "pipeline_model_parallel_layout",
        "moe_layer_freq",
        "window_size",
        "kv_lora_rank",
        "cpu_offloading_num_layers",
        "overlap_moe_expert_parallel_comm",
    } <= fields(said["fine"], said["near"])
