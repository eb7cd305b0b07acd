"""nanotron: one YAML for its `run_train.py`, launched with torchrun."""

from __future__ import annotations

from cost_models.balanced_layers import stages
from cost_models.plans import ParallelPlan
from planner.constraints import Context
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import unwritten_facts
from planner.frameworks.base import Bundle, Flag, fields, flag
from planner.frameworks.launch_bundle import Launch, mock_data
from planner.frameworks.nanotron import reader
from planner.frameworks.nanotron.rules import RULES
from planner.frameworks.nanotron.settings import numerics_fields, rows

VERSIONS = "main of April 2026 (2411b02)"
CONFIG = "config.yaml"

FIELDS = fields(__name__)


UNWRITTEN = unwritten_facts.table(__name__)
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
