"""The arguments of the three calls of train.py, with reasons."""

from __future__ import annotations

import json
from collections.abc import Iterator

from cost_models.plans import ParallelPlan
from planner.constraints import Context
from planner.frameworks.accelerate import settings
from planner.frameworks.accelerate.trainer_yaml import ACCUMULATION
from planner.frameworks.base import Flag, as_flags
from planner.frameworks.rules import PLACEHOLDER, accumulated

LOAD, ADAPT, ARGUMENTS = "from_pretrained", "get_peft_model", "SFTConfig"
CHECKPOINTS = "use_gradient_checkpointing"
RECOMPUTES = "full recompute; unsloth: with checkpoints in host memory"
Argument = tuple[str, str, str]
# torch's names of the types of activations.
DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}


def _checkpointing(plan: ParallelPlan) -> str:
    """Unsloth's own word offloads what is kept of each layer."""
    return '"unsloth"' if plan.offload_activations else repr(plan.recompute == "full")


def _load(c: Context, plan: ParallelPlan) -> Iterator[Argument]:
    yield "model_name", 'os.environ["MODEL"]', "set by launch.sh"
    yield "max_seq_length", repr(c.training.seq_length), "tokens of one sequence"
    yield "dtype", DTYPES[c.training.precision], "type of activations"
    packed = c.training.frozen_dtype == "nf4"
    yield "load_in_4bit", repr(packed), "frozen weights in nf4, else as activations"
    if not c.training.lora_rank:
        kept = c.training.master_weights_dtype == "fp32"
        yield "full_finetuning", "True", "all weights are trained"
        yield "float32_mixed_precision", repr(kept), "weights and states in fp32, else in bf16"
        yield CHECKPOINTS, _checkpointing(plan), RECOMPUTES


def _adapt(c: Context, plan: ParallelPlan) -> Iterator[Argument]:
    training = c.training
    yield "model", "model", "whose weights are frozen"
    yield "r", repr(training.lora_rank), "rank of the adapters"
    yield "target_modules", json.dumps(list(training.lora_targets)), "modules with adapters"
    yield "lora_alpha", repr(2 * training.lora_rank), "their scale: twice the rank is usual"
    yield "lora_dropout", repr(training.lora_dropout), "dropout before the adapters"
    yield CHECKPOINTS, _checkpointing(plan), RECOMPUTES


def _arguments(c: Context, plan: ParallelPlan) -> Iterator[Argument]:
    batch, why = accumulated(c, plan)
    yield "max_length", repr(c.training.seq_length), "as the model's"
    yield "packing", "True", "samples are packed into full sequences"
    yield "per_device_train_batch_size", repr(plan.micro_batch_size), "sequences per pass and rank"
    yield ACCUMULATION, repr(batch), why
    yield c.training.precision, "True", "type of activations"
    yield "optim", json.dumps(settings.optimizer(c.training, plan)), "as planned"
    yield "learning_rate", "1e-05", PLACEHOLDER
    yield "max_steps", "20", "steps of a smoke run"
    yield "output_dir", '"output"', "folder of checkpoints and logs"


def arguments(c: Context, plan: ParallelPlan) -> dict[str, tuple[Flag, ...]]:
    """The arguments of each call, named call.argument."""
    adapters = {ADAPT: _adapt(c, plan)} if c.training.lora_rank else {}
    rows = {LOAD: _load(c, plan), **adapters, ARGUMENTS: _arguments(c, plan)}
    return {
        call: tuple(as_flags((f"{call}.{name}", value, why) for name, value, why in said))
        for call, said in rows.items()
    }
