"""What this planner is and what it can do here: GET /v1/info."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from cost_models.catalog import local
from planner.documents.plan_report import Document
from planner.frameworks import FRAMEWORKS
from planner.launchers import LAUNCHERS
from planner.version import __version__


class Features(Document):
    """What depends on the machine.

    torch: its version, without which nothing is validated or calibrated; null: not installed.
    device: the accelerator that a real run here uses, `cpu-core` where it is the processor's;
    processes: so many ranks.
    """

    torch: str | None
    device: str
    device_name: str
    processes: int


class Info(Document):
    """A planner and its machine; limits: what one question may ask of it."""

    version: str
    frameworks: tuple[str, ...]
    launchers: tuple[str, ...]
    features: Features
    limits: dict[str, int | float]


def info(limits: dict[str, int | float]) -> Info:
    """This planner; limits: those of whoever asks it."""
    here = local.cluster()
    accelerator = here.groups[0].accelerator
    return Info(
        version=__version__,
        frameworks=tuple(FRAMEWORKS),
        launchers=tuple(LAUNCHERS),
        features=Features(
            torch=_installed("torch"),
            device=accelerator.id,
            device_name=accelerator.name,
            processes=here.accelerators,
        ),
        limits=limits,
    )


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
