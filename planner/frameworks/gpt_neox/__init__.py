"""GPT-NeoX: one YAML for its `deepy.py`, on DeepSpeed's engine."""

from __future__ import annotations

from cost_models.plans import ParallelPlan
from planner.documents.request import PlanRequest
from planner.frameworks import deepspeed, unwritten_facts
from planner.frameworks.base import Bundle, fields
from planner.frameworks.gpt_neox import reader
from planner.frameworks.gpt_neox.rules import RULES
from planner.frameworks.gpt_neox.settings import numerics_fields, rows
from planner.frameworks.launch_bundle import Launch, mock_data

VERSIONS = "main of May 2026 (ea7aefd) with DeepSpeed"
CONFIG = "config.yml"

FIELDS = fields(__name__)
UNWRITTEN = unwritten_facts.table(__name__)
LAUNCH = Launch("gpt-neox", "GPT-NeoX", VERSIONS, __name__, mock_data(CONFIG), starts="first node")


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The launch script, the config, the hostfile and the mock-data script."""
    files, words = deepspeed.beside(request, __name__)
    why = "sequence parallelism needs communication issued before compute kernels"
    return LAUNCH.with_config(
        request,
        plan,
        unwritten_facts.of(request.model, UNWRITTEN, numerics_fields(request.model)),
        CONFIG,
        list(rows(request, plan)),
        deepspeed.environment(plan, why),
        (deepspeed.padded(request, plan),),
        files=files,
        words=words,
    )


FRAMEWORK = LAUNCH.framework(
    RULES,
    FIELDS,
    render,
    reader,
    choices={"overlap_grad_reduce": (False, True), "overlap_param_gather": (False, True)},
    trains_all="its trainer trains all weights",
)
