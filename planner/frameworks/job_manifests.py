"""Jobs of Kubernetes, SkyPilot and dstack: the script that each runs, with what it is given.

The script stands for the manifest among the files.  What the job asks of the cluster stands in it
as Slurm's lines, which every reader knows.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any

from planner.documents.loading import parse_text
from planner.documents.problems import RequestError
from planner.frameworks.bash_writer import parts

YAML = (".yaml", ".yml")
MOST_BYTES = 1 << 16  # of a manifest; models and data are longer
# Words that stand in every manifest with a command, so that no other YAML is parsed.
_MARKS = re.compile(r"^[ \t]*(?:-[ \t]*)?(containers|commands|run)[ \t]*:", re.MULTILINE)
_SHELLS = frozenset({"sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash"})
_GPU = re.compile(r"(nvidia|amd)\.com/gpu|habana\.ai/gaudi")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass
class _Job:
    """What a job runs: commands of bash, variables, nodes and accelerators of each."""

    commands: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    nodes: int | None = None
    each: int | None = None

    def script(self) -> str:
        asked = {"--nodes": self.nodes, "--gpus-per-node": self.each}
        lines = [f"#SBATCH {option}={count}" for option, count in asked.items() if count]
        lines += [f"export {name}={shlex.quote(text)}" for name, text in self.variables.items()]
        return "\n".join(["#!/bin/bash", *lines, *self.commands, ""])


def scripts_of_jobs(files: Mapping[str, str]) -> dict[str, str]:
    """The files, each manifest of a job replaced by `NAME.sh`, the script that it runs."""
    found = dict[str, str]()
    for name, text in files.items():
        job = _job(text) if name.endswith(YAML) and len(text) <= MOST_BYTES else None
        if job is None or f"{name}.sh" in files:
            found[name] = text
        else:
            found[f"{name}.sh"] = job.script()
    return found


def _job(text: str) -> _Job | None:
    """The job of a manifest; None where it is none, or has no command."""
    if not _MARKS.search(text) or parts(text):  # one with files in it is a bundle
        return None
    for part in re.split(r"^---.*$", text, flags=re.MULTILINE):
        with suppress(RequestError, ValueError):  # whoever reads it says where it breaks
            document = parse_text(part, [])
            if job := _of_sky(document) or _of_dstack(document) or _of_kubernetes(document):
                return job
    return None


def _of_sky(document: Any) -> _Job | None:
    """SkyPilot's task: what `run` says on each of `num_nodes`."""
    if not _has(document, run=str) or not {"resources", "num_nodes"} & document.keys():
        return None
    resources = document.get("resources")
    asked = resources.get("accelerators") if isinstance(resources, dict) else None
    if isinstance(asked, dict | list):  # {H100: 8}, or a choice: {H100:8, A100:8}
        first = next(iter(asked), "")
        stated = asked[first] if isinstance(asked, dict) else None
        asked = f"{first}:{stated}" if stated is not None else first
    name, _, count = str(asked or "").partition(":")
    nodes, each = _whole(document.get("num_nodes", 1)), _whole(count or 1) if name else None
    counts = {"SKYPILOT_NUM_NODES": nodes, "SKYPILOT_NUM_GPUS_PER_NODE": each}
    own = {name: str(count) for name, count in counts.items() if count}
    return _Job([document["run"]], own | _variables(document.get("envs")), nodes, each)


def _of_dstack(document: Any) -> _Job | None:
    """Dstack's task: its commands, on one node unless it says how many."""
    if not _has(document, commands=list) or document.get("type") != "task":
        return None
    resources = document.get("resources")
    gpu = resources.get("gpu") if isinstance(resources, dict) else None
    each = _whole(gpu.get("count", 1)) if isinstance(gpu, dict) else None
    if isinstance(gpu, str):  # such as A100:80GB:8
        each = next((_whole(part) for part in gpu.split(":") if part.isdigit()), 1)
    commands = [one for one in document["commands"] if isinstance(one, str)]
    return _Job(commands, _variables(document.get("env")), _whole(document.get("nodes", 1)), each)


def _of_kubernetes(document: Any) -> _Job | None:
    """The container with the most accelerators that has a command, and the pods that run it."""
    if not isinstance(document, dict) or not {"apiVersion", "kind"} <= document.keys():
        return None
    found = [
        (container, replicas, pod)
        for container, replicas, pod in _containers(document, 0)
        if any(isinstance(container.get(part), list) for part in ("command", "args"))
    ]
    if not found:
        return None
    container = max((one for one, *_ in found), key=lambda one: _gpus(one) or 0)
    pods = {pod: count for one, count, pod in found if _gpus(one) == _gpus(container)}
    words = [
        str(word)
        for part in ("command", "args")
        if isinstance(container.get(part), list)
        for word in container[part]
    ]
    return _Job(
        [_command(words)], _variables(container.get("env")), sum(pods.values()), _gpus(container)
    )


def _containers(node: Any, replicas: int) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Every container below a node of the document, with the number of its pods, and their id."""
    if isinstance(node, list):
        for one in node:
            yield from _containers(one, replicas)
    elif isinstance(node, dict):
        own = next((c for k in ("replicas", "completions") if (c := _whole(node.get(k)))), replicas)
        for key, child in node.items():
            if key == "containers" and isinstance(child, list):
                yield from ((one, max(own, 1), id(child)) for one in child if isinstance(one, dict))
            else:
                yield from _containers(child, own)


def _gpus(container: Mapping[str, Any]) -> int | None:
    """How many accelerators a container asks for."""
    resources = container.get("resources")
    for part in ("limits", "requests"):
        asked = resources.get(part) if isinstance(resources, dict) else None
        for name, count in asked.items() if isinstance(asked, dict) else ():
            if _GPU.fullmatch(str(name)):
                return _whole(count)
    return None


def _command(words: Sequence[str]) -> str:
    """The words as bash has them: a shell's text itself; `$(NAME)` is a variable there."""
    if words[:1] and words[0] in _SHELLS:
        for place, word in enumerate(words[1:-1], 1):
            if re.fullmatch(r"-[a-z]*c", word):
                return words[place + 1]
    return " ".join(map(_word, words))


def _word(word: str) -> str:
    """A word as bash has it, its variables open and the rest quoted."""
    parts = re.split(r"\$\((\w+)\)", word)
    named = [f'"${{{name}}}"' for name in parts[1::2]]
    texts = [shlex.quote(text) if text or len(parts) == 1 else "" for text in parts[::2]]
    return "".join(chain.from_iterable(zip_longest(texts, named, fillvalue="")))


def _variables(env: Any) -> dict[str, str]:
    """Variables that have a text: of a mapping, of NAME=VALUE or of Kubernetes' entries."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(env, dict):
        pairs = list(env.items())
    for one in env if isinstance(env, list) else ():
        if isinstance(one, dict):
            pairs.append((one.get("name"), one.get("value")))
        elif isinstance(one, str) and "=" in one:
            pairs.append((one.partition("=")[0], one.partition("=")[2]))
    return {
        name: str(value)
        for name, value in pairs
        if isinstance(name, str) and _NAME.fullmatch(name) and isinstance(value, str | int | float)
    }


def _has(document: Any, **kinds: type) -> bool:
    return isinstance(document, dict) and all(
        isinstance(document.get(name), kind) for name, kind in kinds.items()
    )


def _whole(value: Any) -> int | None:
    """A positive whole number of at most six digits; None for anything else."""
    text = str(value)
    return int(text) if re.fullmatch(r"[1-9]\d{0,5}", text) else None
