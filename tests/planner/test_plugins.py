"""Packages from outside add accelerators, models, runtimes and frameworks; broken parts do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "tests" / "fixtures" / "plugin"
ASKS_IN_SPITE = """
import json, sys
from planner.cli import run
from planner.running.doctor.checks import _plugins

words = "--model gpt2 --cluster 1x8xanvil --seq-length 1024 --global-batch-size 64 --tp 2"
code = run(["estimate", *words.split()])
print(json.dumps(_plugins()))
sys.exit(code)
"""
USES = """
import json
from cost_models import plugins
from cost_models.catalog.hardware import accelerator
from cost_models.parameters import total_parameters
from planner import emit, estimate, plan
from planner.constraints import Context
from planner.frameworks.rank_orders import ORDERS
from planner.frameworks.supported import runners
from planner.inputs.requests.parser import parse_request

training = {"seq_length": 4096, "global_batch_size": 64}
asked = {"model": "wren", "cluster": "1x8xanvil", "training": training}
request = parse_request(asked)
shape = {"num_layers": 4, "hidden_size": 512, "num_attention_heads": 4, "num_query_groups": 4,
         "ffn_hidden_size": 2048, "vocab_size": 1000}
def parameters(rank):
    layers = [[{"kind": "attention"}, {"kind": "bottleneck", "rank": rank}]]
    document = {**asked, "model": {**shape, "layer_pattern": layers}}
    return total_parameters(parse_request(document).model)
found = plan(asked, search={"framework": "megalith", "tp": [2]})
twin = estimate(asked, plan={**found.best.plan.model_dump(), "runtime": "megatron"}).estimate
made = emit(asked, plan=found.best.plan, search={"framework": "megalith"})
print(json.dumps({
    "runtime": found.best.plan.runtime,
    "slower": found.best.iteration_time_s > twin.iteration_time_s,
    "framework": made.framework,
    "flags": sorted(flag.name for flag in made.flags if "split" in flag.name),
    "block": parameters(rank=64) - parameters(rank=1),
    "order": ORDERS["megalith"].axes,
    "competes": "megalith" in runners(Context(request.model, request.cluster, request.training)),
    "accelerator": accelerator("anvil").name,
    "problems": plugins.problems(),
}))
"""
TAKEN = """
from typing import Literal
from cost_models.blocks.mlp import MLP
class Own(MLP):
    kind: Literal["experts"] = "experts"
"""
BROKEN = {
    "blocks/__init__.py": "",
    "blocks/taken.py": TAKEN,
    "runtimes/__init__.py": "",
    "runtimes/loud.py": "raise OSError('no such\\nfile')",
    "frameworks/__init__.py": "",
    "frameworks/wrong.py": "FRAMEWORK = 3",
    "catalog/models.json": "{",
}


def run(target: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{target}"}
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.exhaustive
def test_a_plugin_is_used_by_its_names(tmp_path: Path) -> None:
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--target", f"{tmp_path}/target"]
    installed = run(tmp_path, "-m", "pip", "install", "-q", *options, str(PLUGIN))
    assert installed.returncode == 0, installed.stderr
    used = run(tmp_path / "target", "-c", USES)
    assert used.returncode == 0, used.stderr
    assert json.loads(used.stdout) == {
        "runtime": "megalith",
        "slower": True,
        "framework": "megalith",
        "flags": ["--split-layers"],
        "block": 4 * 2 * 63 * 512,  # layers, matrices, ranks, hidden size
        "order": ["tp", "cp", "dp", "pp"],
        "competes": True,
        "accelerator": "Anvil 1 96GB",
        "problems": [],
    }


def test_what_is_broken_is_named_and_left_out(tmp_path: Path) -> None:
    rows = json.loads((PLUGIN / "example_plugin/catalog/accelerators.json").read_text())
    (row,) = rows["accelerators"]
    taken, unknown = row | {"aliases": ["h100-sxm"]}, row | {"efficiency_profile": "none"}
    lacking = {name: value for name, value in row.items() if name != "memory_bytes"}
    broken = {**BROKEN, "catalog/accelerators.json": json.dumps(
        {"accelerators": [taken, unknown, lacking, row | {"aliases": ["anvil"]}]}
    )}  # fmt: skip
    for name, text in broken.items():
        (tmp_path / "clumsy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "clumsy" / name).write_text(text)
    (tmp_path / "clumsy" / "__init__.py").touch()
    registered = tmp_path / "clumsy-1.0.dist-info"
    registered.mkdir()
    (registered / "METADATA").write_text("Metadata-Version: 2.1\nName: clumsy\nVersion: 1.0\n")
    entries = "[parallel_planner.plugins]\nclumsy = clumsy\nghost = ghost_package\n"
    (registered / "entry_points.txt").write_text(entries)
    done = run(tmp_path, "-c", ASKS_IN_SPITE)
    assert done.returncode == 0, done.stderr
    *screen, doctor = done.stdout.splitlines()
    assert "Anvil 1 96GB" in screen[0]  # the row that is sound
    state, found, _ = json.loads(doctor)
    assert (state, "ghost_package" in found) == ("warn", True)
    told = [line for line in done.stderr.splitlines() if line.startswith("Left out, of plugin ")]
    assert len(told) == 8
    for said in (
        "ghost: ghost_package: LookupError: no such package",
        "clumsy: clumsy.blocks.taken: ValueError: the name 'experts' is taken",
        "clumsy: clumsy.runtimes.loud: OSError: no such file",
        "row 0: ValueError: the name 'h100-sxm' is taken",
        "no efficiency profile 'none'; leave it empty, or take a100-",
        ": lacks memory_bytes",
        "clumsy.frameworks.wrong: TypeError: FRAMEWORK must be a Framework, got int",
        "clumsy: catalog/models.json: JSONDecodeError",
    ):
        assert said in "\n".join(told)
