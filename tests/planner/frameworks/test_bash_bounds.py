"""Scripts of a kilobyte that would take minutes: reading them ends at a limit."""

from __future__ import annotations

import time

import pytest

from planner.documents.problems import RequestError
from planner.frameworks.bash.evaluate import evaluate
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
        (f"{LONG}{_rounds(': ${#A}')}", "expand to more than 2097152 characters"),
        (f"{LONG}{_rounds(': ${A:+y}')}", "expand to more than 2097152 characters"),
    ],
    ids=["doubled array", "length", "alternative"],
)
def test_a_short_script_ends_at_a_limit(script: str, says: str) -> None:
    assert len(script) < 1024
    began = time.process_time()
    with pytest.raises(Unreadable, match=says):
        evaluate({"run.sh": script}, "run.sh")
    assert time.process_time() - began < 5.0


def test_lint_of_a_doubled_array_is_refused() -> None:
    """Each framework's reader looked at 32,768 words: 55 s."""
    lint = QUESTIONS["lint"]
    files = {"run.sh": f'{DOUBLED}{LAUNCH}"${{A[@]}}"\n'}
    with pytest.raises(RequestError, match="more than 4096 words"):
        lint.answered(lint.parsed({"files": files, "cluster": "1x8xh100-sxm"}))
