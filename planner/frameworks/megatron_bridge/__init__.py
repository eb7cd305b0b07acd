"""Megatron-Bridge, the successor of NeMo 2.0: a recipe in Python that torchrun starts.

Nothing is written for NeMo 2.0 itself: Bridge replaces its trainer on the same Megatron-Core.
"""

from __future__ import annotations

from dataclasses import replace

from cost_models.package_files import filled, table, text
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner.documents.request import PlanRequest
from planner.frameworks import megatron, python_writer, unwritten_facts
from planner.frameworks.base import Bundle, Field, fields, flag, grouped
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.megatron import attribute_names
from planner.frameworks.megatron.options import OPTIONS
from planner.frameworks.megatron_bridge import reader
from planner.frameworks.megatron_bridge.peft import PARTIAL_TRAINING, adapter_class
from planner.frameworks.megatron_bridge.rules import EXPANDABLE, RULES
from planner.frameworks.megatron_bridge.settings import settings, translated

VERSIONS = "Megatron-Bridge main of August 2026 (067f987) on Megatron-Core 0.20"

_TABLE = table(__name__, "fields.json")
# Section of the ConfigContainer -> its class.
SECTIONS: dict[str, str] = _TABLE["sections"]
LATENT = "MLAModelProvider"
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
HYBRID = "HybridModelProvider"


def _field(field: Field) -> Field:
    """The field with the names of Megatron-Bridge settings instead of arguments."""
    names: list[str] = []
    for name in field.names:
        names += [said for said, _ in translated(name, ("0",))] if name in OPTIONS else [name]
    return replace(field, names=tuple(dict.fromkeys(names)))


# dynamic_cp: NVIDIA-NeMo/Megatron-Bridge#4586; its nightly documentation needs Megatron-Core's dev
# branch.
FIELDS = {name: _field(field) for name, field in megatron.FIELDS.items()} | fields(
    __name__, runtime=("megatron", EXPANDABLE)
)


def _setting(option: str) -> str:
    """The setting for an argument; the model's attribute for one that no launch is given."""
    found = [name for name, _ in translated(option, ("0",))]
    return found[0] if found else f"model.{attribute_names.attribute(option)}"


# Megatron-LM's arguments for a fact -> the settings, where they are not the same ones.
_OTHERS = _TABLE["respelled"]
UNWRITTEN = tuple(
    replace(row, how=_OTHERS.get(row.how) or attribute_names.respelled(row.how, _setting))
    for row in megatron.UNWRITTEN
    if not row.how.startswith("--no-rope-freq")
)


def _provider(model: ModelSpec) -> str:
    """The class of the model's provider."""
    if megatron.patterns.is_hybrid(model):
        return HYBRID
    return LATENT if model.mla is not None else SECTIONS["model"]


# models/gpt_oss/gpt_oss_provider.py.
YARN_BY_HAND = 'model.position_embedding_type="yarn" and model.yarn_...'
LAUNCH = Launch("megatron-bridge", "Megatron-Bridge", VERSIONS, __name__)


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The recipe and the script that launches it."""
    said = dict(grouped(settings(request, plan).values()))
    kinds = {**SECTIONS, "model": _provider(request.model)}
    if peft := adapter_class(request.training):
        kinds["peft"] = peft
    ordered = {name: said.get(name, []) for name in kinds}
    missing = megatron.numerics.missing(request.model, UNWRITTEN, YARN_BY_HAND)
    variables = megatron.environment(plan)
    if plan.runtime == EXPANDABLE:
        why = "less memory fragmentation"
        variables += (flag("environment", ALLOCATOR, "expandable_segments:True", why),)
    sections = "\n".join(
        python_writer.call(f"{name}={kinds[name]}", part, indent=8, end=",")
        for name, part in ordered.items()
    )
    template, lines = text(__name__, "recipe.py.txt"), text(__name__, "imports.py.txt")
    recipe = {
        "head": LAUNCH.head(request, plan),
        "imports": python_writer.imports(lines, f"{template} {sections}"),
        "unwritten": unwritten_facts.comments(missing),
        "sections": sections,
    }
    return LAUNCH.bundle(
        request,
        plan,
        missing,
        variables=variables,
        flags=[one for part in ordered.values() for one in part],
        files={"recipe.py": filled(template, recipe)},
    )


FRAMEWORK = LAUNCH.framework(
    RULES,
    FIELDS,
    render,
    reader,
    choices=megatron.FRAMEWORK.choices,
    partial_training=PARTIAL_TRAINING,
    blocks=megatron.patterns.BLOCKS,
    parts=megatron.patterns.PARTS,
    lacks=megatron.patterns.lacks,
)
