"""Results on disk: one file per question, named by the question's key.

If a sweep is interrupted, only the questions in progress are lost.  Several sweeps, of the same or
of different grids, may share a folder, also on a file system that several machines share.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from planner.data_folder import write_whole
from planner.documents.problems import refuse, shown
from planner.running.sweeps.question import Result


class ResultsFolder:
    """A folder of results, by the keys of their questions."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def opened(self) -> ResultsFolder:
        """This folder, created if it is missing.  Raises RequestError if it cannot be created."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            detail = f"cannot keep results in {shown(str(self.path))}: {error.strerror}"
            raise refuse("", "cannot_write", detail) from None
        return self

    def keep(self, key: str, result: Result) -> None:
        """Write a result atomically."""
        write_whole(self.path / f"{key}.json", result.model_dump_json(exclude_none=True))

    def results(self, keys: Collection[str]) -> dict[str, Result]:
        """The stored results of these questions; missing and unreadable ones are left out."""
        by_key = {}
        for path in self.path.glob("*.json"):
            if path.stem in keys:
                with suppress(OSError, ValidationError):  # a corrupt file: it is asked again
                    by_key[path.stem] = Result.model_validate_json(path.read_bytes())
        return by_key
