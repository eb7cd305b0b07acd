"""What is known by name."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel

from api.problems import Refused, declare
from cost_models.catalog.names import UnknownName
from planner.answers.inventory import catalog

router = APIRouter(prefix="/catalog", tags=["catalog"])
Name = Annotated[str, Path()]


@router.get("/models")
def models() -> catalog.Models:
    """Model presets: their dims, parameters and source."""
    return catalog.Models(models=catalog.model_entries())


@router.get("/accelerators")
def accelerators() -> catalog.Accelerators:
    """Accelerators: what one rank sees, and the node it usually comes in."""
    return catalog.Accelerators(accelerators=catalog.accelerator_entries())


@router.get("/clusters")
def clusters() -> catalog.Clusters:
    """Cluster presets: a node, its links and its network."""
    return catalog.Clusters(clusters=catalog.cluster_entries())


@router.get("/frameworks")
def frameworks() -> catalog.Frameworks:
    """Frameworks: versions, how each says every field of a plan, and whether it is read back."""
    return catalog.Frameworks(frameworks=catalog.framework_entries())


@router.get("/schedules")
def schedules() -> catalog.Schedules:
    """Pipeline schedules: chunks, memory, what they do to the weights, and who has them."""
    return catalog.Schedules(schedules=catalog.schedule_entries())


def _add(kind: str, entry: type[BaseModel]) -> None:
    def one(id: Name) -> Any:
        try:
            return catalog.find_entry(kind, id)
        except UnknownName as error:
            raise Refused("not-found", str(error)[:300]) from None

    router.add_api_route(
        f"/{kind}/{{id:path}}",  # an alias may have slashes
        one,
        name=kind[:-1],
        description=f"One of the {kind}, by its id or an alias.",
        response_model=entry,
        responses=declare(404),
    )


_add("models", catalog.ModelEntry)
_add("accelerators", catalog.AcceleratorEntry)
_add("clusters", catalog.ClusterEntry)
_add("frameworks", catalog.FrameworkEntry)
_add("schedules", catalog.ScheduleEntry)
