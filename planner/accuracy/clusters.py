"""The cluster of a published run: its accelerator by name, its links as stated or as typical."""

from __future__ import annotations

import re
from functools import cache

from cost_models.catalog.hardware import accelerator_entry, accelerators, cluster_of, node_group
from cost_models.spec import NetworkTier
from planner.accuracy.models import Read
from planner.accuracy.runs import Run

_GBIT = 1e9 / 8
LEAST_BYTES_PER_S, MOST_BYTES_PER_S = 1e6, 1e14
# Aliases of words in a GPU's name; the entry that shares most words with it is meant.
_SYNONYMS = {"sxm4": "sxm", "sxm5": "sxm", "sxm2": "sxm", "sxm6": "sxm", "hgx": "sxm", "dgx": "sxm"}
_WORD = re.compile(r"[a-z]+\d+[a-z]*|\d+gb|[a-z]+|\d+w")
# What tells parts of one family apart; a stated word must be the part's own.
_KINDS = ("sxm", "pcie", "nvl", "nvl72")


@cache
def accelerator_id(gpu: str) -> Read:
    """The catalog id of a GPU's printed name.  Raises ValueError where none shares its model."""
    words = _words(gpu)
    best: tuple[float, str] | None = None
    for entry in accelerators():
        for alias in (entry.id, *entry.aliases, entry.spec.name):
            own = _words(alias)
            model = {w for w in own if any(c.isdigit() for c in w) and not w.endswith(("gb", "w"))}
            model -= set(_KINDS)
            if not model or not model <= words:
                continue
            score = len(own & words) - 0.1 * len(own - words)
            score -= 2.0 * len({k for k in _KINDS if k in words} - own - {"nvl72"})
            score -= 0.5 * (own & set(_KINDS) - words != set() and "pcie" in own)
            if best is None or score > best[0]:
                best = score, entry.id
    if best is None:
        raise ValueError(f"gpu {gpu[:80]!r} is not in the catalog of accelerators")
    entry = accelerator_entry(best[1])
    notes = () if words >= _words(entry.id) else (f"{gpu[:60]} taken as {entry.id}",)
    return Read(entry.id, notes)


def _words(text: str) -> set[str]:
    low = text.lower().replace("-", " ").replace("_", " ").replace("/", " ")
    low = re.sub(r"(\d+) ?(gb|w)\b", r"\1\2", low)
    return {_SYNONYMS.get(word, word) for word in _WORD.findall(low)}


def cluster_for(run: Run) -> Read:
    """The ClusterSpec of a row.  Raises ValueError."""
    found = accelerator_id(run["gpu"])
    assumptions = list(found.assumptions)
    entry = accelerator_entry(found.value)
    ranks = run.integer("n_gpus") or 0
    if ranks < 1:
        raise ValueError("n_gpus is not stated")
    per_node = run.integer("gpus_per_node") or entry.node.accelerators
    if not run.integer("gpus_per_node"):
        assumptions.append(f"{per_node} accelerators per node: not stated, typical")
    per_node = min(per_node, ranks)
    text = run["interconnect"]
    if "nvl72" in text.lower() and found.value in ("gb200-nvl72", "gb300-nvl72"):
        per_node = min(entry.node.accelerators, ranks)
    if ranks % per_node:
        per_node = next(size for size in range(per_node, 0, -1) if ranks % size == 0)
        assumptions.append(f"{per_node} accelerators per node, so that {ranks} are whole nodes")
    nodes = ranks // per_node
    network: tuple[NetworkTier, ...] = ()
    if nodes > 1:
        rate = nic_bytes_per_s(text, per_node)
        if rate is None:
            typical = entry.node.network.bandwidth_bytes_per_s
            assumptions.append(f"{typical * 8 / 1e9:.0f} Gb/s NIC per accelerator: typical")
        elif not LEAST_BYTES_PER_S <= rate <= MOST_BYTES_PER_S:
            raise ValueError(f"interconnect: {rate:g} B/s per accelerator is no link's rate")
        else:
            network = (
                entry.node.network.model_copy(
                    update={"bandwidth_bytes_per_s": rate, "name": "network"}
                ),
            )
    try:
        group = node_group(found.value, nodes, per_node, network=network)
    except ValueError:
        group = node_group(found.value, ranks // 1, 1, network=network)
    return Read(cluster_of(f"{nodes}x{per_node}x{found.value}", group), tuple(assumptions))


def nic_bytes_per_s(text: str, per_node: int) -> float | None:
    """NIC bandwidth per accelerator and direction that a row's interconnect states, else None.

    Read: "8x HDR 200Gb/s", "4x Omni-Path 100Gb/s" (per node), "1600 Gb/s node-node" (per node),
    "400Gb/s per GPU".
    """
    low = text.lower().replace("gbps", "gb/s").replace("gbit/s", "gb/s").replace("tb/s", "tb/s ")
    many = re.search(r"(\d+) ?x ?(?:[a-z0-9\- ]*?)(\d{2,4}) ?g(?:b/s|\b)", low)
    if many:
        return int(many.group(1)) * int(many.group(2)) * _GBIT / per_node
    per_gpu = re.search(r"(\d+(?:\.\d+)?) ?gb/s[^;,]*?(?:per|/) ?(?:gpu|accelerator|rank)", low)
    if per_gpu:
        return float(per_gpu.group(1)) * _GBIT
    per_node_rate = re.search(
        r"(\d+(?:\.\d+)?) ?(gb/s|tb/s)[^;,]*?(?:node|server|instance|inter)|"
        r"(?:inter-?node|node-?node|efa|roce|infiniband|ib)[^;,]*?(\d+(?:\.\d+)?) ?(gb/s|tb/s)",
        low,
    )
    if per_node_rate:
        value = float(per_node_rate.group(1) or per_node_rate.group(3))
        unit = per_node_rate.group(2) or per_node_rate.group(4)
        value *= 1000 if unit == "tb/s" else 1
        # A single NIC's rate is at most 400 to 800; what is larger is the node's.
        return value * _GBIT / per_node if value > 800 or "node" in low else value * _GBIT
    generation = {"ndr": 400, "hdr": 200, "edr": 100, "xdr": 800}
    for word, gbit in generation.items():
        if re.search(rf"\b{word}\b", low):
            count = re.search(rf"(\d+) ?x ?{word}", low)
            return (int(count.group(1)) if count else per_node) * gbit * _GBIT / per_node
    omni = re.search(r"(\d+)x omni-?path", low)
    if omni:
        return int(omni.group(1)) * 100 * _GBIT / per_node
    return None
