"""Scripts that start transformers' Trainer by any launcher: what is read, and what is refused.

The scripts are of the forms of FastChat's train_vicuna_7b.sh, LLaVA's finetune_lora.sh, Qwen's
finetune_qlora_ds.sh, InternVL's second stages and qlora's finetune_guanaco_7b.sh.
"""

from __future__ import annotations

import pytest

from planner.answers.lint.findings import ReadAnswer
from planner.answers.lint.lint import lint, read
from planner.documents.problems import RequestError
from planner.frameworks.launch_files import GivenValues
from planner.inputs.requests.parser import parse_cluster

MODEL = "--model_name_or_path meta-llama/Llama-2-7b-hf"
BATCH = "--per_device_train_batch_size 2 --gradient_accumulation_steps 16"
LENGTH = "--model_max_length 4096 --bf16 True"


def reading(launcher: str, *options: str, given: GivenValues | None = None) -> ReadAnswer:
    text = f"#!/bin/bash\n{launcher} {' '.join(options)}\n"
    return read({"launch.sh": text}, parse_cluster("1x8xh100-sxm"), given=given)


def why(launcher: str, *options: str) -> str:
    with pytest.raises(RequestError) as caught:
        reading(launcher, *options)
    return str(caught.value)


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
        ("torchrun orpo.py", [MODEL, BATCH, LENGTH], "only sft, dpo and reward"),
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


FACTORY = "model_name_or_path: meta-llama/Llama-2-7b-hf\ncutoff_len: 1024\n"
TRL = "model_name_or_path: meta-llama/Llama-2-7b-hf\ndataset_name: a/b\nmax_length: 1024\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FACTORY + "finetuning_type: lora\ndo_predict: true\n", "nothing is trained"),
        (FACTORY + "finetuning_type: lora\ntask: mmlu_test\n", "nothing is trained"),
        (TRL + "num_generations: 16\n", "GRPO"),
    ],
)
def test_yaml_that_trains_nothing_or_generates(text: str, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        read({"run.yaml": text}, parse_cluster("1x8xh100-sxm"))
    assert said in str(caught.value)


def test_grpo_by_the_lengths_of_its_parts() -> None:
    response = "max_completion_length: 2048\nnum_generations: 8"
    with pytest.raises(RequestError, match="also generates samples"):
        read(
            {"grpo.yaml": TRL.replace("max_length: 1024", response)}, parse_cluster("1x8xh100-sxm")
        )
    text = TRL.replace("max_length: 1024", f"max_prompt_length: 500\n{response}")
    found = read({"grpo.yaml": text}, parse_cluster("1x8xh100-sxm"))
    assert found.request["training"]["seq_length"] == 500 + 2048
    assert "only the training of GRPO is read" in str(found.request["guessed"])
    with pytest.raises(RequestError, match="is of rloo, whose step cannot be read"):
        read({"rloo.yaml": text}, parse_cluster("1x8xh100-sxm"))


def test_a_run_that_a_file_not_given_may_shard_only_risks_its_memory() -> None:
    text = TRL.replace("Llama-2-7b-hf", "Llama-2-70b-hf")
    found = lint({"run.yaml": text}, parse_cluster("4x8xh100-sxm"))
    about = [one for one in found.findings if one.code.startswith("memory")]
    assert [(one.code, one.severity) for one in about] == [("memory_risk", "warning")]
    assert about[0].text.startswith("no sharding: the files name no DeepSpeed")
    assert found.verdict == "may run out"
    sharded = lint({"run.yaml": text + "deepspeed: zero1.json\n"}, parse_cluster("1x8xh100-sxm"))
    assert sharded.verdict == "does not fit"


def test_llama_factory_trains_adapters_unless_it_says_otherwise() -> None:
    found = read({"run.yaml": FACTORY}, parse_cluster("1x8xh100-sxm")).request
    assert found["training"]["lora_rank"] == 8


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


def test_a_script_with_options_of_nobody_is_named() -> None:
    said = why("python finetune_fp16.py", "--model_path some/llama --output_path out")
    assert "the script calls finetune_fp16.py, whose options are those of no known trainer" in said
    assert "--num-layers" not in said


def test_what_no_trainer_has_is_shown_with_the_command_that_completes_it() -> None:
    words = "--model_path meta-llama/Llama-3.1-8B --max_len=4096 --batch 2"
    command = "planner plan --model meta-llama/Llama-3.1-8B --seq-length 4096"
    assert f"{command} --global-batch-size ..." in why("deepspeed --module own.sft", words)


def test_what_a_script_says_is_quoted_in_that_command() -> None:
    said = why("python own.py", "--model 'x/$(touch here) llama-3.1-8b' --max_len 99")
    assert "--model 'x/$(touch here) llama-3.1-8b' --seq-length 99" in said


@pytest.mark.parametrize(
    ("program", "own"),
    [("loss.backward()\n", True), ("TrainingArguments()\nloss.backward()\n", False)],
)
def test_a_loop_of_its_own_is_said(program: str, own: bool) -> None:
    files = {"a.sh": f"torchrun a/train.py {MODEL} {BATCH} {LENGTH}\n", "train.py": program}
    found = read(files, parse_cluster("1x8xh100-sxm")).request
    assert ("a/train.py trains in a loop of its own" in str(found["guessed"])) is own


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


def test_programs_that_train_nothing_are_named_so() -> None:
    assert "generate.py trains nothing" in why("torchrun tools/generate.py --max_len 99")
    # Whatever configuration of a training they are given.
    files = {"a.sh": "python maxengine_server.py base.yml", "base.yml": "ici_fsdp_parallelism: 4"}
    with pytest.raises(RequestError, match=r"maxengine_server\.py trains nothing"):
        read(files, parse_cluster("1x8xh100-sxm"))


def test_a_jobs_script_comes_before_what_it_calls() -> None:
    call = f"accelerate launch --num_processes $1 train.py {MODEL} {BATCH} {LENGTH}\n"
    files = {"job.slurm": "N=2\nsrun bash train.sh $((4 * N))\n", "train.sh": call}
    assert read(files, parse_cluster("1x2xh100-sxm")).request["plan"]["dp"] == 8


@pytest.mark.parametrize(
    "said", ["per_device_train_batch_size=$OF_SHELL", "gradient_checkpointing=${OF_SHELL}"]
)
@pytest.mark.parametrize("trainer", [FACTORY + "finetuning_type: full\nstage: sft\n", TRL])
def test_an_override_of_unknown_value_is_asked_for(said: str, trainer: str) -> None:
    """The run takes what the shell puts there, not what the YAML says of the key."""
    config = trainer + "per_device_train_batch_size: 2\ngradient_checkpointing: true\n"
    for words in (f"run.yaml {said}", f"--config run.yaml --{said.replace('=', ' ')}"):
        script = f"torchrun --nproc_per_node 8 train.py {words}\n"
        with pytest.raises(RequestError) as caught:
            read({"run.yaml": config, "launch.sh": script}, parse_cluster("1x8xh100-sxm"))
        assert "which the files do not say: --set OF_SHELL=..." in str(caught.value)


def test_an_override_whose_value_the_user_gives() -> None:
    """A variable that decides nothing, such as a folder, is not asked for."""
    config = FACTORY + "finetuning_type: full\nper_device_train_batch_size: 2\n"
    script = "llamafactory-cli train run.yaml per_device_train_batch_size=$B output_dir=$OUT\n"
    given = GivenValues({"B": "4"})
    found = read(
        {"run.yaml": config, "launch.sh": script}, parse_cluster("1x8xh100-sxm"), given=given
    ).request
    assert found["plan"]["micro_batch_size"] == 4


def test_a_stage_that_it_does_not_have_is_refused() -> None:
    words = "--stage cls --finetuning_type full --cutoff_len 4096"
    assert "--stage cls: its loss" in why("torchrun src/train.py", MODEL, BATCH, words)


def test_an_actor_is_trained_on_what_it_generates() -> None:
    words = "--actor_model_name_or_path mistralai/Mistral-7B-v0.1 --max_length 512"
    assert "also generates samples" in why("deepspeed --module rl.mcts", words, BATCH)


def test_an_own_length_beside_a_configuration_of_accelerate() -> None:
    script = f"accelerate launch --config_file c.yaml train.py {MODEL} {BATCH} --cutoff_len 4096\n"
    config = "distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n"
    found = read({"run.sh": script, "c.yaml": config}, parse_cluster("1x8xh100-sxm")).request
    assert (found["training"]["seq_length"], found["plan"]["zero_stage"]) == (4096, 3)


def test_a_configuration_that_the_caller_names_is_asked_for() -> None:
    words = f"{MODEL} {BATCH} --use_peft --max_seq_length 2048"
    assert "config is $1, which the files do not say" in why(
        "accelerate launch --config_file $1 train.py", words
    )


def test_a_program_that_shards_by_a_switch_of_its_own() -> None:
    words = (MODEL, BATCH, LENGTH, "--use_deepspeed")
    assert "shards in code of its own: --set zero_stage=3" in why("torchrun t.py", *words)
    known = GivenValues({"zero_stage": "3"})
    assert reading("torchrun t.py", *words, given=known).request["plan"]["zero_stage"] == 3
    named = (MODEL, BATCH, LENGTH, "--deepspeed --deepspeed_config configs/ds_zero2.json")
    assert reading("deepspeed t.py", *named).request["plan"]["zero_stage"] == 2


@pytest.mark.parametrize(
    ("call", "replicas"),
    [
        ("python src/train.py", 1),
        ("export CUDA_VISIBLE_DEVICES=0,1\npython sft.py --config", 2),
        ("srun -N 1 --ntasks 4 python sft.py --config", 4),
        # Another program with the same YAML is no training.
        ("python sample.py sft.yaml\ntorchrun --nproc_per_node 4 sft.py", 4),
        ("python sample.py sft.yaml\naccelerate launch --num_processes 4 sft.py", 4),
    ],
)
def test_python_alone_starts_one_process_with_a_trainers_yaml(call: str, replicas: int) -> None:
    files = {"run.sh": f"{call} sft.yaml\n", "sft.yaml": TRL}
    plan = read(files, parse_cluster("1x8xh100-sxm")).request["plan"]
    assert plan.get("dp", 1) == replicas


def test_options_of_accelerate_overrule_its_configuration_beside_a_trainers_yaml() -> None:
    script = "accelerate launch --config_file z3.yaml --num_processes 4 sft.py --config sft.yaml\n"
    config = (
        "model_name_or_path: Qwen/Qwen2.5-7B\nmax_seq_length: 4096\nuse_peft: false\nbf16: true\n"
    )
    z3 = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\nnum_processes: 8\n"
    files = {
        "run.sh": script,
        "sft.yaml": config,
        "other.yaml": z3.replace("3", "2"),
        "z3.yaml": z3,
    }
    plan = read(files, parse_cluster("8x8xh100-sxm")).request["plan"]
    assert (plan["dp"], plan["zero_stage"]) == (4, 3)


def test_an_option_may_be_abbreviated() -> None:
    short = "--per_device_train_batch 2 --gradient_accumulation 16"
    found = reading("torchrun --nproc_per_node 4 train.py", MODEL, short, LENGTH).request
    assert found["training"]["global_batch_size"] == 128


OWN_LOOP = """
import deepspeed
parser.add_argument("--per_device_train_batch_size", type=int, default=16, help="of a device")
parser.add_argument("--max_seq_len", type=int, default=512)
parser.add_argument("--model_name_or_path", type=str, required=True)
for batch in loader:
    model.backward(model(**batch).loss)
"""
CONFIG = """
def get_train_ds_config(stage):
    return {
        "train_micro_batch_size_per_gpu": 4,
        "fp16": {
            "enabled": True,
            "loss_scale_window": 100,
        },
    }
"""


def test_a_program_of_its_own_loop_has_its_own_defaults() -> None:
    files = {
        "run.sh": f"deepspeed --num_gpus 2 main.py {MODEL} --zero_stage 2\n",
        "main.py": OWN_LOOP,
        "ds_utils.py": CONFIG,
    }
    found = read(files, parse_cluster("1x8xh100-sxm"))
    training = found.request["training"]
    assert (training["global_batch_size"], training["seq_length"]) == (32, 512)
    assert training["precision"] == "fp16"
    assert "defaults of main.py: per_device_train_batch_size 16" in str(found.assumed)
    given = {**files, "run.sh": files["run.sh"].replace("--zero", "--max_seq_len 1024 --zero")}
    again = read(given, parse_cluster("1x8xh100-sxm")).request["training"]
    assert again["seq_length"] == 1024
    both = {**files, "other.py": CONFIG.replace("fp16", "bf16")}
    assert "neither bf16 nor fp16 is on" in str(read(both, parse_cluster("1x8xh100-sxm")).assumed)


def test_a_program_that_trains_another_head_is_not_read_by_its_options() -> None:
    program = (
        "from transformers import AutoModelForSequenceClassification as A, TrainingArguments\n"
        "Trainer(model=A.from_pretrained('gpt2'), args=TrainingArguments('x'))\n"
    )
    script = f"torchrun --nproc_per_node 2 classify.py {MODEL} {BATCH} {LENGTH}\n"
    with pytest.raises(RequestError, match="is no decoder of the next token"):
        read({"run.sh": script, "classify.py": program}, parse_cluster("1x8xh100-sxm"))


def test_a_program_that_is_not_followed_is_said() -> None:
    script = f"torchrun --nproc_per_node 2 sft.py {MODEL} {BATCH} {LENGTH}\n"
    program = "from trl import SFTConfig\n"
    found = read({"run.sh": script, "sft.py": program}, parse_cluster("1x8xh100-sxm"))
    assert "sft.py is not followed, only its options are read" in str(found.assumed)


def test_variables_in_the_names_of_a_run_are_not_asked_for() -> None:
    text = "model_name_or_path: Qwen/Qwen2.5-7B\nnum_generations: 8\nmax_prompt_length: 512\n"
    text += "max_completion_length: 1024\nper_device_train_batch_size: 8\n"
    found = read(
        {"a.yaml": text + "output_dir: out/run${VERSION}\n"}, parse_cluster("1x8xh100-sxm")
    )
    assert found.request["training"]["seq_length"] == 1536


def test_keys_without_a_launcher_run_on_the_cluster() -> None:
    text = "model_name_or_path: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 8\nmax_length: 64\n"
    found = read({"a.yaml": text}, parse_cluster("1x8xh100-sxm"))
    assert found.request["plan"]["dp"] == 8
    assert "no launcher among the files: 8 ranks" in str(found.assumed)


@pytest.mark.parametrize("words", ["recipes/sft.yaml", "--config recipes/sft.yaml"])
def test_a_configuration_that_is_not_here_is_asked_for(words: str) -> None:
    program = (
        "from trl import SFTConfig, SFTTrainer, TrlParser, ModelConfig\n"
        "args, model = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config()\n"
        "SFTTrainer(model=model.model_name_or_path, args=args).train()\n"
    )
    files = {"run.sh": f"accelerate launch sft.py {words}\n", "sft.py": program}
    text = "recipes/sft.yaml, its configuration, is not among the files"
    with pytest.raises(RequestError, match=text):
        read(files, parse_cluster("1x8xh100-sxm"))


@pytest.mark.parametrize("name", ["base_model_name", "hf_model_id", "pretrained_model_path"])
def test_a_models_option_has_many_names(name: str) -> None:
    model = f"--{name} meta-llama/Llama-2-7b-hf"
    found = reading("torchrun train.py", model, BATCH, LENGTH).request
    assert found["model"]["num_layers"] == 32
