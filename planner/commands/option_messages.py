"""What went wrong, in the words that were typed: options in place of JSON pointers, and choices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

from planner.commands.options import FIELDS, PIPELINE, Part, part_of
from planner.documents.problems import Problem

EXAMPLE = (
    "planner plan --model llama-3.1-8b --cluster 1x8xh100-sxm --seq-length 8k "
    "--global-batch-size 64"
)
_STEP = (
    "planner rl --model llama-3.1-8b --cluster 2x8xh100-sxm --prompts 128 --samples 8 "
    "--prompt-tokens 512 --max-response-tokens 8k"
)
# A part that is missing, by the options that make it.
_PARTS = {
    "/model": "--model",
    "/cluster": "--cluster",
    "/training": "--seq-length and --global-batch-size",
    "/reinforcement": "--prompts, --prompt-tokens and --max-response-tokens",
}
_NO_PLAN = (
    "no plan is given: add --tp, --pp and others (`planner plan` finds the best); for example "
    "--tp 8 --pp 2"
)
# Options and arguments that are no fields of a request, by the place that a problem names.
_ELSEWHERE = {
    "/sensitivity/inputs": "--input",
    "/sensitivity/factors": "--factors",
    "/sensitivity/resolution": "--resolution",
    "/files": "FILE",
    "/log": "LOG",
    "/a": "A",
    "/b": "B",
}
# The option of a plan that a rule is about.
_OF_RULE = {
    "batch_identity": "--micro-batch-size",
    "heads_not_divisible": "--tp",
    "kv_heads": "--tp",
    "ffn_not_divisible": "--tp",
    "tp_exceeds_domain": "--tp",
    "sequence_parallel": "--sequence-parallel",
    "cp_seq": "--cp",
    "experts_not_divisible": "--ep",
    "layers_not_divisible": "--pp",
    "vpp_layout": "--vpp",
    "schedule_micro_batches": "--schedule",
    "zero_stage": "--zero-stage",
    "recompute": "--recompute",
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
    "--zero-stage": "0, 1, 2 or 3",
    "--memory-risk": "5%",
}
# Values that were typed with a letter: here it counts in powers of 1,024.
_BINARY = re.compile(r"[0-9.]+[kKmM]\Z")
_FIELD_NAME = re.compile(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b")
_PARTS_OF_FIELDS: tuple[Part, ...] = (
    "cluster", "training", "search", "plan", "sizing", "fit", "reinforcement",
)  # fmt: skip
_MAX_CHOICES = 20


def problem_lines(problems: Sequence[Problem], arguments: Sequence[str]) -> list[str]:
    """A line for each problem; arguments: of the command line."""
    missing = {p.pointer for p in problems if p.code == "missing"}
    lines = [_line(p, arguments) for p in problems]
    if missing & _PARTS.keys() and not _names_a_document(arguments):
        lines.append(f"for example: {_STEP if arguments[0] in ('rl', 'rl-emit') else EXAMPLE}")
    return lines


def _kind(problem: Problem, option: str) -> str:
    """What `planner catalog` lists all names of."""
    if "accelerator" in problem.pointer or problem.pointer.startswith("/sizing"):
        return "accelerators"
    return f"{option[2:]}s"


def _line(problem: Problem, arguments: Sequence[str]) -> str:
    document = _names_a_document(arguments)
    if problem.pointer == "/plan" and problem.code == "missing" and not document:
        return _NO_PLAN
    option = _option(problem, arguments)
    text = problem.detail if not option else problem.detail.removeprefix(f"{option} ")
    if problem.code not in ("not_allowed", "unknown_name") and not document:
        text = _in_options(text, option)
    text += "".join(_hints(problem, option, _value(option, arguments)))
    return text if problem.code == "usage" else _with_place(problem, option, text, document)


def _hints(problem: Problem, option: str, typed: str) -> Iterator[str]:
    """What helps beside a problem: choices, near names, an example; typed: the option's value."""
    unknown, count = problem.code == "unknown_name", len(problem.allowed)
    if unknown and 0 < count <= _MAX_CHOICES:
        yield f"; one of {', '.join(map(str, problem.allowed))}"
    if problem.did_you_mean:
        yield f"; did you mean {' or '.join(problem.did_you_mean)}?"
    if unknown and option and count > _MAX_CHOICES:
        yield f"; planner catalog {_kind(problem, option)} lists all {count}"
    if problem.code == "less_than_equal" and _BINARY.match(typed):
        yield f" ({typed} counts in powers of 1,024)"
    # What does not go with other fields has a rule that no fixed value keeps.
    ruled = problem.pointer == "/plan" or problem.code in ("missing", "inconsistent")
    if option in _EXAMPLES and not (ruled or problem.did_you_mean):
        yield f"; for example {option} {_EXAMPLES[option]}"


def _with_place(problem: Problem, option: str, text: str, document: bool) -> str:
    if " and " in option:
        text = text.replace("is required", "are required")
    if not option and not document and problem.pointer == "/plan":
        return text  # of several options
    if not problem.pointer and problem.code == "nothing_fits":
        return text  # of the whole request
    return f"{option or problem.pointer or '/'}: {text}"


def _value(option: str, arguments: Sequence[str]) -> str:
    """What was typed for an option."""
    return next((after for flag, after in reversed([*pairwise(arguments)]) if flag == option), "")


@cache
def _flags() -> dict[str, str]:
    """The option of each field, by its place in a request, and by its name where that is one's."""
    named = {name: field.flag for name, field in {**PIPELINE, **FIELDS}.items()}
    placed = {
        f"/{part}/{name}": field.flag
        for part in _PARTS_OF_FIELDS
        for name, field in part_of(part).items()
    }
    return named | placed


def _in_options(text: str, option: str) -> str:
    """A sentence with options in place of fields; without the one that the line begins with."""
    fields = {name.rpartition("/")[2]: flag for name, flag in _flags().items()}
    text = _FIELD_NAME.sub(lambda match: fields.get(match[0], match[0]), text)
    return text.removeprefix(option).lstrip(" ,") if option else text


def _option(problem: Problem, arguments: Sequence[str]) -> str:
    """The option that was typed, or has to be; empty where the value stands in a document."""
    typed = {a.partition("=")[0] for a in arguments}
    pointer = re.sub(r"(/[0-9]+)+\Z", "", problem.pointer)
    if pointer == "/plan" and problem.code in _OF_RULE:
        flag = _OF_RULE[problem.code]
        return flag if flag in typed else ""
    if pointer == "/cluster" and "--card" in typed:
        return "--card"
    if problem.code == "no_file" and pointer in ("", "/files", "/a", "/b"):
        return _ELSEWHERE.get(pointer, "FILE")
    if not _names_a_document(arguments) and (flag := _option_of_field(problem, pointer)):
        return flag
    name = pointer.rpartition("/")[2] if pointer.count("/") <= 3 else ""
    flag = _flags().get(name, f"--{name.replace('_', '-')}")
    return flag if name and (flag in typed or f"--no-{flag[2:]}" in typed) else ""


def _option_of_field(problem: Problem, pointer: str) -> str:
    """The option of a problem's field, where the whole request stands in options."""
    flags = _flags()
    if problem.code == "missing" and pointer in _PARTS:
        return _PARTS[pointer]
    if pointer in _ELSEWHERE or pointer in flags:
        return _ELSEWHERE.get(pointer) or flags[pointer]
    if pointer.count("/") == 1:  # a part: the field that its problem begins with
        first = problem.detail.partition(" ")[0].rstrip(",")
        if flag := flags.get(f"{pointer}/{first}"):
            return flag
    return flags.get(pointer.rpartition("/")[2], "") if problem.code == "missing" else ""


def _names_a_document(arguments: Sequence[str]) -> bool:
    """Whether the request stands in a file, or comes from standard input."""
    pairs = pairwise(arguments)
    return "--request" in arguments or any(
        (a == "-" or not a.startswith("-"))
        and (not previous.startswith("-") or previous == "--json")
        for previous, a in pairs
    )
