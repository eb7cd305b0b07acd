"""Requests for one plan each that can be priced as one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import ClusterSpec, ModelSpec, TrainingSpec
from planner.documents.request import PlanRequest

# A plan, and the request that it is for.
Asked = tuple[PlanRequest, ParallelPlan]


class Shared(NamedTuple):
    """What requests have in common that are priced together."""

    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    profile: str | None
    site: str | None


def shared(request: PlanRequest) -> Shared:
    """What requests have in common that differ only in the plan or the batch size.

    The batch size is a part of it where sample lengths or a site's runs depend on it.
    """
    training = request.training
    if not training.sample_lengths and request.site is None:
        training = training.without_size()
    return Shared(request.model, request.cluster, training, request.profile, request.site)


def plans_in_steps(asked: Sequence[Asked], training: TrainingSpec) -> Plans:
    """The plans of requests, each in a step of its own size; training: what they are priced with.

    Where that is the requests' own, so are the sizes.
    """
    plans = Plans.few(tuple(plan for _, plan in asked))
    if training == asked[0][0].training:
        return plans
    return plans.in_steps(
        [request.training.seq_length for request, _ in asked],
        [request.training.global_batch_size for request, _ in asked],
    )
