"""Adds a version of Megatron-LM to the list of its options.

    MEGATRON_LM_PATH=CHECKOUT python -m tests.oracles.megatron_arguments VERSION "COMMIT, DATE"

builds the parser of a checkout and writes planner/frameworks/megatron/arguments.json: new options,
types and choices, and which versions have each option (no `versions`: all of them).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[2] / "planner" / "frameworks" / "megatron" / "arguments.json"
Rows = dict[str, dict[str, Any]]


def rows(parser: argparse.ArgumentParser) -> Rows:
    """Option -> its kind, type, number of values and choices."""
    found: Rows = {}
    for action in parser._actions:
        row: dict[str, Any] = {"kind": "switch" if action.nargs == 0 else "store"}
        if action.nargs != 0:
            row["type"] = {int: "int", float: "float"}.get(action.type, "str")
        if action.choices is not None:
            row["choices"] = [str(one).rpartition(".")[2] for one in action.choices]
        if action.nargs not in (0, None):
            row["nargs"] = action.nargs
        for name in action.option_strings:
            if name.startswith("--") and name != "--help":
                found[name] = row
    return found


def merged(known: dict[str, Any], version: str, what: str, found: Rows) -> dict[str, Any]:
    """The document with one more version, or with that version read again."""
    every = [*known["versions"], *({version} - known["versions"].keys())]
    flags: Rows = {}
    for name in sorted({*known["flags"], *found}):
        old = known["flags"].get(name, {"versions": []})
        has = {*old.get("versions", known["versions"])} - {version}
        row = {**found.get(name, old)}
        row.pop("versions", None)
        if "choices" in row and has and name in found:
            # What any version takes is taken.
            both = dict.fromkeys([*old.get("choices", ()), *row["choices"]])
            row["choices"] = list(both)
            if "choices" not in old:
                del row["choices"]
        if name in found:
            has.add(version)
        if has != set(every):
            row["versions"] = [one for one in every if one in has]
        if has:
            flags[name] = row
    return {**known, "versions": {**known["versions"], version: what}, "flags": flags}


def text(document: dict[str, Any]) -> str:
    """The file, an option to a line."""
    *heads, (_, flags) = document.items()
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in heads]
    table = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in flags.items())
    return "{\n" + ",\n".join([*lines, f'"flags": {{\n{table}\n}}']) + "\n}\n"


def main() -> None:
    """Merge the parser of MEGATRON_LM_PATH into the file."""
    version, what = sys.argv[1:]
    sys.path.insert(0, str(Path(__file__).parent))
    import megatron_check

    megatron_check.import_all()
    from megatron.training import arguments  # which import_all has put there

    found = rows(arguments.add_megatron_arguments(argparse.ArgumentParser()))
    known = json.loads(FILE.read_text(encoding="utf-8"))
    FILE.write_text(text(merged(known, version, what, found)), encoding="utf-8")


if __name__ == "__main__":
    main()
