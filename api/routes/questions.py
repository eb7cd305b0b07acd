"""A route for each question of the planner, made from its record."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from inspect import Parameter as Argument
from inspect import Signature
from operator import or_
from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Path, Query, Request, Response

from api import negotiation, results, work
from api.budget import Budget
from api.dependencies import Body, CallPool, Files, Stated, WantedFields
from api.openapi.schema import NOT_CHANGED, STREAMED, request_body
from api.problems import declare
from planner.documents.field_selection import Fields
from planner.questions.examples import examples
from planner.questions.question import Form, Parameter, Question, resolved
from planner.questions.registry import LEARN, QUESTIONS


def routers() -> Iterable[APIRouter]:
    """The routes of each question; those of a site are with the others of sites."""
    for question in QUESTIONS.values():
        if question is not LEARN:
            router = APIRouter(tags=[question.path.split("/")[1]])
            add(router, question)
            yield router


def add(router: APIRouter, question: Question) -> None:
    """Add the route of a question, and that of its kept answers."""
    kept = bool(question.kept)
    answer = _class_of_answer(question) if kept else question.answer_type()
    known = NOT_CHANGED if kept or question.effort == "batch" else {}
    forms = {form.media_type: {"schema": _schema(form)} for form in question.forms}
    streamed = STREAMED if question.effort == "long" else {}
    other: dict[int | str, dict[str, Any]] = {200: {"content": forms}} if forms else streamed
    router.add_api_route(
        question.path.removeprefix(router.prefix),
        _endpoint(question),
        methods=["POST"],
        name=question.name,
        description=question.about,
        response_model=answer,
        responses={**declare(400, 408, 413, 415, 422, 503, 504), **known, **other},
        openapi_extra=request_body(examples(question.examples), question.body),
    )
    if kept:
        router.add_api_route(
            f"{question.path}/{{id}}",
            _kept_endpoint(question),
            name=f"kept_{question.name}",
            description="An answer again, as long as it is kept.",
            response_model=answer,
            responses={**declare(404, 422, 503, 504), **NOT_CHANGED},
        )


def _endpoint(question: Question) -> Any:
    """What answers a call of a question, with the parameters that its record names."""

    async def endpoint(
        request: Request, document: Any, budget: Budget, fields: Fields, **parameters: Any
    ) -> Response:
        if question.effort == "batch":
            return await results.estimated(request, document, budget, fields)
        if question.kept:
            return await results.kept(request, question, document, budget, fields)
        form = _form(request, question, parameters.pop("format", None))
        brief = question.effort == "brief" or (question.brief_with_plan and _has_plan(document))
        pool = CallPool(request, "brief" if brief else "searches", budget)
        sent = await pool.run(work.answer, question, document, parameters, form, fields)
        headers = {"Content-Disposition": f'attachment; filename="{sent.file}"'}
        media_type = form.media_type if form else negotiation.JSON
        return Response(sent.content, media_type=media_type, headers=headers if sent.file else {})

    arguments: list[tuple[str, Any, Any]] = [
        ("request", Request, Argument.empty),
        ("document", Files if question.files else Body, Argument.empty),
        ("budget", Stated, Argument.empty),
        ("fields", WantedFields, Argument.empty),
        *(_argument(question, parameter) for parameter in question.parameters),
    ]
    if question.forms:
        names = ("json", *(form.name for form in question.forms))
        arguments.append(("format", Literal[names] | None, None))
    endpoint.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Argument(name, Argument.KEYWORD_ONLY, annotation=kind, default=default)
            for name, kind, default in arguments
        ]
    )
    return endpoint


def _argument(question: Question, spec: Parameter) -> tuple[str, Any, Any]:
    """(name, type, default) of a parameter in the path or behind it."""
    if f"{{{spec.name}}}" in question.path:
        return spec.name, Annotated[str, Path(pattern=resolved(spec.pattern))], Argument.empty
    about = Query(max_length=64, description=spec.description)
    return spec.name, Annotated[str if spec.default else str | None, about], spec.default


def _kept_endpoint(question: Question) -> Any:
    async def endpoint(
        id: results.Id, request: Request, budget: Stated, fields: WantedFields
    ) -> Response:
        return await results.stored(request, question, id, budget, fields)

    return endpoint


def _class_of_answer(question: Question) -> Any:
    """The class of a kept answer, or several of them in a union."""
    answers = get_args(question.answer_type()) or (question.answer_type(),)
    return reduce(or_, map(results.kept_class, answers))


def _form(request: Request, question: Question, name: str | None) -> Form | None:
    """The form that a call asks for, by name or by what it accepts; None: JSON."""
    if name is not None:
        return next((form for form in question.forms if form.name == name), None)
    types = {form.media_type: form for form in question.forms}
    return types.get(negotiation.preferred_media_type(request, negotiation.JSON, *types))


def _schema(form: Form) -> dict[str, str]:
    return {"type": "object"} if form.media_type.endswith("json") else {
        "type": "string", "format": "binary",
    }  # fmt: skip


def _has_plan(document: Any) -> bool:
    return isinstance(document, dict) and document.get("plan") is not None
