"""The machine this runs on, as a cluster of one node, without torch.

GPUs are asked of nvidia-smi and matched with the catalog by the name the driver gives them; the
links among them are those of its matrix, and host memory is that of /proc/meminfo.
Without one the catalog knows, an accelerator is one CPU core: a rank of a real run on this
machine.  Its matrix rate and memory bandwidth are measured here (about 0.1 s), the rest assumed.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import perf_counter

import numpy as np

from cost_models.catalog.hardware import accelerators, cluster_of, node_group
from cost_models.catalog.topology import linked, read_topology
from cost_models.spec import AcceleratorSpec, ClusterSpec, NetworkTier, NodeGroup

NVIDIA_SMI = (
    "nvidia-smi",
    "--query-gpu=name,memory.total",
    "--format=csv,noheader,nounits",
)
NVIDIA_SMI_TOPOLOGY = ("nvidia-smi", "topo", "-m")
NVIDIA_SMI_TIMEOUT_S = 10.0

# Assumed of a CPU: ranks talk over the loopback device, which copies every byte several times,
# and a message wakes another process.
LOOPBACK_SHARE_OF_MEMORY_BANDWIDTH = 0.25
LOOPBACK_LATENCY_S = 50e-6
CPU_RESERVED_BYTES = 0.5 * 2**30  # interpreter and libraries of one rank
UNKNOWN_MEMORY_BYTES = 8 * 2**30
CPU_ID = "cpu-core"


@cache
def cluster(processes: int | None = None) -> ClusterSpec:
    """One node: the most numerous kind of GPU the catalog knows, else the CPU cores.

    processes: so many ranks; GPUs beyond them stand idle (more ranks than GPUs raise ValueError),
    and CPU processes have equal shares of the cores.
    """
    gpus, seen = _nvidia_gpus(), ""
    if gpus:
        names = [gpu for gpu, _ in gpus]
        name = max(sorted(set(names)), key=names.count)
        memories_bytes = [memory for gpu, memory in gpus if gpu == name]
        count = len(memories_bytes) if processes is None else processes
        if count > len(memories_bytes):
            raise ValueError(f"{count} processes on the {len(memories_bytes)} GPUs of this machine")
        group = _gpu_group(name, count, min(memories_bytes))
        if group is not None:
            return cluster_of("local", group)
        seen = f"; its {len(gpus)} GPU(s) {name!r} are not in the catalog"
    spec = cluster_of(f"local (CPU{seen})"[:200], _cpu_group(processes))
    return spec.model_copy(
        update={
            "reserved_bytes_per_accelerator": CPU_RESERVED_BYTES,
            "failures_per_1000_node_days": None,
        }
    )


def _nvidia_gpus() -> list[tuple[str, float]]:
    """(driver name, bytes of memory) of each GPU; empty where nvidia-smi cannot tell.

    Memory that is the host's (GB10) has no number: 0 stands for the catalog's.
    """
    rows = [line.rsplit(",", 1) for line in _output_of(NVIDIA_SMI).splitlines() if line.strip()]
    try:
        return [(name.strip(), _bytes(memory.strip())) for name, memory in rows]
    except ValueError:
        return []


def _bytes(mebibytes: str) -> float:
    return 0.0 if mebibytes == "[N/A]" else float(mebibytes) * 2**20


def _output_of(command: tuple[str, ...]) -> str:
    """What a program prints; nothing where it is missing, fails or hangs."""
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout


def _gpu_group(driver_name: str, count: int, memory_bytes: float) -> NodeGroup | None:
    """A node of that GPU, with the memory its driver reports; None if the catalog has no such."""
    for entry in accelerators():
        if driver_name not in entry.driver_names:
            continue
        try:
            group = node_group(entry.id, 1, count)
        except ValueError:  # a number of them that its link domains do not divide
            return None
        memory_bytes = memory_bytes or group.accelerator.memory_bytes
        spec = group.accelerator.model_copy(update={"memory_bytes": memory_bytes})
        host = {"accelerator": spec, "host_memory_bytes": _memory_bytes()}
        group = group.model_copy(update=host)
        topology = read_topology(_output_of(NVIDIA_SMI_TOPOLOGY))
        return linked(group, topology) if topology else group
    return None


def _cpu_group(processes: int | None) -> NodeGroup:
    """A node whose accelerators are the cores this process may use, or equal shares of them.

    A rank computes on one thread: fewer ranks than cores leave some of them idle.
    """
    cores = cpu_cores()
    ranks = processes or cores
    share = min(cores / ranks, 1.0)
    memory_bytes = _memory_bytes()
    flop_per_s = share * _matrix_flop_per_s() / cores
    bytes_per_s = share * _copy_bytes_per_s()
    return NodeGroup(
        accelerator=AcceleratorSpec(
            id=CPU_ID,
            name="CPU core (fp32 matrix rate and copy bandwidth measured; bf16 and fp16 assumed "
            "as fast as fp32)",
            memory_bytes=memory_bytes / ranks,
            memory_bytes_per_s=bytes_per_s,
            peak_bf16_flop_per_s=flop_per_s,
            peak_fp16_flop_per_s=flop_per_s,
            peak_fp32_flop_per_s=flop_per_s,
            confidence="low",
        ),
        nodes=1,
        accelerators_per_node=ranks,
        network=(
            NetworkTier(
                name="loopback",
                bandwidth_bytes_per_s=bytes_per_s * LOOPBACK_SHARE_OF_MEMORY_BANDWIDTH,
                latency_s=LOOPBACK_LATENCY_S,
            ),
        ),
        host_memory_bytes=memory_bytes,
    )


def cpu_cores() -> int:
    """Cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(cores or 1, 1)


def _memory_bytes() -> float:
    """Memory of the machine, from /proc/meminfo; an assumed 8 GiB where there is none."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemTotal:"):
                return float(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return float(UNKNOWN_MEMORY_BYTES)


@cache
def _matrix_flop_per_s() -> float:
    """Best of three fp32 matrix multiplications of 768 on all cores, FLOP/s."""
    n = 768
    a = np.ones((n, n), dtype=np.float32)
    return max(2 * n**3 / _seconds(lambda: np.matmul(a, a)) for _ in range(3))


@cache
def _copy_bytes_per_s() -> float:
    """Best of three copies of 32 MiB by one core, bytes read and written per second."""
    source = np.ones(2**23, dtype=np.float32)
    target = np.empty_like(source)
    return max(2 * source.nbytes / _seconds(lambda: np.copyto(target, source)) for _ in range(3))


def _seconds(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return max(perf_counter() - start, 1e-9)
