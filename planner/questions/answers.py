"""From a request to its answer, where a question's record cannot name one function for that."""

from __future__ import annotations

import json
from typing import Any

from planner.answers import mixed_clusters
from planner.answers.lint import lint as linting
from planner.answers.lint.findings import LintAnswer, ReadAnswer
from planner.answers.lint.request import LintRequest, parse_lint
from planner.answers.mixed_clusters.answer import MixedAnswer
from planner.answers.plans import plan_answers
from planner.answers.plans import ranks as placing
from planner.answers.plans.answer_ids import answer_id
from planner.answers.plans.candidates import Status, candidates
from planner.answers.plans.layer_contents import LayersAnswer, layers_answer
from planner.answers.plans.two_plans import SideBySide, side_by_side
from planner.answers.sensitivities import analysis
from planner.answers.sensitivities.documents import SensitivityAnswer, SensitivityRequest
from planner.documents.answer import EstimateAnswer, PlanAnswer, WhyAnswer
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty import site_storage as storage
from planner.evidence.uncertainty.nearest_runs import Evidence, evidence
from planner.inputs.requests.parser import parse_request
from planner.inputs.requests.two_requests import parse_both


def with_plan(document: Any) -> PlanRequest:
    """A request that has a plan.  Raises RequestError."""
    return parse_request(document, need_plan=True)


def of_any_cluster(document: Any) -> PlanRequest:
    """A request whose nodes may differ.  Raises RequestError."""
    return parse_request(document, mixed_cluster=True)


def plan(request: PlanRequest) -> PlanAnswer | MixedAnswer:
    """The fastest plans that fit, or the ways to use nodes that differ."""
    differ = len(request.cluster.groups) > 1
    return mixed_clusters.find(request) if differ else plan_answers.find(request)


def estimate(request: PlanRequest) -> EstimateAnswer:
    """Time and memory of the request's plan."""
    return plan_answers.estimate(request, request.named_plan)


def why(request: PlanRequest) -> WhyAnswer:
    """What binds the request's plan, and what would be better."""
    return plan_answers.why(request, request.named_plan)


def ranks(request: PlanRequest, order: str) -> placing.RanksAnswer:
    """Where the ranks of the request's plan sit."""
    return placing.ranks(request, request.named_plan, order)


def layers(request: PlanRequest) -> LayersAnswer:
    """What the layers of the request's plan are made of."""
    return layers_answer(request, request.named_plan)


def nearest(request: PlanRequest) -> Evidence:
    """The published runs nearest to the request's plan."""
    site = storage.site_of_request(request.site)
    plan = request.named_plan
    return evidence(request.model, request.cluster, request.training, plan, site)


def compare(document: Any) -> SideBySide:
    """The two requests of a document side by side."""
    return side_by_side(*parse_both(document))


def sensitivity(request: SensitivityRequest) -> SensitivityAnswer:
    """How each input moves the answer."""
    return analysis.sensitivity(request.request, request.sensitivity)


def lint(request: LintRequest) -> LintAnswer:
    """What is wrong with a launch."""
    return linting.lint(request.files, request.named_cluster, request.framework, request.given)


def read(document: Any) -> ReadAnswer:
    """What a launch says."""
    request = parse_lint(document, need_cluster=False)
    return linting.read(request.files, request.cluster, request.framework, request.given)


def dumped_candidates(answer: bytes, id: str, status: Status, sort: str) -> bytes | str:
    """The listed rows of a kept answer as bytes to be stored, or why there are none.

    The search is done again, so what it finds must be what the answer is made of.
    """
    request = parse_request(json.loads(answer)["request"], mixed_cluster=True)
    if answer_id("pl", request.document()) != id:
        site = request.site or request.profile
        cause = f"site {site} has" if site else "the build of the service has"
        return f"{cause} changed since this answer; request a new plan"
    if len(request.cluster.groups) > 1:
        return "a cluster of different nodes has no list of candidates"
    return candidates(request, status, sort).dump()
