"""What a run's software does by default, in the terms of a plan: kernels, dtypes, overlap.

The first pattern found in the row's stack decides; an unknown stack is taken as today's
Megatron-Core, and listed so.  A row's own overlap columns win.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from planner.accuracy.runs import Run


@dataclass(frozen=True)
class Software:
    """One family of releases: plan and training fields, and where they are documented."""

    pattern: str
    label: str
    plan: dict[str, Any]
    training: dict[str, Any] = field(default_factory=dict)
    # fp16 runs of that time accumulate and reduce in fp16, bf16 runs in fp32 (arguments.py).
    half_gradients: bool = False


_OVERLAP = {"overlap_grad_reduce": True, "overlap_param_gather": True}
_SERIAL = {"overlap_grad_reduce": False, "overlap_param_gather": False, "overlap_p2p": False}
SOFTWARE: tuple[Software, ...] = (
    Software("zero3|deepspeed-zero|zero-3", "DeepSpeed ZeRO, 2021",
             {"stack": "deepspeed", **_OVERLAP, "cross_entropy": "unfused"}, half_gradients=True),
    Software("megatron-deepspeed|deepspeed", "Megatron-DeepSpeed, apex kernels",
             {"stack": "deepspeed", **_SERIAL, "cross_entropy": "unfused"}, half_gradients=True),
    Software("megatron-(lm-)?2022", "Megatron-LM of 2022: fused accumulation, asynchronous all-reduce",
             {"stack": "megatron-2022", **_SERIAL, "cross_entropy": "unfused"}, half_gradients=True),
    Software("megatron-(lm-)?20(19|20|21)", "Megatron-LM of 2021 with apex kernels",
             {"stack": "megatron-2021", **_SERIAL, "cross_entropy": "unfused"}, half_gradients=True),
    Software("no-overlap", "Megatron-Core, all overlap off", {"stack": "megatron", **_SERIAL}),
    Software("torchtitan|titan", "torchtitan: FSDP2, SDPA",
             {"stack": "torch", **_OVERLAP, "attention_kernel": "flash2",
              "cross_entropy": "unfused"}),
    Software("fsdp2-te|automodel", "FSDP2 with Transformer Engine and DeepEP",
             {"stack": "torch", "compile": True, **_OVERLAP, "moe_dispatcher": "deepep",
              "cross_entropy": "fused"},
             # Its recipes run torch.optim.Adam on bf16 weights (examples/llm_benchmark).
             {"gradient_dtype": "bf16", "master_weights_dtype": "none",
              "optimizer_state_dtype": "bf16"}),
    Software("fsdp1|foundry|composer", "llm-foundry: FSDP, flash-attention's cross-entropy",
             {"stack": "torch", **_OVERLAP, "attention_kernel": "flash2",
              "cross_entropy": "fused"}),
    Software("fsdp|torch|axolotl|tune|accelerate|lightning|hf|transformers",
             "FSDP with eager kernels and flash-attention-2",
             {"stack": "torch", **_OVERLAP, "attention_kernel": "flash2",
              "cross_entropy": "unfused"}),
    Software("nemo", "NeMo: Transformer Engine, gradients in bf16 (launcher's grad_sync_dtype)",
             {"stack": "megatron", **_OVERLAP},
             {"gradient_dtype": "bf16", "gradient_reduce_dtype": "bf16"}),
    Software("bridge|megatron|mcore|te\\b", "Megatron-Core with Transformer Engine",
             {"stack": "megatron", **_OVERLAP}),
)  # fmt: skip
_UNKNOWN = Software("", "unknown software, taken as Megatron-Core", {"stack": "megatron"})
# Before 2023 nothing here had flash attention; the released kernels of 2023 are version 2.
FLASH_SINCE, FLASH3_SINCE = 2023, 2024


def software_of(run: Run) -> tuple[Software, tuple[str, ...]]:
    """The software of a row, and what was assumed of it."""
    name = run["stack"].lower()
    for known in SOFTWARE:
        if name and re.search(known.pattern, name):
            return known, (f"software: {known.label}",)
    return _UNKNOWN, (f"software: {name[:60] or 'not stated'}, taken as Megatron-Core",)


def attention_kernel(run: Run, software: Software) -> str:
    """The attention of a row: as its column says, else by its flag and year."""
    stated = run["attention_kernel"].lower()
    year = run.integer("year") or 2024
    if "unfused" in stated or "eager" in stated:
        return "unfused"
    flash = "flash" in stated or "fused" in stated or "cudnn" in stated
    if not flash and run.flag("flash_attention") is not None:
        flash = bool(run.flag("flash_attention"))
    elif not flash:
        flash = year >= FLASH_SINCE
    if not flash:
        return "unfused"
    if any(word in stated for word in ("flash3", "fa3", "flash-3", "cudnn", "fa4")):
        return "flash"
    if "flash1" in stated or ("fsdp1" in run["stack"].lower() and year <= 2023):
        # MPT's ALiBi needed the Triton kernel of flash-attn 1 until flash-attn 2.4.2 (llm-foundry
        # attention.py, attn_impl "triton").
        return "flash1"
    if any(word in stated for word in ("flash2", "fa2", "flash-2")) or year < FLASH3_SINCE:
        return "flash2"
    return str(software.plan.get("attention_kernel", "flash"))


def gradient_dtypes(run: Run, software: Software, precision: str) -> dict[str, str]:
    """The dtypes gradients accumulate and reduce in."""
    if software.half_gradients and precision == "fp16":
        return {"gradient_dtype": "fp16", "gradient_reduce_dtype": "fp16"}
    if "bf16 pure" in run.notes.lower() or "pure mode" in run.notes.lower():
        return {"gradient_dtype": "bf16", "gradient_reduce_dtype": "bf16"}
    return {"gradient_dtype": "fp32", "gradient_reduce_dtype": "fp32", **software.training}
