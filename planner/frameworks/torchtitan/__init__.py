"""torchtitan: a registry module (Python) with the model and every setting, and a launch script.

Written for torchtitan 0.3.0, which is configured by a function that returns Trainer.Config.  Up to
0.2.2 it read TOML; its main branch since August 2026 counts batches in tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.blocks.delta_net import GatedDeltaNet
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner.constraints import Context
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import unwritten_facts
from planner.frameworks.base import Bundle, cannot, flag, says
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.rules import train_iterations
from planner.frameworks.torch_schedules import SCHEDULES
from planner.frameworks.torchtitan import numerics, reader
from planner.frameworks.torchtitan.module import module
from planner.frameworks.torchtitan.rules import ATTENTION, DISPATCHERS, RULES
from planner.frameworks.torchtitan.settings import environment, settings
from planner.frameworks.unwritten_facts import Uncarried, mixture, uncarried

VERSIONS = "0.3.0 with torch 2.13"
MODULE = "plan_config"

FIELDS = {
    "tp": says("parallelism.tensor_parallel_degree"),
    "sequence_parallel": says("parallelism.enable_sequence_parallel"),
    "cp": says("parallelism.context_parallel_degree"),
    "cp_kind": cannot("keys and values are gathered (all_gather)", "all_gather"),
    "dynamic_cp": cannot("every sequence is split over all cp ranks", False),
    "pp": says("parallelism.pipeline_parallel_degree"),
    "vpp": says("parallelism.module_fqns_per_model_part"),
    "dp": says(
        "parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree"
    ),
    "dp_shard": says("parallelism.data_parallel_shard_degree", note="times cp"),
    "ep": says("parallelism.expert_parallel_degree"),
    "etp": cannot("experts are split over tp without expert parallelism, and not with it"),
    "zero_stage": says(
        "parallelism.data_parallel_shard_degree",
        note="3: more than one rank per shard group; or 0",
        only=(3, 0),
    ),
    "reshard_after_forward": says("parallelism.fsdp_reshard_after_forward"),
    "micro_batch_size": says(
        "training.local_batch_size", "parallelism.pipeline_parallel_microbatch_size"
    ),
    "recompute": says("activation_checkpoint"),
    "recompute_modules": says("activation_checkpoint", note="op: SelectiveAC", only=(("op",),)),
    "recompute_method": cannot(
        "full recompute has one layer per checkpoint (uniform, 1)", "uniform"
    ),
    "recompute_num_layers": cannot("full recompute has one layer per checkpoint (uniform, 1)", 1),
    "recompute_layers": cannot("activation_checkpoint is the same on every stage", ()),
    "schedule": says("parallelism.pipeline_parallel_schedule", only=tuple(SCHEDULES)),
    "first_stage_layers": says("parallelism.module_fqns_per_model_part"),
    "last_stage_layers": says("parallelism.module_fqns_per_model_part"),
    "stage_layers": says("parallelism.module_fqns_per_model_part"),
    "rank_order": cannot("pp is the outermost axis of its mesh", "tp-cp-ep-dp-pp"),
    "offload_optimizer": says("training.enable_cpu_offload", note="all FSDP shards are offloaded"),
    "offload_activations": cannot("the trainer does not offload activations", False),
    "offload_num_layers": cannot("the trainer does not offload activations"),
    "attention_kernel": says(
        "attn_backend", note="flash: flex, flash2: varlen", only=tuple(ATTENTION)
    ),
    "cross_entropy": says(
        "compile.components", note="fused: components include loss", only=("unfused", "fused")
    ),
    "moe_dispatcher": says("moe_comm_backend", only=tuple(DISPATCHERS)),
    "overlap_grad_reduce": cannot("always on without a pipeline, off with one"),
    "overlap_param_gather": cannot("FSDP always prefetches weights", True),
    "overlap_tp": says("compile.enable_async_tensor_parallel"),
    "overlap_p2p": cannot(
        "schedules with several chunks always overlap messages, others never", True
    ),
    "overlap_ep": cannot("expert-parallel communication is not overlapped", False),
    "runtime": cannot("torchtitan is itself the runtime", "torch"),
    "compile": says("compile.enable", "compile.components"),
}

UNWRITTEN = (
    uncarried("norm_epsilon", "DEFAULTS.norm_eps (1e-5)"),
    uncarried("rope_theta", "DEFAULTS.rope_theta (10000)"),
    uncarried("rope_scaling", "rope(): scaling, rope_factor and others (none)"),
    uncarried("activation", "SwiGLU, in gpt_oss with its limits"),
    Uncarried(
        "router scores and their factor", "DEFAULTS.score_func, route_norm, route_scale", mixture
    ),
    uncarried("mtp_loss", "DEFAULTS.mtp_scale (0.3)"),
    uncarried("init_std", "DEFAULTS.init_std (0.02)"),
    uncarried("multipliers", "no option"),
)


LAUNCH = Launch("torchtitan", "torchtitan", VERSIONS, __name__)
GENERATION = Note(
    code="torchtitan_generation",
    text="For torchtitan 0.3.0. Up to 0.2.2 it reads TOML, and since August 2026 its main branch "
    "counts batches in tokens: neither takes this module.",
)


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The registry module and the script that trains with it."""
    c = Context(request.model, request.cluster, request.training)
    said = settings(c, plan)
    arguments = (
        flag("TRAIN_ARGS", "--module", MODULE, "the registry module beside this script"),
        flag("TRAIN_ARGS", "--config", "config", "function of that module"),
        train_iterations("TRAIN_ARGS", c.training, "--training.steps"),
    )
    missing = unwritten_facts.of(c.model, UNWRITTEN, numerics.numerics_fields(c.model))
    head, comments = LAUNCH.head(request, plan), unwritten_facts.comments(missing)
    return LAUNCH.bundle(
        request,
        plan,
        missing,
        arguments,
        environment(),
        (*arguments, *said),
        (GENERATION,),
        {f"{MODULE}.py": module(c, said, head, comments)},
    )


def _lacks(model: ModelSpec) -> Iterator[str]:
    """Why a model that torchtitan has cannot be built by the registry module."""
    if any(isinstance(block, GatedDeltaNet) for layer in model.layer_pattern for block in layer):
        yield "its qwen3_5 has gated delta nets, but only with an image encoder"


FRAMEWORK = LAUNCH.framework(
    RULES,
    FIELDS,
    render,
    reader,
    choices={
        "overlap_grad_reduce": (True, False),
        "overlap_tp": (False, True),
        "compile": (False, True),
    },
    trains_all="the registry module trains all weights, without a LoRAConverter",
    lacks=_lacks,
)
