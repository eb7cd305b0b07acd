"""LitGPT's finetuning scripts: plain operators, Lightning Fabric, FSDP 1, bitsandbytes 0.42.

All of it is half precision (bf16-true).
"""

from dataclasses import replace

from cost_models.runtimes import eager

RUNTIME = replace(
    eager.RUNTIME,
    name="litgpt",
    title="LitGPT: plain operators, Lightning Fabric",
    version="LitGPT 0.3 to 0.5, Lightning 2.3, bitsandbytes 0.42",
    sources=("torch", "litgpt"),
    # bitsandbytes before 0.43.2: autograd/_functions.py, MatMul4Bit.forward keeps A and B in
    # ctx.tensors; finetune/lora.py, fit: `loss` and `logits` hold the graph.
    keeps_frozen_inputs=1.0,
    holds_frozen_inputs=1.0,
    # litgpt/lora.py, LoRAQKVLinear.
    joins_adapters=1.0,
    pads_adapters=1.0,
    # litgpt/model.py, CausalSelfAttention.forward: a reshape that copies repeated heads alone.
    views_values=1.0,
    # Fabric's precision plugins widen what a module returns (convert_output).
    drops_half_logits=1.0,
    # finetune/lora.py, lm_head_chunk_size; utils.py, chunked_cross_entropy.
    chunks_head=1.0,
    # finetune/*.py: FSDPStrategy, and no_backward_sync while it accumulates.
    flat_gradients=1.0,
    # BitsandbytesPrecision replaces every torch.nn.Linear.
    packs_head=1.0,
    # Its configurations ask for bnb.nf4, not for bnb.nf4-dq.
    plain_scales=1.0,
)
