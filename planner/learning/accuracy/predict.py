"""Time and memory of a case, over its variants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from pydantic import ValidationError

from cost_models.estimate import CostModel
from cost_models.fitted import Fitted
from cost_models.plans import ParallelPlan, Plans
from cost_models.profiles import EfficiencyProfile, profile_for
from planner.evidence.published_runs.cases import Case, case_of
from planner.evidence.published_runs.labels import at_its_peak
from planner.evidence.published_runs.runs import Run

# Variants whose times lie further apart are scored in a table of their own.
OPEN_SPREAD = 0.05


@dataclass(frozen=True)
class Prediction:
    """What the model says of one run; reason: why it says nothing."""

    run: Run
    case: Case | None
    iteration_time_s: float | None = None
    lowest_s: float | None = None
    highest_s: float | None = None
    peak_bytes: float | None = None
    """Of the kind the row measured: allocated, reserved or what the driver sees."""
    driver_bytes: float | None = None
    capacity_bytes: float | None = None
    fits: bool | None = None
    parts_s: dict[str, float] | None = None
    plan: ParallelPlan | None = None
    reason: str = ""

    @property
    def settled(self) -> bool:
        """Whether the inputs that the row leaves open hardly move the time."""
        if self.lowest_s is None or self.highest_s is None:
            return True
        return self.highest_s <= (1 + OPEN_SPREAD) * self.lowest_s


def predict(
    run: Run, constants: Fitted | None = None, profile: EfficiencyProfile | None = None
) -> Prediction:
    """What the model says of a run; profile: a calibration, where it extends the run's own."""

    def calibrated(own: EfficiencyProfile) -> EfficiencyProfile:
        return profile if profile is not None and own.id in (profile.id, profile.extends) else own

    return predict_case(run, read_case(run), constants, calibrated)


def read_case(run: Run) -> Case | str:
    """What a row means, or the reason why that can't be said."""
    try:
        return case_of(run)
    except ValueError as error:
        return _error_line(error)


def predict_case(
    run: Run,
    case: Case | str,
    constants: Fitted | None = None,
    change: Callable[[EfficiencyProfile], EfficiencyProfile] | None = None,
) -> Prediction:
    """What the model says of a run that has been read; change: of the efficiency profile."""
    if isinstance(case, str):
        return Prediction(run, None, reason=case)
    profile = profile_for(case.cluster.groups[0].accelerator)
    try:
        return _predict(run, case, constants, change(profile) if change else profile)
    except ValueError as error:
        return Prediction(run, None, reason=_error_line(error))


def _error_line(error: ValueError) -> str:
    """What is wrong, on one line."""
    text = str(error)
    if isinstance(error, ValidationError):
        errors = error.errors(include_url=False)[:3]
        text = "; ".join(f"{'/'.join(map(str, e['loc']))}: {e['msg']}".lstrip(": ") for e in errors)
    return " ".join(text.split())[:300] or "no reason known"


def _predict(
    run: Run, case: Case, constants: Fitted | None, profile: EfficiencyProfile
) -> Prediction:
    model = CostModel(case.model, case.cluster, case.training, profile, constants)
    if run.is_layer:
        seconds = model.layer_s(case.variants[0])
        if not np.isfinite(seconds) or seconds <= 0:
            raise ValueError("the layer is beyond what the cost model can price")
        return Prediction(run, case, seconds, seconds, seconds, plan=case.variants[0])
    rows: list[Row] = []
    capacity = case.cluster.groups[0].accelerator.memory_bytes
    plans = Plans.from_rows(case.variants)
    estimates = memory = model.evaluate(plans)
    fullest = at_its_peak(run, case.training)
    if fullest != case.training:
        memory = CostModel(case.model, case.cluster, fullest, profile, constants).evaluate(plans)
    for i, plan in enumerate(case.variants):
        seconds, driver = float(estimates.iteration_time_s[i]), float(memory.peak_bytes[i])
        peak = float(memory.memory.peak_of(case.memory_quantity)[i])
        parts = {name: float(value[i]) for name, value in estimates.time_parts_s.items()}
        if not np.isfinite([seconds, peak]).all() or seconds <= 0:
            raise ValueError("the plan is beyond what the cost model can price")
        rows.append((seconds, peak, driver <= capacity, plan, parts, driver))
    fitting = [row for row in rows if row[2]]
    # Of what the run may mean, the middle by time: nobody knows that it was tuned.
    by_time = sorted(fitting or rows, key=lambda row: row[0])
    best, low, high = by_time[(len(by_time) - 1) // 2], by_time[0][0], by_time[-1][0]
    return Prediction(
        run, case, best[0], low, high, best[1], best[5], capacity, best[2], best[4], best[3]
    )


Row = tuple[float, float, bool, ParallelPlan, dict[str, float], float]
