"""Rules for what MaxText (e591f30) refuses, has no key for, or does differently from a plan.

Its layers are named decoder blocks; XLA shards, schedules and overlaps their computation.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cost_models.plans import RECOMPUTE_MODULES, Plans, RecomputeModule, code
from cost_models.spec import ModelSpec
from planner.constraints import BoolArray, Context, Rule
from planner.frameworks import rules
from planner.frameworks.base import rule, unsupported
from planner.frameworks.maxtext.mesh import shard_ranks, slices

_FULL, _SELECTIVE = code("recompute", "full"), code("recompute", "selective")
# Decoder block by (experts, norm on queries and keys, bias of their projections).
BLOCKS = {
    (False, "none", False): "llama2",
    (False, "none", True): "qwen2",
    (False, "head", False): "qwen3",
    (True, "none", False): "mixtral",
    (True, "head", False): "qwen3_moe",
}


def policies(model: ModelSpec) -> dict[tuple[RecomputeModule, ...], str]:
    """Modules that are recomputed -> remat_policy (layers/nnx_decoders.py, get_remat_policy).

    All of them keep matrix products by name and recompute what is between them; those without
    `context` also recompute attention.
    """
    experts = model.moe is not None
    light: tuple[RecomputeModule, ...] = ("layernorm", "moe_act") if experts else ("layernorm",)
    return {
        light: "minimal_with_context",
        ("core_attn",): "minimal",
        ("op",): "save_dot_with_context_except_mlp",
        ("core_attn", "moe" if experts else "mlp"): "save_dot_except_mlp",
    }


_ATTENTION = ("query_proj", "key_proj", "value_proj", "out_proj")
_MLP = ("mlpwi_0", "mlpwi_1")
# What a policy keeps of a dense layer, by the keys that say the same of remat_policy custom.
KEPT = {
    "minimal_with_context": (*_ATTENTION, "context", *_MLP),
    "minimal": (*_ATTENTION, *_MLP),
    "save_dot_with_context_except_mlp": (*_ATTENTION, "context"),
    "save_dot_except_mlp": _ATTENTION,
    "full": (),
}


def _policy_exists(c: Context, p: Plans) -> BoolArray:
    sets = [sum(1 << RECOMPUTE_MODULES.index(m) for m in each) for each in policies(c.model)]
    return np.asarray((p.recompute != _SELECTIVE) | np.isin(p.recompute_modules, sets))


def block(model: ModelSpec) -> str:
    """The decoder block that matches the model's layers; empty if none does."""
    return BLOCKS.get((model.moe is not None, model.qk_norm, model.qkv_bias), "")


def lacks(model: ModelSpec) -> Iterator[str]:
    """Why none of its Llama, Qwen and Mixtral decoder blocks matches the model's layers."""
    parts = {
        f"{model.norm} with biases": model.norm != "rmsnorm" or model.norm_bias,
        "an MLP without a gate": not model.gated_mlp,
        f"{model.position} positions": model.position != "rope",
        "biases of the attention output or the MLP": model.attention_output_bias or model.mlp_bias,
        f"{model.norms_per_layer} norms in a layer": model.norms_per_layer != 2,
        "attention and MLP in parallel": model.parallel_residual,
        "latent attention": model.mla is not None,
        "attention sinks": model.attention_sinks,
        "a sliding window": model.sliding_window is not None,
        "dropout": model.hidden_dropout > 0 or model.attention_dropout > 0,
        "multi-token prediction": model.mtp_num_layers > 0,
        "a norm after the embedding": model.embedding_norm,
        "a bias of the output layer": model.lm_head_bias,
    }
    if (moe := model.moe) is not None:
        biases = moe.expert_bias or moe.router_bias or moe.score_correction_bias
        parts |= {
            "dense layers among MoE layers": "dense" in model.feed_forwards,
            "shared experts": moe.shared_expert_ffn_hidden_size > 0,
            "experts or a router with biases": biases,
            "groups of experts": moe.num_groups is not None,
            "dropped tokens": moe.capacity_factor is not None,
        }
    found = [name for name, has in parts.items() if has]
    if found or not block(model):
        what = ", ".join(found) or "a norm and a bias on queries and keys"
        yield f"only its Llama, Qwen and Mixtral blocks are written here: no {what}"


def _batch_is_whole(c: Context, p: Plans) -> BoolArray:
    """Whether MaxText's batch, devices x sequences per device rounded down, is the plan's."""
    devices = p.tp * p.cp * p.dp
    return np.asarray(
        np.floor(devices * (p.micro_batch_size / (p.tp * p.cp))) == p.micro_batch_size * p.dp
    )


OWN: tuple[Rule, ...] = (
    rules.EQUAL_NODES,
    rules.optimizers("adam", "sgd", others="its Muon needs the matrix names of each model"),
    rules.FP32_STATES,
    unsupported(
        lambda c, p: c.training.precision == "bf16",
        "only bf16 is costed on XLA, not {c.training.precision}",
        "degrees",
    ),
    unsupported(
        lambda c, p: c.training.gradient_reduce_dtype == "bf16",
        "weights are cast before the gather, so gradients are reduced in bf16: set "
        "gradient_reduce_dtype",
        "degrees",
    ),
    unsupported(
        lambda c, p: c.training.gradient_dtype in ("fp32", "bf16"),
        "gradients are fp32 or bf16, not {c.training.gradient_dtype}",
    ),
    unsupported(
        lambda c, p: (p.tp == 1) | (p.sequence_parallel == 1),
        "its tensor axis also splits the residual stream: tp needs sequence_parallel",
        "groups",
    ),
    unsupported(
        lambda c, p: (c.model.moe is None) | (p.etp == p.tp),
        "experts are split like the other layers: etp is tp",
    ),
    rule(
        "cp_seq",
        lambda c, p: (p.cp == 1) | (c.training.seq_length % (2 * p.cp) == 0),
        lambda c, p: f"the sequence must divide into 2 x cp = {2 * p.cp} parts",
    ),
    rule(
        "zero_stage",
        lambda c, p: (p.zero_stage == 3) | ((p.cp == 1) & (p.ep == 1)),
        "weights are always sharded over the context and expert axes: ZeRO 3",
    ),
    rule(
        "zero_stage",
        lambda c, p: (p.zero_stage != 1) | (p.dp_shard == 0) | (p.dp_shard == p.dp),
        "shard_optimizer_over_data spans all replicas",
    ),
    rule(
        "zero_stage",
        lambda c, p: (
            (shard_ranks(p) > 0)
            & (p.dp % np.maximum(shard_ranks(p), 1) == 0)
            & ((p.zero_stage < 3) | (shard_ranks(p) * p.cp > 1))
        ),
        lambda c, p: (
            f"a shard group of {p.dp_shard or p.dp * p.cp} ranks holds whole groups of cp {p.cp} "
            f"and ep {p.ep}, divides dp {p.dp} x cp {p.cp} and is more than one rank"
        ),
    ),
    rule(
        "world_size",
        lambda c, p: p.dp // p.ep % slices(c.cluster) == 0,
        lambda c, p: (
            f"only the data and fsdp axes span slices: {slices(c.cluster)} slices do not divide "
            f"dp {p.dp} / ep {p.ep}"
        ),
    ),
    rule(
        "batch_identity",
        _batch_is_whole,
        lambda c, p: (
            f"per_device_batch_size {p.micro_batch_size}/{p.tp * p.cp} rounds down to a smaller "
            "batch"
        ),
    ),
    rule(
        "recompute",
        _policy_exists,
        lambda c, p: (
            f"recompute_modules is {', or '.join(map('+'.join, policies(c.model)))}, "
            f"not {'+'.join(p.recompute_modules)}"
        ),
    ),
    rule(
        "recompute",
        lambda c, p: (p.recompute != _FULL) | (p.recompute_num_layers >= c.model.num_layers),
        "one policy for all layers, each one checkpoint: recompute_num_layers is num_layers",
    ),
    rule(
        "offload",
        lambda c, p: (
            (p.offload_activations == 0)
            | (p.recompute == _FULL)
            | ((p.recompute == _SELECTIVE) & (c.model.moe is None))
        ),
        "what a policy keeps is offloaded by name: activation offload needs recompute, full if the "
        "layers have experts",
    ),
)
RULES: tuple[Rule, ...] = OWN
