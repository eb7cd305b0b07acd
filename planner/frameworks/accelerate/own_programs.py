"""A training program at hand that no reader follows: what its text says of its options."""

from __future__ import annotations

import re
from collections.abc import Mapping

from planner.frameworks import training_calls, unread_trainers
from planner.frameworks.accelerate.trainer_calls import MARK
from planner.frameworks.accelerate.trainer_keys import PLAIN
from planner.frameworks.bash import ProgramCall
from planner.frameworks.given_values import Values
from planner.frameworks.python.scripts import PYTHON
from planner.frameworks.read_results import Setting
from planner.frameworks.training_calls import TrainingCall

# An option of a program's parser with a whole number by default, and those that are filled in.
_DECLARED = re.compile(
    r"""add_argument\(\s*["']--(\w+)["'],(?:[^()]|\([^()]*\))*?\bdefault\s*=\s*(\d+)\s*[,)]"""
)
# Examples of transformers, and the longest block that they take by themselves.
_EXAMPLES, _LONGEST_BLOCK = ("run_clm.py", "run_clm_no_trainer.py"), "1024"
_FILLED = ("per_device_train_batch_size", "gradient_accumulation_steps", *PLAIN.length)
# A half precision in DeepSpeed's configuration of a program, as a mapping of Python's.
_ENABLED = re.compile(
    r"""^[ \t]*["'](fp16|bf16)["']:\s*\{\s*["']enabled["']:\s*True\b""", re.MULTILINE
)


def declares(call: ProgramCall, files: Mapping[str, str]) -> bool:
    """Whether a call names its model, and its program declares the Trainer's batch."""
    names_model = any(word.text.startswith("--model_name_or_path") for word in call.arguments)
    return names_model and f'"{training_calls.TRAINER_MARK}"' in _program(call, files)[1]


def loops_itself(call: TrainingCall) -> bool:
    """Whether a program that is at hand takes the steps of its training itself."""
    _, text = _program(call.launch, call.files)
    return bool(unread_trainers.OWN_LOOP.search(text)) and not MARK.search(text)


def _program(call: ProgramCall, files: Mapping[str, str]) -> tuple[str, str]:
    """The name and the text of a call's program, if it is at hand."""
    last = call.program.text.rsplit("/", 1)[-1]
    named = (name for name in files if name.rsplit("/", 1)[-1] == last and name.endswith(PYTHON))
    return (name := next(named, "")), files.get(name, "")


def defaults(call: TrainingCall, values: Values) -> dict[str, Setting]:
    """The batch and the length that the program's own parser has where the call has none."""
    name, text = _program(call.launch, call.files)
    found = {
        one[1]: Setting(name=f"--{one[1]}", value=one[2], file=name,
                        line=1 + text.count("\n", 0, one.start()))
        for one in _DECLARED.finditer(text)
        if one[1] in _FILLED and not values.has(*(PLAIN.length if one[1] in PLAIN.length else ()))
    }  # fmt: skip
    left = {key: one for key, one in found.items() if key not in values.settings}
    if left:
        said = ", ".join(f"{key} {one.value}" for key, one in left.items())
        values.assume(f"defaults of {name}: {said}")
    program = call.launch.program
    example = program.text.rsplit("/", 1)[-1]
    if not text and example in _EXAMPLES and not values.has(*PLAIN.length):
        values.assume(
            f"block_size: not set, {_LONGEST_BLOCK} as in transformers' {example}, which takes the "
            "tokenizer's limit where that is less, and in some releases where it is more"
        )
        left[PLAIN.length[0]] = Setting(
            name="block_size", value=_LONGEST_BLOCK, file=program.file, line=program.line
        )
    return left


def half_precision(files: Mapping[str, str]) -> dict[str, Setting]:
    """The half precision that is on in DeepSpeed's configuration inside the program's files."""
    found = {
        one[1]: Setting(
            name=one[1], value="true", file=name, line=text.count("\n", 0, one.end(1)) + 1
        )
        for name, text in files.items()
        if name.endswith(PYTHON)
        for one in _ENABLED.finditer(text)
    }
    return found if len(found) == 1 else {}
