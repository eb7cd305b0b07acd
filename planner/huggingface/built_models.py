"""Configs of families that have no reader: `transformers` builds the model without weights.

It does so in a separate process with limits, since a config may ask for any size.  The process
ends with the one that started it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cost_models.spec import ModelSpec
from planner.huggingface.config import Problem, UnknownArchitecture, short_text
from planner.huggingface.importer import MODELS, OTHER_FILES, ImportedModel, own_name

LIMIT_S = 150.0
SETTING = "PLANNER_BUILD_MODELS"  # of the service
INSTALL = "pip install 'transformers>=5.20' torch"
# Keys for the number of layers in configs, and the most layers that are built.
LAYER_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
MOST_LAYERS = 10_000
_allowed: ContextVar[bool] = ContextVar("allowed", default=True)


class NotBuilt(UnknownArchitecture):
    """A model that could be built, where none is to be."""


@contextmanager
def building(allowed: bool) -> Iterator[None]:
    """Whether what runs inside may build models."""
    token = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(token)


def model_from_modules(
    config: Mapping[str, Any], why: UnknownArchitecture, folder: Path | None = None
) -> ImportedModel:
    """The model that transformers builds from a config, read from its modules.

    why: the readers' refusal.  folder: the model's own folder, whose code is run.
    Raises UnknownArchitecture; without transformers installed, with the command to install it;
    NotBuilt where `building` forbids it.
    """
    others = OTHER_FILES.keys() - MODELS
    if not isinstance(config.get("model_type"), str) or any(config.get(key) for key in others):
        raise why
    if not _allowed.get():
        reason = f"no reader for it, and nothing builds it here (see {SETTING})"
        raise NotBuilt(_refused(why, reason).problems)
    if find_spec("transformers") is None or find_spec("torch") is None:
        raise _refused(why, f"no reader for it here; with transformers it is built: {INSTALL}")
    for key in LAYER_COUNTS:
        count = config.get(key)
        if isinstance(count, int | float) and not count <= MOST_LAYERS:
            problem = Problem(f"/{key}", f"at most {MOST_LAYERS:,} layers", short_text(count))
            raise UnknownArchitecture((problem,))
    found = json.loads(_answer(json.dumps(dict(config), sort_keys=True), str(folder or "")))
    if "refused" in found:
        raise _refused(why, found["refused"])
    try:
        model = ModelSpec.model_validate(
            {**found["model"], "name": own_name(config, str(config["model_type"])[:200])}
        )
    except ValidationError as error:
        raise _refused(why, str(error.errors()[0]["msg"])) from error
    return ImportedModel(model, found["architecture"], _notes(found), ())


def _refused(why: UnknownArchitecture, reason: str) -> UnknownArchitecture:
    if not why.problems:
        return UnknownArchitecture((Problem("/model_type", reason),))
    first, *rest = why.problems
    message = f"{first.message}: {reason}"
    return UnknownArchitecture((first._replace(message=message), *rest))


def _notes(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Notes on the modules matched exactly, approximately and not at all."""
    exact, approximate = ", ".join(found["exact"]), ", ".join(found["approximate"])
    notes = [f"layers: read from the modules that transformers {found['version']} builds"]
    if exact:
        notes.append(f"layers: matched exactly: {exact}")
    if approximate:
        notes.append(
            f"layers: matched approximately: {approximate} (FLOP of their matrices and parameters "
            "are counted, what runs between them is not)"
        )
    outside = found["model"].get("other_parameters", 0)
    if outside:
        places = ", ".join(found["left"][:6])
        notes.append(f"other_parameters: {outside:,} are counted and not matched, in {places}")
    return tuple(notes)


@lru_cache(maxsize=64)
def _answer(config: str, folder: str) -> str:
    """The output of the inspecting process: a model, or why there is none."""
    process = subprocess.Popen(
        [sys.executable, "-m", "planner.huggingface.module_inspection", str(os.getpid())],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
    )  # fmt: skip
    asked = json.dumps({"config": json.loads(config), "folder": folder or None})
    try:
        answer, _ = process.communicate(asked, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        answer = ""
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode or not answer:
        return json.dumps({"refused": "its model takes too long or too much memory to build"})
    return answer
