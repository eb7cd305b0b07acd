"""A log that comes as a document.

Its parts: {"log", "name", "cluster", "script", "model", "settings", "keep"}.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

from planner.documents.loading import plain
from planner.documents.problems import Problem, RequestError, join, wrong_type
from planner.documents.typed_values import field_problems, looked_up, require_object
from planner.evidence.uncertainty import site_storage as storage
from planner.evidence.uncertainty.site_corrections import SiteAnswer, site_answer
from planner.frameworks.base import one_line
from planner.frameworks.sources import checked
from planner.inputs.logs import lines_of
from planner.inputs.requests.parser import parse_cluster
from planner.learning.sites.learn_answer import LearnAnswer, keep, read_runs
from planner.learning.sites.learned_run import PARTS, LearningRequest

FIELDS = ("log", "name", "cluster", "script", "model", "settings", "keep")
TEXTS = ("log", "name", "script")
SCRIPT = "run.sh"
_MAX_NAME_LENGTH = 200


def posted_runs(document: Any, name: str) -> LearnAnswer:
    """The runs of a posted log, kept with the site of this name if the document asks for it.

    Raises RequestError.
    """
    require_object("", document, "an object")
    problems = field_problems(document, FIELDS, ("log", "cluster"))
    problems += [
        wrong_type(join("", part), "a text", document[part])
        for part in TEXTS
        if document.get(part) is not None and not isinstance(document[part], str)
    ]
    keeps = document.get("keep", False)
    if not isinstance(keeps, bool):
        problems.append(wrong_type("/keep", "true or false", keeps))
    settings, more = _settings(document.get("settings"))
    problems += more
    if problems:
        raise RequestError(problems)
    script = document.get("script")
    learning = LearningRequest(
        site=name,
        cluster=parse_cluster(document["cluster"]),
        model=plain(document.get("model"), "/model"),
        settings=settings,
        files=None if script is None else checked({SCRIPT: script}),
    )
    text = BytesIO(document["log"].encode("utf-8", "replace"))
    log = one_line(document.get("name") or "log")[:_MAX_NAME_LENGTH]
    answer = read_runs([(log, lines_of(text))], learning)
    return keep(answer) if keeps else answer


def _settings(value: Any) -> tuple[dict[str, Any], list[Problem]]:
    """Values by their path, such as {"plan.recompute": "full"}."""
    if value is None:
        return {}, []
    if not isinstance(value, Mapping):
        return {}, [wrong_type("/settings", "an object of values by their path", value)]
    problems = []
    for path in value:
        part, dot, name = path.partition(".")
        if part not in PARTS or not dot or not name:
            detail = "must be such as plan.recompute or model.vocab_size"
            problems.append(
                Problem(pointer=join("/settings", path), code="not_allowed", detail=detail)
            )
    return dict(plain(dict(value), "/settings")), problems


def answer_of(name: str) -> SiteAnswer:
    """The answer about a site.  Raises RequestError."""
    return site_answer(looked_up("/site", lambda: storage.find(name)))
