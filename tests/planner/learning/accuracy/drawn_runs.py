"""Small files of runs for the tests."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROW: dict[str, Any] = {
    "id": "a",
    "source_key": "drawn",
    "confidence": "high",
    "year": "2025",
    "gpu": "H100 SXM",
    "n_gpus": "8",
    "gpus_per_node": "8",
    "model": "llama-3.1-8b",
    "seq_len": "4096",
    "global_batch": "64",
    "micro_batch": "1",
    "precision": "bf16",
    "tp": "1",
    "cp": "1",
    "pp": "1",
    "dp": "8",
    "zero_stage": "3",
    "recompute": "full",
    "schedule": "none",
    "stack": "torchtitan",
    "derived_iteration_time_s": "7.5",
    "peak_memory_gib_measured": "40",
    "oom": "",
    "notes": "",
    "config_group": "",
}


def written(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """A file of rows, its columns those of ROW."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(ROW), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path
