"""From a bundle to something that starts on every node: Slurm, Kubernetes, SkyPilot and others.

A launcher is one file with one function, (bundle, request) -> bundle, and one line here; it adds
its own file, which starts the framework's main one, and changes none of the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module

import yaml

from cost_models.catalog.names import resolve
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks.base import Bundle

# Name -> module with a function `launch`; imported when first asked for.
LAUNCHERS: dict[str, str] = {
    name: f"{__name__}.{name}"
    for name in (
        "deepspeed", "jobset", "kubernetes", "skypilot", "slurm", "torchrun", "trainjob",
    )
}  # fmt: skip


class Dumper(yaml.SafeDumper):
    """YAML with scripts as they are, line by line."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Dumper.add_representer(str, _text)


class CannotLaunch(ValueError):
    """The launcher cannot start this bundle, and why."""


def find_launcher(launcher: str) -> str:
    """The launcher of a name.  Raises cost_models.catalog.names.UnknownName with the nearest."""
    return resolve(launcher, {name: name for name in LAUNCHERS}, "launcher")


def launched(bundle: Bundle, request: PlanRequest, launcher: str) -> Bundle:
    """The bundle with what starts it.  Raises as `named` does, or CannotLaunch."""
    module = import_module(LAUNCHERS[find_launcher(launcher)])
    launch: Callable[[Bundle, PlanRequest], Bundle] = module.launch
    return launch(bundle, request)


def with_file(bundle: Bundle, name: str, text: str, note: str) -> Bundle:
    """The bundle with a new main file before its others, and a note before its notes."""
    return bundle.model_copy(
        update={
            "main": name,
            "files": {name: text, **bundle.files},
            "notes": (Note(code="launcher", text=note), *bundle.notes),
        }
    )


def started(bundle: Bundle) -> str:
    """Where it is started, as the names of templates say it."""
    return bundle.starts.replace(" ", "_")


def job_name(request: PlanRequest) -> str:
    """The model's name as a job may be called: letters, digits and dashes (RFC 1123)."""
    plain = re.sub(r"[^a-z0-9]+", "-", request.model.name.lower()).strip("-")[:40].strip("-")
    return plain if plain and plain[0].isalpha() else f"train-{plain}".strip("-")
