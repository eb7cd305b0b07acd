"""Numbers of drawn plans, pinned: a change of the physics is a decision, and shows in the diff.

The other tests hold the numbers against sources; these hold them still.  After a change that is
meant, write them anew: `python -m tests.cost_models.test_pinned`.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from cost_models.estimate import CostModel
from cost_models.flops import step_flop
from cost_models.parameters import active_parameters, total_parameters
from cost_models.plans import Plans
from planner.documents.request import PlanRequest
from tests.tools.same_answers import with_plan

FILE = Path(__file__).parents[1] / "golden" / "pinned.json"
COUNT = 120


def numbers(document: dict[str, Any]) -> dict[str, Any]:
    """What the cost model says of one plan: per step, per stage, per kind of group."""
    request = PlanRequest.model_validate(document)
    assert request.plan is not None
    cost = CostModel(request.model, request.cluster, request.training)
    found = cost.evaluate(Plans.from_rows([request.plan]), all_stages=True)
    times, links = cost.stage_times(request.plan)
    parts = {name: values[:, 0] for name, values in found.memory.parts.items()}
    groups = cost.traffic(request.plan)
    return {
        "parameters": [total_parameters(request.model), active_parameters(request.model)],
        "flop": [step_flop(request.model, request.training, causal) for causal in (False, True)],
        "time_s": {name: float(values[0]) for name, values in found.time_parts_s.items()},
        "first_stage_bytes": {name: float(values[0]) for name, values in parts.items()},
        "last_stage_bytes": {name: float(values[-1]) for name, values in parts.items()},
        "all_stages_bytes": float(found.memory.total_bytes.sum()),
        "in_flight": float(found.memory.in_flight.sum()),
        "stages_s": [float(np.sum(values)) for values in vars(times).values()],
        "message_s": float(links.transfer_s),
        "traffic_s": {group.name: float(group.seconds.sum()) for group in groups},
        "link_bytes": {group.name: float(group.link_bytes.sum()) for group in groups},
    }


@pytest.fixture(scope="module")
def rows() -> Any:
    return json.loads(FILE.read_text(encoding="utf-8"))


# One in three after every save, where hand computations hold the parts of a step, and another one
# in continuous integration.
@pytest.mark.one_in(1, quick=2)
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=((), pytest.mark.slow, pytest.mark.exhaustive)[number % 3])
        for number in range(COUNT)
    ],
)
def test_the_numbers_of_a_drawn_plan_are_as_pinned(number: int, rows: Any) -> None:
    pinned = rows[number]
    found = numbers(pinned["request"])
    for name, expected in pinned["numbers"].items():
        assert found[name] == pytest.approx(expected, rel=1e-9, abs=1e-15), name


def write() -> None:
    """Pin what the code says now: of the same plans, or of new ones where there is no file."""
    if FILE.exists():
        documents = [row["request"] for row in json.loads(FILE.read_text(encoding="utf-8"))]
    else:
        random = Random(1)
        drawn = [with_plan(random) for _ in range(COUNT)]
        documents = [request.model_dump(mode="json", exclude_defaults=True) for request in drawn]
    rows = [json.dumps({"request": each, "numbers": numbers(each)}) for each in documents]
    FILE.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    write()
