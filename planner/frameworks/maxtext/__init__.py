"""MaxText: one YAML over its base.yml, on TPUs and on GPUs."""

from __future__ import annotations

from cost_models.plans import ParallelPlan
from planner.constraints import Context
from planner.documents.request import PlanRequest
from planner.frameworks import bash_writer, unwritten_facts
from planner.frameworks.base import Bundle, Flag, fields, flag
from planner.frameworks.launch_bundle import Launch, mock_data
from planner.frameworks.maxtext import reader
from planner.frameworks.maxtext.mesh import TPU, on_tpus
from planner.frameworks.maxtext.reader import PROGRAM
from planner.frameworks.maxtext.rules import RULES, lacks
from planner.frameworks.maxtext.settings import numerics_fields, rows

VERSIONS = "main of August 2026 (e591f30)"
CONFIG = "config.yml"

FIELDS = fields(__name__)
UNWRITTEN = unwritten_facts.table(__name__)
# Rendezvous of JAX's processes on GPUs; TPUs need no settings for it.
COORDINATOR = """\
export NNODES NODE_RANK
export JAX_COORDINATOR_IP="$MASTER_ADDR"
export JAX_COORDINATOR_PORT="$MASTER_PORT"\
"""
LAUNCH = Launch("maxtext", "MaxText", VERSIONS, __name__, mock_data(CONFIG))


def _environment(c: Context) -> tuple[Flag, ...]:
    if on_tpus(c.cluster):
        return ()
    name, why = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "memory fraction of JAX; the rest is for NCCL")
    return (flag("environment", name, 0.92, why),)


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The launch script and the config."""
    c = Context(request.model, request.cluster, request.training)
    variables = _environment(c)
    words = {"program": PROGRAM}
    if on_tpus(c.cluster):
        words["rendezvous"] = ""
    else:
        words["exports"] = "\n".join([COORDINATOR, *map(bash_writer.export, variables)])
    missing = unwritten_facts.of(c.model, UNWRITTEN, numerics_fields(c.model))
    return LAUNCH.with_config(
        request, plan, missing, CONFIG, list(rows(c, plan)), variables, words=words
    )


FRAMEWORK = LAUNCH.framework(
    RULES,
    FIELDS,
    render,
    reader,
    choices={"recompute": ("none", "full", "selective")},
    lacks=lacks,
    trains_all="its pre-trainer trains all weights: adapters need Tunix",
    training={"gradient_reduce_dtype": "bf16"},
    starts_on=(TPU,),
)
