"""The worker processes: each runs pieces of work for its server until the server is gone.

While idle, a process computes what most searches need: times of small pipelines.  Of the service
it imports only api.budget and api.field_selection beside this file.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from api.budget import Budget, OverBudget, SearchMonitor, own_memory_bytes
from api.field_selection import chosen
from planner.answers.plans import plan_answers
from planner.answers.plans.alike import Shared, shared
from planner.answers.plans.answer_ids import build_id, estimate_id
from planner.answers.plans.plan_answers import IllegalPlan
from planner.documents.field_selection import Fields
from planner.documents.problems import RequestError
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty.asker import as_caller
from planner.frameworks.base import Unsupported
from planner.huggingface import building
from planner.inputs.requests.parser import parse_request
from planner.parent_process import die_with_parent
from planner.progress import NothingYet, Stopped, Watch, watched
from planner.search.exhaustive import SpaceTooLarge

build_id()  # once, before the processes that share it are forked
# Errors of the request; every other exception is a bug of the planner.
_REQUEST_ERRORS = (RequestError, IllegalPlan, Unsupported, SpaceTooLarge, Stopped)
_MOST_KEPT, _LONGEST_KEPT_BYTES = 256, 1 << 16
_kept: dict[str, bytes] = {}  # estimates of this process by their id, which decides them
# New objects, and rounds of them: one answer makes thousands, and leaves no cycles behind.
_COLLECTED_AFTER = 20_000, 20, 20
# More than this is mostly freed already, but kept by malloc, and would count for the next question.
_MOST_MEMORY_BYTES = 256 << 20
_IDLE_S = 0.5  # time without work after which a process prepares for searches
_TYPICAL = ("gpt3-175b", "128x8xh100-sxm", 2048, 1536), ("mixtral-8x7b", "16x8xh100-sxm", 4096, 512)


class Fault(Exception):
    """A bug, raised in another process; the text has the exception's type and its lines of code."""


def error_location(error: BaseException) -> str:
    """An error's type and traceback lines; not its message, which may quote the request."""
    if isinstance(error, Fault):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    return " ".join([type(error).__name__, *(f"{f.filename}:{f.lineno}" for f in frames)])


class EstimateRequest(NamedTuple):
    """A request for an estimate: its document, the ids that its caller knows, and the fields."""

    document: Any
    known: str = ""
    fields: Fields = ()


def estimates(requests: Sequence[EstimateRequest]) -> list[tuple[str, Any]]:
    """The id and the document (None if it is known) of each request, or its error; see `serve`.

    Those that differ in nothing but the plan and the size of a step are priced together.
    """
    results: list[tuple[str, Any]] = [("", None)] * len(requests)
    by_shared: dict[Shared, list[tuple[int, str, PlanRequest]]] = {}
    for i, entry in enumerate(requests):
        try:
            request = parse_request(entry.document, need_plan=True)
            id = estimate_id(request)
        except Exception as error:
            results[i] = "error", _portable_error(error)
            continue
        if id in entry.known:
            results[i] = "answer", (id, None)
        elif content := _kept.get(id):
            results[i] = "answer", (id, chosen(content, entry.fields))
        else:
            by_shared.setdefault(shared(request), []).append((i, id, request))
    groups = list(by_shared.values())
    while groups:
        group = groups.pop()
        try:
            answers = plan_answers.estimates(
                [(request, request.named_plan) for *_, request in group]
            )
            for (i, id, _), answer in zip(group, answers, strict=True):
                if isinstance(answer, IllegalPlan):
                    results[i] = "error", answer
                    continue
                content = answer.model_dump_json().encode()
                _keep(id, content)
                results[i] = "answer", (id, chosen(content, requests[i].fields))
        except Exception as error:
            if len(group) > 1:  # one may have failed for all
                groups += [[entry] for entry in group]
            else:
                results[group[0][0]] = "error", _portable_error(error)
    return results


def _keep(id: str, content: bytes) -> None:
    """Keep an estimate for whoever asks the same of this process; the oldest one goes."""
    if len(_kept) >= _MOST_KEPT:
        del _kept[next(iter(_kept))]
    if len(content) <= _LONGEST_KEPT_BYTES:
        _kept[id] = content


def serve(connection: Connection, nice: int, warm: bool) -> None:
    """Run the work that comes over the connection, until the other end closes it.

    nice: the niceness of the process.  warm: prepare for searches while idle.
    """
    die_with_parent()  # without the fork server, the service could not end this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server says when to end
    os.nice(nice)
    gc.freeze()  # what is imported is never freed: collections need not look at it
    gc.set_threshold(*_COLLECTED_AFTER)
    typical = list(_TYPICAL) if warm else []
    try:
        while True:
            if typical and not connection.poll(_IDLE_S):
                _warm_up(typical.pop(0), connection)
            elif (piece := connection.recv()) is not None:  # None: a stop that came too late
                connection.send(_computed(connection, *piece))
                if own_memory_bytes(os.getpid()) > _MOST_MEMORY_BYTES:
                    _return_freed_memory()
    except (EOFError, OSError):
        return


def _return_freed_memory() -> None:
    with suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _warm_up(typical: tuple[str, str, int, int], connection: Connection) -> None:
    model, cluster, seq_length, batch = typical
    training = {"seq_length": seq_length, "global_batch_size": batch}
    document = {"model": model, "cluster": cluster, "training": training}
    try:
        with watched(Watch(stopped=connection.poll)):
            plan_answers.find(parse_request(document))
    except Stopped:
        return


def _computed(
    connection: Connection, work: Callable[..., Any], arguments: tuple[Any, ...], budget: Budget
) -> tuple[str, Any]:
    monitor = SearchMonitor(budget, lambda step: connection.send(("step", step)))
    try:
        # While it works, all that can come is the word to stop.
        watch = Watch(monitor.show, connection.poll, monitor.enough)
        with watched(watch), building(budget.build_models), as_caller(budget.asker):
            content = work(*arguments)
            return "answer", (content, monitor.spent)
    except NothingYet:
        assert monitor.spent is not None
        return "error", OverBudget(monitor.spent)
    except Exception as error:
        return "error", _portable_error(error)


def _portable_error(error: Exception) -> Exception:
    """An error that can be sent to the server's process."""
    return error if isinstance(error, _REQUEST_ERRORS) else Fault(error_location(error))
