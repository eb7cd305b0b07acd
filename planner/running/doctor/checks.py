"""The checks: each looks at one thing, and says what it found and what to do."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Literal

from cost_models import plugins
from cost_models.catalog.hardware import accelerators
from cost_models.catalog.local import cpu_cores
from cost_models.catalog.models import models
from planner.documents.plan_report import Document
from planner.frameworks import FRAMEWORKS
from planner.optional_packages import installed, missing
from planner.version import __version__

State = Literal["ok", "warn", "fail"]
_GIB = 1 << 30
_MIN_MEMORY_BYTES = _GIB  # a search of a large space and a service beside it
_LITTLE_SPACE_BYTES, _NO_SPACE_BYTES = _GIB, 50 << 20
_MIN_FILES = 1024  # a connection of the service is one
_EXTRAS = {"plot": "typst", "parquet": "pyarrow", "dask": "dask", "ray": "ray"}


class Check(Document):
    """One thing looked at; advice: what to do, where it is not fine."""

    name: str
    state: State
    found: str
    advice: str | None = None


class Diagnosis(Document):
    """All that `planner doctor` looked at; healthy: nothing has failed."""

    version: str
    healthy: bool
    checks: tuple[Check, ...]


Found = tuple[State, str, str | None]


def examine(host: str, port: int, database_url: str | None) -> Diagnosis:
    """Look at everything a planner here depends on."""
    looks: dict[str, Callable[[], Found]] = {
        "python": _python,
        "processor": _processor,
        "memory": _memory,
        "open files": _open_files,
        "clock": _clock,
        "text": _text,
        "temporary files": lambda: _folder(Path(tempfile.gettempdir()), "TMPDIR"),
        "data folder": _data_folder,
        "database": lambda: _database(database_url),
        "job database": lambda: _job_database(database_url),
        "jobs": lambda: _jobs(database_url),
        "address": lambda: _address(host, port),
        "torch": _torch,
        "extras": _extras,
        "plugins": _plugins,
        "planning": _planning,
    }
    checks = tuple(Check(name=name, **_check_result(look)) for name, look in looks.items())
    healthy = all(check.state != "fail" for check in checks)
    return Diagnosis(version=__version__, healthy=healthy, checks=checks)


def _check_result(look: Callable[[], Found]) -> dict[str, str | None]:
    try:
        state, text, advice = look()
    except Exception as error:  # a doctor outlives what he finds
        if lacking := missing(error):
            state, (text, _, advice) = "warn", lacking.partition(": ")
        else:
            state, text = "fail", f"{type(error).__name__}: {error}"[:200]
            advice = "please report it"
    return {"state": state, "found": text, "advice": advice}


def _python() -> Found:
    text = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    return "ok", text, None


def _processor() -> Found:
    cores, usable = os.cpu_count() or 1, cpu_cores()
    text = f"{platform.machine()}, {usable} of {cores} cores"
    if usable < 2:
        return "warn", text, "with one core estimates are slow while a search runs"
    return "ok", text, None


def _memory() -> Found:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = _available_bytes() or total
    limit = _limit_bytes()
    text = f"{_size(free)} available of {_size(min(total, limit or total))}"
    if free < _MIN_MEMORY_BYTES:
        advice = f"large searches need about {_size(_MIN_MEMORY_BYTES)}: end other programs"
        return "warn", text, advice
    return "ok", text, None


def _available_bytes() -> int | None:
    """What programs may still take, also inside of a container."""
    free = None
    if (meminfo := Path("/proc/meminfo")).exists():
        line = next(x for x in meminfo.read_text().splitlines() if x.startswith("MemAvailable"))
        free = int(line.split()[1]) << 10
    if limit := _limit_bytes():
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        free = min(limit - used, free or limit)
    return free


def _limit_bytes() -> int | None:
    """The container's limit on memory."""
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return None if text == "max" else int(text)


def _open_files() -> Found:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft:,} at a time"
    if soft < _MIN_FILES:
        return "warn", text, f"a service needs more for many callers: ulimit -n {min(hard, 65536)}"
    return "ok", text, None


def _clock() -> Found:
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if time.time() < Path(__file__).stat().st_mtime - 86_400:
        advice = "the clock is behind this installation: set it, or certificates and jobs go wrong"
        return "warn", text, advice
    return "ok", text, None


def _text() -> Found:
    names = {"output": sys.stdout.encoding or "none", "file names": sys.getfilesystemencoding()}
    text = ", ".join(f"{use} {name}" for use, name in names.items())
    if any(not name.lower().replace("-", "").startswith("utf8") for name in names.values()):
        return "warn", text, "some signs show as ?: set LANG=C.UTF-8"
    return "ok", text, None


def _data_folder() -> Found:
    from planner.data_folder import VARIABLE, data_folder

    return _folder(data_folder(""), VARIABLE)


def _folder(path: Path, variable: str) -> Found:
    """Whether files can be written there; a folder that is not there yet is made at need."""
    existing = next(p for p in (path, *path.parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            free = shutil.disk_usage(existing).free
    except OSError as error:
        advice = f"make it writable, or name another folder: {variable}=/some/folder"
        return "fail", f"{path}: {error.strerror}", advice
    text = f"{path}, {_size(free)} free"
    if free < _NO_SPACE_BYTES:
        return "fail", text, f"make space, or name another folder: {variable}=/some/folder"
    if free < _LITTLE_SPACE_BYTES:
        return "warn", text, "little space: results and logs of jobs go there"
    return "ok", text, None


def _database(url: str | None) -> Found:
    from planner.data_folder import data_folder
    from planner.running.store import Store, Unavailable
    from planner.running.store.database import FILE, QUEUE_FILE, Lost, damage, is_new

    file = data_folder(FILE)
    address = f"SQLite at {file}" if url is None else "as PLANNER_DATABASE_URL says"
    if url is None and not (file.exists() or data_folder(QUEUE_FILE).exists()):
        return "ok", f"{address}, made at the first start of the service", None
    try:
        if url is not None and is_new(url):
            return "ok", f"{address}, empty: the first start of the service makes its tables", None
        Store.open(url).close()
        if url is None and (fault := damage(file)):
            raise Unavailable(fault)
    except Lost as error:
        return "fail", f"{address}: {error.detail}", error.advice
    except Unavailable as error:
        advice = (
            f"move {file} away, and a new one is made" if url is None
            else "is it running, and are name, password and network as in PLANNER_DATABASE_URL?"
        )  # fmt: skip
        return "fail", f"{address}: {error}", advice
    return "ok", f"{address}, reachable and up to date", None


def _job_database(url: str | None) -> Found:
    from planner.data_folder import data_folder
    from planner.running.store.database import QUEUE_FILE, damage

    file = data_folder(QUEUE_FILE)
    if url is not None:
        return "ok", "in the same PostgreSQL", None
    if not file.exists():
        return "ok", f"SQLite at {file}, made at the first start of the service", None
    if fault := damage(file):
        advice = (
            f"stop the service and move {file} away: its jobs begin again from their first step"
        )
        return "fail", f"SQLite at {file}: {fault}", advice
    return "ok", f"SQLite at {file}, without damage", None


def _jobs(url: str | None) -> Found:
    from planner.data_folder import data_folder
    from planner.running.store import Store, Unavailable
    from planner.running.store.database import FILE, is_new

    try:
        if is_new(url) if url else not data_folder(FILE).exists():
            return "ok", "none", None
        store = Store.open(url)
        orphans = store.jobs_without_server()
        store.close()
    except Unavailable:
        return "warn", "not known, without their database", None
    if orphans:
        advice = "start a server whose PLANNER_MAX_RUNS is not 0: it takes them"
        return "warn", f"{orphans:,} wait, and no server that runs jobs is alive", advice
    return "ok", "none is left without a server that runs it", None


def _address(host: str, port: int) -> Found:
    where = f"{host}:{port}"
    advice = f"planner serve --port {port + 1 if port < 65_535 else 8001}"
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        socket.create_server(address[:2], family=family).close()
    except OSError as error:
        if _is_planner(host, port):
            return "ok", f"{where}: a planner is answering there", None
        return "warn", f"{where}: {error.strerror}", advice
    return "ok", f"{where} is free", None


def _is_planner(host: str, port: int) -> bool:
    import json
    from http.client import HTTPConnection, HTTPException

    try:
        connection = HTTPConnection(host, port, timeout=2)
        connection.request("GET", "/healthz")
        return bool(json.load(connection.getresponse()).get("status") == "ok")
    except (OSError, ValueError, AttributeError, HTTPException):
        return False


def _torch() -> Found:
    from planner.answers.inventory.info import info

    features = info({}).features
    if features.torch is None:
        advice = "validate, calibrate and dryrun need it: pip install torch==2.13.0"
        return "warn", "not installed", advice
    device = f"{features.processes} x {features.device_name.partition(' (')[0]}"
    text = f"{features.torch}, runs on {device}"
    pin = next((need for need in _requirements() if need.startswith("torch==")), "")
    tested = pin.partition("==")[2].partition(";")[0].strip()
    if tested and features.torch.partition("+")[0] != tested:
        return "warn", text, f"tested with torch {tested} alone"
    return "ok", text, None


def _requirements() -> list[str]:
    try:
        return requires("parallel-planner") or []
    except PackageNotFoundError:
        return []


def _plugins() -> Found:
    names = ", ".join(plugin.name for plugin in plugins.plugins()) or "none"
    counts = f"{len(accelerators())} accelerators, {len(models())} models"  # which loads them
    text = f"{names}; with them {counts}, {len(FRAMEWORKS)} frameworks"
    if broken := plugins.problems():
        return "warn", f"left out, of plugin {'; '.join(broken)}", "mend or uninstall it"
    return "ok", text, None


def _extras() -> Found:
    known = {extra: installed(package) for extra, package in _EXTRAS.items()}
    parts = (f"{extra} {number or 'not installed'}" for extra, number in known.items())
    missing = [_EXTRAS[extra] for extra, number in known.items() if number is None]
    advice = f"pip install {' '.join(missing)}, where wanted"
    return "ok", ", ".join(parts), advice if missing else None


def _planning() -> Found:
    """A small question, asked in earnest."""
    from planner.answers.plans import plan_answers
    from planner.inputs.requests.parser import parse_request

    training = {"seq_length": 1024, "global_batch_size": 64}
    document = {"model": "gpt2", "cluster": "1x4xh100-sxm", "training": training}
    began = time.perf_counter()
    answer = plan_answers.find(parse_request(document))
    assert answer.best is not None
    costed = f"{answer.counts.costed:,} plans" if answer.counts else "plans"
    return "ok", f"{costed} in {time.perf_counter() - began:.1f} s", None


def _size(count: float) -> str:
    return f"{count / _GIB:,.1f} GiB"
