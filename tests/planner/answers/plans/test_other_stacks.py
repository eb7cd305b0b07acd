"""TPUs are MaxText's; Gaudi and Trainium are planned, and started by no framework here."""

from __future__ import annotations

from typing import Any

import pytest

from planner import frameworks
from planner.answers.plans import plan_answers
from planner.answers.plans.emission import NothingFits, emit
from planner.documents.request import PlanRequest
from planner.frameworks.base import Unsupported
from planner.inputs.requests.parser import parse_request

STACKS = {
    "16xtpu-v6e": "MaxText (JAX)", "16xtpu-v7x": "MaxText (JAX)", "2x8xgaudi2": "Optimum for Intel",
    "2x8xgaudi3": "Optimum for Intel", "1x32xtrainium1": "NeuronX Distributed",
    "1x16xtrainium2": "NeuronX Distributed", "4x4xtrainium3": "NeuronX Distributed",
}  # fmt: skip


def asked(cluster: str, **more: Any) -> PlanRequest:
    document = {
        "model": "llama-3.1-8b", "cluster": cluster,
        "training": {"seq_length": 4096, "global_batch_size": 64},
        "search": {"tp": [1, 2], "pp": 1, "cp": 1, "top_k": 1},
    }  # fmt: skip
    return parse_request({**document, **more})


@pytest.mark.parametrize("cluster", STACKS)
def test_no_framework_here_starts_on_them(cluster: str) -> None:
    request = asked(cluster, plan={"dp": 16})
    written = "tpu" in cluster
    for name in set(frameworks.FRAMEWORKS) - ({"maxtext"} if written else set()):
        texts = [
            reason.text for reason in frameworks.get(name).reasons(request, request.named_plan)
        ]
        assert any(STACKS[cluster] in text for text in texts), name
    if not written:
        with pytest.raises(NothingFits, match=r"no launch files: .*no framework here writes for"):
            emit(request)


def test_tpus_are_maxtexts_unless_another_is_asked_for() -> None:
    training = {"seq_length": 4096, "global_batch_size": 64, "gradient_reduce_dtype": "bf16"}
    made = emit(asked("16xtpu-v6e", training=training))
    assert made.framework == "maxtext"
    assert "hardware: tpu" in made.files["config.yml"]
    with pytest.raises(Unsupported, match="are for CUDA and ROCm devices: TPU v6e"):
        emit(asked("16xtpu-v6e", plan={"dp": 16}, search={"framework": "torchtitan"}))


@pytest.mark.parametrize("cluster", ["1x16xtrainium2"])
def test_a_plan_says_what_it_rests_on(cluster: str) -> None:
    answer = plan_answers.find(asked(cluster))
    assert answer.best is not None
    assert answer.launch is None
    notes = {note.code: note.text for note in answer.best.assumptions}
    assert "taken as a switch" in notes["links"]
    assert STACKS[cluster] in notes["stack"]
    assert "priced with the kernels of Megatron" in notes["stack"]
    basis = answer.best.error_band.basis
    chip = answer.request["cluster"]["groups"][0]["accelerator"]["id"]
    assert f"no run on {chip}; wider: " in basis
    assert answer.best.error_band.accelerator_rows == 0


@pytest.mark.slow
def test_a_known_chip_says_none_of_it() -> None:
    answer = plan_answers.find(asked("2x8xh100-sxm"))
    assert answer.best is not None
    assert not {note.code for note in answer.best.assumptions} & {"links", "stack"}
    assert "no run on" not in answer.best.error_band.basis
    assert 0 < answer.best.error_band.accelerator_rows < answer.best.error_band.rows
    assert answer.launch is not None


def test_a_tpus_headline_is_one_that_maxtext_launches() -> None:
    """What the request leaves out is as MaxText trains: gradients in bf16, weights freed."""
    answer = plan_answers.find(asked("v5p-32"))
    assert answer.launch is not None
    assert answer.launch.framework == "maxtext"
    assert answer.request["training"]["gradient_reduce_dtype"] == "bf16"


def test_tpus_run_compiled_jax_unless_told() -> None:
    best = plan_answers.find(asked("16xtpu-v6e")).best
    assert best is not None
    assert (best.plan.runtime, best.plan.compile, best.plan.cross_entropy) == (
        "jax", True, "unfused",
    )  # fmt: skip
    named = asked("16xtpu-v6e", plan={"dp": 16}).named_plan
    assert (named.runtime, named.compile) == ("jax", True)
    other = plan_answers.find(
        asked("16xtpu-v6e", search={"runtime": "torch", "tp": 1, "pp": 1})
    ).best
    assert other is not None
    assert (other.plan.runtime, other.plan.compile) == ("torch", True)
