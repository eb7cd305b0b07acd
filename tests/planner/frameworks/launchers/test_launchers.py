"""Launchers: really run with stubs for the cluster, and held against their schemas."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from cost_models.catalog.names import UnknownName
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner import cli, frameworks
from planner.documents.request import PlanRequest
from planner.frameworks.base import Bundle
from planner.frameworks.launchers import LAUNCHERS, CannotLaunch, job_name, launched
from tests.fixtures.crds import refusals
from tests.fixtures.frameworks.deepspeed import RUNS
from tests.fixtures.launches import MODELS, launch, written

# What stands in for a cluster: two nodes, each task run here, one after the other.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for node in 0 1; do SLURM_NODEID=$node "$@" || exit; done
"""
SCONTROL = (
    '#!/bin/bash\n[ "$1 $2 $3" = "show hostnames gpu[07-08]" ] && printf "gpu07\\ngpu08\\n"\n'
)
RECORD = '#!/bin/bash\nprintf "%s\\n" "$(basename "$0") $*" >> "$STUB_OUT/calls"\n'
KUBERNETES = "1.31"


def asked(
    framework: str, shape: tuple[int, int] = (2, 8), model: str | ModelSpec = "llama"
) -> tuple[PlanRequest, ParallelPlan]:
    """A request whose accelerators have a vendor, and a plan for it."""
    runs = RUNS if framework == "deepspeed" else {}
    request, plan = launch(model, shape, training={"global_batch_size": 512}, **runs)
    group = request.cluster.groups[0]
    own = group.accelerator.model_copy(update={"vendor": "NVIDIA", "id": "h100-sxm-80gb"})
    groups = (group.model_copy(update={"accelerator": own}),)
    cluster = request.cluster.model_copy(update={"groups": groups})
    return request.model_copy(update={"cluster": cluster}), plan


def bundle(
    framework: str,
    launcher: str,
    shape: tuple[int, int] = (2, 8),
    model: str | ModelSpec = "llama",
) -> Bundle:
    request, plan = asked(framework, shape, model)
    return launched(frameworks.get(framework).write(request, plan), request, launcher)


def submitted(made: Bundle, folder: Path) -> list[str]:
    """What the job called, when bash ran it with stubs of Slurm and of the framework."""
    stubs = folder / "stubs"
    stubs.mkdir()
    stubs_of = {"srun": SRUN, "scontrol": SCONTROL, "torchrun": RECORD, "deepspeed": RECORD}
    for name, text in {**stubs_of, "python3": RECORD}.items():
        (stubs / name).write_text(text)
        (stubs / name).chmod(0o755)
    for name, text in made.files.items():
        (folder / name).write_text(text)
    subprocess.run(
        ["bash", str(folder / made.main), "--extra", "two words"],
        env={
            "PATH": f"{stubs}:/usr/bin:/bin", "STUB_OUT": str(stubs), "SLURM_JOB_ID": "123456",
            "SLURM_JOB_NODELIST": "gpu[07-08]", "SLURM_SUBMIT_DIR": str(folder),
        },
        cwd=folder, check=True, timeout=600,
    )  # fmt: skip
    return (stubs / "calls").read_text().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["megatron", "deepspeed"])
def test_the_job_of_64_nodes_passes_shellcheck(framework: str, tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    text = bundle(framework, "slurm", (64, 8)).files["job.sbatch"]
    assert "#SBATCH --nodes=64\n" in text
    (tmp_path / "job.sbatch").write_text(text)
    result = subprocess.run(
        ["shellcheck", str(tmp_path / "job.sbatch")], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout


def test_slurm_starts_megatron_once_on_every_node(tmp_path: Path) -> None:
    calls = submitted(bundle("megatron", "slurm"), tmp_path)
    assert len(calls) == 2
    for node, call in enumerate(calls):
        assert call.startswith("torchrun --nnodes 2 --nproc_per_node 8 ")
        assert f"--node_rank {node} --master_addr gpu07 --master_port 23456 " in call
        assert call.endswith("--extra two words")


def test_slurm_gives_deepspeed_the_nodes_of_the_job(tmp_path: Path) -> None:
    *_, call = submitted(bundle("deepspeed", "slurm"), tmp_path)
    assert call.startswith(f"deepspeed --hostfile {tmp_path}/hostfile.123456 --num_nodes 2 ")
    hosts = (tmp_path / "hostfile.123456").read_text()
    assert hosts == "gpu07 slots=8\ngpu08 slots=8\n"


@pytest.mark.parametrize("nodes", [1, 2, 64])
def test_the_manifest_fits_its_schema(nodes: int) -> None:
    made = bundle("megatron", "kubernetes", (nodes, 8))
    documents = list(yaml.safe_load_all(made.files["job.yaml"]))
    assert [document["kind"] for document in documents] == ["ConfigMap", "Service", "Job"]
    for document in documents:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    files, service, job = documents
    assert files["data"]["launch.sh"] == made.files["launch.sh"]
    spec = job["spec"]
    assert spec["completions"] == spec["parallelism"] == nodes
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert pod["subdomain"] == service["metadata"]["name"]
    address = next(v["value"] for v in container["env"] if v["name"] == "MASTER_ADDR")
    assert address == f"{job['metadata']['name']}-0.{pod['subdomain']}"


@pytest.mark.parametrize("launcher", ["kubernetes", "jobset", "trainjob"])
def test_pods_share_memory_beyond_the_64_mib_that_a_container_has(launcher: str) -> None:
    """NCCL and data loaders use /dev/shm: a volume in memory stands there."""
    documents = yaml.safe_load_all(bundle("megatron", launcher).files["job.yaml"])
    pods = [pod for document in documents for pod in _pods(document)]
    assert pods
    for pod in pods:
        (shared,) = (v["name"] for v in pod["volumes"] if v.get("emptyDir") == {"medium": "Memory"})
        for container in pod["containers"]:
            paths = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert paths[shared] == "/dev/shm"


def _pods(document: Any) -> Iterator[dict[str, Any]]:
    """The specifications of pods in a document: what has containers."""
    if isinstance(document, dict):
        if "containers" in document:
            yield document
        document = list(document.values())
    if isinstance(document, list):
        for item in document:
            yield from _pods(item)


@pytest.mark.parametrize("launcher", ["jobset", "trainjob"])
@pytest.mark.parametrize("nodes", [1, 64])
def test_the_custom_resources_fit_their_schemas(launcher: str, nodes: int) -> None:
    made = bundle("megatron", launcher, (nodes, 8))
    files, resource = yaml.safe_load_all(made.files["job.yaml"])
    kubernetes_validate.validate(files, KUBERNETES, strict=True)
    assert refusals(resource) == []
    assert files["data"]["launch.sh"] == made.files["launch.sh"]
    assert "exec bash /bundle/launch.sh" in str(resource)
    assert "{'nvidia.com/gpu': 8}" in str(resource)


def test_the_schema_would_catch_a_wrong_manifest() -> None:
    made = bundle("megatron", "kubernetes")
    *_, job = yaml.safe_load_all(made.files["job.yaml"])
    job["spec"]["completionMod"] = job["spec"].pop("completionMode")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, KUBERNETES, strict=True)


def test_what_cannot_be_started_is_refused() -> None:
    for launcher in ("kubernetes", "jobset", "trainjob"):
        with pytest.raises(CannotLaunch, match="by ssh"):
            bundle("deepspeed", launcher)
    request, plan = launch()
    with pytest.raises(CannotLaunch, match="no vendor"):
        launched(frameworks.get("megatron").write(request, plan), request, "kubernetes")
    with pytest.raises(CannotLaunch, match="a launcher of its own"):
        bundle("deepspeed", "torchrun")
    with pytest.raises(CannotLaunch, match="a second time"):
        bundle("megatron", "deepspeed")
    other = request.cluster.groups[0].accelerator.model_copy(update={"id": "abacus"})
    groups = (request.cluster.groups[0].model_copy(update={"accelerator": other}),)
    cluster = request.cluster.model_copy(update={"groups": groups})
    with pytest.raises(CannotLaunch, match="what SkyPilot calls"):
        launched(
            frameworks.get("megatron").write(request, plan),
            request.model_copy(update={"cluster": cluster}),
            "skypilot",
        )
    with pytest.raises(UnknownName, match="slurm"):
        bundle("megatron", "slrm")


@pytest.mark.parametrize(("framework", "launcher"), [("megatron", "torchrun"), ("deepspeed",) * 2])
def test_a_bundle_that_needs_no_launcher_says_how_to_start_it(
    framework: str, launcher: str
) -> None:
    made = bundle(framework, launcher)
    plain = frameworks.get(framework).write(*asked(framework))
    assert made.files == plain.files
    note, *_ = made.notes
    assert f"bash {plain.main}" in note.text


def sky(made: Bundle, folder: Path, rank: int) -> list[str]:
    """What the task called on one node, run by bash as SkyPilot runs it."""
    task = yaml.safe_load(made.files["task.yaml"])
    stubs = folder / "stubs"
    stubs.mkdir(exist_ok=True)
    for name in ("torchrun", "deepspeed", "python3"):
        (stubs / name).write_text(RECORD)
        (stubs / name).chmod(0o755)
    (stubs / "calls").write_text("")
    written(folder, made)
    subprocess.run(
        ["bash", "-c", task["run"]],
        env={
            "PATH": f"{stubs}:/usr/bin:/bin", "STUB_OUT": str(stubs),
            "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8", "SKYPILOT_NODE_RANK": str(rank),
        },
        cwd=folder, check=True, timeout=600,
    )  # fmt: skip
    return (stubs / "calls").read_text().splitlines()


def test_skypilot_starts_megatron_on_every_node(tmp_path: Path) -> None:
    made = bundle("megatron", "skypilot")
    task = yaml.safe_load(made.files["task.yaml"])
    assert task["num_nodes"] == 2
    assert task["resources"]["accelerators"] == "H100:8"
    for rank in (0, 1):
        (call,) = sky(made, tmp_path, rank)
        assert f"--node_rank {rank} --master_addr 10.0.0.7 " in call


def test_skypilot_starts_deepspeed_once(tmp_path: Path) -> None:
    made = bundle("deepspeed", "skypilot")
    assert sky(made, tmp_path, 1) == []
    assert sky(made, tmp_path, 0)[-1].startswith("deepspeed --hostfile hostfile.skypilot ")
    assert (tmp_path / "hostfile.skypilot").read_text() == "10.0.0.7 slots=8\n10.0.0.8 slots=8\n"


@pytest.mark.parametrize(
    ("name", "job"),
    [
        ("Llama 3.1 70B", "llama-3-1-70b"),
        ("$(rm -rf /)\n#SBATCH --uid=0", "rm-rf-sbatch-uid-0"),
        ("../../x; y", "x-y"),
        ("7b", "train-7b"),
        ("...", "train"),
        ("n" * 300, "n" * 40),
    ],
)
def test_a_hostile_name_is_a_plain_job_name(name: str, job: str) -> None:
    model = MODELS["llama"].model_copy(update={"name": name})
    assert job_name(asked("megatron", model=model)[0]) == job
    for launcher in {*LAUNCHERS} - {"deepspeed"}:
        made = bundle("megatron", launcher, model=model)
        assert launcher == "torchrun" or job in made.files[made.main]
        lines = made.files[made.main].splitlines()
        assert [line for line in lines if line.startswith("#SBATCH --uid")] == []


class TestCommand:
    WORDS = (
        "emit", "--model", "llama-3.1-8b", "--cluster", "2x8xh100-sxm", "--seq-length", "2048",
        "--global-batch-size", "64", "--tp", "8", "--pp", "1", "--framework", "megatron",
    )  # fmt: skip

    def test_writes_the_job_beside_the_script(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = tmp_path / "run"
        assert cli.run([*self.WORDS, "--launcher", "slurm", "--output", str(folder)]) == 0
        assert {path.name for path in folder.iterdir()} == {"job.sbatch", "launch.sh"}
        assert "job.sbatch starts launch.sh" in capsys.readouterr().err

    @pytest.mark.parametrize("launcher", ["", "slrm", "\0", "../slurm", "x" * 300])
    def test_junk(self, launcher: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run([*self.WORDS, "--launcher", launcher]) == 2
        assert "no launcher" in capsys.readouterr().err
