"""A cluster document from what programs print on its machines: `planner cluster read`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from cost_models.catalog import hardware
from cost_models.catalog.names import normal
from cost_models.catalog.topology import linked
from cost_models.spec import NodeGroup
from planner.documents.plan_report import Document
from planner.documents.problems import RequestError, join, refuse, shown
from planner.documents.typed_values import field_problems, require_object, require_string
from planner.evidence.published_runs.clusters import accelerator_id
from planner.frameworks.sources import checked
from planner.inputs.machines.outputs import Nodes, Output, read_output

# What names an accelerator best, first; the others count nodes.
_PRECISE = (
    "nvidia-smi -q", "nvidia-smi --query-gpu", "nvidia-smi", "kubectl get nodes",
    "scontrol show node", "sinfo", "lspci",
)  # fmt: skip
_LISTS = ("scontrol show node", "sinfo", "kubectl get nodes")
_SAME_MEMORY = 0.01  # drivers and firmware differ by less


class MachineAnswer(Document):
    """A cluster as a request takes it; what was read of it, what was assumed, and what is missing.

    unread: files that no program known here has printed.
    """

    cluster: dict[str, Any]
    read: tuple[str, ...]
    assumed: tuple[str, ...]
    unread: tuple[str, ...]


def read_machine(document: Any) -> MachineAnswer:
    """The cluster of a document {"files": text by name, "name"}.  Raises RequestError."""
    require_object("", document, "an object")
    if problems := field_problems(document, ("files", "name"), ("files",)):
        raise RequestError(problems)
    require_object("/files", document["files"], "texts by name")
    for name, text in document["files"].items():
        require_string(join("/files", name), text, "text")
    files = checked(document["files"])
    called = require_string("/name", document.get("name", "machine"), "a name")
    seen = {name: read_output(text) for name, text in files.items()}
    known = [s for s in seen.values() if s is not None]
    unread = tuple(name for name, s in seen.items() if s is None)
    machine = _Machine(known)
    cluster = {"name": called, **machine.cluster()}
    return MachineAnswer(
        cluster=cluster, read=tuple(machine.read), assumed=tuple(machine.assumed), unread=unread
    )


class _Machine:
    """The nodes that the outputs describe together."""

    def __init__(self, seen: list[Output]) -> None:
        self.seen = seen
        self.read: list[str] = []
        self.assumed: list[str] = []
        self.nodes = self._nodes()

    def _nodes(self) -> Nodes:
        named = [s for s in self.seen if s.nodes]
        if not named:
            programs = "nvidia-smi, scontrol show node, sinfo, kubectl get nodes -o json or lspci"
            raise refuse("/files", "no_accelerator", f"none is an output of {programs} with GPUs")
        best = min(named, key=lambda s: _PRECISE.index(s.program))
        first, *others = best.nodes
        self.assumed += [
            f"{n.nodes} x {n.per_node} {n.accelerator} left out: they differ" for n in others
        ]
        listed = self._listed_nodes(first, named)
        count = listed.nodes or 1
        if count * first.per_node > hardware.MOST_ACCELERATORS:
            detail = f"more than {hardware.MOST_ACCELERATORS} accelerators"
            raise refuse("/files", "out_of_range", detail)
        called = first.accelerator or first.instance or "GPUs"
        self.read.append(f"{count} x {first.per_node} {called}: {best.program}")
        system = (s.host_memory_bytes for s in self.seen if s.host_memory_bytes)
        host = first.host_memory_bytes or listed.host_memory_bytes or next(system, None)
        return replace(first, nodes=count, host_memory_bytes=host)

    def _listed_nodes(self, nodes: Nodes, named: list[Output]) -> Nodes:
        """The nodes with so many accelerators as a scheduler lists them, else those given."""
        lists = [s for program in _LISTS for s in named if s.program == program]
        if not lists:
            self.assumed.append("1 node: no output lists nodes (scontrol, sinfo, kubectl)")
        same_size = (n for s in lists for n in s.nodes if n.per_node == nodes.per_node)
        return next(same_size, nodes)

    def cluster(self) -> dict[str, Any]:
        """The fields of the cluster that differ from what the catalog takes."""
        if normal(self.nodes.instance) in {entry.id for entry in hardware.clusters()}:
            self.read.append(f"instance {self.nodes.instance}: its links, network and price")
            return {"preset": normal(self.nodes.instance), "nodes": self.nodes.nodes}
        typical = self._catalog_nodes()
        group = self._networked(self._linked(typical))
        accelerator = self._accelerator(typical)
        document: dict[str, Any] = {
            "accelerator": accelerator,
            "nodes": group.nodes,
            "accelerators_per_node": group.accelerators_per_node,
        }
        if group.network != typical.network or not isinstance(accelerator, str):
            document["network"] = [tier.model_dump(exclude_defaults=True) for tier in group.network]
        if self.nodes.host_memory_bytes:
            document["host_memory_bytes"] = self.nodes.host_memory_bytes
            self.read.append(f"{self.nodes.host_memory_bytes / 2**30:,.0f} GiB of host memory")
        else:
            self.assumed.append("host memory: not found (scontrol, kubectl, /proc/meminfo)")
        if self.nodes.host_link_bytes_per_s:
            document["host_link_bytes_per_s"] = self.nodes.host_link_bytes_per_s
            gigabytes = self.nodes.host_link_bytes_per_s / 1e9
            self.read.append(f"PCIe of {gigabytes:.1f} GB/s per direction")
        return document

    def _catalog_nodes(self) -> NodeGroup:
        """The nodes as the catalog knows their accelerator."""
        name, nodes = self._id(), self.nodes
        try:
            return hardware.node_group(name, nodes.nodes or 1, nodes.per_node)
        except ValueError as error:  # a number of them that its link domains do not divide
            raise refuse("/files", "out_of_range", str(error)) from None

    def _id(self) -> str:
        printed, entries = self.nodes.accelerator, hardware.accelerators()
        plain, cut = _letters(printed), printed.endswith("...")  # as a table cuts long names
        for entry in entries:
            for driver in map(_letters, entry.driver_names):
                if driver == plain or (cut and driver.startswith(plain)):
                    return entry.id
        try:
            known = accelerator_id(printed)
        except ValueError:
            named = {_letters(name): entry.id for entry in entries for name in entry.aliases}
            named |= {_letters(entry.id): entry.id for entry in entries}
            if plain in named:
                return named[plain]
            detail = f"accelerator {shown(printed)!r} is not in the catalog: give nvidia-smi -q"
            raise refuse("/files", "unknown_name", detail) from None
        self.assumed += known.assumptions
        return str(known.value)

    def _accelerator(self, typical: NodeGroup) -> str | dict[str, Any]:
        """Its id, or all of it where the driver reports other memory than the catalog has."""
        spec, memory_bytes = typical.accelerator, self.nodes.memory_bytes
        if not memory_bytes or abs(memory_bytes / spec.memory_bytes - 1) < _SAME_MEMORY:
            return spec.id
        self.read.append(f"{memory_bytes / 2**30:.1f} GiB of each, as its driver reports")
        changed = spec.model_copy(update={"memory_bytes": memory_bytes})
        return changed.model_dump(exclude_none=True)

    def _linked(self, group: NodeGroup) -> NodeGroup:
        matrix = next((s.topology for s in self.seen if s.topology), None)
        if group.accelerators_per_node == 1:
            return group
        first, *outer = group.network
        if self.nodes.host_link_bytes_per_s and first.name == "pcie":
            first = first.model_copy(
                update={"bandwidth_bytes_per_s": self.nodes.host_link_bytes_per_s}
            )
            group = group.model_copy(update={"network": (first, *outer)})
        if matrix is None or matrix.gpus != group.accelerators_per_node:
            rate = f"{first.bandwidth_bytes_per_s / 1e9:.0f} GB/s"
            self.assumed.append(f"links: {first.name} of {rate} is typical (nvidia-smi topo -m)")
            return group
        if matrix.links is None:
            self.assumed.append("links: some GPUs share more NVLinks than others: typical ones")
        else:
            joined = (
                f"{matrix.links} NVLinks among {matrix.domain}" if matrix.links else "no NVLink"
            )
            self.read.append(f"{joined}: nvidia-smi topo -m")
        return linked(group, matrix)

    def _networked(self, group: NodeGroup) -> NodeGroup:
        ports = next((s for s in self.seen if s.nics_gbit), None)
        outer = group.network[-1]
        if ports is None:
            if group.nodes > 1:
                gbit = outer.bandwidth_bytes_per_s * 8e-9 * group.accelerators_per_node
                self.assumed.append(f"network: {gbit:.0f} Gb/s of a node is typical (ibstat)")
            return group
        gbit = sum(ports.nics_gbit)
        count = len(ports.nics_gbit)
        self.read.append(f"{count} port{'s' * (count > 1)}, {gbit:.0f} Gb/s of a node: ibstat")
        rate = {"bandwidth_bytes_per_s": gbit * 1e9 / 8 / group.accelerators_per_node}
        tier = outer.model_copy(update={"name": ports.fabric, **rate})
        return group.model_copy(update={"network": (*group.network[:-1], tier)})


def _letters(name: str) -> str:
    """Letters and digits alone: programs write rtx3090, RTX-3090 and NVIDIA_RTX_3090."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
