"""From what a user writes as the model to its spec: a preset, dims, a Hugging Face file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cost_models.catalog.names import UnknownName
from cost_models.spec import ModelSpec
from planner.documents.loading import CONFIG_MARKS, plain
from planner.documents.problems import Problem, RequestError
from planner.documents.typed_values import looked_up, require_object, validate
from planner.huggingface import (
    FAMILIES,
    ImportedModel,
    ModelImportError,
    NotBuilt,
    UnknownArchitecture,
    model_from_config,
    model_from_modules,
    named_models,
)
from planner.huggingface.importer import OTHER_FILES

NOT_BUILT = "not_built"  # code of a model that could be built, where none is to be
_CONFIG_MARKS = CONFIG_MARKS | OTHER_FILES.keys()


class UnsupportedModel(RequestError):
    """A file that is not the config.json of a model that can be planned."""


def parse_model(value: Any) -> tuple[ModelSpec, tuple[str, ...]]:
    """A model, and what its document did not state and was guessed.

    value: the name of a preset or of its fine-tuned copy on the hub, the fields of ModelSpec, or a
    Hugging Face configuration.
    Raises RequestError; its pointers begin with /model.
    """
    if isinstance(value, str):
        notes: list[str] = []
        return looked_up("/model", lambda: _named(value, notes)), tuple(notes)
    value = plain(value, "/model")
    require_object("/model", value, "a preset's name or an object")
    if not is_config(value):
        return validate("/model", value, ModelSpec), ()
    try:
        imported = import_model(value)
    except RequestError as error:
        raise error.under("/model") from None
    return imported.model, imported.notes


def _named(name: str, notes: list[str]) -> ModelSpec:
    try:
        return named_models.find(name, notes)
    except UnknownName as error:  # of its last part
        raise UnknownName(error.kind, name, error.nearest, error.known) from None


def import_model(config: Any, folder: Path | None = None) -> ImportedModel:
    """The model of a Hugging Face config.json.  Raises RequestError.

    A family without a reader is built by transformers, where it is installed; folder: by the code
    in it.
    """
    document = plain(config)
    try:
        if folder is not None:
            return model_from_modules(document, UnknownArchitecture(()), folder)
        try:
            return model_from_config(document)
        except UnknownArchitecture as unknown:
            if not isinstance(document, dict):
                raise
            return model_from_modules(document, unknown)
    except ModelImportError as error:
        raise _import_error(error) from None


def is_config(value: Mapping[str, Any]) -> bool:
    """Whether this is a Hugging Face file, of whatever kind, rather than a ModelSpec."""
    return not _CONFIG_MARKS.isdisjoint(value)


def _import_error(error: ModelImportError) -> RequestError:
    kind = UnsupportedModel if isinstance(error, UnknownArchitecture) else RequestError
    code = NOT_BUILT if isinstance(error, NotBuilt) else "not_importable"
    return kind(
        Problem(
            pointer=problem.pointer,
            code=code,
            detail=f"{problem.message}, got {problem.got}" if problem.got else problem.message,
            allowed=tuple(FAMILIES) if kind is UnsupportedModel else (),
            did_you_mean=problem.did_you_mean,
        )
        for problem in error.problems
    )
