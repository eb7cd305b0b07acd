"""Kubernetes with JobSet: one object that names its pods and ends with any of them.

JobSet 0.2 and later (jobset.x-k8s.io/v1alpha2).
"""

from __future__ import annotations

from typing import Any

from planner.documents.request import PlanRequest
from planner.frameworks.base import Bundle
from planner.frameworks.launchers import job_name
from planner.frameworks.launchers.kubernetes import IMAGE, carried, indexed, worker_pod
from planner.frameworks.rules import nodes

_ROLE = "node"


def launch(bundle: Bundle, request: PlanRequest, name: str = "", image: str = IMAGE) -> Bundle:
    """The bundle with a manifest: `kubectl create -f job.yaml`.

    name: of what it creates, else the model's.

    Raises CannotLaunch where the framework's launcher needs ssh between the nodes.
    """
    name = name or job_name(request)
    return carried(bundle, request, name, _job_set(name, bundle, request, image))


def _job_set(name: str, bundle: Bundle, request: PlanRequest, image: str) -> dict[str, Any]:
    # JobSet's own headless service: JOBSET-ROLE-0-INDEX.JOBSET, before a pod is ready.
    pod = worker_pod(name, bundle, request, image, f"{name}-{_ROLE}-0-0.{name}")
    job = {"spec": indexed(pod, nodes(request.cluster))}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [{"name": _ROLE, "replicas": 1, "template": job}],
        },
    }
