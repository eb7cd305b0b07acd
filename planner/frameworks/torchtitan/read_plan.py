"""The plan and the training spec of a torchtitan configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cost_models.plans import ParallelPlan
from cost_models.schedules import SCHEDULES as OURS
from cost_models.spec import ModelSpec, TrainingSpec
from planner.constraints.layout_fields import layout_fields
from planner.frameworks.python.static_values import Call
from planner.frameworks.read_results import Unreadable
from planner.frameworks.torch_schedules import SCHEDULES
from planner.frameworks.torchtitan.read_model import Architecture
from planner.frameworks.torchtitan.rules import ATTENTION, DISPATCHERS
from planner.frameworks.torchtitan.trainer_settings import TrainerSettings, value_shown

_OURS_OF = {theirs.lower(): ours for ours, theirs in SCHEDULES.items()}
_KERNELS = {theirs: ours for ours, theirs in ATTENTION.items()}
_DISPATCHERS = {theirs: ours for ours, theirs in DISPATCHERS.items()}
_RECIPES = {"tensorwise": "tensorwise"}  # up to 0.2.2; other recipes are read as rowwise
MAX_PARTS = 4096
_SINGLE = ("1f1b", "gpipe")


def plan_and_training(
    trainer: TrainerSettings, architecture: Architecture, model: ModelSpec, world: int
) -> tuple[ParallelPlan, TrainingSpec]:
    tp, cp = trainer.degree("tensor_parallel_degree"), trainer.degree("context_parallel_degree")
    pp, ep = trainer.degree("pipeline_parallel_degree"), trainer.degree("expert_parallel_degree")
    replicate = trainer.degree("data_parallel_replicate_degree")
    shard = _shard(trainer, world // (replicate * cp * tp * pp))
    if replicate * shard * cp * tp * pp != world:
        trainer.refuse(
            f"dp_replicate {replicate} x dp_shard {shard} x cp {cp} x tp {tp} x pp {pp} is not the "
            f"{world} accelerators",
            "parallelism.data_parallel_shard_degree",
            "world_size",
        )
    dp, sharded = replicate * shard, shard * cp > 1
    experts = model.moe is not None
    if not experts and ep > 1:
        trainer.assume(f"expert_parallel_degree {ep} has no effect without experts")
        ep = 1
    micro, batch = _batch(trainer, dp, pp)
    schedule, vpp, split = _pipeline(trainer, model, pp)
    compiled = bool(trainer.get("compile.enable"))
    components = trainer.get("compile.components") if compiled else []
    asynchronous = _asynchronous(trainer, components)
    _graphs(trainer, architecture, pp, ep)
    sequence = bool(trainer.get("parallelism.enable_sequence_parallel")) and tp > 1
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
        reshard_after_forward=_reshards(trainer, pp) if sharded else True,
        micro_batch_size=micro,
        schedule=schedule,
        offload_optimizer=bool(trainer.get("training.enable_cpu_offload")),
        attention_kernel=_kernel(trainer, architecture),
        cross_entropy="fused" if "loss" in components else "unfused",
        moe_dispatcher=_dispatcher(trainer, architecture) if experts else "alltoall",
        overlap_grad_reduce=pp == 1,
        overlap_tp=asynchronous and tp > 1,
        compile="model" in components,
        **_checkpoints(trainer),
        **split,
    )
    return plan, _training(trainer, architecture, batch, pp)


def _asynchronous(trainer: TrainerSettings, components: Sequence[str]) -> bool:
    name = "compile.enable_async_tensor_parallel"
    asked = bool(trainer.get(name))
    if asked and "model" not in components:
        text = "asynchronous tensor parallelism needs compile.enable and 'model' in its components"
        trainer.refuse(text, name)
        return False
    return asked


def _shard(trainer: TrainerSettings, left: int) -> int:
    """Ranks that share one copy of the weights; a setting of -1 means all that remain."""
    shard = int(trainer.get("parallelism.data_parallel_shard_degree"))
    if shard == -1:
        return max(left, 1)
    if shard < 1:
        trainer.refuse(
            f"data_parallel_shard_degree is {shard}, must be -1 or at least 1",
            "parallelism.data_parallel_shard_degree",
        )
    return max(shard, 1)


def _batch(trainer: TrainerSettings, dp: int, pp: int) -> tuple[int, int]:
    """(micro-batch, global batch)."""
    local = int(trainer.get("training.local_batch_size"))
    micro = int(trainer.get("parallelism.pipeline_parallel_microbatch_size"))
    batch = int(trainer.get("training.global_batch_size"))
    if local < 1:
        trainer.refuse(
            f"local_batch_size is {local}, must be at least 1", "training.local_batch_size"
        )
        local = 1
    if micro < 1:
        name = "parallelism.pipeline_parallel_microbatch_size"
        trainer.refuse("pipeline_parallel_microbatch_size must be greater than 0", name)
        micro = 1
    if batch < 0:
        batch = local * dp
    if batch < 1 or batch % (local * dp):
        trainer.refuse(
            f"global batch {batch} is not a multiple of local batch {local} x dp {dp}",
            "training.global_batch_size",
            "batch_identity",
        )
        batch = local * dp
    if pp == 1:
        return local, batch
    if local % micro:
        trainer.refuse(
            f"local batch {local} is not a multiple of pipeline micro-batches of {micro}",
            "training.local_batch_size",
            "batch_identity",
        )
        micro = 1
    if batch > local * dp:
        trainer.assume(f"{batch // (local * dp)} passes of the pipeline per step are costed as one")
    return micro, batch


def _reshards(trainer: TrainerSettings, pp: int) -> bool:
    policy = trainer.get("parallelism.fsdp_reshard_after_forward")
    if policy not in ("default", "always", "never"):
        trainer.refuse(f"fsdp_reshard_after_forward cannot be {policy!r}")
    if policy == "always" and pp == 1:
        trainer.assume(
            "the output layer is gathered again for the backward pass, which is not costed"
        )
    return bool(policy == "always" or (policy == "default" and pp == 1))


def _graphs(trainer: TrainerSettings, architecture: Architecture, pp: int, ep: int) -> None:
    """Refuse CUDA graphs, which are on by default, if unsupported; else note them as not costed."""
    name = "training.disable_cuda_graphs"
    if trainer.get(name):
        return
    if pp > 1:
        trainer.refuse("CUDA graphs do not support pipelines: set disable_cuda_graphs", name)
    elif ep > 1 and architecture.dispatcher in _DISPATCHERS:
        trainer.refuse(
            f"CUDA graphs do not support experts' {architecture.dispatcher} dispatcher: set "
            "disable_cuda_graphs",
            name,
        )
    else:
        trainer.assume("CUDA graphs are not costed: kernels count as launched one by one")


def _kernel(trainer: TrainerSettings, architecture: Architecture) -> Any:
    name = architecture.attention
    if name not in _KERNELS:
        trainer.assume(f"attention {name} is costed as flash-attention")
    return _KERNELS.get(name, "flash")


def _dispatcher(trainer: TrainerSettings, architecture: Architecture) -> Any:
    name = architecture.dispatcher
    if name not in _DISPATCHERS:
        trainer.assume(f"the {name} dispatcher is costed as DeepEP")
    return _DISPATCHERS.get(name, "deepep")


def _checkpoints(trainer: TrainerSettings) -> dict[str, Any]:
    """The recompute fields."""
    found = trainer.config.kwargs.get("activation_checkpoint", Call("SelectiveAC.Config", 0))
    selective = {"recompute": "selective", "recompute_modules": ("op",)}
    if found is None:
        return {"recompute_method": "uniform"}
    name = found.short if isinstance(found, Call) else ""
    if name == "FullAC.Config":
        return {"recompute": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    if name != "SelectiveAC.Config":
        trainer.assume(f"activation_checkpoint {value_shown(found)} is costed as SelectiveAC")
    return selective


def _training(
    trainer: TrainerSettings, architecture: Architecture, batch: int, pp: int
) -> TrainingSpec:
    stored = trainer.get("training.dtype")
    master = "none" if stored == "bfloat16" else "fp32"
    optimizer = trainer.config.kwargs.get("optimizer")
    kind = optimizer.kwargs.get("implementation") if isinstance(optimizer, Call) else None
    narrow = master == "none" or kind == "fused_opt_states_bf16"
    if trainer.get("training.mixed_precision_param") != "bfloat16":
        trainer.assume("computation in float32 is costed as bf16")
    trainer.get("training.mixed_precision_reduce")
    loss = trainer.config.kwargs.get("loss")
    if isinstance(loss, Call) and loss.short == "ChunkedLossWrapper.Config":
        trainer.assume("the loss is computed in chunks of the sequence: less memory than costed")
    if trainer.get("parallelism.spmd_backend") == "spmd_types":
        trainer.assume("spmd_backend spmd_types, the default, needs a torch newer than 2.13")
    balancer = trainer.get("parallelism.context_parallel_load_balancer")
    if balancer != "headtail":
        trainer.assume(f"context parallelism balanced by {balancer} is costed as headtail")
    return TrainingSpec(
        seq_length=trainer.get("training.seq_len"),
        global_batch_size=batch,
        master_weights_dtype=master,
        optimizer_state_dtype="bf16" if narrow else "fp32",
        gradient_dtype="fp32" if master == "fp32" or pp > 1 else "bf16",
        **_precision(trainer, architecture),
    )


def _precision(trainer: TrainerSettings, architecture: Architecture) -> dict[str, Any]:
    names = {one.short.removesuffix(".Config"): one for one in architecture.converters}
    if "NVFP4LinearConverter" in names:
        return {"precision": "fp4"}
    if "MXFP8LinearConverter" in names:
        return {"precision": "fp8", "fp8_recipe": "mxfp8"}
    if "Float8LinearConverter" in names:
        recipe = names["Float8LinearConverter"].kwargs.get("recipe_name", "rowwise")
        return {"precision": "fp8", "fp8_recipe": _RECIPES.get(recipe, "rowwise")}
    for name in sorted(names):
        trainer.assume(f"converter {name} is not costed")
    return {}


def _pipeline(
    trainer: TrainerSettings, model: ModelSpec, pp: int
) -> tuple[Any, int, dict[str, Any]]:
    """(schedule, chunks per stage, plan fields of the layer split)."""
    if pp == 1:
        return "1f1b", 1, {}
    name = str(trainer.get("parallelism.pipeline_parallel_schedule"))
    if trainer.get("parallelism.pipeline_parallel_schedule_csv"):
        trainer.assume(f"the custom schedule (csv) is costed as {name}")
    schedule = _OURS_OF.get(name.lower())
    if schedule is None:
        known = ", ".join(SCHEDULES.values())
        trainer.refuse(
            f"torch has no schedule {name!r}; it has {known}",
            "parallelism.pipeline_parallel_schedule",
        )
        schedule = "1f1b"
    sizes = _sizes(trainer, model, pp, schedule)
    if not sizes:
        return schedule, _chunks(schedule), {}
    if len(sizes) % pp:
        trainer.refuse(f"{len(sizes)} model parts do not divide over pp {pp}", _PARTS, "vpp_layout")
        return schedule, _chunks(schedule), {}
    vpp = len(sizes) // pp
    counts = OURS[schedule].chunk_counts
    if vpp not in counts if counts else vpp < 2:
        wanted = " or ".join(map(str, counts)) or "2 or more"
        trainer.refuse(
            f"{SCHEDULES[schedule]} has {wanted} parts per stage, not {vpp}", _PARTS, "vpp_layout"
        )
        return schedule, _chunks(schedule), {}
    if sum(sizes) != model.num_layers or min(sizes[1:-1], default=1) < 1:
        trainer.refuse(
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


def _sizes(trainer: TrainerSettings, model: ModelSpec, pp: int, schedule: str) -> list[int]:
    """Layers of every model part, as given or as torchtitan would distribute them."""
    parts = trainer.get(_PARTS)
    first = int(trainer.get("parallelism.pipeline_parallel_first_stage_less_layers"))
    last = int(trainer.get("parallelism.pipeline_parallel_last_stage_less_layers"))
    per_stage = trainer.get("parallelism.pipeline_parallel_layers_per_stage")
    if parts is not None:
        return _given(trainer, parts, model)
    total = model.num_layers + first + last
    count = pp * _chunks(schedule)
    if isinstance(per_stage, int) and per_stage > 0:
        count = -(-total // per_stage)
    if not pp <= count <= MAX_PARTS or min(first, last) < 0 or max(first, last) > total // count:
        trainer.refuse(
            f"{model.num_layers} layers, {first} fewer at the start and {last} at the end, cannot "
            f"be split into {count} model parts",
            "parallelism.pipeline_parallel_layers_per_stage",
            "layers_not_divisible",
        )
        return []
    low, extra = divmod(total, count)
    sizes = [low + (index < extra) for index in range(count)]
    sizes[0] -= first
    sizes[-1] -= last
    trainer.assume(
        f"torchtitan distributes {', '.join(map(str, sizes))} layers to its {count} model parts: "
        f"embedding and head count as {first} and {last} layers"
    )
    return sizes


def _given(trainer: TrainerSettings, parts: Any, model: ModelSpec) -> list[int]:
    """Layers of each part of module_fqns_per_model_part."""
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        raise Unreadable(f"{_PARTS} must be a list of lists of names", trainer.file)
    names = [str(name) for part in parts for name in part]
    layers = [name for name in names if name.startswith("layers.")]
    if layers != [f"layers.{i}" for i in range(model.num_layers)]:
        trainer.refuse(
            f"the model parts name {len(layers)} layers, not 0 to {model.num_layers - 1} in order",
            _PARTS,
            "layers_not_divisible",
        )
    lost = [name for name in ("tok_embeddings", "norm", "lm_head") if name not in names]
    if lost:
        trainer.refuse(f"no model part names {', '.join(lost)}", _PARTS, "layers_not_divisible")
    return [sum(str(name).startswith("layers.") for name in part) for part in parts]
