"""The pipeline of an answer's best plan, which belongs to its page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planner.answers.pipelines.plan_timeline import timeline_of
from planner.answers.pipelines.timeline import TimelineAnswer
from planner.documents.answer import PlanAnswer
from planner.inputs.requests.parser import parse_request
from planner.presentation.drawing.svg import svg

_MAX_ACTIONS = 100_000


def timeline_here(document: dict[str, Any]) -> TimelineAnswer:
    """The timeline of a request's plan."""
    return timeline_of(parse_request(document))


def best_timeline(
    answer: PlanAnswer, ask: Callable[[dict[str, Any]], TimelineAnswer] = timeline_here
) -> list[str]:
    """The pipeline of an answer's best plan as SVG; none without stages, or of too many actions.

    ask: answers the request for the timeline.
    """
    best = answer.best
    if best is None or best.plan.pp == 1:
        return []
    if 3 * best.num_micro_batches * best.plan.pp * best.plan.vpp > _MAX_ACTIONS:
        return []
    document = {**answer.request, "plan": best.plan.model_dump(mode="json")}
    return [svg(ask(document), "light")]
