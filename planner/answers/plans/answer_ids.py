"""Ids of answers: the same question to the same build and the same sites has the same id."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import cost_models
from cost_models import profiles
from cost_models.catalog.names import UnknownName
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty import site_storage as sites
from planner.version import __version__

_DECIDING = (".py", ".json")  # kinds of files on which an answer depends


@cache
def build_id() -> str:
    """A digest of the code and the catalog, which two builds of one version may not share."""
    return digest(Path(cost_models.__file__).parent, Path(__file__).parents[2])


def digest(*packages: Path) -> str:
    """A digest of the names and contents of all files in these folders that decide answers."""
    found = hashlib.sha256(__version__.encode())
    for package in packages:
        for path in sorted(package.rglob("*")):
            if path.suffix in _DECIDING:
                found.update(path.relative_to(package.parent).as_posix().encode())
                found.update(path.read_bytes())
    return found.hexdigest()


def answer_id(kind: str, question: Mapping[str, Any] | Sequence[Any]) -> str:
    """The id of the answer to a resolved question, such as pl_3f2a...; kind: its prefix."""
    content = json.dumps(basis(question), sort_keys=True, separators=(",", ":"))
    return f"{kind}_{hashlib.sha256(content.encode()).hexdigest()[:32]}"


def estimate_id(request: PlanRequest) -> str:
    """The id of the estimate of a resolved request; fast, since there are many."""
    text = request.model_dump_json(exclude_none=True)
    named = {"site": request.site, "profile": request.profile}
    learned = {site: _digest(site) for site in sites_of(named)}
    content = f"{build_id()} {text} {json.dumps(learned, sort_keys=True)}"
    return f"es_{hashlib.sha256(content.encode()).hexdigest()[:32]}"


def sites_of(question: Any) -> Iterator[str]:
    """The sites that a question or a part of it names, as a site or as the profile of one.

    A question is plain data: mappings and lists.
    """
    left: list[Any] = [question] if isinstance(question, (dict, list, tuple)) else []
    for part in left:
        parts = part
        if isinstance(part, dict):
            for named in (part.get("site"), part.get("profile")):
                if isinstance(named, str) and named not in profiles.profiles():
                    yield named
            parts = part.values()
        left += [one for one in parts if isinstance(one, (dict, list, tuple))]


def _digest(site: str) -> str | None:
    """A digest of the runs and calibration of a site; None if there is no such site."""
    try:
        return sites.find(site).digest
    except (UnknownName, ValueError):
        return None


def basis(question: Any) -> list[Any]:
    """Everything that decides an answer: the build, the question, and the state of its sites."""
    learned = {name: _digest(name) for name in sites_of(question)}
    return [build_id(), question, learned] if learned else [build_id(), question]


def packed(request: Mapping[str, Any]) -> str:
    """A request in the form of the page's address: canonical JSON, deflated, base64url."""
    text = json.dumps(request, sort_keys=True, separators=(",", ":"))
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    data = squeeze.compress(text.encode()) + squeeze.flush()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
