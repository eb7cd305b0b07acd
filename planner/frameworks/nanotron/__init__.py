"""nanotron: one YAML for its `run_train.py`, launched with torchrun."""

from __future__ import annotations

from cost_models.balanced_layers import stages
from cost_models.plans import ParallelPlan
from planner.constraints import Context
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import unwritten_facts
from planner.frameworks.base import Bundle, Flag, cannot, flag, says
from planner.frameworks.launch_bundle import Launch, mock_data
from planner.frameworks.nanotron import reader
from planner.frameworks.nanotron.rules import RULES
from planner.frameworks.nanotron.settings import numerics_fields, rows
from planner.frameworks.unwritten_facts import Uncarried, mixture, uncarried

VERSIONS = "main of April 2026 (2411b02)"
CONFIG = "config.yaml"

BY_COST = "layers are distributed by cost; the plan must match"
FIELDS = {
    "tp": says("parallelism.tp"),
    "sequence_parallel": says("parallelism.tp_mode", note="REDUCE_SCATTER"),
    "cp": cannot("the trainer refuses random weights with context parallelism", 1),
    "cp_kind": cannot("the trainer refuses random weights with context parallelism"),
    "dynamic_cp": cannot("the trainer refuses random weights with context parallelism", False),
    "pp": says("parallelism.pp"),
    "vpp": cannot("its engines have one chunk of layers per stage", 1),
    "dp": says("parallelism.dp"),
    "dp_shard": cannot("states are sharded over all data-parallel ranks", 0),
    "ep": cannot("its rank grid is too small for expert_parallel_size > 1", 1),
    "etp": cannot("its rank grid is too small for expert_parallel_size > 1", 1),
    "zero_stage": says("optimizer.zero_stage", note="0, or 1 with bf16 gradients", only=(0, 1)),
    "reshard_after_forward": cannot("weights are never sharded over dp"),
    "micro_batch_size": says("tokens.micro_batch_size", "tokens.batch_accumulation_per_replica"),
    "recompute": says(
        "parallelism.recompute_layer", note="whole layers or none", only=("none", "full")
    ),
    "recompute_modules": cannot("whole layers are recomputed"),
    "recompute_method": cannot("each layer is one checkpoint", "block"),
    "recompute_num_layers": cannot("each layer is one checkpoint: all layers"),
    "recompute_layers": cannot("recompute_layer is the same on every stage", ()),
    "schedule": says(
        "parallelism.pp_engine", note="1f1b, or afab for gpipe", only=("1f1b", "gpipe")
    ),
    "first_stage_layers": cannot(BY_COST),
    "last_stage_layers": cannot(BY_COST),
    "stage_layers": cannot(BY_COST),
    "rank_order": cannot("the grid is fixed: tp, cp, dp, pp, innermost first", "tp-cp-ep-dp-pp"),
    "offload_optimizer": cannot("nothing is offloaded to the host", False),
    "offload_activations": cannot("nothing is offloaded to the host", False),
    "offload_num_layers": cannot("nothing is offloaded to the host"),
    "attention_kernel": cannot("flash-attention 2, whatever _attn_implementation says", "flash2"),
    "cross_entropy": cannot("the loss works on an fp32 copy of the logits", "unfused"),
    "moe_dispatcher": says(
        "model.model_config.moe_config.token_dispatcher_type", only=("alltoall", "allgather")
    ),
    "overlap_grad_reduce": cannot("gradients are always reduced during the backward pass", True),
    "overlap_param_gather": cannot("weights are gathered after the step", False),
    "overlap_tp": says("parallelism.tp_linear_async_communication"),
    "overlap_ep": cannot("experts are not split over ranks"),
    "overlap_p2p": cannot("messages between stages are not overlapped"),
    "runtime": cannot("nanotron is its own runtime", "nanotron"),
    "compile": cannot("nothing is compiled", False),
}


UNWRITTEN = (
    uncarried("norm_epsilon", "rms_norm_eps (1e-6)"),
    uncarried("rope_theta", "rope_theta (10000)"),
    uncarried("rope_scaling", "rope_seq_len_interpolation_factor (none)"),
    uncarried("no_rope", "no_rope_layer (none)"),
    uncarried("activation", "hidden_act (silu)"),
    uncarried("init_std", "model.init_method (0.02)"),
    Uncarried("router weights of the top-k experts", "not normalized: no key", mixture),
    uncarried("balancing", "none: router_aux_loss_coef is not read"),
)
LAUNCH = Launch("nanotron", "nanotron", VERSIONS, __name__, mock_data(CONFIG))
NEEDS = Note(
    code="needs",
    text="Every run needs flash-attn 2 and, experts or not, grouped_gemm "
    "(github.com/fanshiqing/grouped_gemm): nanotron imports both.",
)


def environment(plan: ParallelPlan) -> tuple[Flag, ...]:
    """Environment variables of the launch."""
    group = "environment"
    disabled = flag(group, "WANDB_MODE", "disabled", "otherwise an installed wandb logs in")
    if plan.tp == 1:
        return (disabled,)
    why = "required by tensor parallelism"
    return (flag(group, "CUDA_DEVICE_MAX_CONNECTIONS", 1, why), disabled)


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The launch script and the config."""
    c = Context(request.model, request.cluster, request.training)
    missing = unwritten_facts.of(c.model, UNWRITTEN, numerics_fields(c.model))
    keys = list(rows(c, plan))
    return LAUNCH.with_config(request, plan, missing, CONFIG, keys, environment(plan), (NEEDS,))


FRAMEWORK = LAUNCH.framework(
    RULES,
    FIELDS,
    render,
    reader,
    splits=stages,
    choices={"overlap_tp": (False, True)},
    trains_all="it trains all weights: no adapters, no frozen weights",
)
