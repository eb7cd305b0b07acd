"""`planner mcp`: the planner as tools for coding agents, by the Model Context Protocol."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from planner.answers.plans.plan_answers import IllegalPlan
from planner.documents.problems import RequestError
from planner.frameworks.base import Unsupported
from planner.questions.question import Question, Tool
from planner.questions.registry import QUESTIONS
from planner.search.exhaustive import SpaceTooLarge

_MOST_STAGES = 4  # of a plan, whose memory is told stage by stage
_INSTRUCTIONS = (
    "Plans distributed training: which tensor, pipeline, data, context and expert parallelism "
    "fits and is fastest. A model is a preset's name (llama-3.1-8b), a Hugging Face config.json "
    "or dims; a cluster is NODESxACCELERATORSxTYPE (16x8xh100-sxm). training needs seq_length and "
    "global_batch_size."
)
_NAMED = str | dict[str, Any]
_TYPES = {"model": _NAMED, "cluster": _NAMED, "files": dict[str, str], "framework": str}


def serve() -> int:
    """Serve over standard input and output until it closes; the exit code."""
    server = MCPServer("parallel-planner", instructions=_INSTRUCTIONS)
    for question in QUESTIONS.values():
        if question.tool is not None:
            server.tool(question.command, description=question.tool.about)(
                _asking(question, question.tool)
            )
    server.run(transport="stdio")
    return 0


def _asking(question: Question, tool: Tool) -> Callable[..., dict[str, Any]]:
    """A function with the parts of the question's document as its arguments."""

    def ask(**parts: Any) -> dict[str, Any]:
        document = {name: part for name, part in parts.items() if part is not None}
        try:
            answer = question.answered(question.parsed(document))
        except (RequestError, IllegalPlan, Unsupported, SpaceTooLarge) as error:
            raise ToolError(str(error)) from None
        found: dict[str, Any] = _shortened(
            answer.model_dump(mode="json", include=tool.shows, exclude_none=True)
        )
        return found

    arguments = [_argument(part) for part in tool.parts]
    ask.__signature__ = Signature(  # type: ignore[attr-defined]
        arguments, return_annotation=dict[str, Any]
    )
    ask.__annotations__ = {one.name: one.annotation for one in arguments}
    ask.__annotations__["return"] = dict[str, Any]
    return ask


def _argument(part: str) -> Parameter:
    name = part.removesuffix("?")
    kind: Any = _TYPES.get(name, dict[str, Any])
    if name == part:
        return Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind)
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind | None, default=None)


def _shortened(value: Any) -> Any:
    """The same with the first and the last of many stages alone."""
    if isinstance(value, dict):
        return {name: _shortened(part) for name, part in value.items()}
    if isinstance(value, list):
        if len(value) > _MOST_STAGES and all(isinstance(x, dict) and "stage" in x for x in value):
            value = [*value[:2], *value[-2:]]
        return [_shortened(part) for part in value]
    return value
