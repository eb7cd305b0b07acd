"""Launchers of validation runs: shellcheck, the schemas of their files, clients that fail."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from planner.documents.problems import RequestError
from planner.running.validate import executors
from planner.running.validate.executors import Handle, RemoteRun, Status, cluster_client, follow
from tests.fixtures import kubectl
from tests.fixtures.crds import refusals
from tests.fixtures.validation import HOSTILE, IMAGE, ended, program, small_run

KUBERNETES = "1.31"


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Puts a program before all others on PATH."""
    folder = tmp_path / "stand-ins"
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return lambda name, text: program(folder, name, text)


# --- The files -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "runs"),
    [
        ("local", [small_run()]),
        ("torchrun", [small_run((4, 2))]),
        ("slurm", [small_run((2, 4))]),
        ("slurm", [small_run((2, 4)), small_run((2, 4))]),
        ("slurm", [small_run((2, 4), name=HOSTILE)]),
        ("jobset", [small_run((2, 4))]),
    ],
)
def test_the_scripts_pass_shellcheck(
    launcher: str, runs: Sequence[RemoteRun], tmp_path: Path
) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    made = executors.render(launcher, runs)
    scripts = {name: text for name, text in made.files.items() if text.startswith("#!")}
    assert scripts
    for name, text in scripts.items():
        path = program(tmp_path / Path(name).parent, Path(name).name, text)
        result = subprocess.run(["shellcheck", str(path)], capture_output=True, text=True)
        assert result.returncode == 0, result.stdout


def directives(script: str) -> list[str]:
    """The options that sbatch reads: it stops at the first line that is neither blank nor #."""
    head = script.split("\nset -euo pipefail\n")[0]
    return [line.removeprefix("#SBATCH ") for line in head.splitlines() if "#SBATCH" in line]


def test_an_array_has_a_folder_for_each_run() -> None:
    runs = [small_run((2, 4), time_limit_s=600.0), small_run((2, 4), time_limit_s=1200.0)]
    made = executors.render("slurm", runs)
    assert set(made.files) == {
        "job.sbatch",
        *(
            f"{n}/{name}"
            for n in (0, 1)
            for name in ("launch.sh", "request.json", "train.py", "job.json")
        ),
    }
    options = dict(one.partition("=")[::2] for one in directives(made.files["job.sbatch"]))
    assert re.fullmatch(r"--job-name=small-[0-9a-f]{8}", "--job-name=" + options.pop("--job-name"))
    assert options == {
        "--nodes": "2", "--ntasks-per-node": "1", "--exclusive": "", "--array": "0-1",
        "--output": "%a/%x-%A.out", "--time": "25",
    }  # fmt: skip


def test_gpus_are_asked_for_where_there_are_some() -> None:
    run = small_run((1, 4))
    (group,) = run.request.cluster.groups
    gpu = group.accelerator.model_copy(update={"id": "h100-sxm-80gb", "vendor": "NVIDIA"})
    cluster = run.request.cluster.model_copy(
        update={"groups": (group.model_copy(update={"accelerator": gpu}),)}
    )
    on_gpus = run.model_copy(
        update={"request": run.request.model_copy(update={"cluster": cluster})}
    )
    assert "--gpus-per-node=4" in directives(
        executors.render("slurm", [on_gpus]).files["job.sbatch"]
    )
    _, made = manifest("trainjob", on_gpus)
    assert made["spec"]["trainer"]["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": 4}}


def manifest(launcher: str, run: RemoteRun) -> tuple[dict[str, Any], dict[str, Any]]:
    """The ConfigMap and the object."""
    files, made = yaml.safe_load_all(executors.render(launcher, [run]).files["job.yaml"])
    return files, made


@pytest.mark.parametrize("launcher", ["jobset", "trainjob"])
@pytest.mark.parametrize("name", ["small", HOSTILE])
def test_the_manifests_fit_their_schemas(launcher: str, name: str) -> None:
    run = small_run((2, 4), name=name, image=IMAGE)
    files, made = manifest(launcher, run)
    kubernetes_validate.validate(files, KUBERNETES, strict=True)
    assert refusals(made) == []
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", made["metadata"]["name"])
    assert files["metadata"]["name"] == made["metadata"]["name"]
    assert {key: files["data"][key] for key in run.files} == run.files
    assert IMAGE in str(made)


def test_the_pods_of_a_job_set_fit_their_schema() -> None:
    _, made = manifest("jobset", small_run((2, 4)))
    (replicated,) = made["spec"]["replicatedJobs"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}}
    kubernetes_validate.validate({**job, **replicated["template"]}, KUBERNETES, strict=True)
    name = made["metadata"]["name"]
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert container["env"][0]["value"] == f"{name}-{replicated['name']}-0-0.{name}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "path", "value", "why"),
    [
        ("jobset", "spec.replicatedJob", [], "unexpected"),
        ("jobset", "spec.replicatedJobs.0.replicas", "1", "is not of type"),
        ("jobset", "spec.replicatedJobs.0.template.spec.template.spec.container", [], "unexpected"),
        ("jobset", "apiVersion", "jobset.x-k8s.io/v1", "is served"),
        ("trainjob", "spec.trainer.numNode", 2, "unexpected"),
        ("trainjob", "spec.trainer.numNodes", "2", "is not of type"),
        ("trainjob", "spec.runtimeRef", {}, "required"),
        ("trainjob", "spec.trainer.resourcesPerNode.limits.cpu", 1.5, "is not of type"),
        ("trainjob", "spec.runtimePatches.0.manager", "", "too short|non-empty"),
    ],
)
def test_the_schemas_would_catch_a_wrong_manifest(
    launcher: str, path: str, value: object, why: str
) -> None:
    _, made = manifest(launcher, small_run())
    *parents, last = path.split(".")
    place: Any = made
    for part in parents:
        place = place[int(part) if part.isdigit() else part]
    place[last] = value
    assert any(re.search(why, one) for one in refusals(made)), refusals(made)


# --- What is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launcher", "runs", "why"),
    [
        ("slrm", [small_run()], "did you mean|slurm"),
        ("jobset", [small_run()] * 2, "one run at a time"),
        ("torchrun", [small_run()] * 2, "one run at a time"),
        ("local", [small_run((2, 1))], "this machine is one node"),
        ("slurm", [small_run((1, 2)), small_run((2, 1))], "the same nodes and ranks"),
    ],
)
def test_what_a_launcher_cannot_do_is_said(
    launcher: str, runs: Sequence[RemoteRun], why: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=why):
        executors.render(launcher, runs)
    with pytest.raises(RequestError, match=why):
        executors.start(launcher, runs, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("image", ["x y", "$(x)", "x\ny", "x" * 600, "'"])
def test_an_image_is_a_plain_reference(image: str) -> None:
    with pytest.raises(ValueError, match="image"):
        small_run(image=image)


def test_a_manifest_without_an_image_is_not_submitted(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="which image"):
        executors.start("jobset", [small_run()], tmp_path / "run")


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{}",
        "[" * 10_000,
        '{"launcher": "slurm", "folder": ".", "id": "--user=root", "ranks": 1}',
    ],
)
def test_a_folder_without_a_handle_is_said(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "handle.json").write_text(text)
    with pytest.raises(RequestError, match=r"has no handle\.json"):
        executors.started(tmp_path)


@pytest.mark.parametrize(("launcher", "word"), [("slurm", "sbatch"), ("trainjob", "kubectl")])
class TestClient:
    def test_is_missing(
        self, launcher: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(RequestError, match=f"{word} is not on this machine's PATH"):
            executors.start(launcher, [small_run(image=IMAGE)], tmp_path / "run")

    def test_refuses(
        self, launcher: str, word: str, tmp_path: Path, on_path: Callable[[str, str], Path]
    ) -> None:
        on_path(word, "#!/bin/sh\necho 'no such partition\x1b[2J' >&2\nexit 3\n")
        with pytest.raises(RequestError) as raised:
            executors.start(launcher, [small_run(image=IMAGE)], tmp_path / "run")
        assert f"{word} ended with code 3: no such partition?[2J" in str(raised.value)
        assert not (tmp_path / "run" / "handle.json").exists()

    @pytest.mark.slow
    def test_hangs(
        self, launcher: str, word: str, tmp_path: Path, on_path: Callable[[str, str], Path],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        pids = shlex.quote(str(tmp_path / "pids"))
        on_path(word, f"#!/bin/sh\nsleep 1000 &\necho $! >> {pids}\nwait\n")
        monkeypatch.setattr(cluster_client, "TIMEOUT_S", 0.5)
        with pytest.raises(RequestError, match=r"did not answer within 0\.5 s"):
            executors.start(launcher, [small_run(image=IMAGE)], tmp_path / "run")
        for pid in (tmp_path / "pids").read_text().split():
            assert ended(int(pid))


def test_a_cluster_may_fail_to_answer_now_and_then(
    tmp_path: Path, on_path: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "_POLLS_S", (0.01, 0.01))
    handle = Handle(launcher="slurm", folder=str(tmp_path), id="7", ranks=1)
    calls = tmp_path / "calls"
    on_path("sacct", "#!/bin/sh\nexit 1\n")
    text = f"#!/bin/sh\necho >> {calls}\nif [ $(wc -l < {calls}) -gt 3 ]; then\n{{}}\nfi\nexit 1\n"
    on_path("squeue", text.format("echo '7|NODE_FAIL|None'; exit 0"))
    said: list[str] = []
    assert follow(handle, said.append) == (Status(state="failed", detail="node_fail"),)
    assert len(said) == 3
    on_path("squeue", text.format("exit 2"))
    with pytest.raises(RequestError, match="squeue ended with code 2"):
        follow(handle)


def test_a_handle_finds_what_its_runs_are_about(tmp_path: Path) -> None:
    run = small_run((2, 1))
    handle = executors.start("torchrun", [run], tmp_path / "run")
    assert executors.requests(handle) == (run.request,)
    (tmp_path / "run" / "request.json").write_text("{}")
    with pytest.raises(RequestError, match=r"no request\.json"):
        executors.requests(handle)


def test_sbatch_that_answers_nonsense(tmp_path: Path, on_path: Callable[[str, str], Path]) -> None:
    on_path("sbatch", "#!/bin/sh\necho 'Welcome to the cluster'\n")
    with pytest.raises(RequestError, match="the number of a job"):
        executors.start("slurm", [small_run()], tmp_path / "run")


# --- Kubernetes, with a stand-in for kubectl that runs the pods here ----------------------------

# In place of torchrun and its worker: says how it was called, and leaves a result for its rank.
RANK = """#!/bin/bash
echo "called with $*"
echo '@result rank-1.json not,base64'
echo '@result rank-99.json e30='
printf '{"node": %s, "text": "%s"}' "$NODE_RANK" '$(x) @result' > "${@: -1}/rank-$NODE_RANK.json"
exit "$NODE_RANK"
"""


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["jobset", "trainjob"])
def test_a_run_on_kubernetes_from_its_submission_to_its_results(
    launcher: str,
    tmp_path: Path,
    on_path: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = tmp_path / "state"
    on_path("kubectl", f'#!/bin/sh\nexec {sys.executable} {kubectl.__file__} "$@"\n')
    monkeypatch.setenv("CLUSTER", str(tmp_path))
    monkeypatch.setenv("PYTHON", str(program(tmp_path, "rank", RANK)))
    folder = tmp_path / "a run $(touch pwned)"
    executors.start(launcher, [small_run((2, 1), name=HOSTILE, image=IMAGE)], folder)
    handle = executors.started(folder)
    through = executors.get(handle.launcher)

    state.write_text("stuck")
    assert through.poll(handle) == (
        Status(state="waiting", detail="ImagePullBackOff: no such image"),
    )
    state.write_text("going")
    assert through.poll(handle) == (Status(state="running", detail="2 pods"),)
    state.write_text("broken")
    assert through.poll(handle) == (Status(state="failed", detail="all said"),)
    state.write_text("done")
    assert through.poll(handle) == (Status(state="succeeded", detail="all said"),)

    assert through.collect(handle) == (folder,)
    assert executors.missing(folder, 2) == []
    assert not (folder / "rank-99.json").exists()
    for rank in (0, 1):
        result = json.loads((folder / f"rank-{rank}.json").read_text())
        assert result == {"node": rank, "text": "$(x) @result"}
        log = (folder / f"{handle.id}-node-0-{rank}-abcde.log").read_text()
        assert "--nnodes 2 --nproc-per-node 1 --rdzv-backend c10d" in log
        assert f"--rdzv-endpoint {handle.id}-node-0-0.{handle.id}:29" in log
        assert f"is_host={1 - rank}," in log

    through.cancel(handle)
    through.cancel(handle)
    assert follow(handle)[0].state == "cancelled"
    assert not list(tmp_path.rglob("pwned"))
    assert not Path("pwned").exists()
