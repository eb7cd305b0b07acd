"""The best values of switches that the rules accept, for each plan.

A switch (torch.compile, a fused loss, an overlap) has a better value, which is never slower and
never needs more memory.  So a plan is priced with all switches at their best; if a rule refuses
that, with every combination that is not worse than an accepted one.  A plan whose overlaps are
weighed against each other is priced with both values of overlap_ep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from cost_models.keys import group
from cost_models.plans import IntArray, Plans, concatenate
from planner.constraints import BoolArray, Context, Rule, judged, passing
from planner.search.option_axes import Switches, weighs_overlaps

Refused = list[tuple[Rule, BoolArray]]
# The fields that decide whether a switch has an effect on a plan.
RESTS_ON = ("tp", "cp", "pp", "dp", "dp_shard", "ep", "zero_stage")


def with_best_switches(
    switches: Switches,
    rules: Iterable[Rule],
    context: Context,
    plans: Plans,
    at_rest: Callable[[Plans], Plans],
) -> tuple[Plans, Refused]:
    """Plans with their best switches, and for each rule the plans that it refuses with any.

    plans: with the first combination of switches.  at_rest: sets switches without effect on a plan
    to their first value.
    """
    plans = at_rest(plans)
    weighed = np.zeros(len(plans), dtype=np.bool_)
    if "overlap_ep" in switches.columns:
        weighed |= weighs_overlaps(context.cluster, plans)
    legal = np.ones(len(plans), dtype=np.bool_)
    best = legal.copy()
    refused: Refused = []
    asking: Refused = []
    fields = set(RESTS_ON)
    for rule in rules:
        passes, read = judged(rule, context, plans)
        if switches.columns.keys() & read:
            asking.append((rule, ~passes))
            fields |= read
            best &= passes
        else:
            refused.append((rule, legal & ~passes))
            legal &= passes
    result = plans.take(legal & best & ~weighed)
    rows = np.flatnonzero(legal & ~(best & ~weighed))
    if not len(rows):
        return result, refused
    asks = [rule for rule, _ in asking]
    # The rules are applied once to plans that they cannot tell apart.
    pending = plans.take(rows)
    groups = group(*(getattr(pending, name) for name in sorted(fields - switches.columns.keys())))
    firsts = pending.take(groups.first)
    accepted = np.zeros((len(groups.first), len(switches.outdoes)), dtype=np.bool_)
    accepted[:, 0] = best[rows][groups.first]
    apart = weighed[rows][groups.first, None]
    for k in range(1, accepted.shape[1]):
        outdoing = np.where(apart, switches.same_ep[:, k], switches.outdoes[:, k])
        open_rows = np.flatnonzero(~(accepted & outdoing).any(axis=1))
        if not len(open_rows):
            continue
        tried = at_rest(firsts.take(open_rows).with_columns(**switches.of(k)))
        accepted[open_rows, k] = passing(asks, context, tried)
    of_row = np.zeros(len(rows), dtype=np.int64) if groups.inverse is None else groups.inverse
    for k in np.flatnonzero(accepted.any(axis=0)).tolist():
        switched = pending.take(np.flatnonzero(accepted[of_row, k]))
        result = concatenate(result, at_rest(switched.with_columns(**switches.of(k))))
    settles = np.asarray(accepted.any(axis=1))
    unsettled = rows[~settles[of_row]]
    return result, [*refused, *_first_reasons(asking, len(legal), unsettled)]


def _first_reasons(asking: Refused, count: int, rows: IntArray) -> Refused:
    """Rows that no combination makes legal, by the first rule that refuses the best one."""
    unrefused = np.zeros(count, dtype=np.bool_)
    unrefused[rows] = True
    reasons = []
    for rule, refuses in asking:
        reasons.append((rule, unrefused & refuses))
        unrefused &= ~refuses
    return reasons
