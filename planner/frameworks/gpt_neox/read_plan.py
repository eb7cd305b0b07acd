"""The training spec and the plan from GPT-NeoX's keys."""

from __future__ import annotations

import re

from cost_models.plans import ParallelPlan
from cost_models.spec import TrainingSpec
from planner.frameworks.given_values import Values
from planner.frameworks.read_results import Unreadable

MICRO, BATCH = "train_micro_batch_size_per_gpu", "train_batch_size"
STEPS = "gradient_accumulation_steps"
HALVES = {"bfloat16": "bf16", "bf16": "bf16", "fp16": "fp16", "half": "fp16"}
DTYPES = ("fp32", "bf16", "fp16")
COSTED_AS_ADAM = ("adam", "adamw", "onebitadam", "cpu_adam")


def plan_and_training(values: Values, total: int) -> tuple[TrainingSpec, ParallelPlan]:
    """The training, and the plan on `total` accelerators."""
    tp = max(values.integer("model_parallel_size", default=1, least=0), 1)
    pp = max(values.integer("pipe_parallel_size", default=0, least=0), 1)
    if total % (tp * pp):
        text = f"{total} accelerators do not divide over tp {tp} x pp {pp}"
        values.refuse(text, "model_parallel_size", "world_size")
    dp = max(total // (tp * pp), 1)
    if not values.has(MICRO, BATCH):
        values.assume(f"{MICRO} is not set: 1 assumed; --set {MICRO}=N")
    micro, batch = _batch(values, dp)
    precision = _precision(values)
    zero, gradients = _zero(values, precision)
    overlap = zero > 0 and values.boolean("zero_optimization.overlap_comm")
    full = values.boolean("checkpoint_activations")
    every = values.integer("checkpoint_num_layers", default=1)
    if full and tp > 1 and values.boolean("partition_activations"):
        values.assume("partition_activations: saved inputs are costed whole on each rank of tp")
    training = TrainingSpec(
        seq_length=values.integer("seq_length"),
        global_batch_size=batch,
        precision=precision,
        optimizer=_optimizer(values),
        gradient_dtype=gradients,
        gradient_reduce_dtype=values.choice(
            "deepspeed_extra_args.communication_data_type",
            "communication_data_type",
            choices=DTYPES,
            default="fp32" if values.boolean("fp32_allreduce") else precision,
        ),
    )
    plan = ParallelPlan(
        tp=tp, pp=pp, dp=dp, micro_batch_size=micro, zero_stage=zero,
        ep=min(values.integer("moe_expert_parallel_size", default=1), dp),
        sequence_parallel=values.boolean("sequence_parallel") and tp > 1,
        recompute="full" if full else "none", recompute_num_layers=every if full else 0,
        recompute_method="uniform", cp_kind="a2a",
        offload_optimizer=zero > 0 and _offloads(values),
        offload_activations=full and values.boolean("checkpoint_in_cpu"),
        attention_kernel=_attention(values),
        cross_entropy="unfused", overlap_grad_reduce=overlap,
        overlap_param_gather=overlap and zero == 3, runtime="deepspeed",
    )  # fmt: skip
    return training, plan


def _zero(values: Values, precision: str) -> tuple[int, str]:
    """The stage of ZeRO, and the type in which gradients are accumulated."""
    stage = values.integer("zero_optimization.stage", "zero_stage", default=0, least=0, most=3)
    gradients = values.choice("data_types.grad_accum_dtype", choices=DTYPES, default="")
    if stage or precision != "bf16" or gradients:
        return stage, gradients or precision
    values.assume(
        "without ZeRO DeepSpeed's bf16 optimizer shards its states like ZeRO 1 and "
        "accumulates gradients in fp32"
    )
    return 1, "fp32"


def _batch(values: Values, dp: int) -> tuple[int, int]:
    """(micro batch, global batch); missing ones follow from the others and the accumulation."""
    steps = values.integer(STEPS, default=1)
    if not values.has(BATCH):
        micro = values.integer(MICRO, default=1)
        return micro, micro * steps * dp
    batch = values.integer(BATCH)
    micro = values.integer(MICRO, default=max(batch // (dp * steps), 1))
    if values.has(STEPS) and batch != micro * steps * dp:
        text = f"{BATCH} {batch} is not micro batch {micro} x accumulation {steps} x dp {dp}"
        values.refuse(text, BATCH, "batch_identity")
    return micro, batch


def _precision(values: Values) -> str:
    for name in ("fp16", "bf16"):
        if values.boolean(f"{name}.enabled"):
            values.has("precision")
            return HALVES.get(values.text(f"{name}.type") or name, name)  # older releases' type
    stated = (values.text("precision") or "fp32").lower()
    if stated not in HALVES:
        values.assume("plans have no fp32 training: bf16 assumed")
    return HALVES.get(stated, "bf16")


def _optimizer(values: Values) -> str:
    name = (values.text("optimizer.type") or "adam").lower()
    if values.boolean("use_bnb_optimizer"):
        return "adam_8bit"
    if name == "sgd":
        return "sgd"
    if name not in COSTED_AS_ADAM:
        values.assume(f"the optimizer {name} is costed as Adam")
    return "adam"


def _offloads(values: Values) -> bool:
    """Whether states live in host memory; cpu_offload is the older key."""
    device = values.text("zero_optimization.offload_optimizer.device")
    return values.boolean("zero_optimization.cpu_offload") or device in ("cpu", "nvme")


def _attention(values: Values) -> str:
    """The attention kernel; raises Unreadable if some layers have no attention."""
    text = values.text("attention_config") or "global"
    kinds = set(re.findall(r"[A-Za-z]\w*", text)) - {"all"}
    if foreign := sorted(kinds - {"flash", "global"}):
        raise Unreadable(
            f"attention_config: {foreign[0]} layers cannot be read; give the model by its name "
            "(--model)",
            values.file,
        )
    if len(kinds) > 1:
        values.assume("mixed attention kinds are costed as unfused")
    return "flash" if kinds == {"flash"} else "unfused"
