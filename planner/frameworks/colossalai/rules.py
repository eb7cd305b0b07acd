"""Rules for what ColossalAI refuses or has no argument for.

Read from HybridParallelPlugin, MoeHybridParallelPlugin, GeminiPlugin, the pipeline schedules and
the policies of Shardformer at 4f9953b.
"""

from __future__ import annotations

import numpy as np

from cost_models.plans import Plans, code
from cost_models.spec import ModelSpec
from planner.constraints import BoolArray, Context, Rule, micro_batches
from planner.frameworks import rules
from planner.frameworks.base import rule, unsupported
from planner.frameworks.rules import fixed_part
from planner.huggingface.export.exporter import config_of, nearest_family

# transformers families with policies for tensor, sequence and pipeline parallelism.
FAMILIES = ("llama", "qwen2", "qwen3", "gpt2", "mixtral")
# Families that can recompute a given number of layers, and families with ring attention.
COUNTED = ("llama", "qwen2", "qwen3")
RINGS = ("llama",)
STYLES = {"1f1b": "1f1b", "interleaved-1f1b": "interleaved", "zb-v": "zbv"}
_INTERLEAVED = code("schedule", "interleaved-1f1b")
_ZB_V = code("schedule", "zb-v")
_A2A = code("cp_kind", "a2a")
_P2P = code("cp_kind", "p2p")
_FULL = code("recompute", "full")
_UNIFORM = code("recompute_method", "uniform")
_UNFUSED = code("attention_kernel", "unfused")


def family(model: ModelSpec) -> str:
    """The family of transformers that builds the model; "" if none does."""
    config = config_of(model)
    return str(config["model_type"]) if config is not None else ""


def _family_text(model: ModelSpec) -> str:
    known = family(model)
    if known:
        return f"{known} models are not among those it splits: {', '.join(FAMILIES)}"
    nearest, differing = nearest_family(model)
    return (
        f"no family of transformers builds this model; {nearest} differs in {', '.join(differing)}"
    )


def _even(p: Plans) -> BoolArray:
    return np.asarray(
        (p.stage_layers == 0) & (p.first_stage_layers == 0) & (p.last_stage_layers == 0)
    )


def _every_layer(c: Context, p: Plans) -> BoolArray:
    """Whether full recompute checkpoints every layer by itself."""
    per_chunk = c.model.num_layers // np.maximum(p.pp * p.vpp, 1)
    one_by_one = (p.recompute_method == _UNIFORM) & (p.recompute_num_layers == 1)
    block = (p.recompute_method != _UNIFORM) & (p.recompute_num_layers >= per_chunk)
    return np.asarray(one_by_one | (block & _even(p)))


def _recomputes(c: Context, p: Plans) -> BoolArray:
    counted = family(c.model) in COUNTED
    block = (p.recompute_method != _UNIFORM) & (p.pp > 1) & counted
    return np.asarray((p.recompute != _FULL) | block | _every_layer(c, p))


MODEL_RULES: tuple[Rule, ...] = (
    rules.EQUAL_NODES,
    rules.optimizers("adam", "sgd", others="its own variant of Adafactor is not planned"),
    rules.LEARNED_POSITIONS,
    unsupported(
        lambda c, p: family(c.model) in FAMILIES, lambda c, p: _family_text(c.model), "degrees"
    ),
    fixed_part(lambda m: m.sliding_window is None, "its attention kernels have no sliding window"),
    unsupported(
        lambda c, p: (
            (c.model.attention_dropout == 0)
            | (p.attention_kernel == _UNFUSED)
            | (family(c.model) == "gpt2")
        ),
        lambda c, p: (
            f"its flash attention of {family(c.model)} models has no dropout, got "
            f"{c.model.attention_dropout}"
        ),
    ),
    unsupported(
        lambda c, p: c.training.precision in ("bf16", "fp16"),
        "{c.training.precision}: its fp8 recipe is not planned, and there is no fp4",
    ),
    rules.FP32_STATES,
    unsupported(
        lambda c, p: c.training.gradient_dtype == c.training.precision,
        "gradients accumulate in the type of the weights, {c.training.precision}, not "
        "{c.training.gradient_dtype}",
    ),
    unsupported(
        lambda c, p: (
            (c.training.gradient_reduce_dtype == c.training.precision)
            | (
                ((p.zero_stage == 1) | (p.zero_stage == 2))
                & (c.training.gradient_reduce_dtype == "fp32")
            )
        ),
        "gradients are reduced in {c.training.precision}, or in fp32 by ZeRO 1 and 2; got "
        "{c.training.gradient_reduce_dtype} with ZeRO {p.zero_stage}",
    ),
    unsupported(
        lambda c, p: (c.training.optimizer == "adam") | (p.zero_stage < 3),
        "Gemini (ZeRO 3) has Adam only, not {c.training.optimizer}",
    ),
)

SIZE_RULES: tuple[Rule, ...] = (
    rules.KV_HEADS,
    rule(
        "cp_seq",
        lambda c, p: (p.cp == 1) | (family(c.model) != "gpt2"),
        "gpt2 models do not split the sequence over cp, got {p.cp}",
    ),
    rule(
        "cp_seq",
        lambda c, p: (
            (p.cp == 1) | (p.cp_kind == _A2A) | ((p.cp_kind == _P2P) & (family(c.model) in RINGS))
        ),
        lambda c, p: (
            f"{family(c.model)} models split the sequence by all-to-all"
            f"{' or ring attention (p2p)' if family(c.model) in RINGS else ''}, not {p.cp_kind}"
        ),
    ),
    rule(
        "cp_seq",
        lambda c, p: (p.cp == 1) | (p.sequence_parallel == 0),
        "cp {p.cp} and sequence_parallel exclude each other",
    ),
    rule(
        "cp_seq",
        lambda c, p: (p.cp == 1) | (p.tp == 1) | (p.cp_kind != _A2A),
        "all-to-all (cp {p.cp}) with tp {p.tp} puts cp inside tp, but plans have tp inside cp",
    ),
    rule(
        "experts_not_divisible",
        lambda c, p: (c.model.moe is None) | ((p.etp == p.tp) & (p.dp % np.maximum(p.ep, 1) == 0)),
        "experts are split like the other layers (etp = tp) and distributed inside dp: tp "
        "{p.tp}, etp {p.etp}, dp {p.dp}, ep {p.ep}",
    ),
    unsupported(
        lambda c, p: (
            (c.model.moe is None) | (p.pp == 1) | ((p.sequence_parallel == 0) & (p.cp == 1))
        ),
        "MoE models cannot split the sequence in a pipeline",
    ),
    rule(
        "layers_not_divisible",
        lambda c, p: (p.vpp == 1) | _even(p),
        "with {p.vpp} chunks per stage layers are split evenly",
    ),
    rules.NO_EMPTY_STAGE,
    rule(
        "schedule_micro_batches",
        lambda c, p: (
            (p.pp == 1)
            | np.where(
                p.schedule == _INTERLEAVED,
                micro_batches(c, p) % p.pp == 0,
                micro_batches(c, p) >= p.pp,
            )
        ),
        lambda c, p: (
            f"{p.schedule} needs "
            f"{'a multiple of' if p.schedule == 'interleaved-1f1b' else 'at least'} pp {p.pp} "
            "micro-batches"
        ),
    ),
    unsupported(
        lambda c, p: (
            (p.schedule != _ZB_V)
            | (p.pp == 1)
            | ((p.overlap_p2p == 1) & (not c.model.tied_embeddings))
        ),
        "zb-v needs overlap_p2p, which it always has, and untied embeddings",
    ),
)

FEATURE_RULES: tuple[Rule, ...] = (
    rule(
        "zero_stage",
        lambda c, p: (p.zero_stage < 3) | ((p.cp == 1) & (p.sequence_parallel == 0)),
        "Gemini (ZeRO 3) cannot split the sequence",
    ),
    rule(
        "zero_stage",
        lambda c, p: (p.pp == 1) | (p.zero_stage <= 1),
        "a pipeline needs ZeRO 0 or 1, not {p.zero_stage}",
    ),
    rule(
        "zero_stage",
        lambda c, p: (c.model.moe is None) | (p.zero_stage <= 1),
        "MoE models need ZeRO 0 or 1, not {p.zero_stage}",
    ),
    rule(
        "recompute",
        lambda c, p: _recomputes(c, p),
        lambda c, p: (
            f"{family(c.model)} models recompute "
            + (
                "the first layers of a chunk (block) in a pipeline, else every layer"
                if family(c.model) in COUNTED
                else "every layer"
            )
            + f" as one checkpoint, not {p.recompute_num_layers} by {p.recompute_method}"
        ),
    ),
    rule(
        "recompute",
        lambda c, p: (p.recompute_layers == 0) | ((p.vpp == 1) & (family(c.model) in COUNTED)),
        lambda c, p: (
            f"recomputed layers can be set by stage only for {', '.join(sorted(COUNTED))}, with "
            f"one chunk per stage; got {family(c.model)}, vpp {p.vpp}"
        ),
    ),
    rules.OFFLOADED_ADAM,
    unsupported(
        lambda c, p: (
            (p.dp * p.cp == 1)
            | (p.zero_stage == 3)
            | ((p.zero_stage == 0) & (p.overlap_grad_reduce == (p.pp == 1)))
            | (
                (p.zero_stage > 0)
                & ((p.overlap_grad_reduce == 0) | ((p.pp == 1) & (c.model.moe is None)))
            )
        ),
        "gradients are reduced after all micro-batches of a pipeline, with experts after the "
        "backward pass, and during it without ZeRO and pipeline; got overlap_grad_reduce "
        "{p.overlap_grad_reduce} with pp {p.pp}, ZeRO {p.zero_stage}",
    ),
)
RULES: tuple[Rule, ...] = (*MODEL_RULES, *SIZE_RULES, *FEATURE_RULES)
