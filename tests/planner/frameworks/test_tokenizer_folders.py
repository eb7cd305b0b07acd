"""Folders of tokenizers: a name of its own says that its vocabulary is another one."""

from __future__ import annotations

import pytest

from planner.frameworks.tokenizers import has_own_folder


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/data/europa-tokenizer/vocab.json", True),
        ("hindi_vocab/merges.txt", True),
        ("/data/bpe-tokenizer/vocab.json", False),
        ("my_tokenizer/vocab.json", False),
        ("sentencepiece_tokenizer/tokenizer.model", False),
        ("the_tokenizers/vocab.json", False),
        ("gpt2-vocab/vocab.json", False),
        ("/data/vocab.json", False),
    ],
)
def test_a_folder_of_a_tokenizer_of_its_own(path: str, own: bool) -> None:
    assert has_own_folder(path) == own
