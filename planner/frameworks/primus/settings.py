"""The keys of config.yaml, from the arguments of `pretrain_gpt.py`.

Primus gives every override to Megatron-LM as an attribute of its arguments.  Values
where its presets differ from Megatron-LM's defaults are written for every plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from cost_models.plans import ParallelPlan
from cost_models.stage_layers import forward_layers
from planner.documents.request import PlanRequest
from planner.frameworks.base import Flag
from planner.frameworks.megatron import attribute_names
from planner.frameworks.megatron.flags import flags
from planner.frameworks.primus.names import MODEL, TRAINER
from planner.frameworks.rules import PLACEHOLDER
from planner.frameworks.yaml_files import Row

# Our name of a schedule -> that of its own pipeline runtime.
ALGORITHMS = {"zb-h1": "zero-bubble", "zb-v": "zbv-formatted", "v-half": "v-half", "v-min": "v-min"}
# Values that are written because a preset has the other one.
_PRESET: tuple[Row, ...] = (
    ("bf16", False, "training in fp16"),
    ("use_distributed_optimizer", False, "optimizer states are not sharded"),
    ("sequence_parallel", False, "sequence not split in norms and dropout"),
    ("swiglu", False, "another MLP"),
    (
        "untie_embeddings_and_output_weights",
        False,
        "the output layer shares the embedding's weights",
    ),
    ("add_bias_linear", True, "linear layers have biases"),
    ("finetune", False, "starts from random weights"),
    ("dataloader_type", "single", "one pass over the samples, in order"),
    ("lr_warmup_iters", 0, PLACEHOLDER),
    ("min_lr", 0.0, PLACEHOLDER),
    ("weight_decay", 0.01, PLACEHOLDER),
)


def _attention(flag: Flag) -> Any:
    """Transformer Engine has no flash-attention on ROCm; its fused attention is AITER's or CK's."""
    return "fused" if flag.words[1] == "flash" else flag.words[1]


def overrides(request: PlanRequest, plan: ParallelPlan) -> Iterator[Row]:
    """(key, value, why) of all overrides."""
    said = {attribute_names.attribute(one.name): one for one in flags(request, plan)}
    if plan.recompute_layers:
        for name in ("recompute_method", "recompute_num_layers"):
            del said[name]
        ids = ",".join(map(str, recomputed(request.model.num_layers, plan)))
        yield "recompute_layer_ids", ids, "recomputed layers, counted from 0"
    for name, one in said.items():
        if name == "cross_entropy_fusion_impl" and plan.cross_entropy == "in_place":
            yield name, "te", "Transformer Engine's, which writes gradients over the logits"
            continue
        value = _attention(one) if name == "attention_backend" else attribute_names.value(one)
        yield name, value, attribute_names.in_keys(one.why)
    for name, value, why in _PRESET:
        if name not in said:
            yield name, value, why
    if request.model.position != "rope":
        yield "add_position_embedding", True, "required by positions other than RoPE"
    if plan.pp > 1 and plan.schedule in ALGORITHMS:
        yield from _own_pipeline(plan)
    if request.model.moe is not None and plan.moe_dispatcher == "deepep":
        yield "enable_primus_turbo", True, "Primus-Turbo kernels in place of Megatron-LM's"
        yield "use_turbo_deepep", True, "DeepEP for ROCm, from Primus-Turbo"


def recomputed(num_layers: int, plan: ParallelPlan) -> list[int]:
    """The layers to recompute, numbered from 0: the first ones of every virtual stage."""
    stages = forward_layers(num_layers, plan)
    starts = accumulate(stages, initial=0)
    return [
        start + n
        for start, layers, again in zip(starts, stages, plan.recompute_layers, strict=False)
        for n in range(min(again, layers))
    ]


def _own_pipeline(plan: ParallelPlan) -> Iterator[Row]:
    yield "patch_primus_pipeline", True, "Primus's own pipeline runtime"
    yield "pp_algorithm", ALGORITHMS[plan.schedule], f"the schedule {plan.schedule}"
    yield "gradient_accumulation_fusion", True, "required to delay weight gradients"


def head() -> Iterator[Row]:
    """The keys outside of the overrides, each from the root of the file."""
    yield "work_group", "amd", "part of the output path"
    yield "user_name", "root", "part of the output path"
    yield "exp_name", "smoke-run", "part of the output path"
    yield "workspace", "./output", "folder of logs and checkpoints"
    yield "modules.pre_trainer.framework", "megatron", "training backend"
    yield "modules.pre_trainer.config", TRAINER, "preset of the training"
    yield "modules.pre_trainer.model", MODEL, "preset of any decoder"
