"""Kubernetes: an Indexed Job with a pod per node, a headless Service that names the pods."""

from __future__ import annotations

from typing import Any

import yaml

from planner.frameworks.base import Bundle, one_line
from planner.frameworks.rules import accelerators_per_node, nodes
from planner.launchers import CannotLaunch, Dumper, job_name, with_file
from planner.request import PlanRequest

FILE = "job.yaml"
# Set it to an image that has the framework; it is nobody's name on purpose.
IMAGE = "set-your-image"
_RESOURCES = {
    "NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu", "Intel": "habana.ai/gaudi",
    "Google": "google.com/tpu", "AWS": "aws.amazon.com/neuron", "Huawei": "huawei.com/Ascend910",
}  # fmt: skip
_PORT = 29500


def launch(bundle: Bundle, request: PlanRequest) -> Bundle:
    """The bundle with a manifest: `kubectl create -f job.yaml`.

    Raises CannotLaunch where the framework's launcher needs ssh between the nodes.
    """
    if bundle.starts != "every node":
        raise CannotLaunch(
            f"{bundle.framework}'s launcher reaches the nodes by ssh, pods have none"
        )
    name, count = job_name(request), nodes(request.cluster)
    documents = (_config_map(name, bundle), _service(name), _job(name, count, bundle, request))
    about = f"{bundle.framework} on {count} nodes: set the image, then kubectl create -f {FILE}"
    text = f"# {one_line(about)}\n" + "---\n".join(
        yaml.dump(document, Dumper=Dumper, sort_keys=False, width=100) for document in documents
    )
    return with_file(bundle, FILE, text, f"{FILE} carries the other files; set its image.")


def _config_map(name: str, bundle: Bundle) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": dict(bundle.files),
    }


def _service(name: str) -> dict[str, Any]:
    """Gives each pod the name JOB-INDEX.JOB before it is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": name},
            "ports": [{"name": "rendezvous", "port": _PORT}],
        },
    }


def _job(name: str, count: int, bundle: Bundle, request: PlanRequest) -> dict[str, Any]:
    accelerator = request.cluster.groups[0].accelerator
    resource = _RESOURCES.get(accelerator.vendor)
    if resource is None:
        vendor = accelerator.vendor or "an accelerator with no vendor"
        raise CannotLaunch(f"what Kubernetes calls the accelerators of {vendor} is not known")
    # Kubernetes sets JOB_COMPLETION_INDEX in every pod of an Indexed Job.
    command = f'NODE_RANK="$JOB_COMPLETION_INDEX" exec bash /bundle/{bundle.main}'
    container = {
        "name": "train",
        "image": IMAGE,
        "command": ["bash", "-c", command],
        "env": [
            {"name": "MASTER_ADDR", "value": f"{name}-0.{name}"},
            {"name": "MASTER_PORT", "value": str(_PORT)},
        ],
        "resources": {"limits": {resource: accelerators_per_node(request.cluster)}},
        "volumeMounts": [
            {"name": "bundle", "mountPath": "/bundle"},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }
    pod = {
        "subdomain": name,
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [
            {"name": "bundle", "configMap": {"name": name}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": count,
            "backoffLimit": 0,
            "template": {"spec": pod},
        },
    }
