"""Kubernetes with Kubeflow Trainer: a TrainJob of its torch runtime.

Kubeflow Trainer 2.2 and later (trainer.kubeflow.org/v1alpha1 with runtimePatches).
"""

from __future__ import annotations

from typing import Any

from planner.documents.request import PlanRequest
from planner.frameworks.base import Bundle
from planner.frameworks.launchers import job_name
from planner.frameworks.launchers.kubernetes import (
    IMAGE,
    carried,
    command,
    mounts,
    resources,
    volumes,
)
from planner.frameworks.rules import accelerators_per_node, nodes

# The runtime that Trainer installs, and its one replicated job and that one's container.
RUNTIME = "torch-distributed"
_ROLE = "node"
# The runtime sets torchrun's variables in every pod; a bundle's script reads its own.
_VARIABLES = (
    'NODE_RANK="$PET_NODE_RANK" MASTER_ADDR="$PET_MASTER_ADDR" MASTER_PORT="$PET_MASTER_PORT"'
)


def launch(bundle: Bundle, request: PlanRequest, name: str = "", image: str = IMAGE) -> Bundle:
    """The bundle with a manifest: `kubectl create -f job.yaml`.

    name: of what it creates, else the model's.

    Raises CannotLaunch where the framework's launcher needs ssh between the nodes.
    """
    name = name or job_name(request)
    return carried(bundle, request, name, _train_job(name, bundle, request, image))


def _train_job(name: str, bundle: Bundle, request: PlanRequest, image: str) -> dict[str, Any]:
    pod = {"containers": [{"name": _ROLE, "volumeMounts": mounts()}], "volumes": volumes(name)}
    job = {"name": _ROLE, "template": {"spec": {"template": {"spec": pod}}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {
            "runtimeRef": {"name": RUNTIME},
            "trainer": {
                "image": image,
                "command": command(bundle, _VARIABLES),
                "numNodes": nodes(request.cluster),
                "numProcPerNode": accelerators_per_node(request.cluster),
                "resourcesPerNode": resources(request),
            },
            "runtimePatches": [
                {
                    "manager": "parallel-planner/launcher",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
                }
            ],
        },
    }
