"""Published runs as rows: one CSV with the columns of the catalog's own table.

A field that is blank is None; a field that is no number where one is due is an error of its row,
which is then listed as not predicted.  Nothing is dropped.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from planner.problems import refuse, shown

PUBLISHED_RUNS = Path(__file__).parents[2] / "cost_models" / "catalog" / "published_runs.csv"
REQUIRED = ("id", "gpu", "n_gpus", "model", "seq_len")
INTEGERS = (
    "year", "n_gpus", "gpus_per_node", "layers", "hidden", "heads", "kv_heads", "ffn_hidden",
    "vocab", "seq_len", "experts", "topk", "moe_ffn", "tp", "cp", "pp", "vpp", "ep", "dp",
    "zero_stage", "micro_batch", "global_batch",
)  # fmt: skip
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
RECENT = 2024  # the year of a row that names none
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
    def is_layer(self) -> bool:
        """Whether the time is that of one layer, not of an iteration."""
        return self["schedule"].upper() == "LAYER_MICROBENCH"

    @property
    def iteration_time_s(self) -> float | None:
        """The published time: as derived from what the source states, else as printed."""
        for column in ("derived_iteration_time_s", "iteration_time_s"):
            if (value := self.decimal(column)) is not None:
                return value
        rate = self.decimal("tokens_per_s_per_gpu") or self.decimal("derived_tokens_per_s_per_gpu")
        sizes = [self.integer(name) for name in ("global_batch", "seq_len", "n_gpus")]
        if rate is None or None in sizes:
            return None
        batch, length, ranks = (size or 0 for size in sizes)
        return batch * length / (rate * ranks)

    @property
    def peak_bytes(self) -> float | None:
        gib = self.decimal("peak_memory_gib_measured")
        return None if gib is None else gib * 2**30


def read_runs(path: Path) -> tuple[Run, ...]:
    """The rows of a CSV file.  Raises RequestError where it is not one of published runs."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise refuse("", "too_large", f"{path}: at most {MAX_BYTES >> 20} MiB")
        with path.open(newline="", encoding="utf-8-sig") as file:
            return parse_runs(csv.DictReader(file), str(path))
    except OSError as error:
        raise refuse(
            "", "cannot_read", f"cannot read {shown(str(path))}: {error.strerror}"
        ) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise refuse("", "not_csv", f"{shown(str(path))} is no CSV file: {error}") from None


def parse_runs(reader: csv.DictReader[str], name: str) -> tuple[Run, ...]:
    """Typed rows; raises RequestError where a required column is missing or there is no row."""
    missing = [column for column in REQUIRED if column not in (reader.fieldnames or ())]
    if missing:
        raise refuse("", "missing_column", f"{shown(name)} has no column {', '.join(missing)}")
    rows: list[Run] = []
    for row in reader:
        if len(rows) == MAX_ROWS:
            raise refuse("", "too_many_rows", f"{shown(name)}: at most {MAX_ROWS} rows")
        rows.append(run_of(row, len(rows) + 1))
    if not rows:
        raise refuse("", "no_rows", f"{shown(name)} has no rows")
    return tuple(rows)


def run_of(row: Mapping[str, str | None], number: int = 1) -> Run:
    """One row as it stands; what can't be read is an error of it."""
    text = {key: (value or "").strip() for key, value in row.items() if isinstance(key, str)}
    text["id"] = text.get("id") or f"row {number}"
    integers: dict[str, int] = {}
    flags: dict[str, bool] = {}
    decimals: dict[str, float] = {}
    errors: list[str] = []

    def numbers(columns: Iterable[str], kind: str) -> Iterable[tuple[str, float]]:
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

    for column, value in numbers(INTEGERS, "a whole number"):
        if value != int(value) or value > 10**9:
            errors.append(f"{column}: {shown(text[column])} is not a whole number up to 1e9")
        else:
            integers[column] = int(value)
    for column, value in numbers(FLAGS, "0 or 1"):
        flags[column] = value > 0
    for column, value in numbers(DECIMALS, "a number >= 0"):
        if value > 0:
            decimals[column] = value
    return Run(text, integers, flags, decimals, tuple(errors))
