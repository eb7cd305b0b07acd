"""nanotron: torch with the fused norms and rotation of flash-attention, pipelines of its own."""

from dataclasses import replace

from cost_models.runtimes import torch

RUNTIME = replace(
    torch.RUNTIME,
    name="nanotron",
    title="nanotron",
    version="0.4, 03b83fc8",
    sources=("torch", "nanotron"),
    # nn/layer_norm.py (Triton), FlashRotaryEmbedding; models/llama.py GLUActivation is eager.
    eager_operators=0.0,
    eager_activation=1.0,
    # Queries, keys and values, and both inputs of the MLP, are one product each.
    separate_gated_matrices=0.0,
    repeats_key_value_heads=0.0,
    # optim/gradient_accumulator.py: fp32 masters of their own and one contiguous gradient buffer.
    # parallel/pipeline_parallel/state.py: one message at a time, into a tensor of its own.
    frees_gradients=0.0,
    # fp32_grad.add_(half_param.grad) after each backward pass, all-reduced whole with ZeRO 1 too.
    accumulates_apart=1.0,
    # parallel/tensor_parallel/functional.py: collectives along the first dimension, overlapped by
    # tp_linear_async_communication.
    copies_around_collectives=0.0,
    overlaps_own_shard=1.0,
    reduces_whole_bf16_gradients=1.0,
    weights_are_masters=0.0,
    offloads_shards=0.0,
    buffers_every_message=0.0,
)
