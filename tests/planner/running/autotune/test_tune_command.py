"""`planner tune`: proposes, writes, goes on from what was learned, and ends."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from planner.evidence.uncertainty import site_storage as storage
from tests.fixtures.commands import Planner
from tests.planner.inputs.logs.test_bad_logs import step

ASKED = [
    "tune", "--model", "gpt2", "--cluster", "1x8xa100-sxm-80gb", "--seq-length", "1024",
    "--global-batch-size", "64", "--site", "lab", "--recompute", "none", "--micro-batch-size",
    "2..8", "--vpp", "1",
]  # fmt: skip


def asked(planner: Planner, *more: str) -> dict[str, Any]:
    code, out, err = planner(*ASKED, *more, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def learn(planner: Planner, answer: dict[str, Any], seconds: float) -> None:
    """Measure the proposed run: a log of its steps, beside the script that was written for it."""
    folder = Path(answer["next"]["files"][0]).parent
    log = folder / "run.0.log"
    log.write_text("\n".join(step(number, seconds * 1e3, batch=64) for number in range(1, 21)))
    place = ["--cluster", "1x8xa100-sxm-80gb", "--site", "lab", "--yes"]
    code, _, err = planner("learn", str(log), "--script", str(folder / "launch.sh"), *place)
    assert code == 0, err


def candidate(answer: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in answer["candidates"] if one["id"] == name)
    return found


@pytest.mark.slow
def test_from_first_run_to_its_own_end(planner: Planner) -> None:
    """Every step is a new process that knows nothing but the site: so it resumes after a kill."""
    answer = asked(planner, "--emit", "out")
    first = answer["next"]["id"]
    assert answer["runs"] == 0
    assert answer["best"] is None
    assert first == min(answer["candidates"], key=lambda one: one["estimated_s"])["id"]
    usual = {one["id"]: one["estimated_s"] for one in answer["candidates"]}
    times: dict[str, float] = {}
    done: list[str] = []
    for _ in range(12):
        if answer["next"] is None:
            break
        name = answer["next"]["id"]
        assert name not in done
        done.append(name)
        # The first takes half as long again as is estimated without the site; the others do not.
        times.setdefault(name, usual[name] * (1.5 if name == first else 1.0))
        learn(planner, answer, times[name])
        answer = asked(planner, "--emit", "out")
        assert answer["runs"] == len(done)
        assert candidate(answer, name)["measured_s"] == pytest.approx(times[name], rel=1e-3)
    assert answer["ending"]["code"] == "rule"
    assert 1 < len(done) < len(answer["candidates"])
    assert answer["chance_faster"] < 0.05
    assert answer["best"] in done
    assert answer["best"] != first


def test_screen_and_files(planner: Planner, tmp_path: Path) -> None:
    code, out, _ = planner(*ASKED, "--emit", "out")
    assert code == 0
    assert max(map(len, out.split("wrote")[0].splitlines())) <= 80
    assert "no runs of this are measured yet" in out
    assert "expected to be the fastest; nothing is measured yet" in out
    (folder,) = (tmp_path / "out").iterdir()
    text = (folder / "tune.sh").read_text()
    assert 'bash "$HERE/launch.sh"' in text
    assert f"planner learn LOG --script out/{folder.name}/launch.sh --cluster 1x8xa100" in out
    before = (folder / "tune.sh").stat().st_mtime_ns
    assert planner(*ASKED, "--emit", "out")[0] == 0
    assert (folder / "tune.sh").stat().st_mtime_ns == before


def test_the_limit_of_time_ends_a_run(planner: Planner, tmp_path: Path) -> None:
    planner(*ASKED, "--emit", "out")
    (folder,) = (tmp_path / "out").iterdir()
    script = folder / "tune.sh"
    limit = script.read_text().split("--kill-after=60 ")[1].split()[0]
    assert int(limit) >= 900
    script.write_text(script.read_text().replace(f"60 {limit} bash", "60 0.2 bash"))
    (folder / "launch.sh").write_text('echo "$TRAIN_ITERS iterations"; sleep 30; echo late\n')
    ended = subprocess.run(["bash", script], capture_output=True, text=True, timeout=600)
    assert ended.returncode == 124
    assert ended.stdout == (folder / "run.0.log").read_text() == "20 iterations\n"


@pytest.mark.slow
def test_budgets_end_it(planner: Planner) -> None:
    answer = asked(planner, "--gpu-hours", "0.5")
    assert answer["next"] is None
    assert answer["ending"]["code"] == "gpu_hours"
    answer = asked(planner, "--emit", "out", "--runs", "1", "--gpu-hours", "100")
    learn(planner, answer, 1.0)
    answer = asked(planner, "--runs", "1")
    assert answer["ending"]["code"] == "runs"
    assert answer["gpu_hours"] == pytest.approx(20 * 1.0 * 8 / 3600)
    _, out, _ = planner(*ASKED, "--runs", "1")
    assert "Stop\n  1 of 1 runs are spent" in out
    assert "Best measured" in out


@pytest.mark.slow
def test_runs_of_another_batch_measure_nothing_but_teach(planner: Planner) -> None:
    before = asked(planner, "--emit", "out")
    learn(planner, before, 2.0 * before["candidates"][0]["estimated_s"])
    other = [*ASKED]
    other[other.index("64")] = "128"
    code, out, _ = planner(*other, "--json")
    answer = json.loads(out)
    assert code == 0
    assert (answer["runs"], answer["other_runs"]) == (0, 1)
    plain = cli_estimates(planner, other)
    assert answer["candidates"][0]["expected_s"] > 1.05 * plain[answer["candidates"][0]["id"]]


def cli_estimates(planner: Planner, words: list[str]) -> dict[str, float]:
    """Estimates of the same candidates by a site that has learned nothing."""
    code, out, _ = planner(*[word if word != "lab" else "nobody" for word in words], "--json")
    assert code == 0
    return {one["id"]: one["estimated_s"] for one in json.loads(out)["candidates"]}


@pytest.mark.slow
def test_a_plan_that_cannot_run_here_is_left_out(planner: Planner) -> None:
    first = asked(planner)["next"]["id"]
    answer = asked(planner, "--skip", first[3:9])
    assert answer["next"]["id"] != first
    assert first not in {one["id"] for one in answer["candidates"]}
    code, _, err = planner(*ASKED, "--skip", "zzz")
    assert code == 2
    assert "no candidate is called zzz" in err


def test_needs_a_site(planner: Planner) -> None:
    words = [word for word in ASKED if word not in ("--site", "lab")]
    code, out, err = planner(*words)
    assert (code, out) == (2, "")
    assert "--site NAME" in err
    assert storage.names() == ()


def test_a_named_plan_is_a_candidate(planner: Planner, tmp_path: Path) -> None:
    document = {
        "model": "gpt2", "cluster": "1x8xa100-sxm-80gb", "site": "lab",
        "training": {"seq_length": 1024, "global_batch_size": 64},
        "plan": {"tp": 2, "recompute": "full", "recompute_num_layers": 12},
        "search": {"tp": 1, "pp": 1, "recompute": "none"},
    }  # fmt: skip
    (tmp_path / "asked.json").write_text(json.dumps(document))
    code, out, err = planner("tune", "asked.json", "--json")
    assert code == 0, err
    plans = [one["plan"] for one in json.loads(out)["candidates"]]
    assert [plan["recompute"] for plan in plans if plan["tp"] == 2] == ["full"]
    document["plan"] = {"tp": 16}
    (tmp_path / "asked.json").write_text(json.dumps(document))
    code, _, err = planner("tune", "asked.json")
    assert code == 2
    assert "tp 16" in err or "16" in err
