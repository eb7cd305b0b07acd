"""Rules for what GPT-NeoX refuses or has no key for (neox_arguments, megatron/model of ea7aefd).

Its engine is DeepSpeed, so the engine rules of Megatron-DeepSpeed apply too.
"""

from __future__ import annotations

from cost_models.plans import code
from cost_models.spec import ModelSpec
from planner.constraints import Rule
from planner.frameworks import rules
from planner.frameworks.base import unsupported
from planner.frameworks.deepspeed.rules import ENGINE
from planner.frameworks.rules import fixed_part

_UNFUSED = code("attention_kernel", "unfused")


def _head_width(model: ModelSpec) -> bool:
    return model.head_dim * model.num_attention_heads == model.hidden_size


OWN: tuple[Rule, ...] = (
    rules.EQUAL_NODES,
    rules.optimizers("adam", "sgd"),
    rules.LEARNED_POSITIONS,
    fixed_part(lambda m: m.moe is None, "its megablocks experts are not planned: no experts"),
    fixed_part(lambda m: m.mla is None, "there is no latent attention"),
    fixed_part(
        lambda m: m.qk_norm == "none", "its query/key norm has separate weights for each head"
    ),
    fixed_part(lambda m: not m.attention_sinks, "there are no attention sinks"),
    fixed_part(lambda m: not m.mtp_num_layers, "there is no multi-token prediction"),
    fixed_part(lambda m: not m.embedding_norm, "there is no norm after the embedding"),
    fixed_part(lambda m: not m.lm_head_bias, "the output layer has no bias"),
    fixed_part(_head_width, "head width must be hidden size / heads"),
    fixed_part(
        lambda m: m.full_attention_period is None, "sliding_window_width applies to every layer"
    ),
    fixed_part(
        lambda m: m.norms_per_layer == 2 or (m.parallel_residual and m.norms_per_layer == 1),
        "a layer has two norms, or one where attention and MLP run in parallel",
    ),
    fixed_part(
        lambda m: m.qkv_bias == m.attention_output_bias,
        "attention's projections have biases in both places or in none",
    ),
    fixed_part(
        lambda m: m.gated_mlp or (m.mlp_bias and m.ffn_hidden_size % 2 == 0),
        "an MLP without a gate has biases and an even width",
    ),
    unsupported(
        lambda c, p: (c.model.sliding_window is None) | (p.attention_kernel != _UNFUSED),
        "only flash-attention has a sliding window",
    ),
    unsupported(
        lambda c, p: c.training.precision != "fp16" or c.training.gradient_dtype == "fp16",
        "fp16 gradients accumulate in fp16",
    ),
)
RULES: tuple[Rule, ...] = (*OWN, *ENGINE)
