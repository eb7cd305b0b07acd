"""Efficiency profiles by name: those built in, and the calibrations in the user's folder."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from cost_models import profiles
from cost_models.calibrations import PROFILE_NAME, Calibration, over_base
from cost_models.catalog.names import normal, resolve
from cost_models.profiles import EfficiencyProfile
from planner.data_folder import Stamped, data_folder, read_model, stamped, write_whole
from planner.documents.problems import refuse
from planner.evidence.uncertainty.asker import asker

MOST_BYTES = 16 * 2**20  # of a calibration's file


def folder() -> Path:
    """The folder of calibrations, one file each."""
    return data_folder("profiles")


def calibrations() -> dict[str, Path]:
    """The files of the user's folder by name that the asker may read.

    None hides a built-in profile.
    """
    try:
        paths = sorted(folder().glob("*.json"))
    except (OSError, RuntimeError):  # a folder that may not be read; no home
        return {}
    named = {path.stem: path for path in paths if re.fullmatch(PROFILE_NAME, path.stem)}
    added = {name: path for name, path in named.items() if name not in profiles.profiles()}
    return {name: path for name, path in added.items() if asker().sees(name)}


def find(name: str) -> EfficiencyProfile:
    """The profile of that name.

    Raises UnknownName with the nearest, and ValueError where a calibration's file is no good.
    """
    if normal(name) in profiles.profiles():
        return profiles.profile(name)
    added = calibrations()
    known = resolve(name, {n: n for n in (*profiles.profiles(), *added)}, "efficiency profile")
    return _profile(known, stamped(added[known], _title(known)))


def calibration_file(name: str) -> Stamped | None:
    """The file of the calibration of that name, where there is one.  Raises ValueError."""
    path = calibrations().get(name)
    return None if path is None else stamped(path, _title(name))


@lru_cache(maxsize=16)
def calibration(name: str, file: Stamped) -> Calibration:
    """The calibration in a file.  Raises ValueError if the file is invalid."""
    document = read_model(file, Calibration, _title(name), MOST_BYTES)
    return document.model_copy(update={"id": name})


@lru_cache(maxsize=16)
def _profile(name: str, file: Stamped) -> EfficiencyProfile:
    return over_base(calibration(name, file))


def _title(name: str) -> str:
    return f"efficiency profile {name}"


def save(calibration: Calibration) -> Path:
    """Write a calibration into the user's folder, whole or not at all.  Raises RequestError."""
    path = folder() / f"{calibration.id}.json"
    try:
        write_whole(path, calibration.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise refuse("", "cannot_write", f"cannot write {path}: {error.strerror}") from None
    return path


def forget(name: str) -> None:
    """Remove a calibration, where there is one."""
    (folder() / f"{name}.json").unlink(missing_ok=True)
