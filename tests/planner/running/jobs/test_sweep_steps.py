"""Steps of a sweep that an earlier run of it has left."""

from __future__ import annotations

from typing import Any

from planner.running.jobs.settings import JobSettings
from planner.running.jobs.workflows import WORKFLOWS
from planner.running.sweeps.question import ask
from tests.fixtures.job_server import SWEEP


class OfAnotherBuild:
    """Steps of which the first was finished by another build, whose questions have other keys."""

    settings = JobSettings(sweep_step_questions=1)
    parts: dict[str, Any]

    def __init__(self) -> None:
        self.parts, self.asked = {}, list[dict[str, Any]]()

    def run_apart(
        self, phase: str, step: str, at: tuple[int, int], questions: dict[str, Any]
    ) -> dict[str, Any]:
        """What was found then, or is now."""
        self.asked.append(questions)
        found = {key: ask(one).model_dump(mode="json") for key, one in questions.items()}
        first = len(self.asked) == 1
        return {f"{key} of another build": one for key, one in found.items()} if first else found


def test_what_another_build_found_is_asked_again() -> None:
    steps: Any = OfAnotherBuild()
    request = SWEEP | {"axes": {"training.global_batch_size": [64, 128]}}
    answer = WORKFLOWS["sweeps"](request, steps)["sweep"]
    assert answer["outcomes"] == {"fits": 2}
    first, second, again = steps.asked
    assert first == again != second
