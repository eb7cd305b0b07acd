"""Every check of a launch script, in the order in which they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from planner.answers.lint import faults, slow_splits, slow_work, start_values
from planner.answers.lint.findings import Finding
from planner.answers.lint.linted_launch import LintedLaunch

Check = Callable[[LintedLaunch], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    faults.refusals,
    faults.broken_rules,
    faults.excused_rules,
    faults.precision,
    start_values.learning_rates,
    start_values.deepspeed_values,
    faults.unknown_keys,
    faults.ignored_options,
    faults.environment,
    faults.harmful_environment,
    faults.memory,
    slow_splits.tp_across_nodes,
    slow_splits.cp_across_nodes,
    slow_splits.ep_across_nodes,
    slow_splits.few_micro_batches,
    slow_splits.interleaving_unused,
    slow_splits.uneven_stages,
    slow_splits.gradient_reduce_exposed,
    slow_splits.param_gather_exposed,
    slow_splits.sequence_parallel_off,
    slow_splits.distributed_optimizer_off,
    slow_work.recompute_needless,
    slow_work.recompute_full,
    slow_work.offload_needless,
    slow_work.micro_batch_small,
    slow_work.attention_unfused,
    slow_work.loss_unfused,
    slow_work.vocabulary_padding,
    faults.narrow_accumulation,
)
