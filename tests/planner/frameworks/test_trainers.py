"""Tuning runs of LLaMA-Factory, Axolotl and TRL, each one YAML."""

from __future__ import annotations

import pytest

from planner.frameworks import get
from planner.frameworks.launch_files import GivenValues, LaunchFiles
from planner.frameworks.read_results import Reading, Unreadable

FACTORY = """\
model_name_or_path: Qwen/Qwen3-8B
stage: sft
finetuning_type: {kind}
deepspeed: examples/deepspeed/ds_z3_config.json
cutoff_len: 4096
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
"""
AXOLOTL = """\
base_model: NousResearch/Meta-Llama-3.1-8B-Instruct
sequence_len: 8192
micro_batch_size: 2
gradient_accumulation_steps: 2
optimizer: paged_adamw_8bit
gradient_checkpointing: true
flash_attention: true
"""
TRL = """\
model_name_or_path: meta-llama/Llama-3.1-8B
dataset_name: trl-lib/Capybara
per_device_train_batch_size: 4
use_peft: true
lora_r: 32
lora_target_modules: [q_proj, v_proj]
"""


def read(text: str, given: GivenValues | None = None) -> Reading:
    files = LaunchFiles({"run.yaml": text}, given)
    (framework,) = (
        one
        for one in map(get, ("accelerate", "axolotl", "llama-factory", "trl"))
        if one.recognises(files)
    )
    assert framework.read is not None
    return framework.read(files, 16)


def test_shard_groups_of_axolotl_are_those_of_the_cluster() -> None:
    text = AXOLOTL + "fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\n"
    copies = read(text + "dp_shard_size: 4\ndp_replicate_size: 4\n").plan
    assert (copies.dp, copies.dp_shard, copies.zero_stage) == (16, 4, 3)
    with pytest.raises(Unreadable, match="dp_shard_size 4 x dp_replicate_size 1 is not 16"):
        read(text + "dp_shard_size: 4\n")


def test_what_generates_samples_is_refused_and_other_losses_are_said() -> None:
    with pytest.raises(Unreadable, match="rl ebft also generates samples"):
        read(AXOLOTL + "rl: ebft\n")
    assert any("kto is costed as" in one for one in read(AXOLOTL + "rl: kto\n").assumed)


def test_that_nothing_shards_is_said() -> None:
    assert any("no sharding" in one for one in read(TRL).assumed)


def test_llama_factory() -> None:
    reading = read(FACTORY.format(kind="full"))
    plan, training = reading.plan, reading.training
    assert (reading.model.num_layers, training.seq_length) == (36, 4096)
    assert training.global_batch_size == 2 * 4 * 16
    assert (plan.zero_stage, plan.recompute, plan.runtime) == (3, "full", "deepspeed")
    assert any("ZeRO 3 taken from its name" in text for text in reading.assumed)
    packed = read(FACTORY.format(kind="lora") + "quantization_bit: 4\nlora_rank: 16\n").training
    assert (packed.lora_rank, packed.frozen_dtype, len(packed.lora_targets)) == (16, "nf4", 7)


def test_axolotl() -> None:
    reading = read(AXOLOTL + "fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: false\n")
    plan, training = reading.plan, reading.training
    assert (plan.zero_stage, plan.reshard_after_forward, plan.recompute) == (3, False, "full")
    assert (training.optimizer, training.global_batch_size) == ("paged_adam_8bit", 64)
    split = read(AXOLOTL + "tensor_parallel_size: 2\ncontext_parallel_size: 2\n")
    assert (split.plan.tp, split.plan.cp, split.plan.dp) == (2, 2, 4)
    assert plan.attention_kernel == "flash2"


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        ("", ("none", "bf16", "bf16")),
        ("fsdp_version: 2\nfsdp_config: {}\n", ("none", "bf16", "bf16")),
        ("fsdp_version: 1\nfsdp_config: {}\n", ("fp32", "fp32", "fp32")),
        ("deepspeed: deepspeed_configs/zero2.json\n", ("fp32", "bf16", "fp32")),
        ("fsdp_version: 2\nfsdp_config: {}\nadapter: lora\n", ("fp32", "fp32", "fp32")),
    ],
)
def test_types_that_axolotl_keeps(keys: str, kept: tuple[str, ...]) -> None:
    """It replaces accelerate's preparation for FSDP 2, which raises weights to fp32."""
    training = read(AXOLOTL + keys).training
    assert (
        training.master_weights_dtype, training.gradient_dtype, training.optimizer_state_dtype,
    ) == kept  # fmt: skip


def test_axolotl_trains_no_weights_in_fp16() -> None:
    half = AXOLOTL + "fp16: true\n"
    with pytest.raises(Unreadable, match="keeps weights in fp16"):
        read(half)
    assert read(half + "adapter: lora\n").training.precision == "fp16"


def test_a_key_that_axolotl_drops_is_named_with_what_was_meant() -> None:
    """A slip in its own examples/falcon-h1, which then splits no sequence."""
    reading = read(AXOLOTL + "context_parapllel_size: 2\nswanlab_mode: cloud\n")
    assert reading.plan.cp == 1
    assert [one.name for one in reading.unknown] == ["context_parapllel_size"]
    assert any("did you mean context_parallel_size" in note for note in reading.assumed)


@pytest.mark.parametrize(
    ("keys", "recompute"),
    [
        ("activation_offloading: true", "full"),
        ("activation_offloading: legacy\nadapter: lora", "none"),
        ("activation_offloading: hidden_states\nadapter: lora", "full"),
    ],
)
def test_activations_that_axolotl_offloads(keys: str, recompute: str) -> None:
    """Beside adapters the offload takes the place of recompute, unless only checkpoints go."""
    plan = read(f"{AXOLOTL}{keys}\n").plan
    assert (plan.offload_activations, plan.recompute, plan.zero_stage) == (True, recompute, 0)
    older = AXOLOTL.replace("gradient_checkpointing: true", "gradient_checkpointing: offload")
    assert read(older).plan.offload_activations
    assert not read(AXOLOTL + "activation_offloading: false\n").plan.offload_activations


def test_weights_of_eight_bits_are_said_to_be_costed_as_sixteen() -> None:
    reading = read(AXOLOTL + "adapter: lora\nload_in_8bit: true\n")
    assert reading.training.frozen_dtype == "as trained"
    assert any("8 bits are costed as 16" in note for note in reading.assumed)


@pytest.mark.parametrize("mark", ["dataset_mixture: {seed: 0}", "dataset_mixer: {a/b: 1.0}"])
def test_trl_by_the_keys_of_the_alignment_handbook(mark: str) -> None:
    text = TRL.replace("dataset_name: trl-lib/Capybara", mark).replace("use_peft: true\n", "")
    assert read(text + "max_seq_length: 2048\n").training.seq_length == 2048


def test_sequences_of_llama_factory_split_over_ranks() -> None:
    plan = read(FACTORY.format(kind="full") + "sequence_parallel_size: 4\n").plan
    assert (plan.cp, plan.dp, plan.cp_kind) == (4, 4, "a2a")


def test_weights_that_llama_factory_keeps_in_bf16() -> None:
    text = FACTORY.format(kind="full").replace("bf16", "pure_bf16")
    kept = read(text.replace("deepspeed: examples/deepspeed/ds_z3_config.json\n", "")).training
    assert (kept.master_weights_dtype, kept.optimizer_state_dtype) == ("none", "bf16")


def test_pairs_by_the_keys_of_the_alignment_handbook() -> None:
    text = TRL.replace("use_peft: true", "beta: 0.01\nmax_prompt_length: 512")
    found = read(text)
    assert (found.training.loss, found.plan.micro_batch_size) == ("dpo", 8)
    assert any("read as DPO" in one for one in found.assumed)
    with pytest.raises(Unreadable, match="is of kto, whose loss cannot be planned"):
        read(text + "output_dir: data/zephyr-kto\n")
    assert read(TRL + "beta: 0.01\n").training.loss == "next_token"


def test_adam_mini_is_said_to_be_costed_as_adam() -> None:
    reading = read(FACTORY.format(kind="full") + "use_adam_mini: true\n")
    assert any("Adam-mini" in one for one in reading.assumed)


def test_deepspeed_in_the_yaml_itself() -> None:
    section = "deepspeed: {zero_optimization: {stage: 2}}"
    found = read(FACTORY.format(kind="full").replace(FACTORY.split("\n")[3], section))
    assert (found.plan.zero_stage, found.plan.runtime) == (2, "deepspeed")
    assert not any("stage" in one.name for one in found.unread)


def test_the_modules_that_peft_adapts_without_a_list() -> None:
    reading = read(TRL.replace("lora_target_modules: [q_proj, v_proj]\n", ""))
    assert reading.training.lora_targets == ("q_proj", "v_proj")
    assert any("as in PEFT" in one for one in reading.assumed)


def test_trl() -> None:
    reading = read(TRL)
    training = reading.training
    assert (training.lora_rank, training.lora_targets) == (32, ("q_proj", "v_proj"))
    assert (training.seq_length, training.global_batch_size) == (1024, 64)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TRL.replace("Llama-3.1-8B", "Nobody-9B"), "--model"),
        (TRL.replace("Llama-3.1-8B", "flan-t5-xxl"), "only training of decoders is supported"),
        (
            FACTORY.format(kind="freeze"),
            "freeze cannot be read: only full training, lora and qlora",
        ),
        (AXOLOTL + "tensor_parallel_size: 3\n", "not a multiple of tp 3"),
        (AXOLOTL + "unfrozen_parameters: [x]\n", "unfrozen_parameters"),
        (FACTORY.format(kind="full") + "use_galore: true\n", "gradients to a low rank"),
        (AXOLOTL + "lisa_n_layers: 4\n", "trains other parts of the model in turn"),
        (FACTORY.format(kind="full").replace("ds_z3_", "my_"), "my_config.json is not among"),
        (AXOLOTL + "adapter: lora\nlora_dropout: lots\n", "lora_dropout must be from 0 to below 1"),
        (AXOLOTL + "adapter: lora\nlora_dropout: nan\n", "lora_dropout must be from 0 to below 1"),
    ],
)
def test_what_is_not_read_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(Unreadable, match=says):
        read(text)


def test_switches_of_a_programs_own_are_said() -> None:
    text = (
        "model_name_or_path: Qwen/Qwen2.5-7B\nfinetuning_type: full\nstage: sft\nbf16: true\n"
        "use_muon: true\nuse_asft_loss: true\nuse_fast_tokenizer: true\n"
    )
    reading = read(text)
    assert reading.training.optimizer == "muon"
    assert [one for one in reading.assumed if "not read" in one] == [
        "not read, and may change time or memory: use_asft_loss true"
    ]


def test_llama_factorys_command_that_trains_nothing_or_leaves_out_its_batch() -> None:
    words = (
        "--stage sft --model_name_or_path Qwen/Qwen2.5-7B --finetuning_type lora --cutoff_len 512"
    )
    framework = get("accelerate")
    assert framework.read is not None
    script = f"llamafactory-cli train {words} --bf16 true {{}}\n"
    with pytest.raises(Unreadable, match="--do_predict without do_train: nothing is trained"):
        framework.read({"run.sh": script.format("--do_predict true")}, 8)
    found = framework.read({"run.sh": script.format("--do_train true")}, 8)
    assert (found.plan.micro_batch_size, found.training.lora_rank) == (8, 8)
    assert "per_device_train_batch_size: not set, 8 as in LLaMA-Factory" in found.assumed


def test_which_of_several_configurations_that_a_script_starts_is_read() -> None:
    script = "llamafactory-cli train sft.yaml\nllamafactory-cli train dpo.yaml\n"
    one = FACTORY.format(kind="lora")
    files = {"run.sh": script, "sft.yaml": one, "dpo.yaml": one.replace("stage: sft", "stage: dpo")}
    framework = get("llama-factory")
    assert framework.read is not None
    assert (
        "of several configurations sft.yaml is read, not dpo.yaml"
        in framework.read(files, 8).assumed
    )
    del files["dpo.yaml"]
    assert not any("of several" in one for one in framework.read(files, 8).assumed)
