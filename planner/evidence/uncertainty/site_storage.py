"""Sites in the user's data folder: a file of runs, a calibration among the profiles, or both."""

from __future__ import annotations

import fcntl
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from cost_models.calibrations import PROFILE_NAME
from cost_models.catalog.names import UnknownName, normal, resolve
from planner.data_folder import Stamped, data_folder, read_model, stamped, write_whole
from planner.documents.problems import refuse, shown
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty import profiles
from planner.evidence.uncertainty.asker import asker
from planner.evidence.uncertainty.learned_steps import LearnedStep
from planner.evidence.uncertainty.memory_risk import Peaks, Room, peaks, room
from planner.evidence.uncertainty.site import MAX_RUNS, LearnedRun, Site
from planner.evidence.uncertainty.site_pricing import current

MOST_BYTES = 32 * 2**20  # of a site's file


def folder() -> Path:
    """The folder of the site files."""
    return data_folder("sites")


def names() -> tuple[str, ...]:
    """The names of all kept sites that the asker may read."""
    calibrated = profiles.calibrations()
    try:
        stems = {path.stem for path in folder().glob("*.json")}
    except (OSError, RuntimeError):  # a folder that may not be read; no home
        return ()
    learned = {stem for stem in stems if re.fullmatch(PROFILE_NAME, stem) and asker().sees(stem)}
    return tuple(sorted(learned.union(calibrated)))


def check_name(name: str) -> str:
    """The name, if it is valid for a site.  Raises RequestError."""
    if not re.fullmatch(PROFILE_NAME, name):
        detail = f"must be 1 to 64 of a-z, 0-9, ., _ and -, got {shown(name)!r}"
        raise refuse("/site", "bad_name", detail, name)
    return name


def find(name: str) -> Site:
    """The site of that name; NAME@RUN: as it was before it learned this run.

    Raises UnknownName with the nearest names, and ValueError if its file is invalid.
    """
    of, at, run = name.partition("@")
    known = resolve(of, {n: n for n in names()}, "site")
    if not at:
        return _at(known)
    ids = {n.id: n.id for n in _at(known).runs}
    meant = [id for id in ids if id.startswith(run)]
    id = resolve(meant[0] if len(meant) == 1 else run, ids, f"run of site {known}")
    return _site_before(known, *_stamps(known), id)


def site_of_request(name: str | None) -> Site | None:
    """The site that a request names, if it names one.  Raises as `find` does."""
    return None if name is None else find(name)


def peaks_of(request: PlanRequest) -> Peaks:
    """The errors of memory peaks where a request trains: as published, or as its site measured."""
    site = site_of_request(request.site)
    return peaks() if site is None else site.peaks


def room_of(request: PlanRequest) -> Room:
    """The limits for the plans of a request, on the accelerators of its first group."""
    capacity = request.cluster.groups[0].accelerator.memory_bytes
    return room(capacity, request.search.memory_risk, peaks_of(request))


def everything() -> Iterator[tuple[str, Site | str]]:
    """All sites by name; in place of one with an invalid file, the error."""
    for name in names():
        try:
            yield name, _at(name)
        except ValueError as error:
            yield name, str(error)


class Summary(NamedTuple):
    """How many runs a site has, when it learned the latest, and when it was calibrated."""

    runs: int
    learned_at: datetime | None
    calibrated_at: str | None


def summary(name: str) -> Summary:
    """What a list says of a site, without pricing its runs.  Raises ValueError as `find` does."""
    return _summary(name, *_stamps(name))


def find_or_new(name: str) -> Site:
    """The site of that name; a new one without runs if none is kept.

    Raises ValueError as `find` does, and RequestError where no site may have the name.
    """
    try:
        return find(name)
    except UnknownName:
        return Site(name=check_name(name))


def learn(name: str, runs: tuple[LearnedRun, ...]) -> tuple[Site, tuple[LearnedRun, ...]]:
    """Keep runs with a site: (the site then, those that are new).  Raises RequestError."""
    new: list[LearnedRun] = []

    def more(site: Site) -> Site:
        known = {run.id for run in site.runs}
        taught = (run.model_copy(update={"taught_by": asker().name or None}) for run in runs)
        new.extend({run.id: run for run in taught if run.id not in known}.values())
        if len(site.runs) + len(new) > MAX_RUNS:
            detail = f"site {name} has {len(site.runs):,} runs and keeps at most {MAX_RUNS:,}"
            raise refuse("/site", "too_many_runs", f"{detail}: forget some")
        return site.with_runs((*site.runs, *new))

    changed = _write_change(check_name(name), more)
    return changed, tuple(new)


def learn_steps(name: str, steps: tuple[LearnedStep, ...]) -> Site:
    """Keep steps of reinforcement learning that a site does not have yet.  Raises RequestError."""

    def more(site: Site) -> Site:
        known = {step.id for step in site.steps}
        new = [step for step in steps if step.id not in known]
        if len(site.steps) + len(new) > MAX_RUNS:
            detail = f"site {name} has {len(site.steps):,} steps and keeps at most {MAX_RUNS:,}"
            raise refuse("/site", "too_many_runs", f"{detail}: forget some")
        taught = (step.model_copy(update={"taught_by": asker().name or None}) for step in new)
        return site.with_steps((*site.steps, *taught))

    return _write_change(check_name(name), more)


def forget(name: str, run: str | None = None) -> None:
    """Forget a site with its calibration, or one run of it by its id or the start of it.

    Raises RequestError.
    """
    if run is None:
        known = _existing_name(name)
        with _locked():
            (folder() / f"{known}.json").unlink(missing_ok=True)
            profiles.forget(known)
        return

    def without(site: Site) -> Site:
        steps = tuple(r for r in site.steps if r.id != run)
        if len(steps) < len(site.steps):  # the run of its update goes with a step
            return site.with_steps(steps).with_runs(tuple(r for r in site.runs if r.id != run))
        (removed,) = [r for r in site.runs if r.id == find_run(site, run).id]
        return site.with_runs(tuple(r for r in site.runs if r is not removed))

    _write_change(_existing_name(name), without)


def find_run(site: Site, run: str) -> LearnedRun:
    """The run of a site with this id, or whose id alone begins with it.  Raises RequestError."""
    runs = [r for r in site.runs if run and r.id.startswith(run)]
    if len(runs) != 1:
        problem = f"{len(runs)} runs begin with {shown(run)!r}" if runs else "no such run"
        detail = f"{problem} in site {site.name}; `planner sites show {site.name}` lists them"
        raise refuse("/run", "unknown_name", detail, run)
    return runs[0]


def _existing_name(name: str) -> str:
    known = normal(name)
    if known not in names():
        raise refuse("/site", "unknown_name", f"no site {shown(name)!r}", name)
    return known


def _write_change(name: str, change: Callable[[Site], Site]) -> Site:
    """A site after a change, which is written.  Raises RequestError."""
    path = folder() / f"{name}.json"
    try:
        with _locked():
            site = change(_at(name) if name in names() else Site(name=name))
            write_whole(path, site.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise refuse("", "cannot_write", f"cannot write {path}: {error.strerror}") from None
    except ValueError as error:
        if hasattr(error, "problems"):
            raise
        raise refuse("/site", "inconsistent", str(error)) from None
    return site


@contextmanager
def _locked() -> Iterator[None]:
    """Hold the lock on changes of sites, so that no run is lost."""
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / ".lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def exists(name: str) -> bool:
    """Whether a site has a file, whoever may read it."""
    return any((path / f"{name}.json").exists() for path in (folder(), profiles.folder()))


def _at(name: str) -> Site:
    return _read(name, *_stamps(name))


def _stamps(name: str) -> tuple[Stamped | None, Stamped | None]:
    """The files of a site's runs and of its calibration.  Raises ValueError."""
    path, measured = folder() / f"{name}.json", profiles.calibration_file(name)
    no_site = measured is not None and not path.exists()
    return None if no_site else stamped(path, f"site {name}"), measured


@lru_cache(maxsize=64)
def _read(name: str, file: Stamped | None, measured: Stamped | None) -> Site:
    site = _as_kept(name, file, measured)
    return site.with_runs(tuple(current(run, site) for run in site.runs))


@lru_cache(maxsize=1024)
def _summary(name: str, file: Stamped | None, measured: Stamped | None) -> Summary:
    site = _as_kept(name, file, measured)
    last = max((run.learned_at for run in site.runs), default=None)
    return Summary(len(site.runs), last, site.calibrated_at)


def _as_kept(name: str, file: Stamped | None, measured: Stamped | None) -> Site:
    """A site whose runs have the prices that they were kept with."""
    calibration = profiles.calibration(name, measured) if measured else None
    stored = read_model(file, Site, f"site {name}", MOST_BYTES) if file else Site(name=name)
    return Site(name=name, calibration=calibration, runs=stored.runs, steps=stored.steps)


@lru_cache(maxsize=16)
def _site_before(name: str, file: Stamped | None, measured: Stamped | None, run: str) -> Site:
    """A site as it was before it learned this run."""
    site = _read(name, file, measured)
    index = [r.id for r in site.runs].index(run)
    steps = tuple(r for r in site.steps if r.learned_at < site.runs[index].learned_at)
    return Site(
        name=f"{name}@{run}", runs=site.runs[:index], steps=steps, calibration=site.calibration
    )
