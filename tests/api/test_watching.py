"""What /metrics tells, and that dashboard and alerts ask for nothing else."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient

import api
from api.settings import Settings
from planner.running.jobs.settings import JobSettings
from tests.fixtures.job_server import SWEEP
from tests.fixtures.service import serving

DEPLOY = Path(api.__file__).parent / "deploy"
METRIC = re.compile(r"\bplanner_[a-z_]+")


def asked() -> set[str]:
    """The metrics that alerts and panels name."""
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
    panels = json.loads((DEPLOY / "dashboard.json").read_text())["panels"]
    texts = [rule["expr"] for rule in rules]
    texts += [target["expr"] for panel in panels for target in panel["targets"]]
    return {name for text in texts for name in METRIC.findall(text)}


def test_dashboard_and_alerts_ask_for_what_there_is(client: TestClient) -> None:
    client.get("/v1/info")
    told = set(METRIC.findall(client.get("/metrics").text))
    assert len(asked()) >= 8
    assert asked() - told == set()


@pytest.mark.exhaustive
def test_jobs_and_places_are_counted() -> None:
    with serving(Settings(max_concurrency=3, jobs=JobSettings(max_runs=0))) as client:
        before = client.app.state.store.jobs.counts()[0].get("queued", 0)  # type: ignore[attr-defined]
        path = client.post("/v1/sweeps", json=SWEEP).json()["links"]["self"]
        wanted = f'planner_jobs{{state="queued"}} {before + 1}.0'
        end = time.monotonic() + 30
        while wanted not in (text := client.get("/metrics").text):
            assert time.monotonic() < end, text
            time.sleep(0.1)
        assert 'planner_places{pool="searches"} 3.0' in text
        assert 'planner_places_taken{pool="estimates"} 0.0' in text
        client.post(f"{path}/cancel")
        client.delete(path)
