"""LLaMA-Factory's newer YAML (src/llamafactory/v1), read by the older one's keys."""

from __future__ import annotations

import pytest

from planner.frameworks import get
from planner.frameworks.launch_files import GivenValues, LaunchFiles
from planner.frameworks.read_results import Reading, Unreadable

PLAIN = """\
model: Qwen/Qwen3-4B
model_class: llm
flash_attn: flash_attention_2
dist_config:
  name: fsdp2
  dcp_path: null
train_dataset: data/v1_sft_demo.yaml
output_dir: outputs/test
micro_batch_size: 2
global_batch_size: 64
cutoff_len: 4096
learning_rate: 1.0e-4
max_steps: 10
"""
LORA = "peft_config:\n  name: lora\n  r: 16\n  lora_alpha: 32\n  target_modules: [q_proj, v_proj]\n"


def read(text: str, script: str = "", given: dict[str, str] | None = None) -> Reading:
    files = {"train.yaml": text} | ({"run.sh": script} if script else {})
    told = LaunchFiles(files, GivenValues(given or {}))
    tuner = get("llama-factory")
    assert tuner.read is not None
    known = ("accelerate", "llama-factory", "trl", "maxtext", "primus", "gpt-neox", "nanotron")
    assert [name for name in known if get(name).recognises(told)] == ["llama-factory"]
    return tuner.read(told, 8)


def test_full_training_on_fsdp() -> None:
    reading = read(PLAIN)
    plan, training = reading.plan, reading.training
    assert (plan.dp, plan.cp, plan.zero_stage, plan.micro_batch_size) == (8, 1, 3, 2)
    assert (training.global_batch_size, training.seq_length) == (64, 4096)
    assert (training.precision, training.gradient_reduce_dtype) == ("bf16", "fp32")
    assert (plan.recompute, plan.attention_kernel, training.loss) == (
        "full",
        "flash2",
        "next_token",
    )
    assert (reading.model.num_layers, training.lora_rank) == (36, 0)
    assert not reading.unread


def test_what_is_not_stated_is_as_it_has_it() -> None:
    bare = "model: Qwen/Qwen3-4B\ntrain_dataset: data/demo.yaml\n"
    plan = read(bare).plan
    assert (plan.zero_stage, plan.micro_batch_size, plan.recompute) == (0, 1, "full")
    assert read(bare).training.global_batch_size == 8
    kept = read(f"{PLAIN}enable_activation_checkpointing: false\n")
    assert kept.plan.recompute == "none"


def test_adapters_over_four_bits() -> None:
    training = read(PLAIN + LORA + "quant_config:\n  name: bnb\n  quantization_bit: 4\n").training
    assert (training.lora_rank, training.frozen_dtype) == (16, "nf4")
    assert training.lora_targets == ("q_proj", "v_proj")


def test_sequences_over_ranks_and_groups_of_copies() -> None:
    plan = read(f"{PLAIN}cp_size: 2\ncp_mode: ulysses\n").plan
    assert (plan.dp, plan.cp, plan.cp_kind) == (4, 2, "a2a")
    meshed = read(f"{PLAIN}mp_replicate_size: 2\nmp_shard_size: 4\n").plan
    assert (meshed.dp, meshed.dp_shard) == (8, 4)


def test_other_engines_optimizers_and_tasks() -> None:
    deepspeed = PLAIN.replace("name: fsdp2", "name: deepspeed").replace(
        "dcp_path: null", "config_file: examples/deepspeed/ds_z2_config.json"
    )
    assert read(deepspeed).plan.zero_stage == 2
    assert read(f"{PLAIN}optim_config:\n  name: muon\n  wd: 0.1\n").training.optimizer == "muon"
    assert read(PLAIN, "USE_V1=1 llamafactory-cli dpo train.yaml\n").training.loss == "dpo"
    assert read(f"{PLAIN}pref_beta: 0.1\n").training.loss == "dpo"


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("name: fsdp2", "name: fsdpturbo", r"dist_config.name fsdpturbo .*--set dist_config.name"),
        ("model_class: llm", "model_class: other", "must be llm: only decoders"),
        ("max_steps: 10", "bf16: false", "--set bf16=true"),
        ("max_steps: 10", "cp_mode: ring\ncp_size: 2", "cp_mode ring cannot be read: only ulysses"),
        ("_batch_size: 64", "_batch_size: 60", "60 is not a multiple of micro_batch_size 2 x 8"),
        ("model: Qwen/Qwen3-4B", "model: a/b", r"\(--model\)"),
        ("max_steps: 10", "peft_config:\n  name: freeze", "freeze cannot be read: only full"),
        ("max_steps: 10", "quant_config:\n  quantization_bit: 8", "8 cannot be read: only 4 bits"),
        ("max_steps: 10", "freeze_trainable_layers: 4", "_layers 4: not understood"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said(old: str, new: str, text: str) -> None:
    assert old in PLAIN
    with pytest.raises(Unreadable, match=text):
        read(PLAIN.replace(old, new))


def test_the_engine_may_be_given() -> None:
    other = PLAIN.replace("name: fsdp2", "name: fsdpturbo")
    assert read(other, given={"dist_config.name": "fsdp2"}).plan.zero_stage == 3


def test_keys_of_other_trainers_make_none_of_it() -> None:
    other = "model: Qwen/Qwen3-4B\ntrain_dataset: data.parquet\n"
    tuner = get("llama-factory")
    assert tuner.recognises({"train.yaml": other})
    for key in ("lora_r: 8", "max_seq_length: 16384", "packing: true"):
        assert not tuner.recognises({"train.yaml": f"{other}{key}\n"})
