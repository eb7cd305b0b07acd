"""All questions, by name: the records of questions.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from planner.questions.question import Form, Parameter, Question, Tool


def _question(row: dict[str, Any]) -> Question:
    """The record of a row, which says what differs from the defaults of a record."""
    fields: dict[str, Any] = {
        "parameters": tuple(Parameter(**item) for item in row.get("parameters", ())),
        "forms": tuple(Form(**item) for item in row.get("forms", ())),
    }
    if tool := row.get("tool"):
        shows = frozenset(tool["shows"]) if "shows" in tool else None
        fields["tool"] = Tool(tool["about"], tuple(tool["parts"]), shows)
    return Question(**row | fields)


# Read without cost_models, which the command line does not load to start.
_ROWS = json.loads(Path(__file__).with_name("questions.json").read_text(encoding="utf-8"))
QUESTIONS: dict[str, Question] = {row["name"]: _question(row) for row in _ROWS}
LEARN = QUESTIONS["learn"]
