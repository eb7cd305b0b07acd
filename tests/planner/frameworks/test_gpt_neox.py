"""GPT-NeoX configs: keys it has, its own validation, and every refusal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cost_models.spec import ModelSpec
from planner import frameworks
from planner.documents.request import PlanRequest
from planner.frameworks.deepspeed.rules import ENGINE as ENGINE_RULES
from planner.frameworks.gpt_neox.reader import KEYS
from planner.frameworks.read_results import Unreadable
from tests.fixtures.frameworks import legal_cases
from tests.fixtures.frameworks.gpt_neox import CASES, FP16, MISTRAL, PYTHIA, case
from tests.fixtures.launches import MODELS, run_script, unreached, written
from tests.planner.frameworks.test_deepspeed import REFUSED as ENGINE_REFUSED
from tests.tools.checkouts import checkout, environment

NEOX = frameworks.get("neox")
ORACLE = Path(__file__).parents[2] / "oracles" / "gpt_neox_check.py"


def config(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(NEOX.write(*CASES[name]).files["config.yml"])
    return found


@pytest.mark.parametrize("name", CASES)
def test_every_key_is_its_own(name: str) -> None:
    assert set(config(name)) <= KEYS


def test_the_width_of_a_gated_mlp_comes_out_as_planned() -> None:
    """It takes two thirds of what it is given, and half of that behind the gate."""
    said = config("llama-3d")["intermediate_size"]
    assert int(said * 2 / 3) // 2 == MODELS["llama"].ffn_hidden_size
    assert config("pythia")["intermediate_size"] == PYTHIA.ffn_hidden_size


def test_one_stage_needs_no_pipeline_engine() -> None:
    assert config("llama-zero3")["pipe_parallel_size"] == 0
    assert config("llama-3d")["pipe_parallel_size"] == 4


def test_the_launcher_reads_the_hostfile_beside_the_script(tmp_path: Path) -> None:
    made = NEOX.write(*CASES["llama-3d"])
    written(tmp_path, made)
    calls = run_script(tmp_path, made.main)
    assert calls[0][1:] == ["mock_data.py", "mock_data", "32000", "2049"]
    assert calls[1][1].endswith("/deepy.py")
    assert calls[1][3] == "config.yml"
    assert made.files["hostfile"].count("slots=8") == 2


def test_its_own_llama_is_read() -> None:
    """Keys as its published configs spell them, in two files."""
    model = """{
  "pipe-parallel-size": 2, "model-parallel-size": 2, "num-layers": 32, "hidden-size": 4096,
  "intermediate_size": 32768, "mlp_multiple_of": 256, "num-attention-heads": 32,
  "seq-length": 2048, "max-position-embeddings": 2048, "pos-emb": "rotary",
  "no-weight-tying": true, "norm": "rmsnorm", "activation": "swiglu", "use_bias_in_mlp": false,
  "use_bias_in_attn_linear": false, "attention-config": [[["flash"], 32]],
  "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8, "no-such-key": 1,
}"""
    zero = "zero_optimization: {stage: 1, overlap_comm: true}\nprecision: bfloat16\n"
    assert NEOX.read is not None
    files = {"7B.yml": model, "zero.yml": zero}
    reading = NEOX.read(files, 16)
    assert reading.model.ffn_hidden_size == 11008
    assert (reading.plan.dp, reading.plan.zero_stage) == (4, 1)
    assert reading.training.global_batch_size == 4 * 8 * 4
    assert [one.name for one in reading.unknown] == ["no_such_key"]
    assert "GPT2BPETokenizer is taken to have 50257 tokens" in reading.assumed[0]
    for broken, text, size in (
        ({"7B.yml": model.replace("2048,", "x,", 1)}, "seq_length must be a whole number", 16),
        (files, "give a cluster", None),
        ({"run.sh": ""}, "there is no YAML", 8),
    ):
        with pytest.raises(Unreadable, match=text):
            NEOX.read(broken, size)
    refused = NEOX.read(files, 6).refusals
    assert [one.reason.text for one in refused] == ["6 accelerators do not divide over tp 2 x pp 2"]


def changed(name: str, **update: Any) -> ModelSpec:
    return ModelSpec(**{**MODELS[name].model_dump(), **update})


REFUSED: list[tuple[str, tuple[PlanRequest, Any]]] = [
    ("megablocks", case("mixtral")),
    ("latent attention", case("deepseek-v3")),
    ("weights for each head", case(changed("llama", qk_norm="head"))),
    ("attention sinks", case("gpt-oss")),
    ("multi-token prediction", case("deepseek-v3")),
    ("after the embedding", case(changed("gpt", embedding_norm=True))),
    ("output layer has no bias", case(changed("llama", lm_head_bias=True))),
    ("head width must be", case(changed("llama", head_dim=64))),
    (
        "applies to every layer",
        case(changed("llama", sliding_window=512, full_attention_period=2)),
    ),
    ("two norms, or one", case(changed("llama", norms_per_layer=4))),
    ("both places", case("qwen2")),
    ("without a gate has biases", case("nope")),
    ("only flash-attention", case(MISTRAL, attention_kernel="unfused")),
    ("cp is 1, not 2", case(cp=2)),
    ("each layer is one checkpoint", case(recompute="full", recompute_num_layers=2)),
    ("accumulate in fp16", case(training={**FP16, "gradient_dtype": "fp32"})),
    ("the position table has 4096", case("gpt", training={"seq_length": 8192})),
    ("its own kernels", case(compile=True)),
    ("its optimizers are", case(training={"optimizer": "muon"})),
]


@pytest.mark.parametrize(("text", "refused"), REFUSED, ids=[text for text, _ in REFUSED])
def test_refusals(text: str, refused: tuple[PlanRequest, Any]) -> None:
    assert [reason.text for reason in NEOX.reasons(*refused) if text in reason.text]


def test_every_own_rule_is_reached_by_a_refusal() -> None:
    shared = set(frameworks.get("deepspeed").rules) & set(NEOX.rules)
    assert unreached(NEOX, [one for _, one in REFUSED]) <= shared
    assert set(ENGINE_RULES) < set(NEOX.rules)
    assert ENGINE_REFUSED


@pytest.mark.exhaustive
def test_its_own_arguments_accept_every_case_and_every_legal_draw() -> None:
    own = environment(GPT_NEOX_PATH=checkout("EleutherAI/gpt-neox"))
    drawn = legal_cases("gpt-neox", 1000)
    assert len(drawn) >= 100
    asked = [*CASES.values(), *drawn]
    questions = [
        {"config": NEOX.write(*one).files["config.yml"], "world_size": one[1].accelerators}
        for one in asked
    ]
    result = subprocess.run(
        [sys.executable, ORACLE],
        env=own,
        input="\n".join(map(json.dumps, questions)),
        capture_output=True,
        text=True,
        timeout=1200,
    )
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(answers) == len(asked), result.stderr
    for (request, plan), answer in zip(asked, answers, strict=True):
        assert answer["error"] == ""
        accumulation = request.training.global_batch_size // (plan.micro_batch_size * plan.dp)
        assert answer["gradient_accumulation_steps"] == accumulation
        assert answer["engine"]["zero_optimization"]["stage"] == plan.zero_stage
        assert answer["model_parallel_size"] == plan.tp
