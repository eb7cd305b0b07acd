"""torchtitan bundles: its real Trainer's verdict, every refusal, and registry modules read back."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from cost_models.layers import layers_of
from cost_models.parameters import (
    embedding_parameters,
    output_layer_parameters,
    prediction_parameters,
)
from cost_models.plans import ParallelPlan
from cost_models.schedules import SCHEDULES as OURS
from cost_models.spec import ModelSpec
from cost_models.stage_layers import forward_layers, virtual_stages
from planner import frameworks
from planner.documents.request import PlanRequest
from planner.frameworks.base import Unsupported
from planner.frameworks.torch_schedules import SCHEDULES
from planner.frameworks.torchtitan import registry
from tests.fixtures.frameworks.torchtitan import (
    CASES,
    drawn,
)
from tests.fixtures.launches import (
    FIRST_NODE,
    run_script,
    written,
)
from tests.fixtures.layers import layer_parameters
from tests.oracles.torchtitan_check import ask

TITAN = frameworks.get("torchtitan")
Case = tuple[PlanRequest, ParallelPlan]


# The real Trainer.


def question(request: PlanRequest, plan: ParallelPlan, stages: int | None = None) -> dict[str, Any]:
    """The module, written whatever the rules say of the plan."""
    files = TITAN.render(request, plan).files
    world = plan.accelerators
    return {"module": files["plan_config.py"], "world": world, "stages": stages or plan.pp}


def part_parameters(model: ModelSpec, start: int, stop: int) -> int:
    """Parameters of a model part that holds some layers, and the ends if it has the end layers."""
    layers = layers_of(model)
    each = [float(sum(layer_parameters(model, kind, 1.0, 1.0, 1.0))) for kind in layers.kinds]
    count = sum(each[place] for place in layers.order[start:stop])
    if start == 0:
        count += float(embedding_parameters(model, 1.0, 1))
    if stop == model.num_layers:
        count += float(output_layer_parameters(model, 1.0, 1))
        prediction = each[layers.order[-1]] + float(prediction_parameters(model, 1.0))
        count += model.mtp_num_layers * prediction
    return int(count)


def expected(request: PlanRequest, plan: ParallelPlan) -> dict[str, Any]:
    """What torchtitan must have built."""
    placement = OURS[plan.schedule].placement
    layers = forward_layers(request.model.num_layers, plan)
    sizes, owner, _ = virtual_stages(placement, plan.pp, layers)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    shard = 1 if plan.zero_stage == 0 else (plan.dp_shard or plan.dp * plan.cp) // plan.cp
    micro, count = plan.micro_batch_size, request.training.global_batch_size // plan.dp
    return {
        "tokens": [[micro, request.training.seq_length]] * 2,
        "accumulation": 1 if plan.pp > 1 else count // micro,
        "micro_batches": count // micro if plan.pp > 1 else 1,
        "schedule": f"Schedule{SCHEDULES[plan.schedule]}" if plan.pp > 1 else "",
        "mesh": {
            "dp_replicate": plan.dp // shard, "dp_shard": shard, "cp": plan.cp, "tp": plan.tp,
            "pp": plan.pp, "ep": plan.ep,
        },
        "optimizer": "AdamW",
        "stages": {
            (int(rank), index if plan.pp > 1 else 0): (
                list(range(starts[index], starts[index + 1])),
                part_parameters(request.model, int(starts[index]), int(starts[index + 1])),
            )
            for index, rank in enumerate(owner)
        },
    }  # fmt: skip


def built(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer in the shape of `expected`."""
    stages = {
        (one["rank"], one["stage"]): (one["layers"], one["parameters"])
        for one in answer.get("stages", ())
    }
    return {**answer, "stages": stages}


@pytest.mark.exhaustive
def test_the_real_trainer_builds_what_every_case_says() -> None:
    cases = list(CASES)
    broken = question(*CASES["llama-fsdp"])
    broken["module"] = broken["module"].replace(" seq_len=2048", " sequence_length=2048")
    sized = question(*CASES["llama-fsdp"]) | {"world": 12}
    *answers, bad_name, bad_world = ask(
        [*(question(*CASES[name]) for name in cases), broken, sized]
    )
    for name, answer in zip(cases, answers, strict=True):
        assert built(answer) == expected(*CASES[name]), name
    assert "sequence_length" in bad_name["error"]
    assert "WORLD_SIZE(12)" in bad_world["error"]


def collect(strategy: Any, count: int) -> list[Case]:
    """So many different draws."""
    found: dict[str, Case] = {}

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(case: Case) -> None:
        found.setdefault(repr(case), case)

    draw()
    return list(found.values())


@pytest.mark.exhaustive
def test_the_real_trainer_builds_what_drawn_plans_say() -> None:
    cases = [case for case in collect(drawn(), 320) if not TITAN.reasons(*case)]
    assert len(cases) >= 200
    for case, answer in zip(cases, ask([question(*case) for case in cases]), strict=True):
        assert built(answer) == expected(*case), (case, answer)


# Reasons that the constructor has nothing against: why they stand all the same.
EXPLAINED = {
    "do not split in": "a plan has even chunks",
    "evenly over": "a plan has even chunks",
    "do not divide over": "a plan has even stages but for its ends",
    "nothing to shard": "a module says ZeRO-0 and ZeRO-3 of one rank alike",
    "not tensorwise": "torchao, which has the recipes, stands aside",
    "padded groups": "torchao, which pads, stands aside",
    "multiples of 128": "torchao, whose kernels they are, stands aside",
    "whole groups of cp": "the module says the nearest degree",
    "x 128": "seen with the first batch, not before",
    "not bf16 with fp32 weights": "seen with the first step, not before",
    "splits the backward pass": "compiled in place, where torch's own test does not look",
    "a compiler pass": "without sequence_parallel it has nothing to do",
    "it needs compile": "without sequence_parallel it has nothing to do",
}


@pytest.mark.exhaustive
def test_rules_refuse_what_the_real_trainer_refuses_and_little_else() -> None:
    """Legal and illegal draws, written whatever the rules say: the two verdicts agree."""
    cases, questions = [], []
    for case in collect(drawn(wild=True), 400):
        with suppress(Unsupported):  # layers lost or parts empty: nothing can be written
            questions.append(question(*case, stages=1))
            cases.append(case)
    answers = ask(questions)
    refused = ["error" in answer for answer in answers]
    assert min(sum(refused), len(refused) - sum(refused)) >= 60
    for case, answer in zip(cases, answers, strict=True):
        reasons = TITAN.reasons(*case)
        if "error" in answer:
            assert reasons, (case, answer)
        else:
            open_ = [r.text for r in reasons if not any(text in r.text for text in EXPLAINED)]
            assert open_ == [], case


@pytest.mark.parametrize("case", CASES)
def test_every_setting_exists_and_has_its_type(case: str) -> None:
    fields = registry.document()["fields"]
    for flag in TITAN.write(*CASES[case]).flags:
        section, _, name = flag.name.partition(".")
        if section in fields:
            default = fields[section][name]
            if isinstance(default, bool | str):
                assert isinstance(json.loads(str(flag.value).lower()), type(default)), flag


def test_the_script_runs_the_module_beside_it_for_a_few_steps(tmp_path: Path) -> None:
    main = written(tmp_path, TITAN.write(*CASES["llama-fsdp"]))
    variables = {**FIRST_NODE, "TRAIN_ITERS": "5; touch pwned"}
    (default,) = run_script(tmp_path, main.name)
    (asked,) = run_script(tmp_path, main.name, variables=variables)
    words = ["-m", "torchtitan.train", "--module", "plan_config", "--config", "config"]
    assert default[-8:] == [*words, "--training.steps", "20"]
    assert asked[-2:] == ["--training.steps", "5; touch pwned"]
    assert 'export PYTHONPATH="$BUNDLE' in main.read_text()


def test_names_in_the_field_table_are_names_torchtitan_has() -> None:
    fields = registry.document()["fields"]
    written_names = {f.name for case in CASES.values() for f in TITAN.write(*case).flags}
    for field in TITAN.fields.values():
        for name in field.names:
            section, _, rest = name.partition(".")
            known = section in fields and rest in fields[section]
            assert known or any(one.endswith(name) for one in written_names), name
