"""Text from strangers: read within bounds, or refused at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.documents.loading import (
    MAX_BYTES,
    MAX_DEPTH,
    load_document,
    parse_json,
    parse_text,
    plain,
    scalar,
)
from planner.documents.problems import RequestError
from tests.fixtures.call_bound import bounded_work

BILLION_LAUGHS = "a0: &a0 [x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)
BAD_TEXTS = {
    "empty": ("", "wrong_type"),
    "blank": (" \n\n", "wrong_type"),
    "comment": ("# nothing\n", "wrong_type"),
    "list": ("[1, 2]", "wrong_type"),
    "word": ("hello", "wrong_type"),
    "broken json": ('{"model": ', "malformed"),
    "broken yaml": ("model: [a\n", "malformed"),
    "tab": ("model:\n\t- x", "malformed"),
    "two documents": ("a: 1\n---\nb: 2\n", "malformed"),
    "tag": ("a: !!python/object/apply:os.system [ls]\n", "malformed"),
    "scalar tag": ("a: !!python/name:os.system x\n", "malformed"),
    "no anchor": ("a: *b\n", "malformed"),
    "list key": ("? [a]\n: 1\n", "wrong_type"),
    "control character": ("a: \x00\n", "malformed"),
    "yaml bomb": (BILLION_LAUGHS, "too_large"),
    "self reference": ("a: &a [*a]\n", "malformed"),
    "deep json": ('{"a":' * 200_000 + "1" + "}" * 200_000, "too_large"),
    "deep json below the limit": ('{"a":' * 5_000 + "1" + "}" * 5_000, "too_deep"),
    "deep yaml": ("a: " + "[" * 5_000, "too_deep"),
    "deep blocks": ("\n".join(" " * i + "a:" for i in range(MAX_DEPTH + 5)), "too_deep"),
    "wide json": (json.dumps({"a": list(range(30_000))}), "too_large"),
    "wide yaml": ("a: [" + "1," * 30_000 + "1]", "too_large"),
    "digit bomb": ('{"a": ' + "9" * 900_000 + "}", "too_large"),
    "digit bomb in yaml": ("a: " + "9" * 900_000, "too_large"),
    "huge integer": ('{"a": 1' + "0" * 41 + "}", "too_large"),
    "long string": (json.dumps({"a": "x" * 20_000}), "too_large"),
    "half a pair": ('{"a": ["\\ud800"]}', "not_text"),
    "half a pair in a key": ('{"\\ud800": 1}', "not_text"),
    "NaN": ('{"a": NaN}', "not_finite"),
    "yaml nan": ("a: .nan", "not_finite"),
    "infinity": ('{"a": [-Infinity]}', "not_finite"),
    "overflow": ("a: 1e999", "not_finite"),
    "duplicate key": ('{"a": 1, "a": 2}', "duplicate_key"),
    "duplicate yaml key": ("b:\n  a: 1\n  a: 2\n", "duplicate_key"),
}


@pytest.mark.parametrize(("text", "code"), BAD_TEXTS.values(), ids=BAD_TEXTS)
def test_bad_text_is_refused_at_once(text: str, code: str, tmp_path: Path) -> None:
    path = tmp_path / "request.yaml"
    path.write_bytes(text.encode())
    with bounded_work(), pytest.raises(RequestError) as caught:
        load_document(path)
    (problem,) = caught.value.problems
    assert problem.code == code
    assert len(str(problem)) < 300


def test_problem_has_the_place() -> None:
    with pytest.raises(RequestError) as caught:
        parse_text("training:\n  x: [1, .inf]\n")
    assert caught.value.problems[0].pointer == "/training/x/1"


def test_a_config_may_hold_what_python_writes() -> None:
    text = (
        '{"model": {"model_type": "mamba2", "limits": [{"to": [0.0, Infinity]}, -Infinity, NaN]}}'
    )
    value = {"model_type": "mamba2", "limits": [{"to": [0.0, "Infinity"]}, "-Infinity", "NaN"]}
    assert parse_text(text) == {"model": value}
    with pytest.raises(RequestError) as caught:
        parse_text('{"model": {"architectures": []}, "training": {"x": NaN}}')
    assert caught.value.problems[0].pointer == "/training/x"


def test_messages_are_true() -> None:
    with pytest.raises(RequestError) as caught:
        parse_text('{"a": ' + "9" * 900_000 + "}")
    assert caught.value.problems[0].got == "an integer of more than 40 digits"


def test_file_faults(tmp_path: Path) -> None:
    (tmp_path / "big.yaml").write_bytes(b"#" * (MAX_BYTES + 1))
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff\n")
    for name, code in {
        "absent.yaml": "no_file",
        ".": "no_file",
        "big.yaml": "too_large",
        "latin.yaml": "not_text",
        "nul\0": "no_file",
        "x" * 5000: "no_file",
    }.items():
        with pytest.raises(RequestError) as caught:
            load_document(str(tmp_path) + "/" + name)
        assert caught.value.problems[0].code == code, name


def test_yaml_and_json_say_the_same() -> None:
    yaml = """
    # a comment
    model: llama-3.1-70b
    cluster: {accelerator: h100-sxm, nodes: 8}
    training:
      seq_length: 8_192
      global_batch_size: 0128
      tokens: 15e12
      flag: no
      quoted: "8"
      absent: ~
      time: 8:30
    """
    assert parse_text(yaml) == {
        "model": "llama-3.1-70b",
        "cluster": {"accelerator": "h100-sxm", "nodes": 8},
        "training": {
            "seq_length": 8192,
            "global_batch_size": 128,
            "tokens": 15e12,
            "flag": "no",
            "quoted": "8",
            "absent": None,
            "time": "8:30",
        },
    }
    document = {"a": [1, -2.5e-3, "x\u00e9", True, None, {"b": []}], "c": 10**40}
    assert parse_text(json.dumps(document, indent="\t")) == document
    assert parse_text("\ufeff".encode().decode("utf-8-sig") + json.dumps(document)) == document


def test_alias_is_what_it_stands_for() -> None:
    assert parse_text("a: &x {b: 1}\nc: [*x, *x]\n") == {"a": {"b": 1}, "c": [{"b": 1}, {"b": 1}]}


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), ("-3", -3), ("1e3", 1000.0), ("true", True), ("null", None), ("1f1b", "1f1b")],
)
def test_scalar(text: str, value: object) -> None:
    result = scalar(text)
    assert result == value
    assert type(result) is type(value)


def test_not_json_at_all() -> None:
    with pytest.raises(json.JSONDecodeError):
        parse_json(b"{'a': 1}")
    with pytest.raises(UnicodeDecodeError):
        parse_json(b'{"a": "\xff"}')


def test_plain_takes_python_data() -> None:
    assert plain({"a": (1, [2])}) == {"a": [1, [2]]}
    looped: list[object] = []
    looped.append(looped)
    for value, code in ((looped, "too_deep"), ({1: 2}, "wrong_type"), ({"a": {1}}, "wrong_type")):
        with pytest.raises(RequestError) as caught:
            plain(value)
        assert caught.value.problems[0].code == code


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: !!float 1e-6\n", 1e-6),
        ("a: !!float 3\n", 3.0),
        ("a: !!int 8\n", 8),
        ("a: !!bool true\n", True),
        ("a: !!str 010\n", "010"),
        ('a: !!float "2.5"\n', 2.5),
    ],
)
def test_tags_that_say_what_a_plain_value_is(text: str, value: object) -> None:
    found = parse_text(text)["a"]
    assert (found, type(found)) == (value, type(value))
