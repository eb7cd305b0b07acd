"""Primus's experiments by themselves and with the presets that they name."""

from __future__ import annotations

import pytest

from planner.frameworks import get
from planner.frameworks.read_results import Reading, Unreadable

PRIMUS = """\
work_group: ${PRIMUS_TEAM:amd}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: ${PRIMUS_MODEL:llama3.1_8B}.yaml
    overrides:
      train_iters: 50
      micro_batch_size: ${MBS:2}
      global_batch_size: 128
      seq_length: 8192
      max_position_embeddings: 8192
      tensor_model_parallel_size: 2
      sequence_parallel: true
      overlap_grad_reduce: true
      overlap_param_gather: true
      gradient_accumulation_fusion: false
      fp8: hybrid
      lr_decay_iters: null
      enable_primus_turbo: true
"""
LLAMA = """\
extends:
  - base.yaml
num_layers: 4
hidden_size: 512
ffn_hidden_size: 2048
num_attention_heads: 8
tokenizer_model: meta-llama/Llama-3.1-8B
"""
BASE = """\
swiglu: true
add_bias_linear: false
untie_embeddings_and_output_weights: true
position_embedding_type: rope
normalization: RMSNorm
hidden_dropout: 0.0
attention_dropout: 0.0
"""


def read(files: dict[str, str], size: int | None = 8) -> Reading:
    framework = get("primus")
    assert framework.read is not None
    assert framework.recognises(files)
    return framework.read(files, size)


def test_an_experiment_of_primus_with_a_model_by_name() -> None:
    reading = read({"exp.yaml": PRIMUS})
    assert reading.model.num_layers == 32
    plan, training = reading.plan, reading.training
    assert (plan.tp, plan.sequence_parallel, plan.dp, plan.zero_stage) == (2, True, 4, 1)
    assert (plan.micro_batch_size, plan.overlap_param_gather) == (2, True)
    assert (training.global_batch_size, training.seq_length, training.precision) == (
        128,
        8192,
        "fp8",
    )
    assert (reading.refusals, reading.unknown) == ((), ())


def test_layers_may_be_fewer_than_the_named_models() -> None:
    text = PRIMUS.replace("      fp8: hybrid", "      num_layers: 4")
    assert read({"exp.yaml": text}).model.num_layers == 4


def test_layers_that_are_recomputed_by_their_numbers() -> None:
    """They count on the stage that holds them; numbers after the last layer are prediction's."""
    some = '      recompute_granularity: full\n      recompute_layer_ids: "0,15,16,17,32"\n'
    text = PRIMUS.replace("      fp8:", f"      pipeline_model_parallel_size: 2\n{some}      fp8:")
    plan = read({"exp.yaml": text}).plan
    assert (plan.recompute, plan.recompute_method, plan.recompute_layers) == (
        "full",
        "block",
        (2, 2),
    )
    with pytest.raises(Unreadable, match="recompute_layer_ids must be whole numbers, got 'all'"):
        read({"exp.yaml": text.replace("0,15,16,17,32", "all")})


def test_four_bits_of_amd_are_its_own() -> None:
    text = PRIMUS.replace("      fp8: hybrid", "      fp4: e2m1\n      fp4_recipe: mxfp4")
    reading = read({"exp.yaml": text})
    assert (reading.training.precision, reading.refusals) == ("fp4", ())
    (refused,) = read({"exp.yaml": text.replace("mxfp4", "mxfp6")}).refusals
    assert "it is one of nvfp4, custom, mxfp4" in refused.reason.text


def test_the_three_layers_of_primus() -> None:
    files = {"exp.yaml": PRIMUS, "llama3.1_8B.yaml": LLAMA, "base.yaml": BASE}
    model = read(files).model
    assert (model.num_layers, model.hidden_size, model.vocab_size) == (4, 512, 128_256)
    assert (model.gated_mlp, model.mlp_bias, model.norm) == (True, False, "rmsnorm")


@pytest.mark.parametrize(
    ("change", "files", "text"),
    [
        (("llama3.1_8B", "nobody_7B"), {}, "the model nobody_7B is no preset"),
        (("fp8: hybrid", "hidden_size: 512"), {}, "hidden_size changes"),
        (("fp8: hybrid", "lora.rank: 8"), {}, "lora.rank"),
        (("", ""), {"llama3.1_8B.yaml": LLAMA}, "extends base.yaml, which is not among the files"),
    ],
)
def test_what_primus_leaves_out_is_named(
    change: tuple[str, str], files: dict[str, str], text: str
) -> None:
    with pytest.raises(Unreadable, match=text):
        read({"exp.yaml": PRIMUS.replace(*change), **files})
