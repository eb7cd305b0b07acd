"""Models in plain PyTorch, as litgpt, torchtune and most research code write them."""

from dataclasses import replace

from cost_models.runtimes import torch

RUNTIME = replace(
    torch.RUNTIME,
    name="eager",
    title="PyTorch: models of plain operators",
    version="litgpt 0.5, torchtune 0.6, torch 2.1 to 2.11",
    sources=("torch", "transformers"),
    # Its allocator, its wrappers and its states are torch's own.
    peaks_of="torch",
    # litgpt/model.py RMSNorm, torchtune/modules/rms_norm.py, transformers' LlamaRMSNorm.
    norms_in_fp32=1.0,
    # litgpt/model.py expand and reshape, torchtune/modules/attention.py expand and flatten.
    keeps_repeated_heads=1.0,
    unfused_attention_in_fp32=0.0,
    unfused_attention_by_operator=1.0,
    # torchtune/modules/loss/cross_entropy_loss.py, LinearCrossEntropyLoss.
    keeps_chunk_logits=1.0,
    expandable_segments=0.0,
    # 0.1 to 5.5 GiB on an H200, near the size of the fp32 logits (tools/gpu_day/h200.json).
    gaps_of_logits=1.0,
)
