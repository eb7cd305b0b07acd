"""Questions for megatron_check.py from requests and plans, and what their answers must be."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cost_models.data_parallel import held_parameters
from cost_models.layers import layers_of
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import ModelSpec
from planner import frameworks
from planner.constraints import Context
from planner.documents.request import PlanRequest
from planner.frameworks.base import Bundle
from planner.frameworks.megatron import patterns
from planner.frameworks.megatron.layout import chunks
from planner.frameworks.rank_orders import grids, order_of
from planner.frameworks.rules import accumulation
from tests.tools.checkouts import MEGATRON_LM, checkout, environment, megatron_lm_versions

MEGATRON = frameworks.get("megatron")
SCRIPT = Path(__file__).with_name("megatron_check.py")


def question(bundle: Bundle, plan: ParallelPlan, **more: Any) -> dict[str, Any]:
    options = [flag for flag in bundle.flags if flag.name.startswith("--")]
    variables = [flag for flag in bundle.flags if not flag.name.startswith("--")]
    return {
        "argv": [word for option in options for word in option.words],
        "environment": {flag.name: flag.words[1] for flag in variables},
        "world_size": plan.accelerators,
        **more,
    }


def ask(version: str, questions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers of one version."""
    path = checkout(MEGATRON_LM, megatron_lm_versions()[version])
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        input="\n".join(map(json.dumps, questions)),
        capture_output=True,
        text=True,
        env=environment(MEGATRON_LM_PATH=path),
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(questions), done.stderr
    return answers


def expected(request: PlanRequest, plan: ParallelPlan) -> dict[str, Any]:
    """What Megatron must find where it accepts: as in an answer."""
    model = request.model
    held = held_parameters(model, Plans.from_rows([plan]))
    blocks = [(layer.plain + layer.expert).item() for layer in held.layers]
    order = layers_of(model).order
    counts = chunks(model, plan)
    ends = np.cumsum(counts)
    parts = [
        sum(blocks[kind] for kind in order[end - count : end])
        for end, count in zip(ends, counts, strict=True)
    ]
    parts[0] += held.embedding.item()
    parts[-1] += held.head.item() + held.mtp.item()
    parts[-1] += model.mtp_num_layers * blocks[order[-1]]
    context = Context(model, request.cluster, request.training)
    return {
        "failed": None,
        "micro_batches": accumulation(context, plan),
        "layers": _by_stage(_numbered(model, counts), plan.pp),
        "parameters": _by_stage(map(int, parts), plan.pp),
        "groups": groups(plan),
    }


def _numbered(model: ModelSpec, counts: Sequence[int]) -> list[int]:
    """Layers of each chunk as Megatron numbers them: a hybrid model's are its blocks."""
    if not patterns.is_hybrid(model):
        return list(counts)
    layers = iter(patterns.every_layer(model))
    return [sum(len(next(layers)) for _ in range(count)) for count in counts]


def groups(plan: ParallelPlan) -> dict[str, list[list[int]]]:
    """Ranks of each group, as the planner lays them out; of experts where they have a grid."""
    dense, experts = grids(order_of("megatron", plan), plan)
    made = {axis: sorted(dense.groups(axis).tolist()) for axis in ("tp", "cp", "dp", "pp")}
    if experts is not None:
        axes = {"tp": "etp", "ep": "ep", "dp": "edp"}
        made |= {f"expert-{a}": sorted(experts.groups(name).tolist()) for a, name in axes.items()}
    return made


def found(answer: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """The answer with the groups that are wanted, sorted."""
    theirs = answer.get("groups", {})
    return {**answer, "groups": {axis: sorted(theirs.get(axis, [])) for axis in wanted["groups"]}}


def _by_stage(chunks: Iterable[int], pp: int) -> list[list[int]]:
    """Chunk c of stage s is the c pp + s th."""
    return np.reshape(list(chunks), (-1, pp)).T.tolist()
