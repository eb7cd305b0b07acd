"""Host memory of a node that a plan needs for offloading; the search that allows offloading."""

from __future__ import annotations

import numpy as np

from cost_models.plans import ParallelPlan, Plans
from planner.constraints import Context
from planner.constraints.host_memory import offloaded_bytes
from planner.documents.request import PlanRequest
from planner.frameworks.rules import nodes

FIELD = "offload_optimizer"


def host_bytes(request: PlanRequest, plan: ParallelPlan) -> float:
    """What is offloaded to the host memory of a node, in the mean."""
    context = Context(request.model, request.cluster, request.training)
    return float(np.max(offloaded_bytes(context, Plans.few((plan,))))) / nodes(request.cluster)


def offloading(request: PlanRequest) -> PlanRequest | None:
    """The request with the optimizer in host memory allowed, as one tunes on a single node.

    None where the request says where the optimizer is, or has more nodes.
    """
    search = request.search
    if FIELD in search.open or FIELD in search.limits or nodes(request.cluster) > 1:
        return None
    wider = search.model_copy(update={"open": (*search.open, FIELD)})
    return request.model_copy(update={"search": wider})
