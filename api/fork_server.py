"""The fork server of the pools: it imports once what every worker process needs.

This module imports almost nothing, so that the process starts at once, in parallel to the service.
"""

from __future__ import annotations

from multiprocessing import forkserver, get_context

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["api.pool_worker", "api.work", "planner.questions.answers"])


def start() -> None:
    """Start the fork server, which begins to import."""
    forkserver.ensure_running()
