"""The manifests for Kubernetes and KubeRay, held to their schemas and to what they start."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import api
from api.settings import Settings
from planner import cli
from tests.fixtures.crds import refusals

KUBERNETES = "1.31"
ROOT = Path(api.__file__).parents[1]
DEPLOY = ROOT / "api" / "deploy"
TEXT = (DEPLOY / "kubernetes.yaml").read_text()
OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all(TEXT))
GRID, VOLUME, RAY = yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text())


def of(kind: str) -> list[dict[str, Any]]:
    return [one for one in OBJECTS if one["kind"] == kind]


def pods() -> list[dict[str, Any]]:
    return [one["spec"]["template"] for kind in ("Deployment", "StatefulSet") for one in of(kind)]


def ray_pods() -> list[dict[str, Any]]:
    """The pods of the head and of a worker."""
    cluster = RAY["spec"]["rayClusterSpec"]
    return [one["template"] for one in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def test_they_are_what_kubernetes_takes() -> None:
    for one in OBJECTS:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)


def test_they_fit_together() -> None:
    labels = [pod["metadata"]["labels"].items() for pod in pods()]
    for service in of("Service"):
        assert any(service["spec"]["selector"].items() <= one for one in labels)
    for scaler in of("HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        assert target["name"] in {one["metadata"]["name"] for one in of(target["kind"])}
    for pod in pods():
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        (container,) = pod["spec"]["containers"]
        assert "readinessProbe" in container
        assert container["resources"]["limits"]["memory"]


def test_their_settings_are_the_service_s() -> None:
    names = set(re.findall(r"PLANNER_[A-Z0-9_]+", TEXT))
    readme = (Path(api.__file__).parent / "README.md").read_text()
    assert {name for name in names if f"`{name}`" not in readme} == set()
    (one,) = [x for x in of("Deployment") if x["metadata"]["name"] == "planner"]
    values = {
        e["name"]: e.get("value") for e in one["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    known = {name: value for name, value in values.items() if value is not None}
    assert Settings.from_environment(known).jobs.max_runs == 0


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
    assert images == {one["spec"]["containers"][0]["image"] for one in pods()[:2]}
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
