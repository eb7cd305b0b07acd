"""A table of what was measured on a GPU beside what is predicted now.

python -m tools.gpu_day.compare [MEASURED.json] [--cluster 1x1xh200]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tools.gpu_day import prepare

MEASURED = Path(__file__).with_name("h200.json")


class Compared(NamedTuple):
    """One run: seconds of a step and bytes that torch's allocator handed out, both ways."""

    name: str
    predicted_s: float
    measured_s: float
    predicted_bytes: float
    measured_bytes: float
    first_s: float | None
    first_bytes: float | None


def compared(path: Path = MEASURED, cluster: str = "1x1xh200") -> Iterator[Compared]:
    """The runs that were measured, in the order of runs.yaml."""
    measured: dict[str, Any] = json.loads(path.read_text())["runs"]
    for run in prepare.runs():
        found = measured.get(run["name"], {})
        if "step_s" not in found:
            continue
        said = prepare.predicted(prepare.document(run, cluster))
        first = found.get("first_sight", {})
        yield Compared(
            run["name"], said["step_s"], found["step_s"], said["allocated_bytes"],
            found["allocated_bytes"], first.get("step_s"), first.get("allocated_bytes"),
        )  # fmt: skip


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measured", type=Path, nargs="?", default=MEASURED)
    parser.add_argument("--cluster", default="1x1xh200")
    given = parser.parse_args()
    heads = "".join(f" {unit:>8} {'measured':>8} {'ratio':>6}" for unit in ("s", "GiB"))
    print(f"{'run':18}{heads}")
    for one in compared(given.measured, given.cluster):
        pairs = (
            (one.predicted_s, one.measured_s),
            (one.predicted_bytes / 2**30, one.measured_bytes / 2**30),
        )
        told = "".join(f" {said:8.3f} {was:8.3f} {said / was:6.3f}" for said, was in pairs)
        print(f"{one.name:18}{told}")


if __name__ == "__main__":
    main()
