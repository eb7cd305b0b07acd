"""Hugging Face transformers where AdamW steps over lists of tensors, torch's own choice.

That is "adamw_torch", the Trainer's default before torch 2.8, and what a training loop gets that
asks torch.optim.AdamW for nothing else (verl, PEFT's benchmark).
"""

from dataclasses import replace

from cost_models.runtimes import transformers

RUNTIME = replace(
    transformers.RUNTIME,
    name="transformers-foreach",
    title="transformers with AdamW over lists of tensors",
    version="transformers before 4.56 or torch before 2.8; loops with torch.optim.AdamW",
    steps_by_list=1.0,
)
