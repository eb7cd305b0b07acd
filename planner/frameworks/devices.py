"""Accelerators that are not CUDA devices in torch: what trains on them, with which settings.

Ascend is not listed: MindSpeed's own rules cover it.  A device without a vendor is the user's own.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

import numpy as np

from cost_models.plans import ParallelPlan
from cost_models.spec import ClusterSpec
from planner.constraints import Context, Rule
from planner.documents.request import Value

# Vendor -> the software that trains on its accelerators.
STACKS = {
    "AWS": "NeuronX Distributed or Optimum Neuron",
    "Google": "MaxText (JAX) or PyTorch/XLA",
    "Intel": "Optimum for Intel Gaudi or Intel's fork of Megatron-DeepSpeed",
    "Intel GPU": "PyTorch's XPU device",
}
# Vendor -> default values of plan fields: MaxText compiles each step as a whole.
USUAL: dict[str, dict[str, tuple[Value, ...]]] = {
    "Google": {"runtime": ("jax",), "compile": (True,), "cross_entropy": ("unfused",)}
}


# Vendor -> the framework of this package that trains there.
WRITTEN = {"Google": "maxtext"}


def other_stack(cluster: ClusterSpec, but: Collection[str] = ()) -> str:
    """A text on the accelerators that need a stack of their own; empty if none does.

    but: vendors to leave out.
    """
    needs = {
        f"{group.accelerator.name} needs {STACKS[group.accelerator.vendor]}"
        for group in cluster.groups
        if group.accelerator.vendor in STACKS and group.accelerator.vendor not in but
    }
    return ", ".join(sorted(needs))


def preferred(cluster: ClusterSpec) -> str:
    """The only framework that is written for these accelerators; empty: the usual ones are."""
    return WRITTEN.get(cluster.groups[0].accelerator.vendor, "")


def usual(cluster: ClusterSpec) -> dict[str, tuple[Value, ...]]:
    """Default values of plan fields on a cluster if no framework is named."""
    return USUAL.get(cluster.groups[0].accelerator.vendor, {})


@cache
def starts_on(vendors: tuple[str, ...]) -> Rule:
    """The accelerators are CUDA or ROCm devices, or come from one of these vendors."""

    def explain(c: Context, p: ParallelPlan) -> str:
        needed = other_stack(c.cluster, vendors)
        return f"its launch files are for CUDA and ROCm devices: {needed}"

    return Rule(
        "framework_unsupported",
        lambda c, p: np.asarray(not other_stack(c.cluster, vendors)),
        explain,
        "degrees",
    )
