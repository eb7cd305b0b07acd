"""MindSpeed: Megatron-LM core_v0.12.1 on Ascend NPUs, in one script that runs torchrun."""

from __future__ import annotations

from dataclasses import replace

from cost_models.package_files import table, text
from cost_models.plans import ParallelPlan
from planner.documents.request import PlanRequest
from planner.frameworks import bash_writer, megatron
from planner.frameworks.base import Bundle, Flag, fields, flag
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.mindspeed import reader
from planner.frameworks.mindspeed.flags import CHANGES, flags
from planner.frameworks.mindspeed.rules import RULES, SCHEDULES

VERSIONS = "Megatron-LM core_v0.12.1 with MindSpeed of July 2026 (028de58)"

FIELDS = CHANGES.fields(megatron.FIELDS) | fields(__name__)
# Newer options of Megatron-LM -> those of core 0.12.1 for the same fact.
_OLDER = table(__name__, "fields.json")["respelled"]
UNWRITTEN = tuple(replace(row, how=_OLDER.get(row.how, row.how)) for row in megatron.UNWRITTEN)


def environment(plan: ParallelPlan) -> tuple[Flag, ...]:
    """Environment variables that Megatron-LM needs, and good settings of the NPU's libraries."""
    group = "environment"
    asserted = plan.model_copy(update={"overlap_ep": False})  # core 0.12.1 knows no exception
    return (
        *megatron.environment(asserted),
        flag(group, "HCCL_CONNECT_TIMEOUT", 1200, "seconds to wait for the other nodes"),
        flag(
            group, "PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True", "less memory fragmentation"
        ),
        flag(group, "TASK_QUEUE_ENABLE", 2, "kernels are queued by a separate thread"),
    )


LAUNCH = Launch("mindspeed", "MindSpeed", VERSIONS, megatron.__name__)


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The launch script, and the program that runs Megatron-LM with MindSpeed's patches."""
    checkout = 'export MEGATRON_PATH="${MEGATRON_PATH:-.}"  # a checkout of core_v0.12.1'
    return LAUNCH.bundle(
        request,
        plan,
        megatron.numerics.missing(request.model, UNWRITTEN),
        flags(request, plan),
        environment(plan),
        files={"pretrain_gpt.py": text(__name__, "pretrain_gpt.py.txt")},
        words={
            "paths": f"{bash_writer.BUNDLE}\n{checkout}",
            "program": '"$BUNDLE/pretrain_gpt.py"',
        },
    )


FRAMEWORK = LAUNCH.framework(
    RULES,
    FIELDS,
    render,
    reader,
    choices={
        "schedule": SCHEDULES,
        "overlap_grad_reduce": (True, False),  # dualpipe-v and overlap_ep need it off
        "overlap_param_gather": (True, False),
    },
    trains_all="pretrain_gpt.py trains all weights; MindSpeed-LLM trains adapters",
)
