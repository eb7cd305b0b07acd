"""torchtune: one YAML for its recipes that tune all weights or adapters, alone or with FSDP 2."""

from __future__ import annotations

from cost_models.plans import ParallelPlan
from planner.constraints import Context
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import bash_writer, unwritten_facts
from planner.frameworks.accelerate.peft import NAMES
from planner.frameworks.base import Bundle, fields
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.rules import accelerators_per_node, nodes
from planner.frameworks.torchtune import reader
from planner.frameworks.torchtune.rules import PARTIAL_TRAINING, RULES, lacks
from planner.frameworks.torchtune.settings import recipe, rows

VERSIONS = "main of April 2026 (0.7.0, bd2a0fc), torch 2.13, torchao 0.18"
LAUNCH = Launch(
    "torchtune",
    "torchtune",
    VERSIONS,
    __name__,
    "A few steps on a sample data set: give config.yaml your own.",
)
UNWRITTEN = unwritten_facts.table(__name__)
NEEDS = Note(
    code="needs",
    text="MODEL is a folder with weights and a tokenizer; the data set in config.yaml is a sample.",
)
# What starts the processes of a node; `tune` takes options of torchrun, and none for one process.
RANKS = """\
LAUNCH_ARGS=(
  --nnodes "$NNODES"
  --nproc_per_node {}
  --node_rank "$NODE_RANK"
  --rdzv_endpoint "$MASTER_ADDR:$MASTER_PORT"
)"""


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The launch script and the config."""
    c = Context(request.model, request.cluster, request.training)
    words = {
        "recipe": recipe(c.training, plan),
        "rendezvous": "# One process.",
        "launch": "LAUNCH_ARGS=()",
    }
    if plan.accelerators > 1:
        words["rendezvous"] = bash_writer.rendezvous(nodes(c.cluster))
        words["launch"] = RANKS.format(accelerators_per_node(c.cluster))
    return LAUNCH.with_config(
        request,
        plan,
        # Rules refuse what a component cannot say.
        unwritten_facts.of(c.model, UNWRITTEN, c.model.numerics.stated),
        "config.yaml",
        list(rows(c, plan)),
        notes=(NEEDS,),
        words=words,
    )


FRAMEWORK = LAUNCH.framework(
    RULES,
    fields(__name__),
    render,
    reader,
    adapters={"lora_targets": NAMES},
    partial_training=PARTIAL_TRAINING,
    lacks=lacks,
    training={
        "gradient_dtype": "bf16",
        "gradient_reduce_dtype": "bf16",
        "master_weights_dtype": "none",
        "optimizer_state_dtype": "bf16",
    },
    steps_in_backward=True,
    before_ampere=("flash2",),  # by torch, on repeated keys
    competes=False,
)
