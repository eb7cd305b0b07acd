"""The bundle of a framework: a launch script from its template, and the files beside that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from cost_models.catalog import models
from cost_models.package_files import filled, text
from cost_models.plans import ParallelPlan
from planner.constraints import Rule
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import bash_writer, unwritten_facts, yaml_files
from planner.frameworks.base import Bundle, Field, Flag, Framework
from planner.frameworks.read_results import Reading
from planner.frameworks.rules import accelerators_per_node, nodes
from planner.frameworks.unwritten_facts import Missing
from planner.frameworks.yaml_files import Row

SCRIPT = "launch.sh"


def mock_data(config: str) -> str:
    """What a run with a config needs."""
    return f"A smoke run on MOCK DATA: to train, give {config} data, a learning rate, steps."


class Reader(Protocol):
    """What reads the launches of a framework: see planner.frameworks.base.Framework."""

    def read(self, files: Mapping[str, str], accelerators: int | None, /) -> Reading: ...

    def recognises(self, files: Mapping[str, str], /) -> bool: ...


@dataclass(frozen=True)
class Launch:
    """How a framework is started.

    package: the one with the template of the launch script, which may have the marks of `_words`
    and marks of its own.  needs: what a run needs, if it is more than data, a learning rate and the
    number of iterations.
    """

    name: str
    title: str
    versions: str
    package: str
    needs: str = ""
    template: str = "launch.sh.txt"
    starts: Literal["every node", "first node"] = "every node"

    def head(self, request: PlanRequest, plan: ParallelPlan) -> str:
        """The comments that begin every file."""
        head = bash_writer.header(self.title, self.versions, request, plan)
        if not self.needs:
            return head
        return "\n".join((*head.splitlines()[:-1], bash_writer.comment(self.needs)))

    def _words(
        self,
        request: PlanRequest,
        plan: ParallelPlan,
        missing: Missing,
        options: Sequence[Flag],
        variables: Iterable[Flag],
    ) -> dict[str, object]:
        arrays, names = bash_writer.arrays(options)
        each, count = accelerators_per_node(request.cluster), nodes(request.cluster)
        return {
            "head": self.head(request, plan),
            "rendezvous": bash_writer.rendezvous(count),
            "bundle": bash_writer.BUNDLE,
            "checkpoint": bash_writer.checkpoint(models.hub_name(request.model)),
            "variables": bash_writer.overridable(options),
            "exports": "\n".join(map(bash_writer.export, variables)),
            "launch": bash_writer.torchrun(each),
            "unwritten": unwritten_facts.comments(missing),
            "arrays": arrays,
            "spread": bash_writer.spread(names),
            "nodes": count,
            "each": each,
        }

    def bundle(
        self,
        request: PlanRequest,
        plan: ParallelPlan,
        missing: Missing,
        options: Sequence[Flag] = (),
        variables: Sequence[Flag] = (),
        flags: Sequence[Flag] | None = None,
        notes: Iterable[Note] = (),
        files: Mapping[str, str] | None = None,
        words: Mapping[str, object] | None = None,
    ) -> Bundle:
        """The launch script with these options of the program, and the other files.

        flags: what the bundle says besides the variables, if not the options.  words: those of the
        script's own marks, or in place of the ones that all scripts have.
        """
        marks = self._words(request, plan, missing, options, variables) | dict(words or {})
        script = filled(text(self.package, self.template), marks)
        return Bundle(
            framework=self.name,
            versions=self.versions,
            main=SCRIPT,
            starts=self.starts,
            files={SCRIPT: script, **(files or {})},
            flags=(*variables, *(options if flags is None else flags)),
            notes=(*notes, *unwritten_facts.notes(missing)),
        )

    def framework(
        self,
        rules: tuple[Rule, ...],
        fields: dict[str, Field],
        render: Callable[[PlanRequest, ParallelPlan], Bundle],
        reader: Reader | None = None,
        **more: Any,
    ) -> Framework:
        """The framework that is started so; more: its other attributes."""
        read = {"read": reader.read, "recognises": reader.recognises} if reader else {}
        named = {"name": self.name, "title": self.title, "versions": self.versions, "choices": {}}
        return Framework(rules=rules, fields=fields, render=render, **(named | read | more))

    def with_config(
        self,
        request: PlanRequest,
        plan: ParallelPlan,
        missing: Missing,
        file: str,
        keys: Sequence[Row],
        variables: Sequence[Flag] = (),
        notes: Iterable[Note] = (),
        document: Iterable[Row] | None = None,
        files: Mapping[str, str] | None = None,
        words: Mapping[str, object] | None = None,
    ) -> Bundle:
        """The launch script with one YAML config; document: its rows, if they are not the keys."""
        parts = self.head(request, plan), unwritten_facts.comments(missing)
        config = "\n".join((*parts, yaml_files.document(keys if document is None else document)))
        return self.bundle(
            request,
            plan,
            missing,
            variables=variables,
            flags=yaml_files.flags(file, keys),
            notes=notes,
            files={file: config, **(files or {})},
            words=words,
        )
