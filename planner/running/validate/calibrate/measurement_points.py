"""The measurements to make: the kernels of a request's plan, or a full set of sizes.  No torch."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any, get_args

import numpy as np

from cost_models.activation_memory import micro_batch
from cost_models.blocks.records import FlashAttention, Kernel, MemoryBoundKernel, Record
from cost_models.blocks.records import Gemm as GemmKernel
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import ModelSpec, TrainingSpec
from planner.documents.request import PlanRequest
from planner.running.validate.calibrate.job import (
    Attention,
    Collective,
    Gemm,
    Job,
    Kernels,
    Operation,
    Pass,
    Shape,
)

# Sizes of the full set, in steps over which a rate hardly changes.
GEMM_SIZES = {"m": (64, 256, 1024, 4096), "n": (128, 512, 2048, 8192), "k": (128, 512, 2048, 8192)}
SEQ_LENGTHS = (128, 512, 2048)
HEAD_DIMS = (64, 128)
WIDTHS = (256, 1024)
LARGEST_FLOP = 4e10  # limit for one GEMM
PRECISIONS = ("bf16", "fp16", "fp32")
RANKS = (2, 4, 8)
COLLECTIVES = get_args(Operation)
MESSAGES = tuple(2**power for power in range(10, 26, 3))  # 1 KiB to 32 MiB
SMALL = 64  # width of a layer with negligible arithmetic
SMALL_TOKENS = 16
SMALL_LAYERS = 4
LARGE = 512

# The request of the full set's script: a model whose layers launch every kind of eager kernel.
EXAMPLE = {
    "model": {
        "name": "example", "num_layers": SMALL_LAYERS, "hidden_size": 512,
        "num_attention_heads": 8, "vocab_size": 8192, "gated_mlp": False, "norm": "layernorm",
        "position": "learned", "max_position_embeddings": 2048, "qkv_bias": True,
        "attention_output_bias": True, "mlp_bias": True,
    },
    "cluster": "local",
    "training": {"seq_length": 512, "global_batch_size": 8},
    "plan": {"runtime": "torch", "cross_entropy": "unfused", "zero_stage": 0, "cp_kind": "a2a"},
}  # fmt: skip


def of_request(request: PlanRequest, budget_s: float) -> list[tuple[int, Job]]:
    """The measurement jobs of one plan, each with its number of ranks."""
    assert request.plan is not None
    plan, model, training = request.plan, request.model, request.training
    ranks = plan.tp * plan.cp * plan.pp * plan.dp
    kernels = kernels_of(model, training, plan)
    jobs = [(1, _alone(model, training, kernels, budget_s))]
    if ranks > 1:
        jobs.append((ranks, _together(model, training, plan.tp > 1, budget_s)))
    return jobs


def full(
    model: ModelSpec, training: TrainingSpec, ranks: Iterable[int], budget_s: float
) -> list[tuple[int, Job]]:
    """The measurement jobs of the full set; model: an example for model-dependent measurements."""
    parts = [_grid()]
    for width, length, gated in product(WIDTHS, SEQ_LENGTHS, (False, True)):
        example = _example(model, width, gated)
        long = training.model_copy(update={"seq_length": length})
        kernels = kernels_of(example, long, ParallelPlan(runtime="torch", cross_entropy="unfused"))
        parts.append(kernels.model_copy(update={"gemm": ()}))
    merged = Kernels(
        gemm=tuple(g for kernels in parts for g in kernels.gemm),
        attention=tuple(a for kernels in parts for a in kernels.attention),
        passes=tuple(p for kernels in parts for p in kernels.passes),
    ).once()
    jobs = [(1, _alone(model, training, merged, budget_s))]
    return jobs + [(n, _together(model, training, n == 2, budget_s)) for n in ranks if n > 1]


def _grid() -> Kernels:
    shapes = (Gemm(m=m, n=n, k=k) for m, n, k in product(*GEMM_SIZES.values()))
    return Kernels(gemm=tuple(g for g in shapes if 2.0 * g.m * g.n * g.k <= LARGEST_FLOP))


def _example(model: ModelSpec, width: int, gated: bool) -> ModelSpec:
    """A gated (Llama-like) or plain (GPT-like) model of a width, for its memory-bound kernels."""
    heads = max(width // HEAD_DIMS[width > WIDTHS[0]], 2)
    return model.model_copy(
        update={
            "hidden_size": width, "num_attention_heads": heads, "num_query_groups": heads,
            "head_dim": width // heads, "ffn_hidden_size": 4 * width, "gated_mlp": gated,
            "norm": "rmsnorm" if gated else "layernorm", "norm_bias": not gated,
            "position": "rope" if gated else "learned",
            "qkv_bias": not gated, "attention_output_bias": not gated, "mlp_bias": not gated,
            "max_position_embeddings": None if gated else max(SEQ_LENGTHS),
        }
    )  # fmt: skip


def _alone(model: ModelSpec, training: TrainingSpec, kernels: Kernels, budget_s: float) -> Job:
    small = _small(model, SMALL)
    length = training.model_copy(update={"seq_length": SMALL_TOKENS, "global_batch_size": 1})
    plan = ParallelPlan(runtime="torch", cross_entropy="unfused")
    layer = _layer_only(small, length, plan)
    return Job(
        precision=training.precision,
        budget_s=budget_s,
        kernels=kernels,
        small=layer,
        small_words=_script_config(small),
        large_words=_script_config(_small(model, LARGE)),
    )


def _together(model: ModelSpec, training: TrainingSpec, split: bool, budget_s: float) -> Job:
    return Job(
        precision=training.precision,
        budget_s=budget_s,
        small_words=_script_config(_small(model, SMALL)),
        collectives=tuple(Collective(op=o, bytes=b) for o in COLLECTIVES for b in MESSAGES),
        tensor_parallel=split,
    )


def _small(model: ModelSpec, width: int) -> ModelSpec:
    """A model of the same kind with this width, and heads that divide over two ranks."""
    grouped = model.num_query_groups < model.num_attention_heads
    return model.model_copy(
        update={
            "num_layers": SMALL_LAYERS, "hidden_size": width, "num_attention_heads": 4,
            "num_query_groups": 2 if grouped else 4, "head_dim": width // 4,
            "ffn_hidden_size": width * (3 if model.gated_mlp else 4), "vocab_size": SMALL,
            "max_position_embeddings": SMALL_TOKENS if model.position == "learned" else None,
        }
    )  # fmt: skip


def _script_config(model: ModelSpec) -> dict[str, Any]:
    """The CONFIG entries of a script that trains this model on one rank."""
    names = (
        "hidden_size", "num_attention_heads", "num_query_groups", "head_dim", "ffn_hidden_size",
        "vocab_size", "max_position_embeddings",
    )  # fmt: skip
    return {
        **{name: getattr(model, name) for name in names},
        "stage_layers": [model.num_layers],
        "seq_length": SMALL_TOKENS,
        "tied_embeddings": False,
    }


def kernels_of(model: ModelSpec, training: TrainingSpec, plan: ParallelPlan) -> Kernels:
    """Every kernel of a plan's micro-batch that a single rank can run, each once."""
    micro = micro_batch(model, training, Plans.from_rows([plan]))
    of_layers = [record for records in micro.layers for record in records]
    every = [*of_layers, *micro.embedding, *micro.head]
    return _kernels(model, every, _shape(model, training, plan)).once()


def _layer_only(model: ModelSpec, training: TrainingSpec, plan: ParallelPlan) -> Kernels:
    """The kernels of one dense layer, with repetitions."""
    dense = model.model_copy(update={"moe": None})
    layer = micro_batch(dense, training, Plans.from_rows([plan])).layers[0]
    return _kernels(model, layer, _shape(model, training, plan))


def _shape(model: ModelSpec, training: TrainingSpec, plan: ParallelPlan) -> Shape:
    tp, cp = plan.tp, plan.cp
    tokens = training.seq_length // cp
    kv_heads = max(model.num_query_groups // tp, 1)
    return Shape(
        sequences=plan.micro_batch_size,
        tokens=tokens,
        shard_tokens=tokens // tp if plan.sequence_parallel else tokens,
        seq_length=training.seq_length,
        hidden=model.hidden_size,
        width=model.ffn_hidden_size // tp,
        heads=model.num_attention_heads // tp,
        kv_heads=kv_heads,
        attention_heads=max(model.num_attention_heads // tp // cp, 1),
        attention_kv_heads=max(kv_heads // cp, 1),
        head_dim=model.head_dim,
        vocab=-(-model.vocab_size // tp),
    )


def _kernels(model: ModelSpec, records: Iterable[Record], shape: Shape) -> Kernels:
    gemm, attention, passes = [], [], []
    widths = {
        "qkv bias": shape.head_dim * (shape.heads + 2 * shape.kv_heads),
        "fc1 bias": shape.width * (2 if model.gated_mlp else 1),
    }
    for kernel in records:
        if not isinstance(kernel, Kernel) or not np.any(kernel.active):
            continue
        if isinstance(kernel, GemmKernel):
            if kernel.weights and not kernel.grouped:
                gemm.append(Gemm(m=_one(kernel.m), n=_one(kernel.n), k=_one(kernel.k)))
        elif isinstance(kernel, FlashAttention):
            attention.append(
                Attention(
                    shape=shape,
                    seq_length=float(np.max(kernel.span)),
                    flop=float(np.max(kernel.forward_flop)),
                )
            )
        elif isinstance(kernel, MemoryBoundKernel) and kernel.kind:
            passes.append(
                Pass(
                    kernel=kernel.kind,
                    shape=shape,
                    forward_bytes=float(np.max(kernel.forward_bytes)),
                    backward_bytes=float(np.max(kernel.backward_bytes)),
                    width=widths.get(kernel.name, shape.hidden),
                )
            )
    return Kernels(gemm=tuple(gemm), attention=tuple(attention), passes=tuple(passes))


def _one(value: Any) -> int:
    return int(np.max(value))
