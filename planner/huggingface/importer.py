"""Reads a config.json into a ModelSpec: finds its family, or reports why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from cost_models.blocks.attention import Attention
from cost_models.blocks.base import Sublayer
from cost_models.blocks.experts import Experts
from cost_models.blocks.mlp import MLP
from cost_models.package_files import table
from cost_models.parameters import total_parameters
from cost_models.spec import ModelSpec
from planner.huggingface.config import (
    Config,
    ModelImportError,
    Problem,
    UnknownArchitecture,
    nearest,
    short_text,
)
from planner.huggingface.families import registry
from planner.huggingface.families.registry import FAMILIES, TEXT_MODELS, WRAPPERS
from planner.huggingface.families.rows import Fields
from planner.huggingface.numerics import numerics


@dataclass(frozen=True)
class ImportedModel:
    """A model read from a config.json, and the architecture of the family that read it.

    guessed: a sentence for each value that the file does not state; left_out: one for each value
    that it states and the plan ignores.
    """

    model: ModelSpec
    architecture: str
    guessed: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        return self.guessed + self.left_out


# Files found next to a config.json, and models that cannot be read, by a key that tells them apart.
OTHER_FILES: dict[str, str] = table("planner.huggingface", "other_files.json")
# Keys of models from which transformers may still build a text-generating model.
MODELS = frozenset({"is_encoder_decoder", "vision_config", "image_size"})
MOST_PARAMETERS = 2**53


def model_from_config(config: object, name: str | None = None) -> ImportedModel:
    """The model that a Hugging Face config.json describes.

    Raises ModelImportError with all of its faults.  name: of the spec; None: the name in the file,
    or its family.
    """
    if not isinstance(config, Mapping):
        raise UnknownArchitecture((Problem("", "a config.json is an object", short_text(config)),))
    kind = config.get("model_type")
    wrapper = WRAPPERS.get(kind) if isinstance(kind, str) else None
    reader = _reader(config) if wrapper is None else _wrapped(config, wrapper)
    fields = FAMILIES[reader.family].read(reader)
    fields["numerics"] = numerics(reader, fields)
    _check_rest(reader)
    if wrapper is not None and wrapper.encoder is not None:
        fields |= _encoders(config, reader, wrapper.encoder, fields["hidden_size"])
    if reader.problems:
        raise ModelImportError(tuple(reader.problems))
    named = wrapper if wrapper is not None and wrapper.encoder is not None else None
    architecture = (named or FAMILIES[reader.family]).architectures[0]
    model = _model({**fields, "name": name or own_name(config, reader.family)})
    return ImportedModel(model, architecture, tuple(reader.guessed), tuple(reader.left_out))


def _encoders(
    config: Mapping[str, Any],
    text: Config,
    read: Callable[[Config, Config, int], Fields],
    hidden: int,
) -> Fields:
    """The image encoder; its faults and guesses are added to those of the text reader."""
    kind = str(config["model_type"])
    if kind in registry.NO_IMAGES and config.get("vision_config") is None:
        return {}
    whole = Config(config, kind)
    whole.problems, whole.guessed, whole.left_out = text.problems, text.guessed, text.left_out
    encoder = read(whole.nested("vision_config"), whole, hidden)
    return {"encoders": [encoder]}


def _reader(config: Mapping[str, Any]) -> Config:
    """A reader for the family that the file names; raises UnknownArchitecture if there is none."""
    if config.get("peft_type") is not None:
        raise UnknownArchitecture((Problem("/peft_type", f"this is {OTHER_FILES['peft_type']}"),))
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in TEXT_MODELS:
        return _text_reader(config, kind)
    guessed: list[str] = []
    family = _family(config, guessed)
    reader = Config(config, family)
    reader.guessed += guessed
    return reader


def _text_reader(config: Mapping[str, Any], kind: str) -> Config:
    """A reader for the text_config of a vision-language model, given alone."""
    family, defaults = TEXT_MODELS[kind]
    missing = {name: value for name, value in defaults.items() if name not in config}
    reader = Config({**missing, **config}, family)
    reader.guessed.append(f"model_type: {kind} alone, read as {family} with a head")
    for name, value in missing.items():
        reader.guessed.append(f"{name}: not stated, {value} (the default of {kind})")
    return reader


def _wrapped(config: Mapping[str, Any], wrapper: registry.Wrapper) -> Config:
    """A reader for the language model of a model of images and text."""
    text, pointer = _text_of(config, wrapper)
    kind = text.get("model_type")
    known = isinstance(kind, str) and (kind in FAMILIES or kind in TEXT_MODELS)
    found = _family(text, []) if kind is not None and not known else kind or wrapper.text
    family, defaults = TEXT_MODELS.get(found) or registry.TextModel(found, {})
    stated = {name: config[name] for name in config.keys() & {"tie_word_embeddings"}}
    outer = {name: config[name] for name in config.keys() & {"quantization_config"}}
    missing: dict[str, Any] = {"tie_word_embeddings": wrapper.tied, **defaults}
    missing = {key: value for key, value in missing.items() if key not in {**text, **stated}}
    reader = Config({**outer, **missing, **text, **stated}, family, pointer)
    for name, value in missing.items():
        reader.guess(name, value)
    if wrapper.encoder is None:
        reader.left_out.append("vision_config: left out, the language model alone is planned")
    return reader


def _text_of(config: Mapping[str, Any], wrapper: registry.Wrapper) -> tuple[Mapping[str, Any], str]:
    """(the object of the language model, its pointer); older files have its keys at top level."""
    text = config.get("text_config")
    if text is None and wrapper.flat:
        flat = {k: v for k, v in config.items() if k != "architectures"}
        return {**flat, "model_type": wrapper.text}, ""
    if not isinstance(text, Mapping):
        message = f"must be an object: the language model of {config['model_type']}"
        raise ModelImportError((Problem("/text_config", message, short_text(text)),))
    return text, "/text_config"


def _family(config: Mapping[str, Any], guessed: list[str]) -> str:
    """The family by model_type, or by architecture if the model_type is not known."""
    kind = config.get("model_type")
    architectures = config.get("architectures")
    stated = architectures[0] if isinstance(architectures, list) and architectures else None
    by_architecture = (
        registry.FAMILY_OF_ARCHITECTURE.get(stated) if isinstance(stated, str) else None
    )
    if not isinstance(kind, str) or kind not in FAMILIES:
        if by_architecture is None:
            raise UnknownArchitecture((_unknown(config, kind, stated),))
        found = "not stated" if kind is None else f"{short_text(kind)} is not known"
        guessed.append(f"model_type: {found}, {by_architecture} by its architecture")
        return by_architecture
    if stated is None or _is_class_of(kind, str(stated)):
        return kind
    if by_architecture is None and isinstance(stated, str) and stated.endswith("Model"):
        guessed.append(f"architectures: {short_text(stated)} has no head, planned with one")
        return kind
    message = f"is not the language model of model_type {kind!r}"
    expected = FAMILIES[kind].architectures
    raise ModelImportError((Problem("/architectures/0", message, short_text(stated), expected),))


def _is_class_of(kind: str, stated: str) -> bool:
    """Whether a class is that of a family, or of the vision-language model around it."""
    # Releases of transformers spelled classes otherwise, such as LLaMAForCausalLM.
    if stated.lower() in {name.lower() for name in FAMILIES[kind].architectures}:
        return True
    return kind.endswith("_text") and stated.endswith("ForConditionalGeneration")


def _unknown(config: Mapping[str, Any], kind: object, stated: object) -> Problem:
    """The problem to report for a config without a known family."""
    if not config:
        return Problem("", "the object is empty")
    what = next((text for key, text in OTHER_FILES.items() if config.get(key)), None)
    # _name_or_path does not identify the architecture, and may be a local path.
    names = [str(key)[:40] for key in config if key != "_name_or_path"]
    keys = ", ".join(names[:12])
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    found = f"model_type {short_text(kind)}, architectures {short_text(stated)}, keys {keys}{more}"
    message = f"this is {what}" if what else "unknown architecture"
    hints = nearest(kind, [*FAMILIES, *WRAPPERS]) if isinstance(kind, str) else ()
    if not hints and isinstance(stated, str):
        hints = nearest(stated, registry.FAMILY_OF_ARCHITECTURE)
    return Problem("/model_type", f"{message} (found {found})", did_you_mean=hints)


def _check_rest(reader: Config) -> None:
    """Refuse settings that change the model and that no family here supports."""
    reader.require("is_encoder_decoder", False, "only decoders can be planned")
    reader.require("add_cross_attention", False, "only decoders can be planned")
    if reader.data.get("pruned_heads"):
        reader.refuse("pruned_heads", "pruned heads cannot be planned")
    if reader.states("quantization_config"):
        method = reader.nested("quantization_config").data.get("quant_method")
        reader.left_out.append(
            f"quantization_config: {short_text(method)} is how the weights are published, left out"
        )


def own_name(config: Mapping[str, Any], family: str) -> str:
    """The last part of the path that the file was saved from, or its family."""
    path = config.get("_name_or_path")
    last = path.rstrip("/").rsplit("/", 1)[-1] if isinstance(path, str) else ""
    return last[:200] or family


def _model(fields: Fields) -> ModelSpec:
    """The spec; faults that only its validation finds (contradicting values) become problems."""
    windows = fields.pop("windows", None)
    try:
        model = ModelSpec(**fields)
        if windows:
            model = model.model_copy(update={"layer_pattern": _windowed(model, windows)})
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        raise ModelImportError(
            tuple(
                Problem("", "the model's name must be printable, without control characters")
                if fault["loc"] == ("name",)
                else Problem("", fault["msg"].removeprefix("Value error, "))
                for fault in faults
            )
        ) from error
    if total_parameters(model) > MOST_PARAMETERS:
        raise ModelImportError((Problem("", "more parameters than can be counted exactly"),))
    return model


def _windowed(model: ModelSpec, windows: Sequence[int | None]) -> tuple[tuple[Sublayer, ...], ...]:
    """A layer pattern with these windows, one per layer, and the model's feed-forwards."""
    blocks = {"dense": MLP(), "moe": Experts()}
    kinds = zip(windows, model.feed_forwards, strict=True)
    return tuple((Attention(window=window), blocks[kind]) for window, kind in kinds)
