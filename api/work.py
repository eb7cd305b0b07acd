"""The worker processes: each runs pieces of work for its server until the server is gone.

Between two pieces a process gets ready what most searches need: times of small pipelines.  This
file is all that such a process has of the service.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from pydantic import BaseModel

from api.budget import Budget, Looking, OverBudget
from planner.answers import solve
from planner.answers.identity import answer_id, build
from planner.answers.solve import IllegalPlan
from planner.documents.problems import RequestError
from planner.drawing.trace import trace
from planner.frameworks.base import Unsupported
from planner.intake.parsing import parse_request
from planner.pipelines.requested import read_timeline
from planner.progress import NothingYet, Stopped, Watch, watched
from planner.search.exhaustive import SpaceTooLarge

build()  # once, before the processes that share it are forked
# Errors of the request; every other exception is a bug of the planner.
_ANSWERS = (RequestError, IllegalPlan, Unsupported, SpaceTooLarge, Stopped)
_IDLE_S = 0.5  # time without work after which a process prepares for searches
_TYPICAL = ("gpt3-175b", "128x8xh100-sxm", 2048, 1536), ("mixtral-8x7b", "16x8xh100-sxm", 4096, 512)


class Fault(Exception):
    """A bug, raised in another process; the text has the exception's type and its lines of code."""


def where(error: BaseException) -> str:
    """The kind of an error and the lines it passed; not its message, which may repeat a request."""
    if isinstance(error, Fault):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    return " ".join([type(error).__name__, *(f"{f.filename}:{f.lineno}" for f in frames)])


def dumped(find: Callable[..., BaseModel], *asked: Any) -> bytes:
    """An answer as its JSON document."""
    return find(*asked).model_dump_json().encode()


def estimate(document: Any, known: str) -> tuple[str, bytes | None]:
    """The id of an estimate, and its document unless it is among the known ones."""
    request = parse_request(document, need_plan=True)
    assert request.plan is not None
    id = answer_id("es", request.document())
    return id, None if id in known else dumped(solve.estimate, request, request.plan)


def traced(document: Any) -> str:
    """The trace of the timeline that a document asks for."""
    return trace(read_timeline(document))


def serve(connection: Connection, nice: int, warm: bool) -> None:
    """Run the work that comes over the connection, until the other end closes it.

    nice: the niceness of the process.  warm: prepare for searches while idle.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server says when to end
    os.nice(nice)
    typical = list(_TYPICAL) if warm else []
    try:
        while True:
            if typical and not connection.poll(_IDLE_S):
                _try(typical.pop(0), connection)
            elif (piece := connection.recv()) is not None:  # None: a stop that came too late
                connection.send(_done(connection, *piece))
    except (EOFError, OSError):
        return


def _try(typical: tuple[str, str, int, int], connection: Connection) -> None:
    model, cluster, seq_length, batch = typical
    training = {"seq_length": seq_length, "global_batch_size": batch}
    document = {"model": model, "cluster": cluster, "training": training}
    try:
        with watched(Watch(stopped=connection.poll)):
            solve.find(parse_request(document))
    except Stopped:
        return


def _done(
    connection: Connection, work: Callable[..., Any], asked: tuple[Any, ...], budget: Budget
) -> tuple[str, Any]:
    looking = Looking(budget, lambda step: connection.send(("step", step)))
    try:
        # While it works, all that can come is the word to stop.
        with watched(Watch(looking.show, connection.poll, looking.enough)):
            content = work(*asked)
            return "answer", (content, looking.spent)
    except NothingYet:
        assert looking.spent is not None
        return "error", OverBudget(looking.spent)
    except _ANSWERS as error:
        return "error", error
    except Exception as error:
        return "error", Fault(where(error))
