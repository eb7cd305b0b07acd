"""JSON and TOML files beside a script: their values, or the place where they break."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from cost_models.spec import ModelSpec
from planner.documents.loading import parse_json
from planner.documents.problems import RequestError
from planner.frameworks.read_results import Unreadable
from planner.huggingface import ModelImportError, model_from_config

# The place in a message of tomllib or of planner.documents.loading, at its end.
_PLACE = re.compile(r" \((?:at )?line (\d+), (column \d+)\)$")
_AT_END = " (at end of document)"


def json_value(text: str, name: str) -> Any:
    """The value of a JSON file, within the limits of planner.documents.loading.

    Raises Unreadable with the line and column at which it breaks, and what was expected there.
    """
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        said = f"is not JSON: {error.msg} (column {error.colno})"
        raise Unreadable(said, name, error.lineno) from None
    except RequestError as error:
        raise not_loaded(error, name) from None


def toml_table(text: str, name: str) -> dict[str, Any]:
    """The table of a TOML file; raises Unreadable with the line and column at which it breaks."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        said, line = _with_line(str(error))
        if said.endswith(_AT_END):
            line = len(text.splitlines())
        raise Unreadable(f"is not TOML: {said}", name, line) from None
    except (ValueError, RecursionError):
        raise Unreadable("is not TOML: a number or a nesting is too long", name) from None


def not_loaded(error: RequestError, name: str) -> Unreadable:
    """The error of a file that planner.documents.loading refuses."""
    found = error.problems[0]
    said, line = _with_line(found.detail)
    key = found.pointer.strip("/").replace("/", ".")
    return Unreadable(f"{key}: {said}" if key else said, name, line)


def _with_line(said: str) -> tuple[str, int]:
    """A message with the column alone of its place, and the line; 0 where it names none."""
    place = _PLACE.search(said)
    return (f"{said[: place.start()]} ({place[2]})", int(place[1])) if place else (said, 0)


def model_of_config(files: Mapping[str, str], name: str) -> ModelSpec:
    """The model of a Hugging Face config.json among the files; raises Unreadable."""
    document = json_value(files[name], name)
    try:
        return model_from_config(document, "custom").model
    except (ModelImportError, RequestError, ValueError) as error:
        raise Unreadable(f"holds no model: {error}", name) from None
