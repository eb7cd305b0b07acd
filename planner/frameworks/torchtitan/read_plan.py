"""What a torchtitan configuration says of the training and of the plan."""

from __future__ import annotations

from typing import Any

from cost_models.plans import ParallelPlan
from cost_models.schedules import SCHEDULES as OURS
from cost_models.spec import ModelSpec, TrainingSpec
from planner.frameworks.reading import Unreadable
from planner.frameworks.torch_schedules import SCHEDULES
from planner.frameworks.torchtitan.rules import ATTENTION, DISPATCHERS
from planner.frameworks.torchtitan.told import Told, value_shown
from planner.frameworks.torchtitan.tree import Architecture
from planner.frameworks.torchtitan.values import Call
from planner.search.layouts import layout_fields

_OURS_OF = {theirs.lower(): ours for ours, theirs in SCHEDULES.items()}
_KERNELS = {theirs: ours for ours, theirs in ATTENTION.items()}
_DISPATCHERS = {theirs: ours for ours, theirs in DISPATCHERS.items()}
_RECIPES = {"tensorwise": "tensorwise"}  # up to 0.2.2; the others are by rows
MAX_PARTS = 4096
_SINGLE = ("1f1b", "gpipe")


def plan_and_training(
    told: Told, architecture: Architecture, model: ModelSpec, world: int
) -> tuple[ParallelPlan, TrainingSpec]:
    tp, cp = told.degree("tensor_parallel_degree"), told.degree("context_parallel_degree")
    pp, ep = told.degree("pipeline_parallel_degree"), told.degree("expert_parallel_degree")
    replicate = told.degree("data_parallel_replicate_degree")
    shard = _shard(told, world // (replicate * cp * tp * pp))
    if replicate * shard * cp * tp * pp != world:
        told.refuse(
            f"dp_replicate {replicate} x dp_shard {shard} x cp {cp} x tp {tp} x pp {pp} is not the "
            f"{world} accelerators",
            "parallelism.data_parallel_shard_degree",
            "world_size",
        )
    dp, sharded = replicate * shard, shard * cp > 1
    experts = model.moe is not None
    if not experts and ep > 1:
        told.assume(f"expert_parallel_degree {ep} has no effect without experts")
        ep = 1
    micro, batch = _batch(told, dp, pp)
    schedule, vpp, split = _pipeline(told, model, pp)
    compiled = bool(told.get("compile.enable"))
    components = told.get("compile.components") if compiled else []
    asynchronous = bool(told.get("compile.enable_async_tensor_parallel"))
    if asynchronous and "model" not in components:
        told.refuse(
            "asynchronous tensor parallelism needs compile.enable and 'model' in its components",
            "compile.enable_async_tensor_parallel",
        )
        asynchronous = False
    _graphs(told, architecture, pp, ep)
    sequence = bool(told.get("parallelism.enable_sequence_parallel")) and tp > 1
    plan = ParallelPlan(
        runtime="torch",
        tp=tp,
        sequence_parallel=sequence,
        cp=cp,
        cp_kind="all_gather",
        pp=pp,
        vpp=vpp,
        dp=dp,
        dp_shard=shard * cp if sharded and replicate > 1 else 0,
        ep=ep,
        etp=tp if experts and ep == 1 else 1,
        zero_stage=3 if sharded else 0,
        reshard_after_forward=_reshards(told, pp) if sharded else True,
        micro_batch_size=micro,
        schedule=schedule,
        offload_optimizer=bool(told.get("training.enable_cpu_offload")),
        attention_kernel=_kernel(told, architecture),
        cross_entropy="fused" if "loss" in components else "unfused",
        moe_dispatcher=_dispatcher(told, architecture) if experts else "alltoall",
        overlap_grad_reduce=pp == 1,
        overlap_tp=asynchronous and tp > 1,
        compile="model" in components,
        **_checkpoints(told),
        **split,
    )
    return plan, _training(told, architecture, batch, pp)


def _shard(told: Told, left: int) -> int:
    """Ranks that share the weights; -1: all that are left."""
    shard = int(told.get("parallelism.data_parallel_shard_degree"))
    if shard == -1:
        return max(left, 1)
    if shard < 1:
        told.refuse(
            f"data_parallel_shard_degree is {shard}; -1 or at least 1 is needed",
            "parallelism.data_parallel_shard_degree",
        )
    return max(shard, 1)


def _batch(told: Told, dp: int, pp: int) -> tuple[int, int]:
    """(micro-batch, global batch)."""
    local = int(told.get("training.local_batch_size"))
    micro = int(told.get("parallelism.pipeline_parallel_microbatch_size"))
    batch = int(told.get("training.global_batch_size"))
    if local < 1:
        told.refuse(f"local_batch_size is {local}", "training.local_batch_size")
        local = 1
    if micro < 1:
        name = "parallelism.pipeline_parallel_microbatch_size"
        told.refuse("pipeline_parallel_microbatch_size must be greater than 0", name)
        micro = 1
    if batch < 0:
        batch = local * dp
    if batch < 1 or batch % (local * dp):
        told.refuse(
            f"global batch {batch} is not a multiple of local batch {local} x dp {dp}",
            "training.global_batch_size",
            "batch_identity",
        )
        batch = local * dp
    if pp == 1:
        return local, batch
    if local % micro:
        told.refuse(
            f"local batch {local} is not a multiple of pipeline micro-batches of {micro}",
            "training.local_batch_size",
            "batch_identity",
        )
        micro = 1
    if batch > local * dp:
        told.assume(f"{batch // (local * dp)} passes of the pipeline per step are costed as one")
    return micro, batch


def _reshards(told: Told, pp: int) -> bool:
    policy = told.get("parallelism.fsdp_reshard_after_forward")
    if policy not in ("default", "always", "never"):
        told.refuse(f"fsdp_reshard_after_forward cannot be {policy!r}")
    if policy == "always" and pp == 1:
        told.assume("the head is gathered again for the backward pass, which is not costed")
    return bool(policy == "always" or (policy == "default" and pp == 1))


def _graphs(told: Told, architecture: Architecture, pp: int, ep: int) -> None:
    """CUDA graphs, which are on by default and go with little."""
    name = "training.disable_cuda_graphs"
    if told.get(name):
        return
    if pp > 1:
        told.refuse("CUDA graphs do not support pipelines: set disable_cuda_graphs", name)
    elif ep > 1 and architecture.dispatcher in _DISPATCHERS:
        told.refuse(
            f"CUDA graphs do not support experts' {architecture.dispatcher} dispatcher: set "
            "disable_cuda_graphs",
            name,
        )
    else:
        told.assume("CUDA graphs are not costed: kernels are taken as launched one by one")


def _kernel(told: Told, architecture: Architecture) -> Any:
    name = architecture.attention
    if name not in _KERNELS:
        told.assume(f"attention {name} is costed as flash-attention")
    return _KERNELS.get(name, "flash")


def _dispatcher(told: Told, architecture: Architecture) -> Any:
    name = architecture.dispatcher
    if name not in _DISPATCHERS:
        told.assume(f"the {name} dispatcher is costed as DeepEP")
    return _DISPATCHERS.get(name, "deepep")


def _checkpoints(told: Told) -> dict[str, Any]:
    """The recompute fields."""
    found = told.config.kwargs.get("activation_checkpoint", Call("SelectiveAC.Config", 0))
    selective = {"recompute": "selective", "recompute_modules": ("op",)}
    if found is None:
        return {"recompute_method": "uniform"}
    name = found.short if isinstance(found, Call) else ""
    if name == "FullAC.Config":
        return {"recompute": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    if name != "SelectiveAC.Config":
        told.assume(f"activation_checkpoint {value_shown(found)} is costed as SelectiveAC")
    return selective


def _training(told: Told, architecture: Architecture, batch: int, pp: int) -> TrainingSpec:
    stored = told.get("training.dtype")
    master = "none" if stored == "bfloat16" else "fp32"
    optimizer = told.config.kwargs.get("optimizer")
    kind = optimizer.kwargs.get("implementation") if isinstance(optimizer, Call) else None
    narrow = master == "none" or kind == "fused_opt_states_bf16"
    if told.get("training.mixed_precision_param") != "bfloat16":
        told.assume("computation in float32 is costed as bf16")
    told.get("training.mixed_precision_reduce")
    loss = told.config.kwargs.get("loss")
    if isinstance(loss, Call) and loss.short == "ChunkedLossWrapper.Config":
        told.assume("the loss works in chunks of the sequence: less memory than is costed")
    if told.get("parallelism.spmd_backend") == "spmd_types":
        told.assume("spmd_backend spmd_types, the default, needs a torch newer than 2.13")
    balancer = told.get("parallelism.context_parallel_load_balancer")
    if balancer != "headtail":
        told.assume(f"context parallelism balanced by {balancer} is costed as by head and tail")
    return TrainingSpec(
        seq_length=told.get("training.seq_len"),
        global_batch_size=batch,
        master_weights_dtype=master,
        optimizer_state_dtype="bf16" if narrow else "fp32",
        gradient_dtype="fp32" if master == "fp32" or pp > 1 else "bf16",
        **_precision(told, architecture),
    )


def _precision(told: Told, architecture: Architecture) -> dict[str, Any]:
    names = {one.short.removesuffix(".Config"): one for one in architecture.converters}
    if "NVFP4LinearConverter" in names:
        return {"precision": "fp4"}
    if "MXFP8LinearConverter" in names:
        return {"precision": "fp8", "fp8_recipe": "mxfp8"}
    if "Float8LinearConverter" in names:
        recipe = names["Float8LinearConverter"].kwargs.get("recipe_name", "rowwise")
        return {"precision": "fp8", "fp8_recipe": _RECIPES.get(recipe, "rowwise")}
    for name in sorted(names):
        told.assume(f"converter {name} is not costed")
    return {}


def _pipeline(told: Told, model: ModelSpec, pp: int) -> tuple[Any, int, dict[str, Any]]:
    """(schedule, chunks per stage, the fields that say how layers are split)."""
    if pp == 1:
        return "1f1b", 1, {}
    name = str(told.get("parallelism.pipeline_parallel_schedule"))
    if told.get("parallelism.pipeline_parallel_schedule_csv"):
        told.assume(f"the schedule of one's own (csv) is costed as {name}")
    schedule = _OURS_OF.get(name.lower())
    if schedule is None:
        known = ", ".join(SCHEDULES.values())
        told.refuse(
            f"torch has no schedule {name!r}; it has {known}",
            "parallelism.pipeline_parallel_schedule",
        )
        schedule = "1f1b"
    sizes = _sizes(told, model, pp, schedule)
    if not sizes:
        return schedule, _chunks(schedule), {}
    if len(sizes) % pp:
        told.refuse(f"{len(sizes)} model parts do not divide over pp {pp}", _PARTS, "vpp_layout")
        return schedule, _chunks(schedule), {}
    vpp = len(sizes) // pp
    counts = OURS[schedule].chunk_counts
    if vpp not in counts if counts else vpp < 2:
        wanted = " or ".join(map(str, counts)) or "2 or more"
        told.refuse(
            f"{SCHEDULES[schedule]} has {wanted} parts per stage, not {vpp}", _PARTS, "vpp_layout"
        )
        return schedule, _chunks(schedule), {}
    if sum(sizes) != model.num_layers or min(sizes[1:-1], default=1) < 1:
        told.refuse(
            f"the model parts of {', '.join(map(str, sizes))} layers do not hold the model's "
            f"{model.num_layers}, or an inner one is empty",
            _PARTS,
            "layers_not_divisible",
        )
        return schedule, vpp, {}
    return schedule, vpp, layout_fields(schedule, pp, vpp, tuple(sizes))


_PARTS = "parallelism.module_fqns_per_model_part"


def _chunks(schedule: str) -> int:
    return 1 if schedule in _SINGLE else 2


def _sizes(told: Told, model: ModelSpec, pp: int, schedule: str) -> list[int]:
    """Layers of every model part, as given or as torchtitan would deal them out."""
    parts = told.get(_PARTS)
    first = int(told.get("parallelism.pipeline_parallel_first_stage_less_layers"))
    last = int(told.get("parallelism.pipeline_parallel_last_stage_less_layers"))
    per_stage = told.get("parallelism.pipeline_parallel_layers_per_stage")
    if parts is not None:
        return _given(told, parts, model)
    total = model.num_layers + first + last
    count = pp * _chunks(schedule)
    if isinstance(per_stage, int) and per_stage > 0:
        count = -(-total // per_stage)
    if not pp <= count <= MAX_PARTS or min(first, last) < 0 or max(first, last) > total // count:
        told.refuse(
            f"{model.num_layers} layers, {first} less at the start and {last} at the end, do not "
            f"make {count} model parts",
            "parallelism.pipeline_parallel_layers_per_stage",
            "layers_not_divisible",
        )
        return []
    low, extra = divmod(total, count)
    sizes = [low + (index < extra) for index in range(count)]
    sizes[0] -= first
    sizes[-1] -= last
    told.assume(
        f"torchtitan deals out {', '.join(map(str, sizes))} layers to its {count} model parts: "
        f"embedding and head weigh {first} and {last} layers"
    )
    return sizes


def _given(told: Told, parts: Any, model: ModelSpec) -> list[int]:
    """Layers of each part of module_fqns_per_model_part."""
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        raise Unreadable(f"{_PARTS} must be a list of lists of names", told.file)
    names = [str(name) for part in parts for name in part]
    layers = [name for name in names if name.startswith("layers.")]
    if layers != [f"layers.{i}" for i in range(model.num_layers)]:
        told.refuse(
            f"the model parts name {len(layers)} layers, not 0 to {model.num_layers - 1} in order",
            _PARTS,
            "layers_not_divisible",
        )
    lost = [name for name in ("tok_embeddings", "norm", "lm_head") if name not in names]
    if lost:
        told.refuse(f"no model part names {', '.join(lost)}", _PARTS, "layers_not_divisible")
    return [sum(str(name).startswith("layers.") for name in part) for part in parts]
