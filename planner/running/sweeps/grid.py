"""A grid of requests: a base request, and axes that list the values of its fields.

The document is `{"base", "axes", "points"}`.  `axes` names fields (`training.global_batch_size`,
or as JSON pointer `/training/global_batch_size`) and lists the values of each; `points` lists
values of several fields that vary together.  The questions are all combinations, with the points
outermost and the last axis innermost.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cost_models.plans import ParallelPlan
from cost_models.spec import ClusterSpec, NodeGroup, TrainingSpec
from planner.answers.plans.answer_ids import basis
from planner.documents.loading import MAX_DEPTH
from planner.documents.problems import (
    Contradiction,
    Problem,
    RequestError,
    join,
    nearest,
    refuse,
    shown,
    unknown_field,
    wrong_type,
)
from planner.documents.request import SearchSpec
from planner.documents.typed_values import plain_object, require_object
from planner.inputs.requests.parser import PARTS, parse_request

MAX_QUESTIONS = 100_000
_GRID = ("base", "axes", "points")
_VARIED = tuple(part for part in PARTS if part not in ("guessed", "defaulted"))
_FIELDS = {
    "cluster": {"preset", *NodeGroup.model_fields, *ClusterSpec.model_fields},
    "training": set(TrainingSpec.model_fields),
    "search": {*SearchSpec.model_fields, *ParallelPlan.model_fields},
    "plan": set(ParallelPlan.model_fields),
}

Path = tuple[str, ...]


@dataclass(frozen=True)
class Setting:
    """The value of one field at one point of an axis.

    pointer: the place of the value in the user's document.  shown: the value as written there.
    value: the value in the request; it differs from `shown` if a model is read from a file.
    """

    path: Path
    pointer: str
    shown: Any
    value: Any


Axis = tuple[tuple[Setting, ...], ...]


@dataclass(frozen=True)
class Question:
    """One request of a grid, not yet parsed; inputs: the varied fields, by dotted name."""

    inputs: dict[str, Any]
    document: dict[str, Any]

    @cached_property
    def key(self) -> str:
        """A hash of everything that determines the answer, and of nothing else."""
        content = json.dumps(basis(self.document), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Grid:
    """All questions of a grid, created lazily.

    axes: the points of each axis; a point has one setting, or several on the axis of `points`.
    """

    base: dict[str, Any]
    axes: tuple[Axis, ...]

    @property
    def count(self) -> int:
        """The number of questions."""
        return math.prod(map(len, self.axes))

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The dotted names of the varied fields."""
        paths = (setting.path for axis in self.axes for point in axis for setting in point)
        return tuple(dict.fromkeys(map(".".join, paths)))

    def questions(self) -> Iterator[Question]:
        """All questions, in the order of the axes."""
        return map(self.question, itertools.product(*(range(len(axis)) for axis in self.axes)))

    def question(self, digits: Sequence[int]) -> Question:
        """The question with these point indices, one per axis."""
        settings = self.settings(digits)
        document = self.base
        for setting in settings:
            document = _with_field(document, setting)
        values = {".".join(setting.path): setting.shown for setting in settings}
        return Question({name: values.get(name) for name in self.inputs}, document)

    def settings(self, digits: Sequence[int]) -> list[Setting]:
        """The settings at these point indices; whole parts of a request before their fields."""
        chosen = [s for axis, i in zip(self.axes, digits, strict=True) for s in axis[i]]
        return sorted(chosen, key=lambda setting: len(setting.path))


def parse_grid(document: Any, model_at: Callable[[str], Any] = lambda name: name) -> Grid:
    """The grid that a user's document describes.

    model_at: resolves the name of a model, which may be a file, to its document.
    Raises RequestError with the problems of the grid, of the base, and of each value tried with
    the first values of the other axes.  Values that contradict each other are not refused here:
    the questions that combine them report it.
    """
    document = plain_object(document)
    if unknown := [unknown_field("", name, _GRID) for name in document if name not in _GRID]:
        raise RequestError(unknown)
    base = document.get("base", {})
    require_object("/base", base, "a request")
    if isinstance(named := base.get("model"), str):
        base = base | {"model": _model_document("/base/model", model_at, named)}
    grid = Grid(base, (*_points(document, model_at), *_axes(document, model_at)))
    if not grid.axes:
        raise refuse("/axes", "missing", "a sweep needs axes, or points")
    if grid.count > MAX_QUESTIONS:
        detail = f"a sweep has at most {MAX_QUESTIONS:,} questions, got {shown(grid.count)}"
        raise refuse("/axes", "too_large", detail, grid.count)
    _check_names(grid)
    _check_values(grid)
    return grid


def _points(document: Mapping[str, Any], model_at: Callable[[str], Any]) -> Iterator[Axis]:
    if "points" not in document:
        return
    points = _checked_list("/points", document["points"])
    for i, point in enumerate(points):
        require_object(join("/points", i), point, "an object of fields and values")
    yield tuple(
        tuple(
            _setting(name, at := join("/points", i, name), at, value, model_at)
            for name, value in point.items()
        )
        for i, point in enumerate(points)
    )


def _axes(document: Mapping[str, Any], model_at: Callable[[str], Any]) -> Iterator[Axis]:
    axes = document.get("axes", {})
    require_object("/axes", axes, "an object of fields and lists of values")
    for name, values in axes.items():
        at = join("/axes", name)
        yield tuple(
            (_setting(name, at, join(at, i), value, model_at),)
            for i, value in enumerate(_checked_list(at, values))
        )


def _checked_list(pointer: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise RequestError([wrong_type(pointer, "a list", value)])
    if not value:
        raise refuse(pointer, "empty", "must have at least one value")
    return value


def _path(name: str, pointer: str) -> Path:
    """The path of a field that is named by a JSON pointer or a dotted name."""
    if name.startswith("/"):
        path = tuple(p.replace("~1", "/").replace("~0", "~") for p in name[1:].split("/"))
    else:
        path = tuple(name.split("."))
    if path[0] in _VARIED and len(path) <= MAX_DEPTH:
        return path
    dotted = [f"{part}.{field}" for part, fields in _FIELDS.items() for field in sorted(fields)]
    # The most common mistake is the bare field name, as in the command line's options.
    endings = tuple(field for field in dotted if field.endswith(f".{name}"))
    raise refuse(
        pointer,
        "unknown_field",
        f"no field {shown(name)!r} in a request: its parts are {', '.join(_VARIED)}",
        did_you_mean=endings or nearest(name, [*_VARIED, *dotted]),
    )


def _check_names(grid: Grid) -> None:
    """Refuse a field that two axes vary, or that a point names twice."""
    seen: dict[Path, str] = {}
    for axis in grid.axes:
        of_point: dict[Path, str] = {}
        for point in axis:
            if len({setting.path for setting in point}) < len(point):
                where = point[0].pointer.rpartition("/")[0]
                raise refuse(where, "inconsistent", "names a field twice")
            of_point |= {setting.path: setting.pointer for setting in point}
        for path, pointer in of_point.items():
            if path in seen:
                detail = f"{'.'.join(path)} varies already at {seen[path]}"
                raise refuse(pointer, "inconsistent", detail)
        seen |= of_point


def _setting(
    name: str, named_at: str, pointer: str, value: Any, model_at: Callable[[str], Any]
) -> Setting:
    path, used = _path(name, named_at), value
    if path == ("model",) and isinstance(value, str):
        used = _model_document(pointer, model_at, value)
    return Setting(path, pointer, value, used)


def _model_document(pointer: str, model_at: Callable[[str], Any], name: str) -> Any:
    try:
        return model_at(name)
    except RequestError as error:
        raise _with_pointers(error, lambda at: pointer + at.removeprefix("/model")) from None


def _with_pointers(error: RequestError, moved: Callable[[str], str]) -> RequestError:
    """The error with its pointers mapped by `moved`."""
    return RequestError(
        problem.model_copy(update={"pointer": moved(problem.pointer)}) for problem in error.problems
    )


def _with_field(document: Any, setting: Setting, depth: int = 0) -> Any:
    """A copy of the document with one field set."""
    if depth == len(setting.path):
        return setting.value
    name, parents = setting.path[depth], setting.path[:depth]
    if document is None:
        document = {}
    if parents == ("cluster",) and isinstance(document, str):
        document = {"preset": document}
    if isinstance(document, dict):
        return document | {name: _with_field(document.get(name), setting, depth + 1)}
    if isinstance(document, list) and name in map(str, range(len(document))):
        i = int(name)
        return [*document[:i], _with_field(document[i], setting, depth + 1), *document[i + 1 :]]
    got = f"a list of {len(document)}" if isinstance(document, list) else repr(shown(document))
    detail = f"{join('', *parents)} is {got}, which has no {name} to vary"
    raise refuse(setting.pointer, "inconsistent", detail)


def _check_values(grid: Grid) -> None:
    """Try every value once, with the first points of the other axes."""
    first = [0] * len(grid.axes)
    _try(grid, first)
    problems: dict[Problem, None] = {}
    for i, axis in enumerate(grid.axes):
        for digit in range(1, len(axis)):
            try:
                _try(grid, [*first[:i], digit, *first[i + 1 :]])
            except RequestError as error:
                problems |= dict.fromkeys(error.problems)
    if problems:
        raise RequestError(problems)


def _try(grid: Grid, digits: Sequence[int]) -> None:
    """Raise the problems of one question, with pointers into the user's document."""
    document = grid.question(digits).document
    try:
        parse_request(document)
    except Contradiction:
        return
    except RequestError as error:
        certain = [problem for problem in error.problems if problem.code != "inconsistent"]
        if certain:
            settings = grid.settings(digits)
            pointers = {join("", *setting.path): setting.pointer for setting in settings}
            raise _with_pointers(
                RequestError(certain), lambda at: _pointer_into_grid(at, pointers)
            ) from None


def _pointer_into_grid(pointer: str, pointers: Mapping[str, str]) -> str:
    """The pointer into the grid's document for a pointer into the request.

    pointers: for each varied field, pointer in the request to pointer in the grid, deepest last.
    """
    # If fields of a named cluster vary, its name has become the preset of an object.
    pointer = "/cluster" if pointer == "/cluster/preset" else pointer
    for known, target in reversed(list(pointers.items())):
        if pointer == known or pointer.startswith(known + "/"):
            return target + pointer[len(known) :]
    return "/base" + pointer
