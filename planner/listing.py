"""What the catalog knows by name, as documents: `planner catalog` and GET /v1/catalog."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from cost_models.catalog import hardware, models
from cost_models.parameters import active_parameters, total_parameters
from cost_models.spec import AcceleratorSpec, ClusterSpec, ModelSpec
from planner import frameworks
from planner.answer import Document
from planner.frameworks.base import Framework


class ModelEntry(Document):
    """A model preset."""

    id: str
    aliases: tuple[str, ...]
    parameters: int
    active_parameters: int
    spec: ModelSpec
    source: str


class AcceleratorEntry(Document):
    """An accelerator and the node it usually comes in."""

    id: str
    aliases: tuple[str, ...]
    year: int
    accelerators_per_node: int
    interconnect: str
    spec: AcceleratorSpec
    sources: tuple[str, ...]
    flags: tuple[str, ...]


class ClusterEntry(Document):
    """A cluster preset, with its usual number of nodes."""

    id: str
    name: str
    aliases: tuple[str, ...]
    accelerators: int
    spec: ClusterSpec
    sources: tuple[str, ...]
    flags: tuple[str, ...]


@cache
def model_entries() -> tuple[ModelEntry, ...]:
    """All model presets."""
    return tuple(
        ModelEntry(
            id=entry.id,
            aliases=entry.aliases,
            parameters=total_parameters(entry.spec),
            active_parameters=active_parameters(entry.spec),
            spec=entry.spec,
            source=entry.source,
        )
        for entry in models.models()
    )


@cache
def accelerator_entries() -> tuple[AcceleratorEntry, ...]:
    """All accelerators."""
    return tuple(
        AcceleratorEntry(
            id=entry.id,
            aliases=entry.aliases,
            year=entry.year,
            accelerators_per_node=entry.node.accelerators,
            interconnect=entry.node.interconnect,
            spec=entry.spec,
            sources=entry.sources,
            flags=entry.flags,
        )
        for entry in hardware.accelerators()
    )


@cache
def cluster_entries() -> tuple[ClusterEntry, ...]:
    """All cluster presets."""
    entries = []
    for entry in hardware.clusters():
        spec = hardware.cluster(entry.id)
        entries.append(
            ClusterEntry(
                id=entry.id,
                name=entry.name,
                aliases=entry.aliases,
                accelerators=spec.accelerators,
                spec=spec,
                sources=entry.sources,
                flags=entry.flags,
            )
        )
    return tuple(entries)


class FieldEntry(Document):
    """How a framework says one field of a plan: its names for it, or a note why it has none."""

    names: tuple[str, ...]
    note: str


class FrameworkEntry(Document):
    """A training framework that launch files are written for."""

    id: str
    title: str
    aliases: tuple[str, ...]
    versions: str
    read_back: bool
    no_reader: str
    fields: dict[str, FieldEntry]


def _framework(name: str, framework: Framework) -> FrameworkEntry:
    return FrameworkEntry(
        id=name,
        title=framework.title,
        aliases=tuple(alias for alias, own in frameworks.ALIASES.items() if own == name),
        versions=framework.versions,
        read_back=framework.read is not None,
        no_reader=framework.no_reader,
        fields={
            field: FieldEntry(names=said.names, note=said.note)
            for field, said in framework.fields.items()
        },
    )


@cache
def framework_entries() -> tuple[FrameworkEntry, ...]:
    """All frameworks."""
    return tuple(_framework(name, frameworks.get(name)) for name in frameworks.FRAMEWORKS)


Entry = ModelEntry | AcceleratorEntry | ClusterEntry | FrameworkEntry
LISTINGS: dict[str, Callable[[], tuple[Entry, ...]]] = {
    "models": model_entries,
    "accelerators": accelerator_entries,
    "clusters": cluster_entries,
    "frameworks": framework_entries,
}
