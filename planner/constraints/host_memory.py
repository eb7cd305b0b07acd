"""The host memory that a plan needs for what it offloads, and the rule that bounds it."""

from __future__ import annotations

import numpy as np

from cost_models.parameters import embedding_parameters, output_layer_parameters, total_parameters
from cost_models.plans import ParallelPlan, Plans
from cost_models.runtimes import traits
from cost_models.sources import Array
from cost_models.spec import ClusterSpec
from cost_models.state_memory import element_bytes
from cost_models.trainable import stored_bytes
from planner.constraints.rule import BoolArray, Context, Rule

# Where a cluster does not say: 2 TiB beside eight accelerators (NVIDIA DGX H100 datasheet).
ORDINARY_BYTES_PER_ACCELERATOR = 2.0**38


def offloaded_bytes(c: Context, p: Plans) -> Array:
    """Bytes of all hosts: optimizer states, and with FSDP the shards of weights and gradients.

    Pinned buffers, adapters and offloaded activations are not counted.
    """
    if not p.offload_optimizer.any():
        return 0.0
    training, runtime = c.training, traits(p.runtime)
    each = element_bytes(training, runtime)
    parameters = float(total_parameters(c.model))
    trained = 0.0 if training.lora_rank else parameters
    shards = runtime.offloads_shards * (p.zero_stage == 3)
    ends = float(np.max(embedding_parameters(c.model, 1.0) + output_layer_parameters(c.model, 1.0)))
    frozen = (parameters - trained > 0) * (
        (parameters - ends) * stored_bytes(training) + ends * training.gathered_weight_bytes
    )
    one_copy = trained * each.optimizer
    one_copy = one_copy + shards * (trained * (each.weights + each.gradients) + frozen)
    ranks = p.dp * p.cp
    groups = np.where(p.dp_shard > 0, ranks // np.maximum(p.dp_shard, 1), 1)
    copies: Array = np.where(p.zero_stage > 0, groups, ranks)
    total: Array = one_copy * copies * p.offload_optimizer
    return total


def memory_bytes(cluster: ClusterSpec) -> float:
    """The memory of all hosts, the ordinary amount where it is not known."""
    return sum(
        group.nodes
        * (group.host_memory_bytes or ORDINARY_BYTES_PER_ACCELERATOR * group.accelerators_per_node)
        for group in cluster.groups
    )


def _fits(c: Context, p: Plans) -> BoolArray:
    return np.asarray(offloaded_bytes(c, p) <= memory_bytes(c.cluster))


def _text(c: Context, p: ParallelPlan) -> str:
    needed = float(np.max(offloaded_bytes(c, Plans.few((p,)))))
    known = all(group.host_memory_bytes for group in c.cluster.groups)
    has = f"{memory_bytes(c.cluster) / 2**30:,.0f} GiB"
    return (
        f"offload_optimizer needs {needed / 2**30:,.0f} GiB of host memory, the nodes have {has}"
        + ("" if known else ", which is usual: give host_memory_bytes if they have more")
    )


HOST_MEMORY = Rule("offload", _fits, _text)
