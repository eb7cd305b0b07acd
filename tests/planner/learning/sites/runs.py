"""Sites of real logs: GPT-2 shapes on nodes of four V100 (tests/fixtures/logs)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from planner.evidence.uncertainty.site import LearnedRun, Site
from planner.inputs.logs import RunLog, lines_of, read_log
from planner.inputs.requests.parser import parse_cluster
from planner.learning.sites.learned_run import LearningRequest, learned_run

LOGS = Path(__file__).parents[3] / "fixtures" / "logs"
CLUSTER = "128x4xv100"
NODES = ("4", "8", "16", "32", "64")
NAMES = (*(f"megatron_gpt_{nodes}_nodes" for nodes in NODES), "megatron_gpt_52b")


@cache
def log(name: str) -> RunLog:
    """What a fixture says."""
    with (LOGS / f"{name}.log").open("rb") as file:
        return read_log(lines_of(file), f"{name}.log")


@cache
def run(name: str, cluster: str = CLUSTER) -> LearnedRun:
    """The run of a fixture."""
    return learned_run(log(name), LearningRequest("lab", parse_cluster(cluster)), Site(name="lab"))


def site(*names: str) -> Site:
    """A site of some fixtures; of all six without names."""
    return Site(name="lab", runs=tuple(map(run, names or NAMES)))
