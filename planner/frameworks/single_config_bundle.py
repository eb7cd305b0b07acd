"""The bundle of a framework that a launch script starts with one YAML config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cost_models.plans import ParallelPlan
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import bash_writer, unwritten_facts, yaml_files
from planner.frameworks.base import Bundle, Flag
from planner.frameworks.rules import accelerators_per_node, nodes
from planner.frameworks.unwritten_facts import Missing
from planner.frameworks.yaml_files import Row


@dataclass(frozen=True)
class OneConfig:
    """How such a framework is started: its names, the config's file, and the script to fill in.

    script: its placeholders are head, rendezvous, bundle, exports, launch, and those of `words`.
    """

    name: str
    title: str
    versions: str
    file: str
    script: str
    starts: Literal["every node", "first node"] = "every node"

    def bundle(
        self,
        request: PlanRequest,
        plan: ParallelPlan,
        keys: Sequence[Row],
        missing: Missing,
        variables: Sequence[Flag] = (),
        notes: Iterable[Note] = (),
        words: Mapping[str, object] | None = None,
        files: Mapping[str, str] | None = None,
        document: Iterable[Row] | None = None,
    ) -> Bundle:
        """The script and the config of these keys; document: the config's rows if not just `keys`.

        words: values of the script's own placeholders; they override those that all scripts have.
        """
        head = "\n".join(
            (
                *bash_writer.header(self.title, self.versions, request, plan).splitlines()[:-1],
                f"# A smoke run on MOCK DATA: to train, give {self.file} data, a learning rate, "
                "steps.",
            )
        )
        filled = {
            "head": head,
            "rendezvous": bash_writer.rendezvous(nodes(request.cluster)),
            "bundle": bash_writer.BUNDLE,
            "exports": "\n".join(map(bash_writer.export, variables)),
            "launch": bash_writer.torchrun(accelerators_per_node(request.cluster)),
            **(words or {}),
        }
        text = yaml_files.document(keys if document is None else document)
        return Bundle(
            framework=self.name,
            versions=self.versions,
            main="launch.sh",
            starts=self.starts,
            files={
                "launch.sh": self.script.format(**filled),
                self.file: f"{head}\n{unwritten_facts.comments(missing)}\n{text}",
                **(files or {}),
            },
            flags=(*variables, *yaml_files.flags(self.file, keys)),
            notes=(*notes, *unwritten_facts.notes(missing)),
        )
