"""Jobs begun under another version of the steps: DBOS resumes a workflow under its own alone."""

from __future__ import annotations

import logging
from typing import Final

from dbos import DBOS

from planner.running.store import Store

# The version of the steps and their order (workflows.py).  A job begun under another version begins
# again, so increase it whenever the steps change.
STEPS_VERSION: Final = "3"
_VERSION_MARK = "/v"  # before the version in an executor's name, which early releases lack
_NOTE = "begins again from its first step: it was begun by another version of the service"
_log = logging.getLogger(__name__)


def named(executor: str) -> str:
    """The name of an executor that says its version."""
    return f"{executor}{_VERSION_MARK}{STEPS_VERSION}"


def requeue(store: Store, lease_s: float) -> None:
    """Have jobs begin again from their requests, once no server of their version is left."""
    if not _workflows_without_server(store, lease_s):
        return
    with store.database.exclusive():  # two servers would undo each other's work
        for id in _workflows_without_server(store, lease_s):
            _log.warning("job %s %s", id, _NOTE)
            store.jobs.requeue(id, _NOTE)
            DBOS.delete_workflows([id])


def _workflows_without_server(store: Store, lease_s: float) -> list[str]:
    begun = DBOS.list_workflows(status=["PENDING", "ENQUEUED"], load_input=False, load_output=False)
    others = [w for w in begun if w.app_version != STEPS_VERSION]
    if not others:
        return []
    versions = {name.partition(_VERSION_MARK)[2] for name in store.servers.alive(lease_s)}
    if "" in versions:  # of an earlier release, which may be of any of them
        return []
    return [w.workflow_id for w in others if w.app_version not in versions]
