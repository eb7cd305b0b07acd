"""The operations of a service, from its OpenAPI document.

Written by `python -m api.client_code --write`; not to be changed by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

from pydantic import TypeAdapter

from planner.answers.candidates import CandidatePage
from planner.answers.layer_contents import LayersAnswer
from planner.answers.ranks import RanksAnswer
from planner.answers.two_plans import SideBySide
from planner.client.calls import Budget, Calls, Document, part
from planner.client.documents import (
    Accelerators,
    Clusters,
    Frameworks,
    Health,
    JobAnswer,
    JobPage,
    Kind,
    Models,
    SavedPlanAnswer,
    SavedPlanPage,
    Schedules,
    ScoredRuns,
    SiteList,
    State,
    Status,
)
from planner.client.events import Event
from planner.documents.answer import EstimateAnswer, PlanAnswer, WhyAnswer
from planner.documents.scored_runs import Evidence
from planner.frameworks.base import Bundle
from planner.inventory.catalog import (
    AcceleratorEntry,
    ClusterEntry,
    FrameworkEntry,
    ModelEntry,
    ScheduleEntry,
)
from planner.inventory.info import Info
from planner.lint.findings import LintAnswer, ReadAnswer
from planner.mixed_clusters.answer import MixedAnswer
from planner.pipelines.all_schedules import ComparisonAnswer
from planner.pipelines.timeline import TimelineAnswer
from planner.reinforcement.documents import ReinforcementAnswer
from planner.request_parsing.model_import import ModelAnswer
from planner.sensitivities.documents import SensitivityAnswer
from planner.sites.learn_answer import LearnAnswer
from planner.sizing.answer import SizingAnswer
from planner.uncertainty.site_corrections import SiteAnswer
from planner.validate.one_node import OneNode
from planner.validate.report import ValidationReport


class Operations(Calls):
    """The operations of a service."""

    def plan(self, document: Document, **budget: Unpack[Budget]) -> PlanAnswer | MixedAnswer:
        """Search; that nothing fits is an answer too, with best null and the nearest miss."""
        return self.ask(
            TypeAdapter[PlanAnswer | MixedAnswer](PlanAnswer | MixedAnswer),
            "POST",
            "/v1/plans",
            document,
            query=budget,
            streams=True,
        )

    def kept_plan(self, id: str) -> PlanAnswer | MixedAnswer:
        """An answer again, as long as it is kept."""
        return self.ask(
            TypeAdapter[PlanAnswer | MixedAnswer](PlanAnswer | MixedAnswer),
            "GET",
            f"/v1/plans/{part(id)}",
        )

    def plan_candidates(
        self,
        id: str,
        *,
        status: Status = "feasible",
        sort: str = "-tokens_per_s",
        limit: int = 100,
        cursor: int = 0,
        **budget: Unpack[Budget],
    ) -> CandidatePage:
        """Every plan that was priced, as light rows; with Accept: text/csv as a table."""
        return self.ask(
            CandidatePage,
            "GET",
            f"/v1/plans/{part(id)}/candidates",
            query={"status": status, "sort": sort, "limit": limit, "cursor": cursor, **budget},
        )

    def estimate(self, document: Document, **budget: Unpack[Budget]) -> EstimateAnswer:
        """Estimate the request's plan; dp may be left out, it follows from the others."""
        return self.ask(EstimateAnswer, "POST", "/v1/estimates", document, query=budget)

    def bundle(
        self, document: Document, *, launcher: str | None = None, **budget: Unpack[Budget]
    ) -> Bundle:
        """Files for search.framework, of the request's plan or else of the best one."""
        return self.ask(
            Bundle, "POST", "/v1/bundles", document, query={"launcher": launcher, **budget}
        )

    def timeline(self, document: Document, **budget: Unpack[Budget]) -> TimelineAnswer:
        """Run a schedule with the given times of one chunk, or the pipeline of a request's
        plan.
        """
        return self.ask(TimelineAnswer, "POST", "/v1/timelines", document, query=budget)

    def ranks(self, document: Document, *, order: str = "megatron") -> RanksAnswer:
        """Coordinates, process groups and the links they cross, in a framework's rank order."""
        return self.ask(RanksAnswer, "POST", "/v1/ranks", document, query={"order": order})

    def lint(self, document: Document, **budget: Unpack[Budget]) -> LintAnswer:
        """Read the files of a launch, none of which is run; findings are an answer, not a
        problem.
        """
        return self.ask(LintAnswer, "POST", "/v1/lints", document, query=budget)

    def read(self, document: Document, **budget: Unpack[Budget]) -> ReadAnswer:
        """The request that the files of a launch make, none of which is run."""
        return self.ask(ReadAnswer, "POST", "/v1/reads", document, query=budget)

    def sensitivity(self, document: Document, **budget: Unpack[Budget]) -> SensitivityAnswer:
        """Change each input, with the plan held and planned again; where the best plan
        changes.
        """
        return self.ask(
            SensitivityAnswer, "POST", "/v1/sensitivities", document, query=budget, streams=True
        )

    def kept_sensitivity(self, id: str) -> SensitivityAnswer:
        """An answer again, as long as it is kept."""
        return self.ask(SensitivityAnswer, "GET", f"/v1/sensitivities/{part(id)}")

    def sizing(self, document: Document, **budget: Unpack[Budget]) -> SizingAnswer:
        """Search every cluster; that nothing fits, or keeps the limits, is an answer too."""
        return self.ask(SizingAnswer, "POST", "/v1/sizings", document, query=budget, streams=True)

    def kept_sizing(self, id: str) -> SizingAnswer:
        """An answer again, as long as it is kept."""
        return self.ask(SizingAnswer, "GET", f"/v1/sizings/{part(id)}")

    def rl(self, document: Document, **budget: Unpack[Budget]) -> ReinforcementAnswer:
        """Time and memory of one step of GRPO or PPO, from a stated generation throughput."""
        return self.ask(ReinforcementAnswer, "POST", "/v1/rl", document, query=budget, streams=True)

    def kept_step(self, id: str) -> ReinforcementAnswer:
        """An answer again, as long as it is kept."""
        return self.ask(ReinforcementAnswer, "GET", f"/v1/rl/{part(id)}")

    def models(self) -> Models:
        """Model presets: their dims, parameters and source."""
        return self.ask(Models, "GET", "/v1/catalog/models")

    def accelerators(self) -> Accelerators:
        """Accelerators: what one rank sees, and the node it usually comes in."""
        return self.ask(Accelerators, "GET", "/v1/catalog/accelerators")

    def clusters(self) -> Clusters:
        """Cluster presets: a node, its links and its network."""
        return self.ask(Clusters, "GET", "/v1/catalog/clusters")

    def frameworks(self) -> Frameworks:
        """Frameworks: versions, how each says every field of a plan, and whether it is read
        back.
        """
        return self.ask(Frameworks, "GET", "/v1/catalog/frameworks")

    def schedules(self) -> Schedules:
        """Pipeline schedules: chunks, memory, what they do to the weights, and who has them."""
        return self.ask(Schedules, "GET", "/v1/catalog/schedules")

    def model(self, id: str) -> ModelEntry:
        """One of the models, by its id or an alias."""
        return self.ask(ModelEntry, "GET", f"/v1/catalog/models/{part(id)}")

    def accelerator(self, id: str) -> AcceleratorEntry:
        """One of the accelerators, by its id or an alias."""
        return self.ask(AcceleratorEntry, "GET", f"/v1/catalog/accelerators/{part(id)}")

    def cluster(self, id: str) -> ClusterEntry:
        """One of the clusters, by its id or an alias."""
        return self.ask(ClusterEntry, "GET", f"/v1/catalog/clusters/{part(id)}")

    def framework(self, id: str) -> FrameworkEntry:
        """One of the frameworks, by its id or an alias."""
        return self.ask(FrameworkEntry, "GET", f"/v1/catalog/frameworks/{part(id)}")

    def schedule(self, id: str) -> ScheduleEntry:
        """One of the schedules, by its id or an alias."""
        return self.ask(ScheduleEntry, "GET", f"/v1/catalog/schedules/{part(id)}")

    def import_model(self, document: Document) -> ModelAnswer:
        """Read a Hugging Face config.json: the dims, the parameters, and what it did not
        state.
        """
        return self.ask(ModelAnswer, "POST", "/v1/models/import", document)

    def describe_model(self, document: Document) -> ModelAnswer:
        """A model's dims, as a request has them: its parameters and its layers."""
        return self.ask(ModelAnswer, "POST", "/v1/models/describe", document)

    def explanation(self, document: Document, **budget: Unpack[Budget]) -> WhyAnswer:
        """What binds the request's plan, the smallest change that fits, and what the best one
        gains.
        """
        return self.ask(WhyAnswer, "POST", "/v1/explanations", document, query=budget)

    def comparison(self, document: Document) -> SideBySide:
        """Every value of two requests with a plan, of what is asked and what comes of it."""
        return self.ask(SideBySide, "POST", "/v1/comparisons", document)

    def schedule_comparison(self, document: Document, **budget: Unpack[Budget]) -> ComparisonAnswer:
        """Every pipeline schedule on one pipeline: of a request's plan, or with given times."""
        return self.ask(
            ComparisonAnswer, "POST", "/v1/schedule-comparisons", document, query=budget
        )

    def info(self) -> Info:
        """Version, what this machine can do, and the limits on a call."""
        return self.ask(Info, "GET", "/v1/info")

    def jobs(
        self,
        *,
        kind: Kind | None = None,
        state: State | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> JobPage:
        """Jobs of all kinds, the newest first."""
        return self.ask(
            JobPage,
            "GET",
            "/v1/jobs",
            query={"kind": kind, "state": state, "limit": limit, "cursor": cursor},
        )

    def start_validations(
        self, document: Document, *, idempotency_key: str | None = None
    ) -> JobAnswer:
        """Train with the plan for a few steps on the service's machine, and hold time, memory
        and, if asked, gradients against the estimate.
        """
        return self.ask(
            JobAnswer,
            "POST",
            "/v1/validations",
            document,
            headers={"idempotency-key": idempotency_key},
        )

    def list_validations(
        self, *, state: State | None = None, limit: int = 50, cursor: str | None = None
    ) -> JobPage:
        """Jobs of this kind, the newest first."""
        return self.ask(
            JobPage,
            "GET",
            "/v1/validations",
            query={"state": state, "limit": limit, "cursor": cursor},
        )

    def get_validations(self, id: str) -> JobAnswer:
        """Where a job is, and its result when it is over."""
        return self.ask(JobAnswer, "GET", f"/v1/validations/{part(id)}")

    def delete_validations(self, id: str) -> None:
        """Forget a job that is over, with its result."""
        self.do("DELETE", f"/v1/validations/{part(id)}")

    def follow_validations(self, id: str, *, last_event_id: str | None = None) -> Iterator[Event]:
        """Its events as they come: progress, log, and done as the last."""
        return self.follow(
            f"/v1/validations/{part(id)}/events", headers={"last-event-id": last_event_id}
        )

    def log_of_validations(self, id: str) -> str:
        """What it and its processes said, a line each."""
        return self.text(f"/v1/validations/{part(id)}/logs")

    def cancel_validations(self, id: str) -> JobAnswer:
        """Have it stop, all its processes with it."""
        return self.ask(JobAnswer, "POST", f"/v1/validations/{part(id)}/cancel")

    def start_calibrations(
        self, document: Document, *, idempotency_key: str | None = None
    ) -> JobAnswer:
        """Measure kernels and links of the service's machine; an efficiency profile to plan
        with.  Without a model and a plan the full set of sizes.
        """
        return self.ask(
            JobAnswer,
            "POST",
            "/v1/calibrations",
            document,
            headers={"idempotency-key": idempotency_key},
        )

    def list_calibrations(
        self, *, state: State | None = None, limit: int = 50, cursor: str | None = None
    ) -> JobPage:
        """Jobs of this kind, the newest first."""
        return self.ask(
            JobPage,
            "GET",
            "/v1/calibrations",
            query={"state": state, "limit": limit, "cursor": cursor},
        )

    def get_calibrations(self, id: str) -> JobAnswer:
        """Where a job is, and its result when it is over."""
        return self.ask(JobAnswer, "GET", f"/v1/calibrations/{part(id)}")

    def delete_calibrations(self, id: str) -> None:
        """Forget a job that is over, with its result."""
        self.do("DELETE", f"/v1/calibrations/{part(id)}")

    def follow_calibrations(self, id: str, *, last_event_id: str | None = None) -> Iterator[Event]:
        """Its events as they come: progress, log, and done as the last."""
        return self.follow(
            f"/v1/calibrations/{part(id)}/events", headers={"last-event-id": last_event_id}
        )

    def log_of_calibrations(self, id: str) -> str:
        """What it and its processes said, a line each."""
        return self.text(f"/v1/calibrations/{part(id)}/logs")

    def cancel_calibrations(self, id: str) -> JobAnswer:
        """Have it stop, all its processes with it."""
        return self.ask(JobAnswer, "POST", f"/v1/calibrations/{part(id)}/cancel")

    def start_dryruns(self, document: Document, *, idempotency_key: str | None = None) -> JobAnswer:
        """Trace ranks of the plan at full scale without a GPU, and compare with the estimate."""
        return self.ask(
            JobAnswer, "POST", "/v1/dryruns", document, headers={"idempotency-key": idempotency_key}
        )

    def list_dryruns(
        self, *, state: State | None = None, limit: int = 50, cursor: str | None = None
    ) -> JobPage:
        """Jobs of this kind, the newest first."""
        return self.ask(
            JobPage, "GET", "/v1/dryruns", query={"state": state, "limit": limit, "cursor": cursor}
        )

    def get_dryruns(self, id: str) -> JobAnswer:
        """Where a job is, and its result when it is over."""
        return self.ask(JobAnswer, "GET", f"/v1/dryruns/{part(id)}")

    def delete_dryruns(self, id: str) -> None:
        """Forget a job that is over, with its result."""
        self.do("DELETE", f"/v1/dryruns/{part(id)}")

    def follow_dryruns(self, id: str, *, last_event_id: str | None = None) -> Iterator[Event]:
        """Its events as they come: progress, log, and done as the last."""
        return self.follow(
            f"/v1/dryruns/{part(id)}/events", headers={"last-event-id": last_event_id}
        )

    def log_of_dryruns(self, id: str) -> str:
        """What it and its processes said, a line each."""
        return self.text(f"/v1/dryruns/{part(id)}/logs")

    def cancel_dryruns(self, id: str) -> JobAnswer:
        """Have it stop, all its processes with it."""
        return self.ask(JobAnswer, "POST", f"/v1/dryruns/{part(id)}/cancel")

    def start_sweeps(self, document: Document, *, idempotency_key: str | None = None) -> JobAnswer:
        """Ask every request of a grid."""
        return self.ask(
            JobAnswer, "POST", "/v1/sweeps", document, headers={"idempotency-key": idempotency_key}
        )

    def list_sweeps(
        self, *, state: State | None = None, limit: int = 50, cursor: str | None = None
    ) -> JobPage:
        """Jobs of this kind, the newest first."""
        return self.ask(
            JobPage, "GET", "/v1/sweeps", query={"state": state, "limit": limit, "cursor": cursor}
        )

    def get_sweeps(self, id: str) -> JobAnswer:
        """Where a job is, and its result when it is over."""
        return self.ask(JobAnswer, "GET", f"/v1/sweeps/{part(id)}")

    def delete_sweeps(self, id: str) -> None:
        """Forget a job that is over, with its result."""
        self.do("DELETE", f"/v1/sweeps/{part(id)}")

    def follow_sweeps(self, id: str, *, last_event_id: str | None = None) -> Iterator[Event]:
        """Its events as they come: progress, log, and done as the last."""
        return self.follow(
            f"/v1/sweeps/{part(id)}/events", headers={"last-event-id": last_event_id}
        )

    def log_of_sweeps(self, id: str) -> str:
        """What it and its processes said, a line each."""
        return self.text(f"/v1/sweeps/{part(id)}/logs")

    def cancel_sweeps(self, id: str) -> JobAnswer:
        """Have it stop, all its processes with it."""
        return self.ask(JobAnswer, "POST", f"/v1/sweeps/{part(id)}/cancel")

    def saved_plans(self, *, limit: int = 50, cursor: str | None = None) -> SavedPlanPage:
        """Saved plans by name."""
        return self.ask(
            SavedPlanPage, "GET", "/v1/saved-plans", query={"limit": limit, "cursor": cursor}
        )

    def saved_plan(self, name: str) -> SavedPlanAnswer:
        """What is saved under a name."""
        return self.ask(SavedPlanAnswer, "GET", f"/v1/saved-plans/{part(name)}")

    def save_plan(self, name: str, document: Document) -> SavedPlanAnswer:
        """Save under a name, over what had it."""
        return self.ask(SavedPlanAnswer, "PUT", f"/v1/saved-plans/{part(name)}", document)

    def forget_saved_plan(self, name: str) -> None:
        """Forget a name."""
        self.do("DELETE", f"/v1/saved-plans/{part(name)}")

    def sites(self) -> SiteList:
        """The sites that are kept."""
        return self.ask(SiteList, "GET", "/v1/sites")

    def site(self, name: str, **budget: Unpack[Budget]) -> SiteAnswer:
        """What a site learned, what it cannot tell yet, and how far off it is."""
        return self.ask(SiteAnswer, "GET", f"/v1/sites/{part(name)}", query=budget)

    def forget_site(self, name: str) -> None:
        """Forget a site with its calibration and all of its runs."""
        self.do("DELETE", f"/v1/sites/{part(name)}")

    def learn(self, name: str, document: Document, **budget: Unpack[Budget]) -> LearnAnswer:
        """What a training log says; kept with the site only where keep is true."""
        return self.ask(LearnAnswer, "POST", f"/v1/sites/{part(name)}/runs", document, query=budget)

    def published_runs(self) -> ScoredRuns:
        """Every published run with its predicted time, and intervals its source had no part
        in.
        """
        return self.ask(ScoredRuns, "GET", "/v1/accuracy/runs")

    def nearest_runs(self, document: Document) -> Evidence:
        """The published runs nearest to the request's plan, and on what ground its time
        stands.
        """
        return self.ask(Evidence, "POST", "/v1/accuracy/nearest", document)

    def layers(self, document: Document) -> LayersAnswer:
        """Kernels, saved tensors and communication of the request's plan, hidden beside
        exposed.
        """
        return self.ask(LayersAnswer, "POST", "/v1/layers", document)

    def one_node_script(self, document: Document) -> OneNode:
        """The script that trains the request's plan, scaled to one node of its cluster."""
        return self.ask(OneNode, "POST", "/v1/one-node", document)

    def one_node_report(self, document: Document) -> ValidationReport:
        """What its ranks measured, compared with the estimate."""
        return self.ask(ValidationReport, "POST", "/v1/one-node/results", document)

    def healthz(self) -> Health:
        """Whether the service is alive, also while it is computing."""
        return self.ask(Health, "GET", "/healthz")

    def readyz(self) -> Health:
        """Whether the service can do all of its work: its store is writable, and jobs run."""
        return self.ask(Health, "GET", "/readyz")

    def metrics(self) -> str:
        """Calls by method, route and status, and how long they took, for Prometheus."""
        return self.text("/metrics")
