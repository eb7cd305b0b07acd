"""Reads the training and the plan from Megatron-LM's options."""

from __future__ import annotations

import re
from typing import Any

from cost_models.plans import RECOMPUTE_MODULES, ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.constraints.layout_fields import layout_fields
from planner.frameworks.arguments import Arguments
from planner.frameworks.megatron import layout, options
from planner.frameworks.megatron.read_patterns import PATTERN, hybrid_pattern
from planner.frameworks.megatron_option_readers import replicas, seq_length

SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
MUON = ("muon", "dist_muon")
FSDP = ("--use-megatron-fsdp", "--use-custom-fsdp")
# Options that change Muon's update but not its cost.
MUON_FREE = (
    "--muon-momentum", "--muon-nesterov", "--muon-use-nesterov", "--muon-scale-mode",
    "--muon-extra-scale-factor", "--muon-coefficient-type", "--muon-no-split-qkv",
    "--muon-fp32-matmul-prec", "--muon-use-syrk",
)  # fmt: skip
CP_KINDS = {"p2p": "p2p", "all_gather": "all_gather", "allgather": "all_gather", "a2a": "a2a"}


def _training(args: Arguments, batch: int) -> dict[str, Any]:
    seq = seq_length(args)
    half = args.has("--fp16") and not args.has("--bf16")
    precision = "fp16" if half else "bf16"
    if not args.has("--fp16", "--bf16"):
        args.assume("training in fp32 cannot be planned: bf16 assumed")
    for name in ("fp8", "fp4"):
        if args.has(f"--{name}-format") and args.text("--transformer-impl") == "local":
            args.assume(f"--transformer-impl local has no {name}: {precision} assumed")
        elif args.has(f"--{name}-format"):
            precision = name
            if half:
                args.assume(f"{name} with fp16 weights is costed as with bf16 weights")
    recipe = args.text("--fp8-recipe", "delayed")
    if recipe == "custom":
        args.assume("a custom fp8 recipe is costed as the tensorwise one")
    args.has("--fp4-recipe")
    gradients = _gradients(args, "fp16" if half else "bf16")
    fp8 = precision == "fp8"
    return {
        "seq_length": seq,
        "global_batch_size": batch,
        "precision": precision,
        "fp8_recipe": ("tensorwise" if recipe == "custom" else recipe) if fp8 else "tensorwise",
        "fp8_param_gather": args.has("--fp8-param-gather") and fp8,
        "gradient_dtype": gradients,
        "gradient_reduce_dtype": gradients,
        "optimizer_state_dtype": _moments(args),
        "optimizer": _optimizer(args),
        "tokens": _tokens(args, seq, batch),
    }


def _gradients(args: Arguments, weights: str) -> str:
    """The type of gradients; weights: the type of the weights."""
    in_fp32 = args.has("--accumulate-allreduce-grads-in-fp32")
    if args.has("--use-torch-fsdp2"):
        return weights  # it wraps modules without a mixed-precision policy
    if in_fp32 or weights == "fp16":
        return "fp32" if in_fp32 else weights
    narrow = args.has("--grad-reduce-in-bf16") or args.text("--main-grads-dtype") == "bf16"
    return "bf16" if narrow else "fp32"


def _optimizer(args: Arguments) -> str:
    name = args.text("--optimizer", "adam")
    if name in ("adam", "sgd"):
        return name
    if name not in MUON:
        args.assume(f"the optimizer {name} is costed as Adam")
        return "adam"
    mode, steps = args.text("--muon-tp-mode", "duplicated"), args.integer("--muon-num-ns-steps", 5)
    if mode != "duplicated":
        args.assume(f"--muon-tp-mode {mode} is costed as duplicated")
    if steps != 5:
        args.assume(f"{steps} steps of Newton-Schulz are costed as 5")
    if args.text("--muon-scalar-optimizer", "adam") != "adam":
        args.assume("parameters without Muon are costed with Adam")
    args.has(*MUON_FREE)
    return "muon"


def _moments(args: Arguments) -> str:
    """The type of Adam's moments, which is fp32 without the precision-aware optimizer."""
    first, second = args.text("--exp-avg-dtype", "fp32"), args.text("--exp-avg-sq-dtype", "fp32")
    if args.text("--main-params-dtype", "fp32") != "fp32":
        args.assume("master weights are costed in fp32")
    if not args.has("--use-precision-aware-optimizer"):
        if (first, second) != ("fp32", "fp32"):
            args.refuse(
                "--exp-avg-dtype and --exp-avg-sq-dtype need --use-precision-aware-optimizer",
                "--exp-avg-dtype",
                "--exp-avg-sq-dtype",
            )
        return "fp32"
    sizes = {"fp32": "fp32", "bf16": "bf16", "fp16": "bf16", "fp8": "fp8"}
    if first != second or first == "fp16":
        larger = min((first, second), key=list(sizes).index)
        args.assume(f"moments in {first} and {second} are costed as {sizes[larger]}")
        return sizes[larger]
    return sizes[first]


def _tokens(args: Arguments, seq: int, batch: int) -> float | None:
    """Tokens of the whole training; None for mock data or an unknown length."""
    if args.vague_in("--train-iters", "--train-samples"):
        return None
    iterations, samples = args.integer("--train-iters"), args.integer("--train-samples")
    if args.has("--mock-data") or max(iterations, samples) < 1:
        return None
    return float(samples * seq if samples > 0 else iterations * batch * seq)


def _batch(args: Arguments, otherwise: int) -> int:
    """Sequences per step; with a schedule of batch sizes, the last of them."""
    if args.has("--rampup-batch-size", "--step-batch-size-schedule"):
        args.assume("the batch is costed at its full size, after the ramp-up")
    schedule = args.text("--step-batch-size-schedule")
    if last := re.search(r":\s*([1-9]\d{0,14})[\s\"']*$", schedule):
        otherwise = int(last[1])
    return args.positive("--global-batch-size", otherwise)


def plan_and_training(
    args: Arguments, model: ModelSpec, size: int
) -> tuple[ParallelPlan, TrainingSpec]:
    own = options.fields(args, "plan")
    tp, pp, cp, micro = (own[name] for name in ("tp", "pp", "cp", "micro_batch_size"))
    dp = replicas(args, size, tp, pp, cp, "--context-parallel-size")
    for name in ("--tensor-parallel-num-weight-shards", "--hierarchical-context-parallel-sizes"):
        if args.has(name):
            args.assume(f"{name} is not modelled")
    if not args.has("--micro-batch-size"):
        args.refuse("--micro-batch-size is missing; 1 assumed", code="batch_identity")
    batch = _batch(args, micro * dp)
    training = TrainingSpec(**_training(args, batch))
    zero, shard = _sharding(args, dp * cp)
    vpp, stages = _stages(args, model, pp)
    # torch's FSDP2 gathers ahead and reduces beside the backward pass without these options.
    overlaps = args.has("--use-torch-fsdp2")
    experts = {"etp": 1} if model.moe is None else options.fields(args, "expert_plan")
    found = {
        **own,
        **experts,
        "sequence_parallel": own["sequence_parallel"] and tp > 1,
        "cp_kind": _cp_kind(args, cp),
        "vpp": vpp,
        "dp": dp,
        "dp_shard": shard,
        "zero_stage": zero,
        "schedule": "interleaved-1f1b" if vpp > 1 else "1f1b",
        "offload_optimizer": _offloads(args),
        **_offloaded_activations(args, model),
        "attention_kernel": _attention(args),
        "cross_entropy": _cross_entropy(args),
        "moe_dispatcher": _dispatcher(args) if model.moe is not None else "alltoall",
        "overlap_grad_reduce": own["overlap_grad_reduce"] or overlaps,
        "overlap_param_gather": own["overlap_param_gather"] or overlaps,
        "dynamic_cp": cp > 1 and args.has("--hybrid-context-parallel"),
        "runtime": "megatron",
        **_recompute(args),
        **stages,
    }
    # These options count as looked up: they agree with what is costed, or do not affect it.
    args.has("--ckpt-format", "--no-gradient-accumulation-fusion", "--use-mcore-models")
    args.has("--overlap-cpu-optimizer-d2h-h2d", "--eval-iters", "--lr")
    return ParallelPlan(**found), training


def updates_by_layer(args: Arguments) -> bool:
    """Whether each rank updates whole layers, which shards the states without another option."""
    return args.text("--optimizer") == "dist_muon"


def _sharding(args: Arguments, ranks: int) -> tuple[int, int]:
    """(zero_stage, dp_shard)."""
    zero = 1 if args.has("--use-distributed-optimizer") or updates_by_layer(args) else 0
    if args.has(*FSDP):
        if not args.has("--data-parallel-sharding-strategy"):
            args.assume(
                "without --data-parallel-sharding-strategy Megatron-FSDP shards weights too "
                "(ZeRO 3; core 0.12 shards nothing)"
            )
        zero = SHARDING[args.text("--data-parallel-sharding-strategy", "optim_grads_params")]
        if args.text("--ckpt-format", "torch_dist") != "fsdp_dtensor" and not args.has(
            "--use-custom-fsdp"
        ):
            args.refuse("Megatron-FSDP needs --ckpt-format fsdp_dtensor", *FSDP)
    elif args.text("--ckpt-format") == "fsdp_dtensor":
        args.refuse("--ckpt-format fsdp_dtensor needs --use-megatron-fsdp", "--ckpt-format")
    if args.has("--use-torch-fsdp2"):
        args.assume("torch's FSDP2 is costed as Megatron-FSDP (ZeRO 3)")
        zero = 3
    copies = args.positive("--num-distributed-optimizer-instances")
    if copies == 1 or zero == 0:
        return zero, 0
    if ranks % copies:
        args.refuse(
            f"dp x cp = {ranks} ranks are not a multiple of "
            f"--num-distributed-optimizer-instances {copies}",
            "--num-distributed-optimizer-instances",
            code="zero_stage",
        )
        return zero, 0
    return zero, ranks // copies


def _cp_kind(args: Arguments, cp: int) -> str:
    kinds = args.words("--cp-comm-type") or ("p2p",)
    if cp > 1 and (len(set(kinds)) > 1 or kinds[0] not in CP_KINDS):
        args.assume(
            f"context parallelism by {', '.join(dict.fromkeys(kinds))} is costed as "
            f"{CP_KINDS.get(kinds[0], 'p2p')}"
        )
    return CP_KINDS.get(kinds[0], "p2p")


def _recompute(args: Arguments) -> dict[str, Any]:
    kind = args.text("--recompute-granularity", "none")
    if args.has("--recompute-activations"):
        kind = "selective"
    method, layers = args.text("--recompute-method"), args.integer("--recompute-num-layers")
    if args.has("--checkpoint-activations"):  # of versions before core: each layer on its own
        kind, method, layers = "full", "uniform", 1
    modules = args.words("--recompute-modules") or ("core_attn",)
    if kind == "full":
        return _full_recompute(args, method, layers)
    if kind == "none":
        return {}
    if method or layers:
        args.refuse(
            "--recompute-method and --recompute-num-layers need full recompute",
            "--recompute-method",
            "--recompute-num-layers",
            code="recompute",
        )
    kept = tuple(module for module in dict.fromkeys(modules) if module in RECOMPUTE_MODULES)
    if missing := [module for module in modules if module not in kept]:
        args.assume(f"recompute of {', '.join(missing)} is not modelled")
    if not kept:
        return {}
    return {"recompute": "selective", "recompute_modules": kept}


def _full_recompute(args: Arguments, method: str, layers: int) -> dict[str, Any]:
    if method == "block" and args.text("--recompute-num-layers") == "0":
        return {}  # it recomputes the first 0 layers of every stage
    if not method or layers < 1:
        args.refuse(
            "full recompute needs --recompute-method and --recompute-num-layers; uniform and 1 "
            "assumed if missing",
            "--recompute-granularity",
            code="recompute",
        )
    return {
        "recompute": "full",
        "recompute_method": method or "uniform",
        "recompute_num_layers": max(layers, 1),
    }


def _offloads(args: Arguments) -> bool:
    if not args.has("--optimizer-cpu-offload"):
        return False
    share = args.number("--optimizer-offload-fraction", 1.0)
    if share <= 0:
        return False
    if share < 1:
        args.assume(f"offloading {share:.0%} of the optimizer is costed as offloading all of it")
    return True


def _offloaded_activations(args: Arguments, model: ModelSpec) -> dict[str, Any]:
    """The fields of activation offload; all layers but the last, its maximum, count as all."""
    layers = args.integer("--cpu-offloading-num-layers")
    some = layers if layers < model.num_layers - 1 else 0
    return {"offload_activations": layers > 0, "offload_num_layers": some}


def _attention(args: Arguments) -> str:
    backend = args.text("--attention-backend", "auto")
    args.has("--use-flash-attn")
    if backend == "local" and args.words("--spec")[:1] != ("local",):
        args.refuse("--attention-backend local needs --spec local", "--attention-backend")
    plain = args.text("--transformer-impl") == "local" and not args.has("--use-flash-attn")
    if plain and backend not in ("unfused", "local"):  # the option chooses among TE's alone
        args.assume("--transformer-impl local has unfused attention")
        backend = "local"
    return "unfused" if backend in ("unfused", "local") else "flash"


def _cross_entropy(args: Arguments) -> str:
    implementation = args.text("--cross-entropy-fusion-impl", "native")
    if not args.has("--cross-entropy-loss-fusion"):
        return "unfused"
    return "fused" if implementation == "native" else "in_place"


def _dispatcher(args: Arguments) -> str:
    kind = args.text("--moe-token-dispatcher-type", "allgather")
    backend = args.text("--moe-flex-dispatcher-backend", "deepep")
    args.has("--moe-enable-deepep")
    if kind == "flex":
        if backend not in ("deepep", "hybridep"):
            args.assume(f"the {backend} dispatcher is costed as hybridep")
            return "hybridep"
        return backend
    return "allgather" if kind == "allgather" else "alltoall"


def _by_layout(args: Arguments, model: ModelSpec, pp: int, text: str) -> tuple[int, dict[str, Any]]:
    name = layout.OPTION
    try:
        chunks = layout.parsed(text)
    except ValueError as error:
        args.refuse(f"{name} {text[:100]}: {error}", name, code="vpp_layout")
        return 1, {}
    if "m" in "".join(chunks[:-1]):
        args.assume(f"{name}: multi-token prediction is costed on the stage of the loss")
    return _laid_out(args, model, pp, name, [chunk.count("t") for chunk in chunks])


def _chunks(args: Arguments, layers: int, pp: int, per_stage: int, rest: int) -> int:
    """Virtual stages of a rank, given by their number or by the layers of each."""
    vpp = args.positive("--num-virtual-stages-per-pipeline-rank")
    name = "--num-layers-per-virtual-pipeline-stage"
    chunk = args.integer(name)
    if chunk <= 0 or vpp != 1:
        return vpp
    if rest or per_stage % chunk:
        text = f"the {layers} layers over pp {pp} do not split into chunks of {chunk}"
        args.refuse(text, name, code="vpp_layout")
    return max(per_stage // chunk, 1)


def _stages(args: Arguments, model: ModelSpec, pp: int) -> tuple[int, dict[str, Any]]:
    """(vpp, the plan fields that assign layers to stages)."""
    text, pattern = args.text(layout.OPTION), hybrid_pattern(args)
    if "|" in pattern:
        parts = pattern.split("/")[0].split("|")
        return _laid_out(args, model, pp, PATTERN, [len(one) for one in parts])
    first = args.integer("--decoder-first-pipeline-num-layers")
    last = args.integer("--decoder-last-pipeline-num-layers")
    if text:
        return _by_layout(args, model, pp, text)
    extra = [
        int(args.has("--account-for-embedding-in-pipeline-split")),
        int(args.has("--account-for-loss-in-pipeline-split")),
    ]
    per_stage, rest = divmod(model.num_layers + sum(extra), pp)
    if sum(extra) and (first or last):
        args.refuse(
            "--account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split "
            "exclude --decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers",
            "--account-for-embedding-in-pipeline-split",
            "--account-for-loss-in-pipeline-split",
        )
    elif sum(extra) and pp > 1:
        first, last = ((per_stage - one) * one for one in extra)
    vpp = _chunks(args, model.num_layers, pp, per_stage, rest)
    if sum(extra) and vpp > 1 and not rest and per_stage % vpp == 0:
        # The embedding takes the place of a layer in the first chunk, the loss in the last one.
        counts = [per_stage // vpp] * (pp * vpp)
        counts[0] -= extra[0]
        counts[-1] -= extra[1]
        return vpp, {"stage_layers": tuple(counts)}
    return vpp, {"first_stage_layers": max(first, 0), "last_stage_layers": max(last, 0)}


def _laid_out(
    args: Arguments, model: ModelSpec, pp: int, name: str, counts: list[int]
) -> tuple[int, dict[str, Any]]:
    """(vpp, plan fields) for these layers per chunk; name: the option that gives them."""
    wrong = ""
    if len(counts) % pp:
        wrong = f"{len(counts)} chunks are not a multiple of pp {pp}"
    elif sum(counts) != model.num_layers:
        wrong = f"it has {sum(counts)} of {model.num_layers} layers"
    if wrong:
        args.refuse(f"{name} {args.text(name)[:100]}: {wrong}", name, code="vpp_layout")
        return 1, {}
    vpp = len(counts) // pp
    if vpp == 1:
        return vpp, {"stage_layers": tuple(counts)}
    return vpp, layout_fields("interleaved-1f1b", pp, vpp, tuple(counts))
