"""The version of this planner and the capabilities of its machine: GET /v1/info."""

from __future__ import annotations

from cost_models.catalog import local
from planner.documents.plan_report import Document
from planner.frameworks import FRAMEWORKS
from planner.frameworks.launchers import LAUNCHERS
from planner.optional_packages import installed
from planner.version import __version__


class Features(Document):
    """The capabilities of the machine.

    torch: its version, null if it is not installed: then nothing can be validated or calibrated.
    device: the accelerator that a real run here uses, `cpu-core` for cores of the processor;
    processes: the number of ranks.
    """

    torch: str | None
    device: str
    device_name: str
    processes: int


class Info(Document):
    """A planner and its machine; limits: the limits on one question."""

    version: str
    frameworks: tuple[str, ...]
    launchers: tuple[str, ...]
    features: Features
    limits: dict[str, int | float]


def info(limits: dict[str, int | float]) -> Info:
    """This planner; limits: those of the caller."""
    here = local.cluster()
    accelerator = here.groups[0].accelerator
    return Info(
        version=__version__,
        frameworks=tuple(FRAMEWORKS),
        launchers=tuple(LAUNCHERS),
        features=Features(
            torch=installed("torch"),
            device=accelerator.id,
            device_name=accelerator.name,
            processes=here.accelerators,
        ),
        limits=limits,
    )
