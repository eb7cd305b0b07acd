"""Reads the CONFIG block of a training script back; the script is parsed, never run."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from planner.frameworks.lingua import reader as lingua
from planner.frameworks.litgpt import reader as litgpt
from planner.frameworks.llm_foundry import reader as llm_foundry
from planner.frameworks.prime_rl import reader as prime_rl
from planner.frameworks.pytorch import encoders
from planner.frameworks.pytorch.config import (
    BY_STAGE,
    EXPERTS,
    KEYS,
    LATER,
    OPTIONAL_MODEL_FIELDS,
    PATTERN,
    specs,
)
from planner.frameworks.read_results import Reading, Setting, Unreadable

# Trainers on PyTorch's own parallelism whose files are read and not written here.
TRAINERS = (prime_rl, litgpt, lingua, llm_foundry)
SCRIPT, LAUNCH = "train.py", "launch.sh"
TITLE = '"""Train a decoder with PyTorch\'s own parallelism'
_NODES = re.compile(r'^NNODES="\$\{NNODES:-(\d{1,7})\}"$', re.MULTILINE)
_PROCESSES = re.compile(r"^  --nproc_per_node (\d{1,7})$", re.MULTILINE)


def recognises(files: Mapping[str, str]) -> bool:
    """Whether the training script is among the files, or a run of a trainer on FSDP 2."""
    own = files.get(SCRIPT, "").startswith(TITLE)
    return own or any(one.recognises(files) for one in TRAINERS)


def _block(text: str) -> ast.Dict:
    """The dictionary that CONFIG is set to."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise Unreadable(f"not Python: {error.msg}", SCRIPT, error.lineno or 0) from None
    except (ValueError, RecursionError, MemoryError):
        raise Unreadable("unreadable Python", SCRIPT) from None
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CONFIG":
            if isinstance(node.value, ast.Dict):
                return node.value
            raise Unreadable("CONFIG is not a dictionary", SCRIPT, node.lineno)
    raise Unreadable("there is no CONFIG block", SCRIPT)


def _literal(node: ast.expr | None, line: int) -> Any:
    try:
        return ast.literal_eval(node or "")
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise Unreadable("CONFIG must have plain values only", SCRIPT, line) from None


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(found[1]) if found else None


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """The specs and the plan of CONFIG, and the nodes of the launch script beside it."""
    for one in TRAINERS:
        if one.recognises(files):
            found: Reading = one.read(files, accelerators)
            return found
    if SCRIPT not in files:
        raise Unreadable(f"{SCRIPT} is missing")
    block = _block(files[SCRIPT])
    config: dict[str, Any] = {}
    settings = []
    for key, value in zip(block.keys, block.values, strict=True):
        name = str(_literal(key, value.lineno))
        config[name] = _literal(value, value.lineno)
        text = repr(config[name])
        settings.append(Setting(name=name, value=text, file=SCRIPT, line=value.lineno))
    keys = KEYS | (EXPERTS.keys() - LATER if config.get("num_experts") else frozenset())
    missing = sorted(keys - config.keys())
    if missing:
        raise Unreadable(f"CONFIG has no {', '.join(missing)}", SCRIPT, block.lineno)
    try:
        model, training, plan = specs(config)
    except ValidationError as error:
        (first, *_) = error.errors()
        name = ".".join(map(str, first["loc"]))
        line = next((one.line for one in settings if one.name == name), block.lineno)
        raise Unreadable(f"{name}: {first['msg']}", SCRIPT, line) from None
    except ValueError as error:
        raise Unreadable(str(error), SCRIPT, block.lineno) from None
    launch = files.get(LAUNCH, "")
    known = keys.union(PATTERN, OPTIONAL_MODEL_FIELDS, LATER, encoders.KEYS, (BY_STAGE,))
    return Reading(
        framework="pytorch",
        model=model,
        training=training,
        plan=plan,
        nodes=_number(_NODES, launch),
        accelerators_per_node=_number(_PROCESSES, launch),
        settings=tuple(settings),
        unknown=tuple(one for one in settings if one.name not in known),
    )
