"""Where formulas and constants come from: citation keys, and the registry of public formulas.

A formula is a pure function of float64 arrays that broadcast; a single plan is the 0-d case.
`@formula` records the unit of its result and the sources it rests on, so that tests can run
over all of them (known source, vector == scalar, dimensions).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from numpy.typing import NDArray

# Counts may arrive as int64 columns; every formula computes in float64.
Array = float | NDArray[Any]
Unit = Literal["byte", "s", "flop", "1", "byte/s", "flop/s"]

SOURCES: dict[str, str] = {
    "derived": "derived in the docstring of the formula",
    "megatron-2": "Narayanan et al., SC'21, arXiv 2104.04473",
    "korthikanti-2022": "Korthikanti et al., Reducing Activation Recomputation, arXiv 2205.05198",
    "zero": "Rajbhandari et al., ZeRO, SC'20, arXiv 1910.02054",
    "gpipe": "Huang et al., GPipe, NeurIPS 2019, arXiv 1811.06965",
    "pipedream": "Narayanan et al., PipeDream, SOSP'19, arXiv 1806.03377",
    "pipedream-2bw": "Narayanan et al., Memory-Efficient Pipeline-Parallel, arXiv 2006.09503",
    "looped-bfs": "Lamy-Poirier, Breadth-First Pipeline Parallelism, arXiv 2211.05953",
    "zero-bubble": "Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241",
    "v-schedules": "Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362",
    "dualpipe": "deepseek-ai/DualPipe README (DualPipe, DualPipeV), and arXiv 2412.19437, 3.2.1",
    "hanayo": "Liu et al., Hanayo, SC'23, arXiv 2308.15762",
    "palm": "Chowdhery et al., PaLM, arXiv 2204.02311, appendix B (MFU)",
    "flash-attention-2": "Dao, FlashAttention-2, arXiv 2307.08691",
    "flash-attention-3": "Shah et al., FlashAttention-3, arXiv 2407.08608",
    "deepseek-v2": "DeepSeek-V2, arXiv 2405.04434, section 2.1 (MLA)",
    "deepseek-v3": "DeepSeek-V3, arXiv 2412.19437, section 2.2 (MTP)",
    "ulysses": "Jacobs et al., DeepSpeed-Ulysses, arXiv 2309.14509",
    "ring-attention": "Liu et al., Ring Attention, arXiv 2310.01889",
    "fsdp": "Zhao et al., PyTorch FSDP, arXiv 2304.11277",
    "zero-infinity": "Rajbhandari et al., ZeRO-Infinity, arXiv 2104.07857",
    "roofline": "Williams, Waterman, Patterson, Roofline, CACM 2009",
    "thakur-2005": "Thakur, Rabenseifner, Gropp, Optimization of Collective Communication, 2005",
    "nccl-tests": "NVIDIA nccl-tests doc/PERFORMANCE.md (bus bandwidth)",
    "nccl-tuning": "NVIDIA nccl v2.30.7 src/graph/tuning.cc (latencies)",
    "megatron-core": "Megatron-LM main d98e8a64, behaviour of its code",
    "megatron-bridge": "NVIDIA-NeMo/Megatron-Bridge scripts/performance/configs @04264182",
    "torch": "torch 2.13.0, behaviour of its code",
    "transformers": "huggingface/transformers 5.17 and 5.23, behaviour of their code",
    "peft": "huggingface/peft 0.21.2, behaviour of its code",
    "gpu-day": "tools/gpu_day/h200.json, measured on one H200 by tools/gpu_day/measure.py",
    "transformer-engine": "NVIDIA TransformerEngine 2.11, behaviour of its code",
    "maxtext": "AI-Hypercomputer/maxtext main of 2026, behaviour of its code",
    "nanotron": "huggingface/nanotron 03b83fc8, behaviour of its code",
    "deepspeed": "DeepSpeed 41d90830 and 5505e247 (2022), behaviour of their code",
    "tensor-cores": "NVIDIA Matrix Multiplication Background User's Guide, requirements",
    "aiconfigurator": "ai-dynamo/aiconfigurator @095f58a5, measured kernels (Apache-2.0)",
    "ml-engineering": "stas00/ml-engineering @744d01e1, measured kernels and networks",
    "young-1974": "Young, A first order approximation to the optimum checkpoint interval, 1974",
    "mccandlish-2018": "McCandlish et al., Large-batch training, arXiv 1812.06162",
    "daly-2006": "Daly, A higher order estimate of the optimum checkpoint interval, FGCS 2006",
    "mamba": "Gu, Dao, Mamba, arXiv 2312.00752",
    "mamba-2": "Dao, Gu, Transformers are SSMs (Mamba-2), arXiv 2405.21060, section 6",
    "gated-delta-net": "Yang et al., Gated Delta Networks, arXiv 2412.06464",
    "kimi-linear": "Kimi Linear, arXiv 2510.26692",
    "minimax-01": "MiniMax-01: Scaling with Lightning Attention, arXiv 2501.08313",
    "minimax-m3": "MiniMax Sparse Attention, arXiv 2606.13392; MiniMax-M3, transformers 5.23",
    "lfm2": "LFM2 Technical Report, arXiv 2511.23404 (gated short convolutions)",
    "rwkv": "Peng et al., RWKV, arXiv 2305.13048",
    "griffin": "De et al., Griffin, arXiv 2402.19427",
    "falcon-h1": "Falcon-H1, arXiv 2507.22448 (attention and SSM heads beside each other)",
    "deepseek-v3.2": "DeepSeek-V3.2, arXiv 2512.02556, section 2 (DSA)",
    "deepseek-v4": "DeepSeek-V4 configuration and model code, transformers 5.23",
    "mhc": "Xie et al., mHC: Manifold-Constrained Hyper-Connections, arXiv 2512.24880",
    "gemma-3n": "Gemma 3n model code, transformers 5.23 (per-layer embeddings)",
    "longcat": "LongCat-Flash, arXiv 2509.01322 (zero-computation experts, shortcut MoE)",
    "muon": "Liu et al., Muon is Scalable for LLM Training (Moonlight), arXiv 2502.16982",
    "lora": "Hu et al., LoRA, arXiv 2106.09685",
    "qlora": "Dettmers et al., QLoRA, arXiv 2305.14314",
    "dpo": "Rafailov et al., Direct Preference Optimization, arXiv 2305.18290",
    "distillation": "Hinton et al., Distilling the Knowledge in a Neural Network, arXiv 1503.02531",
    "llama-3": "The Llama 3 Herd of Models, arXiv 2407.21783",
}


@dataclass(frozen=True)
class Formula:
    function: Callable[..., Any]
    unit: Unit
    sources: tuple[str, ...]


F = TypeVar("F", bound=Callable[..., Any])

FORMULAS: dict[str, Formula] = {}


def formula(unit: Unit, *sources: str) -> Callable[[F], F]:
    """Register a public formula: the unit of its result and its citation keys."""

    def register(function: F) -> F:
        FORMULAS[f"{function.__module__}.{function.__name__}"] = Formula(function, unit, sources)
        return function

    return register
