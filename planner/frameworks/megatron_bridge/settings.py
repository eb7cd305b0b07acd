"""The settings of a Megatron-Bridge `ConfigContainer`, from the arguments of `pretrain_gpt.py`.

Bridge configures the same Megatron-Core, so each argument is translated to the attribute that
Megatron-LM's parser sets from it.  A setting is a Flag whose name is `section.attribute` and whose
value is Python source.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Set

import numpy as np

from cost_models.data_parallel import bucket_parameters
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner.documents.request import PlanRequest
from planner.frameworks.base import Flag
from planner.frameworks.megatron import attribute_names, patterns
from planner.frameworks.megatron.flags import flags
from planner.frameworks.megatron.model_rules import bias_kind
from planner.frameworks.megatron.options import OPTIONS
from planner.frameworks.megatron_bridge.peft import tuning_settings
from planner.frameworks.rules import PLACEHOLDER

# (setting, Python source of its value)
Said = tuple[str, str]
Words = tuple[str, ...]

DTYPES = {
    "fp32": "torch.float32",
    "bf16": "torch.bfloat16",
    "fp16": "torch.float16",
    "fp8": "torch.uint8",
}


def _literal(text: str) -> str:
    """An argument's text as Python source of a number or a string."""
    try:
        float(text)
    except ValueError:
        return json.dumps(text)
    return text


def settings_of(name: str) -> tuple[Said, ...]:
    """The settings that an argument sets, with places for its words; none if not of OPTIONS."""
    if name not in OPTIONS:
        return ()
    option = OPTIONS[name]
    if (own := option.bridge) is None:
        own = f"{option.section}.{attribute_names.core_name(name)}"
    found = (setting.partition("=") for setting in (own.split("; ") if own else ()))
    return tuple((said, source) for said, _, source in found)


def translated(name: str, words: Words) -> Iterator[Said]:
    """The settings that Megatron-LM's argument sets; none if it is not of OPTIONS."""
    for said, source in settings_of(name):
        if "{dtype}" in source:
            yield said, DTYPES[words[0]]
        elif source:
            source = source.replace("{list}", json.dumps(words))
            source = source.replace("{slashes}", str("".join(words).count("/")))
            yield said, source.replace("{}", ", ".join(words))
        elif attribute_names.is_switch(name):
            yield said, str(not attribute_names.turns_off(name))
        else:
            yield said, words[0] if OPTIONS[name].numbers else _literal(words[0])


EXPERIMENTAL_LAYERS = "variants.get_transformer_block_with_experimental_attention_variant_spec"


def _other_defaults(
    model: ModelSpec, plan: ParallelPlan, options: Set[str]
) -> Iterator[tuple[str, str, str]]:
    """(setting, source, why) for which Bridge's default is not that of Megatron-LM's parser.

    options: the given options of Megatron-LM.
    """
    if patterns.VARIANT in options:
        yield "model.transformer_layer_spec", EXPERIMENTAL_LAYERS, "linear or sparse attention"
    elif not patterns.is_hybrid(model) and (model.moe is not None or model.mla is not None):
        has = {"experts": model.moe, "latent attention": model.mla}
        yield (
            "model.transformer_layer_spec",
            "partial(get_gpt_decoder_block_spec, use_transformer_engine=True)",
            f"layers with {' and '.join(name for name, part in has.items() if part is not None)}",
        )
    if model.position == "rope":
        yield "model.apply_rope_fusion", "True", "RoPE in one kernel"
    fused = model.gated_mlp or bias_kind(model) == "all"
    why = "bias and activation in one kernel" if fused else "GELU without a bias has no such kernel"
    yield "model.bias_activation_fusion", str(fused), why
    yield "model.bias_dropout_fusion", "True", "bias, dropout and residual in one kernel"
    yield "model.persist_layer_norm", "True", "persistent layer norm kernel"
    yield "model.masked_softmax_fusion", "True", "unfused attention: mask and softmax in one kernel"
    yield "model.attention_softmax_in_fp32", "False", "unfused attention: scores keep their dtype"
    yield "model.deallocate_pipeline_outputs", "True", "activations freed after they are sent"
    yield "model.cross_entropy_loss_fusion", "False", "unfused loss on an fp32 copy of the logits"
    if plan.vpp > 1:
        yield "model.virtual_pipeline_model_parallel_size", str(plan.vpp), "chunks per stage"
    yield "optimizer.use_distributed_optimizer", "False", "optimizer states are not sharded"
    yield "ddp.use_distributed_optimizer", "False", "optimizer states are not sharded"
    yield "ddp.check_for_nan_in_grad", "True", "stops if gradients are NaN"
    for section in ("ddp", "comm_overlap"):
        yield f"{section}.overlap_grad_reduce", "False", "gradients reduced after the backward pass"
        yield f"{section}.overlap_param_gather", "False", "weights gathered before the forward pass"
    bucket = int(bucket_parameters(np.float64(plan.dp * plan.cp)))
    yield "comm_overlap.bucket_size", str(bucket), "parameters per gradient bucket, as planned"
    yield "comm_overlap.tp_comm_overlap", "False", "blocking tensor-parallel traffic"
    yield "mixed_precision.grad_reduce_in_fp32", "False", "gradients reduced in weight dtype"
    yield "optimizer.min_lr", "0.0", PLACEHOLDER
    for end in ("start", "end"):
        yield (f"scheduler.{end}_weight_decay", "0.01", PLACEHOLDER)
    for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss"):
        yield f"dataset.{name}", "False", "plain causal attention over the whole sequence"
    yield "dataset.random_seed", "1234", "seed of the mock data"
    yield "dataset.dataloader_type", '"single"', "one pass over the samples, in order"
    yield "rng.seed", "1234", "seed of weights and dropout"


def _after(plan: ParallelPlan, recipe: str) -> Iterator[tuple[str, str, str]]:
    """(setting, source, why) that other settings require in Bridge, or that only Bridge allows."""
    if recipe == "mxfp8" and plan.zero_stage == 1:
        yield (
            "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag",
            "True",
            "required by Bridge if mxfp8 weights are gathered",
        )
    if plan.cross_entropy == "in_place":
        why = "Transformer Engine's, which writes gradients over the logits"
        yield "model.cross_entropy_fusion_impl", '"te"', why


def settings(request: PlanRequest, plan: ParallelPlan) -> dict[str, Flag]:
    """Every setting by name, each with its why."""
    found: dict[str, Flag] = {}

    def say(name: str, source: str, why: str) -> None:
        found[name] = Flag(name=name, value=source, why=why, group=name.partition(".")[0])

    options = flags(request, plan)
    for name, source, why in _other_defaults(request.model, plan, {one.name for one in options}):
        say(name, source, why)
    for one in options:
        for name, source in translated(one.name, one.words[1:]):
            say(name, source, one.why)
    for name, source, why in tuning_settings(request.training):
        say(name, source, why)
    gathered = request.training.precision == "fp8" and request.training.fp8_param_gather
    for name, source, why in _after(plan, request.training.fp8_recipe if gathered else ""):
        say(name, source, why)
    return found
