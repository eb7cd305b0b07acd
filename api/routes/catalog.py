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


def _add(kind: str, about: str, listing: type[BaseModel], entry: type[BaseModel]) -> None:
    def several() -> Any:
        return listing.model_validate({kind: catalog.LISTINGS[kind]()})

    def one(id: Name) -> Any:
        try:
            return catalog.find_entry(kind, id)
        except UnknownName as error:
            raise Refused("not-found", str(error)[:300]) from None

    router.add_api_route(f"/{kind}", several, name=kind, description=about, response_model=listing)
    router.add_api_route(
        f"/{kind}/{{id:path}}",  # an alias may have slashes
        one,
        name=kind[:-1],
        description=f"One of the {kind}, by its id or an alias.",
        response_model=entry,
        responses=declare(404),
    )


for _kind, _about, _listing, _entry in (
    ("models", "Model presets: their dims, parameters and source.",
     catalog.Models, catalog.ModelEntry),
    ("accelerators", "Accelerators: what one rank sees, and the node it usually comes in.",
     catalog.Accelerators, catalog.AcceleratorEntry),
    ("clusters", "Cluster presets: a node, its links and its network.",
     catalog.Clusters, catalog.ClusterEntry),
    ("frameworks", "Frameworks: versions, how each says every field of a plan, and whether it is "
     "read back.", catalog.Frameworks, catalog.FrameworkEntry),
    ("schedules", "Pipeline schedules: chunks, memory, what they do to the weights, and who has "
     "them.", catalog.Schedules, catalog.ScheduleEntry),
):  # fmt: skip
    _add(_kind, _about, _listing, _entry)
