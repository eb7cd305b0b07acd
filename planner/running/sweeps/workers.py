"""Distributes questions to workers: local processes, or those of a Ray or Dask cluster."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from planner.documents.problems import refuse, shown
from planner.running.sweeps.question import Result, ask

# Consecutive rounds without an answer that end because workers died.
MAX_FAILURES = 3
# Longer than any question takes.
PATIENCE_S = 3600.0
# After this idle time a worker exits, since its sweep may have been killed.
_IDLE_S = 30

Document = dict[str, Any]


@dataclass(frozen=True)
class Ready:
    """A started worker backend.

    name, options: of joblib's backend.  died: the errors that mean that workers died.
    patience_s: time without an answer after which workers count as dead.
    """

    name: str
    died: tuple[type[BaseException], ...]
    options: dict[str, Any] = field(default_factory=dict)
    patience_s: float | None = None


class WorkersLost(RuntimeError):
    """Workers die repeatedly while they answer the remaining questions."""


def answers(
    questions: Mapping[str, Document], backend: str, workers: int | None
) -> Iterator[tuple[str, Result]]:
    """The results by key, each as soon as it is available.

    workers: their number; None: one per core of the machine or cluster.  If a worker dies, the
    unanswered questions are asked again.  Raises RequestError if the backend is not installed,
    WorkersLost if workers die repeatedly.
    """
    from joblib import Parallel, delayed, parallel_config

    rest, failures = dict(questions), 0
    with BACKENDS[backend](workers) as ready:
        while rest:
            before = len(rest)
            try:
                with parallel_config(ready.name, n_jobs=workers or -1, **ready.options):
                    # One question per batch, so that each answer is returned at once.
                    run = Parallel(
                        batch_size=1, return_as="generator_unordered", timeout=ready.patience_s
                    )
                for key, result in run(delayed(_ask)(*item) for item in list(rest.items())):
                    del rest[key]
                    yield key, result
            except ready.died as error:
                failures = failures + 1 if len(rest) == before else 1
                if failures == MAX_FAILURES:
                    detail = f"workers died {failures} times at the last {len(rest):,} questions"
                    raise WorkersLost(detail) from error
                # The fatal question is among the first, so reverse the order to ask it last.
                rest = dict(reversed(rest.items()))


def _ask(key: str, document: Document) -> tuple[str, Result]:
    return key, ask(document)


@contextmanager
def _local(workers: int | None) -> Iterator[Ready]:
    yield Ready("loky", (BrokenExecutor,), {"idle_worker_timeout": _IDLE_S})


@contextmanager
def _ray(workers: int | None) -> Iterator[Ready]:
    """The Ray cluster of this process or of $RAY_ADDRESS, or else a new local one."""
    _require("ray")
    import ray
    from joblib import register_parallel_backend
    from ray.exceptions import OutOfMemoryError, RayActorError
    from ray.util.joblib.ray_backend import RayBackend

    # joblib disables streamed results for pools, since its own pool hangs when a worker dies.
    # Ray's pool raises an error then, so streaming is safe.
    streaming = type("StreamingRayBackend", (RayBackend,), {"supports_return_generator": True})
    register_parallel_backend("ray", streaming)
    address = os.environ.get("RAY_ADDRESS")
    limits = {} if address else {"num_cpus": workers}
    starts = not ray.is_initialized()
    if starts:
        with _connecting(address):
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **limits)
    # Until its shutdown, Ray prints the state of its workers to standard output, where the answer
    # belongs.
    with redirect_stdout(sys.stderr):
        try:
            yield Ready("ray", (RayActorError, OutOfMemoryError))
        finally:
            if starts:
                ray.shutdown()


@contextmanager
def _dask(workers: int | None) -> Iterator[Ready]:
    """The Dask client of this process or of $DASK_SCHEDULER_ADDRESS, or else a new local one."""
    _require("dask", "distributed")
    from multiprocessing import TimeoutError  # the one that joblib raises

    import dask
    from distributed import Client, KilledWorker, get_client

    client: AbstractContextManager[Any]
    try:
        client = nullcontext(get_client())
    except ValueError:
        if address := dask.config.get("scheduler-address", None):
            with _connecting(address):
                client = Client()
        else:
            client = Client(n_workers=workers, threads_per_worker=1, dashboard_address=None)
    with client:
        # If a question has killed too many workers, Dask reports nothing and joblib keeps waiting.
        yield Ready("dask", (KilledWorker, TimeoutError), patience_s=PATIENCE_S)


@contextmanager
def _connecting(address: str | None) -> Iterator[None]:
    """Raise RequestError if no cluster answers at the address."""
    try:
        yield
    except OSError as error:  # includes ConnectionError and TimeoutError
        if address is None:
            raise
        detail = f"no cluster answers at {shown(address)}: {error}"
        raise refuse("/backend", "unreachable", detail, address) from None


_PACKAGES = {"dask": "dask distributed", "ray": "ray"}


def _require(extra: str, module: str | None = None) -> None:
    if find_spec(module or extra) is None:
        detail = f"needs {extra.capitalize()}: pip install {_PACKAGES[extra]}"
        raise refuse("/backend", "not_installed", detail, extra)


BACKENDS: dict[str, Callable[[int | None], AbstractContextManager[Ready]]] = {
    "local": _local,
    "ray": _ray,
    "dask": _dask,
}
