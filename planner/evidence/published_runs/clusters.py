"""The cluster of a published run: its accelerator by name, its links as stated or as typical."""

from __future__ import annotations

import math
import re
from functools import cache

from cost_models.catalog.hardware import (
    accelerator_entry,
    accelerators,
    cluster_entry,
    cluster_of,
    clusters,
    node_group,
)
from cost_models.catalog.hardware_entries import AcceleratorEntry, ClusterEntry
from cost_models.spec import AcceleratorSpec, NetworkTier
from planner.evidence.published_runs.interconnect import nic_bytes_per_s
from planner.evidence.published_runs.models import ReadValue
from planner.evidence.published_runs.runs import Run

# Spellings that mean one word; a rack ("NVL72") or a count in front is no part's name.
_SPELLINGS = (
    (r"[-_/,()]", " "), (r"(?<=\d)(?=sxm|pcie|nvl)", " "), (r"\bnvl ?\d+\b", " "),
    (r"\b(?:sxm\d?|hgx|dgx)\b", " sxm "), (r"\bpci (?:e|express)\b", " pcie "),
    (r"\b\d+ ?[x×*] ?(?=[a-z])|(?<=\d)[x×*]\d+\b", " "),
    (r"\b(\d+) ?g(?:i?b)?\b", r"\1gb"), (r"\b(\d+) ?w\b", r"\1w"),
    (r"\b(mi|gaudi|trainium|[ahvb]|gb|gh|tpu v) (?=\d)", r"\1"),
    (r"\btpu (?=v\d)|\btpu(?=v\d)", " "), (r"\bgrace hopper\b", " gh200 "),
    (r"\bgrace blackwell ultra\b", " gb300 "), (r"\bgrace blackwell\b", " gb200 "),
)  # fmt: skip
MOST_RANKS = 1_000_000  # of a ClusterSpec
# A stated rate per accelerator beyond these is a slip of the pen.
RATES_BYTES_PER_S = (1e7, 1e14)
# What tells parts of one family apart; a stated word must be the part's own.
_DEVICES = re.compile(r"\bconfig @[^;]*\bdevices (\d+)")
_KINDS = ("sxm", "pcie", "nvl")
_NO_MODEL = re.compile(r"\d+(?:gb|w)|hbm\d\w*|nvlink\d|sxm\d?|pcie\d?")
# Parts that the catalog lacks, and the part of (nearly) the same silicon that it has.
_NEAREST = {
    "mi250": "mi250x-gcd",  # 208 of its 220 compute units
    "b100": "b200-sxm-180gb",
    "mi350x": "mi355x",  # the same dies at 1,000 instead of 1,400 W
    "910b": "ascend-910b3",  # 313 TFLOP/s, quoted as 320 for the name without a digit
    "910": "ascend-910b4", "910a": "ascend-910b4",
}  # fmt: skip
# XLA's own messages count 31.25 of a v6e's 32 GiB as usable.
_TPU_RESERVED_BYTES = 0.75 * 2**30
# A printed capacity is its own beyond what labels and drivers differ, up to a package of two.
_SAME_LABEL, _OTHER_VARIANT = 1.12, 1.9


@cache
def accelerator_id(gpu: str) -> ReadValue:
    """The catalog id of a GPU's printed name.  Raises ValueError where none shares its model."""
    words = _name_words(gpu)
    best: tuple[float, str] | None = None
    for entry in accelerators():
        for alias in (entry.id, *entry.aliases, entry.spec.name):
            alias_words = _name_words(alias)
            if not (model := _model_words(alias_words)) or not model <= words:
                continue
            score = len(alias_words & words) - 0.1 * len(alias_words - words)
            score -= 2.0 * len({kind for kind in _KINDS if kind in words} - alias_words)
            score -= 0.5 * (alias_words & set(_KINDS) - words != set() and "sxm" not in alias_words)
            if best is None or score > best[0]:
                best = score, entry.id
    if best is not None:
        exact = words >= _name_words(best[1])
        return ReadValue(best[1], () if exact else (f"{_short(gpu)} taken as {best[1]}",))
    for name, nearest in _NEAREST.items():
        if name in words:
            return ReadValue(nearest, (f"{_short(gpu)} is not in the catalog: taken as {nearest}",))
    if not words:
        raise ValueError("gpu is not stated")
    raise ValueError(f"gpu {gpu[:80]!r} is not in the catalog of accelerators")


def _short(text: str) -> str:
    return " ".join(text.split())[:60]


@cache
def _name_words(text: str) -> frozenset[str]:
    low = text.lower()
    for pattern, spelling in _SPELLINGS:
        low = re.sub(pattern, spelling, low)
    return frozenset(re.findall(r"[a-z0-9]+", low))


def _model_words(text: frozenset[str]) -> frozenset[str]:
    """The words that name the model: those with a digit in them, else a name of one word."""
    named = {w for w in text if re.search(r"\d", w) and len(w) > 1 and not _NO_MODEL.fullmatch(w)}
    return frozenset(named) or (text if len(text) == 1 else frozenset())


def devices_of(run: Run) -> int:
    """How many accelerators a run's configuration uses of those that its machine has; 0: all."""
    match = _DEVICES.search(run.notes)
    used = int(match[1]) if match else 0
    return used if used < (run.integer("n_gpus") or 0) else 0


def ranks_of(run: Run, entry: AcceleratorEntry | None = None) -> tuple[int, tuple[str, ...]]:
    """Ranks of a run and what was assumed.  Raises ValueError where nothing tells them."""
    degrees = [run.integer(name) or 1 for name in ("tp", "cp", "pp", "dp")]
    product = math.prod(degrees)
    ranks = run.integer("n_gpus")
    if not ranks:
        if run.integer("dp") and product <= MOST_RANKS:
            return product, (f"{product} accelerators: tp x cp x pp x dp",)
        raise ValueError("n_gpus is not stated")
    if used := devices_of(run):
        return used, (f"{used} of {ranks} accelerators: its configuration's devices",)
    # A part of several dies or cores is as many ranks: a row whose degrees say so counts packages.
    each = 1 if entry is None else entry.ranks_per_package
    if each > 1 and product == each * ranks:
        return product, (f"{product} ranks: {each} of each printed package",)
    if ranks > MOST_RANKS:
        raise ValueError(f"n_gpus {ranks}: at most {MOST_RANKS}")
    return ranks, ()


def cluster_for(run: Run) -> ReadValue:
    """The ClusterSpec of a row.  Raises ValueError."""
    chip = accelerator_id(run["gpu"])
    entry = accelerator_entry(chip.value)
    ranks, counted = ranks_of(run, entry)
    assumptions = [*chip.assumptions, *counted]
    nics_shared = _accelerators_of_a_node(run, entry, ranks, bool(counted), assumptions)
    per_node = min(nics_shared, ranks)
    if ranks % per_node:
        per_node = next(size for size in range(per_node, 0, -1) if ranks % size == 0)
        assumptions.append(f"{per_node} accelerators per node, so that {ranks} are whole nodes")
    network: tuple[NetworkTier, ...] = ()
    if ranks > per_node:
        rate = nic_bytes_per_s(run["interconnect"], nics_shared)
        network = _network(rate, entry.node.network, assumptions)
        # Neuron has collectives of its own.
        if re.search(r"\befa\b", run["interconnect"].lower()) and "trainium" not in chip.value:
            network = (_over_efa(network[0] if network else entry.node.network),)
    named = (c.link_bytes_per_s for c in clusters() if _names_cluster(c, run["interconnect"]))
    link = next(named, None)
    if link is not None:
        assumptions.append(f"links of {link / 1e9:.0f} GB/s inside a node: the named cluster's")
    try:
        group = node_group(
            chip.value, ranks // per_node, per_node, network=network, link_bytes_per_s=link
        )
    except ValueError:
        # A node that its part's links do not divide: each accelerator stands alone in the tiers.
        group = node_group(chip.value, ranks, 1, network=network)
        assumptions.append(f"nodes of {per_node} do not fit the links of {chip.value}: taken apart")
    accelerator, noted = _stated_memory(run["gpu"], group.accelerator)
    assumptions += noted
    group = group.model_copy(update={"accelerator": accelerator})
    name = f"{group.nodes}x{group.accelerators_per_node}x{chip.value}"
    cluster = cluster_of(name, group)
    if chip.value.startswith("tpu"):
        cluster = cluster.model_copy(update={"reserved_bytes_per_accelerator": _TPU_RESERVED_BYTES})
        assumptions.append("nothing lost between buffers: XLA places them before it runs")
    return ReadValue(cluster, tuple(assumptions))


def _accelerators_of_a_node(
    run: Run, entry: AcceleratorEntry, ranks: int, counted: bool, assumptions: list[str]
) -> int:
    """Accelerators of a node; counted: whether ranks are parts of devices."""
    typical, stated = entry.node.accelerators, run.integer("gpus_per_node")
    if not stated:
        assumptions.append(f"{typical} accelerators per node: not stated, typical")
    per_node = stated or typical
    if counted and run.integer("n_gpus") and ranks != run.integer("n_gpus"):
        per_node *= entry.ranks_per_package
    domain = max(tier.domain_accelerators or 1 for tier in entry.node.domains)
    # A rack's links span its nodes; the row counts the rack.
    return min(per_node, typical) if domain > typical else per_node


def _network(
    rate: float | None, nic: NetworkTier, assumptions: list[str]
) -> tuple[NetworkTier, ...]:
    """The network of a row; none of its own where it states no rate that a network has."""
    if rate is not None and not RATES_BYTES_PER_S[0] <= rate <= RATES_BYTES_PER_S[1]:
        assumptions.append(f"{rate * 8 / 1e9:.3g} Gb/s per accelerator is no network's rate")
        rate = None
    if rate is None:
        gbit = nic.bandwidth_bytes_per_s * 8 / 1e9
        assumptions.append(f"{gbit:.0f} Gb/s NIC per accelerator: typical")
        return ()
    return (nic.model_copy(update={"bandwidth_bytes_per_s": rate, "name": "network"}),)


def _over_efa(nic: NetworkTier) -> NetworkTier:
    wait_s = cluster_entry("p5.48xlarge").network[0].collective_wait_s
    return nic.model_copy(update={"collective_wait_s": wait_s})


def _names_cluster(entry: ClusterEntry, text: str) -> bool:
    """Whether a row's interconnect names a cluster of the catalog."""
    normalised = text.lower().replace(" ", "-")
    return any(name in normalised for name in (entry.id, *entry.aliases) if "-" in name)


def _stated_memory(gpu: str, part: AcceleratorSpec) -> tuple[AcceleratorSpec, list[str]]:
    """The part with the capacity its printed name has, where the catalog has no such variant."""
    for text in _name_words(gpu):
        if match := re.fullmatch(r"(\d+)gb", text):
            stated = float(match.group(1)) * 2**30
            ratio = stated / part.memory_bytes
            far = max(ratio, 1 / ratio) if ratio else math.inf
            if _SAME_LABEL < far < _OTHER_VARIANT or (far > _SAME_LABEL and "v100" in part.id):
                changed = part.model_copy(update={"memory_bytes": stated})
                return changed, [f"{match.group(1)} GB as printed, else as {part.id}"]
    return part, []
