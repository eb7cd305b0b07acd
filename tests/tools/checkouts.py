"""Checkouts of other projects, which the exhaustive tier compares with: each at one revision.

    python -m tests.tools.checkouts FOLDER              clones those that FOLDER lacks, tens of GB
    CHECKOUTS_PATH=FOLDER pytest -m exhaustive    without it, what needs them is skipped

A checkout's folder is named OWNER+NAME@REVISION.  What the projects' own code imports is the extra
`oracles`.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.peers import PEERS

VARIABLE = "CHECKOUTS_PATH"
ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "corpus"
MEGATRON_LM = "NVIDIA/Megatron-LM"
# Whose own code judges what is written and read (tests/oracles).
REVISIONS = {
    "AI-Hypercomputer/maxtext": "e591f30cbbf2",
    "AMD-AGI/Primus": "fd1eeabbad15",
    "Ascend/MindSpeed": "028de58ca629",
    "Ascend/MindSpeed-LLM": "c77308a14bfc",
    "OpenRLHF/OpenRLHF": "3c3be6234e0c",
    "EleutherAI/gpt-neox": "ea7aefd8f8e1",
    "NVIDIA-NeMo/Megatron-Bridge": "067f987df03b",
    "NVIDIA-NeMo/RL": "7ea279abfbeb",
    "NVIDIA/NeMo": "8cfedd720346",
    "PrimeIntellect-ai/prime-rl": "559b44772e47",
    "THUDM/slime": "624b824a898a",
    "axolotl-ai-cloud/axolotl": "067b021c8b87",
    "deepspeedai/Megatron-DeepSpeed": "4efb479d5317",
    "hiyouga/LLaMA-Factory": "ff6d4d12eeb0",
    "hpcaitech/ColossalAI": "4f9953be335e",
    "huggingface/nanotron": "2411b022a75f",
    "huggingface/trl": "f2cd57710ae3",
    "inclusionAI/AReaL": "4aef98d8d818",
    "pytorch/torchtune": "bd2a0fc7c314",
    "unslothai/unsloth": "015bdef0d94a",
}
# The Megatron-LM that others come with, or patch.
MEGATRON_LM_OF = {
    "AMD-AGI/Primus": "d3528a21301d",
    "Ascend/MindSpeed": "core_v0.12.1",
    "NVIDIA-NeMo/Megatron-Bridge": "2a75ac1",
}


def checkout(repository: str, revision: str = "") -> Path:
    """The folder of a checkout; skips the test where there is none.

    revision: of a repository that REVISIONS has not, or has at another one.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(f"{VARIABLE} names no folder of checkouts")
    path = _path(Path(folder), repository, revision or REVISIONS[repository])
    if not path.is_dir():
        pytest.skip(f"{path} is missing: python -m tests.tools.checkouts {folder}")
    return path


def megatron_lm_of(repository: str) -> Path:
    """The Megatron-LM that a repository comes with."""
    return checkout(MEGATRON_LM, MEGATRON_LM_OF[repository])


def environment(**paths: Path) -> dict[str, str]:
    """Of a process that finds checkouts in these variables."""
    return {**os.environ, **{name: str(path) for name, path in paths.items()}}


def megatron_lm_versions() -> dict[str, str]:
    """Version of Megatron-Core -> revision, of those whose options are known here."""
    file = ROOT / "planner" / "frameworks" / "megatron" / "arguments.json"
    said: dict[str, str] = json.loads(file.read_text())["versions"]
    # "tag core_v0.19.0" or "main d98e8a64dd, 22 Aug 2026"
    return {version: words.split()[1].rstrip(",") for version, words in said.items()}


def wanted() -> Iterator[tuple[str, str]]:
    """Every repository and revision that a test asks for."""
    yield from REVISIONS.items()
    yield from ((peer.repository, peer.revision) for peer in PEERS.values())
    for revision in (*MEGATRON_LM_OF.values(), *megatron_lm_versions().values()):
        yield MEGATRON_LM, revision
    for table in ("launches.csv", "refusals.csv"):
        with (CORPUS / table).open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                yield row["repository"], row["commit"]


def _path(folder: Path, repository: str, revision: str) -> Path:
    return folder / f"{repository.replace('/', '+')}@{revision}"


def _git(*words: str | Path) -> None:
    subprocess.run(["git", *map(str, words)], check=True)


def clone(folder: Path) -> None:
    """Clones each repository once, and checks out its revisions beside each other."""
    folder = folder.absolute()
    for repository, revision in sorted(set(wanted())):
        path = _path(folder, repository, revision)
        if path.is_dir():
            continue
        history = folder / ".git" / repository.replace("/", "+")
        if not history.is_dir():
            url = f"https://github.com/{repository}.git"
            _git("clone", "--quiet", "--bare", "--filter=blob:none", url, history)
        print(path.name, flush=True)
        _git("-C", history, "worktree", "add", "--quiet", "--detach", path, revision)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    clone(parser.parse_args().folder)
