"""What is known by name."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from planner import listing

router = APIRouter(prefix="/catalog", tags=["catalog"])


class Models(BaseModel):
    """All model presets."""

    models: tuple[listing.ModelEntry, ...]


class Accelerators(BaseModel):
    """All accelerators."""

    accelerators: tuple[listing.AcceleratorEntry, ...]


class Clusters(BaseModel):
    """All cluster presets."""

    clusters: tuple[listing.ClusterEntry, ...]


class Frameworks(BaseModel):
    """All frameworks."""

    frameworks: tuple[listing.FrameworkEntry, ...]


@router.get("/models")
def models() -> Models:
    """Model presets: their dims, parameters and source."""
    return Models(models=listing.model_entries())


@router.get("/accelerators")
def accelerators() -> Accelerators:
    """Accelerators: what one rank sees, and the node it usually comes in."""
    return Accelerators(accelerators=listing.accelerator_entries())


@router.get("/clusters")
def clusters() -> Clusters:
    """Cluster presets: a node, its links and its network."""
    return Clusters(clusters=listing.cluster_entries())


@router.get("/frameworks")
def frameworks() -> Frameworks:
    """Frameworks: versions, how each says every field of a plan, and whether it is read back."""
    return Frameworks(frameworks=listing.framework_entries())
