"""What others may rely on, one name a line: functions, commands, routes, fields of documents.

`python -m tests.tools.public_names` writes tests/golden/public_names.txt.  A name may leave it as
docs/public-api.md says: after a release in which it was deprecated.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import planner
from api.app import create_app
from api.settings import Settings
from planner import cli
from planner.client import Client
from planner.version import __version__

FILE = Path(__file__).parents[1] / "golden" / "public_names.txt"


def public_names(document: dict[str, Any]) -> list[str]:
    """All of them; document: the service's OpenAPI document."""
    return sorted({*_python(), *_commands(), *_http(document)})


def _python() -> Iterator[str]:
    client = Client("http://localhost")  # asked nothing
    for owner, prefix in ((planner, "planner"), (client, "planner.client.Client")):
        for name in dir(owner):
            found = getattr(owner, name)
            if name.startswith("_"):
                continue
            yield f"{prefix}.{name}"
            if inspect.isroutine(found):
                yield from (f"{prefix}.{name} {one}" for one in inspect.signature(found).parameters)


def _commands() -> Iterator[str]:
    for command in cli.app.registered_commands:
        name = command.name or str(getattr(command.callback, "__name__", "")).replace("_", "-")
        yield f"$ planner {name}"
    yield from (f"$ planner {group.name}" for group in cli.app.registered_groups)


def _http(document: dict[str, Any]) -> Iterator[str]:
    for path, verbs in document["paths"].items():
        yield from (f"{verb.upper()} {path}" for verb in verbs)
    for name, schema in document["components"]["schemas"].items():
        # Two classes of one name have their module before it, which is no name of ours.
        short = name.rpartition("__")[2]
        yield from (f"{short}.{field}" for field in schema.get("properties", ()))


def kept() -> tuple[str, set[str]]:
    """The version that the list is of, and its names."""
    version, *names = FILE.read_text(encoding="utf-8").splitlines()
    return version, set(names)


def main() -> None:
    """Write the list."""
    names = public_names(create_app(Settings()).openapi())
    FILE.write_text("\n".join([__version__, *names, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
