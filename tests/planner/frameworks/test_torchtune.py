"""torchtune: one YAML for a recipe, read back as it was planned."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cost_models.plans import ParallelPlan
from planner import frameworks
from planner.answers.lint.lint import lint
from planner.documents.request import PlanRequest
from planner.frameworks.torchtune.components import RECIPES, SIGNATURES
from planner.frameworks.torchtune.settings import recipe
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.canonical import canonical
from tests.fixtures.frameworks import legal_cases
from tests.fixtures.frameworks.torchtune import CASES
from tests.fixtures.launches import run_script, written

Case = tuple[PlanRequest, ParallelPlan]
TORCHTUNE = frameworks.get("torchtune")


def config(case: Case) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(TORCHTUNE.write(*case).files["config.yaml"])
    return found


def same(case: Case) -> None:
    request, plan = case
    assert TORCHTUNE.read is not None
    reading = TORCHTUNE.read(TORCHTUNE.write(request, plan).files, None)
    assert canonical(reading.plan, reading.model) == canonical(plan, request.model)
    lost = ("name", "numerics", "max_position_embeddings", "sliding_window")
    left = {name: getattr(request.model, name) for name in lost}
    assert reading.model.model_copy(update=left) == request.model
    tokens = {"tokens": reading.training.tokens}
    assert reading.training == request.training.model_copy(update=tokens)
    assert (reading.refusals, reading.unknown, reading.unread, reading.assumed) == ((), (), (), ())


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_reads_back(case: str) -> None:
    same(CASES[case])


def test_drawn_plans_read_back_and_have_the_keys_of_their_recipe() -> None:
    legal = legal_cases("torchtune", 150)
    assert len(legal) > 50
    for case in legal:
        same(case)
        said, name = config(case), recipe(case[0].training, case[1])
        assert said.keys() <= set(RECIPES[name])
        for section in said.values():
            if isinstance(section, dict) and "_component_" in section:
                path = section.pop("_component_")
                assert section.keys() <= SIGNATURES.get(path, section).keys()
