"""What went wrong, in the words that were typed: options in place of JSON pointers, and choices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from planner.commands.options import FIELDS, PIPELINE
from planner.documents.problems import Problem

EXAMPLE = (
    "planner plan --model llama-3.1-8b --cluster 1x8xh100-sxm --seq-length 8k "
    "--global-batch-size 64"
)
# A part that is missing, by the options that make it.
_PARTS = {
    "/model": "--model",
    "/cluster": "--cluster",
    "/training": "--seq-length and --global-batch-size",
}
# A value that does, by option.
_EXAMPLES = {
    "--model": "llama-3.1-8b",
    "--cluster": "8x8xh100-sxm",
    "--framework": "megatron",
    "--launcher": "slurm",
    "--schedule": "1f1b,interleaved-1f1b",
    "--seq-length": "8k",
    "--global-batch-size": "512",
    "--tokens": "15T",
    "--tp": "8, 1..8 or 1,2,4",
}
_MOST_CHOICES = 20


def problem_lines(problems: Sequence[Problem], words: Sequence[str]) -> list[str]:
    """A line for each problem; words: the command line."""
    missing = {one.pointer for one in problems if one.code == "missing"}
    lines = [_line(one, words) for one in problems]
    if missing & _PARTS.keys() and not _names_a_document(words):
        lines.append(f"for example: {EXAMPLE}")
    return lines


def _kind(problem: Problem, option: str) -> str:
    """What `planner catalog` lists all names of."""
    if "accelerator" in problem.pointer or problem.pointer.startswith("/sizing"):
        return "accelerators"
    return f"{option[2:]}s"


def _line(problem: Problem, words: Sequence[str]) -> str:
    option = _option(problem, words)
    text = problem.detail if not option else problem.detail.removeprefix(f"{option} ")
    few = len(problem.allowed) <= _MOST_CHOICES
    if problem.code == "unknown_name" and problem.allowed and few:
        text += f"; one of {', '.join(map(str, problem.allowed))}"
    if problem.did_you_mean:
        text += f"; did you mean {' or '.join(problem.did_you_mean)}?"
    if problem.code == "unknown_name" and option and not few:
        text += f"; planner catalog {_kind(problem, option)} lists all {len(problem.allowed)}"
    # What does not go with other fields has a rule that no fixed value keeps.
    fixed = problem.code not in ("missing", "inconsistent")
    if option in _EXAMPLES and fixed and not problem.did_you_mean:
        text += f"; for example {option} {_EXAMPLES[option]}"
    return text if problem.code == "usage" else _placed(problem, option, text)


def _placed(problem: Problem, option: str, text: str) -> str:
    if " and " in option:
        text = text.replace("is required", "are required")
    return f"{option or problem.pointer or '/'}: {text}"


def _option(problem: Problem, words: Sequence[str]) -> str:
    """The option that was typed, or has to be; empty where the value stands in a document."""
    given = {word.partition("=")[0] for word in words}
    missing = problem.code == "missing" and not _names_a_document(words)
    if missing and problem.pointer in _PARTS:
        return _PARTS[problem.pointer]
    parts = problem.pointer.split("/")[1:]
    known = {**PIPELINE, **FIELDS}
    while parts and parts[-1].isdigit():
        parts.pop()
    name = parts[-1] if parts and len(parts) <= 3 else ""
    flag = known[name].flag if name in known else f"--{name.replace('_', '-')}"
    typed = flag in given or f"--no-{flag[2:]}" in given
    return flag if name and (typed or (missing and name in known)) else ""


def _names_a_document(words: Sequence[str]) -> bool:
    """Whether the request stands in a file, or comes from standard input."""
    pairs = pairwise(words)
    return "--request" in words or any(
        (word == "-" or not word.startswith("-"))
        and (not before.startswith("-") or before == "--json")
        for before, word in pairs
    )
