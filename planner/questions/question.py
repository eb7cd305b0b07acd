"""The record of a question, from which everything is made that asks it."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, get_type_hints

WITH_PLAN = "planner.questions.answers:with_plan"
Effort = Literal["brief", "long", "batch"]


@dataclass(frozen=True)
class Parameter:
    """What is asked beside the document, by name; choices: names the table of what it may be.

    pattern: names the pattern of what stands in the path.
    """

    name: str
    about: str = ""
    default: str | None = None
    choices: str = ""
    pattern: str = ""

    @property
    def description(self) -> str:
        """What it is, with all that it may be."""
        return f"one of {', '.join(resolved(self.choices))}" if self.choices else self.about


@dataclass(frozen=True)
class Form:
    """An answer in another form than JSON, by the media type that a caller accepts.

    name: of it as a parameter, `format`.  make: names the function that makes its text or bytes of
    an answer.  file: what to call it, with fields of `answer`.
    """

    name: str
    media_type: str
    make: str
    file: str = ""


@dataclass(frozen=True)
class Tool:
    """A question as a tool for coding agents.

    parts: of the document, as arguments; one that ends with ? may be left out.  shows: the parts of
    the answer that an agent reads, of one that is hundreds of kilobytes; None: all of it.
    """

    about: str
    parts: tuple[str, ...]
    shows: frozenset[str] | None = None


@dataclass(frozen=True)
class Question:
    """One question, over HTTP at `path`; functions are named "module:function" and loaded on use.

    name: of the client's method.  about: what it answers, in one sentence that ends a line.
    examples: the kind of document whose examples are shown (planner/questions/examples.yaml).
    parse: what makes a request of the document; empty: the answer reads it itself.
    answer: what answers the request, with the parameters by name; its return type is the class of
    the answer.
    effort: brief; long, with progress, and brief only for a document with a plan if
    `brief_with_plan`; or batch: so short that those of a caller are answered together.
    kept: the first letters of an answer's id, if the service keeps it.
    files: whether a text in the document may be a whole file.
    command: its name on the command line.  function: of the command; where there is none but a
    screen, the command has the options of a request.
    screen: what makes the text for a terminal of (answer, request, screen).
    """

    name: str
    path: str
    about: str
    answer: str
    examples: str
    parse: str = WITH_PLAN
    body: str = "Request"
    effort: Effort = "brief"
    brief_with_plan: bool = False
    kept: str = ""
    files: bool = False
    parameters: tuple[Parameter, ...] = ()
    forms: tuple[Form, ...] = ()
    command: str = ""
    function: str = ""
    screen: str = ""
    tool: Tool | None = field(default=None)

    @property
    def of_plan(self) -> bool:
        """Whether its document is a request with a plan."""
        return self.parse == WITH_PLAN

    def parsed(self, document: Any) -> Any:
        """The request in a document.  Raises RequestError."""
        return resolved(self.parse)(document) if self.parse else document

    def answered(self, request: Any, **parameters: str | None) -> Any:
        """The answer to a request.  Raises as the function does that the record names."""
        return resolved(self.answer)(request, **parameters)

    def answer_type(self) -> Any:
        """The class of its answers, or several of them in a union."""
        return get_type_hints(resolved(self.answer))["return"]


def resolved(name: str) -> Any:
    """What a name such as "module:function" stands for."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
