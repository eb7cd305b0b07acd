"""The distance between two plans: the number of choices in which they differ."""

from __future__ import annotations

import numpy as np

from cost_models.estimate import Estimates
from cost_models.plans import FIELDS, FloatArray, ParallelPlan, Plans
from planner.constraints import BoolArray
from planner.search.outcome import Score

# Fields that make one choice together: changing any of them is one change.
CHOICES: tuple[tuple[str, ...], ...] = (
    (
        "recompute",
        "recompute_modules",
        "recompute_num_layers",
        "recompute_method",
        "recompute_layers",
    ),
    ("schedule", "vpp"),
    ("first_stage_layers", "last_stage_layers", "stage_layers"),
    ("zero_stage", "reshard_after_forward"),
)


def changed_fields(plan: ParallelPlan) -> Score:
    """Score plans by the number of choices that differ from one plan, then by time.

    dp is not counted, since it follows from the other degrees.

    Times are squeezed into [0, 1), so a faster plan never outweighs a smaller change.
    """
    row = Plans.from_rows([plan])
    grouped = {name for choice in CHOICES for name in choice}
    singles = tuple((name,) for name in FIELDS if name not in grouped and name != "dp")

    def score(plans: Plans, estimates: Estimates) -> FloatArray:
        changed: FloatArray = np.zeros(len(plans))
        for choice in (*CHOICES, *singles):
            differs: BoolArray = np.zeros((), dtype=np.bool_)
            for name in choice:
                if name in ("stage_layers", "recompute_layers"):
                    table = ((), *plans.stage_layers_table)
                    same = np.array([split == getattr(plan, name) for split in table])
                    differs = differs | ~same[getattr(plans, name)]
                else:
                    differs = differs | (getattr(plans, name) != getattr(row, name)[0])
            changed = changed + differs
        seconds = estimates.iteration_time_s
        return changed + seconds / (1.0 + seconds)

    return score
