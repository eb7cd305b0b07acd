"""The manifests for Kubernetes and KubeRay, held to their schemas and to what they start.

Kustomize builds base and overlays, as it does for a cluster.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import api
from api.settings import Settings
from planner import cli
from planner.running.store import Store
from tests.fixtures.crds import refusals
from tests.fixtures.postgres import Postgres, postgres

__all__ = ["postgres"]

KUBERNETES = "1.31"
ROOT = Path(api.__file__).parents[1]
DEPLOY = ROOT / "api" / "deploy"
GRID, VOLUME, RAY = yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text())
OVERLAYS = ("overlays/team", "overlays/production")
every_overlay = pytest.mark.parametrize("overlay", OVERLAYS)
Object = dict[str, Any]


@cache
def built(folder: str = "base") -> tuple[Object, ...]:
    """The objects that a folder of Kustomize makes."""
    if not shutil.which("kubectl"):
        pytest.skip("needs kubectl")
    command = ["kubectl", "kustomize", str(DEPLOY / "kubernetes" / folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def of(kind: str, folder: str = "base") -> list[Object]:
    return [one for one in built(folder) if one["kind"] == kind]


def named(kind: str, name: str, folder: str = "base") -> Object:
    (found,) = (one for one in of(kind, folder) if one["metadata"]["name"] == name)
    return found


def pods(folder: str = "base") -> list[Object]:
    """All that objects have pods of, as templates."""
    several = [*of("Deployment", folder), *of("StatefulSet", folder)]
    crons = [one["spec"]["jobTemplate"] for one in of("CronJob", folder)]
    return [one["spec"]["template"] for one in (*several, *crons)]


def ray_pods() -> list[dict[str, Any]]:
    """The pods of the head and of a worker."""
    cluster = RAY["spec"]["rayClusterSpec"]
    return [one["template"] for one in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["base", *OVERLAYS])
def test_they_are_what_kubernetes_takes(folder: str) -> None:
    for one in built(folder):
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
        assert one["kind"] == "Namespace" or one["metadata"]["namespace"] == "planner", one


def test_a_wrong_field_is_refused() -> None:
    wrong = json.loads(json.dumps(named("Deployment", "planner")))
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="livenessProb"):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


@pytest.mark.slow
@every_overlay
def test_they_fit_together(overlay: str) -> None:
    labels = [pod["metadata"]["labels"].items() for pod in pods(overlay)]
    selectors = [one["spec"]["selector"] for one in of("Service", overlay)]
    budgets = of("PodDisruptionBudget", overlay)
    selectors += [one["spec"]["selector"]["matchLabels"] for one in budgets]
    policies = of("NetworkPolicy", overlay)
    selectors += [one["spec"]["podSelector"].get("matchLabels", {}) for one in policies]
    for selector in selectors:
        assert any(selector.items() <= one for one in labels), selector
    for scaler in of("HorizontalPodAutoscaler", overlay):
        target = scaler["spec"]["scaleTargetRef"]
        assert "replicas" not in named(target["kind"], target["name"], overlay)["spec"]
    for ingress in of("Ingress", overlay):
        hosts = {rule["host"] for rule in ingress["spec"]["rules"]}
        assert {host for one in ingress["spec"]["tls"] for host in one["hosts"]} == hosts
        (path,) = (path for rule in ingress["spec"]["rules"] for path in rule["http"]["paths"])
        service = path["backend"]["service"]
        ports = named("Service", service["name"], overlay)["spec"]["ports"]
        assert service["port"]["name"] in {port["name"] for port in ports}


@every_overlay
def test_no_pod_is_more_than_it_must(overlay: str) -> None:
    """What the restricted standard of pod security asks, and a root file system to read only."""
    for pod in pods(overlay):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not spec["automountServiceAccountToken"]
        for container in spec["containers"]:
            own = container["securityContext"]
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert own["readOnlyRootFilesystem"]
            assert not own["allowPrivilegeEscalation"]
            assert container["resources"]["limits"]["memory"]
    (namespace,) = of("Namespace", overlay)
    labels = namespace["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


@every_overlay
def test_what_serves_is_watched(overlay: str) -> None:
    for one in (*of("Deployment", overlay), *of("StatefulSet", overlay)):
        (container,) = one["spec"]["template"]["spec"]["containers"]
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()


def allowed(overlay: str, way: str, source: str, target: str) -> bool:
    """Whether the policies let one pod reach another, going out or coming in."""
    here, there = (source, target) if way == "egress" else (target, source)
    for policy in of("NetworkPolicy", overlay):
        chosen = policy["spec"]["podSelector"].get("matchLabels", {"app": here})
        for rule in policy["spec"].get(way, []) if chosen == {"app": here} else []:
            peers = rule["to" if way == "egress" else "from"]
            if any(peer.get("podSelector") == {"matchLabels": {"app": there}} for peer in peers):
                return True
    return False


@every_overlay
def test_who_may_reach_whom(overlay: str) -> None:
    everyone = named("NetworkPolicy", "nothing", overlay)
    assert everyone["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    names = ("planner", "planner-postgres", "planner-backup")
    reached = {
        (source, target)
        for source in names
        for target in names
        if all(allowed(overlay, way, source, target) for way in ("egress", "ingress"))
    }
    assert reached == {("planner", "planner-postgres"), ("planner-backup", "planner-postgres")}


def test_images_of_others_are_named_by_their_digest() -> None:
    texts = [(DEPLOY / name).read_text() for name in ("compose.yaml", "Dockerfile")]
    found = re.findall(r"(?:image: |BASE=)([a-z]+:\S+)", "\n".join(texts))
    for folder in ("base", *OVERLAYS):
        containers = (one for pod in pods(folder) for one in pod["spec"]["containers"])
        found += [one["image"] for one in containers if one["name"] != "planner"]
    assert {image.partition(":")[0] for image in found} == {"python", "postgres", "nginx"}
    for image in found:
        assert re.fullmatch(r"[a-z]+:[\w.-]+@sha256:[0-9a-f]{64}", image), image


@every_overlay
def test_their_settings_are_the_service_s(overlay: str) -> None:
    readme = (Path(api.__file__).parent / "README.md").read_text()
    servers = {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]["containers"][0]
        for one in (*of("Deployment", overlay), *of("StatefulSet", overlay))
    }
    runs = {}
    for name in ("planner", "planner-jobs"):
        values = {one["name"]: one.get("value") for one in servers[name]["env"]}
        assert {setting for setting in values if f"`{setting}`" not in readme} == set()
        known = {setting: value for setting, value in values.items() if value is not None}
        runs[name] = Settings.from_environment(known).jobs.max_runs
    assert runs == {"planner": 0, "planner-jobs": 1}


def backed_up(url: str, folder: Path, programs: Path) -> subprocess.CompletedProcess[str]:
    """Do what the CronJob does, on a database and a folder of our own."""
    (pod,) = (one["spec"]["jobTemplate"]["spec"]["template"] for one in of("CronJob"))
    (container,) = pod["spec"]["containers"]
    *shell, script = container["command"]
    database, _, host = url.partition("@/")[2].partition("?host=")
    own = {"PGHOST": host, "PGDATABASE": database, "PGUSER": "postgres"}
    assert own.keys() | {"PGPASSWORD"} == {one["name"] for one in container["env"]}
    own["PATH"] = f"{programs}:{os.environ['PATH']}"
    script = script.replace("/backups", str(folder))
    return subprocess.run([*shell, script], env=own, capture_output=True, text=True)


@pytest.mark.slow
def test_a_backup_is_what_a_service_goes_on_with(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.database()
    store = Store.open(url, 1 << 20)
    store.results.put("pl_kept", b"{}")
    store.close()
    for day in range(1, 20):
        old = tmp_path / f"planner-202601{day:02}T021700Z.dump"
        old.write_text("of another night")
        os.utime(old, (day, day))
    done = backed_up(url, tmp_path, postgres.programs)
    assert done.returncode == 0, done.stderr
    dumps = sorted(tmp_path.iterdir())
    assert len(dumps) == 14
    newest = dumps[-1]
    assert newest.read_bytes()[:5] == b"PGDMP"
    another = postgres.database()
    database, _, host = another.partition("@/")[2].partition("?host=")
    restore = [
        str(postgres.programs / "pg_restore"), "--no-owner", "--exit-on-error",
        "--host", host, "--username", "postgres", "--dbname", database, str(newest),
    ]  # fmt: skip
    subprocess.run(restore, check=True)
    store = Store.open(another, 1 << 20)
    assert store.results.get("pl_kept") == b"{}"
    store.close()


@pytest.mark.slow
def test_a_backup_that_fails_leaves_the_ones_before(postgres: Postgres, tmp_path: Path) -> None:
    before = tmp_path / "planner-20260101T021700Z.dump"
    before.write_text("of another night")
    done = backed_up("postgresql://postgres@/no_such?host=/nowhere", tmp_path, postgres.programs)
    assert done.returncode != 0
    assert [one.name for one in tmp_path.glob("*.dump")] == [before.name]


def test_a_sweep_on_kuberay_is_what_its_operator_takes() -> None:
    for one in (GRID, VOLUME):
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
    assert refusals(RAY) == []
    for pod in ray_pods():
        whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, **pod}
        kubernetes_validate.validate(whole, KUBERNETES, strict=True)


def test_a_wrong_field_of_it_is_refused() -> None:
    wrong = yaml.safe_load(json.dumps(RAY))
    wrong["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replica"] = 4
    (refusal,) = refusals(wrong)
    assert "'replica' was unexpected" in refusal


def test_a_sweep_on_kuberay_fits_together() -> None:
    head, worker = ray_pods()
    images = {pod["spec"]["containers"][0]["image"] for pod in (head, worker)}
    servers = (named("Deployment", "planner"), named("StatefulSet", "planner-jobs"))
    specs = [one["spec"]["template"]["spec"] for one in servers]
    assert images == {one["containers"][0]["image"] for one in specs}
    grid, results = head["spec"]["volumes"]
    assert grid["configMap"]["name"] == GRID["metadata"]["name"]
    assert results["persistentVolumeClaim"]["claimName"] == VOLUME["metadata"]["name"]
    pins = (ROOT / "constraints.txt").read_text()
    assert f"\nray=={RAY['spec']['rayClusterSpec']['rayVersion']}\n" in pins


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("local", marks=pytest.mark.slow),
        pytest.param("ray", marks=pytest.mark.exhaustive),
    ],
)
def test_the_entry_point_of_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    if backend == "ray":
        pytest.importorskip("ray")
    (text,) = GRID["data"].values()
    grid = yaml.safe_load(text)
    if backend == "local":  # two questions on each axis say as much of the command
        grid["axes"] = {name: values[:2] for name, values in grid["axes"].items()}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
    command = RAY["spec"]["entrypoint"].replace("--backend ray", f"--backend {backend}")
    words = command.replace("/grid/", f"{tmp_path}/").replace("/results/", f"{tmp_path}/").split()
    monkeypatch.chdir(tmp_path)
    assert cli.run([*words[1:], "--workers", "1" if backend == "local" else "2"]) == 0
    rows = 4 if backend == "local" else 20
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 1 + rows
