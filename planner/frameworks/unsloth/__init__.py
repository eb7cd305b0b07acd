"""Unsloth: a script that tunes weights or adapters on one card, or on copies of the model."""

from __future__ import annotations

from cost_models.package_files import filled, text
from cost_models.plans import ParallelPlan
from planner.constraints import Context
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import accelerate, python_writer
from planner.frameworks.accelerate.peft import NAMES
from planner.frameworks.accelerate.settings import config_json
from planner.frameworks.accelerate.trainer_keys import kept_in
from planner.frameworks.accelerate.trainer_yaml import PARTIAL_TRAINING
from planner.frameworks.base import Bundle, fields
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.unsloth import reader
from planner.frameworks.unsloth.rules import RULES, unsaid
from planner.frameworks.unsloth.settings import ADAPT, ARGUMENTS, LOAD, arguments

VERSIONS = "2026.10.9, trl 1.16, transformers 5"
LAUNCH = Launch(
    "unsloth",
    "Unsloth",
    VERSIONS,
    __name__,
    "A few steps on a sample data set: give train.py your own.",
)
NEEDS = Note(
    code="needs",
    text="MODEL is a name on Hugging Face or a folder with weights and a tokenizer; the data set "
    "in train.py is a sample.",
)
# What stands before the arguments of each call.
HEADS = {
    LOAD: "model, tokenizer = FastLanguageModel.from_pretrained",
    ADAPT: "model = FastLanguageModel.get_peft_model",
    ARGUMENTS: "arguments = SFTConfig",
}


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The launch script, the training script and the model's config."""
    c = Context(request.model, request.cluster, request.training)
    said = arguments(c, plan)
    config, keys = config_json(c)
    calls = "\n".join(python_writer.call(HEADS[name], said[name], indent=0) for name in said)
    words = {"head": LAUNCH.head(request, plan), "calls": calls}
    return LAUNCH.bundle(
        request,
        plan,
        accelerate.missing(c.model),
        flags=(*(one for flags in said.values() for one in flags), *keys),
        notes=(NEEDS,),
        files={"train.py": filled(text(__name__, "train.py.txt"), words), "config.json": config},
    )


FRAMEWORK = LAUNCH.framework(
    RULES,
    fields(__name__),
    render,
    reader,
    adapters={"lora_targets": NAMES, **dict.fromkeys(kept_in("fp32"), "fp32")},
    training=kept_in("bf16"),
    partial_training=PARTIAL_TRAINING,
    blocks=accelerate.FRAMEWORK.blocks,
    parts=accelerate.FRAMEWORK.parts,
    lacks=unsaid,
    before_ampere=("flash2",),  # by xformers, or torch on repeated keys
    competes=False,
)
