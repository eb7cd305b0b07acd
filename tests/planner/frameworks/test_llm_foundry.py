"""LLM Foundry's trainings by its YAML and the call that names it."""

from __future__ import annotations

import pytest

from cost_models.parameters import total_parameters
from cost_models.spec import ModelSpec
from planner.answers.lint.findings import ReadAnswer
from planner.answers.lint.lint import read
from planner.documents.problems import RequestError
from planner.inputs.requests.parser import parse_cluster

SEVEN = """\
variables:
  max_seq_len: 2048
max_seq_len: ${variables.max_seq_len}
model:
  name: mpt_causal_lm
  init_device: meta
  d_model: 4096
  n_heads: 32
  n_layers: 32
  expansion_ratio: 4
  max_seq_len: ${variables.max_seq_len}
  vocab_size: 50368
  attn_config:
    attn_impl: flash
optimizer:
  name: decoupled_adamw
global_train_batch_size: 64
device_train_microbatch_size: 2
precision: amp_bf16
fsdp_config:
  sharding_strategy: FULL_SHARD
  mixed_precision: PURE
  activation_checkpointing: true
"""
CALL = "composer -n 8 train.py yamls/own.yaml"
HUB = SEVEN.replace(SEVEN[SEVEN.index("  name: mpt") : SEVEN.index("optimizer:")], "{}").replace(
    "model:\n{}",
    "model:\n  name: hf_causal_lm\n  pretrained: true\n"
    "  pretrained_model_name_or_path: meta-llama/Meta-Llama-3-8B\n",
)


def found(text: str, call: str = "", nodes: int = 1) -> ReadAnswer:
    files = {"run.sh": call + "\n", "own.yaml": text} if call else {"own.yaml": text}
    return read(files, parse_cluster(f"{nodes}x8xh100-sxm"))


def test_mpt_by_its_widths() -> None:
    """The benchmarks of LLM Foundry count 6,649,024,512 parameters of MPT-7B with ALiBi."""
    text = SEVEN.replace("    attn_impl: flash\n", "    attn_impl: flash\n    alibi: true\n")
    answer = found(text.replace("  n_layers: 32\n", "  n_layers: 32\n  no_bias: true\n"))
    model = answer.request["model"]
    assert (model["num_layers"], model["hidden_size"], model["vocab_size"]) == (32, 4096, 50368)
    assert (model["position"], model["tied_embeddings"]) == ("alibi", True)
    assert total_parameters(ModelSpec(**model)) == 6_649_024_512


def test_batch_sharding_and_kernels() -> None:
    request = found(SEVEN, CALL).request
    assert request["training"] == {
        "seq_length": 2048,
        "global_batch_size": 64,
        "gradient_reduce_dtype": "bf16",
    }
    plan = request["plan"]
    assert (plan["dp"], plan["zero_stage"], plan["micro_batch_size"]) == (8, 3, 2)
    assert (plan["recompute"], plan["attention_kernel"]) == ("full", "flash2")


@pytest.mark.parametrize(
    ("old", "new", "field", "value"),
    [
        ("FULL_SHARD", "SHARD_GRAD_OP", "zero_stage", 2),
        ("FULL_SHARD", "NO_SHARD", "zero_stage", 0),
        ("attn_impl: flash", "attn_impl: triton", "attention_kernel", "flash1"),
        ("attn_impl: flash", "attn_impl: torch", "attention_kernel", "unfused"),
        ("microbatch_size: 2", "microbatch_size: 80", "micro_batch_size", 8),
        (SEVEN[SEVEN.index("fsdp_config") :], "", "zero_stage", 0),
        ("\nprecision:", "\ncompile_config: {mode: default}\nprecision:", "compile", True),
        ("PURE\n", "PURE\n  activation_cpu_offload: true\n", "offload_activations", True),
    ],
)
def test_keys_of_the_plan(old: str, new: str, field: str, value: object) -> None:
    assert SEVEN.count(old) == 1
    assert found(SEVEN.replace(old, new)).request["plan"][field] == value


@pytest.mark.parametrize(
    ("call", "nodes", "ranks"),
    [
        ("composer -n 4 train.py own.yaml", 1, 4),
        ("composer --nproc 8 --world_size 16 --node_rank 0 train.py own.yaml", 2, 16),
        ("composer train.py own.yaml", 2, 16),
        ("torchrun --nnodes 2 --nproc_per_node 8 train.py own.yaml", 1, 16),
        ("CUDA_VISIBLE_DEVICES=0,1 composer train/train.py own.yaml", 1, 2),
    ],
)
def test_processes_of_the_launcher(call: str, nodes: int, ranks: int) -> None:
    """Without -n Composer takes the accelerators that it sees; those of the cluster here."""
    assert found(SEVEN, call, nodes).request["plan"]["dp"] == ranks


def test_shards_of_a_node_and_copies_of_it() -> None:
    hybrid = SEVEN.replace("FULL_SHARD", "HYBRID_SHARD")
    plan = found(hybrid, "composer -n 8 --world_size 16 train.py own.yaml", 2).request["plan"]
    assert (plan["dp"], plan["dp_shard"], plan["zero_stage"]) == (16, 8, 3)
    answer = found(hybrid, nodes=2)
    assert any("HYBRID_SHARD shards within a node" in one for one in answer.assumed)


def test_words_of_the_call_override_the_file() -> None:
    request = found(SEVEN, CALL + " global_train_batch_size=128 max_seq_len=4096").request
    assert (request["training"]["global_batch_size"], request["training"]["seq_length"]) == (
        128,
        4096,
    )


def test_a_model_of_the_hub_with_adapters() -> None:
    text = HUB.replace(
        "Meta-Llama-3-8B\n",
        "Meta-Llama-3-8B\n  use_flash_attention_2: true\n  peft_config:\n    r: 16\n"
        "    peft_type: LORA\n    target_modules:\n    - q_proj\n    - v_proj\n",
    )
    request = found(text, CALL).request
    assert request["model"]["name"] == "llama-3.1-8b"  # of the same shape
    training, plan = request["training"], request["plan"]
    assert (training["lora_rank"], training["lora_targets"]) == (16, ["q_proj", "v_proj"])
    assert (plan["attention_kernel"], plan["runtime"]) == ("flash2", "transformers")
    with pytest.raises(RequestError, match="adapters of IA3 are not read"):
        found(text.replace("LORA", "IA3"), CALL)


def test_a_job_of_the_cloud_has_the_configuration_inside() -> None:
    inside = "".join(f"  {line}\n" for line in SEVEN.splitlines())
    job = f"name: mpt\ncompute:\n  gpus: 16\nparameters:\n{inside}"
    request = found(job, nodes=2).request
    assert (request["plan"]["dp"], request["training"]["seq_length"]) == (16, 2048)


def test_what_is_assumed_is_said() -> None:
    answer = found(SEVEN.replace("microbatch_size: 2", "microbatch_size: auto"))
    assert any("Composer halves 8 until a micro-batch fits" in one for one in answer.assumed)
    answer = found(SEVEN.replace("decoupled_adamw", "decoupled_lionw"))
    assert any("decoupled_lionw is costed as Adam" in one for one in answer.assumed)
    answer = found(SEVEN.replace("amp_bf16", "amp_fp8"))
    assert answer.request["training"].get("precision", "bf16") == "bf16"
    assert any("without layers of TransformerEngine" in one for one in answer.assumed)
    assert (
        found(
            SEVEN.replace("amp_bf16", "amp_fp8").replace("  n_layers", "  fc_type: te\n  n_layers")
        ).request["training"]["precision"]
        == "fp8"
    )


def test_keys_of_a_fork_are_named() -> None:
    """Those of the model may build another one, those beside it are told."""
    with pytest.raises(RequestError, match="stem_layers 2: not understood"):
        found(SEVEN.replace("  n_heads: 32\n", "  n_heads: 32\n  stem_layers: 2\n"))
    with pytest.raises(RequestError, match="must be one of mptmlp, mptglu, te_ln_mlp"):
        found(SEVEN.replace("  n_heads: 32\n", "  n_heads: 32\n  ffn_config: {ffn_type: mb_moe}\n"))
    fork = SEVEN + "knowledge_distillation:\n  temperature: 2.0\n"
    answer = found(fork)
    assert [one.name for one in answer.unknown] == ["knowledge_distillation.temperature"]
    assert any("not read: knowledge_distillation.temperature" in one for one in answer.assumed)
    with pytest.raises(RequestError, match="tp_config"):
        found(SEVEN + "tp_config:\n  strategy: ffn\n")


def test_a_batch_that_does_not_divide_is_refused() -> None:
    answer = found(SEVEN.replace("batch_size: 64", "batch_size: 60"))
    assert "a batch of 60 is not a multiple of 8 ranks" in str(answer)
