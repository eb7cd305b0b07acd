"""Fine-tuning as most people ask for it: one node, adapters, and no framework named."""

from __future__ import annotations

from typing import Any

import pytest

import planner
from planner import frameworks
from planner.documents.answer import PlanAnswer
from planner.inputs.requests.parser import parse_request

TRAINING: dict[str, Any] = {"seq_length": 2048, "global_batch_size": 16, "lora_rank": 16}


def answer(cluster: str, model: str = "llama-3.1-8b", **training: Any) -> PlanAnswer:
    found = planner.plan({"model": model, "cluster": cluster, "training": {**TRAINING, **training}})
    assert isinstance(found, PlanAnswer)
    return found


@pytest.mark.slow
def test_four_bits_on_one_card_have_files_to_start() -> None:
    """The most common job there is."""
    found = answer("1x1xrtx-4090", frozen_dtype="nf4")
    assert found.no_launch is None
    # TRL keeps the adapters in another type, as it says where it is left out.
    assert [one.framework for one in found.frameworks] == ["llama-factory", "axolotl", "unsloth"]
    assert found.best is not None
    # Of Unsloth's kernels only its code tells, and no published run.
    assert found.best.plan.runtime == "transformers"
    assert found.frameworks[-1].slower_by < 0
    assert found.best.plan.accelerators == 1
    bundle = planner.emit(
        {
            "model": "llama-3.1-8b",
            "cluster": "1x1xrtx-4090",
            "training": {**TRAINING, "frozen_dtype": "nf4"},
            "search": {"framework": "trl"},
        }
    )
    assert "load_in_4bit: true" in bundle.files["config.yaml"]
    assert "adapters stay in bf16" in bundle.files["config.yaml"]
    assert "packing_strategy: wrapped" in bundle.files["config.yaml"]


def test_several_cards_hold_copies_and_no_pipeline() -> None:
    found = answer("1x4xrtx-4090", "qwen3-8b")
    assert found.best is not None
    plan = found.best.plan
    assert (plan.tp, plan.pp, plan.cp, plan.dp, plan.runtime) == (1, 1, 1, 4, "transformers")


@pytest.mark.parametrize("framework", ["trl", "llama-factory", "accelerate"])
def test_all_weights_on_one_card_reduce_no_gradients(framework: str) -> None:
    found = planner.plan(
        {
            "model": "llama-3.2-1b",
            "cluster": "1x1xh100-sxm",
            "training": {"seq_length": 2048, "global_batch_size": 4},
            "search": {"framework": framework},
        }
    )
    assert isinstance(found, PlanAnswer)
    assert found.best is not None


def test_a_named_framework_and_several_nodes_keep_their_own_adapters() -> None:
    def targets(cluster: str, **search: Any) -> tuple[str, ...]:
        asked = {"model": "llama-3.1-8b", "cluster": cluster, "training": TRAINING}
        return tuple(parse_request({**asked, "search": search}).training.lora_targets)

    assert "q_proj" in targets("1x8xh100-sxm")
    assert "linear_qkv" in targets("2x8xh100-sxm")
    assert "linear_qkv" in targets("1x8xh100-sxm", framework="megatron-bridge")


def test_nobody_means_bf16_on_a_v100() -> None:
    asked = {
        "model": "llama-3.2-1b",
        "cluster": "1x8xv100-sxm2-32gb",
        "training": {"seq_length": 2048, "global_batch_size": 64},
    }
    request = parse_request(asked)
    assert request.training.precision == "fp16"
    assert "/training/precision" in request.defaulted


@pytest.mark.slow
def test_where_nothing_fits_on_a_node_the_optimizer_is_offloaded_and_said() -> None:
    """All of 8.03 B parameters on four cards of 24 GiB: 12 bytes of each in host memory."""
    asked = {
        "model": "llama-3.1-8b",
        "cluster": "1x4xrtx-4090",
        "training": {"seq_length": 2048, "global_batch_size": 16},
    }
    found = planner.plan(asked)
    assert isinstance(found, PlanAnswer)
    assert found.best is not None
    assert found.opened == ("offload_optimizer",)
    assert found.best.plan.offload_optimizer
    assert found.best.memory.host_bytes == pytest.approx(12 * 8.03e9, rel=0.01)
    assert found.best.memory.peak_bytes < found.best.memory.capacity_bytes
    assert "--optimizer-cpu-offload" in planner.emit(asked).files["launch.sh"]
    # One that says where the optimizer is, or has nodes enough to add, is answered as it asked.
    kept = {"search": {"framework": "megatron", "offload_optimizer": False}}
    for change in (kept, {"cluster": "2x2xrtx-4090"}):
        other = planner.plan({**asked, **change})
        assert isinstance(other, PlanAnswer)
        assert (other.best, other.opened, other.fallback) == (None, (), None)


@pytest.mark.slow
def test_where_nothing_fits_as_asked_a_trainer_trains_by_its_own_defaults_and_that_is_said() -> (
    None
):
    asked = {
        "model": "llama-3.1-8b",
        "cluster": "1x4xrtx-4090",
        "training": {"seq_length": 2048, "global_batch_size": 16},
        "search": {"offload_optimizer": False},
    }
    found = planner.plan(asked)
    assert isinstance(found, PlanAnswer)
    assert found.best is not None
    assert not found.best.plan.offload_optimizer
    assert found.launch is not None
    assert found.launch.framework == "torchtune"
    assert found.request["training"]["master_weights_dtype"] == "none"
    assert "/training/master_weights_dtype" in found.opened
    assert "master_weights_dtype none" in (found.fallback or "")
    assert "as torchtune trains by itself" in (found.fallback or "")


@pytest.mark.slow
def test_70b_in_four_bits_on_two_cards_of_24_gb() -> None:
    """What FSDP with QLoRA is known for: the shards wait in host memory."""
    found = answer("1x2xrtx-4090", "llama-3.1-70b", frozen_dtype="nf4", seq_length=512)
    assert found.best is not None
    assert found.launch is not None
    assert found.launch.framework == "trl"
    assert found.opened[0] == "offload_optimizer"
    plan = found.best.plan
    assert (plan.dp, plan.zero_stage, plan.offload_optimizer) == (2, 3, True)
    # 4.13 bits of 68.5 B weights in layers, 16 of the 2.1 B of the vocabulary.
    assert found.best.memory.host_bytes == pytest.approx(68.5e9 * 4.127 / 8 + 2.1e9 * 2, rel=0.02)
    given = {**TRAINING, "frozen_dtype": "nf4", "seq_length": 512}
    asked = {"model": "llama-3.1-70b", "cluster": "1x2xrtx-4090", "training": given}
    files = planner.emit({**asked, "search": {"framework": "torchtune"}}).files
    assert "fsdp_cpu_offload: true" in files["config.yaml"]
    # What is given stays as given.
    for kept in ({"master_weights_dtype": "fp32"}, {"gradient_reduce_dtype": "fp32"}):
        other = planner.plan({**asked, "training": {**given, **kept}})
        assert isinstance(other, PlanAnswer)
        assert all(other.request["training"][name] == value for name, value in kept.items())
        assert other.launch is None or other.launch.framework != "torchtune"


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize(("framework", "cp"), [("trl", 1), ("axolotl", 2), ("llama-factory", 1)])
def test_trainers_shard_adapters_where_copies_do_not_fit(framework: str, cp: int) -> None:
    """FSDP reduces gradients in the type of activations, where nobody said another.

    Axolotl keeps all activations of half a sequence, for which others recompute.
    """
    asked = {
        "model": "llama-3.1-70b",
        "cluster": "1x8xa100-sxm-80gb",
        "training": TRAINING,
        "search": {"framework": framework},
    }
    found = planner.plan(asked)
    assert isinstance(found, PlanAnswer)
    assert found.best is not None
    plan = found.best.plan
    assert (plan.dp, plan.cp, plan.zero_stage) == (8 // cp, cp, 3)
    assert found.opened == ("/training/gradient_reduce_dtype",)
    title = frameworks.get(framework).title
    assert found.fallback == (
        f"No plan fits otherwise: gradient_reduce_dtype bf16, as {title} trains by itself"
    )
    assert planner.emit(asked).framework == framework
    kept = planner.plan({**asked, "training": {**TRAINING, "gradient_reduce_dtype": "fp32"}})
    assert isinstance(kept, PlanAnswer)
    assert (kept.best, kept.fallback) == (None, None)


@pytest.mark.slow
def test_attention_sinks_take_the_kernel_that_has_them() -> None:
    """gpt-oss: transformers' families have them without flash attention only."""
    training = {"lora_targets": ["q_proj", "k_proj", "v_proj", "o_proj"], "seq_length": 2048}
    for framework in ("trl", "axolotl", "llama-factory"):
        found = planner.plan(
            {
                "model": "gpt-oss-20b",
                "cluster": "1x1xh100-sxm",
                "training": {**TRAINING, **training},
                "search": {"framework": framework},
            }
        )
        assert isinstance(found, PlanAnswer)
        assert found.best is not None
        assert found.best.plan.attention_kernel == "unfused"
        assert found.launch is not None
    experts = planner.plan(
        {
            "model": "gpt-oss-20b",
            "cluster": "1x1xh100-sxm",
            "training": {**TRAINING, **training, "lora_targets": ["q_proj", "gate_proj"]},
            "search": {"framework": "trl"},
        }
    )
    assert isinstance(experts, PlanAnswer)
    assert experts.unbuildable is not None
    assert "does not have the modules gate_proj: adapters on" in experts.unbuildable.sentence
    assert "lora_targets q_proj,k_proj,v_proj,o_proj" in experts.unbuildable.sentence


DPO: dict[str, Any] = {
    "model": "llama-3.1-70b",
    "cluster": "1x8xa100-sxm-40gb",
    "training": {**TRAINING, "seq_length": 1024, "loss": "dpo"},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "search", [{}, {"framework": "trl"}, {"framework": "llama-factory", "micro_batch_size": 2}]
)
def test_preferences_are_trained_as_trainers_do_by_themselves_too(search: dict[str, Any]) -> None:
    """A pair is a micro-batch; the fp32 reduction of gradients is what shards are lacking."""
    found = planner.plan({**DPO, "search": search})
    assert isinstance(found, PlanAnswer)
    assert found.launch is not None
    assert found.launch.framework == search.get("framework", "llama-factory")
    assert found.opened == ("/training/gradient_reduce_dtype",)
    assert found.best is not None
    assert (found.best.plan.zero_stage, found.best.plan.micro_batch_size) == (3, 2)


@pytest.mark.slow
def test_a_trainer_that_cannot_names_what_others_do_by_themselves() -> None:
    found = planner.plan({**DPO, "search": {"framework": "axolotl"}})
    assert isinstance(found, PlanAnswer)
    assert found.unbuildable is not None
    assert "the next token" in found.unbuildable.sentence
    assert found.unbuildable.able == ("llama-factory", "trl")
    assert found.unbuildable.instead is not None
    assert found.unbuildable.instead.framework == "llama-factory"
