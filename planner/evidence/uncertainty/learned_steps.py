"""Measured steps of reinforcement learning: what they say of the engines of a site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import exp, log, sqrt
from typing import Annotated, Any

from pydantic import Field

from cost_models.fields import Name, Spec

Label = Annotated[str, Field(max_length=200)]
Seconds = Annotated[float, Field(gt=0.0, le=1e6)]
# Standard deviations of ln(measured / modelled) of a generation.  Of one engine's throughputs
# around their own mean, and of all engines' together: tools/accuracy/generation.py, 0.13 and 0.18;
# between releases, trainers and shapes of lengths the latter is taken a third larger.
WITHIN, AT_FIRST_SIGHT = 0.13, 0.24
COVERED = 1.2816  # standard deviations of an 80 % interval, each way


class LearnedStep(Spec):
    """The median step of a log, and what was modelled of its generation.

    id: a digest of the log's content.  request: the step that it was read as, with the lengths that
    the log says.
    """

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    file: Name
    trainer: Label
    learned_at: datetime
    taught_by: Label | None = None
    request: dict[str, Any]
    steps: Annotated[int, Field(ge=1)]
    generation_s: Seconds
    estimated_s: Seconds
    version: Label

    @property
    def ln(self) -> float:
        """The logarithm of measured over modelled time."""
        return log(self.generation_s / self.estimated_s)


@dataclass(frozen=True)
class GenerationBelief:
    """ln(time of a generation / modelled time): its mean, and the standard deviation of one step.

    steps: measured ones that it rests on.
    """

    mean: float
    deviation: float
    steps: int

    @property
    def factor(self) -> float:
        """The factor by which the modelled time is multiplied."""
        return exp(self.mean)

    @property
    def doubt(self) -> float:
        """Ends of the 80 % interval over the middle, and the middle over them."""
        return exp(COVERED * self.deviation)


def generation_belief(steps: Sequence[LearnedStep]) -> GenerationBelief:
    """What the steps of a site say: a normal effect of the site, and of every step there."""
    of_site, within, count = AT_FIRST_SIGHT**2 - WITHIN**2, WITHIN**2, len(steps)
    known = within + count * of_site
    mean = of_site * sum(step.ln for step in steps) / known
    return GenerationBelief(mean, sqrt(of_site * within / known + within), count)
