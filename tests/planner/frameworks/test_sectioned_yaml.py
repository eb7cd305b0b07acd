"""YAML of FlagScale, NeMo 1 and NeuronX, and trainers that are named and not read.

The files are of the forms of FlagScale's examples/llama3/conf/train, NeMo-Framework-Launcher's
launcher_scripts/conf/training and neuronx-distributed-training's examples/conf.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from planner.answers.lint.lint import lint, read
from planner.documents.problems import RequestError
from planner.inputs.requests.parser import parse_cluster

FLAGSCALE = """
system:
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  disable_bias_linear: True
  sequence_parallel: True
  use_distributed_optimizer: True
  no_shared_fs: ${experiment.runner.no_shared_fs}
  precision:
    bf16: True
model:
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 14336
  num_attention_heads: 32
  group_query_attention: True
  num_query_groups: 8
  seq_length: 8192
  max_position_embeddings: 8192
  no_position_embedding: True
  swiglu: True
  normalization: RMSNorm
  position_embedding_type: rope
  untie_embeddings_and_output_weights: True
  micro_batch_size: 1
  global_batch_size: 2048
data:
  tokenizer:
    tokenizer_type: Llama3TokenizerFS
    vocab_size: 128256
"""
NEMO = """
trainer:
  num_nodes: 4
  devices: 8
model:
  mcore_gpt: true
  micro_batch_size: 1
  global_batch_size: 256
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 4
  virtual_pipeline_model_parallel_size: 4
  encoder_seq_length: 4096
  max_position_embeddings: 4096
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 11008
  num_attention_heads: 32
  normalization: rmsnorm
  bias: false
  activation: fast-swiglu
  position_embedding_type: rope
  rotary_base: 10000.0
  share_embeddings_and_output_weights: false
  override_vocab_size: 32000
  activations_checkpoint_granularity: full
  activations_checkpoint_method: block
  activations_checkpoint_num_layers: 1
  sequence_parallel: true
  optim:
    name: mcore_distributed_optim
    overlap_grad_sync: true
"""
CLUSTER = parse_cluster("4x8xh100-sxm")


def request(text: str) -> dict[str, Any]:
    return read({"run.yaml": text}, CLUSTER).request


def why(text: str, name: str = "run.yaml") -> str:
    with pytest.raises(RequestError) as caught:
        read({name: text}, CLUSTER)
    return str(caught.value)


def test_flagscale() -> None:
    found = request(FLAGSCALE)
    model, plan, training = found["model"], found["plan"], found["training"]
    assert (model["num_layers"], model["num_query_groups"], model["vocab_size"]) == (32, 8, 128256)
    assert model.get("position", "rope") == "rope"
    assert (plan["tp"], plan["pp"], plan["dp"]) == (4, 2, 4)
    assert plan["sequence_parallel"]
    assert (training["global_batch_size"], training["seq_length"]) == (2048, 8192)


def test_flagscales_own_options_are_no_errors() -> None:
    found = lint({"run.yaml": FLAGSCALE}, CLUSTER).findings
    assert [one.text for one in found if one.severity == "error"] == []


def test_nemo_1() -> None:
    found = request(NEMO)
    model, plan, training = found["model"], found["plan"], found["training"]
    assert (model["ffn_hidden_size"], model["vocab_size"]) == (11008, 32000)
    assert model["gated_mlp"]
    assert (plan["tp"], plan["pp"], plan["vpp"], plan["dp"]) == (2, 4, 4, 4)
    assert (plan["recompute"], plan["recompute_num_layers"]) == ("full", 1)
    assert training["seq_length"] == 4096
    own = "  transformer_engine: false\n  use_flash_attention: {}\n"
    unfused = request(NEMO.replace("  mcore_gpt: true\n", own.format("false")))["plan"]
    assert unfused["attention_kernel"] == "unfused"
    assert "attention_kernel" not in plan
    flash = request(NEMO.replace("  mcore_gpt: true\n", own.format("true")))["plan"]
    assert "attention_kernel" not in flash


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (FLAGSCALE, ("bf16: True", "bf16: True\n  use_dualpipev: true"), "DualPipeV is not read"),
        (NEMO, ("fast-swiglu", "geglu"), "activation geglu: must be one of"),
        (NEMO, ("  num_layers: 32\n", "  model_config: /a/config.json\n"),
         "leaves out num_layers: the rest is in /a/config.json; give it by --model NAME"),
        (NEMO, ("  mcore_gpt: true\n", "  img_h: 224\n"), "only training of decoders"),
        (NEMO, ("  mcore_gpt: true\n", "  peft:\n    peft_scheme: lora\n"), "adapters"),
    ],
)  # fmt: skip
def test_what_is_refused_has_its_own_reason(old: str, new: tuple[str, str], text: str) -> None:
    assert text in why(old.replace(*new))


@pytest.mark.parametrize(
    ("name", "text", "trainer"),
    [
        ("run.yaml", "experiment:\n  exp_name: a\ndefaults:\n  - train: b\n", "FlagScale"),
        ("run.yaml", "recipe: TrainFinetuneRecipe\nmodel:\n  _target_: nemo_automodel.X\n",
         "NeMo Automodel"),
        ("run.sh", "torchrun -m apps.main.train config=a.yaml\n", "Lingua's call alone"),
        ("run.sh", "composer train.py yamls/pretrain/a.yaml\n", "LLM Foundry's call alone"),
        ("run.yaml", "max_seq_len: 1\nglobal_train_batch_size: 8\n",
         "another model of LLM Foundry"),
        ("run.yaml", "trainer:\n  ppo:\n    max_epochs: 1\nmodel:\n  a: 1\n", "NeMo-Aligner"),
        ("run.yaml", "actor_train:\n  model_args: {}\n", "ROLL"),
        ("run.yaml", "trainer:\n  train_batch_size: 8\nmodel:\n  type: llama\n", "levanter"),
        ("run.sh", "deepspeed --module openrlhf.cli.train_sft --train.batch_size 8\n", "OpenRLHF"),
        ("run.yaml", "use_parallel: True\nparallel_config:\n  model_parallel: 8\n"
         "trainer:\n  type: a\nmodel:\n  model_config:\n    num_layers: 80\n", "MindFormers"),
        ("run.yaml", "train_cfgs:\n  bf16: True\nmodel_cfgs: {}\n", "align-anything"),
        ("run.yaml", "model_args:\n  a: 1\ntraining_parameters: {}\n", "Dolomite Engine"),
        ("run.yaml", "trainer:\n  nnodes: 1\ndata:\n  n_samples: 5\nmodel: {}\nrollout: {}\n",
         "verl's generation"),
        ("run.sh", "deepspeed finetune_cogvlm_demo.py --train-iters 800 --from_pretrained a\n",
         "SwissArmyTransformer"),
        ("run.sh", "python train.py config/train_gpt2.py --batch_size=4\n", "nanoGPT"),
        ("run.sh", "python -m oat.experiment.main --pretrain a\n", "oat"),
        ("run.sh", "torchrun --nproc_per_node=8 -m flame.train --job.config a\n", "flame"),
        ("run.yaml", "model:\n  tensor_model_parallel_size: 2\ntrain:\n  global_batch_size: 8\n",
         "Megatron-Bridge's overrides alone"),
        ("run.yaml", "data:\n  train_batch_size: 8\nmodel:\n  partial_pretrain: a\ntrainer: {}\n",
         "verl's configuration of SFT alone"),
        ("run.yaml", "trainer:\n  strategy: fsdp\nmodel:\n  class_path: a.B\n",
         "Lightning's command line"),
        ("run.py", "from lightning.pytorch.cli import LightningCLI\nLightningCLI(A, B)\n",
         "Lightning's command line"),
        ("run.yaml", "_target_: lightning.pytorch.trainer.Trainer\ndevices: 4\n",
         "Hydra's configuration of Lightning's Trainer"),
        ("run.py", "import lightning as L\nfabric = L.Fabric(devices=4)\n", "Lightning Fabric"),
        ("conf.yaml", "experiment:\n  seed: 1\ndefaults:\n  - _self_\nhydra:\n  run: {}\n",
         "Hydra itself"),
        ("hydra.yaml", "hydra:\n  run:\n    dir: out\n  sweep: {}\n", "Hydra itself"),
        ("run.yml", '{\n  "checkpoint_factor": 100,\n  "train_micro_batch_size_per_gpu": 4\n}\n',
         "a launch of GPT-NeoX in several configs"),
        ("run.yml", "train_micro_batch_size_per_gpu: 4\nlr_decay_iters: 100\n",
         "a launch of GPT-NeoX in several configs"),
        ("run.sh", 'JOB=$(cat <<EOF\ncd /opt/nemo-rl\npython run_grpo_math.py --config a.yaml\n'
         'EOF\n)\necho "$JOB" | kubectl exec -i pod -- bash\n', "NeMo RL, started inside a text"),
        ("job.yaml", "kind: JobSet\nspec:\n  args: [python3 -m maxtext.train base.yml]\n",
         "MaxText in a manifest of Kubernetes"),
        ("config.yaml", "_wandb:\n  value: {}\ntensor_model_parallel_size:\n  value: 2\n"
         "train_iters:\n  value: 100\n", "a run of Megatron-LM's kept by Weights & Biases"),
        ("run.sh", "torchrun --nproc_per_node 8 train_fsdp2.py a.yaml --parallel.fsdp_size 8\n",
         "MindSpeed's trainer on FSDP 2"),
        ("run.yaml", "model: {}\nparallel:\n  fully_shard_parallel_size: auto\n",
         "MindSpeed's trainer on FSDP 2"),
        ("run.yaml", "rlhf_type: grpo\nmicro_batch_size: 2\ntrain:\n  gpus: 4\n"
         "  tensor_model_parallel_size: 1\nmodel: a\n", "ms-swift's training of RL by Ray"),
        ("run.sh", 'torchrun --nnodes="$N" ${NEMO_SCRIPT} --factory "recipe()"\n',
         "a launch of NeMo 2 by a variable"),
    ],
)  # fmt: skip
def test_a_trainer_that_is_not_read_is_named(name: str, text: str, trainer: str) -> None:
    found = why(text, name)
    assert f"is of {trainer}, which is not read: " in found
    assert "is missing" not in found


WANDB = """
_wandb: {value: {cli_version: 0.15.3}}
_name_or_path: {value: THUDM/chatglm2-6b}
seq_length: {value: 32768}
per_device_train_batch_size: {value: 8}
gradient_accumulation_steps: {value: 2}
fsdp: {value: '[]'}
fsdp_config: {value: "{'fsdp_min_num_params': 0, 'xla': False}"}
deepspeed: {value: None}
"""


def test_a_runs_options_are_not_its_models() -> None:
    """What a model can hold is no length of samples; older versions keep Python's texts."""
    assert "leaves out the sequence length: add --set model_max_length" in why(WANDB, "config.yaml")
    text = WANDB + "max_seq_length: {value: 512}\n"
    answer = read({"config.yaml": text}, parse_cluster("1x8xh100-sxm"))
    assert answer.request["training"]["seq_length"] == 512
    assert not any("not among the files" in one for one in answer.assumed)


def test_the_called_program_is_named() -> None:
    found = why("torchrun --nproc_per_node=8 finetune_chat.py --micro_batch 4\n", "run.sh")
    assert "the script calls finetune_chat.py" in found
    assert "--num-layers" not in found


def test_the_script_that_is_called_is_asked_for() -> None:
    found = why(
        'python prepare.py --summary a.json\nTP=4 bash "$ROOT/scripts/run_grpo.sh" x\n', "run.sh"
    )
    assert found.startswith(
        "/files: the script hands on to run_grpo.sh, which is not among the files"
    )


def test_files_of_data_are_not_taken_for_the_configuration() -> None:
    found = why("python check.py --summary-file out.json --config c.yaml\n", "run.sh")
    assert "whose options may be in c.yaml, which" in found


def test_the_configuration_that_a_call_names_is_asked_for() -> None:
    found = why("torchrun --nproc_per_node 8 src/train.py /root/sft.yaml\n", "run.sh")
    assert "whose options may be in sft.yaml, which is not among the files" in found


DEEP = "".join(" " * (level + 4) + "a:\n" for level in range(600))
MANY = "".join(f"  k{number}: 1\n" for number in range(8000))


@pytest.mark.parametrize(
    "text",
    [
        f"system:\nmodel:\n  hidden_size:\n{DEEP}",
        f"system:\nmodel:\n  hidden_size: {'9' * 20}\n  num_layers: 3\n{MANY}",
        NEMO.replace("num_nodes: 4", f"num_nodes: {'9' * 5000}"),
        NEMO.replace("hidden_size: 4096", "hidden_size: [1, 2]"),
        NEMO.replace("num_layers: 32", "num_layers: ${a:${b}}"),
    ],
)
def test_hostile_files_are_refused_at_once(text: str) -> None:
    start = time.process_time()
    with pytest.raises(RequestError):
        lint({"run.yaml": text}, CLUSTER)
    assert time.process_time() - start < 2.0


def test_what_a_configuration_of_no_known_trainer_says_is_completed() -> None:
    text = "max_seq_len: 1024\nmodel:\n  d_model: 512\ntrain:\n  total_batch_size: 64\n"
    found = why(text, "run.yaml")
    command = "planner plan --model ... --seq-length 1024 --global-batch-size 64"
    assert f"run.yaml is of no known trainer; complete what it says: {command}" in found


COMPONENT = "model:\n  _component_: torchtune.models.llama3_2.llama3_2\n  vocab_size: null\n"
EXPORT = "model_name_or_path: gpt2\nfinetuning_type: lora\nexport_dir: merged\n"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yaml", f"{COMPONENT}optimizer:\n  _component_: x\n", "vocab_size is missing"),
        ("a.yaml", "model_name: llama3-8b\nmax_length: 1024\n", "--seq-length 1024"),
        ("a.yaml", EXPORT, "it exports or runs a model and trains nothing"),
        ("a.yaml", EXPORT.replace("export_dir", "adapter_name_or_path"), "trains nothing"),
        (
            "a.sh",
            "python tools/create_doc_index.py --num-layers 2\n",
            "create_doc_index.py trains n",
        ),
        ("a.sh", "python MaxText/decode.py a.yml\n", "decode.py trains nothing, by its name"),
        ("a.sh", 'M=(\n  --num-layers 32\n)\nA="--tp 2"\n', "starts nothing: give the script that"),
        ("a.sh", 'M=(\n  --num-layers 32\n)\nA="--tp 2"\n', "sources it and calls with M, A"),
        ("a.sh", "python -m venv .env\npip install torch\n", "venv trains nothing, by its name"),
        (
            "a.py",
            "seq_length = 64\nloss.backward()\n",
            "in a loop of its own, which is not followed",
        ),
        ("a.sh", ". /usr/share/modules/init/bash\npython b.py", "the script calls b.py, whose opt"),
        ("a.py", "seq_length = 64\nloss.backward()\n", "--seq-length 64"),
    ],
)
def test_files_that_start_no_training_or_loop_themselves(name: str, text: str, said: str) -> None:
    assert said in why(text, name)


def test_a_refusal_names_the_framework_that_the_files_are_read_as() -> None:
    text = why("accelerate launch a.py --config_name b\n", "run.sh")
    assert "give it, or the model by its name (--model) (read as Hugging Face accelerate)" in text


NEMO_CALL = """\
#SBATCH --nodes=4
TP=4
python /opt/NeMo/examples/nlp/language_modeling/megatron_gpt_pretraining.py \\
  --config-name=megatron_gpt_config trainer.devices=8 trainer.num_nodes=4 \\
  model.tensor_model_parallel_size=$TP model.pipeline_model_parallel_size=2 \\
  model.micro_batch_size=2 model.global_batch_size=128 model.encoder_seq_length=4096 \\
  model.num_layers=32 model.hidden_size=4096 model.ffn_hidden_size=11008 \\
  model.num_attention_heads=32 model.activation=fast-swiglu model.normalization=rmsnorm \\
  model.bias=False +model.optim.name=distributed_fused_adam model.tokenizer.library=sentencepiece
"""


def test_a_call_of_nemo_1_overrides_its_configuration() -> None:
    found = read({"run.sh": NEMO_CALL}, CLUSTER).request
    model, plan, training = found["model"], found["plan"], found["training"]
    assert (model["num_layers"], model["ffn_hidden_size"], model["gated_mlp"]) == (32, 11008, True)
    assert (plan["tp"], plan["pp"], plan["dp"], plan["micro_batch_size"]) == (4, 2, 4, 2)
    assert (training["seq_length"], training["global_batch_size"]) == (4096, 128)
    beside = {"run.sh": NEMO_CALL, "megatron_gpt_config.yaml": NEMO}
    answer = read(beside, CLUSTER)
    assert answer.request["model"]["ffn_hidden_size"] == 11008
    assert answer.request["plan"]["pp"] == 2  # the call's, not the file's


def test_adapters_of_nemo_1() -> None:
    call = (
        "python tuning/megatron_gpt_finetuning.py trainer.devices=8 model.peft.peft_scheme=lora "
        "model.restore_from_path=/m/llama2-7b.nemo model.peft.lora_tuning.adapter_dim=16 "
        "model.peft.lora_tuning.target_modules=[attention,mlp_fc1] model.global_batch_size=32\n"
    )
    found = read({"run.sh": call}, CLUSTER).request
    training = found["training"]
    assert found["model"]["name"] == "llama-2-7b"
    assert (training["lora_rank"], training["seq_length"]) == (16, 2048)
    assert training["lora_targets"] == ["linear_qkv", "linear_proj", "linear_fc1"]
    assert "of NeMo 1's adapters only LoRA is read" in why(
        call.replace("=lora ", "=ia3 "), "run.sh"
    )
