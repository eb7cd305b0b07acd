"""Numbers as people write them: the same on the command line, in YAML and over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cost_models.spec import NodeGroup
from planner import cli
from planner.answers.sizing.request import parse_sizing
from planner.documents.loading import parse_text
from planner.documents.numbers import number
from planner.documents.problems import RequestError
from planner.documents.typed_values import check_field
from planner.inputs.requests.parser import parse_request

ASKED: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": "1x8xh100-sxm"}


@pytest.mark.parametrize(
    ("text", "length", "expected"),
    [
        ("8k", True, 8192),
        ("8K", True, 8192),
        ("1m", True, 2**20),
        ("1.5k", True, 1536),
        ("15T", False, 15 * 10**12),
        ("1.5 B", False, 1_500_000_000),
        ("300M", False, 300_000_000),
        ("8k", False, 8000),
        ("8,192", True, 8192),
        ("1_000_000", False, 1_000_000),
        ("15T", True, None),
        ("8192", True, None),
        ("1,2", False, None),
        ("8,19", False, None),
        ("k", True, None),
        ("8kk", True, None),
        ("-8k", True, None),
        ("\u0668k", True, None),
        ("1" * 400 + "k", True, None),
    ],
)
def test_number(text: str, length: bool, expected: float | None) -> None:
    assert number(text, length=length) == expected


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_request_takes_them(form: str) -> None:
    training = {"seq_length": "8k", "global_batch_size": "1k", "tokens": "15T"}
    asked: Any = {**ASKED, "training": training}
    if form == "yaml":
        asked = parse_text(
            "{model: llama-3.1-8b, cluster: 1x8xh100-sxm, training: "
            "{seq_length: 8k, global_batch_size: 1_024, tokens: 15T}}"
        )
    found = parse_request(asked).training
    assert (found.seq_length, found.global_batch_size, found.tokens) == (8192, 1024, 15e12)


def test_the_command_line_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--seq-length 4k --global-batch-size 64 --tokens 1.5T --tp 1 --pp 1 --cp 1 --json"
    options = [f"--{name}={value}" for name, value in ASKED.items()]
    assert cli.run(["plan", *options, *words.split()]) == 0
    training = json.loads(capsys.readouterr().out)["request"]["training"]
    assert (training["seq_length"], training["tokens"]) == (4096, 1.5e12)


def test_sizing_takes_them() -> None:
    asked = {
        "model": "llama-3.1-8b",
        "sizing": {"deadline_days": 30, "budget_usd": "2.5M"},
        "training": {"seq_length": "8k", "global_batch_size": "1k", "tokens": "1T"},
    }
    assert parse_sizing(asked).sizing.budget_usd == 2_500_000
    assert check_field("/nodes", NodeGroup, "nodes", "1k") == 1000


@pytest.mark.parametrize(
    ("name", "text"),
    [("seq_length", "8q"), ("seq_length", "4096"), ("seq_length", "15T"), ("precision", "8k")],
)
def test_other_text_is_no_number(name: str, text: str) -> None:
    training = {"seq_length": 8192, "global_batch_size": 64, name: text}
    with pytest.raises(RequestError) as caught:
        parse_request({**ASKED, "training": training})
    assert [problem.pointer for problem in caught.value.problems] == [f"/training/{name}"]
