"""Scripts of a kilobyte that would take minutes: reading them ends at a limit."""

from __future__ import annotations

import time
from typing import Any

import pytest

from planner.documents.problems import RequestError
from planner.frameworks.bash.evaluate import evaluate
from planner.frameworks.launch_files import GivenValues, LaunchFiles
from planner.frameworks.read_results import Unreadable
from planner.questions.registry import QUESTIONS

DOUBLED = "A=(--lrx 1e-4)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 14
LAUNCH = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2 "
LONG = "A=xxxxxxxx\n" + "A=$A$A\n" * 13
ROUNDS = "for i in {rounds}; do for j in {rounds}; do {body}; done; done\n"


def _rounds(body: str) -> str:
    return ROUNDS.format(rounds=" ".join("x" * 100), body=body)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (f'{DOUBLED}{LAUNCH}"${{A[@]}}"\n', "an array or a command has more than 4096 words"),
        (f"{LONG}{_rounds(': ${#A}')}", "expand to more than 8388608 characters"),
        (f"{LONG}{_rounds(': ${A:+y}')}", "expand to more than 8388608 characters"),
    ],
    ids=["doubled array", "length", "alternative"],
)
def test_a_short_script_ends_at_a_limit(script: str, says: str) -> None:
    assert len(script) < 1024
    began = time.process_time()
    with pytest.raises(Unreadable, match=says):
        evaluate({"run.sh": script}, "run.sh")
    assert time.process_time() - began < 5.0


def test_an_outcome_is_that_of_the_given_values_and_a_refusal_is_raised_again() -> None:
    """Readers share an outcome, so it has to tell apart all that it depends on."""
    script = {"run.sh": "python pretrain_gpt.py --lr $LR --tp ${1:-4}\n"}

    def words(**given: Any) -> list[str]:
        (launch,) = evaluate(LaunchFiles(script, GivenValues(**given)), "run.sh").launches
        return [word.text for word in launch.arguments]

    assert words(values={"LR": "1"}) == ["--lr", "1", "--tp", "4"]
    assert words(values={"LR": "2"}) == ["--lr", "2", "--tp", "4"]
    assert words(values={"LR": "2"}, arguments=("8",)) == ["--lr", "2", "--tp", "8"]
    errors = []
    for _ in range(2):
        with pytest.raises(Unreadable, match="more than 4096") as found:
            evaluate({"run.sh": f'{DOUBLED}{LAUNCH}"${{A[@]}}"\n'}, "run.sh")
        errors.append(found.value)
    assert errors[0] is not errors[1]


def test_lint_of_a_doubled_array_is_refused() -> None:
    """Each framework's reader looked at 32,768 words: 55 s."""
    lint = QUESTIONS["lint"]
    files = {"run.sh": f'{DOUBLED}{LAUNCH}"${{A[@]}}"\n'}
    with pytest.raises(RequestError, match="more than 4096 words"):
        lint.answered(lint.parsed({"files": files, "cluster": "1x8xh100-sxm"}))
