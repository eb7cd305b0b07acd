"""MindSpeed-LLM's options: its list, and what they say in Megatron-LM's words."""

from __future__ import annotations

from typing import Any

import pytest

from planner.frameworks import get
from planner.frameworks.arguments import known_arguments
from planner.frameworks.mindspeed import llm
from planner.frameworks.read_results import Reading, Unreadable
from tests.oracles.declared_arguments import FEATURES, declared
from tests.tools.checkouts import checkout

BASE = """--hidden-size 1024 --num-attention-heads 16 --seq-length 2048 \
--max-position-embeddings 2048 --position-embedding-type rope --normalization RMSNorm --swiglu \
--disable-bias-linear --untie-embeddings-and-output-weights --use-fused-rmsnorm --bf16 \
--micro-batch-size 1 --global-batch-size 64 --tokenizer-type PretrainedFromHF \
--tokenizer-name-or-path your tokenizer path --ffn-hidden-size 2816"""
MOE = "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 512 --moe-grouped-gemm"


def read(words: str, layers: int = 8) -> Reading:
    text = (
        "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
        f"torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers {layers} {BASE} {words}\n"
    )
    framework = get("mindspeed")
    assert framework.read is not None
    assert framework.recognises({"run.sh": text})
    return framework.read({"run.sh": text}, None)


def model(words: str, layers: int = 8) -> Any:
    reading = read(words, layers)
    assert (reading.refusals, reading.unknown) == ((), ())
    return reading.model


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("--padded-vocab-size 151936", "vocab_size", 151_936),
        ("--model-type-hf qwen3", "vocab_size", 151_936),
        ("--noop-layers 6,7", "num_layers", 6),
        ("--geglu", "gated_mlp", True),
        ("--gelu-tanh", "gated_mlp", True),
        ("--sliding-window-size 512", "sliding_window", 512),
        ("--interleave-sliding-window 512", "full_attention_period", 2),
    ],
)
def test_options_of_the_model(words: str, field: str, value: object) -> None:
    assert getattr(model(words), field) == value


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        ("--moe-layer-freq -1", "eeeeeeee"),
        ("--moe-layer-freq 1 --first-k-dense-replace 3", "dddeeeee"),
        ("--moe-layer-freq 2 --first-k-dense-replace 1", "ddededed"),
        ("--moe-layer-freq 1 --first-k-dense-replace 2 --noop-layers 0,7", "deeeee"),
    ],
)
def test_which_layers_have_experts(words: str, kinds: str) -> None:
    found = model(f"{MOE} {words}").feed_forwards
    assert "".join("e" if kind != "dense" else "d" for kind in found) == kinds


def test_shared_experts_are_as_wide_as_so_many_experts() -> None:
    assert model(f"{MOE} --n-shared-experts 2").moe.shared_expert_ffn_hidden_size == 1024


@pytest.mark.parametrize(
    ("words", "layers", "vpp", "stages"),
    [
        ("--pipeline-model-parallel-size 4 --num-layer-list 1,2,2,3", 8, 1, (1, 2, 2, 3)),
        ("--pipeline-model-parallel-size 4 --noop-layers 7", 8, 1, (2, 2, 2, 1)),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2 "
            "--noop-layers 7",
            8,
            2,
            (2, 2, 2, 1),
        ),
    ],
)
def test_layers_of_the_stages(words: str, layers: int, vpp: int, stages: tuple[int, ...]) -> None:
    reading = read(words, layers)
    assert reading.refusals == ()
    plan = reading.plan
    assert plan.vpp == vpp
    assert sum(stages) == reading.model.num_layers
    from cost_models.stage_layers import forward_layers

    assert tuple(forward_layers(reading.model.num_layers, plan)) == stages


def test_delta_nets_but_for_the_last_of_each_period() -> None:
    words = "--full-attention-interval 4 --linear-num-key-heads 4 --linear-num-value-heads 8 "
    pattern = model(words + "--linear-key-head-dim 64 --linear-value-head-dim 64").layer_pattern
    assert [layer[0].kind for layer in pattern] == ["gated_delta_net"] * 3 + ["attention"]


def test_adapters_and_the_loss() -> None:
    training = read(
        "--lora-r 16 --lora-alpha 32 --lora-target-modules linear_qkv linear_proj --stage dpo"
    ).training
    assert (training.lora_rank, training.lora_targets) == (16, ("linear_qkv", "linear_proj"))
    assert training.loss == "dpo"


@pytest.mark.parametrize("name", sorted(llm.UNSUPPORTED_OPTIONS))
def test_layers_that_no_model_has_are_refused_by_name(name: str) -> None:
    row = llm.flags()[name]
    with pytest.raises(Unreadable, match=name):
        read(f"{name} {'' if row['kind'] == 'switch' else '4'}")


def test_the_list_is_more_than_mindspeeds() -> None:
    known = known_arguments("planner.frameworks.mindspeed")["flags"]
    assert len(llm.flags().keys() - known.keys()) > 200
    assert {*llm.CHANGES.names, *llm.UNSUPPORTED_OPTIONS} <= llm.flags().keys() | known.keys()


@pytest.mark.exhaustive
def test_the_stored_list_is_that_of_a_checkout() -> None:
    known = known_arguments("planner.frameworks.mindspeed")["flags"]
    assert declared(checkout("Ascend/MindSpeed-LLM") / FEATURES, known) == llm.flags()
