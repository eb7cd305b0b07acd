"""The folder of what this user's planner keeps: calibrated profiles, sites, validations."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

VARIABLE = "PLANNER_DATA_DIR"
M = TypeVar("M", bound=BaseModel)


def data_folder(part: str) -> Path:
    """The folder of one kind of thing; it may not exist yet.

    $PLANNER_DATA_DIR, or else parallel-planner in the XDG data folder.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named) / part
    usual = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(usual) / "parallel-planner" / part


class Stamped(NamedTuple):
    """A file at one moment; another stamp is other content, so that what was read can be kept."""

    path: Path
    changed_ns: int
    size: int
    node: int


def stamped(path: Path, title: str) -> Stamped:
    """A file as it is now.  Raises ValueError that names it by its title."""
    try:
        status = path.stat()
    except OSError as error:
        raise ValueError(f"{title}: {error.strerror}") from None
    return Stamped(path, status.st_mtime_ns, status.st_size, status.st_ino)


def read_model(file: Stamped, model: type[M], title: str, most_bytes: int) -> M:
    """What a file holds.  Raises ValueError that names it by its title."""
    if file.size > most_bytes:
        raise ValueError(f"{title}: {file.size} bytes; at most {most_bytes}")
    try:
        return model.model_validate_json(file.path.read_bytes())
    except OSError as error:
        raise ValueError(f"{title}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "/".join(map(str, first["loc"]))
        detail = f"{title}: its file is damaged: /{place}: {first['msg']}"
        raise ValueError(f"{detail} ({error.error_count()} in all)") from None


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees all of it or what was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
