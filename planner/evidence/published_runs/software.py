"""What a run's software does by default, in the terms of a plan: kernels, dtypes, overlap.

The first pattern found in the row's stack decides, or in its source's title where the row names no
stack.  A stack that nobody listed is eager PyTorch with nothing overlapped, and said to be guessed,
as is one that is taken as another's.  A row's own overlap columns win.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from cost_models.runtimes import RUNTIMES
from planner.evidence.published_runs.runs import Run


@dataclass(frozen=True)
class Software:
    """One family of releases: plan and training fields, and where they are documented."""

    pattern: str
    label: str
    plan: dict[str, Any]
    training: dict[str, Any] = field(default_factory=dict)
    # fp16 runs of that time accumulate and reduce in fp16, bf16 runs in fp32 (arguments.py).
    half_gradients: bool = False
    # Releases of this year and later.
    since: int = 0
    # Whether its kernels and overlap are another stack's, for its own are not known.
    guessed: bool = False

    @property
    def lineage(self) -> str:
        """Whose runtime its own is a kind of."""
        return RUNTIMES[self.plan["runtime"]].lineage


_OVERLAP = {"overlap_grad_reduce": True, "overlap_param_gather": True}
_SERIAL = {"overlap_grad_reduce": False, "overlap_param_gather": False, "overlap_p2p": False}
_NARROW = {
    "gradient_dtype": "bf16", "gradient_reduce_dtype": "bf16", "fp8_param_gather": True,
}  # fmt: skip
_FLASH2 = {"attention_kernel": "flash2", "cross_entropy": "unfused"}
# Weights, gradients and optimizer states all in bf16.
_PURE_BF16 = {
    "gradient_dtype": "bf16", "gradient_reduce_dtype": "bf16", "master_weights_dtype": "none",
    "optimizer_state_dtype": "bf16",
}  # fmt: skip
SOFTWARE: tuple[Software, ...] = (
    Software("megatron-deepspeed|megatron-ds|neox", "Megatron-DeepSpeed, apex kernels",
             {"runtime": "deepspeed", **_SERIAL, "cross_entropy": "unfused"}, half_gradients=True),
    Software(r"deepspeed|zero-?[123]|zero-offload|zero\+\+", "DeepSpeed ZeRO, overlapped",
             {"runtime": "deepspeed", **_OVERLAP, "cross_entropy": "unfused"}, half_gradients=True),
    Software(r"(megatron|mcore)\S*2022|oneflow|libai",
             "Megatron-LM of 2022: fused accumulation, asynchronous all-reduce",
             {"runtime": "megatron-2022", **_SERIAL, "cross_entropy": "unfused"},
             half_gradients=True),
    Software(r"(megatron|mcore)\S*20(19|20|21)|varuna|pipedream|dapple|chimera|terapipe",
             "Megatron-LM of 2021 with apex kernels",
             {"runtime": "megatron-2021", **_SERIAL, "cross_entropy": "unfused"},
             half_gradients=True),
    Software("no-overlap", "Megatron-Core, all overlap off",
             {"runtime": "megatron-sync", **_SERIAL}),
    Software("titan", "torchtitan: FSDP2, SDPA", {"runtime": "torch", **_OVERLAP, **_FLASH2}),
    Software("(megatron|mcore)-fsdp", "Megatron-FSDP: Transformer Engine, sharded weights",
             {"runtime": "megatron", **_OVERLAP}),
    Software("automodel|fsdp2-te", "FSDP2 with Transformer Engine and DeepEP",
             {"runtime": "torch", "compile": True, **_OVERLAP, "moe_dispatcher": "deepep",
              "cross_entropy": "fused"},
             # Its recipes run torch.optim.Adam on bf16 weights (examples/llm_benchmark).
             {name: dtype for name, dtype in _PURE_BF16.items() if "reduce" not in name}),
    # `dtype: bf16` of its recipes is the dtype of the weights that the optimizer gets
    # (recipes/configs, training/precision.py).
    Software("torchtune", "torchtune: all of it in bf16, flash-attention-2",
             {"runtime": "torch", **_OVERLAP, **_FLASH2}, _PURE_BF16),
    Software("fsdp1|foundry|composer", "llm-foundry: FSDP, flash-attention's cross-entropy",
             {"runtime": "torch", **_OVERLAP, "attention_kernel": "flash2",
              "cross_entropy": "fused"}),
    Software("hai-?llm|deepseek", "HAI-LLM: own kernels, DeepEP, overlapped",
             {"runtime": "megatron", **_OVERLAP, "moe_dispatcher": "deepep"}),
    # Published as overlapping tensor-parallel collectives with their GEMMs (arXiv 2402.15627).
    Software("megascale|flux|byte", "MegaScale: Megatron-LM with all communication overlapped",
             {"runtime": "megatron", **_OVERLAP, "overlap_tp": True}),
    Software("nanotron", "nanotron: fused norms and rotation, flash-attention-2",
             {"runtime": "nanotron", **_OVERLAP, **_FLASH2}),
    # XLA fuses what is memory-bound as torch.compile does; its collectives run asynchronously.
    Software("maxtext|jax|pax|praxis|levanter|t5x|gspmd|xla|mesh-tensorflow|easylm",
             "JAX: compiled, kernels as of compiled FSDP",
             {"runtime": "jax", "compile": True, **_OVERLAP, "cross_entropy": "unfused"}),
    Software("alpa", "Alpa on XLA: compiled, taken as compiled PyTorch",
             {"runtime": "torch", "compile": True, **_SERIAL, "cross_entropy": "unfused"},
             half_gradients=True, guessed=True),
    Software("olmo", "OLMo: compiled FSDP",
             {"runtime": "torch", "compile": True, **_OVERLAP, **_FLASH2}),
    Software(r"transformers|\bhf\b|hugging|peft|axolotl|accelerate|trl\b|llama-factory|llm-factory|"
             "swift|verl",
             "transformers: eager layers, autocast, flash-attention-2",
             {"runtime": "transformers", **_OVERLAP, **_FLASH2}),
    Software(r"fsdp|torch|foundry|composer|tune|lightning|metaseq|fairseq|colossal|picotron|litgpt|"
             r"unsloth|\bddp\b",
             "PyTorch runtime with eager kernels and flash-attention-2",
             {"runtime": "torch", **_OVERLAP, **_FLASH2}),
    # Their performance recipes reduce gradients in bf16 and overlap tensor parallelism by user
    # buffers (NeMo and Megatron-Bridge scripts/performance: grad_reduce_in_fp32 False); weights are
    # stored in fp8 (fp8_params).  NeMo's recipes for GPT-3 175B and Nemotron 340B recompute nothing
    # (NeMo-Framework-Launcher conf/training, activations_checkpoint_granularity null).
    Software("nemo", "NeMo: Transformer Engine, gradients in bf16, no recompute unless stated",
             {"runtime": "megatron", **_OVERLAP, "overlap_tp": True, "recompute": "none"}, _NARROW),
    # Bridge's take Transformer Engine's loss in all releases (cross_entropy_fusion_impl "te").
    Software("bridge", "Megatron-Bridge: Transformer Engine, gradients in bf16, segments that grow",
             {"runtime": "megatron-2026", **_OVERLAP, "overlap_tp": True,
              "cross_entropy": "in_place"}, _NARROW, since=2026),
    Software("bridge|mlperf", "Megatron-Bridge: Transformer Engine, gradients in bf16",
             {"runtime": "megatron", **_OVERLAP, "overlap_tp": True,
              "cross_entropy": "in_place"}, _NARROW),
    # Neuron compiles the graph of a step, with attention of its own kernel library; what it says of
    # overlap is about its tensor-parallel collectives alone (awsdocs-neuron, NxD Training).
    Software("neuron|nxd", "NeuronX Distributed: compiled, nothing overlapped",
             {"runtime": "megatron-sync", **_SERIAL}, guessed=True),
    # Its 7B configuration broadcasts updated parameters after the step, and its products are
    # torch's (InternLM/InternEvo configs/7B_sft.py: overlap_sync_param False).
    Software("intern", "InternEvo: PyTorch's kernels, flash-attention-2, nothing overlapped",
             {"runtime": "torch", **_SERIAL, **_FLASH2}),
    # Forks that keep Megatron-Core's runtime, on NVIDIA's parts or others'.
    Software(r"megatron|mcore|\bte\b|transformer-engine|flagscale|galvatron|sagemaker|pai\b|"
             "llama-?3", "Megatron-Core with Transformer Engine",
             {"runtime": "megatron", **_OVERLAP}),
    Software("primus|mindspeed|mindspore|pangu",
             "a fork of Megatron-Core with kernels of its vendor",
             {"runtime": "megatron", **_OVERLAP}, guessed=True),
)  # fmt: skip
_UNKNOWN = Software(
    "", "unknown software", {"runtime": "torch", **_SERIAL, **_FLASH2}, guessed=True
)
# Megatron of these years was not yet Megatron-Core, whatever the row calls it.
_EARLY = {
    year: next(s for s in SOFTWARE if s.plan["runtime"] == f"megatron-{year}")
    for year in (2021, 2022)
}
# Before 2023 nothing here had flash attention; the released kernels of 2023 are version 2.
FLASH_SINCE, FLASH3_SINCE = 2023, 2024
_FUSED = (
    "flash", "fused", "cudnn", "fa1", "fa2", "fa3", "fa4", "sdpa", "triton", "aiter", "xformers",
    "efficient", "splash", "flex",
)  # fmt: skip


def software_of(run: Run) -> tuple[Software, tuple[str, ...]]:
    """The software of a row, and what was assumed of it."""
    name = run["stack"] if run["stack"].lower() not in ("", "other") else run["source"]
    name = name.lower().replace("_", "-").replace(" ", "-")
    if re.search(r"\bnemo \d\d\.\d\d\b", run.notes.lower()):
        name = "nemo"  # a release that the notes name wins
    matching = (
        known
        for known in SOFTWARE
        if name and run.year >= known.since and re.search(known.pattern, name)
    )
    found = next(matching, _UNKNOWN)
    if found.plan["runtime"] == "megatron" and run.year <= max(_EARLY):
        found = _EARLY[max(run.year, min(_EARLY))]
    elif found is _UNKNOWN:
        said = run["stack"][:60] or "not stated"
        return found, (f"software: {said}, taken as eager PyTorch with nothing overlapped",)
    return found, (f"software: {found.label}",)


def attention_kernel(run: Run, software: Software) -> str:
    """The attention of a row: as its column says, else by its flag and year."""
    stated = run["attention_kernel"].lower()
    year, flag = run.year, run.flag("flash_attention")

    def says(*words: str) -> bool:
        return any(word in stated for word in words)

    if says("unfused", "eager", "naive", "math", "none"):
        return "unfused"
    if not says(*_FUSED) and not (year >= FLASH_SINCE if flag is None else flag):
        return "unfused"
    if says("flash3", "fa3", "flash-3", "flash-attention-3", "cudnn", "fa4"):
        return "flash"
    if "flash1" in stated or ("fsdp1" in run["stack"].lower() and year <= 2023):
        # MPT's ALiBi needed the Triton kernel of flash-attn 1 until flash-attn 2.4.2 (llm-foundry
        # attention.py, attn_impl "triton").
        return "flash1"
    second = says("flash2", "fa2", "flash-2", "flash-attention-2", "sdpa", "xformers")
    if second or year < FLASH3_SINCE:
        return "flash2"
    return str(software.plan.get("attention_kernel", "flash"))


def gradient_dtypes(run: Run, software: Software, precision: str) -> dict[str, str]:
    """The dtypes that gradients accumulate and reduce in, and the optimizer's where they differ."""
    if software.half_gradients and precision == "fp16":
        return {"gradient_dtype": "fp16", "gradient_reduce_dtype": "fp16"}
    # litgpt's word for a model that is bf16 throughout, and that of others for what AdamW gets.
    if precision == "bf16" and re.search(
        r"bf16-true|\bweights bf16\b|\bbf16 weights\b", run.notes.lower()
    ):
        return _PURE_BF16
    if "bf16 pure" in run.notes.lower() or "pure mode" in run.notes.lower():
        return {"gradient_dtype": "bf16", "gradient_reduce_dtype": "bf16"}
    return {"gradient_dtype": "fp32", "gradient_reduce_dtype": "fp32", **software.training}
