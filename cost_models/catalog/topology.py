"""The matrix that `nvidia-smi topo -m` prints: NVLinks between GPUs, and the number of NICs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cost_models.spec import NetworkTier, NodeGroup

# One NVLink, per direction, by the accelerator; else that of generations 2 to 4.
LINKS_BYTES_PER_S = ((r"g?b[23]00", 50e9), (r"a40|rtx-a\d+|rtx-3090", 14.0625e9))
LINK_BYTES_PER_S = 25e9
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NIC = re.compile(r"(?:NIC|mlx\d+_|bnxt_re|rdmap|irdma)\w*")


@dataclass(frozen=True)
class Topology:
    """What the matrix says of a node's GPUs.

    links: NVLinks between two GPUs of a domain; 0: there are none; None: some have more than
    others, as on a DGX-1.  domain: GPUs that reach each other over NVLink.
    """

    gpus: int
    links: int | None
    domain: int
    nics: int


def read_topology(text: str) -> Topology | None:
    """The matrix in a text; None if it has none."""
    table = [line.split() for line in _COLOURS.sub("", text).splitlines()]
    rows = [row for row in table if "X" in row and re.fullmatch(r"GPU\d+", row[0])]
    if not rows:
        return None
    cells = [[cell for cell in row[1 : 1 + len(rows)] if cell.startswith("NV")] for row in rows]
    counts = {cell.removeprefix("NV") for row in cells for cell in row}
    links: int | None = int(counts.pop()) if len(counts) == 1 else None if counts else 0
    if len({len(row) for row in cells}) > 1:
        links = None
    return Topology(len(rows), links, 1 + len(cells[0]), _nics(table))


def _nics(table: list[list[str]]) -> int:
    header = next((row for row in table if row[:1] == ["GPU0"] and "X" not in row), [])
    return sum(bool(_NIC.fullmatch(cell)) for cell in header)


def linked(group: NodeGroup, topology: Topology) -> NodeGroup:
    """The nodes with the links that the matrix prints, instead of the accelerator's typical ones.

    Typical ones are kept where links are uneven, or do not divide the node.
    """
    first, *outer = group.network
    per_node = group.accelerators_per_node
    domain = min(topology.domain, per_node)
    size = first.domain_accelerators or per_node
    if topology.links is None or per_node % domain or per_node == 1:
        return group
    if topology.links:
        rate = topology.links * _link_bytes_per_s(group.accelerator.id)
        nvlink = first.model_copy(
            update={
                "name": "nvlink",
                "bandwidth_bytes_per_s": rate,
                "domain_accelerators": max(domain, size) if size > per_node else domain,
            }
        )
        wider = (tier for tier in group.network if (tier.domain_accelerators or 0) != size)
        within = [] if first.name == "nvlink" or domain >= size else [first]
        network: tuple[NetworkTier, ...] = (nvlink, *within, *wider)
    elif first.name == "nvlink" and group.host_link_bytes_per_s:
        pcie = {"name": "pcie", "bandwidth_bytes_per_s": group.host_link_bytes_per_s}
        network = (first.model_copy(update={**pcie, "domain_accelerators": per_node}), outer[-1])
    else:
        return group
    return group.model_copy(update={"network": network})


def _link_bytes_per_s(accelerator: str) -> float:
    known = (rate for name, rate in LINKS_BYTES_PER_S if re.match(name, accelerator))
    return next(known, LINK_BYTES_PER_S)
