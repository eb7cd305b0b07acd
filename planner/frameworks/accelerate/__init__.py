"""Hugging Face accelerate: its launch config, a transformers model and a training script.

FSDP 2 over a mesh of replicas, shards and context parallelism, or plain data parallelism.
"""

from __future__ import annotations

from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner.constraints import Context
from planner.documents.request import PlanRequest
from planner.frameworks import unwritten_facts, yaml_files
from planner.frameworks.accelerate import reader
from planner.frameworks.accelerate.peft import NAMES, PARTIAL_TRAINING
from planner.frameworks.accelerate.rules import RULES, lacks
from planner.frameworks.accelerate.script import train_script
from planner.frameworks.accelerate.settings import arguments, config_json, launch_rows
from planner.frameworks.base import Bundle, fields
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.model_parts import EVERY_BLOCK, EVERY_PART
from planner.frameworks.unwritten_facts import Missing
from planner.huggingface.export.exporter import config_of
from planner.huggingface.numerics import used_numerics

VERSIONS = "accelerate 1.15.0, transformers 5.23.0, torch 2.13"

FIELDS = fields(__name__)


UNWRITTEN = unwritten_facts.table(__name__)


LAUNCH = Launch("accelerate", "Hugging Face accelerate", VERSIONS, __name__)


def missing(model: ModelSpec) -> Missing:
    """The facts that neither config.json nor the script has."""
    return unwritten_facts.of(model, UNWRITTEN, used_numerics(model, config_of(model) or {}))


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The launch script, its config, the model's config and the training script."""
    c = Context(request.model, request.cluster, request.training)
    launch, options = list(launch_rows(c, plan)), tuple(arguments(c, plan))
    config, keys = config_json(c)
    return LAUNCH.bundle(
        request,
        plan,
        missing(c.model),
        options,
        flags=(*yaml_files.flags("accelerate.yaml", launch), *keys, *options),
        files={
            "accelerate.yaml": f"{LAUNCH.head(request, plan)}\n{yaml_files.document(launch)}",
            "config.json": config,
            "train.py": train_script(c.training.lora_rank > 0),
        },
    )


FRAMEWORK = LAUNCH.framework(
    RULES,
    FIELDS,
    render,
    reader,
    adapters={"lora_targets": NAMES, "gradient_reduce_dtype": "fp32"},
    partial_training=PARTIAL_TRAINING,
    blocks=EVERY_BLOCK,
    parts=EVERY_PART,
    lacks=lacks,
    before_ampere=("flash", "unfused"),  # the first by torch's memory-efficient kernel
)
