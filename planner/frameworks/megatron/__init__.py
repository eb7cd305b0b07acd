"""Megatron-LM: one bash script that runs its training program under torchrun, on mock data."""

from __future__ import annotations

from cost_models.blocks.delta_net import GatedDeltaNet
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import unwritten_facts
from planner.frameworks.base import Bundle, Flag, Framework, cannot, flag, says
from planner.frameworks.megatron import hybrid, launch, numerics, patterns
from planner.frameworks.megatron.flags import flags
from planner.frameworks.megatron.pattern_rules import sparse
from planner.frameworks.megatron.reader import read, recognises
from planner.frameworks.megatron.rules import RULES
from planner.frameworks.unwritten_facts import (
    MULTIPLIERS,
    Uncarried,
    gated,
    mixture,
    predicts_several,
    rotary,
    ungated,
)

VERSIONS = "core 0.18 to main (0.20); the flags exist since 0.16"
# For models with gated delta nets or sparse attention, which core 0.18 builds differently.
EXPERIMENTAL = "core 0.19 to main (0.20)"

FIELDS = {
    "tp": says("--tensor-model-parallel-size"),
    "sequence_parallel": says("--sequence-parallel"),
    "cp": says("--context-parallel-size"),
    "cp_kind": says("--cp-comm-type", note="when cp > 1"),
    "dynamic_cp": says(
        "--hybrid-context-parallel", "--max-seqlen-per-dp-cp-rank", note="when cp > 1, with --sft"
    ),
    "pp": says("--pipeline-model-parallel-size"),
    "vpp": says(
        "--num-virtual-stages-per-pipeline-rank",
        "--pipeline-model-parallel-layout",
        note="of a hybrid model: --hybrid-layer-pattern",
    ),
    "dp": says("--nnodes", "--nproc_per_node", note="world size / (tp x cp x pp)"),
    "dp_shard": says("--num-distributed-optimizer-instances", note="dp x cp / dp_shard"),
    "ep": says("--expert-model-parallel-size"),
    "etp": says("--expert-tensor-parallel-size"),
    "zero_stage": says(
        "--use-distributed-optimizer",
        "--use-megatron-fsdp",
        "--data-parallel-sharding-strategy",
        note="1: distributed optimizer; 2 and 3: Megatron-FSDP, without pipeline",
    ),
    "reshard_after_forward": cannot("Megatron-FSDP always frees gathered weights", True),
    "micro_batch_size": says("--micro-batch-size", "--global-batch-size"),
    "recompute": says("--recompute-granularity"),
    "recompute_modules": says("--recompute-modules"),
    "recompute_method": says("--recompute-method"),
    "recompute_num_layers": says("--recompute-num-layers"),
    "recompute_layers": cannot("--recompute-num-layers is the same on every stage", ()),
    "schedule": says(
        "--num-virtual-stages-per-pipeline-rank", note="interleaved with vpp > 1, else 1F1B"
    ),
    "first_stage_layers": says(
        "--decoder-first-pipeline-num-layers", "--pipeline-model-parallel-layout"
    ),
    "last_stage_layers": says(
        "--decoder-last-pipeline-num-layers", "--pipeline-model-parallel-layout"
    ),
    "stage_layers": says(
        "--pipeline-model-parallel-layout", note="of a hybrid model: --hybrid-layer-pattern"
    ),
    "rank_order": says("--use-tp-pp-dp-mapping"),
    "offload_optimizer": says("--optimizer-cpu-offload", "--optimizer-offload-fraction"),
    "offload_activations": says(
        "--cpu-offloading-num-layers", note="without pipeline or recompute"
    ),
    "offload_num_layers": says("--cpu-offloading-num-layers"),
    "attention_kernel": says("--attention-backend"),
    "cross_entropy": says(
        "--cross-entropy-loss-fusion",
        "--cross-entropy-fusion-impl",
        note="fused: native; in_place: te, which Megatron-LM disables",
    ),
    "moe_dispatcher": says("--moe-token-dispatcher-type", "--moe-flex-dispatcher-backend"),
    "overlap_grad_reduce": says("--overlap-grad-reduce"),
    "overlap_param_gather": says("--overlap-param-gather", note="when states are sharded"),
    "overlap_tp": says("--tp-comm-overlap"),
    "overlap_ep": says("--overlap-moe-expert-parallel-comm"),
    "overlap_p2p": says("--no-overlap-p2p-communication", note="only interleaving overlaps"),
    "runtime": cannot("Megatron-LM is itself the runtime", "megatron"),
    "compile": cannot("its kernels are fused already, without torch.compile", False),
}


def _plain_rotary(model: ModelSpec) -> bool:
    return rotary(model) and model.mla is None


def _rotary_without_pattern(model: ModelSpec) -> bool:
    return _plain_rotary(model) and not model.layer_pattern


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
    Uncarried("norm epsilon", "--norm-epsilon (1e-5)", numerics=("norm_epsilon",)),
    Uncarried(
        "rotary base", "--rotary-base (10000)", rotary, numerics=("rope_theta", "local_rope_theta")
    ),
    Uncarried(
        "share of rotated head dimensions",
        "--rotary-percent (1.0)",
        _plain_rotary,
        numerics=("rotary_share",),
    ),
    Uncarried("layers without RoPE", "--no-rope-freq (none)", _rotary_without_pattern),
    Uncarried(
        "rope scaling",
        "--use-rope-scaling, --rope-scaling-factor: Llama 3's (none)",
        _plain_rotary,
        numerics=("rope_scaling",),
    ),
    Uncarried(
        "rope scaling",
        "YaRN's --rotary-scaling-factor (1.0), --mscale (1.0), --mscale-all-dim (0.0)",
        lambda m: rotary(m) and m.mla is not None,
        numerics=("rope_scaling",),
    ),
    Uncarried("activation", "--quick-geglu for --swiglu (SwiGLU)", gated, numerics=("activation",)),
    Uncarried(
        "activation",
        "--squared-relu with --no-bias-gelu-fusion, --openai-gelu (GELU)",
        ungated,
        numerics=("activation",),
    ),
    Uncarried(
        "routed scaling factor",
        "--moe-router-topk-scaling-factor (none)",
        mixture,
        numerics=("routed_scaling",),
    ),
    Uncarried(
        "router scores",
        "--moe-router-score-function, --moe-router-pre-softmax (softmax over the chosen experts)",
        _default_router_scores,
    ),
    Uncarried(
        "load-balancing loss",
        "--moe-router-load-balancing-type (aux_loss), --moe-aux-loss-coeff (0)",
        mixture,
    ),
    Uncarried("weight of the MTP loss", "--mtp-loss-scaling-factor (0.1)", predicts_several),
    Uncarried(
        "standard deviation of the initial weights",
        "--init-method-std (0.02)",
        numerics=("init_std",),
    ),
    Uncarried(
        "soft-capping of logits or attention scores, multipliers", "no option", numerics=MULTIPLIERS
    ),
)


def versions(model: ModelSpec) -> str:
    """The versions that train this model."""
    linear = patterns.blocks_of(model, GatedDeltaNet)
    return EXPERIMENTAL if linear or sparse(model) else VERSIONS


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The launch script."""
    arguments, variables = flags(request, plan), environment(plan)
    missing = unwritten_facts.of(request.model, UNWRITTEN, numerics.numerics_fields(request.model))
    program = hybrid.PROGRAM if patterns.is_hybrid(request.model) else "pretrain_gpt.py"
    script = launch.script(
        "Megatron-LM",
        versions(request.model),
        request,
        plan,
        arguments,
        variables,
        missing,
        paths='MEGATRON_PATH="${MEGATRON_PATH:-.}"  # a checkout of Megatron-LM',
        program=f'"$MEGATRON_PATH/{program}"',
    )
    return Bundle(
        framework="megatron",
        versions=versions(request.model),
        main="launch.sh",
        files={"launch.sh": script},
        flags=(*variables, *arguments),
        notes=(
            Note(
                code="null_tokenizer",
                text="Before core 0.18 NullTokenizer adds one token: "
                f"there, give --vocab-size {request.model.vocab_size - 1}.",
            ),
            *unwritten_facts.notes(missing),
        ),
    )


FRAMEWORK = Framework(
    name="megatron",
    title="Megatron-LM",
    versions=VERSIONS,
    choices={
        "schedule": ("1f1b", "interleaved-1f1b"),
        "moe_dispatcher": ("alltoall", "deepep", "hybridep"),
        "overlap_ep": (False, True),
        "overlap_tp": (False, True),
    },
    rules=RULES,
    fields=FIELDS,
    render=render,
    read=read,
    recognises=recognises,
    trains_all="pretrain_gpt.py trains all weights; Megatron-Bridge trains adapters",
    blocks=patterns.BLOCKS,
    parts=patterns.PARTS,
    lacks=patterns.lacks,
)
