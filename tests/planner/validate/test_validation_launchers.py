"""Launchers of validation runs: their files held against shellcheck and schemas, and started."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from planner import cli, frameworks
from planner.launchers import launched
from planner.problems import RequestError
from planner.validate import launchers, remote
from planner.validate.contract import RankResult
from planner.validate.launchers import Handle, Launch, Status, client, follow
from planner.validate.report import ValidationReport
from planner.validate.run import Options
from tests.fixtures import kubectl
from tests.fixtures.crds import refusals
from tests.fixtures.launches import written
from tests.fixtures.slurm import absent, two_node_slurm
from tests.fixtures.validation import small_run

KUBERNETES = "1.31"
IMAGE = "registry.example/planner:1"
HOSTILE = "$(touch pwned)\n#SBATCH --uid=0\n'; touch pwned; \"`touch pwned`"


def trained(handle: Handle) -> None:
    """Every rank left a result, and the loss went down."""
    for folder in launchers.get(handle.launcher).collect(handle):
        assert launchers.missing(folder, handle.ranks) == []
        for rank in range(handle.ranks):
            text = (folder / f"rank-{rank}.json").read_text()
            result = RankResult.model_validate_json(text)
            assert (result.rank, result.ranks) == (rank, handle.ranks)
            assert result.losses[-1] < result.losses[0]


def program(folder: Path, name: str, text: str) -> Path:
    """A program of that name, in a folder to put on PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Puts a program before all others on PATH."""
    folder = tmp_path / "stand-ins"
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return lambda name, text: program(folder, name, text)


# --- The files -----------------------------------------------------------------------------------


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
def test_the_scripts_pass_shellcheck(launcher: str, runs: Sequence[Launch], tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    made = launchers.render(launcher, runs)
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
    made = launchers.render("slurm", runs)
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
        launchers.render("slurm", [on_gpus]).files["job.sbatch"]
    )
    _, made = manifest("trainjob", on_gpus)
    assert made["spec"]["trainer"]["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": 4}}


def manifest(launcher: str, run: Launch) -> tuple[dict[str, Any], dict[str, Any]]:
    """The ConfigMap and the object."""
    files, made = yaml.safe_load_all(launchers.render(launcher, [run]).files["job.yaml"])
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
    launcher: str, runs: Sequence[Launch], why: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=why):
        launchers.render(launcher, runs)
    with pytest.raises(RequestError, match=why):
        launchers.start(launcher, runs, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("image", ["x y", "$(x)", "x\ny", "x" * 600, "'"])
def test_an_image_is_a_plain_reference(image: str) -> None:
    with pytest.raises(ValueError, match="image"):
        small_run(image=image)


def test_a_manifest_without_an_image_is_not_submitted(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="which image"):
        launchers.start("jobset", [small_run()], tmp_path / "run")


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
        launchers.started(tmp_path)


@pytest.mark.parametrize(("launcher", "word"), [("slurm", "sbatch"), ("trainjob", "kubectl")])
class TestClient:
    def test_is_missing(
        self, launcher: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(RequestError, match=f"{word} is not on this machine's PATH"):
            launchers.start(launcher, [small_run(image=IMAGE)], tmp_path / "run")

    def test_refuses(
        self, launcher: str, word: str, tmp_path: Path, on_path: Callable[[str, str], Path]
    ) -> None:
        on_path(word, "#!/bin/sh\necho 'no such partition\x1b[2J' >&2\nexit 3\n")
        with pytest.raises(RequestError) as raised:
            launchers.start(launcher, [small_run(image=IMAGE)], tmp_path / "run")
        assert f"{word} ended with code 3: no such partition?[2J" in str(raised.value)
        assert not (tmp_path / "run" / "handle.json").exists()

    def test_hangs(
        self, launcher: str, word: str, tmp_path: Path, on_path: Callable[[str, str], Path],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        pids = shlex.quote(str(tmp_path / "pids"))
        on_path(word, f"#!/bin/sh\nsleep 1000 &\necho $! >> {pids}\nwait\n")
        monkeypatch.setattr(client, "TIMEOUT_S", 0.5)
        with pytest.raises(RequestError, match=r"did not answer within 0\.5 s"):
            launchers.start(launcher, [small_run(image=IMAGE)], tmp_path / "run")
        for pid in (tmp_path / "pids").read_text().split():
            assert ended(int(pid))


def ended(pid: int) -> bool:
    """Whether a process is over, or is within a second."""
    for _ in range(20):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def test_a_cluster_may_fail_to_answer_now_and_then(
    tmp_path: Path, on_path: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "_POLLS_S", (0.01, 0.01))
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
    handle = launchers.start("torchrun", [run], tmp_path / "run")
    assert launchers.requests(handle) == (run.request,)
    (tmp_path / "run" / "request.json").write_text("{}")
    with pytest.raises(RequestError, match=r"no request\.json"):
        launchers.requests(handle)


def test_sbatch_that_answers_nonsense(tmp_path: Path, on_path: Callable[[str, str], Path]) -> None:
    on_path("sbatch", "#!/bin/sh\necho 'Welcome to the cluster'\n")
    with pytest.raises(RequestError, match="the number of a job"):
        launchers.start("slurm", [small_run()], tmp_path / "run")


# --- Kubernetes, with a stand-in for kubectl that runs the pods here ----------------------------

# In place of torchrun and its worker: says how it was called, and leaves a result for its rank.
RANK = """#!/bin/bash
echo "called with $*"
echo '@result rank-1.json not,base64'
echo '@result rank-99.json e30='
printf '{"node": %s, "text": "%s"}' "$NODE_RANK" '$(x) @result' > "${@: -1}/rank-$NODE_RANK.json"
exit "$NODE_RANK"
"""


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
    launchers.start(launcher, [small_run((2, 1), name=HOSTILE, image=IMAGE)], folder)
    handle = launchers.started(folder)
    through = launchers.get(handle.launcher)

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
    assert launchers.missing(folder, 2) == []
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


# --- Really started ------------------------------------------------------------------------------


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return str(one.getsockname()[1])


def test_started_by_hand_is_watched_by_what_it_leaves(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    made = launchers.render("torchrun", [small_run((2, 2))])
    (note,) = made.notes
    assert note.text.splitlines() == [
        f"on node {node}: NODE_RANK={node} MASTER_ADDR=<address of node 0> bash launch.sh"
        for node in (0, 1)
    ]
    handle = launchers.start("torchrun", [small_run((2, 2))], folder)
    through = launchers.get("torchrun")
    (folder / "rank-3.json").write_text("{}")
    assert through.poll(handle) == (
        Status(state="unknown", detail="started by hand: 1 of 4 ranks have left their results"),
    )
    with pytest.raises(RequestError, match="end it there"):
        through.cancel(handle)
    for rank in range(4):
        (folder / f"rank-{rank}.json").write_text("{}")
    assert through.poll(handle)[0].state == "succeeded"


@pytest.mark.slow
def test_two_nodes_meet_when_each_runs_its_line(tmp_path: Path) -> None:
    """Two torchruns of one rank each, as if on two machines."""
    folder = tmp_path / "a run $(touch pwned) 'x'"
    handle = launchers.start("torchrun", [small_run((2, 1), name=HOSTILE)], folder)
    common = {
        **os.environ, "MASTER_ADDR": "localhost", "MASTER_PORT": free_port(),
        "PYTHON": sys.executable, "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    nodes = [
        subprocess.Popen(
            ["bash", str(folder / "launch.sh")], env={**common, "NODE_RANK": str(node)},
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for node in (1, 0)
    ]  # fmt: skip
    for node in nodes:
        said, _ = node.communicate(timeout=300)
        assert node.returncode == 0, said
    assert follow(handle)[0].state == "succeeded"
    trained(handle)
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.slow
def test_a_local_run_outlives_who_started_it(tmp_path: Path) -> None:
    folder = tmp_path / "a run"
    code = (
        "import sys; from pathlib import Path; from planner.validate import launchers; "
        "from tests.fixtures.validation import small_run; "
        "launchers.start('local', [small_run((1, 1))], Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, timeout=120)
    handle = launchers.started(folder)
    assert follow(handle) == (Status(state="succeeded"),)
    trained(handle)


@pytest.mark.slow
def test_a_cancelled_local_run_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    endless = {"job.json": json.dumps({"steps": 1000, "profiled_steps": 1, "memory": False})}
    run = small_run((1, 1))
    handle = launchers.start(
        "local", [run.model_copy(update={"files": {**run.files, **endless}})], folder
    )
    through = launchers.get("local")
    while not (folder / "rank-0.beat").exists():
        (status,) = through.poll(handle)
        assert status.state == "running"
        time.sleep(0.2)
    pid = json.loads((folder / "rank-0.beat").read_text())["pid"]
    through.cancel(handle)
    through.cancel(handle)
    assert through.poll(handle)[0].state == "cancelled"
    assert ended(pid)


# --- The command ---------------------------------------------------------------------------------


class TestCommand:
    @pytest.fixture
    def ask(self, tmp_path: Path) -> Callable[..., int]:
        """`planner validate` of a small request, with more words."""
        path = tmp_path / "request.json"
        path.write_text(json.dumps(small_run((1, 1)).request.document()))
        return lambda *words: cli.run(["validate", "--request", str(path), *words])

    def test_writes_what_can_be_submitted(
        self, ask: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = tmp_path / "run"
        assert ask("--launcher", "slurm", "--output", str(folder), "--steps", "7") == 0
        names = {"job.sbatch", "launch.sh", "request.json", "train.py", "job.json"}
        assert {path.name for path in folder.iterdir()} == names
        assert json.loads((folder / "job.json").read_text())["steps"] == 7
        assert "sbatch job.sbatch" in capsys.readouterr().err

    def test_prints_it(self, ask: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
        assert ask("--launcher", "trainjob", "--image", IMAGE) == 0
        *_, made = yaml.safe_load_all(capsys.readouterr().out)
        assert refusals(made) == []
        assert ask("--launcher", "torchrun") == 0
        assert capsys.readouterr().out.startswith("#!/usr/bin/env bash\n")

    @pytest.mark.parametrize(
        ("words", "why"),
        [
            (("--launcher", "slrm"), "did you mean slurm"),
            (("--launcher", "slurm", "--submit"), "needs a folder"),
            (("--submit",), "--submit needs --launcher"),
            (("--launcher", "slurm", "--check-numerics"), "compared on this machine"),
            (("--launcher", "jobset", "--image", "x y"), "/image: "),
            (("--follow", "/nonexistent"), "has no handle.json"),
        ],
    )
    def test_refuses(
        self,
        words: tuple[str, ...],
        why: str,
        ask: Callable[..., int],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        assert ask(*words) == 2
        assert why in capsys.readouterr().err

    @pytest.mark.slow
    def test_submits_follows_and_reports(
        self, ask: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Its tolerances are wide: that a figure is right is for other tests."""
        folder = str(tmp_path / "run")
        wide = ("--time-tolerance", "10", "--memory-tolerance", "10", "--json")
        assert (
            ask("--launcher", "local", "--output", folder, "--steps", "2", "--submit", *wide) == 0
        )
        report = json.loads(capsys.readouterr().out)
        assert report["environment"]["processes"] == 1
        assert report["losses"][-1] < report["losses"][0]
        assert cli.run(["validate", "--follow", folder, *wide]) == 0
        again = json.loads(capsys.readouterr().out)
        assert again["ranks"] == report["ranks"]

    @pytest.mark.slow
    def test_says_why_a_run_has_no_result(
        self, ask: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = small_run((1, 1))
        files = {**run.files, "train.py": "raise SystemExit('no such plan')\n"}
        launchers.start("local", [run.model_copy(update={"files": files})], tmp_path / "run")
        assert cli.run(["validate", "--follow", str(tmp_path / "run")]) == 1
        said = capsys.readouterr().err
        assert "The run failed" in said
        assert "no such plan" in said


# --- Slurm ---------------------------------------------------------------------------------------


@pytest.mark.exhaustive
class TestSlurm:
    """A real one: two nodes, both this machine."""

    @pytest.fixture
    def slurm(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
        if missing := absent():
            pytest.skip(f"Slurm is not installed: {', '.join(missing)}")
        (tmp_path / "slurm").mkdir()
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm" / "slurm.conf"))
        return lambda **options: two_node_slurm(tmp_path / "slurm", **options)

    def test_two_nodes_train(self, slurm: Callable[..., Any], tmp_path: Path) -> None:
        folder = tmp_path / "a run $(touch pwned) 'x'"
        request = small_run((2, 1), name=HOSTILE.replace("\n", " ")).request
        options = Options(warmup_steps=1, steps=3)
        with slurm():
            remote.submit("slurm", [request], options, folder)
            handle = launchers.started(folder)
            (report,) = remote.reports(handle, options.tolerance)
            asked = ["sbatch", "--test-only", str(folder / "job.sbatch")]
            tested = subprocess.run(asked, capture_output=True, text=True)
            assert tested.returncode == 0, tested.stderr
        assert isinstance(report, ValidationReport)
        assert [one.rank for one in report.ranks] == [0, 1]
        assert report.losses[-1] < report.losses[0]
        (log,) = folder.glob("*.out")
        assert {line[0] for line in log.read_text().splitlines()} == {"0", "1"}
        assert not list(tmp_path.rglob("pwned"))

    def test_an_emitted_bundle_trains(
        self, slurm: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        request = small_run((2, 1)).request
        assert request.plan is not None
        made = launched(frameworks.get("pytorch").write(request, request.plan), request, "slurm")
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        monkeypatch.setenv("TRAIN_ITERS", "3")
        (tmp_path / "bundle").mkdir()
        written(tmp_path / "bundle", made)
        with slurm():
            subprocess.run(
                ["sbatch", "--wait", made.main], cwd=tmp_path / "bundle", check=True, timeout=300
            )
        (log,) = (tmp_path / "bundle").glob("*.out")
        (summary,) = re.findall(r"^0: (\{.*\})$", log.read_text(), re.M)
        losses = json.loads(summary)["losses"]
        assert len(losses) == 3
        assert losses[-1] < losses[0]

    def test_an_array_trains_each_plan_in_its_folder(
        self, slurm: Callable[..., Any], tmp_path: Path
    ) -> None:
        folder = tmp_path / "runs"
        broken = small_run((1, 1))
        files = {**broken.files, "train.py": "raise SystemExit('no such plan')\n"}
        runs = [
            small_run((1, 1)), broken.model_copy(update={"files": files}), small_run((1, 1)),
        ]  # fmt: skip
        with slurm():
            handle = launchers.start("slurm", runs, folder)
            states = follow(handle)
        assert [one.state for one in states] == ["succeeded", "failed", "succeeded"]
        assert "failed" in states[1].detail
        for task in (0, 2):
            assert launchers.missing(folder / str(task), 1) == []
        (log,) = (folder / "1").glob("*.out")
        assert "no such plan" in log.read_text()

    def test_a_cancelled_job_leaves_no_process(
        self, slurm: Callable[..., Any], tmp_path: Path
    ) -> None:
        folder = tmp_path / "run"
        run = small_run((1, 1))
        endless = json.dumps({"steps": 1000, "profiled_steps": 1, "memory": False})
        files = {**run.files, "job.json": endless}
        with slurm():
            handle = launchers.start("slurm", [run.model_copy(update={"files": files})], folder)
            through = launchers.get("slurm")
            while not (folder / "rank-0.beat").exists():
                assert through.poll(handle)[0].state in ("waiting", "running")
                time.sleep(0.2)
            pid = json.loads((folder / "rank-0.beat").read_text())["pid"]
            through.cancel(handle)
            assert follow(handle)[0].state == "cancelled"
            through.cancel(handle)
            assert ended(pid)

    def test_a_job_that_slurm_has_forgotten_is_known_by_its_results(
        self, slurm: Callable[..., Any], tmp_path: Path
    ) -> None:
        """Without accounts squeue forgets a job some time after its end."""
        folder = tmp_path / "run"
        with slurm(forgets_s=2):
            handle = launchers.start("slurm", [small_run((1, 1))], folder)
            follow(handle)
            known = ["squeue", "--noheader", "--states=all", f"--jobs={handle.id}"]
            while subprocess.run(known, capture_output=True).stdout:
                time.sleep(1)
            assert follow(handle) == (Status(state="succeeded"),)
            (folder / "rank-0.json").unlink()
            assert follow(handle) == (
                Status(state="failed", detail="ended without the results of ranks 0"),
            )
