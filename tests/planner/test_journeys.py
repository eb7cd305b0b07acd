"""What people come for, on the command line, each in one or two commands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from shutil import copy

import pytest

from tests.fixtures.commands import Planner
from tests.planner.answers.lint.test_scripts import PLANTED, SCRIPTS
from tests.planner.learning.sites.runs import CLUSTER, LOGS

pytestmark = pytest.mark.slow

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 3072,
    "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "rope_theta": 500000.0,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "tie_word_embeddings": True,
}  # fmt: skip


def test_from_a_config_of_ones_own_to_flags(planner: Planner, tmp_path: Path) -> None:
    """One command: the best plan of the fastest framework, as a script."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    folder = tmp_path / "launch"
    code, _out, err = planner(
        "emit", "--model", str(config), "--cluster", "1x8xh100-sxm", "--seq-length", "4096",
        "--global-batch-size", "128", "--output", str(folder),
    )  # fmt: skip
    assert code == 0, err
    script = "".join(path.read_text() for path in sorted(folder.iterdir()))
    for option in ("--num-layers 28", "--hidden-size 3072", "--rotary-base 500000"):
        assert option in script
    assert "--untie-embeddings-and-output-weights" not in script


def test_256_of_one_kind_or_128_of_another(planner: Planner) -> None:
    """One command: days and money of both, and whether they can be told apart."""
    code, out, err = planner(
        "size", "--model", "llama-3.1-8b", "--tokens", "1T", "--seq-length", "8192",
        "--global-batch-size", "512", "--clusters", "256xh100-sxm,128xb200-sxm",
    )  # fmt: skip
    assert code == 0, err
    rows = re.findall(r"^ +(\d+) (h100|b200)-sxm\S+ +([\d.]+) +\$", out, re.MULTILINE)
    assert {(number, kind) for number, kind, _ in rows} == {("256", "h100"), ("128", "b200")}
    # A B200 does at most 2.3 times the work of an H100: half as many are about as fast.
    sooner_days, later_days = sorted(float(days) for *_, days in rows)
    assert later_days < 1.5 * sooner_days
    assert re.search(r"chance to be sooner: cannot be told apart", out)
    assert re.search(r"chance to be cheaper: cannot be told apart", out)


def test_from_a_slow_script_to_a_mended_one(planner: Planner, tmp_path: Path) -> None:
    """One command: what is wrong is said and mended in the script; then nothing is left."""
    name = "no_overlap"
    script = Path(copy(SCRIPTS / f"{name}.sh", tmp_path))
    cluster = ["--cluster", PLANTED[name][0]]
    _code, before, err = planner("lint", "--fix", str(script), *cluster)
    assert "a faster plan is known" in before
    assert script.read_text() != (SCRIPTS / f"{name}.sh").read_text(), err
    _, after, _ = planner("lint", str(script), *cluster)
    assert "a faster plan is known" not in after


def test_from_a_log_to_a_better_plan(planner: Planner) -> None:
    """Two commands: a log is learned, and the plan that is found says how it moves the time."""
    log = str(LOGS / "megatron_gpt_8_nodes.log")
    code, out, err = planner("learn", log, "--cluster", CLUSTER, "--site", "lab", "--yes")
    assert code == 0, err
    question = [
        "plan", "--model", "gpt2", "--cluster", CLUSTER, "--seq-length", "1024", "--json",
        "--global-batch-size", "512", "--precision", "fp16", "--framework", "megatron",
    ]  # fmt: skip
    told = []
    for site in ([], ["--site", "lab"]):
        code, out, err = planner(*question, *site)
        assert code == 0, err
        told.append(json.loads(out)["best"]["iteration_time_s"])
    assert told[0] != told[1]
