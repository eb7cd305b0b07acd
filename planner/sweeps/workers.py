"""Questions handed to workers: processes of this machine, or those of a Ray or Dask cluster."""

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
from planner.sweeps.question import Result, ask

# Rounds that end with dead workers, one after the other and without an answer in between.
MOST_FAILURES = 3
# Longer than any question takes.
PATIENCE_S = 3600.0
# A worker whose sweep was killed hears nothing any more, and then leaves.
_IDLE_S = 30

Document = dict[str, Any]


@dataclass(frozen=True)
class Ready:
    """Workers that wait for work.

    name, options: joblib's backend.  died: the errors that mean that workers died.
    patience_s: after how long without an answer they count as dead.
    """

    name: str
    died: tuple[type[BaseException], ...]
    options: dict[str, Any] = field(default_factory=dict)
    patience_s: float | None = None


class WorkersLost(RuntimeError):
    """The workers die of the questions that are left."""


def answers(
    questions: Mapping[str, Document], backend: str, workers: int | None
) -> Iterator[tuple[str, Result]]:
    """The results by key, each as soon as it is there.

    workers: how many at a time; None: as many as the machine or the cluster has cores.  When a
    worker dies, what is not answered is asked again.  Raises RequestError where the backend is
    not installed, WorkersLost where workers die again and again.
    """
    from joblib import Parallel, delayed, parallel_config

    left, failures = dict(questions), 0
    with BACKENDS[backend](workers) as ready:
        while left:
            before = len(left)
            try:
                with parallel_config(ready.name, n_jobs=workers or -1, **ready.options):
                    # One question at a time: an answer leaves its worker at once.
                    run = Parallel(
                        batch_size=1, return_as="generator_unordered", timeout=ready.patience_s
                    )
                for key, result in run(delayed(_ask)(*item) for item in list(left.items())):
                    del left[key]
                    yield key, result
            except ready.died as error:
                failures = failures + 1 if len(left) == before else 1
                if failures == MOST_FAILURES:
                    detail = f"workers died {failures} times at the last {len(left):,} questions"
                    raise WorkersLost(detail) from error
                # What they died of is among the first: now it comes last.
                left = dict(reversed(left.items()))


def _ask(key: str, document: Document) -> tuple[str, Result]:
    return key, ask(document)


@contextmanager
def _local(workers: int | None) -> Iterator[Ready]:
    yield Ready("loky", (BrokenExecutor,), {"idle_worker_timeout": _IDLE_S})


@contextmanager
def _ray(workers: int | None) -> Iterator[Ready]:
    """The Ray cluster of this process or of $RAY_ADDRESS, or else one of this machine."""
    _need("ray")
    import ray
    from joblib import register_parallel_backend
    from ray.exceptions import OutOfMemoryError, RayActorError
    from ray.util.joblib.ray_backend import RayBackend

    # joblib has pools return all at the end, since one of its own hangs when a worker dies.
    # Ray's raises.
    streaming = type("StreamingRayBackend", (RayBackend,), {"supports_return_generator": True})
    register_parallel_backend("ray", streaming)
    address = os.environ.get("RAY_ADDRESS")
    here = {} if address else {"num_cpus": workers}
    own = not ray.is_initialized()
    if own:
        with _reaching(address):
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **here)
    # Ray's threads print what becomes of its workers, where the answer belongs, until it is shut
    # down.
    with redirect_stdout(sys.stderr):
        try:
            yield Ready("ray", (RayActorError, OutOfMemoryError))
        finally:
            if own:
                ray.shutdown()


@contextmanager
def _dask(workers: int | None) -> Iterator[Ready]:
    """The Dask client of this process or of $DASK_SCHEDULER_ADDRESS, or else this machine."""
    _need("dask", "distributed")
    from multiprocessing import TimeoutError  # the one that joblib raises

    import dask
    from distributed import Client, KilledWorker, get_client

    client: AbstractContextManager[Any]
    try:
        client = nullcontext(get_client())
    except ValueError:
        if address := dask.config.get("scheduler-address", None):
            with _reaching(address):
                client = Client()
        else:
            client = Client(n_workers=workers, threads_per_worker=1, dashboard_address=None)
    with client:
        # Where a question has killed too many workers, Dask says nothing and joblib waits on.
        yield Ready("dask", (KilledWorker, TimeoutError), patience_s=PATIENCE_S)


@contextmanager
def _reaching(address: str | None) -> Iterator[None]:
    """Refuse the address of a cluster that does not answer."""
    try:
        yield
    except OSError as error:  # ConnectionError and TimeoutError are some
        if address is None:
            raise
        detail = f"no cluster answers at {shown(address)}: {error}"
        raise refuse("/backend", "unreachable", detail, address) from None


_PACKAGES = {"dask": "dask distributed", "ray": "ray"}


def _need(extra: str, module: str | None = None) -> None:
    if find_spec(module or extra) is None:
        detail = f"needs {extra.capitalize()}: pip install {_PACKAGES[extra]}"
        raise refuse("/backend", "not_installed", detail, extra)


BACKENDS: dict[str, Callable[[int | None], AbstractContextManager[Ready]]] = {
    "local": _local,
    "ray": _ray,
    "dask": _dask,
}
