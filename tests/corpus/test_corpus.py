"""Public launch files: what a careful reader finds in each, and what is refused by which name.

launches.csv: of every file, by itself, on CLUSTER where it leaves the number of accelerators open.
The sizes of the models were held against those that their names say, layers, widths, degrees,
batches and lengths against the literal options in the text; the vocabulary, ZeRO, precision and
recompute are as they were read, and guard against change.  refusals.csv: files that train what no
option here says, or leave the model out; `says` is in the reason.

The files themselves are not here: they are read from checkouts (tests.tools.checkouts).
"""

from __future__ import annotations

import csv
import re
from functools import cache
from pathlib import Path

import pytest

from cost_models.parameters import total_parameters
from planner.answers.lint.lint import read
from planner.documents.problems import RequestError
from planner.frameworks.sources import files_at
from planner.inputs.requests.models import parse_model
from planner.inputs.requests.parser import parse_cluster
from tests.tools.checkouts import checkout

HERE = Path(__file__).parent
CLUSTER = "64x8xh100-sxm"
PLAN = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "zero_stage": 1, "micro_batch_size": 1}


@cache
def rows(name: str) -> tuple[dict[str, str], ...]:
    with (HERE / name).open(encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def path_of(row: dict[str, str]) -> Path:
    return checkout(row["repository"], row["commit"]) / row["path"]


def found_in(path: Path) -> dict[str, object]:
    """The columns of launches.csv as they are read."""
    answer = read(files_at([str(path)]), parse_cluster(CLUSTER))
    request = answer.request
    model, plan, training = request["model"], request["plan"], request["training"]
    spec, _ = parse_model(model)
    degrees = {name: plan.get(name, usual) for name, usual in PLAN.items()}
    return {
        "framework": answer.framework,
        "parameters_1e9": f"{total_parameters(spec) / 1e9:.4g}",
        "layers": spec.num_layers,
        "hidden": spec.hidden_size,
        "heads": spec.num_attention_heads,
        "vocabulary": spec.vocab_size,
        "experts": spec.moe.num_experts if spec.moe is not None else 0,
        **{name: degrees[name] for name in ("tp", "pp", "cp", "ep")},
        "zero": degrees["zero_stage"],
        "micro_batch": degrees["micro_batch_size"],
        "global_batch": training["global_batch_size"],
        "seq_length": training["seq_length"],
        "precision": training.get("precision", "bf16"),
        "recompute": plan.get("recompute", "none"),
    }


def test_the_tables_are_whole() -> None:
    for name, least in (("launches.csv", 760), ("refusals.csv", 220)):
        table = rows(name)
        assert len(table) >= least
        assert len({(row["repository"], row["path"]) for row in table}) == len(table)
        for row in table:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+", row["repository"])
            assert re.fullmatch(r"[0-9a-f]{12}", row["commit"])
            assert all(row.values())
    assert len({row["repository"] for row in rows("launches.csv")}) >= 30
    assert {row["framework"] for row in rows("launches.csv")} == {
        "accelerate",
        "axolotl",
        "deepspeed",
        "gpt-neox",
        "llama-factory",
        "maxtext",
        "megatron",
        "megatron-bridge",
        "mindspeed",
        "nanotron",
        "primus",
        "pytorch",
        "slime",
        "torchtitan",
        "torchtune",
        "trl",
        "unsloth",
        "verl",
    }


@pytest.mark.exhaustive
def test_every_launch_is_read_as_a_careful_reader_reads_it() -> None:
    wrong = []
    for row in rows("launches.csv"):
        path = path_of(row)
        if not path.exists():
            continue
        for name, value in found_in(path).items():
            if str(value) != row[name]:
                wrong.append(f"{row['path']}: {name} is {value}, {row[name]} expected")
    assert wrong == []


@pytest.mark.exhaustive
def test_every_refusal_names_what_stands_in_the_way() -> None:
    for row in rows("refusals.csv"):
        path = path_of(row)
        if not path.exists():
            continue
        with pytest.raises(RequestError) as caught:
            found_in(path)
        assert row["says"] in str(caught.value), row["path"]
