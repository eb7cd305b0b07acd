"""Results on disk: a file per question, named by what was asked.

Whatever ends a sweep loses only the questions in work.  Several sweeps may share a folder, of
one grid or of several, and on a file system that several machines share.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from planner.data_folder import write_whole
from planner.documents.problems import refuse, shown
from planner.sweeps.question import Result


class ResultsFolder:
    """A folder of results by the keys of their questions."""

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
        """Write a result, whole or not at all."""
        write_whole(self.path / f"{key}.json", result.model_dump_json(exclude_none=True))

    def results(self, wanted: Collection[str]) -> dict[str, Result]:
        """The results of these questions, as far as they are there and can be read."""
        found = {}
        for path in self.path.glob("*.json"):
            if path.stem in wanted:
                with suppress(OSError, ValidationError):  # torn: then it is asked again
                    found[path.stem] = Result.model_validate_json(path.read_bytes())
        return found
