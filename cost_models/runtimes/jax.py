"""JAX: XLA compiles a whole step, as MaxText and Pax run it."""

from dataclasses import replace

from cost_models.runtimes import torch

RUNTIME = replace(
    torch.RUNTIME,
    name="jax",
    title="JAX with XLA, as MaxText and Pax run it",
    version="MaxText and Pax of 2023 to 2026",
    sources=("maxtext", "torch"),
    # Casts of logits are fused into the sums of the loss (cast_logits_to_fp32).
    autograd_loss=0.0,
    half_precision_logits=1.0,
    # XLA removes what nothing reads from the layer that it computes again.
    leaves_out_last_product=1.0,
    # MaxText's policies: save_dot_with_context_except_mlp.
    keeps_mlp_products=0.0,
    # minimal: jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims.
    recompute_keeps_products=1.0,
    # wi_tile_fwd_batch_seq and its like; megablox visits such a tile once for each expert in it.
    ragged_tile_rows=512.0,
    # A weight is gathered where it is used, beside the product before it; experts are one weight.
    gathers_root_weights=0.0,
    gathers_by_matrix=1.0,
    gathers_next_matrix=1.0,
    gathers_experts_together=1.0,
    reduces_half_gradients=1.0,
    ddp_bucket_bytes=0.0,  # XLA combines reductions
    offloads_shards=0.0,  # optimizer_memory_host_offload
)
