"""Questions for deepspeed_check.py from requests and plans, and what their answers must be."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cost_models.data_parallel import held_parameters
from cost_models.plans import ParallelPlan, Plans
from planner import frameworks
from planner.constraints import Context
from planner.documents.request import PlanRequest
from planner.frameworks.base import Bundle
from planner.frameworks.rank_orders import grids, order_of
from planner.frameworks.rules import accumulation
from tests.tools.checkouts import environment

DEEPSPEED = frameworks.get("deepspeed")
SCRIPT = Path(__file__).with_name("deepspeed_check.py")


def question(bundle: Bundle, plan: ParallelPlan) -> dict[str, Any]:
    keys = {key.name for key in bundle.flags if key.group == "ds_config.json"}
    said = [flag for flag in bundle.flags if flag.name not in keys]
    return {
        "config": json.loads(bundle.files["ds_config.json"]),
        "hostfile": bundle.files["hostfile"],
        "argv": [w for flag in said if flag.name.startswith("--") for w in flag.words],
        "environment": {f.name: f.words[1] for f in said if not f.name.startswith("--")},
        "world_size": plan.accelerators,
        "tp": plan.tp,
        "pp": plan.pp,
        "dp": plan.dp,
    }


def ask(questions: Sequence[dict[str, Any]], own: Path | None = None) -> list[dict[str, Any]]:
    """The answers; with a checkout of Megatron-DeepSpeed those of its stages too."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        input="\n".join(map(json.dumps, questions)),
        capture_output=True,
        text=True,
        env=environment(MEGATRON_DEEPSPEED_PATH=own) if own else None,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(questions), done.stderr
    return answers


def expected(request: PlanRequest, plan: ParallelPlan, own: Path | None) -> dict[str, Any]:
    """What must be found where it is accepted: as in an answer."""
    # Its topology knows no sequence parallelism: those ranks are data-parallel ones.
    flat = plan.model_copy(update={"cp": 1, "dp": plan.dp * plan.cp})
    dense, _ = grids(order_of("deepspeed", flat), flat)
    wanted: dict[str, Any] = {
        "failed": None,
        "micro_batches": accumulation(
            Context(request.model, request.cluster, request.training), plan
        ),
        "zero_stage": plan.zero_stage,
        "slots": plan.accelerators,
        "groups": {
            "pipe": sorted(dense.groups("pp").tolist()),
            "data": sorted(dense.groups("dp").tolist()),
            "model": sorted(dense.groups("tp").tolist()),
        },
    }
    if own:
        held = held_parameters(request.model, Plans.from_rows([plan]))
        layers = request.model.num_layers // plan.pp
        parts = [layers * held.layers[0].plain.item()] * plan.pp
        parts[0] += held.embedding.item()
        parts[-1] += held.head.item()
        positions = held.embedding.item() - held.word_table.item()
        # Two ways of Megatron-DeepSpeed with learned positions that we do not count: sequence
        # parallelism splits their table over tp, and the last stage's copy of a tied embedding,
        # which is the whole embedding, has one too.
        held_positions = positions / plan.tp if plan.sequence_parallel else positions
        parts[0] += held_positions - positions
        if plan.pp > 1 and request.model.tied_embeddings:
            parts[-1] += held_positions
        wanted |= {
            "data_parallel": plan.dp,
            "layers": [layers] * plan.pp,
            "parameters": list(map(int, parts)),
        }
    return wanted
