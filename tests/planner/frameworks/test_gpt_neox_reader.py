"""GPT-NeoX's YAML, several files as one configuration."""

from __future__ import annotations

import pytest

from planner.answers.lint.fixes import fixed_files
from planner.answers.lint.lint import lint
from planner.answers.lint.lint import read as said
from planner.frameworks import get
from planner.frameworks.read_results import Reading, Unreadable
from planner.inputs.requests.parser import parse_cluster

MODEL = """\
{
  "pipe-parallel-size": 2,
  "model-parallel-size": 2,
  "num_layers": 12,
  "hidden_size": 768,
  "num_attention_heads": 12,
  "seq_length": 2048,
  "max_position_embeddings": 2048,
  "pos_emb": "rotary",
  "no_weight_tying": true,
  "vocab_file": "./20B_tokenizer.json",
  "tokenizer_type": "HFTokenizer",
  "optimizer": {"type": "Adam", "params": {"lr": 0.0006}},
  "zero_optimization": {"stage": 1, "cpu_offload": False},
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 8,
  "checkpoint_activations": true,
  "fp16": {"enabled": true},  # comments too
}
"""


def read(text: str = MODEL, **files: str) -> Reading:
    framework = get("gpt-neox")
    assert framework.read is not None
    named = {"model.yml": text, **{f"{name}.yml": more for name, more in files.items()}}
    assert framework.recognises(named)
    return framework.read(named, 8)


def test_what_a_configuration_says() -> None:
    reading = read()
    model, plan, training = reading.model, reading.plan, reading.training
    assert (model.num_layers, model.hidden_size, model.vocab_size) == (12, 768, 50_277)
    assert (model.position, model.tied_embeddings, model.qkv_bias) == ("rope", False, True)
    assert (plan.tp, plan.pp, plan.dp, plan.zero_stage, plan.micro_batch_size) == (2, 2, 2, 1, 4)
    assert (plan.recompute, plan.recompute_num_layers) == ("full", 1)
    assert (training.precision, training.global_batch_size) == ("fp16", 64)
    assert reading.refusals == ()


def test_later_files_are_laid_over() -> None:
    reading = read(cluster='{"data-path": "x", "train_micro_batch_size_per_gpu": 2}')
    assert (reading.plan.micro_batch_size, reading.training.global_batch_size) == (2, 32)


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ('"activation": "swiglu", "intermediate_size": 6144', "ffn_hidden_size", 2048),
        ('"activation": "swiglu", "mlp_multiple_of": 256', "ffn_hidden_size", 1024),
        ('"num_kv_heads": 4', "num_query_groups", 4),
        ('"norm": "rmsnorm", "use_bias_in_norms": false', "norm", "rmsnorm"),
        ('"use_bias_in_attn_linear": false', "qkv_bias", False),
        ('"padded_vocab_size": 50304', "vocab_size", 50_304),
    ],
)
def test_keys_of_the_model(change: str, field: str, value: object) -> None:
    assert getattr(read(MODEL.replace('"fp16"', f'{change}, "fp16"')).model, field) == value


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ('"attention_config": [[["mamba"], 12]]', "mamba layers"),
        ('"attention_config": [[["local", "global"], "all"]]', "local layers"),
        ('"my_attention_heads": 4', "my_attention_heads"),
        ('"zero_optimization": {"stage": 7}', "stage must be a whole number from 0 to 3"),
    ],
)
def test_what_is_not_read_is_refused_by_name(change: str, text: str) -> None:
    with pytest.raises(Unreadable, match=text):
        read(MODEL.replace('"fp16"', f'{change}, "fp16"'))


def test_the_older_key_of_bf16_is_a_type_of_fp16() -> None:
    reading = read(MODEL.replace('"enabled": true}', '"enabled": true, "type": "bfloat16"}'))
    assert (reading.training.precision, reading.training.gradient_dtype) == ("bf16", "bf16")


def test_without_zero_bf16_shards_all_the_same() -> None:
    text = MODEL.replace('"fp16": {"enabled": true}', '"bf16": {"enabled": true}')
    reading = read(text.replace('"stage": 1', '"stage": 0'))
    assert (reading.plan.zero_stage, reading.training.precision) == (1, "bf16")


def test_sizes_that_contradict_each_other_are_refused_at_their_key() -> None:
    reading = read(MODEL.replace('"fp16"', '"train_batch_size": 60, "fp16"'))
    (refused,) = reading.refusals
    assert refused.reason.text == (
        "train_batch_size 60 is not micro batch 4 x accumulation 8 x dp 2"
    )
    assert refused.setting is not None
    assert refused.setting.line == 18


def test_a_batch_that_no_file_states_is_said() -> None:
    reading = read(MODEL.replace('  "train_micro_batch_size_per_gpu": 4,\n', ""))
    assert reading.plan.micro_batch_size == 1
    assert any("--set train_micro_batch_size_per_gpu=N" in one for one in reading.assumed)


def test_experts_of_megablocks_are_read_though_nobody_writes_them() -> None:
    model = read(MODEL.replace('"fp16"', '"moe_num_experts": 8, "fp16"')).model
    assert model.moe is not None
    assert (model.moe.num_experts, model.moe.expert_ffn_hidden_size) == (8, 2048)


def test_it_is_judged_and_a_better_plan_is_written_with_its_own_keys() -> None:
    cluster = parse_cluster("1x8xa100-sxm")
    assert said({"model.yml": MODEL}, cluster).framework == "gpt-neox"
    answer = lint({"model.yml": MODEL}, cluster)
    assert answer.estimate is not None
    assert "attention_unfused" in {one.code for one in answer.findings}
    assert answer.best is not None
    assert {one.option for one in answer.best.changes} >= {"pipe_parallel_size"}
    texts = fixed_files({"model.yml": MODEL}, answer.best.changes)
    assert '"pipe-parallel-size": 0' in texts.files["model.yml"]


def test_the_accelerators_of_a_node_by_its_launchers_keys() -> None:
    one = read(MODEL.replace('pipe-parallel-size": 2', 'num_gpus": 4,\n  "pipe-parallel-size": 1'))
    assert (one.nodes, one.accelerators_per_node, one.plan.dp) == (1, 4, 2)
    two = read(MODEL, over='{"num_gpus": 4, "num_nodes": 2}\n')
    assert (two.nodes, two.accelerators_per_node, two.plan.dp) == (2, 4, 2)


@pytest.mark.parametrize(("said", "width"), [("", 2048), ('  "intermediate_size": 2560,\n', 2560)])
def test_the_gated_mlp_of_releases_before_the_third(said: str, width: int) -> None:
    """LLaMAParallelMLP: three matrices without biases, 8/3 of the width in steps of 256."""
    model = read(MODEL.replace('  "pos_emb"', f'  "mlp_type": "llama",\n{said}  "pos_emb"')).model
    assert (model.gated_mlp, model.ffn_hidden_size, model.mlp_bias) == (True, width, False)
    assert not read(MODEL).model.gated_mlp


def test_scaled_rotary_positions_of_forks_cost_the_same() -> None:
    text = MODEL.replace('"rotary"', '"rotary_linear_scaled"')
    found = read(text.replace("{", '{\n  "rotary_emb_base": 100000000000,', 1))
    assert found.model.position == "rope"
    assert "pos_emb: rotary_linear_scaled is costed as rotary" in found.assumed


def test_saved_inputs_that_are_split_are_said_to_be_costed_whole() -> None:
    split = '"partition_activations": true,\n  '
    text = MODEL.replace('"checkpoint_activations"', split + '"checkpoint_activations"')
    assert any("costed whole on each rank of tp" in one for one in read(text).assumed)
    assert not any("costed whole" in one for one in read().assumed)
