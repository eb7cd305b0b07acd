"""The OpenAPI description of what jobs and saved plans take."""

from __future__ import annotations

from typing import Any

from planner.documents.service import Kind, SavedPlanSpec
from planner.running.jobs.documents import CalibrationSpec, DryrunSpec, ValidationSpec

PREFIX = "#/components/schemas/"
# The part of its own that each kind has beside the request.
_PARTS = {
    "ValidationRequest": ("validation", ValidationSpec),
    "CalibrationRequest": ("calibration", CalibrationSpec),
    "DryrunRequest": ("dryrun", DryrunSpec),
}
SPECS = (ValidationSpec, CalibrationSpec, DryrunSpec, SavedPlanSpec)
_TRAINING = {"seq_length": 8192, "global_batch_size": 128}
_SHORT_REQUEST = {"model": "llama-3.1-8b", "cluster": "2x8xh100-sxm", "training": _TRAINING}
_PLAN = {"tp": 2, "dp": 8, "sequence_parallel": True, "recompute": "full", "runtime": "torch"}
_REQUEST_WITH_PLAN = _SHORT_REQUEST | {"plan": _PLAN | {"recompute_num_layers": 32}}
JOB_EXAMPLES: dict[Kind, dict[str, Any]] = {
    "validations": {
        "short": {
            "summary": "Scaled to this machine, gradients compared",
            "value": _REQUEST_WITH_PLAN | {"validation": {"steps": 5, "check_numerics": True}},
        }
    },
    "calibrations": {
        "short": {
            "summary": "The full set, two minutes for each start of processes",
            "value": {"calibration": {"name": "my-machine", "budget_s": 120}},
        }
    },
    "dryruns": {
        "short": {
            "summary": "Two ranks at full scale",
            "value": _REQUEST_WITH_PLAN | {"dryrun": {"ranks": [0, 15]}},
        }
    },
    "sweeps": {
        "short": {
            "summary": "Three batches on two clusters",
            "value": {
                "base": _SHORT_REQUEST,
                "axes": {
                    "cluster": ["2x8xh100-sxm", "4x8xh100-sxm"],
                    "training.global_batch_size": [128, 256, 512],
                },
            },
        }
    },
}
SAVED_PLAN_EXAMPLES: dict[str, Any] = {
    "short": {
        "summary": "A request with a note",
        "value": {"note": "two nodes until spring", "request": _SHORT_REQUEST},
    }
}


def requests(request: dict[str, Any]) -> dict[str, Any]:
    """The schemas of what each kind takes, by name, given that of a request."""
    schemas: dict[str, Any] = {
        name: request
        | {
            "required": [] if part == "calibration" else [*request["required"], "plan"],
            "properties": request["properties"] | {part: {"$ref": PREFIX + spec.__name__}},
        }
        for name, (part, spec) in _PARTS.items()
    }
    values = {"type": "object", "additionalProperties": {"type": "array", "minItems": 1}}
    points = {"type": "array", "items": {"type": "object"}, "minItems": 1}
    base = {"type": "object", "description": "a request, of which the axes replace fields"}
    schemas["SweepRequest"] = {
        "type": "object",
        "required": ["base"],
        "additionalProperties": False,
        "properties": {
            "base": base,
            "axes": values | {"description": "values by field, such as training.seq_length"},
            "points": points | {"description": "values of several fields that go together"},
        },
    }
    return schemas
