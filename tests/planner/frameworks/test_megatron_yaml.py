"""Megatron-LM's settings in YAML: --yaml-cfg's sections, and MODEL_ARGS of its own runs."""

from __future__ import annotations

import pytest
import yaml

from planner.answers.lint.fixes import change_to_write, fixed_files
from planner.answers.lint.lint import lint
from planner.frameworks import get
from planner.frameworks.launch_files import GivenValues, LaunchFiles
from planner.frameworks.read_results import Reading, Unreadable
from planner.inputs.requests.parser import parse_cluster

SECTIONS = """\
language_model:
  num_layers: 32
  hidden_size: 4096
  num_attention_heads: 32
  num_query_groups: 8
  ffn_hidden_size: 14336
  kv_channels: null
  hidden_dropout: 0.0
  attention_dropout: 0.0
  layernorm_epsilon: 1.e-5
  add_bias_linear: False
  activation_func: swiglu
  gated_linear_unit: False
  num_moe_experts: null
  moe_router_topk: 2
  normalization: RMSNorm
  recompute_granularity: selective
  fp8: null
  _cpu_offloading_context: null
model_parallel:
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 4
  context_parallel_size: 1
  expert_model_parallel_size: 1
  sequence_parallel: True
  bf16: True
  overlap_p2p_comm: True
  batch_p2p_comm: False
swiglu: False
group_query_attention: False
micro_batch_size: 2
global_batch_size: 128
num_layers_per_virtual_pipeline_stage: 4
untie_embeddings_and_output_weights: True
position_embedding_type: rope
add_position_embedding: False
max_position_embeddings: 8192
seq_length: 8192
transformer_impl: transformer_engine
use_distributed_optimizer: True
overlap_grad_reduce: True
overlap_param_gather: True
lr_warmup_iters: 0
train_samples: 100000
vocab_size: 128256
make_vocab_size_divisible_by: 128
"""
SCRIPT = """\
#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --yaml-cfg config.yaml
"""
MODEL_ARGS = """\
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --num-attention-heads: 8
  --swiglu: true
  --micro-batch-size: 4
  --global-batch-size: 32
  --seq-length: 1024
  --max-position-embeddings: 1024
  --tensor-model-parallel-size: 2
  --pipeline-model-parallel-size: ${PP}
  --recompute-granularity: selective
  --recompute-modules: [core_attn, mlp]
  --vocab-size: 50304
  --data-path: ${DATA_PATH}/text_document
  --bf16: true
  --disable-bias-linear: ""
TEST_TYPE: regular
"""
MEGATRON = get("megatron")


def read(files: dict[str, str], size: int | None = 32, **values: str) -> Reading:
    assert MEGATRON.read is not None
    assert MEGATRON.recognises(files)
    return MEGATRON.read(LaunchFiles(files, GivenValues(values=values)), size)


def test_the_sections_of_a_yaml_configuration() -> None:
    reading = read({"config.yaml": SECTIONS})
    model, plan = reading.model, reading.plan
    assert (model.num_layers, model.hidden_size, model.num_query_groups) == (32, 4096, 8)
    assert (model.ffn_hidden_size, model.gated_mlp, model.vocab_size) == (14336, True, 128_256)
    assert (model.norm, model.position, model.tied_embeddings) == ("rmsnorm", "rope", False)
    assert (model.moe, model.qkv_bias) == (None, False)
    assert (plan.tp, plan.pp, plan.vpp, plan.dp) == (4, 4, 2, 2)
    assert (plan.sequence_parallel, plan.zero_stage, plan.recompute) == (True, 1, "selective")
    assert (plan.micro_batch_size, reading.training.global_batch_size) == (2, 128)
    assert (reading.unknown, reading.refusals) == ((), ())
    assert next(one.line for one in reading.settings if one.name == "--hidden-size") == 3


def test_the_script_that_names_the_configuration_says_the_world() -> None:
    reading = read({"run.sh": SCRIPT, "config.yaml": SECTIONS}, None)
    assert (reading.nodes, reading.accelerators_per_node, reading.plan.dp) == (4, 8, 2)
    with pytest.raises(Unreadable, match="do not say how many accelerators"):
        read({"config.yaml": SECTIONS}, None)
    more = SCRIPT.replace("config.yaml", "config.yaml --num-layers 48")
    said = read({"run.sh": more, "config.yaml": SECTIONS}, None)
    assert said.model.num_layers == 32
    assert any("options of the call are ignored" in text for text in said.assumed)


def test_the_activation_alone_says_what_an_mlp_is() -> None:
    plain = SECTIONS.replace("activation_func: swiglu", "activation_func: gelu")
    assert not read({"c.yaml": plain.replace("swiglu: False", "swiglu: True")}).model.gated_mlp
    with pytest.raises(Unreadable, match=r"c.yaml:12: .*activation_func is 'silu'; it is one of"):
        read({"c.yaml": SECTIONS.replace("func: swiglu", "func: silu")})
    with pytest.raises(Unreadable, match="gated_linear_unit with gelu is not supported"):
        read({"c.yaml": plain.replace("linear_unit: False", "linear_unit: True")})


def test_what_may_change_the_model_and_is_not_understood_is_refused() -> None:
    other = SECTIONS.replace("  fp8: null", "  ssm_hidden_layers: 4")
    with pytest.raises(Unreadable, match=r"c.yaml:18: --ssm-hidden-layers 4: not understood"):
        read({"c.yaml": other})


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (
            "num_layers: 32",
            "num_layers: .nan",
            "c.yaml: language_model.num_layers: must be a finite",
        ),
        (
            "num_layers: 32",
            "num_layers: 1.e+400",
            "c.yaml: language_model.num_layers: must be a finite",
        ),
        ("num_layers: 32", "num_layers: 9" + "9" * 20, "cannot be '9999"),
        ("num_layers: 32", "num_layers: [1, 2]", "c.yaml:2: --num-layers takes one value"),
        ("num_layers: 32", "num_layers: {a: 1}", "c.yaml:2: .*is a mapping; a value is needed"),
        ("num_layers: 32", "num_layers: null", "--num-layers is missing"),
        ("bf16: True", "bf16: maybe", r"c.yaml:26: model_parallel.bf16 must be true or false"),
        ("language_model:\n", "language_model: &x\n", None),
        ("model_parallel:\n", "other:\n", "model_parallel must be a mapping"),
        ("swiglu: False", "swiglu: [", r"c.yaml:31: .*\(column 17\)"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(before: str, after: str, says: str | None) -> None:
    files = {"c.yaml": SECTIONS.replace(before, after)}
    if says is None:
        assert read(files).model.num_layers == 32
        return
    with pytest.raises(Unreadable, match=says):
        read(files)


def test_a_key_that_stands_twice_is_said() -> None:
    twice = SECTIONS.replace("  hidden_size: 4096", "  hidden_size: 1024\n  hidden_size: 4096")
    reading = read({"c.yaml": twice})
    assert reading.model.hidden_size == 4096
    assert any("hidden_size occurs twice" in text for text in reading.assumed)


def test_options_of_the_command_line_as_keys() -> None:
    reading = read({"model_config.yaml": MODEL_ARGS}, 8, PP="2")
    model, plan = reading.model, reading.plan
    assert (model.num_layers, model.gated_mlp, model.vocab_size) == (12, True, 50_304)
    assert model.mlp_bias is False
    assert (plan.tp, plan.pp, plan.dp) == (2, 2, 2)
    assert (plan.recompute, plan.recompute_modules) == ("selective", ("core_attn", "mlp"))
    assert any("pretrain_gpt.py" in text for text in reading.assumed)
    open_one = read({"model_config.yaml": MODEL_ARGS}, 8)
    assert open_one.plan.pp == 1
    assert any("--set PP=" in text for text in open_one.open)


@pytest.mark.parametrize(
    "row",
    ["--bert-no-binary-head: true", "--num-tokens-to-generate: 30", "--img-h: 336"],
)
def test_runs_of_other_programs_are_refused(row: str) -> None:
    text = MODEL_ARGS.replace("  --bf16: true", f"  {row}")
    encodes = "trains an encoder .*: only training of decoders is supported"
    what = encodes if "bert" in row else "to another program than"
    with pytest.raises(Unreadable, match=what):
        read({"model_config.yaml": text}, 8, PP="1")
    masked = MODEL_ARGS.replace("text_document", "my-bert_00_text_sentence")
    with pytest.raises(Unreadable, match="--data-path"):
        read({"model_config.yaml": masked}, 8, PP="1")


def test_a_switch_that_is_false_is_a_word_too_many() -> None:
    reading = read({"c.yaml": MODEL_ARGS.replace("--swiglu: true", "--swiglu: false")}, 8, PP="1")
    assert any("belongs to no option" in one.reason.text for one in reading.refusals)


def test_the_better_plan_is_written_as_yaml() -> None:
    files = {"model_config.yaml": MODEL_ARGS.replace("${PP}", "2")}
    better = change_to_write(lint(files, parse_cluster("1x8xh100-sxm")))
    assert better is not None
    new = yaml.safe_load(fixed_files(files, better.changes).files["model_config.yaml"])[
        "MODEL_ARGS"
    ]
    assert new["--overlap-grad-reduce"] is True
    assert new["--micro-batch-size"] > 4
    assert new["--num-layers"] == 12


def test_a_schedule_of_batch_sizes_ends_at_the_batch() -> None:
    row = '--step-batch-size-schedule: "0:384 200B:768 400B:1152"'
    text = MODEL_ARGS.replace("--global-batch-size: 32", row)
    assert read({"model_config.yaml": text}, 8, PP="1").training.global_batch_size == 1152
