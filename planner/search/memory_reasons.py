"""Why a plan is refused for its memory: by how much it overflows, or that the risk is too large."""

from __future__ import annotations

from cost_models.units import GIB
from planner.documents.answer import Reason
from planner.documents.formats import chance, overflow
from planner.documents.plan_report import PlanReport
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty.site_storage import room_of


def memory_reasons(request: PlanRequest, report: PlanReport) -> list[Reason]:
    """The memory reasons for which a search of the request refuses a plan."""
    memory, risk = report.memory, request.search.memory_risk
    if not report.fits:
        return [memory_reason(report)]
    if memory.needed_bytes <= room_of(request).of_plan(report.plan):
        return []
    text = (
        f"runs out of memory with a chance of {chance(memory.chance_of_running_out)}, more than "
        f"{100 * risk:g} %: {memory.chance_basis}"
    )
    numbers = {"chance": memory.chance_of_running_out, "most": risk}
    return [Reason(code="memory_risk", text=text, numbers=numbers)]


def memory_reason(report: PlanReport) -> Reason:
    """The reason that the worst stage of a plan overflows: by how much, and what fills it most."""
    memory = report.memory
    stage = memory.stages[memory.worst_stage]
    left_out = ("fragmentation", "driver")
    parts = {name: value for name, value in stage.parts.items() if name not in left_out}
    largest = max(parts, key=lambda name: parts[name])
    over = memory.peak_bytes - memory.capacity_bytes
    return Reason(
        code="memory",
        text=(
            f"{overflow(memory)}; the biggest part is {largest} with {parts[largest] / GIB:.1f} GiB"
        ),
        numbers={
            "stage": float(stage.stage),
            "need_bytes": memory.peak_bytes,
            "have_bytes": memory.capacity_bytes,
            "over_by_bytes": over,
            f"{largest}_bytes": parts[largest],
        },
    )
