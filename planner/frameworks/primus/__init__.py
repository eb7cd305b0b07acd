"""Primus, AMD's training framework: one YAML of overrides for its Megatron-LM backend.

Its torchtitan, Megatron-Bridge and MaxText backends take the files written for those frameworks.
"""

from __future__ import annotations

from dataclasses import replace

from cost_models.plans import ParallelPlan
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import megatron
from planner.frameworks.base import Bundle, Flag, fields, flag
from planner.frameworks.launch_bundle import Launch, mock_data
from planner.frameworks.megatron import attribute_names
from planner.frameworks.primus import reader
from planner.frameworks.primus.names import OVERRIDES
from planner.frameworks.primus.rules import RULES, SCHEDULES
from planner.frameworks.primus.settings import head, overrides

VERSIONS = "main of August 2026 (fd1eeab) on Megatron-LM d3528a2 (core 0.20)"
CONFIG = "config.yaml"


FIELDS = attribute_names.with_keys(megatron.FIELDS) | fields(__name__)
UNWRITTEN = tuple(
    replace(
        row,
        how=attribute_names.in_keys(
            row.how.replace("--mscale-all-dim (0.0)", "--mscale-all-dim (1.0)")
        ),
    )
    for row in megatron.UNWRITTEN
)
LAUNCH = Launch("primus", "Primus", VERSIONS, __name__, mock_data(CONFIG))
LAUNCHER = Note(
    code="needs",
    text="Primus's own launcher tunes RCCL for the machine first: "
    "primus-cli direct -- train pretrain --config config.yaml.",
)


def environment(request: PlanRequest, plan: ParallelPlan) -> tuple[Flag, ...]:
    """Environment variables that Megatron-LM and ROCm's Transformer Engine need."""
    variables = megatron.environment(plan)
    training = request.training
    if training.precision == "fp8" and training.fp8_recipe == "mxfp8":
        name = "NVTE_ROCM_ENABLE_MXFP8"
        variables += (flag("environment", name, 1, "required by Primus for mxfp8"),)
    return variables


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The launch script and the config."""
    rows = list(overrides(request, plan))
    missing = megatron.numerics.missing(request.model, UNWRITTEN)
    under = ((OVERRIDES + key, value, why) for key, value, why in rows)
    variables = environment(request, plan)
    return LAUNCH.with_config(
        request, plan, missing, CONFIG, rows, variables, (LAUNCHER,), (*head(), *under)
    )


FRAMEWORK = LAUNCH.framework(
    RULES,
    FIELDS,
    render,
    reader,
    choices={
        "schedule": SCHEDULES,
        "overlap_grad_reduce": (True, False),  # its own pipeline runtime needs it off
        "overlap_param_gather": (True, False),
    },
    trains_all="its pre-trainer trains all weights; its Megatron-Bridge backend trains adapters",
)
