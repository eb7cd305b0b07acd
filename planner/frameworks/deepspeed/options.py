"""Options of Megatron-DeepSpeed's `pretrain_gpt.py` that say one field each.

Those of one tuple stand beside each other in the script.
"""

from __future__ import annotations

from planner.frameworks.arguments import Arguments
from planner.frameworks.megatron_option_rows import (
    NUMBER,
    WHOLE_NUMBER,
    Codec,
    Records,
    alone,
    always,
    share,
    switch,
    whole,
)

CONFIG = "from the model's config.json"
KV_HEADS, CONTEXT = "--num-key-value-heads", "--ds-sequence-parallel-size"


def _rotates_queries(records: Records) -> bool:
    """Whether the model rotates queries and keys."""
    return bool(records["model"].position == "rope")


WIDTHS = (
    alone("--num-layers", "model.num_layers", whole(), "transformer layers"),
    alone("--hidden-size", "model.hidden_size", whole(), "width of the residual stream"),
    alone("--ffn-hidden-size", "model.ffn_hidden_size", whole(), "width of the MLP"),
    alone("--num-attention-heads", "model.num_attention_heads", whole(), "query heads"),
    alone(KV_HEADS, "model.num_query_groups", whole(lambda read: read["num_attention_heads"]),
        "key/value heads"),
    alone("--kv-channels", "model.head_dim",
        whole(lambda read: max(read["hidden_size"] // read["num_attention_heads"], 1)),
        "width of one head"),
)  # fmt: skip
LAYERS = (
    alone("--normalization", "model.norm", Codec(str, Arguments.text, "layernorm"),
        "norm of every layer"),
    alone("--swiglu", "model.gated_mlp", switch(), "gated MLP: two input projections"),
    alone("--untie-embeddings-and-output-weights", "model.tied_embeddings", switch(True, False),
        "the output layer has its own weights"),
    alone("--disable-bias-linear", "model.mlp_bias", switch(True, False),
        "linear layers have no bias"),
    alone("--hidden-dropout", "model.hidden_dropout", share(0.1), "dropout of the residual stream"),
    alone("--attention-dropout", "model.attention_dropout", share(0.1),
        "dropout of the attention scores"),
    always("--no-query-key-layer-scaling", "model", True,
        "scores are scaled only by the head width"),
    alone("--init-method-std", "numerics.init_std", NUMBER, CONFIG),
    alone("--layernorm-epsilon", "numerics.norm_epsilon", NUMBER, CONFIG),
    alone("--rotary-position-embeddings-theta", "numerics.rope_theta", WHOLE_NUMBER, CONFIG,
        when=_rotates_queries),
    alone("--rotary-percent", "numerics.rotary_share", NUMBER, CONFIG, when=_rotates_queries),
)  # fmt: skip
DEGREES = (
    alone("--tensor-model-parallel-size", "plan.tp", whole(), "ranks that split every layer"),
    alone("--pipeline-model-parallel-size", "plan.pp", whole(), "pipeline stages, 1F1B"),
    always("--no-pipeline-parallel", "plan", True, "one stage: no pipeline engine",
        when=lambda records: records["plan"].pp == 1),
    alone(CONTEXT, "plan.cp", whole(), "Ulysses: ranks per sequence",
        when=lambda records: records["plan"].cp > 1),
    alone("--sequence-parallel", "plan.sequence_parallel", switch(),
        "norms and dropout split over tp"),
)  # fmt: skip
