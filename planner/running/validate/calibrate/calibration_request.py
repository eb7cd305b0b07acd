"""The request of a calibration: the measurements, and the name of the profile."""

from __future__ import annotations

import re

from cost_models import profiles
from cost_models.calibrations import PROFILE_NAME
from cost_models.catalog import local
from cost_models.profiles import FALLBACK
from planner.documents.problems import RequestError, choice, refuse
from planner.documents.request import PlanRequest
from planner.documents.typed_values import looked_up
from planner.inputs.requests.parser import parse_request
from planner.running.validate.as_pytorch_script import native
from planner.running.validate.calibrate import measurement_points
from planner.running.validate.calibrate.job import Job
from planner.running.validate.processes.process import Limits
from planner.running.validate.scaling.scale_down import scaled


def limits(budget_s: float) -> Limits:
    """The limits of one job that may measure for budget_s."""
    # Startup comes on top, and the last measurement may begin just before the budget is used up.
    return Limits(wall_s=2 * budget_s + 120)


def names(name: str, extends: str | None) -> str:
    """The built-in profile to extend.  Raises RequestError if a name is invalid."""
    if not re.fullmatch(PROFILE_NAME, name):
        detail = "must be lower-case letters, digits, ., _ and -, at most 64, none of .-_ first"
        raise refuse("/name", "wrong_name", detail, name)
    if name in profiles.profiles():
        raise refuse("/name", "name_taken", f"{name} is a built-in profile", name)
    default = extends or local.cluster().groups[0].accelerator.efficiency_profile or FALLBACK
    return looked_up("/extends", lambda: profiles.profile(default)).id


def of_plan(request: PlanRequest, budget_s: float) -> tuple[PlanRequest, list[tuple[int, Job]]]:
    """The measurements for a plan, scaled down to this machine as `planner validate` scales it."""
    if request.training.precision not in measurement_points.PRECISIONS:
        problem = choice(
            "/training/precision", request.training.precision, measurement_points.PRECISIONS
        )
        raise RequestError([problem])
    small = scaled(native(request, compiled=False).request).request
    return small, measurement_points.of_request(small, budget_s)


def full(budget_s: float) -> tuple[PlanRequest, list[tuple[int, Job]]]:
    """The full set of measurements, in the precision that this machine trains in."""
    group = local.cluster().groups[0]
    cpu = group.accelerator.id == local.CPU_ID
    request = parse_request(measurement_points.EXAMPLE, need_plan=True)
    training = request.training.model_copy(update={"precision": "fp32" if cpu else "bf16"})
    request = request.model_copy(update={"training": training})
    ranks = [n for n in measurement_points.RANKS if n <= group.accelerators_per_node]
    return request, measurement_points.full(request.model, training, ranks, budget_s)
