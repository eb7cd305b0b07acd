"""Megatron-LM core with Transformer Engine."""

from cost_models.runtimes.base import Runtime

RUNTIME = Runtime(
    name="megatron",
    title="Megatron-Core with Transformer Engine",
    version="core 0.12 to main d98e8a64, Transformer Engine 2.11",
    sources=("megatron-core", "transformer-engine"),
    lineage="megatron",
    # --gradient-accumulation-fusion is the default; autograd gets get_dummy_wgrad's placeholder.
    fused_accumulation=1.0,
    placeholder_gradients=1.0,
    # Transformer Engine keeps what it casts: inputs for backward, weights by is_first_microbatch.
    keeps_cast_inputs=1.0,
    keeps_cast_weights=1.0,
    # Since core 0.13 the activation takes the weights (weighted_bias_swiglu_impl).
    weighs_inside_experts=1.0,
    # TE's GroupedLinear runs each product as cuBLAS's own (cublaslt_gemm.cu, multi-stream).
    calls_one_expert_plainly=1.0,
    # experts.py _apply_bias, fused_bias_geglu.py: torch.cat over experts, clamp before the fusion.
    adds_expert_bias_apart=1.0,
    # cuBLAS's own and one for each of TE's four streams.
    gemm_workspaces=5.0,
    whole_interleaved_rounds=1.0,
)
