"""The request documents of `planner read` and `planner lint`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from cost_models.fields import Spec
from cost_models.spec import ClusterSpec
from planner.documents.problems import (
    Gathered,
    Problem,
    RequestError,
    join,
    problem,
    shown,
    wrong_type,
)
from planner.documents.typed_values import field_problems, require_object
from planner.frameworks.launch_files import GivenValues
from planner.frameworks.sources import checked
from planner.inputs.requests.models import parse_model
from planner.inputs.requests.parser import parse_cluster

GIVEN = ("model", "set", "arguments")
FIELDS = ("files", "cluster", "framework", *GIVEN)
_LONGEST_NAME = 200
_LONGEST_VALUE = 10_000


@dataclass(frozen=True)
class LintRequest:
    """A launch to check or to read; framework: None if it is to be recognised."""

    files: dict[str, str]
    cluster: ClusterSpec | None
    framework: str | None
    given: GivenValues

    @property
    def named_cluster(self) -> ClusterSpec:
        """The cluster of a launch that is to be checked."""
        assert self.cluster is not None
        return self.cluster

    def document(self) -> dict[str, Any]:
        """This launch as plain data that can be asked again."""
        given = self.given
        parts = {
            "files": dict(self.files),
            "cluster": _plain(self.cluster),
            "framework": self.framework,
            "model": _plain(given.model),
            "set": dict(given.values),
            "arguments": list(given.arguments),
        }
        return {name: part for name, part in parts.items() if part is not None}


def parse_lint(document: Any, *, need_cluster: bool = True) -> LintRequest:
    """The launch of a document {"files", "cluster", "framework", "model", "set", "arguments"}.

    files: text by name, the launch script first; framework and what follows may be left out.
    need_cluster: whether it is to be checked, not only read.
    Raises RequestError with every problem found.
    """
    require_object("", document, "an object")
    required = ("files", "cluster") if need_cluster else ("files",)
    problems = Gathered(field_problems(document, FIELDS, required))
    files, framework = document.get("files"), document.get("framework")
    if files is not None and not isinstance(files, dict):
        problems.append(wrong_type("/files", "an object of texts by name", files))
    elif files is not None:
        problems += _file_problems(files)
    if framework is not None and not isinstance(framework, str):
        problems.append(wrong_type("/framework", "a name", framework))
    cluster, asked = None, {name: document[name] for name in GIVEN if name in document}
    if document.get("cluster") is not None:
        cluster = problems.of(lambda: parse_cluster(document["cluster"]))
    given = problems.of(lambda: parse_given(asked))
    if problems or given is None:
        raise RequestError(problems)
    return LintRequest(checked(cast(dict[str, str], files)), cluster, framework, given)


def parse_given(document: dict[str, Any]) -> GivenValues:
    """The values given in addition to the files: {"model", "set", "arguments"}, all optional.

    set: values by name.  arguments: of the script.  Raises RequestError.
    """
    values, arguments = document.get("set", {}), document.get("arguments", [])
    problems = Gathered(_value_problems(values))
    if not isinstance(arguments, list | tuple) or not all(map(_short, arguments)):
        problems.append(wrong_type("/arguments", "a list of texts", arguments))
    found = None
    if document.get("model") is not None:
        found = problems.of(lambda: parse_model(document["model"]))
    problems.check()
    model, notes = found or (None, ())
    said = {name: str(value) for name, value in values.items()}
    return GivenValues(said, tuple(arguments), model, notes)


def _file_problems(files: dict[str, Any]) -> Iterator[Problem]:
    for name, text in files.items():
        if not isinstance(text, str):
            yield wrong_type(join("/files", name), "the text of a file", text)
        if not _is_name(name):
            yield problem("/files", "bad_name", f"no name of a file: {shown(name)!r}")


def _value_problems(values: Any) -> Iterator[Problem]:
    if not isinstance(values, dict):
        yield wrong_type("/set", "an object of values by name", values)
        return
    for name, value in values.items():
        if not _is_name(name):
            yield problem("/set", "bad_name", f"no name of a value: {shown(name)!r}")
        elif isinstance(value, bool) or not _short(str(value) if _number(value) else value):
            yield wrong_type(join("/set", name), "a text or a number", value)


def _is_name(name: str) -> bool:
    return 1 <= len(name) <= _LONGEST_NAME and name.isprintable()


def _plain(spec: Spec | None) -> dict[str, Any] | None:
    return None if spec is None else spec.model_dump(mode="json", exclude_none=True)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_VALUE and "\0" not in value
