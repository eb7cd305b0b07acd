"""Megatron-LM: one bash script that runs its training program under torchrun, on mock data."""

from __future__ import annotations

from dataclasses import replace

from cost_models.blocks.delta_net import GatedDeltaNet
from cost_models.package_files import table
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import unwritten_facts
from planner.frameworks.base import Bundle, Flag, fields, flag, says
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.megatron import hybrid, numerics, patterns, reader
from planner.frameworks.megatron.flags import flags
from planner.frameworks.megatron.options import PLAN_FIELDS
from planner.frameworks.megatron.pattern_rules import sparse
from planner.frameworks.megatron.rules import RULES
from planner.frameworks.unwritten_facts import Missing

VERSIONS = "core 0.18 to main (0.20); the flags exist since 0.16"
# For models with gated delta nets or sparse attention, which core 0.18 builds differently.
EXPERIMENTAL = "core 0.19 to main (0.20)"
# For latent attention whose queries have no latent: see model_rules.LATENT_QUERIES.
BEFORE_QUERY_NORMS = "core 0.16 to 0.18"

# The conditions under which the options of a field say it.
_NOTES = table(__name__, "fields.json")["notes"]
FIELDS = {
    name: says(*names, note=_NOTES.get(name, "")) for name, names in PLAN_FIELDS.items()
} | fields(__name__)


def environment(plan: ParallelPlan) -> tuple[Flag, ...]:
    """Environment variables that the flags need."""
    name, group = "CUDA_DEVICE_MAX_CONNECTIONS", "environment"
    if plan.zero_stage >= 2:
        return (flag(group, name, 8, "Megatron-FSDP refuses 1: gathers must not queue"),)
    if plan.overlap_ep:
        why = "with 1 the exchange of tokens waits for kernels instead of running beside them"
        if plan.tp > 1 or plan.cp > 1:
            why += "; before Blackwell tp and cp traffic hides best with 1: measure both"
        return (flag(group, name, 32, why),)
    if plan.tp > 1 or plan.cp > 1:
        return (flag(group, name, 1, "launches tp and cp traffic before kernels that hide it"),)
    return ()


UNWRITTEN = unwritten_facts.table(__name__)


def versions(model: ModelSpec) -> str:
    """The versions that train this model."""
    if model.mla is not None and model.mla.q_lora_rank is None:
        return BEFORE_QUERY_NORMS
    linear = patterns.blocks_of(model, GatedDeltaNet)
    return EXPERIMENTAL if linear or sparse(model) else VERSIONS


LAUNCH = Launch("megatron", "Megatron-LM", VERSIONS, __name__)


def missing(model: ModelSpec) -> Missing:
    """The facts of a model that a launch leaves out."""
    return numerics.missing(model, UNWRITTEN, numerics.YARN_BY_HAND)


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
        missing(request.model),
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
