"""Jobs of Kubernetes, SkyPilot and dstack: the script that each runs, with what it is given.

The script stands for the manifest among the files.  What the job asks of the cluster stands in it
as Slurm's lines, which every reader knows.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile, zip_longest
from typing import Any

from planner.documents.loading import parse_text
from planner.documents.problems import RequestError
from planner.frameworks.bash_writer import parts

YAML = (".yaml", ".yml")
MOST_BYTES = 1 << 16  # of a manifest; models and data are longer
# Words that stand in every manifest with a command, so that no other YAML is parsed.
_MARKS = re.compile(r"^[ \t]*(?:-[ \t]*)?(containers|commands|run)[ \t]*:", re.MULTILINE)
_COMMAND = ("command", "args")
_SHELLS = frozenset({"sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash"})
_GPU = re.compile(r"(nvidia|amd)\.com/gpu|habana\.ai/gaudi")
_STARTS = re.compile(
    r"\b(python[\d.]*|torchrun|accelerate|deepspeed|mpirun|mpiexec|llamafactory-cli|axolotl|swift|tune|"
    r"litgpt|composer|\S+\.(sh|bash|slurm|py))\b"
)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass
class _Job:
    """What a job runs: commands of bash, variables, nodes and accelerators of each."""

    commands: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    nodes: int | None = None
    each: int | None = None

    @property
    def starts(self) -> bool:
        """Whether a command starts programs or a script."""
        return any(map(_STARTS.search, self.commands))

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
    found = list[_Job]()
    for part in re.split(r"^---.*$", text, flags=re.MULTILINE):
        with suppress(RequestError, ValueError):  # whoever reads it says where it breaks
            document = parse_text(part, [])
            job = _of_sky(document) or _of_dstack(document) or _of_kubernetes(document)
            found += [job] if job is not None else []
    return max(found, key=lambda job: (job.starts, job.each or 0), default=None)


def _of_sky(document: Any) -> _Job | None:
    """SkyPilot's task: what `run` says on each of `num_nodes`."""
    if not _has(document, run=str, resources=dict):
        return None
    asked = document["resources"].get("accelerators")
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
    if isinstance(gpu, int):
        each = _whole(gpu)
    commands = [one for one in document["commands"] if isinstance(one, str)]
    nodes = _whole(document.get("nodes", 1))
    counts = {"DSTACK_NODES_NUM": nodes, "DSTACK_GPUS_PER_NODE": each}
    own = {name: str(count) for name, count in counts.items() if count}
    return _Job(commands, own | _variables(document.get("env")), nodes, each)


def _of_kubernetes(document: Any) -> _Job | None:
    """The command that starts something, of the pods with the most accelerators first."""
    if not isinstance(document, dict) or not {"apiVersion", "kind"} <= document.keys():
        return None
    found = list(_containers(document, 1))
    jobs = [(one, job) for one, _ in found if (job := _of_container(one)) is not None]
    if not jobs:
        return None
    own, job = max(jobs, key=lambda pair: (pair[1].starts, pair[1].each or 0))
    # Its pods, or where it asks for no accelerators and others do, as of MPI's workers, those.
    each = job.each or max(_gpus(one) or 0 for one, _ in found) or None
    pods = (count for one, count in found if (_gpus(one) == each if each else one is own))
    return replace(job, nodes=max(sum(pods), 1), each=each)


def _of_container(container: Mapping[str, Any]) -> _Job | None:
    """What a container runs; None where its image says that."""
    if not any(isinstance(container.get(part), list) for part in _COMMAND):
        return None
    variables = _variables(container.get("env"))
    return _Job([_command(_words(container), variables)], variables, None, _gpus(container))


def _words(container: Mapping[str, Any]) -> list[str]:
    parts = (container.get(part) for part in _COMMAND)
    return [str(word) for part in parts if isinstance(part, list) for word in part]


def _containers(node: Any, pods: int) -> Iterator[tuple[dict[str, Any], int]]:
    """The container of each pod below a node that asks for most, with the number of such pods."""
    if isinstance(node, list):
        for one in node:
            yield from _containers(one, pods)
    elif isinstance(node, dict):
        at_once = _whole(node.get("parallelism")) or _whole(node.get("completions")) or 1
        own = pods * (_whole(node.get("replicas")) or 1) * at_once
        own *= (_whole(node.get("size")) or 1) if "workerTemplate" in node else 1
        for key, child in node.items():
            if key == "containers" and isinstance(child, list):
                inside = [one for one in child if isinstance(one, dict)]
                if inside:
                    yield max(inside, key=_told), own
            else:
                yield from _containers(child, own)


def _told(container: Mapping[str, Any]) -> tuple[int, bool]:
    """How much a container says of a training: its accelerators, then its command."""
    return _gpus(container) or 0, any(isinstance(container.get(part), list) for part in _COMMAND)


def _gpus(container: Mapping[str, Any]) -> int | None:
    """How many accelerators a container asks for."""
    resources = container.get("resources")
    for part in ("limits", "requests"):
        asked = resources.get(part) if isinstance(resources, dict) else None
        for name, count in asked.items() if isinstance(asked, dict) else ():
            if _GPU.fullmatch(str(name)):
                return _whole(count)
    return None


def _command(words: Sequence[str], variables: Mapping[str, str]) -> str:
    """The words as bash has them, or the text that they give to a shell.

    Kubernetes puts a variable that it knows in place of `$(NAME)`, also in such a text.
    """
    if words[:1] and words[0] in _SHELLS:
        options = takewhile(lambda word: word.startswith("-"), words[1:-1])
        for place, word in enumerate(options, 1):
            if re.fullmatch(r"-[a-z]*c", word):
                return re.sub(
                    r"\$\((\w+)\)",
                    lambda one: f"${{{one[1]}}}" if one[1] in variables else one[0],
                    words[place + 1],
                )
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
