"""Vocabulary sizes of tokenizers by kind, by name, or by a path that ends in the name.

Sizes are the embedding rows in the published config.json of a model with the tokenizer, or else
come from the tokenizer's own files.
"""

from __future__ import annotations

import re

from cost_models.catalog import models
from cost_models.catalog.names import UnknownName
from cost_models.package_files import table

# Tokenizer types of Megatron-LM, Megatron-DeepSpeed and GPT-NeoX with a fixed vocabulary.
_TABLE = table("planner.frameworks", "tokenizers.json")
KINDS: dict[str, int] = _TABLE["kinds"]
# Pattern of a lower-case name or path -> tokens; the first match counts, so newer versions of a
# family come first.
_NAMES: list[tuple[str, int]] = _TABLE["names"]


_USUAL = re.compile(r"(?i)(tokenizer|vocab|merges?|gpt2?-\w+|spm|sentencepiece|\w*hf)?(\.\w+)?")

# A folder of a tokenizer with a name of its own (europa-tokenizer), not of its kind or its place.
_OF_ITS_OWN = re.compile(
    r"(?i)(?!(bpe|gpt2?|hf|my|our|own|the|new|base|data|model|megatron|llama|sentencepiece|spm|"
    r"wordpiece|text|train|trained|custom|shared)[_-]?(tokenizer|vocab))"
    r"[a-z0-9]{3,}[_-]?(tokenizer|vocab(ulary)?)s?"
)


def tokenizer_tokens(text: str) -> int | None:
    """Vocabulary size of the tokenizer in a name or path; None if it is unknown."""
    parts = [part for part in text.rstrip("/").split("/") if part]
    for part in (text, "/".join(parts[-2:]), *parts[-1:]):
        try:
            return models.model(part).vocab_size
        except UnknownName:
            continue
    # The last part of a path that matches is the most specific.
    for part in reversed(parts):
        for pattern, size in _NAMES:
            if re.search(pattern, part.lower()):
                return size
    return next(filter(None, map(_stated, reversed(parts))), None)


def weights_of_more(hidden: int) -> str:
    """What a vocabulary that is not known changes, for a model of that hidden size."""
    return f"every 10,000 tokens are {1e4 * hidden / 1e6:.3g} million weights a matrix"


def is_general(text: str) -> bool:
    """Whether a path only has a usual name of a tokenizer's file, or leaves it open."""
    return not text or "$" in text or bool(_USUAL.fullmatch(text.rstrip("/").rsplit("/", 1)[-1]))


def has_own_folder(text: str) -> bool:
    """Whether a folder of a path is named as a tokenizer of its own: europa-tokenizer/."""
    return any(map(_OF_ITS_OWN.fullmatch, text.split("/")[:-1]))


def _stated(part: str) -> int | None:
    """The size that the name of a tokenizer states, such as tokenizer_131072 or tokenizer-100k."""
    if not re.search(r"token|vocab|spm|bpe|sentencepiece", part.lower()):
        return None
    whole = re.search(r"(?<![\d.])(\d{5,6})(?![\d.]|\w*\.\d)", part)
    thousands = re.search(r"(?<![\w.])(?:vs)?(\d{2,3})k(?![a-z0-9])", part.lower())
    if whole:
        return int(whole[1])
    return 1000 * int(thousands[1]) if thousands else None
