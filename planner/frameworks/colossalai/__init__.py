"""ColossalAI: a training script whose plugin holds the plan, and its torchrun launch script."""

from __future__ import annotations

import json

from cost_models.package_files import filled, text
from cost_models.plans import ParallelPlan
from planner.constraints import Context
from planner.documents.request import PlanRequest
from planner.frameworks import bash_writer, python_writer, unwritten_facts
from planner.frameworks.base import Bundle, fields, flag
from planner.frameworks.colossalai.rules import RULES, STYLES
from planner.frameworks.colossalai.settings import arguments, config, constants, plugin
from planner.frameworks.launch_bundle import Launch
from planner.huggingface.export.exporter import config_of
from planner.huggingface.numerics import used_numerics

VERSIONS = "ColossalAI main of April 2026 (4f9953b, after 0.5.1), transformers 4.51"

FIELDS = fields(__name__, schedule=STYLES)
UNWRITTEN = unwritten_facts.table(__name__)


LAUNCH = Launch("colossalai", "ColossalAI", VERSIONS, __name__)


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The training script with the plugin, the model's config, and the script that launches it."""
    c = Context(request.model, request.cluster, request.training)
    said, told, keys = arguments(c, plan), tuple(constants(c, plan)), config(c)
    missing = unwritten_facts.of(
        c.model, UNWRITTEN, used_numerics(c.model, config_of(c.model) or {})
    )
    words = {
        "head": LAUNCH.head(request, plan),
        "unwritten": unwritten_facts.comments(missing),
        "constants": "\n".join(
            f"{one.name.partition('.')[2]} = {one.words[1]}  {bash_writer.comment(one.why)}"
            for one in told
        ),
        "plugin": python_writer.call(f"return {plugin(c, plan)}", said, indent=4),
    }
    template = text(__name__, "train.py.txt")
    used = f"{template} {words['plugin']} {words['constants']}"
    imports = python_writer.imports(text(__name__, "imports.py.txt"), used)
    model = (
        flag("config.json", f"config.{key}", json.dumps(value), "the model as planned")
        for key, value in keys.items()
    )
    return LAUNCH.bundle(
        request,
        plan,
        missing,
        variables=(VARIABLE,),
        flags=(*told, *said, *model),
        files={
            "train.py": filled(template, words | {"imports": imports}),
            "config.json": json.dumps(keys, indent=2) + "\n",
        },
    )


VARIABLE = flag("environment", "OMP_NUM_THREADS", 8, "host threads of each rank")

FRAMEWORK = LAUNCH.framework(
    RULES,
    FIELDS,
    render,
    choices={
        "cp_kind": ("a2a", "p2p"),
        "rank_order": ("tp-cp-ep-pp-dp", "tp-cp-ep-dp-pp"),
        "overlap_grad_reduce": (True, False),
        "overlap_param_gather": (True, False),
    },
    training={"gradient_dtype": "bf16", "gradient_reduce_dtype": "bf16"},
    no_reader="the plan is in Python code, which must run before its values are known",
    before_ampere=("flash", "unfused"),  # by torch, where flash-attn is not installed
    trains_all="the script trains all weights, without Booster.enable_lora",
)
