"""The operations of a service: those of the questions' records, and a row for each other one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pydantic import TypeAdapter

from planner.client.calls import Budget, Calls, part
from planner.documents.service import KINDS
from planner.questions.question import Question, resolved
from planner.questions.registry import QUESTIONS

_BUDGET = tuple(Budget.__annotations__)
_HEADERS = {"idempotency_key": "idempotency-key", "last_event_id": "last-event-id"}
_JOBS, _CATALOG = "planner.documents.service", "planner.answers.inventory.catalog"


@dataclass(frozen=True)
class Operation:
    """What is called, and what comes back.

    answer: names the class of a document, or it is text, events or nothing.  takes: the parameters
    besides the parts of the path.  streams: whether progress may come before the answer.
    """

    verb: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    answer: str | Callable[[], Any] = ""
    takes: tuple[str, ...] = ()
    document: bool = False
    streams: bool = False


def operations() -> Iterator[tuple[str, Operation]]:
    """Every operation with the name of its method."""
    for question in QUESTIONS.values():
        yield from _question_operations(question)
    for kind in KINDS:
        yield from _job_operations(kind)
    for many, entry in (
        ("models", "Model"), ("accelerators", "Accelerator"), ("clusters", "Cluster"),
        ("frameworks", "Framework"), ("schedules", "Schedule"),
    ):  # fmt: skip
        path = f"/v1/catalog/{many}"
        yield many, Operation("GET", path, f"{_CATALOG}:{many.title()}")
        yield entry.lower(), Operation("GET", f"{path}/{{id}}", f"{_CATALOG}:{entry}Entry")
    yield from _OTHERS.items()


def _question_operations(question: Question) -> Iterator[tuple[str, Operation]]:
    query = (p.name for p in question.parameters if f"{{{p.name}}}" not in question.path)
    path, answer = f"/v1{question.path}", question.answer_type
    yield (
        question.name,
        Operation("POST", path, answer, (*query, *_BUDGET), True, question.effort == "long"),
    )
    if question.kept:
        yield f"kept_{question.name}", Operation("GET", f"{path}/{{id}}", answer)


def _job_operations(kind: str) -> Iterator[tuple[str, Operation]]:
    path, job = f"/v1/{kind}", f"{_JOBS}:JobAnswer"
    job_path = f"{path}/{{id}}"
    started = ("idempotency_key", *_BUDGET)
    yield f"start_{kind}", Operation("POST", path, job, started, document=True)
    yield f"list_{kind}", Operation("GET", path, f"{_JOBS}:JobPage", ("state", "limit", "cursor"))
    yield f"get_{kind}", Operation("GET", job_path, job)
    yield f"delete_{kind}", Operation("DELETE", job_path)
    yield f"follow_{kind}", Operation("GET", f"{job_path}/events", "events", ("last_event_id",))
    yield f"log_of_{kind}", Operation("GET", f"{job_path}/logs", "text")
    yield f"cancel_{kind}", Operation("POST", f"{job_path}/cancel", job)


_OTHERS = {
    "plan_candidates": Operation(
        "GET", "/v1/plans/{id}/candidates", "planner.answers.plans.candidates:CandidatePage",
        ("status", "sort", "limit", "cursor", *_BUDGET),
    ),
    "info": Operation("GET", "/v1/info", "planner.answers.inventory.info:Info"),
    "jobs": Operation("GET", "/v1/jobs", f"{_JOBS}:JobPage", ("kind", "state", "limit", "cursor")),
    "saved_plans": Operation(
        "GET", "/v1/saved-plans", f"{_JOBS}:SavedPlanPage", ("limit", "cursor")
    ),
    "saved_plan": Operation("GET", "/v1/saved-plans/{name}", f"{_JOBS}:SavedPlanAnswer"),
    "save_plan": Operation(
        "PUT", "/v1/saved-plans/{name}", f"{_JOBS}:SavedPlanAnswer", document=True
    ),
    "forget_saved_plan": Operation("DELETE", "/v1/saved-plans/{name}"),
    "sites": Operation("GET", "/v1/sites", f"{_JOBS}:SiteList", _BUDGET),
    "site": Operation(
        "GET",
        "/v1/sites/{name}",
        "planner.evidence.uncertainty.site_corrections:SiteAnswer",
        _BUDGET,
    ),
    "forget_site": Operation("DELETE", "/v1/sites/{name}"),
    "forget_run": Operation("DELETE", "/v1/sites/{name}/runs/{run}"),
    "share_site": Operation(
        "PUT", "/v1/sites/{name}/rights", f"{_JOBS}:SiteRights", document=True
    ),
    "published_runs": Operation("GET", "/v1/accuracy/runs", f"{_JOBS}:ScoredRuns"),
    "healthz": Operation("GET", "/healthz", f"{_JOBS}:Health"),
    "readyz": Operation("GET", "/readyz", f"{_JOBS}:Readiness"),
    "metrics": Operation("GET", "/metrics", "text"),
}  # fmt: skip


class Operations(Calls):
    """A method for each operation: parts of its path, its document, its parameters by name."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The method of an operation.  Raises AttributeError."""
        known = dict(operations())
        if name not in known:
            raise AttributeError(f"a service has no operation {name!r}", name=name, obj=self)
        return partial(self._called, name, known[name])

    def __dir__(self) -> list[str]:
        """The names written here, and every operation."""
        return [*super().__dir__(), *(name for name, _ in operations())]

    def _called(self, name: str, operation: Operation, *given: Any, **named: Any) -> Any:
        names = re.findall(r"{(\w+)}", operation.path)
        if len(given) != len(names) + operation.document or not named.keys() <= {*operation.takes}:
            expected = [*names, *(["document"] if operation.document else [])]
            optional = "".join(f", {name}=..." for name in operation.takes)
            raise TypeError(f"it is called as {name}({', '.join(expected)}{optional})")
        path = operation.path.format(**dict(zip(names, map(part, given), strict=False)))
        headers = {_HEADERS[name]: named.pop(name) for name in _HEADERS if name in named}
        if operation.answer == "text":
            return self.text(path)
        if operation.answer == "events":
            return self.follow(path, headers=headers)
        if not operation.answer:
            self.do(operation.verb, path)
            return None
        answer = operation.answer
        kind = TypeAdapter(resolved(answer) if isinstance(answer, str) else answer())
        document = given[len(names)] if operation.document else None
        return self.ask(
            kind, operation.verb, path, document, query=named, headers=headers,
            streams=operation.streams,
        )  # fmt: skip
