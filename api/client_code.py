"""The client's code, made from the OpenAPI document: `python -m api.client_code --write`.

A method per operation whose answer is JSON, text or events, and a class for each document that
only the service makes; answers of the planner are its own classes.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel

from api.app import create_app
from api.results import StoredAnswer
from api.settings import Settings
from planner import client
from planner.client.calls import Budget

FOLDER = Path(client.__file__).parent
OPERATIONS, DOCUMENTS = "operations.py", "documents.py"
_JSON, _EVENTS, _TEXT = "application/json", "text/event-stream", "text/plain"
_WORDS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_SERVICE_ONLY = ("api.", "planner.store.")  # modules that a client does without
_OTHER_FORMS = frozenset({"format", "fields"})  # what asks for something else than the document
_HEAD = '''"""{what}, from its OpenAPI document.

Written by `python -m api.client_code --write`; not to be changed by hand.
"""

from __future__ import annotations

{imports}

'''


class _Code:
    """The code of one OpenAPI document, and what it imports."""

    def __init__(self, document: dict[str, Any], models: dict[str, type[BaseModel]]) -> None:
        self.document, self.models = document, models
        self.imported: set[tuple[str, str]] = set()
        self.made: dict[str, str] = {}  # classes and names of choices, by name

    def files(self) -> dict[str, str]:
        """The text of each file, by name."""
        methods = [
            method
            for path, operations in self.document["paths"].items()
            for verb, operation in operations.items()
            if (method := self.method(verb.upper(), path, operation))
        ]
        names, own = set(self.imported), sorted(self.made)
        names |= {("planner.client.documents", name) for name in own}
        names |= {
            ("planner.client.calls", name) for name in ("Budget", "Calls", "Document", "part")
        }
        names |= {("planner.client.events", "Event"), ("collections.abc", "Iterator")}
        names |= {("typing", "Unpack"), ("pydantic", "TypeAdapter")}
        body = "\n".join(methods)
        start = 'class Operations(Calls):\n    """The operations of a service."""\n\n'
        operations = _head("The operations of a service", names, body) + start + body
        made = "\n\n".join(sorted(self.made.values(), key=lambda text: text.startswith("class")))
        known = self.imported | {
            ("datetime", "datetime"),
            ("planner.documents.plan_report", "Document"),
        }
        known |= {("typing", "Any"), ("typing", "Literal")}
        documents = _head("Documents that only a service makes", known, made) + made
        return {OPERATIONS: _formatted(operations), DOCUMENTS: _formatted(documents)}

    def method(self, verb: str, path: str, operation: dict[str, Any]) -> str:
        """The method of one operation."""
        ending = re.sub(r"\W", "_", path) + f"_{verb.lower()}"
        name = operation["operationId"].removesuffix(ending)
        parameters = self.parameters(operation)
        takes = ["document: Document"] if "requestBody" in operation else []
        signature = [*parameters.pop("required"), *takes, *parameters.pop("optional")]
        address = re.sub(r"{(\w+)}", r"{part(\1)}", path)
        given = [f'f"{address}"' if "{" in address else f'"{address}"']
        given += ["document"] if takes else []
        given += [f"{kind}={text}" for kind, text in parameters.items() if text]
        first, *_ = (
            response["content"] for status, response in sorted(operation["responses"].items())
            if status in ("200", "201", "202", "204") for response in [{"content": {}, **response}]
        )  # fmt: skip
        if _JSON in first:
            answer, kind = self.answer(first[_JSON]["schema"])
            streams = ["streams=True"] if _EVENTS in first else []
            call = f"return self.ask({', '.join([kind, repr(verb), *given, *streams])})"
        elif _EVENTS in first:
            answer, call = "Iterator[Event]", f"return self.follow({', '.join(given)})"
        elif _TEXT in first:
            answer, call = "str", f"return self.text({', '.join(given)})"
        else:
            answer, call = "None", f"self.do({', '.join([repr(verb), *given])})"
        head = f"def {name}(self, {', '.join(signature)}) -> {answer}:".replace("self, )", "self)")
        lines = [head, textwrap.indent(_docstring(operation["summary"]), "    "), f"    {call}\n"]
        return textwrap.indent("\n".join(lines), "    ")

    def parameters(self, operation: dict[str, Any]) -> dict[str, Any]:
        """The parameters in a signature, and the query and headers that are made of them."""
        found = [one for one in operation.get("parameters", ()) if one["name"] not in _OTHER_FORMS]
        places = {one["name"] for one in found if one["in"] == "query"}
        bounded = places >= Budget.__annotations__.keys()
        required, optional = list[str](), list[str]()
        query, headers = dict[str, str](), dict[str, str]()
        for one in found:
            if bounded and one["name"] in Budget.__annotations__:
                continue
            word = one["name"].replace("-", "_")
            kind = self.type(one["schema"], word)
            if one["in"] != "path":
                (query if one["in"] == "query" else headers)[one["name"]] = word
            if one.get("required"):
                required.append(f"{word}: {kind}")
            elif "default" in one["schema"]:
                optional.append(f"{word}: {kind} = {one['schema']['default']!r}")
            else:
                optional.append(f"{word}: {kind.removesuffix(' | None')} | None = None")
        pairs = [f"{name!r}: {word}" for name, word in query.items()]
        asked = "budget" if bounded and not pairs else ""
        if pairs:
            asked = f"{{{', '.join([*pairs, *(['**budget'] if bounded else [])])}}}"
        return {
            "required": required,
            "optional": [
                *(["*", *optional] if optional else []),
                *(["**budget: Unpack[Budget]"] if bounded else []),
            ],
            "query": asked,
            "headers": f"{{{', '.join(f'{n!r}: {w}' for n, w in headers.items())}}}"
            if headers
            else "",
        }

    def answer(self, schema: dict[str, Any]) -> tuple[str, str]:
        """(the type of an answer, what reads it)."""
        text = self.type(schema, "")
        return text, f"TypeAdapter[{text}]({text})" if " | " in text else text

    def type(self, schema: dict[str, Any], name: str) -> str:
        """The Python type of a schema; name: of the field or parameter that has it."""
        if "$ref" in schema:
            return self.reference(schema["$ref"].rpartition("/")[2])
        if "anyOf" in schema:
            several = [self.type(one, name) for one in schema["anyOf"]]
            return " | ".join(dict.fromkeys(several))
        if "const" in schema:
            return f"Literal[{schema['const']!r}]"
        if "enum" in schema:
            return self.choice(name.title(), schema["enum"])
        if schema.get("type") == "array":
            return f"tuple[{self.type(schema['items'], name)}, ...]"
        if schema.get("type") == "object":
            values = schema.get("additionalProperties", True)
            return f"dict[str, {'Any' if values is True else self.type(values, name)}]"
        return "datetime" if schema.get("format") == "date-time" else _WORDS[schema["type"]]

    def choice(self, name: str, values: Iterable[str]) -> str:
        """The name of a type that is one of some values."""
        text = f"{name} = Literal[{', '.join(map(repr, values))}]"
        if self.made.setdefault(name, text) != text:
            raise ValueError(f"two kinds of {name}: rename one of the fields")
        return name

    def reference(self, name: str) -> str:
        """The class of a named schema: the planner's own, or one that is made here."""
        model = self.models[name]
        if issubclass(model, StoredAnswer):
            # What it has over HTTP besides is taken out (planner.client.calls).
            model = next(one for one in model.__mro__ if not one.__module__.startswith("api."))
        if not model.__module__.startswith(_SERVICE_ONLY):
            self.imported.add((model.__module__, model.__name__))
            return model.__name__
        if name not in self.made:
            self.made[name] = ""  # it may be a part of itself
            self.made[name] = self.defined(name, self.document["components"]["schemas"][name])
        return name

    def defined(self, name: str, schema: dict[str, Any]) -> str:
        """The class of a document."""
        # A service sends every field, also those that have a default.
        owned = schema["properties"].items()
        fields = [f"    {field}: {self.type(own, field)}" for field, own in owned]
        told = textwrap.indent(_docstring(schema.get("description", name)), "    ")
        return "\n".join([f"class {name}(Document):", told, "", *fields])


def code(app: FastAPI) -> dict[str, str]:
    """The files of the client for an application, by name in planner/client."""
    models = {
        model.__name__: model
        for route in _routes(app)
        for model in _models(route.response_model, set())
    }
    return _Code(app.openapi(), models).files()


def _routes(app: FastAPI) -> Iterator[APIRoute]:
    for context in app.router.routes:
        yield from _within(context)


def _within(route: Any) -> Iterator[APIRoute]:
    if isinstance(route, APIRoute):
        yield route
    for one in getattr(getattr(route, "original_router", None), "routes", ()):
        yield from _within(one)


def _models(annotation: Any, seen: set[Any]) -> Iterator[type[BaseModel]]:
    """The classes of documents that a type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation not in seen:
            seen.add(annotation)
            yield annotation
            for field in annotation.model_fields.values():
                yield from _models(field.annotation, seen)
        return
    for one in get_args(annotation):
        yield from _models(one, seen)


def _head(what: str, names: Iterable[tuple[str, str]], body: str) -> str:
    used = set(re.findall(r"\w+", body)) | {"Calls", "Document"}
    imports = [f"from {module} import {name}" for module, name in names if name in used]
    return _HEAD.format(what=what, imports="\n".join(imports))


def _docstring(text: str) -> str:
    text = f"{text.rstrip('.')}."
    first, blank, rest = text.partition("\n")
    lines = [*textwrap.wrap(first, 84), *([rest] if blank else [])]
    return '"""' + "\n".join(lines) + ('"""' if len(lines) == 1 else '\n"""')


def _formatted(text: str) -> str:
    """The code as the house has it."""
    for words in (["check", "--select", "I", "--fix", "--quiet"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *words, "--stdin-filename", str(FOLDER / "x.py"), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main(words: list[str]) -> int:
    """Write the files, or say which differ; the exit code."""
    found = code(create_app(Settings()))
    for name, text in found.items():
        path = FOLDER / name
        if "--write" in words:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            print(f"{path} differs: python -m api.client_code --write")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
