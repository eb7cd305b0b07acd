"""Which frameworks run a pipeline schedule."""

from __future__ import annotations

import pytest

from cost_models.schedules import SCHEDULES
from planner import frameworks


@pytest.mark.parametrize(
    ("schedule", "runners"),
    [
        ("v-half", ("primus",)),
        ("dualpipe-v", ("torchtitan", "pytorch", "mindspeed")),
        ("hanayo", ()),
    ],
)
def test_a_schedule_is_run_by_those_that_name_it(schedule: str, runners: tuple[str, ...]) -> None:
    assert frameworks.running(schedule) == runners


def test_every_schedule_that_a_framework_names_is_known() -> None:
    named = {
        schedule
        for name in frameworks.FRAMEWORKS
        for schedule in frameworks.get(name).axes.get("schedule", ())
    }
    assert named <= set(SCHEDULES)
    assert all(frameworks.running(schedule) for schedule in named)
