"""A model as it was read: `planner model`, POST /v1/models/import."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cost_models.layers import layers_of
from cost_models.parameters import active_parameters, total_parameters
from cost_models.spec import ModelSpec
from planner.documents.plan_report import Document
from planner.documents.problems import refuse
from planner.inputs.requests.models import import_model, is_config, parse_model


class ModelAnswer(Document):
    """A model, how large it is, and what its document did not say.

    title: what it was read as; layers: how many of each kind; guessed: a sentence for each value
    that was not stated; warnings: one for each stated value that plans ignore.
    """

    title: str
    model: ModelSpec
    parameters: int
    active_parameters: int
    layers: dict[str, int]
    guessed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def imported(config: Any) -> ModelAnswer:
    """A Hugging Face config.json.  Raises RequestError."""
    result = import_model(config)
    title = result.architecture.removesuffix("ForCausalLM").removesuffix("ForConditionalGeneration")
    return _answer(title, result.model, result.guessed, result.left_out)


def with_own_code(config: Any, folder: Path) -> ModelAnswer:
    """A config.json whose model the code beside it builds; that code is run.

    Raises RequestError.
    """
    if not folder.is_dir():
        raise refuse(
            "/model", "not_a_folder", "--trust-remote-code needs a model's folder", str(folder)
        )
    result = import_model(config, folder)
    return _answer(result.architecture, result.model, result.guessed, result.left_out)


def described(value: Any) -> ModelAnswer:
    """A model as a request has it: a preset's name, its dims, or a config.json."""
    if isinstance(value, Mapping) and is_config(value):
        return imported(value)
    model, guessed = parse_model(value)
    return _answer(model.name, model, guessed)


def spelled_out(value: Any) -> dict[str, Any]:
    """A model as a document, also where it is a preset's name.  Raises RequestError."""
    if isinstance(value, Mapping):
        return dict(value)
    return parse_model(value)[0].model_dump(mode="json", exclude_none=True)


def _answer(
    title: str, model: ModelSpec, guessed: tuple[str, ...] = (), warnings: tuple[str, ...] = ()
) -> ModelAnswer:
    return ModelAnswer(
        title=title,
        model=model,
        parameters=total_parameters(model),
        active_parameters=active_parameters(model),
        layers=layers_of(model).by_title,
        guessed=guessed,
        warnings=warnings,
    )
