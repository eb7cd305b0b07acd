"""`planner mcp`: the planner as tools for coding agents, by the Model Context Protocol."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from inspect import Parameter, Signature
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from planner.answers.plans.plan_answers import IllegalPlan
from planner.documents.field_selection import selected
from planner.documents.problems import RequestError
from planner.frameworks.base import Unsupported
from planner.questions.question import Question, Tool
from planner.questions.registry import QUESTIONS
from planner.search.exhaustive import SpaceTooLarge

MOST_CHARACTERS = 4_000  # of an answer, unless more is asked for
_LONG = 400  # characters of a text that is a part
_MOST_STAGES = 4  # of a plan, whose memory is told stage by stage
# Ends of the paths of parts in the order in which they go where an answer is too long; then the
# largest go.
_GOES_FIRST = (
    "request", "profile", "definitions", "kernels", "not_modelled", "assumptions", "notes",
    "evidence.nearest", "memory.stages", "pipeline", "time_parts_s", "best.files", "error_band",
    "memory", "plan", "estimate",
)  # fmt: skip
_MORE = (
    "Answers have at most 4,000 characters: left_out names the parts that this one lacks, and "
    "`fields` (such as best.kernels) asks for them."
)
_INSTRUCTIONS = (
    "Plans distributed training: which tensor, pipeline, data, context and expert parallelism "
    "fits and is fastest. A model is a preset's name (llama-3.1-8b), a Hugging Face config.json "
    "or dims; a cluster is NODESxACCELERATORSxTYPE (16x8xh100-sxm). training needs seq_length and "
    "global_batch_size."
)
_NAMED = str | dict[str, Any]
_TYPES: dict[str, Any] = {
    "model": _NAMED, "cluster": _NAMED, "files": dict[str, str], "framework": str,
    "fields": list[str],
}  # fmt: skip


def serve() -> int:
    """Serve over standard input and output until it closes; the exit code."""
    server = MCPServer("parallel-planner", instructions=_INSTRUCTIONS)
    for question in QUESTIONS.values():
        if question.tool is not None:
            about = f"{question.tool.about}\n\n{_MORE}"
            server.tool(question.command, description=about)(_asking(question, question.tool))
    server.run(transport="stdio")
    return 0


def _asking(question: Question, tool: Tool) -> Callable[..., dict[str, Any]]:
    """A function with the parts of the question's document as its arguments."""

    def ask(*, fields: list[str] | None = None, **parts: Any) -> dict[str, Any]:
        document = {name: part for name, part in parts.items() if part is not None}
        try:
            answer = question.answered(question.parsed(document))
            if fields:
                return dict(selected(answer.model_dump(mode="json"), tuple(fields)))
        except (RequestError, IllegalPlan, Unsupported, SpaceTooLarge) as error:
            raise ToolError(str(error)[:MOST_CHARACTERS]) from None
        shown = answer.model_dump(mode="json", include=tool.shows, exclude_none=True)
        return _within(_shortened(shown, set()))

    arguments = [*map(_argument, tool.parts), _argument("fields?")]
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


def _shortened(value: Any, told: set[str]) -> Any:
    """The same with the first and the last of many stages alone, and each plan told once.

    told: the ids of reports so far; one that comes again is its id.
    """
    if isinstance(value, dict):
        if "iteration_time_s" in value and (known := value.get("id")):
            if known in told:
                return {"id": known}
            told.add(known)
        return {name: _shortened(part, told) for name, part in value.items()}
    if isinstance(value, list):
        if len(value) > _MOST_STAGES and all(isinstance(x, dict) and "stage" in x for x in value):
            value = [*value[:2], *value[-2:]]
        return [_shortened(part, told) for part in value]
    return value


def _within(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer without as many of its parts as keep it in bounds; left_out names these."""
    left: list[str] = []
    while _length({**answer, "left_out": left}) > MOST_CHARACTERS:
        sizes = dict[str, int]()
        for path, part in _parts(answer):
            sizes[path] = sizes.get(path, 0) + _length(part)
        if not sizes:
            break
        first = [path for end in _GOES_FIRST for path in sizes if f".{path}".endswith(f".{end}")]
        # A part within one goes before the whole that it is in.
        inner = [path for path in sizes if not any(other.startswith(f"{path}.") for other in sizes)]
        gone = first[0] if first else max(inner, key=sizes.__getitem__)
        _without(answer, gone.split("."))
        left = [*(path for path in left if not path.startswith(f"{gone}.")), gone]
    return answer | ({"left_out": left} if left else {})


def _parts(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Parts that are documents, lists or long texts, by their path; through lists as `fields`."""
    if isinstance(value, list):
        for item in value:
            yield from _parts(item, at)
    elif isinstance(value, dict) and not any("." in name for name in value):  # names of files
        for name, part in value.items():
            path = f"{at}.{name}" if at else name
            if isinstance(part, dict | list) or (isinstance(part, str) and len(part) > _LONG):
                yield path, part
                yield from _parts(part, path)


def _without(value: Any, names: list[str]) -> None:
    """Takes the part out, of each entry of a list."""
    if isinstance(value, list):
        for item in value:
            _without(item, names)
    elif isinstance(value, dict) and len(names) == 1:
        value.pop(names[0], None)
    elif isinstance(value, dict):
        _without(value.get(names[0]), names[1:])


def _length(value: Any) -> int:
    return len(json.dumps(value))
