"""The few constants that are fitted to published runs, and their meanings.

Every other constant has a source or a micro-benchmark.  `tools/accuracy/fit_constants.py` fits
these; `tools/accuracy/leave_out.py` leaves each source out in turn, to measure how well they do
on runs that they were not fitted to.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, cast

FILE = Path(__file__).parent / "catalog" / "fitted.json"


@dataclass(frozen=True)
class Fitted:
    """Values of the fitted constants; `catalog/fitted.json` says what each is."""

    sustained_ampere: float
    sustained_hopper: float
    sustained_b200: float
    sustained_gb200: float
    sustained_gb300: float
    sustained_v6e: float
    contention: float
    straggler: float
    host_launch_s: float
    tp_overlap_exposed: float

    def sustained_fraction(self, steady: str | float) -> float:
        """Steady over single-kernel matrix rate: as published, or the fitted one of that name."""
        if isinstance(steady, str):
            return cast(float, getattr(self, f"sustained_{steady}"))
        return steady


@cache
def documents() -> dict[str, dict[str, Any]]:
    """Each constant with its value, unit, meaning and physically expected range."""
    constants = json.loads(FILE.read_text(encoding="utf-8"))["constants"]
    return cast(dict[str, dict[str, Any]], constants)


@cache
def fitted() -> Fitted:
    """The values in the catalog."""
    return Fitted(**{f.name: float(documents()[f.name]["value"]) for f in fields(Fitted)})
