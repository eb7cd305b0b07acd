"""The table of options that are fields of a document, made from the documents.

    python -m tools.field_table --write

`planner --help` must not load the physics, so that the command line reads the table from
`fields.json`; a test holds the file against the documents.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from cost_models.plans import ParallelPlan
from cost_models.spec import ClusterSpec, NodeGroup, TrainingSpec
from planner.answers.fits.request import FitSpec
from planner.answers.pipelines.timeline import TimelineRequest
from planner.answers.reinforcement.documents import ReinforcementSpec
from planner.answers.sizing.request import SizingSpec
from planner.commands.options import TABLE, Field, Part
from planner.documents.request import PlanRequest, SearchSpec

# What is an object in a document and a name on the command line.
_NAMED = (
    Field("model", "", "preset, or a Hugging Face config.json or its folder", "NAME|FILE|FOLDER"),
    Field("cluster", "", "preset, p5.48xlarge, shorthand such as 8x8xh100-sxm, or local", "NAME"),
)
# Document, the part of a request that it is, and its fields that are no options: objects, and what
# another option says.
_DOCUMENTS: tuple[tuple[type[BaseModel], Part, frozenset[str]], ...] = (
    (PlanRequest, "", frozenset(PlanRequest.model_fields) - {"profile", "site"}),
    (NodeGroup, "cluster",
     frozenset(NodeGroup.model_fields) - {"nodes", "price_usd_per_accelerator_hour"}),
    (ClusterSpec, "cluster",
     frozenset(ClusterSpec.model_fields) - {"reserved_bytes_per_accelerator", "pue"}),
    (TrainingSpec, "training", frozenset()),
    (SearchSpec, "search", frozenset({"limits"})),
    (ParallelPlan, "plan", frozenset()),
    (TimelineRequest, "pipeline", frozenset({"schedule"})),
    (SizingSpec, "sizing", frozenset({"prices_usd_per_accelerator_hour", "pue"})),
    (FitSpec, "fit", frozenset()),
    (ReinforcementSpec, "reinforcement", frozenset()),
)  # fmt: skip
# Names of a vocabulary that help shows.
_MOST_NAMES = 6


def table() -> Iterator[Field]:
    """Every option, part by part in the order of the documents' fields."""
    yield from _NAMED
    for document, part, left_out in _DOCUMENTS:
        for name, schema in document.model_json_schema()["properties"].items():
            if name not in left_out:
                yield _option(name, part, schema)


def _option(name: str, part: Part, schema: dict[str, Any]) -> Field:
    """The option of one field; schema: JSON Schema of its value."""
    options = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    value = options[0]
    several = value["type"] == "array"
    item = value["items"] if several else value
    told: str = schema["description"].replace("None: ", "default: ")
    names: list[str] = item.get("enum", [])
    if not all(one in told for one in names):
        more = ["..."] if len(names) > _MOST_NAMES else []
        told = f"{', '.join([*names[:_MOST_NAMES], *more])}; {told}"
    if item["type"] == "boolean":
        return Field(name, part, told, boolean=True)
    return Field(name, part, told, _metavar(name, item, several), several=several)


def _metavar(name: str, item: dict[str, Any], several: bool) -> str:
    """What stands for a value in the help: its unit where it has one."""
    if item["type"] == "integer":
        kind = "INT"
    elif item["type"] == "string":
        kind = "NAME"
    elif name.endswith("_s") and not name.endswith("_per_s"):
        kind = "SECONDS"
    elif "usd" in name.split("_"):
        kind = "USD"
    elif "bytes" in name.split("_"):
        kind = "BYTES"
    elif item.get("maximum", item.get("exclusiveMaximum", 2)) <= 1:
        kind = "SHARE"
    else:
        kind = "NUMBER"
    return kind + "S" * several


def text() -> str:
    """The file."""
    usual = vars(Field("", "", ""))
    rows = ({n: v for n, v in vars(one).items() if n == "part" or v != usual[n]} for one in table())
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        TABLE.write_text(text())
    else:
        print(text(), end="")
