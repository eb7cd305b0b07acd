"""Native PyTorch: a training script on torch's own parallelism, and its launch script.

The training script is one template (train.py.txt, not a module: planner does not import torch);
its CONFIG block holds the plan.
"""

from __future__ import annotations

import textwrap

from cost_models.package_files import text
from cost_models.plans import ParallelPlan
from planner.constraints import Context
from planner.documents.request import PlanRequest
from planner.frameworks import unwritten_facts
from planner.frameworks.base import Bundle, Flag, fields, flag
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.pytorch import encoders, patterns, reader
from planner.frameworks.pytorch.config import NUMERICS, WIDTH, flags
from planner.frameworks.pytorch.reader import SCRIPT
from planner.frameworks.pytorch.rules import RULES
from planner.frameworks.torch_schedules import SCHEDULES

VERSIONS = "torch 2.13"
FIELDS = fields(__name__, schedule=SCHEDULES)
UNWRITTEN = unwritten_facts.table(__name__)


def _block(entries: tuple[Flag, ...], missing: str) -> str:
    """The CONFIG block as Python."""
    return "\n".join(
        [missing, "CONFIG = {", *(line for one in entries for line in _lines(one)), "}"]
    )


def _lines(entry: Flag) -> list[str]:
    """An entry with its reason as a comment, above it if the line would be too long."""
    said = f'    "{entry.name}": {entry.value},'
    line = f"{said}  # {entry.why}"
    if len(line) <= WIDTH:
        return [line]
    return [*(f"    # {part}" for part in textwrap.wrap(entry.why, WIDTH - 6)), said]


LAUNCH = Launch("pytorch", "Native PyTorch", VERSIONS, __name__)
ALLOCATOR = flag(
    "environment",
    "PYTORCH_CUDA_ALLOC_CONF",
    "expandable_segments:True",
    "less fragmentation, as the plan counts",
)
_OWN_RECOMPUTE = "    C.recompute_num_layers = C.recompute_layers[index]\n"


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The training script with its CONFIG, and the launch script."""
    c = Context(request.model, request.cluster, request.training)
    entries = flags(c, plan)
    missing = unwritten_facts.of(c.model, UNWRITTEN, {field for _, _, field in NUMERICS})
    template = text(__name__, "train.py.txt")
    marks = {
        "@CONFIG@": _block(entries, unwritten_facts.comments(missing)),
        **patterns.classes(c.model),
    }
    marks["@OWN RECOMPUTE@"] = _OWN_RECOMPUTE if plan.recompute_layers else ""
    for mark, part in marks.items():
        template = template.replace(mark, part)
    return LAUNCH.bundle(request, plan, missing, entries, (ALLOCATOR,), files={SCRIPT: template})


FRAMEWORK = LAUNCH.framework(
    RULES,
    FIELDS,
    render,
    reader,
    choices={"overlap_grad_reduce": (True, False), "compile": (False, True)},
    blocks=patterns.KINDS,
    parts=patterns.PARTS,
    partial_training=encoders.PARTIAL_TRAINING,
    before_ampere=("flash", "flash2", "unfused"),  # in fp32, by torch's memory-efficient kernel
)
