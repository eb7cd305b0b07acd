"""Models that a launch gives by name only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cost_models.catalog import models
from cost_models.catalog.names import UnknownName
from cost_models.spec import ModelSpec
from planner.documents.loading import parse_json
from planner.documents.problems import RequestError
from planner.frameworks.read_results import Unreadable
from planner.huggingface import ModelImportError, model_from_config

# Suffixes of releases that have the same shape as the model without them.
_SUFFIX = re.compile(r"(-(instruct|base|chat|hf|it|pt|bf16|thinking|v0\.[12]|\d{4}))+$")

# Models with the shape of their base models: Qwen2.5-Coder (arXiv:2409.12186, section 2),
# Qwen2.5-Math (arXiv:2409.12122, section 2),
# DeepSeek-R1's distillations (arXiv:2501.12948, section 2.4) except those of Qwen2.5-Math, Vicuna
# by the table of FastChat's docs/vicuna_weights_version.md.
_SAME_SHAPE = (
    (re.compile(r"^vicuna-(7b|13b)-v1\.5(-16k)?$"), r"llama-2-\1"),
    (re.compile(r"^qwen2\.5-(coder|math)-"), "qwen2.5-"),
    (re.compile(r"^deepseek-r1-distill-qwen-(?=14b|32b)"), "qwen2.5-"),
    (re.compile(r"^deepseek-r1-distill-llama-"), "llama-3.1-"),
)
_MULTIMODAL = re.compile(r"(^|[-_])(vl|omni)([-_]|$)", re.IGNORECASE)


# Families without a decoder, or whose decoder reads an encoder's output.
_ENCODERS = re.compile(
    r"(^|[-_/])(flan-?t5|[mb]?yt5|u?m?t5(gemma)?|m?bart|pegasus|ul2|(modern|distil|al|de|xlm-?ro|ro)?"
    r"bert(a|-a)?|electra|whisper)([-_.v\d]|$)",
    re.IGNORECASE,
)


def is_encoder(name: str) -> bool:
    """Whether a model of that name is an encoder, or has one, by its family."""
    return bool(_ENCODERS.search(name))


def left_out(name: str) -> list[str]:
    """A sentence if the preset of that name leaves out the model's image encoder."""
    if not _MULTIMODAL.search(name):
        return []
    return [f"only the language model of {name} is costed, without its image encoder"]


def find(name: str) -> ModelSpec:
    """The preset of a name or a folder, whatever separates its words.  Raises UnknownName."""
    name = name.rstrip("/").replace("___", ".")  # ModelScope's folders have no dot
    tried = (name, name.rsplit("/", 1)[-1], name.replace("_", "-"))
    released = _SUFFIX.sub("", tried[1].lower().removeprefix("meta-"))
    for pattern, shape in _SAME_SHAPE:
        released = pattern.sub(shape, released)
    for one in (*tried, released):
        try:
            return models.model(one)
        except UnknownName as error:
            last = error
    bare = {_bare(name), _bare(released)}
    for entry in models.models():
        if any(_bare(one.rsplit("/", 1)[-1]) in bare for one in (entry.id, *entry.aliases)):
            return entry.spec
    raise last


def _bare(name: str) -> str:
    """The name in lower case, without the separators of its words."""
    return re.sub(r"[-_ ]", "", name.lower())


def of_config(files: Mapping[str, str], name: str) -> ModelSpec:
    """The model of a Hugging Face config.json among the files; raises Unreadable."""
    try:
        document: Any = parse_json(files[name])
        return model_from_config(document, "custom").model
    except (ModelImportError, RequestError, ValueError) as error:
        raise Unreadable(f"holds no model: {error}", name) from None
