"""Memory of a node's host that a plan needs for what it offloads, and the search that allows it."""

from __future__ import annotations

from cost_models.estimate import CostModel
from cost_models.plans import ParallelPlan, Plans
from planner.documents.request import PlanRequest
from planner.frameworks.rules import nodes

FIELD = "offload_optimizer"


def optimizer_bytes(model: CostModel, request: PlanRequest, plan: ParallelPlan) -> float:
    """Optimizer states in a node's host memory: what its ranks hold where nothing is offloaded.

    The mean over stages stands for each rank; pinned buffers are not counted.
    """
    if not plan.offload_optimizer:
        return 0.0
    kept = plan.model_copy(update={FIELD: False})
    memory = model.evaluate(Plans.few((kept,)), all_stages=True).memory
    each = float(memory.parts["optimizer"][:, 0].mean())
    return each * request.cluster.groups[0].accelerators_per_node


def offloading(request: PlanRequest) -> PlanRequest | None:
    """The request with the optimizer in host memory allowed, as one tunes on a single node.

    None where the request says where the optimizer is, or has more nodes.
    """
    search = request.search
    if FIELD in search.open or FIELD in search.limits or nodes(request.cluster) > 1:
        return None
    wider = search.model_copy(update={"open": (*search.open, FIELD)})
    return request.model_copy(update={"search": wider})
