"""Hugging Face transformers: its modelling code with its Trainer, PEFT and accelerate.

Adapters of PEFT are fp32 beside half-precision weights; weights that train are fp32 under autocast
or, sharded by FSDP2, cast as FSDP gathers them.
"""

from dataclasses import replace

from cost_models.runtimes import eager

RUNTIME = replace(
    eager.RUNTIME,
    name="transformers",
    title="transformers: eager layers, autocast, PEFT, FSDP2",
    version="transformers 5.17, PEFT 0.21, accelerate 1.15",
    sources=("torch", "transformers", "peft"),
    # sdpa_attention.py: enable_gqa, where there is no mask.
    repeats_key_value_heads=0.0,
    keeps_repeated_heads=0.0,
    autocasts=1.0,
    # tuners/tuners_utils.py cast_adapter_dtype, lora/layer.py _cast_input_dtype.
    casts_adapters=1.0,
    drops_half_logits=1.0,
    # TRL's chunks are checkpoints (trl/trainer/sft_trainer.py).
    keeps_chunk_logits=0.0,
    # Trainer: bitsandbytes registers embeddings with optim_bits 32.
    wide_table_states=1.0,
)
