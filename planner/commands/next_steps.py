"""What to run after an answer: commands to copy, each of which does what it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cost_models.plans import ParallelPlan
from planner import frameworks
from planner.answers.plans import plan_answers
from planner.commands.options import FIELDS, STANDARD_INPUT, command_line
from planner.documents.answer import PlanAnswer
from planner.documents.request import PlanRequest
from planner.frameworks.plan_defaults import usual


def after_plan(
    request: PlanRequest, answer: PlanAnswer, source: str | None, option_values: Mapping[str, Any]
) -> list[str]:
    """The lines to print, unwrapped: launch files, a question about a neighbour; without a plan
    the document, or what has one.

    source: where the request came from.  option_values: the options laid over it.
    """
    lines = [f"planner plan {command_line(option_values, source, ())} --json"]
    if answer.best is not None:
        lines = [
            _emit(answer, command_line(option_values, source, ("framework",))),
            _why_command(request, answer.best.plan, source, option_values),
        ]
    elif answer.unbuildable is not None and answer.unbuildable.instead is not None:
        options = f"{command_line(option_values, source, ('framework',))} --framework "
        options += answer.unbuildable.instead.framework
        lines = [f"planner plan {options}", f"planner emit {options} > run.sh", *lines]
    elif answer.unbuildable is not None and not answer.unbuildable.able:
        lines = [f"planner plan {command_line(option_values, source, ('framework',))}", *lines]
    if source == "-":
        lines.append(f"({STANDARD_INPUT}: the request that came from standard input)")
    return lines


def _emit(answer: PlanAnswer, options: str) -> str:
    """How to get launch files, or why there are none."""
    if answer.launch is not None:
        command = f"planner emit {options} --framework {answer.launch.framework} > run.sh"
        return f"{command}  # {_written_plan(answer)}"
    return f"no launch files: {answer.no_launch}"


def _written_plan(answer: PlanAnswer) -> str:
    """Which plan the files are of."""
    recommended = next((pick for pick in answer.picks if pick.name == "recommended"), None)
    if recommended is None or answer.best is None or recommended.plan.id == answer.best.id:
        return "the best plan"
    return "the recommended plan; --pick fastest: the best"


def _why_command(
    request: PlanRequest, plan: ParallelPlan, source: str | None, option_values: Mapping[str, Any]
) -> str:
    """A question about a plan that differs from the best one in one choice."""
    candidates = list(_neighbours(plan, request.cluster.accelerators))
    legal = (p for p in candidates if not plan_answers.illegal(request, p))
    other = next(legal, candidates[0]).model_dump()
    # Options lie over the request's own plan, where it has one.
    base = (request.plan or ParallelPlan()).model_dump()
    # What is left out is taken from the framework that is named.
    named = request.search.framework
    if named and request.plan is None:
        kept_fields = {"recompute": other["recompute"], "pp": other["pp"], "tp": other["tp"]}
        base |= usual(frameworks.get(named), kept_fields, request.model)
    fields = {
        name: _option(value)
        for name, value in other.items()
        if value != base[name] and (name != "dp" or request.plan is not None)
    }
    plan_fields = [name for name, field in FIELDS.items() if field.part == "plan"]
    options = [command_line(option_values, source, plan_fields), command_line(fields, None, ())]
    command = " ".join(["planner why", *filter(None, options)])
    return f"{command}  # the best plan with {_changed_fields(plan.model_dump(), other)}"


def _changed_fields(plan: dict[str, Any], other: dict[str, Any]) -> str:
    """What another plan has otherwise; dp follows."""
    names = [name for name, value in other.items() if value != plan[name] and name != "dp"]
    return " and ".join(f"{name} {_option(other[name])}" for name in names)


def _neighbours(plan: ParallelPlan, accelerators: int) -> Iterator[ParallelPlan]:
    changes: list[dict[str, int]] = [
        {"tp": 2 * plan.tp},
        {"micro_batch_size": 2 * plan.micro_batch_size},
    ]
    if plan.tp % 2 == 0:
        changes.append({"tp": plan.tp // 2})
    changes += [{"zero_stage": stage} for stage in range(4) if stage != plan.zero_stage]
    for change in changes:
        other = plan.model_copy(update=change)
        dp = max(1, accelerators // (other.tp * other.cp * other.pp))
        yield other.model_copy(update={"dp": dp})


def _option(value: Any) -> Any:
    """A field's value as its option takes it."""
    if isinstance(value, bool):
        return value
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
