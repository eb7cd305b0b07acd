"""Logs of reinforcement learning: seconds of each phase, as published, and what is no such log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import planner
from planner import cli
from planner.answers.reinforcement.measured import beside
from planner.answers.reinforcement.parsing import parse_reinforcement
from planner.documents.problems import RequestError
from planner.inputs.logs.rl_steps import SCORING, MeasuredSteps, read_steps
from planner.inputs.logs.stream import lines_of

LOGS = Path(__file__).parents[3] / "fixtures" / "logs" / "rl"
# As many responses as the step of verl_gh200_sglang: 4 x 547,190.5 tokens, 427.5 in each.
ASKED = {
    "model": "qwen2.5-0.5b", "cluster": "1x4xh100-sxm",
    "reinforcement": {"prompts": 1024, "samples": 5, "prompt_tokens": 103,
                      "response_tokens": 325, "max_response_tokens": 1024},
}  # fmt: skip


def read(name: str) -> MeasuredSteps:
    with (LOGS / f"{name}.log").open("rb") as file:
        return read_steps(lines_of(file), name)


def test_verls_console() -> None:
    found = read("verl_gh200_sglang")
    assert (found.trainer, found.steps, found.step_time_s) == ("verl", 1, 96.551)
    assert found.parts_s == {
        "generation": 74.02, "policy_scoring": 3.566, "reference_scoring": 3.42,
        "policy_training": 14.302,
    }  # fmt: skip
    assert (found.response_tokens, found.prompt_tokens) == (324.958, 102.534)


def test_nemo_rls_table() -> None:
    found = read("nemo_rl_async")
    assert (found.trainer, found.step_time_s) == ("NeMo-RL", 66.55)
    assert found.parts_s == {
        "generation": 32.52, "policy_training": 25.05, SCORING: 4.78, "weight_transfer": 0.13,
    }  # fmt: skip


def test_slimes_two_lines_of_a_step() -> None:
    found = read("slime_rollout")
    assert found.parts_s == {"generation": 371.1796889305115}
    assert found.response_tokens == 2773.71484375
    trained = (
        "(MegatronTrainRayActor pid=9) train_metric_utils.py:404 - perf 0: {'perf/log_probs_time': "
        "17.2, 'perf/actor_train_time': 46.9, 'perf/train_time': 64.7, 'perf/step_time': 412.3}"
    )
    lines = [*(LOGS / "slime_rollout.log").read_text().splitlines(), trained]
    both = read_steps(lines, "slime")
    assert (both.steps, both.step_time_s) == (1, 412.3)
    assert both.parts_s["policy_training"] == 46.9
    assert both.parts_s["generation"] == 371.1796889305115


def test_the_median_of_steps_without_the_first() -> None:
    times = (900.0, 20.0, 22.0, 60.0)
    lines = [f"step:{i} - timing_s/gen:np.float64({s}) - timing_s/step:{s + 10}"
             for i, s in enumerate(times)]  # fmt: skip
    found = read_steps(lines, "log")
    assert (found.steps, found.parts_s["generation"], found.step_time_s) == (3, 22.0, 32.0)


def test_trls_metrics() -> None:
    line = "{'loss': '0.01', 'completions/mean_length': '251.5', 'step_time': '12.5', 'epoch': '1'}"
    found = read_steps([line] * 3, "log")
    assert (found.trainer, found.steps, found.step_time_s) == ("TRL", 2, 12.5)
    assert found.response_tokens == 251.5


@pytest.mark.parametrize("text", ["", "iteration 1/ 10 | elapsed time", "step:1 - val-core/acc:1"])
def test_other_logs_are_refused_with_what_is_known(text: str) -> None:
    with pytest.raises(RequestError) as error:
        read_steps([text], "run.log")
    (found,) = error.value.problems
    assert found.pointer == "/log"
    assert found.allowed == ("verl", "NeMo-RL", "slime", "TRL")


def test_two_trainers_are_no_run() -> None:
    lines = ["step:1 - timing_s/step:3", "perf 0: {'perf/rollout_time': 3}"]
    with pytest.raises(RequestError, match="a log of verl has lines of slime too"):
        read_steps(lines, "log")


def test_phases_stand_beside_the_prediction() -> None:
    asked, answer = parse_reinforcement(ASKED), planner.rl(ASKED)
    found = beside(asked, answer, read("verl_gh200_sglang"))
    phases = {one.phase: one for one in found.phases}
    assert phases["step"].predicted_s == answer.step_time_s
    trained = phases["policy_training"]
    assert trained.ratio == answer.parts_s["policy_training"] / 14.302
    rate = 1024 * 5 * 324.958 / 74.02 / 4
    assert found.generation_tokens_per_s == pytest.approx(rate)
    # Taken in place of the modelled rate, it makes generation as long as measured.
    stated = {**ASKED, "reinforcement": {**ASKED["reinforcement"], "generation_tokens_per_s": rate}}
    taken = planner.rl(stated).parts_s["generation"]
    assert taken == pytest.approx(74.02 * 325 / 324.958)
    both = read("nemo_rl_async")
    together = {one.phase: one for one in beside(asked, answer, both).phases}[SCORING]
    assert (
        together.predicted_s
        == answer.parts_s["policy_scoring"] + answer.parts_s["reference_scoring"]
    )


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = tmp_path / "step.json"
    request.write_text(json.dumps(ASKED))
    log = str(LOGS / "verl_gh200_sglang.log")
    assert cli.run(["rl", str(request), "--measured-log", log]) == 0
    shown = capsys.readouterr().out
    assert "verl, the median of 1 step" in shown
    assert "--generation-tokens-per-s 5619" in " ".join(shown.split())
    assert cli.run(["rl", str(request), "--measured-log", log, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["measured"]["parts_s"]["generation"] == 74.02
    assert cli.run(["rl", str(request), "--measured-log", str(tmp_path / "none.log")]) == 2
    assert "none.log" in capsys.readouterr().err
