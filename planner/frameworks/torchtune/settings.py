"""The keys of a config of torchtune's recipes, with reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cost_models.optimizers import OptimizerName
from cost_models.plans import ParallelPlan
from cost_models.spec import TrainingSpec
from planner.constraints import Context
from planner.frameworks.accelerate.peft import NAMES
from planner.frameworks.rules import PLACEHOLDER, SMOKE_ITERATIONS, accumulated
from planner.frameworks.torchtune.components import Component, component_of
from planner.frameworks.yaml_files import Row

OPTIMIZERS: dict[OptimizerName, tuple[str, Mapping[str, Any]]] = {
    "adam": ("torch.optim.AdamW", {"fused": True}),
    "adam_8bit": ("torchao.optim.AdamW8bit", {}),
    "paged_adam": ("bitsandbytes.optim.PagedAdamW", {}),
    "paged_adam_8bit": ("bitsandbytes.optim.PagedAdamW8bit", {}),
    "sgd": ("torch.optim.SGD", {"momentum": 0.9}),
    "adafactor": ("torch.optim.Adafactor", {}),
}
CHUNKED, WHOLE = "torchtune.modules.loss.LinearCrossEntropyLoss", "torch.nn.CrossEntropyLoss"
TP_PLAN = "torchtune.models.llama3.base_llama_tp_plan"
SCHEDULE = "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup"
# Modules of PEFT -> modules of attention here; those of the MLP have adapters together or not.
ATTENTION = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "output_proj"}
MLP = tuple(name for name in NAMES if name not in ATTENTION)
FOLDER = "${checkpointer.checkpoint_dir}"


def recipe(training: TrainingSpec, plan: ParallelPlan) -> str:
    """The recipe that runs the plan."""
    kind = "lora" if training.lora_rank else "full"
    return f"{kind}_finetune_{'distributed' if plan.accelerators > 1 else 'single_device'}"


def built(c: Context) -> Component:
    """The function that builds the model of a request that torchtune takes."""
    found = component_of(c.model, c.training.seq_length, c.training.lora_rank > 0)
    assert found is not None  # rules.lacks refuses other models
    return found


def rows(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    """All keys of the config."""
    yield from _model(c)
    yield from _data(c)
    yield from _step(c, plan)
    yield from _memory(c, plan)
    if plan.accelerators > 1:
        yield from _ranks(c, plan)
    yield "output_dir", "output", "folder of checkpoints and logs"
    yield "metric_logger._component_", "torchtune.training.metric_logging.DiskLogger", "logs"
    yield "metric_logger.log_dir", "${output_dir}/logs", "folder of logs"
    yield "log_every_n_steps", 1, "the loss of every step"
    yield "log_peak_memory_stats", True, "to compare with what was planned"
    yield "log_level", "INFO", "of messages"


def _model(c: Context) -> Iterator[Row]:
    """The component, its adapters, its tokenizer and its checkpoint."""
    one, training = built(c), c.training
    yield "model._component_", one.path(training.lora_rank > 0), "the model as planned"
    for name, value in one.arguments.items():
        yield f"model.{name}", value, "the model as planned"
    if training.lora_rank:
        yield from _adapters(training)
    tokenizer, files = one.tokenizer
    yield "tokenizer._component_", tokenizer, "that of the model's family"
    for argument, file in files.items():
        yield f"tokenizer.{argument}", f"{FOLDER}/{file}", "beside the weights"
    yield "tokenizer.max_seq_len", training.seq_length, "tokens of one sequence"
    checkpointer = "torchtune.training.FullModelHFCheckpointer"
    yield "checkpointer._component_", checkpointer, "weights as Hugging Face has them"
    yield "checkpointer.checkpoint_dir", ".", "overridden by MODEL of launch.sh"
    yield "checkpointer.checkpoint_files", ["model.safetensors"], "overridden by launch.sh"
    yield "checkpointer.model_type", one.checkpoint, "names of the weights"
    yield "checkpointer.output_dir", "${output_dir}", "where checkpoints go"
    yield "resume_from_checkpoint", False, "a new run"


def _adapters(training: TrainingSpec) -> Iterator[Row]:
    modules = [name for one, name in ATTENTION.items() if one in training.lora_targets]
    yield "model.lora_attn_modules", modules, "matrices of attention with adapters"
    yield "model.apply_lora_to_mlp", MLP[0] in training.lora_targets, "whether the MLP has them"
    yield "model.lora_rank", training.lora_rank, "rank of the adapters"
    yield "model.lora_alpha", 2 * training.lora_rank, "their scale: twice the rank is usual"
    yield "model.lora_dropout", training.lora_dropout, "dropout before the adapters"
    if training.frozen_dtype == "nf4":
        yield "model.quantize_base", True, "frozen weights in nf4"


def _data(c: Context) -> Iterator[Row]:
    sample = "a sample of instructions: put your data set here"
    yield "dataset._component_", "torchtune.datasets.alpaca_cleaned_dataset", sample
    yield "dataset.packed", True, "samples are packed into full sequences"
    yield "seed", None, "a random one"
    yield "shuffle", True, "samples in random order"


def _step(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    """The batch, the optimizer and the loss."""
    training = c.training
    yield "batch_size", plan.micro_batch_size, "sequences per pass and data-parallel rank"
    yield "gradient_accumulation_steps", *accumulated(c, plan)
    yield "epochs", 1, "of the data set"
    yield "max_steps_per_epoch", SMOKE_ITERATIONS, "steps of a smoke run"
    component, more = OPTIMIZERS[training.optimizer]
    yield "optimizer._component_", component, "as planned"
    yield "optimizer.lr", 1.0e-5, PLACEHOLDER
    for name, value in more.items():
        yield f"optimizer.{name}", value, "as planned"
    if training.lora_rank:
        yield "lr_scheduler._component_", SCHEDULE, "the recipe needs one"
        yield "lr_scheduler.num_warmup_steps", 1, PLACEHOLDER
    else:
        why = "weights are updated in the backward pass"
        yield "optimizer_in_bwd", training.optimizer_in_backward, why
    chunks = plan.cross_entropy == "chunked" or plan.tp > 1
    yield "loss._component_", CHUNKED if chunks else WHOLE, "the loss on the next token"


def _memory(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    """Types, recompute and compilation."""
    yield "device", "cuda", "of every rank"
    yield "dtype", c.training.precision, "of weights, gradients, states and activations"
    full = plan.recompute == "full"
    yield "enable_activation_checkpointing", full, "full activation recompute"
    yield "enable_activation_offloading", plan.offload_activations, "kept in host memory"
    if not plan.compile or recipe(c.training, plan) != "full_finetune_distributed":
        yield "compile", plan.compile, "torch.compile, layer by layer, and of the loss"
        return
    # True would compile the optimizer's step too, which steps in the backward pass do not have.
    for part, whether in (("model", True), ("loss", True), ("optimizer_step", False)):
        yield f"compile.{part}", whether, "torch.compile, layer by layer, and of the loss"


def _ranks(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    """The mesh and FSDP."""
    shards = plan.dp_shard or plan.dp
    yield "data_parallel_replicate_dim", plan.dp // shards, "replicas of the shard group"
    yield "data_parallel_shard_dim", shards, "data-parallel ranks that shard one copy"
    if plan.tp > 1:
        yield "tensor_parallel_dim", plan.tp, "ranks that split every matrix"
        yield "tensor_parallel_plan._component_", TP_PLAN, "how: with the sequence split between"
    if plan.tp > 1 and plan.offload_activations:
        yield "activation_offloading_use_streams", False, "as tensor parallelism needs it"
    yield (
        "fsdp_reshard_after_forward",
        plan.reshard_after_forward,
        "true: gathered weights are freed after the forward pass",
    )
    yield "fsdp_cpu_offload", plan.offload_optimizer, "shards and states in host memory"
