"""Files of strangers: each row gets a prediction or a reason, each file an answer or a refusal."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.text import Text

from planner import cli
from planner.documents.problems import RequestError
from planner.evidence.published_runs.runs import (
    DECIMALS,
    FLAGS,
    INTEGERS,
    MAX_BYTES,
    PUBLISHED_RUNS,
    REQUIRED,
    count_runs,
    read_runs,
    runs_in,
)
from planner.learning.accuracy.compute import answer_of
from planner.learning.accuracy.predict import predict
from planner.presentation.drawing.accuracy_page import page
from planner.presentation.terminal.accuracy_screen import accuracy_screen, rows_screen
from planner.presentation.terminal.output import Screen
from tests.fixtures.tiers import examples
from tests.planner.learning.accuracy.drawn_runs import ROW, written

EVIL = '<script>alert(1)</script>"\'&[bold]\x1b[31m\x00\u202e=HYPERLINK("x")'
NUMBERS = (
    "0", "1", "2", "3", "5", "7", "8", "16", "100", "4096", "99999", "1000000", "1000000000", "1e9",
    "1e300", "1e-300", "nan", "inf", "-inf", "-1", "-5", "1.5", "1_000", "0x10", "١٢", "true",
)  # fmt: skip
WORDS = (
    *NUMBERS, "", " ", EVIL, "=1+1", "a" * 3000, "full", "selective", "1F1B", "interleaved",
    "dualpipe", "zb-v", "hanayo", "gpipe", "looped", "2bw", "H100", "B200", "A100 PCIe", "V100",
    "gb200 nvl72", "megatron", "torchtitan", "deepspeed", "fp8", "fp4", "fp16", "etp 0", "etp 4",
    "head dim 0", "head dim 99999999999999999999", "mla (q_lora 0, kv_lora 0, qk 0+0, v 0)",
    "mla (q_lora none, kv_lora 512, qk 128+64, v 128)", "3 shared experts (0)",
    "99999999999999999999 shared experts", "dense_layers=99999999999999999999",
    "0 gb/s per gpu", "99999999999999999999x 400gb/s", "0x 200gb/s", "LAYER_MICROBENCH", "gpt",
    "mixtral-8x7b", "deepseek-v3", "\ud7ff", "\x00", "\u202e", "\n",
)  # fmt: skip
with PUBLISHED_RUNS.open(newline="", encoding="utf-8") as _file:
    SHIPPED = list(csv.DictReader(_file))
NUMERIC = st.sampled_from([*INTEGERS, *FLAGS, *DECIMALS])
CHANGES = st.lists(
    st.one_of(
        st.tuples(NUMERIC, st.one_of(st.sampled_from(NUMBERS), st.floats().map(str))),
        st.tuples(st.sampled_from(list(SHIPPED[0])), st.sampled_from(WORDS)),
        st.tuples(st.sampled_from(list(SHIPPED[0])), st.text(max_size=40)),
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.slow
@pytest.mark.filterwarnings("error::RuntimeWarning")
@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
@given(row=st.sampled_from(SHIPPED), changes=CHANGES)
def test_every_row_has_a_prediction_or_a_reason(
    tmp_path: Path, row: dict[str, str], changes: list[tuple[str, str]]
) -> None:
    path = tmp_path / "runs.csv"
    changed = {**row, **dict(changes)}
    with path.open("w", newline="", encoding="utf-8", errors="replace") as file:
        writer = csv.DictWriter(file, list(changed))
        writer.writeheader()
        writer.writerow(changed)
    try:
        runs = read_runs(path)
    except RequestError:  # a lone carriage return or the like
        return
    for run in runs:
        found = predict(run)
        assert bool(found.reason) == (found.iteration_time_s is None)
        if found.iteration_time_s is not None:
            assert math.isfinite(found.iteration_time_s)
            assert found.iteration_time_s > 0
    answer = answer_of(path.name, map(predict, runs))
    assert len(answer.rows) == len(runs)
    text = answer.model_dump_json()
    json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert "\x00" not in page(answer)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no column id"),
        (b"\xff\xfe\x00", "no CSV file"),
        (b"id,gpu,n_gpus,model\n1,2,3,4\n", "no column seq_len"),
        (b"id,gpu,n_gpus,model,seq_len\n", "has no rows"),
        (b"id,gpu,n_gpus,model,seq_len,id\n1,2,3,4,5,6\n", "the column id twice"),
        (b'id,gpu,n_gpus,model,seq_len\n"' + b"a" * 200_000 + b'",2,3,4,5\n', "no CSV file"),
        (b"id,gpu,n_gpus,model,seq_len\n1,2,3,4,5\n\xff,2,3,4,5\n", "no CSV file"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, says: str
) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    assert cli.run(["accuracy", "--data", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert cli.run(["accuracy", "--json", "--data", str(path)]) == 2
    assert says in json.loads(capsys.readouterr().out)["errors"][0]["detail"]


def test_what_is_no_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in (tmp_path, tmp_path / "none.csv", Path("/dev/zero")):
        assert cli.run(["accuracy", "--data", str(place)]) == 2
        assert "cannot read" in capsys.readouterr().err
    large = tmp_path / "large.csv"
    with large.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert cli.run(["accuracy", "--data", str(large)]) == 2
    assert "64 MiB" in capsys.readouterr().err


def test_too_many_rows_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(",".join(REQUIRED) + "\n" + "1,2,3,4,5\n" * 100_001, encoding="utf-8")
    with pytest.raises(RequestError, match="100,000 rows"):
        count_runs(path)


def test_rows_are_read_one_by_one(tmp_path: Path) -> None:
    """A reader may stop early; the rest of the file is not even looked at."""
    path = tmp_path / "runs.csv"
    path.write_bytes(",".join(REQUIRED).encode() + b"\n1,2,3,4,5\n" + b"x" * 2**20 + b"\n\xff")
    assert next(runs_in(path)).id == "1"


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (column, value)
        for column in sorted({*INTEGERS, *DECIMALS, *FLAGS} & {*ROW})
        for value in ("inf", "-1", "x", *(["1e300"] if column not in FLAGS else []))
    ],
)
def test_a_number_that_is_none_is_the_reason(tmp_path: Path, column: str, value: str) -> None:
    (run,) = read_runs(written(tmp_path / "runs.csv", [{**ROW, column: value}]))
    assert column in predict(run).reason


def test_texts_of_the_file_stay_texts(tmp_path: Path) -> None:
    rows = [
        {**ROW, "id": EVIL, "source_key": EVIL, "stack": EVIL, "confidence": EVIL},
        {**ROW, "id": f"{EVIL}2", "model": EVIL, "gpu": f"H100 {EVIL}", "config_group": EVIL},
        {**ROW, "id": f"{EVIL}3", "gpu": EVIL},
        {**ROW, "id": f"{EVIL}4", "source_key": EVIL, "micro_batch": "", "recompute": ""},
    ]
    path = written(tmp_path / f"{EVIL.replace('/', '').replace(chr(0), '')}.csv", rows)
    answer = answer_of(path.name, map(predict, read_runs(path)))
    assert {row.table for row in answer.rows} >= {"scored", "not_predicted", "open"}

    class Elements(HTMLParser):
        found: ClassVar[set[str]] = set()

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            self.found.add(tag)
            assert not any(name.startswith("on") for name, _ in attrs)

    drawn = page(answer)
    Elements().feed(drawn)
    assert "script" not in Elements.found
    assert {"svg", "table", "main"} <= Elements.found
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e]", drawn)
    assert "http" not in drawn.replace('xmlns="http://www.w3.org/2000/svg"', "")

    screen = Screen()
    screen.file = printed = io.StringIO()
    screen.print(accuracy_screen(answer, screen))
    for line in rows_screen(answer):
        assert isinstance(line, Text)
        screen.print(line)
    assert "[bold]" in printed.getvalue()
    assert not re.search(r"[\x00\x1b\u202e]", printed.getvalue())
