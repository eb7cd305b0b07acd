"""Every check of a launch script, in the order in which they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from planner.answers.lint.faults import (
    broken_rules,
    environment,
    excused_rules,
    ignored_options,
    memory,
    narrow_accumulation,
    precision,
    refusals,
    surroundings,
    unknown_keys,
)
from planner.answers.lint.findings import Finding
from planner.answers.lint.linted_launch import LintedLaunch
from planner.answers.lint.slow_splits import (
    cp_across_nodes,
    distributed_optimizer_off,
    ep_across_nodes,
    few_micro_batches,
    gradient_reduce_exposed,
    interleaving_unused,
    param_gather_exposed,
    sequence_parallel_off,
    tp_across_nodes,
    uneven_stages,
)
from planner.answers.lint.slow_work import (
    attention_unfused,
    loss_unfused,
    micro_batch_small,
    offload_needless,
    recompute_full,
    recompute_needless,
    vocabulary_padding,
)

Check = Callable[[LintedLaunch], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    refusals,
    broken_rules,
    excused_rules,
    precision,
    unknown_keys,
    ignored_options,
    environment,
    surroundings,
    memory,
    tp_across_nodes,
    cp_across_nodes,
    ep_across_nodes,
    few_micro_batches,
    interleaving_unused,
    uneven_stages,
    gradient_reduce_exposed,
    param_gather_exposed,
    sequence_parallel_off,
    distributed_optimizer_off,
    recompute_needless,
    recompute_full,
    offload_needless,
    micro_batch_small,
    attention_unfused,
    loss_unfused,
    vocabulary_padding,
    narrow_accumulation,
)
