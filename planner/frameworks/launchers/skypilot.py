"""SkyPilot: a task that brings the nodes up, carries the bundle to them and starts it."""

from __future__ import annotations

from typing import Any

import yaml

from cost_models.package_files import filled, text
from planner.documents.request import PlanRequest
from planner.frameworks.base import Bundle, one_line
from planner.frameworks.launchers import CannotLaunch, Dumper, job_name, started, with_file
from planner.frameworks.rules import accelerators_per_node, nodes

FILE = "task.yaml"
# Accelerator of the catalog -> SkyPilot's name (its catalogs: release 0.14.1, v8 @001ca549).
_ACCELERATORS = {
    "v100-sxm2-32gb": "V100-32GB", "a100-sxm-40gb": "A100", "a100-sxm-80gb": "A100-80GB",
    "h100-sxm-80gb": "H100", "h200-sxm-141gb": "H200", "b200-sxm-180gb": "B200",
    "b300-sxm-288gb": "B300", "gb200-nvl72": "GB200", "gb300-nvl72": "GB300", "l40s": "L40S",
    "a10g": "A10G", "mi300x": "MI300X", "v100-sxm2-16gb": "V100", "t4": "T4", "l4": "L4",
    "l40": "L40", "a10": "A10", "a30": "A30", "a40": "A40", "rtx-3090": "RTX3090",
    "rtx-4090": "RTX4090", "rtx-5090": "RTX5090", "rtx-6000-ada": "RTX6000-Ada",
    "rtx-a4000": "RTXA4000", "rtx-a4500": "RTXA4500", "rtx-a5000": "RTXA5000",
    "rtx-a6000": "RTXA6000", "gh200-96gb": "GH200",
    "rtx-pro-6000-server": "RTXPRO6000",
}  # fmt: skip


def launch(bundle: Bundle, request: PlanRequest) -> Bundle:
    """The bundle with a task: `sky launch task.yaml` in its folder.

    Raises CannotLaunch where SkyPilot's name of the accelerator is not known.
    """
    count, processes = nodes(request.cluster), accelerators_per_node(request.cluster)
    accelerator = request.cluster.groups[0].accelerator
    name = _ACCELERATORS.get(accelerator.id)
    if name is None:
        raise CannotLaunch(f"what SkyPilot calls {accelerator.name} is not known")
    # SkyPilot sets SKYPILOT_NODE_IPS, one address a line, and SKYPILOT_NODE_RANK on every node;
    # it sets up the ssh by which a framework's own launcher reaches the other nodes.
    run = text(__package__ or "", f"skypilot_{started(bundle)}.sh.txt")
    task: dict[str, Any] = {
        "name": job_name(request),
        "num_nodes": count,
        "workdir": ".",
        "resources": {"accelerators": f"{name}:{processes}", "network_tier": "best"},
        "setup": "# Yours: install the framework here, or set resources.image_id.\n",
        "run": filled(run, {"main": bundle.main, "processes": processes}),
    }
    about = f"{bundle.framework} on {count} nodes of {processes}: sky launch {FILE}"
    document = f"# {one_line(about)}\n" + yaml.dump(task, Dumper=Dumper, sort_keys=False, width=100)
    note = "takes the folder that it is in along: write all files into one (--output); its setup is"
    return with_file(bundle, FILE, document, f"{FILE} {note} yours to fill in.")
