"""Published runs as rows: one CSV with the columns of the catalog's own table.

A field that is blank is None; a field that is no number where one is due is an error of its row,
which is then listed as not predicted.  Nothing is dropped.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.documents.problems import refuse, shown

PUBLISHED_RUNS = Path(__file__).parents[3] / "cost_models" / "catalog" / "published_runs.csv"
REQUIRED = ("id", "gpu", "n_gpus", "model", "seq_len")
INTEGERS = (
    "year", "n_gpus", "gpus_per_node", "layers", "hidden", "heads", "kv_heads", "ffn_hidden",
    "vocab", "seq_len", "experts", "topk", "moe_ffn", "tp", "cp", "pp", "vpp", "ep", "dp",
    "zero_stage", "micro_batch", "global_batch", "lora_rank", "shared_ffn",
)  # fmt: skip
PROBABILITIES = ("dropout",)
FLAGS = (
    "gated", "sp", "distributed_optimizer", "flash_attention", "oom", "compiled",
    "overlap_grad_reduce", "overlap_param_gather", "tp_comm_overlap", "overlap_p2p",
)  # fmt: skip
DECIMALS = (
    "iteration_time_s", "derived_iteration_time_s", "tokens_per_s_per_gpu",
    "derived_tokens_per_s_per_gpu", "tflops_per_gpu", "peak_memory_gib_measured",
)  # fmt: skip
UNKNOWN = (
    "", "unknown", "n/a", "na", "none stated", "not stated", "not given", "unspecified", "?", "-",
    "--", "nan", "null", "tbd",
)  # fmt: skip
YES, NO = ("yes", "true", "y", "on"), ("no", "false", "n", "off", "none")
RECENT = 2024  # year of a row that names none
# A time, a rate or an amount outside is a slip, and might overflow on the way.
LEAST, MOST = 1e-9, 1e15
MAX_ROWS = 100_000
MAX_BYTES = 64 * 2**20


_GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?:\D|$))")


@dataclass(frozen=True)
class Run:
    """One row: text as it stands, numbers parsed, and what could not be read."""

    text: dict[str, str]
    integers: dict[str, int]
    flags: dict[str, bool]
    decimals: dict[str, float]
    errors: tuple[str, ...] = field(default=())

    def __getitem__(self, column: str) -> str:
        return self.text.get(column, "")

    def integer(self, column: str) -> int | None:
        return self.integers.get(column)

    def flag(self, column: str) -> bool | None:
        return self.flags.get(column)

    def decimal(self, column: str) -> float | None:
        return self.decimals.get(column)

    def known(self, column: str) -> bool:
        return self[column].lower() not in UNKNOWN

    @property
    def id(self) -> str:
        return self["id"]

    @property
    def source_key(self) -> str:
        return self["source_key"] or "unnamed"

    @property
    def year(self) -> int:
        """The year whose software ran: as stated, else the one that the stack or source names."""
        stated = self.integer("year")
        named = re.search(r"\b20[12]\d\b", f"{self['stack']} {self['source']}".replace("_", " "))
        return stated or (int(named.group(0)) if named else RECENT)

    @property
    def notes(self) -> str:
        return self["notes"]

    @property
    def is_tuning(self) -> bool:
        """Whether a trained model was tuned."""
        return self["kind"].startswith("SFT")

    @property
    def is_layer(self) -> bool:
        """Whether the time is that of one layer, not of an iteration."""
        return self["schedule"].upper() == "LAYER_MICROBENCH"

    @property
    def iteration_time_s(self) -> float | None:
        """The published time: as derived from what the source states, else as printed.

        The shipped table has a derived rate only where it has no time.
        """
        for column in ("derived_iteration_time_s", "iteration_time_s"):
            if (value := self.decimal(column)) is not None:
                return value
        rate = self.decimal("tokens_per_s_per_gpu") or self.decimal("derived_tokens_per_s_per_gpu")
        sizes = [self.integer(name) or 0 for name in ("global_batch", "seq_len", "n_gpus")]
        if rate is None or not all(sizes):
            return None
        batch, length, ranks = sizes
        return batch * length / (rate * ranks)

    @property
    def peak_bytes(self) -> float | None:
        """Bytes; the column is in GiB, but for sources whose notes say that it is in GB."""
        peak = self.decimal("peak_memory_gib_measured")
        unit = 1e9 if "divide by 1.0737 for gib" in self.notes.lower() else 2.0**30
        return None if peak is None else peak * unit


def read_runs(path: Path) -> tuple[Run, ...]:
    """The rows of a CSV file.  Raises RequestError where it is not one of published runs."""
    return tuple(runs_in(path))


def count_runs(path: Path) -> int:
    """How many rows a file has, read to its end: what cannot be read is refused before work begins.

    Raises RequestError.
    """
    return sum(1 for _ in _lines(path))


def runs_in(path: Path) -> Iterator[Run]:
    """The rows of a file one after the other, so that a large one need not be held."""
    return (run_of(row, number) for number, row in enumerate(_lines(path), 1))


def _lines(path: Path) -> Iterator[dict[str, str | None]]:
    name = shown(str(path))
    try:
        if path.exists() and not path.is_file():
            raise refuse("", "cannot_read", f"cannot read {name}: it is not a file")
        if path.stat().st_size > MAX_BYTES:
            raise refuse("", "too_large", f"{name}: at most {MAX_BYTES >> 20} MiB")
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            _check_columns(reader.fieldnames or (), name)
            number = 0
            for number, row in enumerate(reader, 1):
                if number > MAX_ROWS:
                    raise refuse("", "too_many_rows", f"{name}: at most {MAX_ROWS:,} rows")
                yield row
            if not number:
                raise refuse("", "no_rows", f"{name} has no rows")
    except OSError as error:
        raise refuse("", "cannot_read", f"cannot read {name}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise refuse("", "not_csv", f"{name} is no CSV file: {shown(str(error))}") from None


def _check_columns(columns: Sequence[str], name: Any) -> None:
    """Raise RequestError where a required column is missing or one of ours stands there twice."""
    missing = [column for column in REQUIRED if column not in columns]
    if missing:
        raise refuse("", "missing_column", f"{name} has no column {', '.join(missing)}")
    twice = [
        c for c in (*REQUIRED, *INTEGERS, *FLAGS, *PROBABILITIES, *DECIMALS) if columns.count(c) > 1
    ]
    if twice:
        raise refuse("", "duplicate_column", f"{name} has the column {twice[0]} twice")


def _numbers(
    text: Mapping[str, str], columns: Iterable[str], kind: str, errors: list[str]
) -> Iterator[tuple[str, float]]:
    """The columns that a row states, as numbers."""
    for column in columns:
        value = text.get(column, "")
        if value.lower() in UNKNOWN or (value.lower() == "none" and columns is not FLAGS):
            continue
        if columns is FLAGS and value.lower() in YES + NO:
            yield column, float(value.lower() in YES)
            continue
        try:
            # "1,024": thousands are grouped in many tables.
            parsed = float(_GROUPED.sub("", value))
        except ValueError:
            parsed = math.nan
        if not math.isfinite(parsed) or parsed < 0:
            errors.append(f"{column}: {shown(value)} is not {kind}")
        else:
            yield column, parsed


def run_of(row: Mapping[str, str | None], number: int = 1) -> Run:
    """One row as it stands; what can't be read is an error of it."""
    # Cells without a heading have the key None; blank cells are not kept.
    text = {
        key: value.strip()
        for key, value in row.items()
        if isinstance(key, str) and value and not value.isspace()
    }
    text["id"] = text.get("id") or f"row {number}"
    integers: dict[str, int] = {}
    flags: dict[str, bool] = {}
    decimals: dict[str, float] = {}
    errors: list[str] = []

    for column, value in _numbers(text, INTEGERS, "a whole number", errors):
        if value != int(value) or value > 10**9:
            errors.append(f"{column}: {shown(text[column])} is not a whole number up to 1e9")
        else:
            integers[column] = int(value)
    for column, value in _numbers(text, FLAGS, "0 or 1", errors):
        flags[column] = value > 0
    for column, value in _numbers(text, PROBABILITIES, "a number", errors):
        if value < 1:
            decimals[column] = value
        else:
            errors.append(f"{column}: {shown(text[column])} is not from 0 to below 1")
    for column, value in _numbers(text, DECIMALS, "a number", errors):
        if LEAST <= value <= MOST:
            decimals[column] = value
        elif value:  # 0 stands for what was not measured
            errors.append(f"{column}: {shown(text[column])} is not from {LEAST:g} to {MOST:g}")
    return Run(text, integers, flags, decimals, tuple(errors))
