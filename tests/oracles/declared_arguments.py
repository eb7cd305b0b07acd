"""Options that the sources of MindSpeed-LLM declare, read from their syntax trees.

    python -m tests.oracles.declared_arguments CHECKOUT COMMIT

writes planner/frameworks/mindspeed/llm.json.  Its parser cannot be built without an NPU.  Rows are
those that the list of Megatron-LM and MindSpeed, planner/frameworks/mindspeed/arguments.json, does
not have or has with fewer choices.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner.frameworks.arguments import known_arguments

SWITCHES = ("store_true", "store_false", "store_const", "count")
# Conversion and evaluation have parsers of their own, beside it.
FEATURES = "mindspeed_llm/features_manager"
SOURCE = "MindSpeed-LLM's own options, by the sources of its features: names, kinds, types, choices"


def declared(folder: Path, known: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Option -> what it takes, of all files below a folder, beside those that are known."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for name, row in _of_call(node):
                old = found.get(name) or known.get(name) or row
                if row.get("choices") and old.get("choices"):
                    row["choices"] = list(dict.fromkeys([*old["choices"], *row["choices"]]))
                found[name] = {**old, **row} if row["kind"] == "store" else row
    return {name: row for name, row in sorted(found.items()) if row != known.get(name)}


def _of_call(node: ast.AST) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    texts = [one.value for one in node.args if isinstance(one, ast.Constant)]
    names = [text for text in texts if isinstance(text, str) and text.startswith("--")]
    if node.func.attr == "add_parser_argument_choices_value":
        yield names[0], {"kind": "store", "choices": [str(texts[-1])]}
    elif node.func.attr == "add_argument":
        row = _row({one.arg: one.value for one in node.keywords if one.arg})
        yield from ((name, dict(row)) for name in names)


def _row(words: dict[str, ast.expr]) -> dict[str, Any]:
    """What one option takes."""
    if _literal(words.get("action")) in SWITCHES:
        return {"kind": "switch"}
    row: dict[str, Any] = {"kind": "store"}
    if (nargs := _literal(words.get("nargs"))) is not None:
        row["nargs"] = nargs
    kind = words.get("type")
    row["type"] = kind.id if isinstance(kind, ast.Name) else "str"
    choices = _literal(words.get("choices"))
    if isinstance(choices, list | tuple | set):
        row["choices"] = [str(one) for one in choices if one is not None]
    return row


def _literal(node: ast.expr | None) -> Any:
    if node is None:
        return None
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def main(checkout: str, commit: str) -> None:
    package = "planner.frameworks.mindspeed"
    rows = declared(Path(checkout, FEATURES), known_arguments(package)["flags"])
    lines = (f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    head = {"source": SOURCE, "versions": {"MindSpeed-LLM": commit}}
    body = json.dumps(head)[1:-1].replace(', "versions"', ',\n"versions"')
    told = ",\n".join(lines)
    text = f'{{\n{body},\n"flags": {{\n{told}\n}}\n}}\n'
    Path(*package.split("."), "llm.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
