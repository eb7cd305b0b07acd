"""The request and the answer of a sensitivity: `planner sensitivity`, POST /v1/sensitivities."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from cost_models.fields import Spec
from cost_models.plans import ParallelPlan
from planner.documents.answer import ProfileInfo, Reason
from planner.documents.plan_report import Answer, Document, Note, PlanReport
from planner.documents.request import PlanRequest

Unit = Literal["bytes/s", "bytes", "FLOP/s", "s", "USD/h", "W", "share", "count", "ratio"]
Measure = Literal["time per token", "cost per token", "peak memory"]
Factor = Annotated[float, Field(ge=1 / 16, le=16)]

FACTORS = (0.5, 0.8, 1.25, 2.0)


class SensitivitySpec(Spec):
    """The inputs to change, the factors, and the resolution that locates changes of plan."""

    inputs: tuple[Annotated[str, Field(max_length=100)], ...] = Field(
        (), max_length=64, description="names of inputs; empty: all that apply"
    )
    factors: tuple[Factor, ...] = Field(
        FACTORS, max_length=16, description="what each input is multiplied by"
    )
    resolution: Annotated[float, Field(ge=0.001, le=0.5)] = Field(
        0.02, description="share of an input's value to which a change of plan is located"
    )

    @field_validator("factors")
    @classmethod
    def _some(cls, factors: tuple[float, ...]) -> tuple[float, ...]:
        # Not min_length, which would count without the invalid items.
        if set(factors) <= {1.0}:
            raise ValueError("name at least one factor that is not 1")
        return factors


class SensitivityRequest(Spec):
    """A plan request and the analysis to make of its inputs."""

    request: PlanRequest
    sensitivity: SensitivitySpec

    def document(self) -> dict[str, Any]:
        """This request as plain data that can be sent again."""
        asked = self.sensitivity.model_dump(mode="json", exclude_none=True)
        return self.request.document() | {"sensitivity": asked}


class Outcome(Document):
    """The results of one plan; days, cost and energy as in a plan's report."""

    iteration_time_s: float
    tokens_per_s: float
    days: float | None
    cost_usd: float | None
    usd_per_million_tokens: float | None
    energy_kwh: float | None
    peak_bytes: float
    fits: bool


class Point(Document):
    """One value of one input.

    fixed: results of the held plan (dp follows the number of accelerators), None with the reasons
    if it cannot run.  replanned: results of the best plan at this value, None if nothing fits.
    The changes are relative changes of the measure from the base: 0.1 is 10 % more.
    """

    factor: float
    value: float
    fixed: Outcome | None
    fixed_change: float | None
    reasons: tuple[Reason, ...] = ()
    replanned: Outcome | None
    replanned_change: float | None
    plan: ParallelPlan | None


class PlanChange(Document):
    """Two neighbouring values of an input at which different plans are best.

    `before` is the best plan at the value nearer to the base.  None: nothing fits.
    """

    factor_before: float
    factor_after: float
    value_before: float
    value_after: float
    before: ParallelPlan | None
    after: ParallelPlan | None


class InputSensitivity(Document):
    """How the answer moves with one input.

    pointers: places of the input in `request`; empty if it is in the efficiency profile.
    elasticity: d ln(measure) / d ln(input) of the held plan at the base, from the nearest values
    at which it can run (one-sided if a side has none); None if there are none.
    factors_left_out: factors that lead to no further valid value that can be run.
    changes: outward from the base, first down and then up.
    all_changes: False if the best plan changes more often than is listed.
    """

    name: str
    title: str
    unit: Unit
    pointers: tuple[str, ...]
    value: float
    elasticity: float | None
    points: tuple[Point, ...]
    changes: tuple[PlanChange, ...]
    all_changes: bool
    factors_left_out: tuple[float, ...]
    words: tuple[str, ...]


class SensitivityAnswer(Answer):
    """The answer: inputs sorted by how much they move the measure, most first.

    held: the plan held fixed, the request's own or else the best; best: the best at the base.
    left_out: inputs that do not apply, with the reasons.
    """

    profile: ProfileInfo
    measure: Measure
    held: PlanReport
    best: PlanReport
    base: Outcome
    replanned_base: Outcome
    inputs: tuple[InputSensitivity, ...]
    left_out: tuple[Note, ...]
    searches: int
    time_s: float
