"""The manifests for Kubernetes, held to its own schemas and to the settings of the service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

import api
from api.settings import Settings

KUBERNETES = "1.31"
TEXT = (Path(api.__file__).parent / "deploy" / "kubernetes.yaml").read_text()
OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all(TEXT))


def of(kind: str) -> list[dict[str, Any]]:
    return [one for one in OBJECTS if one["kind"] == kind]


def pods() -> list[dict[str, Any]]:
    return [one["spec"]["template"] for kind in ("Deployment", "StatefulSet") for one in of(kind)]


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
