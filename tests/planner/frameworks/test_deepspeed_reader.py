"""Megatron-DeepSpeed launches as users write them, read back."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import frameworks
from planner.frameworks.bash_writer import one_script
from planner.frameworks.deepspeed import reader
from planner.frameworks.deepspeed.json_config import key_lines, known_keys
from planner.frameworks.read_results import Reading, Unreadable
from tests.fixtures.frameworks import ALL_CASES, CASES, bundle
from tests.fixtures.launches import cluster
from tests.fixtures.tiers import examples

DEEPSPEED = frameworks.get("deepspeed")
WORDS = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 "
    "--max-position-embeddings 2048 --micro-batch-size 2 --vocab-size 32000 --bf16 --deepspeed "
    "--deepspeed_config ds.json"
)
JSON: dict[str, Any] = {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}


def read(
    words: str = "",
    document: Any = None,
    launcher: str = "deepspeed --num_gpus 8 --num_nodes 1",
    **files: str,
) -> Reading:
    text = f"export CUDA_DEVICE_MAX_CONNECTIONS=1\n{launcher} pretrain_gpt.py {WORDS} {words}\n"
    body = document if isinstance(document, str) else json.dumps(document or JSON, indent=1)
    return reader.read({"train.sh": text, "ds.json": body, **files}, None)


def changed(**update: Any) -> dict[str, Any]:
    return {**JSON, **update}


def refusals(reading: Reading) -> str:
    return "\n".join(refusal.reason.text for refusal in reading.refusals)


HERE = """\
#!/bin/bash
set -ex
BASE_PATH=./tmp
DS_CONFIG=${BASE_PATH}/deepspeed.json
TP=2
PP=2
ZERO_STAGE=1
GPUS_PER_NODE=8
NNODES=2
MICRO_BATCH_SIZE=4
GLOBAL_BATCH_SIZE=32 # e.g. llama: 4M tokens
activation_checkpoint="true"

cat <<EOT > $DS_CONFIG
{
  "train_batch_size" : $GLOBAL_BATCH_SIZE,
  "train_micro_batch_size_per_gpu": $MICRO_BATCH_SIZE,
  "steps_per_print": 1,
  "zero_optimization": {
    "stage": $ZERO_STAGE
  },
  "bf16": {
    "enabled": true
  }
}
EOT

ds_args=""
ds_args=" --deepspeed ${ds_args}"
ds_args=" --deepspeed_config=$DS_CONFIG ${ds_args}"
ds_args=" --zero-stage=$ZERO_STAGE ${ds_args}"
if [ "${activation_checkpoint}" = "true" ]; then
  ds_args="--deepspeed-activation-checkpointing ${ds_args}"
  ds_args="--recompute-granularity full --recompute-method uniform ${ds_args}"
fi
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK"
torchrun $DISTRIBUTED_ARGS \\
       pretrain_gpt.py \\
       --tensor-model-parallel-size $TP \\
       --pipeline-model-parallel-size $PP \\
       --num-layers 24 --hidden-size 2048 --ffn-hidden-size 5504 --num-attention-heads 16 \\
       --micro-batch-size $MICRO_BATCH_SIZE \\
       --global-batch-size $GLOBAL_BATCH_SIZE \\
       --seq-length 2048 --max-position-embeddings 2048 \\
       --train-iters 250000 --data-path 1 $DATASET --data-impl mmap \\
       --tokenizer-type GPTSentencePieceTokenizer --tokenizer-model $TOKENIZER_PATH \\
       --lr 3e-4 --optimizer adam --bf16 \\
       --no-query-key-layer-scaling --attention-dropout 0 --hidden-dropout 0 \\
       --use-rotary-position-embeddings --untie-embeddings-and-output-weights --swiglu \\
       --normalization rmsnorm --disable-bias-linear --num-key-value-heads 4 \\
       $ds_args
"""


def test_a_script_that_writes_its_own_json() -> None:
    reading = reader.read({"train.sh": HERE}, None)
    assert (reading.nodes, reading.accelerators_per_node) == (2, 8)
    assert reading.model.model_dump(exclude_defaults=True) == {
        "num_layers": 24,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_query_groups": 4,
        "head_dim": 128,
        "ffn_hidden_size": 5504,
        "gated_mlp": True,
        "vocab_size": reader.ANY_VOCABULARY,
        "norm": "rmsnorm",
    }
    assert reading.training.model_dump(exclude_defaults=True) == {
        "seq_length": 2048,
        "global_batch_size": 32,
        "gradient_dtype": "bf16",
        "gradient_reduce_dtype": "bf16",
        "tokens": 250000 * 32 * 2048,
    }
    plan = reading.plan
    assert (plan.tp, plan.pp, plan.dp, plan.zero_stage, plan.micro_batch_size) == (2, 2, 4, 1, 4)
    assert (plan.recompute, plan.recompute_method, plan.recompute_num_layers) == (
        "full",
        "uniform",
        1,
    )
    assert (plan.runtime, plan.attention_kernel, plan.overlap_grad_reduce) == (
        "deepspeed",
        "unfused",
        False,
    )
    assert reading.refusals == reading.unknown == ()
    stage, batch = reading.find("zero_optimization.stage"), reading.find("train_batch_size")
    assert stage is not None
    assert batch is not None
    assert (stage.value, stage.file, stage.line, batch.line) == ("1", "train.sh", 20, 16)
    assert any("do not give the vocabulary size" in text for text in reading.assumed)


def test_the_json_beside_the_script() -> None:
    reading = read("--zero-stage 2 --global-batch-size 32")
    assert (reading.plan.dp, reading.plan.zero_stage, reading.plan.micro_batch_size) == (8, 2, 2)
    assert reading.training.global_batch_size == 32
    assert reading.refusals == ()
    stage = reading.find("zero_optimization.stage")
    assert stage is not None
    assert (stage.file, stage.line) == ("ds.json", 8)


def test_the_hostfile_says_the_nodes_where_the_launcher_does_not() -> None:
    reading = read(
        launcher="deepspeed --hostfile conf/hosts", hosts="# mine\na slots=4\nb slots=4\n"
    )
    assert (reading.nodes, reading.accelerators_per_node, reading.plan.dp) == (2, 4, 8)
    with pytest.raises(Unreadable, match="give a cluster"):
        read(launcher="deepspeed --hostfile hosts", hosts="a slots=4\nb slots=8\n")


@pytest.mark.parametrize(
    ("words", "document", "fields"),
    [
        ("--ds-sequence-parallel-size 4", {}, {"cp": 4, "cp_kind": "a2a", "dp": 2}),
        ("--use-flash-attn-v2", {}, {"attention_kernel": "flash"}),
        ("--use-flash-attn-v1", {}, {"attention_kernel": "flash1"}),
        (
            "",
            changed(zero_optimization={"stage": 3}),
            {"zero_stage": 3, "overlap_grad_reduce": True},
        ),
        (
            "",
            changed(zero_optimization={"stage": 3, "overlap_comm": False}),
            {"overlap_grad_reduce": False, "overlap_param_gather": False},
        ),
        (
            "--cpu-optimizer",
            changed(zero_optimization={"stage": 2, "offload_optimizer": {"device": "cpu"}}),
            {"offload_optimizer": True},
        ),
        (
            "--checkpoint-activations --checkpoint-num-layers 2 --checkpoint-in-cpu",
            {},
            {"recompute": "full", "recompute_num_layers": 2, "offload_activations": True},
        ),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 4 "
            "--deepspeed-activation-checkpointing",
            {},
            {"recompute": "full", "recompute_num_layers": 1},
        ),
        ("--recompute-activations", {}, {"recompute_modules": ("core_attn",)}),
        (
            "--tensor-model-parallel-size 2 --sequence-parallel",
            changed(train_batch_size=16),
            {"tp": 2, "dp": 4, "sequence_parallel": True},
        ),
    ],
)
def test_what_options_and_keys_mean_for_the_plan(
    words: str, document: dict[str, Any], fields: dict[str, Any]
) -> None:
    reading = read(words, document)
    assert {name: getattr(reading.plan, name) for name in fields} == fields
    assert reading.refusals == ()


def test_types_of_gradients_are_those_of_the_engine() -> None:
    assert read().training.gradient_dtype == "bf16"
    document = changed(data_types={"grad_accum_dtype": "fp32"}, communication_data_type="fp32")
    training = read("", document).training
    assert (training.gradient_dtype, training.gradient_reduce_dtype) == ("fp32", "fp32")


def test_unknown_keys_are_listed_and_only_strict_sections_refuse_them() -> None:
    document = changed(
        train_batchsize=3, zero_optimization={"stage": 2, "overlap": True}, wandb={"project": 1}
    )
    reading = read("", document)
    assert sorted(setting.name for setting in reading.unknown) == [
        "train_batchsize",
        "zero_optimization.overlap",
    ]
    assert "zero_optimization has no key overlap" in refusals(reading)
    assert len(reading.refusals) == 1
    assert any(
        "silently ignores the unknown key train_batchsize" in text for text in reading.assumed
    )
    assert "wandb" in {setting.name for setting in reading.unread}


@pytest.mark.parametrize(
    ("words", "document", "text"),
    [
        (
            "",
            changed(train_batch_size=33, gradient_accumulation_steps=2),
            "33 is not micro batch 2",
        ),
        ("--micro-batch-size 4", {}, "--micro-batch-size is 4, train_micro_batch_size_per_gpu of"),
        ("--zero-stage 3", {}, "--zero-stage is 3, zero_optimization.stage of the JSON is 2"),
        ("", changed(zero_optimization={"stage": 7}), "stages 0 to 3, not 7"),
        ("", changed(train_batch_size="auto"), 'fills in "auto"'),
        ("", changed(bf16={"enabled": 1}), "bf16.enabled is 1, must be true or false"),
        ("", changed(bf16={}, fp16={"enabled": True}), "train in bf16, the JSON in fp16"),
        ("--fp16", {}, "bf16 and fp16 exclude each other"),
        ("--pipeline-model-parallel-size 2 --no-pipeline-parallel", {}, "needs pp 1, got 2"),
        ("--num-key-value-head 4", {}, "has no option --num-key-value-head"),
        ("--tensor-model-parallel-size 3", {}, "not a multiple of tp 3"),
        ("--recompute-granularity full", {}, "full recompute needs --recompute-method"),
        ("--max-position-embeddings 8", {}, "at least the sequence length 2048"),
        ("", changed(communication_data_type="int4"), "'int4' is not a number type"),
    ],
)
def test_what_would_be_refused_is_listed_and_the_rest_is_read(
    words: str, document: dict[str, Any], text: str
) -> None:
    reading = read(words, document)
    assert text in refusals(reading), refusals(reading)
    assert reading.model.num_layers == 8


def test_without_the_json_only_the_arguments_are_read() -> None:
    text = f"deepspeed --num_nodes 1 --num_gpus 8 pretrain_gpt.py {WORDS} --zero-stage 1"
    reading = reader.read({"train.sh": text}, None)
    assert reading.plan.zero_stage == 1
    assert any("ds.json is not among the files" in text for text in reading.assumed)
    plain = reader.read({"train.sh": text.replace("--deepspeed ", "")}, None)
    assert plain.plan.zero_stage == 0
    assert any("without --deepspeed" in text for text in plain.assumed)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"ds_config.json": json.dumps(JSON)}, "ds_config.json:1: DeepSpeed's JSON alone holds"),
        ({"train.sh": "echo hello"}, "no script calls a training program"),
        ({"train.sh": f"deepspeed pretrain_bert.py {WORDS}"}, "(BERT): only training of decoders"),
        ({"train.sh": f"deepspeed pretrain_gpt.py {WORDS}"}, "give a cluster"),
        (
            {"train.sh": f"deepspeed --num_gpus 8 pretrain_gpt.py {WORDS}", "ds.json": '{\n"a": }'},
            "ds.json:2: invalid JSON",
        ),
        ({"train.sh": f"deepspeed pretrain_gpt.py {WORDS}", "ds.json": "[]"}, "a JSON object"),
        (
            {"train.sh": f"deepspeed pretrain_gpt.py {WORDS}", "ds.json": "[" * 100_000},
            "unreadable JSON",
        ),
        (
            {"train.sh": f"deepspeed pretrain_gpt.py {WORDS.replace('--hidden-size 1024', '')}"},
            "--hidden-size is missing",
        ),
    ],
)
def test_what_cannot_be_read_says_what_is_needed_and_where(
    files: dict[str, str], message: str
) -> None:
    asked = None if "cluster" in message else 8
    with pytest.raises(Unreadable) as caught:
        reader.read(files, asked)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("files", "own"),
    [
        ({"train.sh": HERE}, True),
        ({"train.sh": f"python pretrain_gpt.py {WORDS}"}, True),
        ({"train.sh": "deepspeed pretrain_gpt.py --num-layers 2"}, True),
        ({"ds_config.json": json.dumps(JSON)}, True),
        ({"train.sh": "torchrun pretrain_gpt.py --num-layers 2"}, False),
        ({"train.sh": "deepspeed serve.py"}, False),
        ({"config.json": "{}"}, False),
        ({}, False),
    ],
)
def test_recognises_its_own(files: dict[str, str], own: bool) -> None:
    assert reader.recognises(files) is own


@pytest.mark.parametrize("case", CASES["deepspeed"])
def test_a_bundle_in_one_script_is_read_as_its_files_are(case: str) -> None:
    made = bundle("deepspeed", case)
    one = reader.read({"all.sh": one_script(made)}, None)
    apart = reader.read(made.files, None)
    assert (one.model, one.training, one.plan) == (apart.model, apart.training, apart.plan)
    assert (one.unknown, one.refusals) == ((), ())
    stage = one.find("zero_optimization.stage")
    assert stage is not None
    assert '"stage":' in one_script(made).splitlines()[stage.line - 1]
    layers = one.find("--num-layers")
    assert layers is not None
    assert "--num-layers" in one_script(made).splitlines()[layers.line - 1]
    assert {stage.file, layers.file} == {"all.sh"}


def test_every_key_has_its_line() -> None:
    text = '{\n "a": {"b": 1,\n "c": "x: {"},\n "d": [\n {"e": 1}], "f\\"g": 2\n}'
    assert key_lines(text) == {"a": 1 + 1, "a.b": 2, "a.c": 3, "d": 4, 'f\\"g': 5}


def test_keys_that_are_written_are_known() -> None:
    sections = known_keys()["sections"]
    for case in CASES["deepspeed"]:
        document = json.loads(bundle("deepspeed", case).files["ds_config.json"])
        assert set(document) <= set(sections[""])
        assert set(document["zero_optimization"]) <= set(sections["zero_optimization"])


BUNDLES = [bundle(name, case).files for name, case in ALL_CASES if name == "deepspeed"]
VALUES = st.sampled_from(
    ["-1", "1e400", "NaN", '"auto"', "null", "[]", "{}", "true", "9" * 30, "}"]
)


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_any_damage_to_the_json_is_read_or_refused(data: st.DataObject) -> None:
    files = dict(data.draw(st.sampled_from(BUNDLES)))
    text = files["ds_config.json"]
    keys = sorted(key_lines(text))
    last = data.draw(st.sampled_from(keys)).rsplit(".", 1)[-1]
    at = text.index(f'"{last}":') + len(last) + 3
    files["ds_config.json"] = f'{text[:at]} {data.draw(VALUES)}, "x":{text[at:]}'
    with suppress(Unreadable):
        reading = reader.read(files, None)
        DEEPSPEED.reasons(reading.request(cluster(2, 8)), reading.plan)
