"""`planner --server URL`: every command against a real server process, as it answers here."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from api.app import create_app
from api.settings import Settings
from cost_models.plans import ParallelPlan
from planner.client import Client
from planner.commands.failures import BAD_INPUT, FINE, OUR_FAULT
from planner.running.jobs.settings import JobSettings
from tests.fixtures.commands import ASKED, MODEL, PLAN, SMALL, Planner
from tests.fixtures.job_server import ENDLESS, SWEEP, TINY, Place, eventually
from tests.fixtures.service import listening
from tests.fixtures.signals import interruptible

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "scripts" / "few_micro_batches.sh")
BARE = (
    "--schedule", "1f1b", "--stages", "4", "--micro-batches", "8", "--forward-s", "1",
    "--input-grad-s", "1", "--weight-grad-s", "1",
)  # fmt: skip
STEP = (
    "--prompts", "64", "--samples", "8", "--prompt-tokens", "512", "--response-tokens", "1536",
    "--generation-tokens-per-s", "2500",
)  # fmt: skip
SAME = {
    "plan": ("plan", *SMALL),
    "estimate": ("estimate", *PLAN),
    "why": ("why", *SMALL[:-6], "--tp", "8"),
    "emit": ("emit", *PLAN, "--framework", "megatron"),
    "emit-slurm": ("emit", *SMALL, "--framework", "torchtitan", "--launcher", "slurm"),
    "ranks": ("ranks", *PLAN, "--order", "deepspeed"),
    "model": ("model", "gpt2"),
    "catalog": ("catalog", "accelerators"),
    "size": ("size", *MODEL, "--tokens", "1e12", "--accelerators", "h100-sxm", "--sizes", "64"),
    "fit": ("fit", *MODEL[:2], "--card", "rtx-4090", "--methods", "qlora", "--lengths", "2k"),
    "fit-by-card": ("fit", *MODEL[:2], "--methods", "qlora", "--lengths", "1k"),
    "lint": ("lint", SCRIPT, "--cluster", "16x8xh100-sxm"),
    "read": ("read", SCRIPT, "--cluster", "16x8xh100-sxm"),
    "rl": ("rl", "--model", "llama-3.2-1b", "--cluster", "1x8xh100-sxm", *STEP, "--tp", "1"),
    "sensitivity": ("sensitivity", *PLAN, "--input", "memory_bytes", "--factors", "0.5"),
    "timeline": ("timeline", *PLAN),
    "timeline-bare": ("timeline", *BARE),
    "compare-schedules": ("compare-schedules", *BARE[2:]),
}
REFUSED = {
    "no-model": ("plan", "--cluster", "2x8xh100-sxm"),
    "unknown-model": ("plan", *ASKED, "--model", "llama-3.1-8c"),
    "illegal-plan": ("estimate", *ASKED, "--tp", "3"),
    "unknown-site": ("estimate", *PLAN, "--site", "nowhere"),
    "unknown-profile": ("plan", *ASKED, "--profile", "nothing"),
    "nothing-fits": ("emit", *PLAN, "--model", "llama-3.1-405b"),
    "no-launcher": ("emit", *PLAN, "--launcher", "cron"),
    "no-order": ("ranks", *PLAN, "--order", "alphabetical"),
    "too-large": ("timeline", *BARE, "--micro-batches", "100000000"),
    "no-limit": ("plan", *ASKED, "--tp", "8..1"),
    "no-script": ("read", str(ROOT / "conftest.py")),
    "no-cluster": ("rl", "--model", "llama-3.2-1b", *STEP),
}
_TIMES = re.compile(
    r'"(search_|sizing_|fit_)?time_s": [\d.e-]+|(evaluated in|in|searches in) [\d.]+ m?s\b'
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a server with jobs listens."""
    place = Place(tmp_path_factory.mktemp("service"), run_nice=1)  # its runs leave a core free
    try:
        yield str(place.serve().http.base_url).rstrip("/")
    finally:
        place.clear()


def both(planner: Planner, address: str, words: tuple[str, ...]) -> list[tuple[int, str, str]]:
    """What a command answers here and there, without times of search and the server's address."""
    answers = [planner(*words), planner("--server", address, *words)]
    return [
        (code, _TIMES.sub("", out).replace(f" --server {address}", ""), err)
        for code, out, err in answers
    ]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "json",
    [
        pytest.param(False, id="screen"),
        pytest.param(True, id="json", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("words", SAME.values(), ids=SAME)
def test_answers_as_here(
    planner: Planner, address: str, words: tuple[str, ...], json: bool
) -> None:
    here, there = both(planner, address, (*words, "--json") if json else words)
    assert there == here
    assert here[1]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("json", [False, True], ids=["screen", "json"])
@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED)
def test_refuses_as_here(
    planner: Planner, address: str, words: tuple[str, ...], json: bool
) -> None:
    here, there = both(planner, address, (*words, "--json") if json else words)
    assert there == here
    assert here[0] != FINE


@pytest.mark.exhaustive
def test_compares_requests_and_plans_nodes_that_differ(
    planner: Planner, address: str, tmp_path: Path
) -> None:
    base = {"model": "gpt2", "training": {"seq_length": 1024, "global_batch_size": 64}}
    for name, plan in (("a", {"tp": 2}), ("b", {"tp": 1})):
        document = {**base, "cluster": "1x4xh100-sxm", "plan": plan}
        Path(f"{name}.json").write_text(json.dumps(document))
    here, there = both(planner, address, ("compare", "a.json", "b.json"))
    assert there == here
    groups = [{"accelerator": name, "nodes": 1} for name in ("h100-sxm", "a100-sxm")]
    Path("mixed.json").write_text(json.dumps({**base, "cluster": {"groups": groups}}))
    here, there = both(planner, address, ("plan", "mixed.json"))
    assert there == here
    assert here[0] == FINE


def test_next_commands_name_the_server(
    planner: Planner, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = planner("--server", address, "plan", *SMALL)
    assert f"  planner --server {address} emit --model" in out
    monkeypatch.setenv("PLANNER_SERVER", address)
    _, out, _ = planner("plan", *SMALL)
    assert "  planner emit --model" in out


def test_sites_are_those_of_the_service(planner: Planner, address: str) -> None:
    log = Path("runs.csv")
    log.write_text(
        "id,gpu,n_gpus,gpus_per_node,model,stack,seq_len,global_batch,tp,pp,dp,micro_batch,"
        "zero_stage,precision,recompute,iteration_time_s\n"
        "ours-1,H100 SXM 80GB,16,8,llama-3.1-8b,Megatron-LM,8192,128,2,1,8,1,1,bf16,none,6.4\n"
    )
    learn = ("learn", str(log), "--cluster", "2x8xh100-sxm", "--site", "ours")
    here, there = both(planner, address, learn)
    assert there == here
    code, out, err = planner("--server", address, *learn, "--yes")
    assert (code, err) == (FINE, "")
    assert "Kept: site ours has 1 run now." in out
    assert "no sites yet" in planner("sites")[1]  # nothing is kept here
    assert "ours" in planner("--server", address, "sites")[1]
    shown = json.loads(planner("--server", address, "sites", "show", "ours", "--json")[1])
    assert shown["name"] == "ours"
    alone = ("--server", address, "estimate", *PLAN)
    plain, corrected = planner(*alone)[1], planner(*alone, "--site", "ours")[1]
    assert "site ours" in corrected
    assert corrected != plain
    assert planner("--server", address, "sites", "forget", "ours")[0] == FINE
    code, _, err = planner("--server", address, "sites", "show", "ours")
    assert (code, err) == (OUR_FAULT, f"{address} refuses: Not found: no site has this name.\n")


def test_learns_the_log_of_one_run(planner: Planner, address: str) -> None:
    log = str(ROOT / "fixtures" / "logs" / "megatron_gpt_8_nodes.log")
    learn = ("learn", log, "--cluster", "128x4xv100", "--site", "lab")
    here, there = both(planner, address, learn)
    assert there == here
    code, out, err = planner("--server", address, *learn, "--yes")
    assert (code, err) == (FINE, "")
    assert "Kept: site lab has 1 run now." in out
    shown = json.loads(planner("--server", address, "sites", "show", "lab", "--json")[1])
    assert len(shown["runs"]) == 1
    assert "Nothing new: site lab has 1 run" in planner("--server", address, *learn, "--yes")[1]
    forget = ("sites", "forget", "lab", shown["runs"][0]["id"][:6])
    assert planner("--server", address, *forget)[0] == FINE
    shown = json.loads(planner("--server", address, "sites", "show", "lab", "--json")[1])
    assert shown["runs"] == []
    share = ("sites", "share", "lab", "bob=read")
    assert "without keys all callers are one" in planner("--server", address, *share)[2]
    assert "on a service alone: see --server" in planner(*share)[2]
    assert "got read" in planner("--server", address, "sites", "share", "lab", "read")[2]


@pytest.mark.exhaustive
def test_sweeps_as_a_job(planner: Planner, address: str) -> None:
    Path("grid.json").write_text(json.dumps(SWEEP))
    answers = [
        planner(*server, "sweep", "grid.json", "--json") for server in ((), ("--server", address))
    ]
    assert answers[0][0] == answers[1][0] == FINE, answers[1][2]
    here, there = (
        [
            {k: v for k, v in row.items() if not k.endswith("time_s")}
            for row in json.loads(out)["rows"]
        ]
        for _, out, _ in answers
    )
    assert there == here
    assert re.fullmatch(rf"job \S+ of {address}\n", answers[1][2])
    code, _, err = planner("--server", address, "sweep", "grid.json", "--shard", "1/2")
    assert code == BAD_INPUT
    assert "of this machine" in err


class Running:
    """A command in a process of its own, for Ctrl-C."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "planner.cli", *words], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, preexec_fn=interruptible,
        )  # fmt: skip

    def interrupt(self) -> tuple[int, str, str]:
        """Press Ctrl-C: the exit code, and what it said then."""
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=300)
        return self.process.returncode, out, err


@pytest.mark.exhaustive
def test_ctrl_c_cancels_a_sweep_and_prints_its_rows(tmp_path: Path, address: str) -> None:
    grid, client = tmp_path / "grid.json", Client(address)
    grid.write_text(json.dumps(ENDLESS))
    running = Running("--server", address, "sweep", str(grid), "--json")
    eventually(lambda: client.jobs(kind="sweeps", state="running").rows, "the job")
    (job,) = client.jobs(kind="sweeps", state="running").rows
    eventually(lambda: client.get_sweeps(job.id).progress.done, "an answer")
    code, out, err = running.interrupt()
    assert code == OUR_FAULT
    outcomes = json.loads(out)["outcomes"]
    assert outcomes["fits"] > 0
    assert outcomes["not_asked"] > 0
    assert f"Stopped: cancelling job {job.id}" in err
    assert client.get_sweeps(job.id).state == "cancelled"


def test_ctrl_c_cancels_a_job_that_waits(tmp_path: Path) -> None:
    grid = tmp_path / "grid.json"
    grid.write_text(json.dumps(SWEEP))
    with listening(create_app(Settings(jobs=JobSettings(max_runs=0)))) as port:
        client = Client(f"http://127.0.0.1:{port}")
        running = Running("--server", client.url, "sweep", str(grid), "--json")
        assert running.process.stderr is not None
        id = running.process.stderr.readline().split()[1]
        code, out, err = running.interrupt()
        assert (code, out) == (128 + signal.SIGINT, "")
        assert f"cancelling job {id}" in err
        assert client.get_sweeps(id).state == "cancelled"


def test_ctrl_c_tells_the_best_so_far() -> None:
    """Of a search whose service sends progress until its caller leaves."""
    plan = ParallelPlan(tp=2, dp=4)
    best = {"plan": plan.model_dump(mode="json"), "iteration_time_s": 12.5, "peak_bytes": 1.0}
    told = json.dumps({"done": 1, "total": 9, "best": best}).encode()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        running = Running("--server", address, "plan", *SMALL)
        listener.settimeout(300)
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 20)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            running.process.send_signal(signal.SIGINT)
            with suppress(OSError):  # the command has left
                while running.process.poll() is None:
                    connection.sendall(b"event: progress\ndata: " + told + b"\n\n")
                    time.sleep(0.1)
        out, err = running.process.communicate(timeout=300)
    assert (running.process.returncode, out) == (128 + signal.SIGINT, "")
    assert "Stopped. Best so far: tp 2 · pp 1 · dp 4" in err
    assert "12.5 s per iteration" in err


@pytest.mark.exhaustive
def test_validates_on_the_machine_of_the_service(planner: Planner, address: str) -> None:
    Path("tiny.json").write_text(json.dumps(TINY))
    words = ("validate", "tiny.json", "--steps", "2", "--time-tolerance", "10", "--json")
    _, out, err = planner("--server", address, *words)
    report = json.loads(out)
    assert report["verdict"] in ("within", "outside", "inside the noise"), err
    assert report["environment"]["cores"] == max(1, len(os.sched_getaffinity(0)) - 1)
    assert "none yet" in planner("validations")[1]


def test_a_job_that_fails_says_why(planner: Planner, address: str) -> None:
    Path("grid.json").write_text(json.dumps(SWEEP | {"axes": {"training.nothing": [1]}}))
    code, _, err = planner("--server", address, "sweep", "grid.json")
    assert code == BAD_INPUT
    assert "/axes/training.nothing" in err


@pytest.mark.exhaustive
def test_python_of_the_guide_runs(address: str) -> None:
    guide = (ROOT.parent / "api" / "README.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    found: dict[str, Any] = {}
    exec(block.replace("http://localhost:8000", address), found)
    assert found["answer"].best.fits
    assert len(found["job"].result["sweep"]["rows"]) == 2
