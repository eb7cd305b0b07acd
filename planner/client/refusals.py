"""What a service says in place of an answer, as the errors of the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError

from planner.documents.problems import Problem, RequestError, ServiceError, refuse, shown
from planner.version import __version__

Version = Callable[[], str | None]
_UNKNOWN = frozenset({"unknown_field"})  # what a service of another version may say


def unreachable(url: str, error: Exception) -> ServiceError:
    """No connection, or one that ended before the answer."""
    cause = getattr(error, "reason", error)
    reason = "it does not answer in time" if isinstance(cause, TimeoutError) else _reason(cause)
    return ServiceError(f"no answer from {url}: {reason}", passing=True)


def unreadable(url: str, error: Exception, version: Version) -> ServiceError:
    """An answer that this planner cannot read."""
    if (other := _other_version(url, version)) is not None:
        return other
    location = ""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        location = f" ({'/'.join(map(str, first['loc']))}: {first['msg']})"
    return ServiceError(f"the response of {url} is not from planner {__version__}{location}")


def refusal(
    url: str, status: int, retry_after: str | None, content: bytes, with_key: bool, version: Version
) -> Exception:
    """The error for a problem document: RequestError where the request is wrong."""
    document = _document(content)
    if status == 422 and document:
        return _wrong_request(url, document, version)
    if status == 401:
        fault = "does not know this key" if with_key else "needs a key"
        return ServiceError(f"{url} {fault}: set PLANNER_API_KEY or PLANNER_API_KEY_FILE", document)
    if status in (429, 503):
        when = f"; try again in {retry_after} s" if retry_after else "; try again later"
        reason = _text(document or {}, "detail", HTTPStatus(status).phrase)
        return ServiceError(f"{url} is busy: {reason}{when}", document, passing=True)
    foreign = document is None or status in (404, 405)
    if foreign and (other := _other_version(url, version)) is not None:
        return other
    if document is None:
        phrase = f"{status} {_phrase(status)}".strip()
        return ServiceError(f"{url} answers {phrase}, not as a service of the planner does")
    number = _text(document, "request_id") if status >= 500 else ""
    known = f" (request {number})" if number else ""
    title, detail = (_text(document, "title", _phrase(status)), _text(document, "detail"))
    return ServiceError(f"{url} refuses: {title}: {detail}{known}", document)


def failed_job(url: str, id: str, error: Mapping[str, Any] | None) -> ServiceError:
    """A job that ended without a result."""
    document = error or {"type": "about:blank", "title": "The job was cancelled", "status": 409}
    reason = ": ".join(str(document[name]) for name in ("title", "detail") if document.get(name))
    return ServiceError(f"job {id} of {url}: {reason}", document)


def _other_version(url: str, version: Version) -> ServiceError | None:
    """That the service is of another version, where it is."""
    running = version()
    if running is None or running == __version__:
        return None
    return ServiceError(
        f"{url} runs planner {running} and this is {__version__}, whose documents differ: "
        f"install version {running} here, or ask a service of {__version__}"
    )


def _wrong_request(url: str, document: Mapping[str, Any], version: Version) -> Exception:
    from planner.answers.plans.emission import NothingFits

    problems = _problems(document)
    if not problems:
        return refuse("", "usage", str(document.get("detail")))
    if not _UNKNOWN.isdisjoint(p.code for p in problems):
        # The same parser read the request here and found nothing.
        return _other_version(url, version) or RequestError(problems)
    if [p.code for p in problems] == ["nothing_fits"]:
        return NothingFits(problems[0].detail)
    return RequestError(problems)


def _text(document: Mapping[str, Any], name: str, otherwise: str = "") -> str:
    """A text of a document, fit to print; the other one where it has none."""
    return str(shown(str(document.get(name) or otherwise)))


def _document(content: bytes) -> dict[str, Any] | None:
    """A problem document; None where the content is something else."""
    try:
        document = json.loads(content)
    except ValueError:
        return None
    return document if isinstance(document, dict) and "title" in document else None


def _problems(document: Mapping[str, Any]) -> tuple[Problem, ...]:
    try:
        return tuple(Problem.model_validate(e) for e in document.get("errors") or ())
    except (ValidationError, TypeError):
        return ()


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _reason(error: Any) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(shown(str(text)))
