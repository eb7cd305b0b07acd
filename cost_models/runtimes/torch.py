"""torch's own DTensor, FSDP2 and pipelining, as torchtitan and the PyTorch script use them."""

from cost_models.runtimes.base import Runtime

RUNTIME = Runtime(
    name="torch",
    title="torch: DTensor, FSDP2, pipelining",
    version="torch 2.13, torchtitan 0.3.0, torchao 0.14",
    sources=("torch",),
    lineage="torch",
    eager_operators=1.0,
    repeats_key_value_heads=1.0,
    serial_collectives=1.0,
    # DTensor shards the second dimension, batch first (functional collectives).
    copies_around_collectives=1.0,
    # distributed/tensor/experimental/_context_parallel.
    gathers_context_under_chunks=1.0,
    # flash-linear-attention fla/ops/cp; MaxText gdn_cp.py (AI-Hypercomputer/maxtext#4968).
    passes_recurrent_states=1.0,
    merges_context_in_fp32=1.0,
    # DTensor adds partial sums (NeMo Automodel 36044ad3, components/_peft/lora.py).
    sums_adapters_with_matrices=1.0,
    # torchao reads once more for the largest value, writes the transpose in a pass of its own, and
    # casts the saved input again.
    cast_forward_bytes=5.0,
    cast_backward_bytes=8.0,
    recast_bytes=3.0,
    keeps_gathered_input=1.0,
    keeps_norm_statistics=1.0,
    unfused_attention_in_fp32=1.0,
    sorts_routing=1.0,
    separate_gated_matrices=1.0,
    fused_loss_in_place=1.0,
    autograd_loss=1.0,
    # zero_grad(set_to_none=True).
    frees_gradients=1.0,
    # FSDP2 with a mixed-precision policy.
    weights_are_masters=1.0,
    offloads_shards=1.0,  # CPUOffloadPolicy
    gathers_cast_weights=1.0,
    gathers_root_weights=1.0,
    keeps_gathered_weights=1.0,
    reduces_after_pipeline=1.0,
    reduces_by_block=1.0,
    ddp_bucket_bytes=25.0 * 2**20,  # DistributedDataParallel bucket_cap_mb
    whole_table_gradient=1.0,
    copies_sharded_parameters=1.0,
    # DTensor.redistribute of what Muon makes orthogonal.
    gathers_sharded_matrices=1.0,
    measured_wrapper=1.0,
    # pipelining/stage.py.
    keeps_sent_outputs=1.0,
    buffers_every_message=1.0,
    expandable_segments=1.0,
    recomputes_operators=1.0,
    needs_pp_micro_batches=1.0,
)
