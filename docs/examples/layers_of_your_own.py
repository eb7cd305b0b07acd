"""A model that no catalog has: every fourth layer attends, the others are Mamba-2."""

from planner import estimate

MAMBA = {"kind": "mamba2", "num_heads": 128, "head_dim": 64, "state_size": 128}
DENSE = {
    "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_query_groups": 8,
    "ffn_hidden_size": 14336, "vocab_size": 128256, "gated_mlp": True,
}  # fmt: skip
HYBRID = {
    **DENSE,
    "layer_pattern": [[MAMBA, {"kind": "mlp"}]] * 3 + [[{"kind": "attention"}, {"kind": "mlp"}]],
}

for name, model in (("attention", DENSE), ("hybrid", HYBRID)):
    for length in (4096, 32768):
        answer = estimate(
            model=model,
            cluster="1x8xh100-sxm",
            training={"seq_length": length, "global_batch_size": 64},
            plan={"tp": 4, "sequence_parallel": True},
        ).estimate
        fits = "fits" if answer.fits else "does not fit"
        print(f"{name:9} {length:6,} tokens: {answer.tokens_per_s:,.0f} tokens/s, {fits}")
