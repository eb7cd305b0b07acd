"""Stored results of validations, found by their plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cost_models.fields import Spec
from planner.data_folder import data_folder, write_whole
from planner.documents.problems import refuse
from planner.documents.request import PlanRequest

# The parts of a request that identify a plan; the machine of the run is in the report.
_KEY = ("model", "training", "plan")


class StoredValidation(Spec):
    """One validation: its time, its request, and the report as printed."""

    id: str
    made_at: datetime
    request: dict[str, Any]
    report: dict[str, Any]

    @property
    def sentence(self) -> str:
        """The result in one line."""
        report = self.report
        measured = report["measured_iteration_time_s"]["median"]
        scale = "scaled down" if report.get("scaled_from") else "as it is"
        return (
            f"validated {self.made_at:%Y-%m-%d}, {scale}: {report['verdict']}, "
            f"{measured:.4g} s measured, {report['predicted_iteration_time_s']:.4g} s predicted"
        )


def keep(
    request: PlanRequest, report: dict[str, Any], made_at: datetime | None = None
) -> StoredValidation:
    """Store a report with its request under a new id.

    made_at: time of a report that may already be stored; it is then overwritten, not duplicated.
    """
    now = made_at or datetime.now(UTC)
    name = f"{_key(request)}-{now:%Y%m%dT%H%M%S%f}"
    stored = StoredValidation(id=name, made_at=now, request=request.document(), report=report)
    write_whole(_folder() / f"{name}.json", stored.model_dump_json(indent=1))
    return stored


def of_request(request: PlanRequest) -> list[StoredValidation]:
    """The validations of this request's plan, the latest first."""
    return list(_read(f"{_key(request)}-*.json"))


def everything() -> list[StoredValidation]:
    """All validations, the latest first."""
    return sorted(_read("*.json"), key=lambda v: v.made_at, reverse=True)


def find(name: str) -> StoredValidation:
    """The validation with this id.  Raises RequestError if there is none."""
    for stored in everything():
        if stored.id == name:
            return stored
    raise refuse(
        "/id", "unknown_name", f"no validation {name[:80]!r} is kept; `planner validations`"
    )


def _folder() -> Path:
    return data_folder("validations")


def _key(request: PlanRequest) -> str:
    document = request.document()
    content = json.dumps([document.get(part) for part in _KEY], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _read(pattern: str) -> Iterator[StoredValidation]:
    """The stored results that can be read; other files in the folder are ignored."""
    for path in sorted(_folder().glob(pattern), reverse=True):
        try:
            yield StoredValidation.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, ValidationError, UnicodeDecodeError):
            continue
