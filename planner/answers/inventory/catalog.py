"""The entries of the catalog as documents: `planner catalog` and GET /v1/catalog."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from cost_models.catalog import hardware, models
from cost_models.catalog.names import normal, resolve
from cost_models.parameters import active_parameters, total_parameters
from cost_models.schedules import SCHEDULES
from cost_models.sources import SOURCES
from cost_models.spec import AcceleratorSpec, ClusterSpec, ModelSpec
from planner import frameworks
from planner.documents.plan_report import Document
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
    price_usd_per_accelerator_hour: float | None
    spec: AcceleratorSpec
    sources: tuple[str, ...]
    flags: tuple[str, ...]


class ClusterEntry(Document):
    """A cluster preset, with its usual number of nodes, or a node of a cloud provider.

    prices_date: of the provider's price; empty: the catalog's own prices.
    """

    id: str
    name: str
    provider: str
    prices_date: str
    aliases: tuple[str, ...]
    accelerators: int
    spec: ClusterSpec
    sources: tuple[str, ...]
    flags: tuple[str, ...]


@cache
def model_entries() -> tuple[ModelEntry, ...]:
    """All model presets."""
    return tuple(
        ModelEntry.of(
            entry,
            parameters=total_parameters(entry.spec),
            active_parameters=active_parameters(entry.spec),
        )
        for entry in models.models()
    )


@cache
def accelerator_entries() -> tuple[AcceleratorEntry, ...]:
    """All accelerators."""
    return tuple(
        AcceleratorEntry.of(
            entry,
            accelerators_per_node=entry.node.accelerators,
            interconnect=entry.node.interconnect,
            price_usd_per_accelerator_hour=hardware.price_usd_per_hour(entry.id),
        )
        for entry in hardware.accelerators()
    )


@cache
def cluster_entries() -> tuple[ClusterEntry, ...]:
    """All cluster presets."""
    known = ((entry, hardware.cluster(entry.id)) for entry in hardware.clusters())
    return tuple(
        ClusterEntry.of(entry, accelerators=spec.accelerators, spec=spec) for entry, spec in known
    )


class FieldEntry(Document):
    """A framework's options for one field of a plan, or a note why it has none."""

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
    return FrameworkEntry.of(
        framework,
        id=name,
        aliases=tuple(alias for alias, own in frameworks.ALIASES.items() if own == name),
        read_back=framework.reads_back,
        fields={field: FieldEntry.of(said) for field, said in framework.fields.items()},
    )


@cache
def framework_entries() -> tuple[FrameworkEntry, ...]:
    """All frameworks."""
    return tuple(_framework(name, frameworks.get(name)) for name in frameworks.FRAMEWORKS)


class ScheduleEntry(Document):
    """A pipeline schedule.

    chunk_counts: model chunks per rank that it can have; empty: any number from 2.  holds: when its
    closed form is exact.  staleness: how old its weights are; empty: never stale.
    """

    id: str
    title: str
    aliases: tuple[str, ...] = ()
    chunk_counts: tuple[int, ...]
    splits_backward: bool
    placement: str
    freed_at: str
    synchronous: bool
    staleness: str
    holds: str
    frameworks: tuple[str, ...]
    source: str


@cache
def schedule_entries() -> tuple[ScheduleEntry, ...]:
    """All pipeline schedules."""
    return tuple(
        ScheduleEntry.of(
            schedule,
            frameworks=frameworks.running(schedule.id),
            source=SOURCES.get(schedule.citation, schedule.citation),
        )
        for schedule in SCHEDULES.values()
    )


class Models(Document):
    """All model presets."""

    models: tuple[ModelEntry, ...]


class Accelerators(Document):
    """All accelerators."""

    accelerators: tuple[AcceleratorEntry, ...]


class Clusters(Document):
    """All cluster presets."""

    clusters: tuple[ClusterEntry, ...]


class Frameworks(Document):
    """All frameworks."""

    frameworks: tuple[FrameworkEntry, ...]


class Schedules(Document):
    """All pipeline schedules."""

    schedules: tuple[ScheduleEntry, ...]


Entry = ModelEntry | AcceleratorEntry | ClusterEntry | FrameworkEntry | ScheduleEntry
LISTINGS: dict[str, Callable[[], tuple[Entry, ...]]] = {
    "models": model_entries,
    "accelerators": accelerator_entries,
    "clusters": cluster_entries,
    "frameworks": framework_entries,
    "schedules": schedule_entries,
}


def find_entry(kind: str, name: str) -> Entry:
    """The entry of this id or alias.  Raises UnknownName with the nearest ids."""
    entries = {entry.id: entry for entry in LISTINGS[kind]()}
    known = {normal(alias): entry.id for entry in entries.values() for alias in entry.aliases}
    return entries[resolve(name, known | {normal(name): name for name in entries}, kind[:-1])]
