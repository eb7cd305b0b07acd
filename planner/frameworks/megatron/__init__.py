"""Megatron-LM: one bash script that runs its training program under torchrun, on mock data."""

from __future__ import annotations

from dataclasses import replace

from cost_models.blocks.delta_net import GatedDeltaNet
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks.base import Bundle, Flag, cannot, flag, says
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.megatron import hybrid, numerics, patterns, reader
from planner.frameworks.megatron.flags import flags
from planner.frameworks.megatron.options import PLAN_FIELDS
from planner.frameworks.megatron.pattern_rules import sparse
from planner.frameworks.megatron.rules import RULES
from planner.frameworks.unwritten_facts import gated, rotary, uncarried, ungated

VERSIONS = "core 0.18 to main (0.20); the flags exist since 0.16"
# For models with gated delta nets or sparse attention, which core 0.18 builds differently.
EXPERIMENTAL = "core 0.19 to main (0.20)"

# Conditions under which the options of a field say it.
NOTES = {
    "cp_kind": "when cp > 1",
    "dynamic_cp": "when cp > 1, with --sft",
    "vpp": "of a hybrid model: --hybrid-layer-pattern",
    "dp_shard": "dp x cp / dp_shard",
    "zero_stage": "1: distributed optimizer; 2 and 3: Megatron-FSDP, without pipeline",
    "schedule": "interleaved with vpp > 1, else 1F1B",
    "stage_layers": "of a hybrid model: --hybrid-layer-pattern",
    "offload_activations": "without pipeline or recompute",
    "cross_entropy": "fused: native; in_place: te, which Megatron-LM disables",
    "overlap_param_gather": "when states are sharded",
    "overlap_p2p": "only interleaving overlaps",
}
FIELDS = {name: says(*names, note=NOTES.get(name, "")) for name, names in PLAN_FIELDS.items()} | {
    "dp": says("--nnodes", "--nproc_per_node", note="world size / (tp x cp x pp)"),
    "reshard_after_forward": cannot("Megatron-FSDP always frees gathered weights", True),
    "recompute_layers": cannot("--recompute-num-layers is the same on every stage", ()),
    "runtime": cannot("Megatron-LM is itself the runtime", "megatron"),
    "compile": cannot("its kernels are fused already, without torch.compile", False),
}


def _plain_rotary(model: ModelSpec) -> bool:
    return rotary(model) and model.mla is None


def _default_router_scores(model: ModelSpec) -> bool:
    """Whether the flags leave the router's scores at their default."""
    moe = model.moe
    return moe is not None and not moe.score_correction_bias and moe.top_k > 1


def environment(plan: ParallelPlan) -> tuple[Flag, ...]:
    """Environment variables that the flags need."""
    name, group = "CUDA_DEVICE_MAX_CONNECTIONS", "environment"
    if plan.zero_stage >= 2:
        return (flag(group, name, 8, "Megatron-FSDP refuses 1: gathers must not queue"),)
    if plan.tp > 1 or plan.cp > 1:
        return (flag(group, name, 1, "launches tp and cp traffic before kernels that hide it"),)
    return ()


UNWRITTEN = (
    uncarried("norm_epsilon", "--norm-epsilon (1e-5)"),
    uncarried("rope_theta", "--rotary-base (10000)"),
    uncarried("rotary_share", "--rotary-percent (1.0)", _plain_rotary),
    uncarried(
        "no_rope", "--no-rope-freq (none)", lambda m: _plain_rotary(m) and not m.layer_pattern
    ),
    uncarried(
        "rope_scaling", "--use-rope-scaling, --rope-scaling-factor: Llama 3's (none)", _plain_rotary
    ),
    uncarried(
        "rope_scaling",
        "YaRN's --rotary-scaling-factor (1.0), --mscale (1.0), --mscale-all-dim (0.0)",
        lambda m: rotary(m) and m.mla is not None,
    ),
    uncarried("activation", "--quick-geglu for --swiglu (SwiGLU)", gated),
    uncarried(
        "activation", "--squared-relu with --no-bias-gelu-fusion, --openai-gelu (GELU)", ungated
    ),
    uncarried("routed_scaling", "--moe-router-topk-scaling-factor (none)"),
    uncarried(
        "router_scores",
        "--moe-router-score-function, --moe-router-pre-softmax (softmax over the chosen experts)",
        _default_router_scores,
    ),
    uncarried("balancing", "--moe-router-load-balancing-type (aux_loss), --moe-aux-loss-coeff (0)"),
    uncarried("mtp_loss", "--mtp-loss-scaling-factor (0.1)"),
    uncarried("init_std", "--init-method-std (0.02)"),
    uncarried("multipliers", "no option"),
)


def versions(model: ModelSpec) -> str:
    """The versions that train this model."""
    linear = patterns.blocks_of(model, GatedDeltaNet)
    return EXPERIMENTAL if linear or sparse(model) else VERSIONS


LAUNCH = Launch("megatron", "Megatron-LM", VERSIONS, __name__)


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The launch script."""
    program = hybrid.PROGRAM if patterns.is_hybrid(request.model) else "pretrain_gpt.py"
    null_tokenizer = Note(
        code="null_tokenizer",
        text="Before core 0.18 NullTokenizer adds one token: "
        f"there, give --vocab-size {request.model.vocab_size - 1}.",
    )
    launch = replace(LAUNCH, versions=versions(request.model))
    return launch.bundle(
        request,
        plan,
        numerics.missing(request.model, UNWRITTEN),
        flags(request, plan),
        environment(plan),
        notes=(null_tokenizer,),
        words={
            "paths": 'MEGATRON_PATH="${MEGATRON_PATH:-.}"  # a checkout of Megatron-LM',
            "program": f'"$MEGATRON_PATH/{program}"',
        },
    )


FRAMEWORK = LAUNCH.framework(
    RULES,
    FIELDS,
    render,
    reader,
    choices={
        "schedule": ("1f1b", "interleaved-1f1b"),
        "moe_dispatcher": ("alltoall", "deepep", "hybridep"),
        "overlap_ep": (False, True),
        "overlap_tp": (False, True),
    },
    trains_all="pretrain_gpt.py trains all weights; Megatron-Bridge trains adapters",
    blocks=patterns.BLOCKS,
    parts=patterns.PARTS,
    lacks=patterns.lacks,
)
