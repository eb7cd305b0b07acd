"""The keys of accelerate.yaml and config.json and the options of train.py, with reasons."""

from __future__ import annotations

import json
from collections.abc import Iterator

from cost_models.optimizers import OptimizerName
from cost_models.plans import ParallelPlan
from cost_models.plans.plan import CPKind
from cost_models.spec import TrainingSpec
from planner.constraints import Context
from planner.frameworks import yaml_files
from planner.frameworks.accelerate.peft import adapter_arguments
from planner.frameworks.base import Flag, flag, switch
from planner.frameworks.rules import accumulated, learning_rate, train_iterations
from planner.frameworks.yaml_files import Row
from planner.huggingface.export.exporter import config_of, has_buffers
from planner.huggingface.numerics import keys_of

ATTENTION = {"flash": "sdpa", "flash2": "flash_attention_2", "unfused": "eager"}
ROTATION: dict[CPKind, str] = {"all_gather": "allgather", "p2p": "alltoall"}
# The runtime where "adam" is ADAM_BY_LISTS.
FOREACH, ADAM_BY_LISTS = "transformers-foreach", "adamw_torch"
# Values of `optim` in transformers' TrainingArguments.
OPTIMIZERS: dict[OptimizerName, str] = {
    "adam": "adamw_torch_fused",
    "adam_8bit": "adamw_torch_8bit",
    "paged_adam": "paged_adamw_32bit",
    "paged_adam_8bit": "paged_adamw_8bit",
    "sgd": "sgd",
    "adafactor": "adafactor",
}


def optimizer(training: TrainingSpec, plan: ParallelPlan) -> str:
    """The value of `optim`."""
    if training.optimizer == "adam" and plan.runtime == FOREACH:
        return ADAM_BY_LISTS
    return OPTIMIZERS[training.optimizer]


def shards(plan: ParallelPlan) -> int:
    """Ranks of dp in one shard group."""
    return plan.dp_shard // plan.cp if plan.dp_shard else plan.dp


def distributed_type(plan: ParallelPlan) -> str:
    if plan.zero_stage:
        return "FSDP"
    return "MULTI_GPU" if plan.accelerators > 1 else "NO"


def launch_rows(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    """The rows of accelerate.yaml."""
    yield "compute_environment", "LOCAL_MACHINE", "machines that run launch.sh"
    yield "distributed_type", distributed_type(plan), "FSDP: ZeRO 3; MULTI_GPU: replicas"
    yield "mixed_precision", c.training.precision, "type of activations and gathered weights"
    yield "num_processes", plan.accelerators, "processes of all machines"
    if plan.compile:
        yield "dynamo_config.dynamo_backend", "INDUCTOR", "torch.compile"
        yield "dynamo_config.dynamo_use_regional_compilation", True, "compiled layer by layer"
    if not plan.zero_stage:
        return
    fsdp, mesh = "fsdp_config.fsdp_", "parallelism_config.parallelism_config_"
    yield fsdp + "version", 2, "parallelism_config needs FSDP 2"
    yield fsdp + "auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "one unit per transformer layer"
    yield (
        fsdp + "reshard_after_forward",
        plan.reshard_after_forward,
        "true: gathered weights are freed after the forward pass",
    )
    yield fsdp + "offload_params", plan.offload_optimizer, "shards and states in host memory"
    yield fsdp + "activation_checkpointing", plan.recompute == "full", "full activation recompute"
    if plan.offload_activations:
        yield fsdp + "activation_checkpointing_offload", True, "checkpoints are kept in host memory"
    yield fsdp + "cpu_ram_efficient_loading", *_broadcasts_weights(c)
    yield fsdp + "state_dict_type", "SHARDED_STATE_DICT", "every rank saves its shards"
    yield mesh + "dp_replicate_size", plan.dp // shards(plan), "replicas of the shard group"
    yield mesh + "dp_shard_size", shards(plan), "data-parallel ranks that shard one copy"
    yield mesh + "tp_size", 1, "no tensor parallelism"
    yield mesh + "cp_size", plan.cp, "ranks that split the sequence; they shard the copy too"
    if plan.cp > 1:
        yield mesh + "cp_backend", "torch", "context parallelism with FSDP"
        yield (
            mesh + "cp_comm_strategy",
            ROTATION[plan.cp_kind],
            "allgather: all keys and values are gathered; alltoall: passed around a ring",
        )


def _broadcasts_weights(c: Context) -> tuple[bool, str]:
    """Whether rank 0 initialises the weights for all ranks, and why."""
    moe, config = c.model.moe, config_of(c.model)
    if moe is not None and moe.score_correction_bias:
        return False, "the router's balancing bias is a buffer, which cannot be broadcast"
    if config is not None and has_buffers(config):
        return False, "the model has buffers, which cannot be broadcast"
    return True, "rank 0 creates the weights and broadcasts them"


def model_rows(c: Context) -> Iterator[Row]:
    """The rows of config.json."""
    keys = config_of(c.model)
    assert keys is not None  # rules.lacks refuses other models
    for name, value in (keys | keys_of(c.model, keys)).items():
        yield name, value, "the model as planned"
    if c.model.position == "rope":
        yield "max_position_embeddings", c.training.seq_length, "the sequence length"


def config_json(c: Context) -> tuple[str, tuple[Flag, ...]]:
    """The text of config.json, and its keys as flags of a bundle."""
    rows = list(model_rows(c))
    text = json.dumps({key: value for key, value, _ in rows}, indent=2) + "\n"
    return text, yaml_files.flags("config.json", rows)


def arguments(c: Context, plan: ParallelPlan) -> Iterator[Flag]:
    """The options of train.py after the config."""
    group, training = "MODEL_ARGS", c.training
    yield flag(group, "--block_size", training.seq_length, "tokens of one sequence")
    yield flag(group, "--attn_implementation", ATTENTION[plan.attention_kernel], "attention kernel")
    group = "TRAINING_ARGS"
    yield flag(
        group, "--per_device_train_batch_size", plan.micro_batch_size, "sequences per pass and rank"
    )
    yield flag(group, "--gradient_accumulation_steps", *accumulated(c, plan))
    if plan.zero_stage:
        yield switch(group, "--sync_each_batch", "gradients stay sharded between micro-batches")
        yield flag(
            group, "--reduce_dtype", training.gradient_reduce_dtype, "gradient reduction type"
        )
    elif plan.recompute == "full":
        yield switch(group, "--gradient_checkpointing", "full activation recompute")
    yield from adapter_arguments(training, group)
    yield flag(group, "--optim", optimizer(training, plan), "as planned")
    yield learning_rate(group, "--learning_rate")
    yield train_iterations(group, training, "--max_train_steps")
