"""The plan and the training spec from Megatron-DeepSpeed's options and its JSON."""

from __future__ import annotations

from typing import Any

from cost_models.plans import ParallelPlan
from cost_models.spec import TrainingSpec
from planner.frameworks.arguments import Arguments
from planner.frameworks.bash import ProgramCall
from planner.frameworks.deepspeed.forks import BIGSCIENCE
from planner.frameworks.deepspeed.json_config import JsonConfig
from planner.frameworks.deepspeed.options import CONTEXT, DEGREES
from planner.frameworks.megatron_option_readers import replicas, seq_length
from planner.frameworks.megatron_option_rows import read

FLASH = (
    "--use-flash-attn",
    "--use-flash-attn-v2",
    "--use-flash-attn-triton",
    "--use-flash-attn-builder",
)
DTYPES = {
    "fp32": "fp32", "float32": "fp32", "float": "fp32", "torch.float32": "fp32",
    "fp16": "fp16", "float16": "fp16", "half": "fp16", "torch.float16": "fp16",
    "bf16": "bf16", "bfloat16": "bf16", "torch.bfloat16": "bf16",
}  # fmt: skip
ADAMS = ("adam", "adamw")


def plan_and_training(
    args: Arguments, config: JsonConfig, size: int, launch: ProgramCall
) -> tuple[ParallelPlan, TrainingSpec]:
    own = read(DEGREES, args, "plan")
    tp, pp, cp = own["tp"], own["pp"], own["cp"]
    dp = replicas(args, size, tp, pp, cp, CONTEXT)
    if args.has("--no-pipeline-parallel") and pp > 1:
        args.refuse(f"--no-pipeline-parallel needs pp 1, got {pp}", "--no-pipeline-parallel")
    vpp = args.integer("--num-layers-per-virtual-pipeline-stage")
    if vpp:
        args.assume("DeepSpeed's pipeline engine does not interleave: vpp 1 assumed")
    if args.has("--enable-zbh1-pipeline"):
        args.assume("the zero-bubble schedule is costed as 1F1B")
    sequence_parallel = own["sequence_parallel"] and tp > 1
    if sequence_parallel and launch.environment.get("CUDA_DEVICE_MAX_CONNECTIONS") != "1":
        args.assume(
            "CUDA_DEVICE_MAX_CONNECTIONS is 1 in the environment, as --sequence-parallel requires"
        )
    micro, batch = _batch(args, config, dp)
    zero = _zero(args, config)
    training = TrainingSpec(**_training(args, config, batch))
    if zero == 0 and _shards_unasked(args, config, training):
        args.assume(
            "without ZeRO the bf16 optimizer of BigScience's DeepSpeed shards its states like "
            "ZeRO 1 and accumulates gradients in fp32"
        )
        zero = 1
        training = training.model_copy(update={"gradient_dtype": "fp32"})
    offload = _offloads(args, config, zero)
    dtypes = training.precision, training.gradient_dtype
    late = pp > 1 or (zero, offload, *dtypes) == (1, False, "bf16", "fp32")
    overlaps = _overlaps(args, config, zero, late)
    fields: dict[str, Any] = {
        "tp": tp,
        "sequence_parallel": sequence_parallel,
        "cp": cp,
        "cp_kind": "a2a",
        "pp": pp,
        "dp": dp,
        "ep": args.positive("--moe-expert-parallel-size"),
        "zero_stage": zero,
        "micro_batch_size": micro,
        "offload_optimizer": offload,
        "offload_activations": args.has("--checkpoint-in-cpu")
        or config.switch("activation_checkpointing.cpu_checkpointing"),
        "attention_kernel": _attention(args),
        "cross_entropy": "unfused",
        "overlap_grad_reduce": overlaps,
        "overlap_param_gather": overlaps and zero == 3,
        "runtime": "deepspeed",
        **_recompute(args, pp),
    }
    _mark_free_of_cost(args, config)
    return ParallelPlan(**fields), training


def _overlaps(args: Arguments, config: JsonConfig, zero: int, late: bool) -> bool:
    """Whether collectives overlap with computation.

    late: gradients are reduced only after the backward pass, as without ZeRO.
    """
    asked = config.switch("zero_optimization.overlap_comm", zero == 3)
    if asked and (late or zero == 0):
        args.assume("overlap_comm has no effect here: gradients are reduced after the backward")
        return False
    return asked


def _mark_free_of_cost(args: Arguments, config: JsonConfig) -> None:
    """Mark settings as read that repeat others or do not affect the estimate."""
    args.has("--no-query-key-layer-scaling", "--data-impl", "--split", "--eval-iters", "--lr")
    args.has("--log-interval", "--cpu-optimizer", "--checkpoint-num-layers", "--data-path")
    for key in ("gradient_clipping", "steps_per_print", "zero_allow_untested_optimizer"):
        config.get(key)
    config.get("zero_optimization.offload_optimizer.pin_memory")


def _agree(
    args: Arguments, config: JsonConfig, option: str, given: int, path: str, there: int
) -> None:
    """Refuse an argument that contradicts a key of the JSON."""
    if given != there:
        config.refuse(
            f"{option} is {given}, {path} of the JSON is {there}: they must agree",
            args.given.get(option) or config.settings.get(path),
            "batch_identity" if "batch" in path else "zero_stage",
        )


def _batch(args: Arguments, config: JsonConfig, dp: int) -> tuple[int, int]:
    """(micro batch, global batch): two of the JSON's three numbers give the third."""
    total_key, micro_key = "train_batch_size", "train_micro_batch_size_per_gpu"
    total = config.integer(total_key, 1)
    micro = config.integer(micro_key, 1)
    steps = config.integer("gradient_accumulation_steps", 1)
    if args.has("--micro-batch-size"):
        given = args.positive("--micro-batch-size")
        if micro is not None:
            _agree(args, config, "--micro-batch-size", given, micro_key, micro)
        micro = micro or given
    elif micro is None:
        micro = max(total // (dp * (steps or 1)), 1) if total else 1
        args.refuse(f"--micro-batch-size is missing; {micro} assumed", code="batch_identity")
    else:
        args.refuse("--micro-batch-size is missing", code="batch_identity")
    if args.has("--global-batch-size"):
        given = args.positive("--global-batch-size")
        if total is not None:
            _agree(args, config, "--global-batch-size", given, total_key, total)
        total = total or given
    if total and steps and total != micro * steps * dp:
        config.refuse(
            f"{total_key} {total} is not micro batch {micro} x gradient_accumulation_steps "
            f"{steps} x dp {dp} = {micro * steps * dp}",
            config.settings.get(total_key),
            "batch_identity",
        )
    return micro, total or micro * (steps or 1) * dp


def _zero(args: Arguments, config: JsonConfig) -> int:
    path = "zero_optimization.stage"
    said = args.has("--zero-stage")
    given = args.integer("--zero-stage")
    stage = config.integer(path)
    if isinstance(config.tree.get("zero_optimization"), bool):
        stage = int(config.tree["zero_optimization"])
    if not args.has("--deepspeed"):
        return 0
    if stage is None:
        stage = given if said and not config.tree else 0
    elif said:
        _agree(args, config, "--zero-stage", given, path, stage)
    if not 0 <= stage <= 3:
        config.refuse(f"ZeRO has stages 0 to 3, not {stage}", config.settings.get(path))
        return 3
    for key in ("offload_param", "zero_hpz_partition_size", "mics_shard_size"):
        if config.get(f"zero_optimization.{key}") is not None:
            args.assume(f"zero_optimization.{key} is ignored: plans do not have it")
    return stage


def _precision(args: Arguments, config: JsonConfig) -> str:
    """bf16 or fp16; refusals if the JSON and the arguments disagree."""
    inside = {
        name
        for name, path in (("bf16", "bf16"), ("bf16", "bfloat16"), ("fp16", "fp16"))
        if config.switch(f"{path}.enabled")
    }
    outside = {name for name in ("bf16", "fp16") if args.has(f"--{name}")}
    for one in (inside, outside):
        if len(one) > 1:
            args.refuse("bf16 and fp16 exclude each other", "--bf16")
    if config.tree and inside != outside:
        config.refuse(
            f"the arguments train in {', '.join(sorted(outside)) or 'fp32'}, the JSON in "
            f"{', '.join(sorted(inside)) or 'fp32'}: they must agree",
            config.settings.get(f"{next(iter(inside), 'bf16')}.enabled"),
        )
    chosen = inside or outside
    if not chosen:
        args.assume("plans have no fp32 training: bf16 assumed")
    return "fp16" if chosen == {"fp16"} else "bf16"


def _training(args: Arguments, config: JsonConfig, batch: int) -> dict[str, Any]:
    precision = _precision(args, config)
    seq = seq_length(args)
    optimizer = config.name("optimizer.type") or args.text("--optimizer", "adam")
    if optimizer not in (*ADAMS, "sgd", "muon"):
        args.assume(f"the optimizer {optimizer} is costed as Adam")
    return {
        "seq_length": seq,
        "global_batch_size": batch,
        "precision": precision,
        "gradient_dtype": _dtype(config, "data_types.grad_accum_dtype", precision),
        "gradient_reduce_dtype": _dtype(config, "communication_data_type", precision),
        "optimizer": optimizer if optimizer in ("sgd", "muon") else "adam",
        "tokens": _tokens(args, seq, batch),
    }


def _shards_unasked(args: Arguments, config: JsonConfig, training: TrainingSpec) -> bool:
    """Whether the engine uses its BF16_Optimizer, which shards states, even without ZeRO."""
    stated = config.get("data_types.grad_accum_dtype") is not None
    pipelined = not args.has("--no-pipeline-parallel")
    bf16 = training.precision == "bf16"
    return args.has(*BIGSCIENCE) and args.has("--deepspeed") and bf16 and pipelined and not stated


def _dtype(config: JsonConfig, path: str, default: str) -> str:
    name = config.name(path)
    if name and name not in DTYPES:
        config.refuse(f"{path} {name!r} is not a number type", config.settings.get(path))
    return DTYPES.get(name, default)


def _tokens(args: Arguments, seq: int, batch: int) -> float | None:
    """Tokens of the whole training; None for a run on the bundle's mock data."""
    if args.vague_in("--train-tokens", "--train-samples", "--train-iters"):
        return None
    tokens, samples = args.integer("--train-tokens"), args.integer("--train-samples")
    iterations = args.integer("--train-iters")
    path = args.given.get("--data-path")
    if path is not None and "".join(path.value or ()).endswith("mock_data"):
        return None
    found = tokens or samples * seq or iterations * batch * seq
    return float(found) if found > 0 else None


def _offloads(args: Arguments, config: JsonConfig, zero: int) -> bool:
    path = "zero_optimization.offload_optimizer.device"
    device = config.name(path)
    old = config.switch("zero_optimization.cpu_offload")
    if device == "nvme":
        args.assume("an optimizer on NVMe is costed as in host memory")
    if args.has("--cpu-optimizer") and device in ("", "none") and not old:
        args.assume("--cpu-optimizer is ignored without offload_optimizer in the JSON")
    return zero > 0 and (device in ("cpu", "nvme") or old)


def _attention(args: Arguments) -> str:
    if args.has("--use-flash-attn-v1"):
        return "flash1"
    return "flash" if args.has(*FLASH) else "unfused"


def _recompute(args: Arguments, pp: int) -> dict[str, Any]:
    kind = args.text("--recompute-granularity", "none")
    if args.has("--recompute-activations"):
        kind = "selective"
    engine = args.has("--deepspeed-activation-checkpointing")
    method = args.text("--recompute-method")
    layers = args.positive("--recompute-num-layers")
    groups = args.positive("--checkpoint-num-layers")
    if args.has("--checkpoint-activations"):
        return _uniform(groups)
    if kind == "selective":
        if method:
            args.refuse("--recompute-method needs full recompute", "--recompute-method")
        return {"recompute": "selective", "recompute_modules": ("core_attn",)}
    if kind == "none":
        if engine:
            args.assume(
                "--deepspeed-activation-checkpointing alone recomputes nothing: it needs "
                "--recompute-granularity full or --checkpoint-activations"
            )
        return {}
    if pp == 1 and engine:
        # DeepSpeed's checkpointing always works in groups of --checkpoint-num-layers.
        return _uniform(groups)
    if not method:
        args.refuse(
            "full recompute needs --recompute-method; uniform assumed",
            "--recompute-granularity",
            code="recompute",
        )
    return {**_uniform(layers), "recompute_method": method or "uniform"}


def _uniform(layers: int) -> dict[str, Any]:
    return {"recompute": "full", "recompute_method": "uniform", "recompute_num_layers": layers}
