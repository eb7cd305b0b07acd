"""The OpenAPI description of what jobs and saved plans take."""

from __future__ import annotations

from typing import Any

from api.openapi.parts import closed, ref
from planner.documents.service import SavedPlanSpec, SharedSpec
from planner.running.jobs.documents import CalibrationSpec, DryrunSpec, ValidationSpec

# The part of its own that each kind has beside the request.
_PARTS = {
    "ValidationRequest": ("validation", ValidationSpec),
    "CalibrationRequest": ("calibration", CalibrationSpec),
    "DryrunRequest": ("dryrun", DryrunSpec),
}
SPECS = (ValidationSpec, CalibrationSpec, DryrunSpec, SavedPlanSpec, SharedSpec)


def requests(request: dict[str, Any]) -> dict[str, Any]:
    """The schemas of what each kind takes, by name, given that of a request."""
    schemas: dict[str, Any] = {
        name: request
        | {
            "required": [] if part == "calibration" else [*request["required"], "plan"],
            "properties": request["properties"] | {part: ref(spec.__name__)},
        }
        for name, (part, spec) in _PARTS.items()
    }
    values = {"type": "object", "additionalProperties": {"type": "array", "minItems": 1}}
    points = {"type": "array", "items": {"type": "object"}, "minItems": 1}
    grid = {
        "base": {"type": "object", "description": "a request, of which the axes replace fields"},
        "axes": values | {"description": "values by field, such as training.seq_length"},
        "points": points | {"description": "values of several fields that go together"},
    }
    return schemas | {"SweepRequest": closed(grid, ["base"])}
