"""Kubernetes through kubectl: a JobSet, or a TrainJob of Kubeflow Trainer, in the current context.

Pods share no folder: each pod copies its files from a ConfigMap, and prints the results of its
ranks as lines at the end of its log.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import yaml

from cost_models import package_files
from planner.documents.problems import refuse, shown
from planner.frameworks.base import Bundle
from planner.frameworks.launchers import jobset, trainjob
from planner.frameworks.launchers.kubernetes import FILE, IMAGE
from planner.running.validate import executors
from planner.running.validate.executors.cluster_client import ClientError, call

Kind = Literal["jobset", "trainjob"]
_RENDER: dict[Kind, Callable[..., Bundle]] = {"jobset": jobset.launch, "trainjob": trainjob.launch}
_RESOURCES: dict[Kind, str] = {
    "jobset": "jobsets.jobset.x-k8s.io",
    "trainjob": "trainjobs.trainer.kubeflow.org",
}
_POD = "pod.sh"
_RESULT = re.compile(r"^@result rank-(\d{1,7})\.json ([A-Za-z0-9+/=]+)$", re.M)
# Final conditions of a JobSet or a TrainJob.
_ENDS: dict[str, executors.State] = {
    "Completed": "succeeded",
    "Complete": "succeeded",
    "Failed": "failed",
}


class Kubernetes(executors.Executor):
    """Runs as one JobSet or TrainJob, which creates a pod per node."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def render(self, launches: Sequence[executors.RemoteRun]) -> Bundle:
        """The manifest.  Raises CannotLaunch if Kubernetes has no name for the accelerators."""
        launch = executors.only(launches, self.kind)
        name = executors.run_name(launch)
        made = executors.bundle(launch, name)
        script = package_files.text(executors.__name__, "pod.sh.txt")
        made = made.model_copy(update={"main": _POD, "files": {_POD: script, **made.files}})
        return _RENDER[self.kind](made, launch.request, name, launch.image or IMAGE)

    def submit(self, folder: Path, launches: Sequence[executors.RemoteRun]) -> executors.Handle:
        """Create the objects, or none of them."""
        launch = executors.only(launches, self.kind)
        if not launch.image:
            raise refuse("/image", "missing", "say which image has torch and this package")
        objects = list(yaml.safe_load_all((folder / FILE).read_text(encoding="utf-8")))
        try:
            call(["kubectl", "create", f"--filename={FILE}"], folder)
        except ClientError:
            with suppress(ClientError):
                self._delete(folder)  # safe, since the names are unique to this run
            raise
        return executors.Handle(
            launcher=self.kind, folder=str(folder), id=objects[-1]["metadata"]["name"],
            ranks=launch.ranks,
        )  # fmt: skip

    def poll(self, handle: executors.Handle) -> tuple[executors.Status, ...]:
        """The state from the object's conditions, or before its end from its pods."""
        try:
            resource = _get(_RESOURCES[self.kind], handle.id)
        except ClientError as error:
            if "(NotFound)" in error.stderr:
                return (executors.Status(state="cancelled", detail="the cluster has it no more"),)
            raise
        for condition in resource.get("status", {}).get("conditions", ()):
            if condition["type"] in _ENDS and condition["status"] == "True":
                detail = str(shown(condition.get("message", "")))
                return (executors.Status(state=_ENDS[condition["type"]], detail=detail),)
        return (_status_of_pods(_pods(handle)),)

    def cancel(self, handle: executors.Handle) -> None:
        """Delete the objects, and with them the pods and their logs."""
        self._delete(Path(handle.folder))

    def collect(self, handle: executors.Handle) -> tuple[Path, ...]:
        """The folder, with the log of each pod and the results from it."""
        (folder,) = executors.folders(handle)
        for pod in _pods(handle):
            name = pod["metadata"]["name"]
            try:
                log = call(["kubectl", "logs", f"pod/{name}"])
            except ClientError as error:
                log = f"{error}\n"
            (folder / f"{Path(name).name}.log").write_text(log, encoding="utf-8")
            for rank, result in _results(log):
                if rank < handle.ranks:
                    (folder / f"rank-{rank}.json").write_bytes(result)
        return (folder,)

    def _delete(self, folder: Path) -> None:
        call(
            ["kubectl", "delete", "--ignore-not-found", "--wait=false", f"--filename={FILE}"],
            folder,
        )


def _get(*arguments: str) -> dict[str, Any]:
    answer = call(["kubectl", "get", *arguments, "--output=json"])
    try:
        document: dict[str, Any] = json.loads(answer)
    except ValueError:
        detail = "kubectl answered with something else than JSON"
        raise ClientError("client_refused", detail) from None
    return document


def _pods(handle: executors.Handle) -> list[dict[str, Any]]:
    """The pods of a JobSet, or of the JobSet that a TrainJob creates under its own name."""
    pods: list[dict[str, Any]] = _get(
        "pods", f"--selector=jobset.sigs.k8s.io/jobset-name={handle.id}"
    )["items"]
    return pods


def _status_of_pods(pods: list[dict[str, Any]]) -> executors.Status:
    """The state of an unfinished run: running, or waiting with the reason of a waiting pod."""
    statuses = [pod.get("status", {}) for pod in pods]
    waiting = next((reason for status in statuses for reason in _waiting_reasons(status)), "")
    if waiting or not pods:
        return executors.Status(state="waiting", detail=str(shown(waiting or "it has no pods yet")))
    return executors.Status(state="running", detail=f"{len(pods)} pods")


def _waiting_reasons(status: dict[str, Any]) -> Iterator[str]:
    """The reasons why a pod does not run yet."""
    for container in status.get("containerStatuses", ()):
        if waiting := container.get("state", {}).get("waiting"):
            yield f"{waiting.get('reason', 'waiting')}: {waiting.get('message', '')}"
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] != "True":
            yield f"{condition.get('reason', 'not scheduled')}: {condition.get('message', '')}"


def _results(log: str) -> Iterator[tuple[int, bytes]]:
    for rank, text in _RESULT.findall(log):
        try:
            yield int(rank), base64.b64decode(text, validate=True)
        except binascii.Error:  # truncated: the rank counts as one without a result
            continue
