"""Accelerators that are no CUDA devices to torch: what trains on them, and how it is priced.

Ascend is MindSpeed's, by its own rules; a device without a vendor is the user's own.
"""

from __future__ import annotations

from collections.abc import Collection

from cost_models.spec import ClusterSpec
from planner.documents.request import Value

# By vendor, who launches there.
STACKS = {
    "AWS": "NeuronX Distributed or Optimum Neuron",
    "Google": "MaxText (JAX) or PyTorch/XLA",
    "Intel": "Optimum for Intel Gaudi or Intel's fork of Megatron-DeepSpeed",
}
# What a plan is there unless something else is asked for: MaxText compiles each step as a whole.
USUAL: dict[str, dict[str, tuple[Value, ...]]] = {
    "Google": {"runtime": ("jax",), "compile": (True,), "cross_entropy": ("unfused",)},
}


# Of these, what is written here.
WRITTEN = {"Google": "maxtext"}


def other_stack(cluster: ClusterSpec, but: Collection[str] = ()) -> str:
    """Which accelerators need a stack of their own; empty where none does.

    but: vendors that are left out.
    """
    needs = {
        f"{group.accelerator.name} needs {STACKS[group.accelerator.vendor]}"
        for group in cluster.groups
        if group.accelerator.vendor in STACKS and group.accelerator.vendor not in but
    }
    return ", ".join(sorted(needs))


def preferred(cluster: ClusterSpec) -> str:
    """The framework that is written for on these accelerators alone; empty: the usual ones are."""
    return WRITTEN.get(cluster.groups[0].accelerator.vendor, "")


def usual(cluster: ClusterSpec) -> dict[str, tuple[Value, ...]]:
    """Values of plan fields on a cluster, where no framework is named."""
    return USUAL.get(cluster.groups[0].accelerator.vendor, {})
