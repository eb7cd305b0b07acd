"""SkyPilot: a task that brings the nodes up, carries the bundle to them and starts it."""

from __future__ import annotations

from typing import Any

import yaml

from planner.documents.request import PlanRequest
from planner.frameworks.base import Bundle, one_line
from planner.frameworks.launchers import CannotLaunch, Dumper, job_name, with_file
from planner.frameworks.rules import accelerators_per_node, nodes

FILE = "task.yaml"
# Accelerator of the catalog -> SkyPilot's name (its catalog, release 0.14.1).
_ACCELERATORS = {
    "v100-sxm2-32gb": "V100-32GB", "a100-sxm-40gb": "A100", "a100-sxm-80gb": "A100-80GB",
    "h100-sxm-80gb": "H100", "h200-sxm-141gb": "H200", "b200-sxm-180gb": "B200",
    "b300-sxm-288gb": "B300", "gb200-nvl72": "GB200", "gb300-nvl72": "GB300", "l40s": "L40S",
    "a10g": "A10G", "mi300x": "MI300X",
    "rtx-pro-6000-server": "RTXPRO6000",
}  # fmt: skip
# SkyPilot sets SKYPILOT_NODE_IPS, one address a line, and SKYPILOT_NODE_RANK on every node.
_EVERY_NODE = """\
read -r MASTER_ADDR <<< "$SKYPILOT_NODE_IPS"
export MASTER_ADDR NODE_RANK="$SKYPILOT_NODE_RANK"
exec bash {main}
"""
# The framework's own launcher reaches the other nodes by ssh, which SkyPilot sets up.
_FIRST_NODE = """\
[ "$SKYPILOT_NODE_RANK" = 0 ] || exit 0
export HOSTFILE=hostfile.skypilot
sed 's/$/ slots={processes}/' <<< "$SKYPILOT_NODE_IPS" > "$HOSTFILE"
exec bash {main}
"""


def launch(bundle: Bundle, request: PlanRequest) -> Bundle:
    """The bundle with a task: `sky launch task.yaml` in its folder.

    Raises CannotLaunch where SkyPilot's name of the accelerator is not known.
    """
    count, processes = nodes(request.cluster), accelerators_per_node(request.cluster)
    accelerator = request.cluster.groups[0].accelerator
    name = _ACCELERATORS.get(accelerator.id)
    if name is None:
        raise CannotLaunch(f"what SkyPilot calls {accelerator.name} is not known")
    run = _EVERY_NODE if bundle.starts == "every node" else _FIRST_NODE
    task: dict[str, Any] = {
        "name": job_name(request),
        "num_nodes": count,
        "workdir": ".",
        "resources": {"accelerators": f"{name}:{processes}", "network_tier": "best"},
        "setup": "# Yours: install the framework here, or set resources.image_id.\n",
        "run": run.format(main=bundle.main, processes=processes),
    }
    about = f"{bundle.framework} on {count} nodes of {processes}: sky launch {FILE}"
    text = f"# {one_line(about)}\n" + yaml.dump(task, Dumper=Dumper, sort_keys=False, width=100)
    return with_file(
        bundle, FILE, text, f"{FILE} takes the folder that it is in along: write all files into "
        "one (--output); its setup is yours to fill in.",
    )  # fmt: skip
