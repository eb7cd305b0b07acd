"""What each printed output says of a machine; a reader answers None to what another prints."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cost_models.catalog.topology import Topology, read_topology

MIB = 2.0**20
# Of one lane and direction, by the generation of PCIe.
LANE_BYTES_PER_S = {1: 2.5e8, 2: 5e8, 3: 9.85e8, 4: 1.969e9, 5: 3.938e9, 6: 7.56e9}
_KIBIBYTES = {"": 1 / 1024, "k": 1000 / 1024, "M": 1e6 / 1024, "G": 1e9 / 1024} | {
    f"{unit}i": 1024.0**i for i, unit in enumerate("KMGT")
}


@dataclass(frozen=True)
class Nodes:
    """Equal nodes as one output has them; accelerator: as it is printed, empty if it is not."""

    accelerator: str
    per_node: int
    nodes: int | None = None
    memory_bytes: float | None = None
    host_memory_bytes: float | None = None
    host_link_bytes_per_s: float | None = None
    instance: str = ""


@dataclass(frozen=True)
class Output:
    """What an output says, and what printed it; nics_gbit: the rate of each active port."""

    program: str
    nodes: tuple[Nodes, ...] = ()
    topology: Topology | None = None
    host_memory_bytes: float | None = None
    nics_gbit: tuple[float, ...] = ()
    fabric: str = ""


def read_output(text: str) -> Output | None:
    """What a text says; None if no program known here has printed it."""
    return next((seen for read in READERS if (seen := read(text)) is not None), None)


def _merged_nodes(program: str, groups: list[Nodes]) -> Output | None:
    """Equal nodes counted together, those with the most accelerators first."""
    counts: Counter[Nodes] = Counter()
    for group in groups:
        counts[Nodes(**{**group.__dict__, "nodes": None})] += group.nodes or 1
    total = [Nodes(**{**g.__dict__, "nodes": n}) for g, n in counts.items()]
    total.sort(key=lambda g: -g.per_node * (g.nodes or 1))
    return Output(program, tuple(total)) if total else None


def _one_node(
    program: str, names: list[str], memory_mib: list[str], count: int = 0, **more: Any
) -> Output | None:
    """A node of the most numerous kind of GPU among those printed."""
    if not names:
        return None
    name, count_named = Counter(names).most_common(1)[0]
    same = [float(mib) for of, mib in zip(names, memory_mib, strict=False) if of == name]
    memory = min(same) * MIB if same else None
    return Output(program, (Nodes(name, max(count_named, count), 1, memory, **more),))


def _full_query(text: str) -> Output | None:
    """`nvidia-smi -q`: with -i it prints one of the attached GPUs."""
    if "NVSMI LOG" not in text and not re.search(r"^GPU [0-9A-Fa-f]{8}:", text, re.M):
        return None
    names = re.findall(r"^\s+Product Name\s*:\s*(.+?)\s*$", text, re.M)
    memory = re.findall(r"FB Memory Usage\s+Total\s*:\s*(\d+) MiB", text)
    attached = re.search(r"Attached GPUs\s*:\s*(\d+)", text)
    uniform = len(set(names)) == 1
    generation = re.search(r"PCIe Generation\s+Max\s*:\s*(\d+)", text)
    # The width stays when the link rests at a lower generation.
    width = re.search(r"Link Width\s+Max\s*:\s*\d+x\s+Current\s*:\s*(\d+)x", text)
    lanes = LANE_BYTES_PER_S.get(int(generation[1])) if generation and width else None
    link = lanes * int(width[1]) if lanes and width else None
    count = int(attached[1]) if attached and uniform else 0
    return _one_node("nvidia-smi -q", names, memory, count, host_link_bytes_per_s=link)


def _table(text: str) -> Output | None:
    """The table of `nvidia-smi`; it cuts long names."""
    row = r"^\|\s+\d+\s+(\S.*?)\s+(?:On|Off|N/A)\s+\|\s+[0-9A-Fa-f]{8}:.*\n.*?\d+MiB\s*/\s*(\d+)MiB"
    rows = re.findall(row, text, re.M)
    return _one_node("nvidia-smi", [name for name, _ in rows], [mib for _, mib in rows])


def _query_csv(text: str) -> Output | None:
    """`nvidia-smi --query-gpu=name,memory.total --format=csv`, with or without units."""
    rows = re.findall(r"^((?:NVIDIA|Tesla|Quadro|TITAN) [^,\n]+), (\d+)(?: MiB)?\s*$", text, re.M)
    return _one_node("nvidia-smi --query-gpu", [n for n, _ in rows], [mib for _, mib in rows])


def _matrix(text: str) -> Output | None:
    topology = read_topology(text)
    return None if topology is None else Output("nvidia-smi topo -m", topology=topology)


def _gres(text: str) -> tuple[str, int] | None:
    """The kind and number in a Gres of Slurm; a part of a GPU (MIG, shards) is none."""
    match = re.search(r"\bgpu:(?:([\w.\-]+):)?(\d+)", text)
    return None if match is None else ((match[1] or ""), int(match[2]))


def _scontrol(text: str) -> Output | None:
    """`scontrol show node`, on one line or several."""
    nodes = []
    for block in re.split(r"(?=\bNodeName=)", text)[1:]:
        fields = dict(re.findall(r"\b(\w+)=(\S*)", block))
        gres = _gres(fields.get("Gres", ""))
        if gres is None:
            continue
        kind = gres[0] or _feature(fields.get("ActiveFeatures", ""))
        megabytes = fields.get("RealMemory") or _mem(fields.get("CfgTRES", ""))
        host = float(megabytes) * MIB if megabytes else None
        nodes.append(Nodes(kind, gres[1], 1, host_memory_bytes=host))
    return _merged_nodes("scontrol show node", nodes)


def _feature(features: str) -> str:
    """A feature of a node that looks like the name of an accelerator."""
    return next((f for f in features.split(",") if re.search(r"[a-z]+\d{2,}", f)), "")


def _mem(tres: str) -> str:
    match = re.search(r"\bmem=(\d+)M\b", tres)
    return match[1] if match else ""


def _sinfo(text: str) -> Output | None:
    """`sinfo -o` with the node list and Gres, and NODES and MEMORY where they have a title."""
    lines = [line.split() for line in text.splitlines()]
    titles = next((line for line in lines if "GRES" in line), [])
    if not titles:
        return None
    nodes = []
    for line in lines:
        gres = _gres(" ".join(line))
        if gres is None:
            continue
        row = dict(zip(titles, line, strict=False))
        count = row.get("NODES", "")
        number = int(count) if count.isdigit() else _host_count(row.get("NODELIST", ""))
        megabytes = row.get("MEMORY", "").rstrip("+")
        host = float(megabytes) * MIB if megabytes.isdigit() else None
        nodes.append(Nodes(*gres, number, host_memory_bytes=host))
    return _merged_nodes("sinfo", nodes)


def _host_count(hosts: str) -> int:
    """The number of hosts in a list such as gpu[01-04,7],login1."""
    total = 0
    for prefix, inside in re.findall(r"([^,\[]+)(?:\[([^\]]*)\])?", hosts):
        for part in inside.split(",") if inside else ([""] if prefix else []):
            first, dash, last = part.partition("-")
            numbers = dash and first.isdigit() and last.isdigit()
            total += min(max(int(last) - int(first), 0), 10**6) + 1 if numbers else 1
    return max(total, 1)


def _kubernetes(text: str) -> Output | None:
    """`kubectl get nodes -o json`, or one node."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    items = document.get("items", [document])
    nodes = [node for item in items if isinstance(item, dict) for node in _kubernetes_node(item)]
    return _merged_nodes("kubectl get nodes", nodes)


def _kubernetes_node(item: dict[str, Any]) -> Iterator[Nodes]:
    labels = _part(_part(item, "metadata"), "labels")
    capacity = _part(_part(item, "status"), "capacity")
    counts = {
        name: n for name, n in capacity.items() if re.search(r"/(gpu|gaudi|neuron\w*)$", name)
    }
    counted = [str(n) for n in counts.values()] or [str(labels.get("nvidia.com/gpu.count", ""))]
    number = next((int(n) for n in counted if n.isdigit() and 0 < int(n) < 10_000), 0)
    if not number:
        return
    product = labels.get("nvidia.com/gpu.product") or labels.get("amd.com/gpu.product-name") or ""
    mib = str(labels.get("nvidia.com/gpu.memory", ""))
    kibibytes = re.fullmatch(r"(\d+)([KMGT]i|[kMG]|)", str(capacity.get("memory", "")))
    yield Nodes(
        str(product),
        number,
        1,
        float(mib) * MIB if mib.isdigit() else None,
        float(kibibytes[1]) * _KIBIBYTES[kibibytes[2]] * 1024 if kibibytes else None,
        instance=str(labels.get("node.kubernetes.io/instance-type", "")),
    )


def _part(document: dict[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _ibstat(text: str) -> Output | None:
    """`ibstat`: of the active ports those of the highest rate, since slower ones serve storage."""
    if not re.search(r"^\s*CA type:", text, re.M):
        return None
    active = []
    for port in re.split(r"^\s*Port \d+:", text, flags=re.M)[1:]:
        fields = dict(re.findall(r"^\s*(State|Rate|Link layer):\s*(\w+)", port, re.M))
        if fields.get("State") == "Active" and fields.get("Rate", "").isdigit():
            active.append((float(fields["Rate"]), fields.get("Link layer", "")))
    fastest, layer = max(active, default=(0.0, ""))
    fabric = {"InfiniBand": "infiniband", "Ethernet": "roce"}.get(layer, "network")
    return Output("ibstat", nics_gbit=tuple(r for r, _ in active if r == fastest), fabric=fabric)


def _lspci(text: str) -> Output | None:
    """`lspci`: the product is the words in brackets that are no number of a device or vendor."""
    names = []
    for line in text.splitlines():
        if re.search(r"(3D|VGA compatible) controller|Processing accelerators", line):
            brackets = re.findall(r"\[([^\]]+)\]", line)
            named = [w for w in brackets if not re.fullmatch(r"[0-9a-f:]{4,9}|AMD/ATI", w)]
            names += named[-1:] if re.search(r"NVIDIA|AMD|Habana", line) else []
    return _one_node("lspci", names, [])


def _meminfo(text: str) -> Output | None:
    match = re.search(r"^MemTotal:\s+(\d+) kB", text, re.M)
    return Output("/proc/meminfo", host_memory_bytes=float(match[1]) * 1024) if match else None


READERS: tuple[Callable[[str], Output | None], ...] = (
    _full_query, _table, _query_csv, _matrix, _kubernetes, _scontrol, _sinfo, _ibstat, _lspci,
    _meminfo,
)  # fmt: skip
