"""DeepSpeed: a JSON config and the launch line of Megatron-DeepSpeed's `pretrain_gpt.py`.

The JSON holds neither model nor pipeline, so only the whole bundle expresses a plan.  The flags
are those of an older Megatron, not of today's Megatron-LM.
"""

from __future__ import annotations

import json

from cost_models.package_files import text
from cost_models.parameters import padded_vocab_size
from cost_models.plans import ParallelPlan
from planner.constraints import Context
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import bash_writer, unwritten_facts
from planner.frameworks.base import Bundle, Flag, fields, flag
from planner.frameworks.deepspeed import reader
from planner.frameworks.deepspeed.flags import (
    VOCAB_MULTIPLE,
    arguments,
    config,
    nested,
    numerics_fields,
)
from planner.frameworks.deepspeed.rules import RULES
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.rules import accelerators_per_node, nodes

VERSIONS = "DeepSpeed 0.16 to 0.19; Megatron-DeepSpeed of July 2025 (4efb479)"

FIELDS = fields(__name__)

UNWRITTEN = unwritten_facts.table(__name__)


def environment(
    plan: ParallelPlan, why: str = "required by sequence parallelism"
) -> tuple[Flag, ...]:
    """Environment variables that the options need."""
    named = flag("environment", "CUDA_DEVICE_MAX_CONNECTIONS", 1, why)
    return (named,) if plan.sequence_parallel else ()


def hostfile(request: PlanRequest) -> str:
    """A hostfile of DeepSpeed's launcher, with names to fill in."""
    slots, count = accelerators_per_node(request.cluster), nodes(request.cluster)
    hosts = ["localhost"] if count == 1 else [f"node-{i}" for i in range(count)]
    head = "# Put the names of your nodes here, one per line, the launching node first.\n"
    return head + "".join(f"{host} slots={slots}\n" for host in hosts)


def beside(request: PlanRequest, package: str) -> tuple[dict[str, str], dict[str, object]]:
    """What a launch with DeepSpeed has beside its config: files, and words of the script."""
    files = {"hostfile": hostfile(request), "mock_data.py": text(package, "mock_data.py.txt")}
    length = request.training.seq_length + 1
    return files, {"vocab_size": request.model.vocab_size, "length": length}


def padded(request: PlanRequest, plan: ParallelPlan) -> Note:
    """A note on the rows of the embedding."""
    rows = int(padded_vocab_size(request.model.vocab_size, plan.tp, VOCAB_MULTIPLE))
    return Note(code="padded_vocab", text=f"The embedding has {rows} rows.")


LAUNCH = Launch("deepspeed", "Megatron-DeepSpeed", VERSIONS, __name__, starts="first node")


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The JSON, the launch script, the hostfile and the mock-data script."""
    c = Context(request.model, request.cluster, request.training)
    keys = list(config(c, plan))
    variables, options = environment(plan), arguments(c, plan)
    files, words = beside(request, __name__)
    document = nested({key: value for key, value, _ in keys})
    files = {"ds_config.json": json.dumps(document, indent=2) + "\n", **files}
    if variables:
        files["deepspeed_env"] = "".join(f"{'='.join(v.words)}\n" for v in variables)
        carried = 'export DS_ENV_FILE="$BUNDLE/deepspeed_env"  # carries it to every node'
        words["exports"] = "\n".join((*map(bash_writer.export, variables), carried))
    return LAUNCH.bundle(
        request,
        plan,
        unwritten_facts.of(c.model, UNWRITTEN, numerics_fields(c.model)),
        options,
        variables,
        (*(flag("ds_config.json", key, json.dumps(value), why) for key, value, why in keys),
         *options),
        (padded(request, plan),),
        files,
        words,
    )  # fmt: skip


FRAMEWORK = LAUNCH.framework(
    RULES,
    FIELDS,
    render,
    reader,
    title="DeepSpeed",
    choices={"overlap_grad_reduce": (False, True), "overlap_param_gather": (False, True)},
    trains_all="Megatron-DeepSpeed's pretrain_gpt.py trains all weights",
)
