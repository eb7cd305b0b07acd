"""MaxText: one YAML over its base.yml, on TPUs and on GPUs."""

from __future__ import annotations

from cost_models.plans import ParallelPlan
from planner.constraints import Context
from planner.documents.request import PlanRequest
from planner.frameworks import bash_writer, unwritten_facts
from planner.frameworks.base import Bundle, Field, Flag, cannot, flag, says
from planner.frameworks.launch_bundle import Launch, mock_data
from planner.frameworks.maxtext import reader
from planner.frameworks.maxtext.mesh import TPU, on_tpus
from planner.frameworks.maxtext.reader import PROGRAM
from planner.frameworks.maxtext.rules import RULES, lacks
from planner.frameworks.maxtext.settings import numerics_fields, rows
from planner.frameworks.unwritten_facts import uncarried

VERSIONS = "main of August 2026 (e591f30)"
CONFIG = "config.yml"

STEP = "XLA schedules the whole step"
LOOP = "its pipeline, a loop in lockstep, is not one of the planned schedules"
FIELDS: dict[str, Field] = {
    "tp": says("ici_tensor_sequence_parallelism"),
    "sequence_parallel": says("ici_tensor_sequence_parallelism", note="always on with tp"),
    "cp": says("ici_context_parallelism"),
    "cp_kind": says(
        "context_parallel_strategy",
        note="others need Tokamax's kernels, which are not costed",
        only=("all_gather",),
    ),
    "dynamic_cp": cannot("every sequence is split over all cp ranks", False),
    "pp": cannot(LOOP, 1),
    "vpp": cannot(LOOP),
    "dp": says("ici_data_parallelism", "ici_fsdp_parallelism", "dcn_data_parallelism"),
    "dp_shard": says("ici_fsdp_parallelism", "dcn_fsdp_parallelism"),
    "ep": says("ici_expert_parallelism"),
    "etp": cannot("experts are split like the other layers: etp is tp"),
    "zero_stage": says(
        "ici_fsdp_parallelism",
        "shard_optimizer_over_data",
        note="gradients are sharded only together with weights",
        only=(3, 1, 0),
    ),
    "reshard_after_forward": cannot("the loop over layers always frees gathered weights", True),
    "micro_batch_size": says("per_device_batch_size", "gradient_accumulation_steps"),
    "recompute": says("remat_policy"),
    "recompute_modules": says("remat_policy", note="op: save_dot_with_context_except_mlp"),
    "recompute_method": cannot("one policy for all layers, each one checkpoint", "block"),
    "recompute_num_layers": cannot("one policy for all layers"),
    "recompute_layers": cannot("one policy for all layers", ()),
    "schedule": cannot(LOOP),
    "first_stage_layers": cannot(LOOP),
    "last_stage_layers": cannot(LOOP),
    "stage_layers": cannot(LOOP, ()),
    "rank_order": cannot("the mesh is fixed: data, fsdp, context, tensor, expert, outermost first"),
    "offload_optimizer": says("optimizer_memory_host_offload"),
    "offload_activations": says("decoder_layer_input", note="with full recompute"),
    "offload_num_layers": cannot("activations of all layers are offloaded, or of none", 0),
    "attention_kernel": says(
        "attention", note="flash: splash attention, on GPUs cuDNN's", only=("flash", "unfused")
    ),
    "cross_entropy": cannot("the loss works on an fp32 copy of the logits", "unfused"),
    "moe_dispatcher": cannot("tokens are always dispatched by all-to-all", "alltoall"),
    "overlap_grad_reduce": cannot(STEP, True),
    "overlap_param_gather": cannot(STEP, True),
    "overlap_tp": cannot(STEP, False),
    "overlap_ep": cannot(STEP, False),
    "overlap_p2p": cannot(LOOP),
    "runtime": cannot("JAX is the runtime", "jax"),
    "compile": cannot("XLA compiles every step", True),
}
UNWRITTEN = (
    uncarried("norm_epsilon", "normalization_layer_epsilon (1e-5)"),
    uncarried("rope_theta", "rope_max_timescale (10000)"),
    uncarried("rotary_share", "no key"),
    uncarried("rope_scaling", "rope_type: llama3.1 (none)"),
    uncarried("activation", "mlp_activations (silu)"),
    uncarried("routed_scaling", "routed_scaling_factor (1.0)"),
    uncarried("balancing", "load_balance_loss_weight (0.0)"),
    uncarried("init_std", "dense_init_scale (1.0)"),
    uncarried("multipliers", "attn_logits_soft_cap, final_logits_soft_cap (0.0)"),
)
# Rendezvous of JAX's processes on GPUs; TPUs need no settings for it.
COORDINATOR = """\
export NNODES NODE_RANK
export JAX_COORDINATOR_IP="$MASTER_ADDR"
export JAX_COORDINATOR_PORT="$MASTER_PORT"\
"""
LAUNCH = Launch("maxtext", "MaxText", VERSIONS, __name__, mock_data(CONFIG))


def _environment(c: Context) -> tuple[Flag, ...]:
    if on_tpus(c.cluster):
        return ()
    name, why = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "memory fraction of JAX; the rest is for NCCL")
    return (flag("environment", name, 0.92, why),)


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The launch script and the config."""
    c = Context(request.model, request.cluster, request.training)
    variables = _environment(c)
    words = {"program": PROGRAM}
    if on_tpus(c.cluster):
        words["rendezvous"] = ""
    else:
        words["exports"] = "\n".join([COORDINATOR, *map(bash_writer.export, variables)])
    missing = unwritten_facts.of(c.model, UNWRITTEN, numerics_fields(c.model))
    return LAUNCH.with_config(
        request, plan, missing, CONFIG, list(rows(c, plan)), variables, words=words
    )


FRAMEWORK = LAUNCH.framework(
    RULES,
    FIELDS,
    render,
    reader,
    choices={"recompute": ("none", "full", "selective")},
    lacks=lacks,
    trains_all="its pre-trainer trains all weights: adapters need Tunix",
    training={"gradient_reduce_dtype": "bf16"},
    starts_on=(TPU,),
)
