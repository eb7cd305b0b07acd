"""What is answered about a mixed cluster: the document of `--json`, REST and Python."""

from __future__ import annotations

from typing import Literal

from cost_models.plans import ParallelPlan
from planner.documents.plan_report import Answer, Document, Note

Kind = Literal["part", "slowest", "pipeline"]


class StageUse(Document):
    """One pipeline stage: whose nodes, how many layers, how long and how full."""

    stage: int
    group: int
    layers: int
    micro_batch_s: float
    total_bytes: float
    capacity_bytes: float


class Option(Document):
    """One way to use the cluster.

    part: the nodes of one group only; slowest: all, evenly, each part of every accelerator as slow
    and small as the worst; pipeline: every stage on one group, the groups in `order`.
    """

    kind: Kind
    order: tuple[int, ...]
    accelerators: int
    plan: ParallelPlan
    iteration_time_s: float
    tokens_per_s: float
    days: float | None
    cost_usd: float | None
    stages: tuple[StageUse, ...]


class GroupName(Document):
    """A group of equal nodes."""

    accelerator: str
    nodes: int
    accelerators: int


class MixedAnswer(Answer):
    """The answer to `planner plan` for a mixed cluster: the fastest way first."""

    groups: tuple[GroupName, ...]
    options: tuple[Option, ...]
    verdict: str
    notes: tuple[Note, ...]
    search_time_s: float
