"""Scripts that start transformers' Trainer by any launcher: what is read, and what is refused.

The scripts are of the forms of FastChat's train_vicuna_7b.sh, LLaVA's finetune_lora.sh, Qwen's
finetune_qlora_ds.sh, InternVL's second stages and qlora's finetune_guanaco_7b.sh.
"""

from __future__ import annotations

import pytest

from planner.answers.lint.lint import lint, read
from planner.frameworks.launch_files import GivenValues
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.trainer_scripts import BATCH, LENGTH, MODEL, TRL, reading, why


@pytest.mark.parametrize(
    ("launcher", "accelerators"),
    [
        ("torchrun --nproc_per_node=4 fastchat/train/train_mem.py", 4),
        ("python -m torch.distributed.launch --nproc_per_node 4 train.py", 4),
        ("deepspeed --include localhost:0,1 llava/train/train_mem.py", 2),
        ("srun --nodes=2 --ntasks=16 --ntasks-per-node=8 python -u finetune.py", 16),
        ("CUDA_VISIBLE_DEVICES=0 python qlora.py", 1),
        ("#SBATCH --nodes=1 --gres=gpu:1\npython qlora.py", 1),  # no srun: one process
        # Without a count of their own these start one on each accelerator that they see.
        ("CUDA_VISIBLE_DEVICES=0,1 python qlora.py", 2),
        ("export CUDA_VISIBLE_DEVICES=2,3\ndeepspeed train.py", 2),
        ("CUDA_VISIBLE_DEVICES=0,1 deepspeed --hostfile hosts train.py", 8),
        ("CUDA_VISIBLE_DEVICES=1,2,3 accelerate launch train.py", 3),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node gpu train.py", 2),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun train.py", 1),
        ("CUDA_VISIBLE_DEVICES=GPU-8932-f937,GPU-a1 python train.py", 2),
        ("#SBATCH --gres=gpu:4\naccelerate launch train.py", 4),
        ("#SBATCH -N 2 --gres=gpu:4\naccelerate launch train.py", 8),  # of the cluster
        ("trl sft --dataset_name a/b", 8),
        ("own-train", 1),  # a command of a package
        ("llamafactory-cli train --stage sft --finetuning_type full --cutoff_len 4096", 8),
        ("CUDA_VISIBLE_DEVICES=4,5 llamafactory-cli train --finetuning_type full", 2),
    ],
)
def test_any_launcher(launcher: str, accelerators: int) -> None:
    found = reading(launcher, MODEL, BATCH, LENGTH).request
    assert found["training"]["global_batch_size"] == 32 * accelerators
    assert found["training"]["seq_length"] == 4096
    assert found["plan"]["dp"] == accelerators
    assert found["model"]["num_layers"] == 32


@pytest.mark.parametrize(
    ("options", "rank", "frozen"),
    [
        ("", 0, ""),
        ("--lora_enable True --lora_r 128 --lora_alpha 256", 128, ""),
        ("--use_peft_lora True --lora_r 16", 16, ""),
        ("--use_lora True --q_lora True --lora_r 64", 64, "nf4"),
        ("--use_llm_lora 16 --use_backbone_lora 0", 16, ""),
        ("--use_backbone_lora 16", 0, ""),
        ("--lora_r 64 --lora_modules all --bits 4", 64, "nf4"),
        ("--use_lora False --lora_r 64", 0, ""),
        ("--peft_lora_rank 32 --use_peft", 32, ""),
        ("--full_finetune True --lora_r 64", 0, ""),
        ("--r 32 --lora_alpha 64", 32, ""),
        ("--sft_adapter_path out/sft", 8, ""),
        ("--peft_method pissa", 8, ""),
        ("--tuning-type qlora --lora_r 4", 4, "nf4"),
        ("--training_type full", 0, ""),
    ],
)
def test_adapters_under_any_name(options: str, rank: int, frozen: str) -> None:
    training = reading("torchrun train.py", MODEL, BATCH, LENGTH, options).request["training"]
    assert training.get("lora_rank", 0) == rank
    assert training.get("frozen_dtype", "") == frozen


@pytest.mark.parametrize(
    ("options", "stage", "offloads"),
    [
        ("--deepspeed ./scripts/zero3.json", 3, False),
        ("--deepspeed zero_stage1_config.json", 1, False),
        ("--deepspeed scripts/zero3_offload.json", 3, True),
        ("--fsdp 'full_shard auto_wrap'", 3, False),
        ("--fsdp 'shard_grad_op auto_wrap offload'", 2, True),
        ("", 0, False),
    ],
)
def test_the_sharding(options: str, stage: int, offloads: bool) -> None:
    plan = reading("torchrun --nproc_per_node=8 train.py", MODEL, BATCH, LENGTH, options)
    assert plan.request["plan"].get("zero_stage", 1) == stage
    assert plan.request["plan"].get("offload_optimizer", False) is offloads


def test_keys_of_fsdp_in_a_file_of_their_own() -> None:
    options = f"torchrun train.py {MODEL} {BATCH} {LENGTH} --fsdp full_shard --fsdp_config f.json"
    cluster = parse_cluster("1x8xh100-sxm")
    found = read({"a.sh": options, "f.json": '{"activation_checkpointing": true}'}, cluster)
    assert found.request["plan"]["recompute"] == "full"
    missing = read({"a.sh": options}, cluster)
    assert "f.json is not among the files: recompute" in str(missing.request["guessed"])
    assert "recompute" not in missing.request["plan"]


@pytest.mark.parametrize(
    ("options", "targets", "says"),
    [
        ("", 7, "adapters are assumed at every linear layer"),
        ("--lora_target_modules q_proj,v_proj", 2, ""),
        ("--lora_target_modules c_attn", 1, ""),
        ("--trainable q_proj,v_proj,o_proj", 3, ""),
        ("--lora_target_modules c_attn c_proj w1 w2", 5, ""),  # Qwen's first models
        ("--lora_target_modules q_proj W_pack", 1, "adapters at W_pack are not costed"),
        ("--lora_target_modules mine", 7, "adapters at mine are costed at every linear layer"),
    ],
)
def test_the_modules_with_adapters(options: str, targets: int, says: str) -> None:
    found = reading("torchrun train.py", MODEL, BATCH, LENGTH, "--lora_r 8", options).request
    assert len(found["training"]["lora_targets"]) == targets
    assert says in str(found["guessed"])


def test_an_option_of_a_plan_that_is_not_read_is_said() -> None:
    found = reading("torchrun train.py", MODEL, BATCH, LENGTH, "--quant_level 8 --eval_quant 4")
    assert "may change time or memory: --quant_level 8" in str(found.request["guessed"])
    assert "eval_quant" not in str(found.request["guessed"])


def test_that_no_precision_is_stated_is_said() -> None:
    found = reading("torchrun train.py", MODEL, BATCH, "--model_max_length 4096").request
    assert "neither bf16 nor fp16 is on" in str(found["guessed"])


@pytest.mark.parametrize(
    ("options", "files", "says"),
    [
        ("--deepspeed a/ds.json", {"ds.json": '{"fp16": {"enabled": true}}'},
         "DeepSpeed's ds.json"),
        ("--deepspeed a/ds.json", {"ds.json": '{"fp16": {"enabled": "auto"}}'}, ""),
        ("--compute_dtype torch.float16", {}, "compute_dtype"),
        ("--compute_dtype float32", {}, ""),
        ("--bf16 --compute_dtype float16", {}, ""),
        ("", {"acc.yaml": "distributed_type: MULTI_GPU\nmixed_precision: fp16\n"},
         "accelerate's configuration"),
    ],
)  # fmt: skip
def test_a_half_precision_beside_the_switches(
    options: str, files: dict[str, str], says: str
) -> None:
    start = "accelerate launch --num_processes 8 --config_file acc.yaml"
    start = start if "acc.yaml" in files else "torchrun --nproc_per_node 8"
    run = f"{start} train.py {MODEL} {BATCH} --model_max_length 4096 {options}\n"
    found = read({"run.sh": run, **files}, parse_cluster("1x8xh100-sxm"))
    assert found.request["training"].get("precision", "bf16") == ("fp16" if says else "bf16")
    assert (f"fp16 by {says}" in str(found.assumed)) is bool(says)


def test_a_pretraining_of_the_hubs_model_is_not_taken_for_megatrons() -> None:
    options = [MODEL, "--max_length 2048 --train_batch_size 8 --deepspeed_config a/stage-3.json"]
    text = why("deepspeed src/pretrain.py", *options)
    assert "num-layers" not in text
    assert "stage-3.json, which is not among the files" in text


def test_that_the_processes_of_a_node_come_from_the_cluster_is_said() -> None:
    found = reading("torchrun --nproc_per_node=$N train.py", MODEL, BATCH, LENGTH).request
    assert found["plan"]["dp"] == 8
    assert "1 nodes and not their processes: 8 accelerators" in str(found["guessed"])


def test_of_two_calls_the_last_is_said_to_be_read() -> None:
    first = f"torchrun --nproc_per_node=2 train.py {MODEL} {LENGTH} {BATCH} --a 1\n"
    found = reading(f"{first}torchrun --nproc_per_node=4 train.py", MODEL, BATCH, LENGTH).request
    assert found["plan"]["dp"] == 4
    assert "of 2 calls of transformers' Trainer" in str(found["guessed"])


def test_the_two_lengths_of_a_sample() -> None:
    found = reading("python qlora.py", MODEL, BATCH, "--source_max_len 16 --target_max_len 512")
    assert found.request["training"]["seq_length"] == 528


@pytest.mark.parametrize(
    ("launcher", "options", "text"),
    [
        (
            "torchrun train.py",
            [MODEL, BATCH],
            "train.py leaves out the sequence length: add --set model_max_length=... (read: "
            "model_name_or_path meta-llama/Llama-2-7b-hf, per_device_train_batch_size 2,",
        ),
        ("torchrun train.py", [BATCH, LENGTH], "leaves out the model: add --model NAME"),
        ("torchrun train.py", ["--model_name_or_path $1", BATCH, LENGTH], "--set 1=..."),
        (
            "torchrun train.py",
            [MODEL, BATCH, LENGTH, "--tune_mm_mlp_adapter True"],
            "the language model is frozen",
        ),
        ("torchrun train.py", [MODEL, BATCH, LENGTH, "--freeze_llm True"], "is frozen"),
        ("torchrun train.py", [MODEL, BATCH, LENGTH, "--moe_enable True"], "adds parts"),
        (
            "torchrun train.py",
            [MODEL, BATCH, LENGTH, "--tensor_model_parallel_size 2"],
            "parallelism of its own",
        ),
        ("torchrun train.py", [MODEL, BATCH, LENGTH, "--use_lora $LORA"], "--set LORA=..."),
        (
            "torchrun train.py",
            [MODEL, BATCH, LENGTH, "--freeze_layers 8"],
            "--freeze_layers 8: not understood",
        ),
        (
            "torchrun train.py",
            [MODEL, BATCH, LENGTH, "--teacher_model_path x"],
            "distils from another model",
        ),
        ("torchrun run_grpo.py", [MODEL, BATCH, LENGTH], "also generates samples"),
        ("trl grpo", [MODEL, BATCH, LENGTH], "also generates samples"),
        ("trl kto", [MODEL, BATCH, LENGTH], "only sft, dpo and reward"),
        ("torchrun dpo_online.py", [MODEL, BATCH, LENGTH], "also generates samples"),
        ("torchrun train.py", [MODEL, BATCH, LENGTH, "--tune_mm_llm False"], "is frozen"),
        ("torchrun train.py", [MODEL, BATCH, LENGTH, "--n_experts 4"], "adds parts"),
        ("torchrun glue.py", ["--model_name_or_path bert-base", BATCH], "is an encoder"),
        ("torchrun kto.py", [MODEL, BATCH, LENGTH], "only sft, dpo and reward"),
        ("torchrun train.py", ["--model_name_or_path ./out/mine", BATCH, LENGTH], "unknown model"),
    ],
)
def test_what_stands_in_the_way(launcher: str, options: list[str], text: str) -> None:
    found = why(launcher, *options)
    assert text in found
    assert "num-layers" not in found


def test_what_only_evaluates_is_refused() -> None:
    words = (MODEL, BATCH, LENGTH, "--do_eval", "--do_train False")
    assert "do_train is off: nothing is trained" in why("torchrun t.py", *words)
    assert reading("torchrun t.py", *words[:-1], "--do_train").request["plan"]


def test_the_command_that_was_said_completes_it() -> None:
    given = GivenValues({"model_max_length": "2048"})
    found = reading("torchrun train.py", MODEL, BATCH, given=given)
    assert found.request["training"]["seq_length"] == 2048


def test_a_frozen_encoder_leaves_the_language_model() -> None:
    options = "--vision_tower clip --freeze_llm False --freeze_backbone True"
    found = reading("torchrun train.py", MODEL, BATCH, LENGTH, options)
    assert "without its image encoder" in str(found.request["guessed"])


@pytest.mark.parametrize(
    "name", ["lmsys/vicuna-7b-v1.5", "./models/Llama-2-7b-hf/", "$ROOT/Llama-2-7b-hf"]
)
def test_folders_and_same_shapes(name: str) -> None:
    found = reading("torchrun train.py", f"--model_name_or_path {name}", BATCH, LENGTH)
    assert found.request["model"]["hidden_size"] == 4096


def test_a_run_that_a_file_not_given_may_shard_only_risks_its_memory() -> None:
    text = TRL.replace("Llama-2-7b-hf", "Llama-2-70b-hf")
    found = lint({"run.yaml": text}, parse_cluster("4x8xh100-sxm"))
    about = [one for one in found.findings if one.code.startswith("memory")]
    assert [(one.code, one.severity) for one in about] == [("memory_risk", "warning")]
    assert about[0].text.startswith("no sharding: the files name no DeepSpeed")
    assert found.verdict == "may run out"
    sharded = lint({"run.yaml": text + "deepspeed: zero1.json\n"}, parse_cluster("1x8xh100-sxm"))
    assert sharded.verdict == "does not fit"


def test_zero_by_an_option_of_the_script() -> None:
    """As safe-rlhf and others have it, whose scripts make DeepSpeed's configuration themselves."""
    found = reading("deepspeed train.py", MODEL, BATCH, LENGTH, "--zero_stage 2").request
    assert (found["plan"]["zero_stage"], found["plan"]["runtime"]) == (2, "deepspeed")
    same = reading("deepspeed train.py", MODEL, BATCH, LENGTH, "--deepspeed --zero_stage 3").request
    assert same["plan"]["zero_stage"] == 3
    said = why("deepspeed train.py", MODEL, BATCH, LENGTH, "--deepspeed")
    assert "no option names its JSON: --set zero_stage=2" in said


def test_models_of_a_loop() -> None:
    text = (
        "#!/bin/bash\nmodels=(Qwen/Qwen2.5-7B meta-llama/Llama-2-7b-hf)\n"
        'for i in "${!models[@]}"; do\n'
        f"  torchrun --nproc_per_node=8 train.py --model_name_or_path ${{models[$i]}} "
        f"{BATCH} {LENGTH}\ndone\n"
    )
    found = read({"launch.sh": text}, parse_cluster("1x8xh100-sxm")).request
    assert found["model"]["num_layers"] == 32  # the last one


def test_what_no_trainer_has_is_shown_with_the_command_that_completes_it() -> None:
    words = "--model_path meta-llama/Llama-3.1-8B --max_len=4096 --batch 2"
    command = "planner plan --model meta-llama/Llama-3.1-8B --seq-length 4096"
    assert f"{command} --global-batch-size ..." in why("deepspeed --module own.sft", words)


def test_what_a_script_says_is_quoted_in_that_command() -> None:
    said = why("python own.py", "--model 'x/$(touch here) llama-3.1-8b' --max_len 99")
    assert "--model 'x/$(touch here) llama-3.1-8b' --seq-length 99" in said


def test_a_length_of_llama_factorys_name_alone_trains_no_adapters() -> None:
    found = reading("torchrun cli.py", MODEL, BATCH, "--bf16 True --cutoff_len 4096").request
    assert found["training"]["seq_length"] == 4096
    assert "lora_rank" not in found["training"]


def test_a_command_of_a_package_is_said_to_start_one_process() -> None:
    found = reading("own-train", MODEL, BATCH, LENGTH).request
    assert "own-train is a command of a package: one process" in str(found["guessed"])
    for launcher in ("torchrun a.py", "python a.py"):
        found = reading(launcher, MODEL, BATCH, LENGTH).request
        assert "of a package" not in str(found["guessed"])


def test_sizes_beside_a_models_name_are_said() -> None:
    sizes = "--encoder_layer_num 8 --num_vision_layers 2 --hidden_size 0"
    found = reading("torchrun a.py", MODEL, BATCH, LENGTH, sizes).request
    assert "may change time or memory: --encoder_layer_num 8'" in str(found["guessed"])


def test_a_jobs_script_comes_before_what_it_calls() -> None:
    call = f"accelerate launch --num_processes $1 train.py {MODEL} {BATCH} {LENGTH}\n"
    files = {"job.slurm": "N=2\nsrun bash train.sh $((4 * N))\n", "train.sh": call}
    assert read(files, parse_cluster("1x2xh100-sxm")).request["plan"]["dp"] == 8


def test_a_stage_that_it_does_not_have_is_refused() -> None:
    words = "--stage cls --finetuning_type full --cutoff_len 4096"
    assert "--stage cls: its loss" in why("torchrun src/train.py", MODEL, BATCH, words)


def test_an_actor_is_trained_on_what_it_generates() -> None:
    words = "--actor_model_name_or_path mistralai/Mistral-7B-v0.1 --max_length 512"
    assert "also generates samples" in why("deepspeed --module rl.mcts", words, BATCH)


def test_an_option_may_be_abbreviated() -> None:
    short = "--per_device_train_batch 2 --gradient_accumulation 16"
    found = reading("torchrun --nproc_per_node 4 train.py", MODEL, short, LENGTH).request
    assert found["training"]["global_batch_size"] == 128


@pytest.mark.parametrize("name", ["base_model_name", "hf_model_id", "pretrained_model_path"])
def test_a_models_option_has_many_names(name: str) -> None:
    model = f"--{name} meta-llama/Llama-2-7b-hf"
    found = reading("torchrun train.py", model, BATCH, LENGTH).request
    assert found["model"]["num_layers"] == 32


def test_a_rank_of_zero_is_no_adapter() -> None:
    training = reading("torchrun t.py", MODEL, BATCH, LENGTH, "--lora_r 0").request["training"]
    assert "lora_rank" not in training


def test_a_file_of_adapters_that_an_option_names_is_read() -> None:
    launch = f"torchrun --nproc_per_node 8 t.py {MODEL} {BATCH} {LENGTH} --use_lora True "
    files = {
        "run.sh": launch + "--lora_config configs/lora.json\n",
        "lora.json": '{"lora_r": 24, "lora_dropout": 0.05, "target_modules": ["q_proj", "v_proj"]}',
    }
    training = read(files, parse_cluster("1x8xh100-sxm")).request["training"]
    assert (training["lora_rank"], training["lora_dropout"]) == (24, 0.05)
    assert training["lora_targets"] == ["q_proj", "v_proj"]
    files["run.sh"] = launch + "--lora_config configs/lora.json --lora_r 4\n"
    training = read(files, parse_cluster("1x8xh100-sxm")).request["training"]
    assert training["lora_rank"] == 4


def test_a_loss_of_pairs_beside_accelerates_configuration() -> None:
    """The program's options say more than the file of its launcher."""
    words = f"{MODEL} {BATCH} --max_length 1024 --max_prompt_length 512 --beta 0.1 --bf16"
    files = {
        "run.sh": f"accelerate launch --config_file z.yaml --num_processes 8 -m src.dpo {words}\n",
        "z.yaml": "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n",
    }
    request = read(files, parse_cluster("1x8xh100-sxm")).request
    assert request["training"]["loss"] == "dpo"
    assert request["training"]["global_batch_size"] == 2 * 2 * 16 * 8
    assert request["plan"]["zero_stage"] == 3


def test_an_example_of_transformers_has_its_block() -> None:
    found = reading("torchrun run_clm.py", MODEL, "--per_device_train_batch_size 2 --bf16")
    assert found.request["training"]["seq_length"] == 1024
    assert any("block_size: not set, 1024" in one for one in found.assumed)
    assert "the sequence length" in why("torchrun own.py", MODEL, BATCH)


def test_parts_of_a_multimodal_model_that_leave_out_the_language_model() -> None:
    words = ("torchrun t.py", MODEL, BATCH, LENGTH)
    said = why(*words, "--mm_tunable_parts mm_mlp_adapter,mm_vision_tower")
    assert "the language model is frozen" in said
    whole = reading(*words, "--mm_tunable_parts mm_vision_tower,mm_language_model").request
    assert "lora_rank" not in whole["training"]


def test_one_process_of_python_is_said() -> None:
    found = reading("python train.py", MODEL, BATCH, LENGTH)
    assert "python starts one process: one accelerator is assumed" in found.assumed
    found = reading("CUDA_VISIBLE_DEVICES=0 python train.py", MODEL, BATCH, LENGTH)
    assert not any("one process" in one for one in found.assumed)


def test_what_is_said_twice_is_read_once() -> None:
    words = ("--gradient_checkpointing True", "--gradient_checkpointing True")
    found = reading("torchrun t.py", MODEL, BATCH, LENGTH, *words)
    assert not any("gradient_checkpointing" in one for one in found.assumed)


def test_a_switch_of_four_bits_that_is_off_leaves_adapters() -> None:
    """FastChat's: --q_lora says how frozen weights are kept, --lora_r that there are adapters."""
    words = ("torchrun t.py", MODEL, BATCH, LENGTH, "--lora_r 16 --lora_alpha 16 --q_lora False")
    training = reading(*words).request["training"]
    assert training["lora_rank"] == 16
    assert "frozen_dtype" not in training
    off = reading("torchrun t.py", MODEL, BATCH, LENGTH, "--use_lora False --lora_r 16")
    assert "lora_rank" not in off.request["training"]
