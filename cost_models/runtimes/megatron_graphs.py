"""Megatron-Core of 2026 in CUDA graphs of whole iterations (cuda_graph_impl full_iteration)."""

from dataclasses import replace

from cost_models.runtimes import megatron_2026

RUNTIME = replace(
    megatron_2026.RUNTIME,
    name="megatron-graphs",
    title="Megatron-Core of 2026 in CUDA graphs",
    version="Megatron-Bridge 0.5 (containers since 26.06), MLPerf v6.0",
    replays_graphs=1.0,
    # cutedsl_fused_grouped_mlp.
    fuses_expert_activation=1.0,
    # use_transformer_engine_op_fuser.
    adds_expert_bias_apart=0.0,
)
