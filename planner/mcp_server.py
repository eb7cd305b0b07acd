"""`planner mcp`: the planner as tools for coding agents, by the Model Context Protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel

import planner
from planner.answers.plan_answers import IllegalPlan
from planner.documents.problems import RequestError
from planner.frameworks.base import Unsupported
from planner.lint.lint import lint as linted
from planner.lint.request import parse_lint
from planner.search.exhaustive import SpaceTooLarge

# A whole answer is hundreds of kilobytes; an agent reads what a person would.
_OF_A_PLAN = {
    "best", "launch", "unbuildable", "nearest", "counts", "best_expected", "search_time_s",
    "options",
}  # fmt: skip
_MOST_STAGES = 4  # of a plan, whose memory is told stage by stage
_INSTRUCTIONS = (
    "Plans distributed training: which tensor, pipeline, data, context and expert parallelism "
    "fits and is fastest. A model is a preset's name (llama-3.1-8b), a Hugging Face config.json "
    "or dims; a cluster is NODESxACCELERATORSxTYPE (16x8xh100-sxm). training needs seq_length and "
    "global_batch_size."
)
Named = str | dict[str, Any]


def serve() -> int:
    """Serve over standard input and output until it closes; the exit code."""
    server = MCPServer("parallel-planner", instructions=_INSTRUCTIONS)
    for tool in (plan, estimate, why, lint, size):
        server.tool()(tool)
    server.run(transport="stdio")
    return 0


def plan(
    model: Named, cluster: Named, training: dict[str, Any], search: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Find the fastest plan that fits; search may name a framework and limits."""
    parts = _parts(model=model, cluster=cluster, training=training, search=search)
    return _answer_or_problem(lambda: planner.plan(**parts), _OF_A_PLAN)


def estimate(
    model: Named, cluster: Named, training: dict[str, Any], plan: dict[str, Any]
) -> dict[str, Any]:
    """Time and memory of one plan, such as {"tp": 8, "pp": 2}; dp follows from the others."""
    parts: dict[str, Any] = {"model": model, "cluster": cluster, "training": training, "plan": plan}
    return _answer_or_problem(lambda: planner.estimate(**parts))


def why(
    model: Named, cluster: Named, training: dict[str, Any], plan: dict[str, Any]
) -> dict[str, Any]:
    """Say why a plan is not the best, or does not fit, and the smallest change that helps."""
    parts: dict[str, Any] = {"model": model, "cluster": cluster, "training": training, "plan": plan}
    return _answer_or_problem(lambda: planner.why(**parts))


def lint(files: dict[str, str], cluster: Named, framework: str | None = None) -> dict[str, Any]:
    """Look for mistakes in the launch files of a training (name: text); nothing is run."""
    document = _parts(files=files, cluster=cluster, framework=framework)

    def answer() -> Any:
        asked = parse_lint(document)
        return linted(asked.files, asked.named_cluster, asked.framework, asked.given)

    return _answer_or_problem(answer)


def size(model: Named, training: dict[str, Any], sizing: dict[str, Any]) -> dict[str, Any]:
    """Days, cost and energy on several kinds and numbers of accelerators.

    training has tokens besides; sizing has accelerators, sizes, deadline_days or budget_usd.
    """
    return _answer_or_problem(lambda: planner.size(model=model, training=training, sizing=sizing))


def _parts(**parts: Any) -> dict[str, Any]:
    return {name: value for name, value in parts.items() if value is not None}


def _answer_or_problem(
    ask: Callable[[], BaseModel], include: set[str] | None = None
) -> dict[str, Any]:
    """An answer, or what is wrong with the question in words."""
    try:
        document = ask().model_dump(mode="json", include=include, exclude_none=True)
    except (RequestError, IllegalPlan, Unsupported, SpaceTooLarge) as error:
        raise ToolError(str(error)) from None
    found: dict[str, Any] = _shortened(document)
    return found


def _shortened(value: Any) -> Any:
    """The same with the first and the last of many stages alone."""
    if isinstance(value, dict):
        return {name: _shortened(part) for name, part in value.items()}
    if isinstance(value, list):
        if len(value) > _MOST_STAGES and all(isinstance(x, dict) and "stage" in x for x in value):
            value = [*value[:2], *value[-2:]]
        return [_shortened(part) for part in value]
    return value
