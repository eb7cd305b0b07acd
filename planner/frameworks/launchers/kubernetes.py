"""Kubernetes: an Indexed Job with a pod per node, a headless Service that names the pods."""

from __future__ import annotations

from typing import Any

import yaml

from planner.documents.request import PlanRequest
from planner.frameworks.base import Bundle, one_line
from planner.frameworks.launchers import CannotLaunch, Dumper, job_name, with_file
from planner.frameworks.rules import accelerators_per_node, nodes, on_cpus

FILE = "job.yaml"
# Set it to an image that has the framework; it is nobody's name on purpose.
IMAGE = "set-your-image"
CONTAINER = "train"
PORT = 29500
_RESOURCES = {
    "NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu", "Intel": "habana.ai/gaudi",
    "Google": "google.com/tpu", "AWS": "aws.amazon.com/neuron", "Huawei": "huawei.com/Ascend910",
    "Intel GPU": "gpu.intel.com/xe",
}  # fmt: skip


def launch(bundle: Bundle, request: PlanRequest, name: str = "", image: str = IMAGE) -> Bundle:
    """The bundle with a manifest: `kubectl create -f job.yaml`.

    name: of what it creates, else the model's.

    Raises CannotLaunch where the framework's launcher needs ssh between the nodes.
    """
    name = name or job_name(request)
    return carried(bundle, request, name, _service(name), _job(name, bundle, request, image))


def carried(bundle: Bundle, request: PlanRequest, name: str, *objects: dict[str, Any]) -> Bundle:
    """The bundle with a manifest of these objects, which find its files at /bundle.

    Raises CannotLaunch where the framework's launcher needs ssh between the nodes.
    """
    if bundle.starts != "every node":
        raise CannotLaunch(
            f"{bundle.framework}'s launcher reaches the nodes by ssh, pods have none"
        )
    files = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": dict(bundle.files),
    }
    count = nodes(request.cluster)
    about = f"{bundle.framework} on {count} nodes: kubectl create -f {FILE}"
    text = f"# {one_line(about)}\n" + "---\n".join(
        yaml.dump(document, Dumper=Dumper, sort_keys=False, width=100)
        for document in (files, *objects)
    )
    todo = "; set its image" if f"image: {IMAGE}\n" in text else ""
    return with_file(bundle, FILE, text, f"{FILE} carries the other files{todo}.")


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
            "ports": [{"name": "rendezvous", "port": PORT}],
        },
    }


def _job(name: str, bundle: Bundle, request: PlanRequest, image: str) -> dict[str, Any]:
    pod = {"subdomain": name, **worker_pod(name, bundle, request, image, f"{name}-0.{name}")}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": indexed(pod, nodes(request.cluster)),
    }


def indexed(pod: dict[str, Any], count: int) -> dict[str, Any]:
    """A Job of so many pods, which start together and are not started again."""
    return {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimit": 0,
        "template": {"spec": pod},
    }


def worker_pod(
    name: str, bundle: Bundle, request: PlanRequest, image: str, address: str
) -> dict[str, Any]:
    """A pod per node, in a Job that numbers them; address: of the first one."""
    container = {
        "name": CONTAINER,
        "image": image,
        # Kubernetes sets JOB_COMPLETION_INDEX in every pod of an Indexed Job.
        "command": command(bundle, 'NODE_RANK="$JOB_COMPLETION_INDEX"'),
        "env": [
            {"name": "MASTER_ADDR", "value": address},
            {"name": "MASTER_PORT", "value": str(PORT)},
        ],
        "resources": resources(request),
        "volumeMounts": mounts(),
    }
    return {"restartPolicy": "Never", "containers": [container], "volumes": volumes(name)}


def command(bundle: Bundle, variables: str) -> list[str]:
    """What a container runs: the bundle's main file, with these variables in front of it."""
    return ["bash", "-c", f"{variables} exec bash /bundle/{bundle.main}"]


def resources(request: PlanRequest) -> dict[str, dict[str, int]]:
    """A node's accelerators.  Raises CannotLaunch where their name is not known."""
    accelerator = request.cluster.groups[0].accelerator
    resource = "cpu" if on_cpus(request.cluster) else _RESOURCES.get(accelerator.vendor)
    if resource is None:
        vendor = accelerator.vendor or "an accelerator with no vendor"
        raise CannotLaunch(f"what Kubernetes calls the accelerators of {vendor} is not known")
    return {"limits": {resource: accelerators_per_node(request.cluster)}}


def mounts() -> list[dict[str, str]]:
    """Where a container finds `volumes`."""
    return [
        {"name": "bundle", "mountPath": "/bundle"},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
    ]


def volumes(name: str) -> list[dict[str, Any]]:
    """The bundle's files, and shared memory of more than 64 MiB."""
    return [
        {"name": "bundle", "configMap": {"name": name}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
    ]
