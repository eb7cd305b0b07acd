"""torchtitan: a registry module (Python) with the model and every setting, and a launch script.

Written for torchtitan 0.3.0, which is configured by a function that returns Trainer.Config.  Up to
0.2.2 it read TOML; its main branch since August 2026 counts batches in tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.blocks.delta_net import GatedDeltaNet
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner.constraints import Context
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import unwritten_facts
from planner.frameworks.base import Bundle, fields, flag
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.rules import train_iterations
from planner.frameworks.torch_schedules import SCHEDULES
from planner.frameworks.torchtitan import numerics, reader
from planner.frameworks.torchtitan.module import module
from planner.frameworks.torchtitan.rules import ATTENTION, DISPATCHERS, RULES
from planner.frameworks.torchtitan.settings import environment, settings

VERSIONS = "0.3.0 with torch 2.13"
MODULE = "plan_config"

FIELDS = fields(
    __name__, schedule=SCHEDULES, attention_kernel=ATTENTION, moe_dispatcher=DISPATCHERS
)

UNWRITTEN = unwritten_facts.table(__name__)


LAUNCH = Launch("torchtitan", "torchtitan", VERSIONS, __name__)
GENERATION = Note(
    code="torchtitan_generation",
    text="For torchtitan 0.3.0. Up to 0.2.2 it reads TOML, and since August 2026 its main branch "
    "counts batches in tokens: neither takes this module.",
)


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The registry module and the script that trains with it."""
    c = Context(request.model, request.cluster, request.training)
    said = settings(c, plan)
    arguments = (
        flag("TRAIN_ARGS", "--module", MODULE, "the registry module beside this script"),
        flag("TRAIN_ARGS", "--config", "config", "function of that module"),
        train_iterations("TRAIN_ARGS", c.training, "--training.steps"),
    )
    missing = unwritten_facts.of(c.model, UNWRITTEN, numerics.numerics_fields(c.model))
    head, comments = LAUNCH.head(request, plan), unwritten_facts.comments(missing)
    return LAUNCH.bundle(
        request,
        plan,
        missing,
        arguments,
        environment(),
        (*arguments, *said),
        (GENERATION,),
        {f"{MODULE}.py": module(c, said, head, comments)},
    )


def _lacks(model: ModelSpec) -> Iterator[str]:
    """Why a model that torchtitan has cannot be built by the registry module."""
    if any(isinstance(block, GatedDeltaNet) for layer in model.layer_pattern for block in layer):
        yield "its qwen3_5 has gated delta nets, but only with an image encoder"


FRAMEWORK = LAUNCH.framework(
    RULES,
    FIELDS,
    render,
    reader,
    choices={
        "overlap_grad_reduce": (True, False),
        "overlap_tp": (False, True),
        "compile": (False, True),
    },
    trains_all="the registry module trains all weights, without a LoRAConverter",
    lacks=_lacks,
)
