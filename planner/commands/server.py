"""Where the command line's questions are answered: here, or by the service of --server."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import BaseModel

    from planner.client import Client as Client

T = TypeVar("T")
M = TypeVar("M", bound="BaseModel")
VARIABLE = "PLANNER_SERVER"
# What these name is the service's: it has sites and profiles of its own.
_ITS_OWN = ("profile", "site")
_url: ContextVar[str | None] = ContextVar("url", default=None)


def choose(server: str | None, command: str, *, remote: bool) -> None:
    """Have a command answered by the service of --server or else $PLANNER_SERVER, or here.

    remote: whether a service can.  Raises RequestError for a --server with a command that only this
    machine can answer.
    """
    named = server or os.environ.get(VARIABLE) or None
    _url.set(named if server or remote else None)
    if not remote:
        only_here(f"planner {command}")
        if named:
            print(
                f"note: planner {command} runs on this machine and ignores {VARIABLE}",
                file=sys.stderr,
            )


def set_apart(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(--server and its value as one word, the others), where a command line begins with it."""
    if len(arguments) > 1 and arguments[0] == "--server":
        return [f"--server={arguments[1]}"], list(arguments[2:])
    count = int(bool(arguments) and arguments[0].startswith("--server="))
    return list(arguments[:count]), list(arguments[count:])


def chosen() -> str | None:
    """The address of the service that answers; None: this machine does."""
    return _url.get()


def repeated(line: str) -> str:
    """A command to copy, asked where this one was."""
    url = chosen()
    if url is None or url == os.environ.get(VARIABLE):
        return line
    return line.replace("planner ", f"planner --server {shlex.quote(url)} ", 1)


def service() -> Client | None:
    """The service that was chosen, with the key of the environment.  Raises RequestError."""
    if (url := chosen()) is None:
        return None
    from planner.client import Client

    return Client.of_environment(url)


def answered(locally: Callable[[], T], remotely: Callable[[Client], T]) -> T:
    """The answer of this machine, or of the service that was chosen.

    Raises ServiceError where that gives none, and what `locally` would raise.
    """
    client = service()
    if client is None:
        return locally()
    try:
        answer = remotely(client)
    except KeyboardInterrupt:
        _tell_best(client)
        raise
    if client.kept is not None and (spent := client.kept.spent) is not None:
        bound = f"{spent['bound']} of {spent['allowed']:,g}"
        print(f"note: the search ended early, at {bound}: {spent['advice']}", file=sys.stderr)
    return answer


def as_a_job(
    client: Client, kind: str, document: Mapping[str, Any], part: str, model: type[M]
) -> M:
    """What a long question answers that is run as a job.

    kind: of jobs, as in the address.  part: of the result, that has the answer.  Ctrl-C cancels the
    job; then this is what it has found so far.  Raises RequestError, ServiceError,
    KeyboardInterrupt where a cancelled job has found nothing.
    """
    from planner.presentation.terminal.progress_bar import bar

    job = getattr(client, f"start_{kind}")(document)
    try:
        with bar(kind, best=False):
            print(f"job {job.id} of {client.url}", file=sys.stderr)
            job = client.finished(job)
    except KeyboardInterrupt:
        print(f"\nStopped: cancelling job {job.id}", file=sys.stderr)
        job = client.cancelled(job)
        if job.result is None:
            raise
    return client.read_answer(model, json.dumps((job.result or {}).get(part)).encode())


def _tell_best(client: Client) -> None:
    """Say what a search had found when it was stopped."""
    if (best := client.best) is None:
        return
    from planner.documents.formats import seconds, whole_plan_words

    text = " · ".join(whole_plan_words(best["plan"]))
    each = f"{seconds(best['iteration_time_s'])} per iteration"
    print(f"\nStopped. Best so far: {text}: {each}", file=sys.stderr)


def split_service_names(document: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """(what can be checked here, names that the service alone can look up) of a document."""
    if chosen() is None:
        return dict(document), {}
    names = {name: value for name in _ITS_OWN if isinstance(value := document.get(name), str)}
    return {name: value for name, value in document.items() if name not in names}, names


def only_here(what: str) -> None:
    """Raise RequestError where a service was chosen for what only this machine can do."""
    if chosen() is not None:
        from planner.documents.problems import refuse

        detail = f"{what} is of this machine, not of a service: leave --server and {VARIABLE} out"
        raise refuse("", "usage", detail)
