"""A site: a calibration and measured runs of one cluster, and the corrections they imply.

Its belief is that at first sight, conditioned on its own runs.  A site's runs are compared with the
estimates without them, so that a site without runs changes nothing; its calibration, the
profile of the same name, prices the accelerators that it was measured on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from math import log
from typing import Annotated, Any

from pydantic import Field

from cost_models.calibrations import ACCELERATOR, Calibration, over_base
from cost_models.fields import Name, Spec
from cost_models.profiles import FALLBACK, EfficiencyProfile, profile
from planner.evidence.uncertainty.error_features import FACTORS, ErrorFeatures, doubts_of, groups_of
from planner.evidence.uncertainty.first_sight import Belief, prior
from planner.evidence.uncertainty.learned_steps import LearnedStep
from planner.evidence.uncertainty.memory_risk import Peaks, peaks
from planner.evidence.uncertainty.posterior import Posterior, SeenRun, posterior

MAX_RUNS = 1_000
Share = Annotated[float, Field(ge=0.0, le=10.0)]
Seconds = Annotated[float, Field(gt=0.0, le=1e6)]
Label = Annotated[str, Field(max_length=200)]


class LearnedRun(Spec):
    """One measured run.

    id: a digest of the log's content, so that a log counts once.  file: the name of its log.
    taught_by: the caller of the service that taught it; None: whoever has the machine.
    request: the request that it was read as, with its plan.  step_s: seconds of one iteration, over
    `steps` steps; left_out: the number of steps left out, by reason.  estimated_s, shares, groups,
    experts: the estimate for the request by that version of the planner and the calibration of that
    moment, and its error features.
    """

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    file: Name
    code_base: Label
    learned_at: datetime
    taught_by: Label | None = None
    request: dict[str, Any]
    left_open: tuple[Label, ...] = ()
    assumed: tuple[Annotated[str, Field(max_length=2_000)], ...] = ()
    step_s: Seconds
    steps: Annotated[int, Field(ge=1)]
    left_out: Mapping[Label, Annotated[int, Field(ge=0)]] = {}
    peak_bytes: Annotated[float, Field(ge=0)] | None = None
    memory_quantity: Label | None = None
    version: Label
    calibrated_at: Label | None = None
    estimated_s: Seconds
    estimated_peak_bytes: Annotated[float, Field(ge=0)] | None = None
    shares: Mapping[Label, Share]
    groups: tuple[Label, Label, Label, Label]
    experts: bool

    @property
    def features(self) -> ErrorFeatures:
        """Its estimate by factor, and what is guessed of it."""
        shares = tuple(self.shares.get(name, 0.0) for name in FACTORS)
        model, cluster, training = (self.request[name] for name in ("model", "cluster", "training"))
        groups = groups_of(*self.groups, model["hidden_size"], model["num_layers"])
        accelerators = sum(
            group["nodes"] * group["accelerators_per_node"] for group in cluster["groups"]
        )
        plan = self.request.get("plan") or {}
        known = cluster["groups"][0]["accelerator"].get("efficiency_profile") or FALLBACK
        priced = profile(known)
        if self.calibrated_at is not None:
            priced = replace(priced, kind="calibrated")
        other_method = any(
            (training.get("lora_rank"), training.get("frozen"), plan.get("offload_optimizer"),
             plan.get("offload_activations"))
        )  # fmt: skip
        return ErrorFeatures(
            shares,
            groups,
            self.experts,
            model["hidden_size"],
            self.estimated_s,
            accelerators,
            training["precision"],
            doubts_of(priced, other_method, ("inputs",) if self.left_open else ()),
        )

    @property
    def ln(self) -> float:
        """The logarithm of measured over estimated time."""
        return log(self.step_s / self.estimated_s)

    @property
    def peak(self) -> tuple[str, float] | None:
        """The runtime, and the logarithm of measured over estimated peak memory."""
        if not (self.peak_bytes and self.estimated_peak_bytes):
            return None
        return self.groups[2], log(self.peak_bytes / self.estimated_peak_bytes)


class Site(Spec):
    """A named set of learned runs, the oldest first; calibration: kept among the profiles.

    steps: of reinforcement learning, for the rates of its engines.
    """

    name: str
    runs: Annotated[tuple[LearnedRun, ...], Field(max_length=MAX_RUNS)] = ()
    steps: Annotated[tuple[LearnedStep, ...], Field(max_length=MAX_RUNS)] = ()
    calibration: Annotated[Calibration | None, Field(exclude=True)] = None

    def with_runs(self, runs: tuple[LearnedRun, ...]) -> Site:
        """This site with other runs."""
        # Not model_copy, which would copy what is cached of these runs.
        return Site(name=self.name, runs=runs, steps=self.steps, calibration=self.calibration)

    def with_steps(self, steps: tuple[LearnedStep, ...]) -> Site:
        """This site with other steps."""
        return Site(name=self.name, runs=self.runs, steps=steps, calibration=self.calibration)

    @cached_property
    def unlearned(self) -> Site:
        """This site without its runs."""
        return self.with_runs(())

    @property
    def calibrated_at(self) -> str | None:
        """When it was calibrated, if it was."""
        return None if self.calibration is None else self.calibration.measured_at

    def profile_of(self, accelerator: str) -> EfficiencyProfile | None:
        """The calibration as a profile, where it was measured on this accelerator."""
        measured_on = self.calibration and self.calibration.hardware.get(ACCELERATOR)
        return self._profile if measured_on == accelerator else None

    @cached_property
    def _profile(self) -> EfficiencyProfile | None:
        return None if self.calibration is None else over_base(self.calibration)

    @property
    def source(self) -> str:
        """Its group at the level of sources."""
        return source_of(self.name)

    @cached_property
    def digest(self) -> str:
        """A digest of everything that affects its answers."""
        runs = [
            [run.id, run.step_s, run.estimated_s, run.peak, *run.features.shares]
            for run in self.runs
        ]
        content = json.dumps(runs)
        if self.steps:
            content += json.dumps([[step.id, step.ln] for step in self.steps])
        if self.calibration is not None:
            content += self.calibration.model_dump_json()
        return hashlib.sha256(content.encode()).hexdigest()

    @cached_property
    def seen(self) -> tuple[SeenRun, ...]:
        """Its runs in the form that the posterior takes."""
        return posterior().with_outlier_noise([SeenRun(run.features, run.ln) for run in self.runs])

    @cached_property
    def correction(self) -> Posterior:
        """The published posterior given its runs, by which two plans are compared there."""
        return posterior().conditioned_on(self.seen)

    @cached_property
    def belief(self) -> Belief:
        """What is believed of ln(time at this site / time estimated without it)."""
        return Belief(prior(), [SeenRun(run.features, run.ln) for run in self.runs])

    @cached_property
    def peaks(self) -> Peaks:
        """The errors of memory peaks at this site."""
        return peaks().given(self.name, [peak for run in self.runs if (peak := run.peak)])


def source_of(name: str) -> str:
    """The group of a site at the level of sources."""
    return f"site:{name}"
