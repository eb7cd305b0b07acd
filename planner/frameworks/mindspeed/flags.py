"""The arguments of core_v0.12.1 with MindSpeed: those of Megatron-LM, some replaced."""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.plans import ParallelPlan
from planner.documents.request import PlanRequest
from planner.frameworks.base import Flag, flag, switch
from planner.frameworks.megatron.changes import Changes
from planner.frameworks.megatron.flags import flags as megatron_flags

CP_ALGORITHMS = {
    "p2p": "megatron_cp_algo",
    "a2a": "ulysses_cp_algo",
    "all_gather": "kvallgather_cp_algo",
}


def _context(old: Flag, request: PlanRequest, plan: ParallelPlan) -> Iterator[Flag]:
    yield flag(old.group, "--context-parallel-algo", CP_ALGORITHMS[plan.cp_kind], old.why)


def _chunks(old: Flag, request: PlanRequest, plan: ParallelPlan) -> Iterator[Flag]:
    """MindSpeed takes the layers per chunk, not the number of chunks."""
    if plan.schedule == "dualpipe-v":
        yield flag(
            old.group, "--schedules-method", "dualpipev", "two chunks per stage, in a V schedule"
        )
        return
    layers = request.model.num_layers // (plan.pp * plan.vpp)
    why = f"interleaved 1F1B: layers per chunk, {plan.vpp} chunks per stage"
    yield flag(old.group, "--num-layers-per-virtual-pipeline-stage", layers, why)


def _vocabulary(old: Flag, request: PlanRequest, plan: ParallelPlan) -> Iterator[Flag]:
    tokens = request.model.vocab_size
    yield flag(
        old.group, old.name, max(tokens - 1, 1), f"NullTokenizer adds one id: {tokens} tokens"
    )


def _kernels(old: Flag, request: PlanRequest, plan: ParallelPlan) -> Iterator[Flag]:
    """The attention kernel, and the kernels that MindSpeed fuses only if asked to."""
    group, model = old.group, request.model
    yield switch(group, "--use-flash-attn", "the NPU's fused attention")
    if model.norm == "rmsnorm":
        yield switch(group, "--use-fused-rmsnorm", "RMSNorm in one kernel")
    if model.gated_mlp:
        yield switch(group, "--use-fused-swiglu", "SwiGLU in one kernel")
    if model.mla is not None:
        yield switch(group, "--no-rope-fusion", "latent attention has no fused RoPE")
    elif model.position == "rope":
        yield switch(group, "--use-fused-rotary-pos-emb", "RoPE in one kernel")
    yield switch(
        group,
        "--no-gradient-accumulation-fusion",
        "the fused kernel must be compiled on the machine",
    )


CHANGES = Changes(
    names={
        "--use-custom-fsdp": "--use-megatron-fsdp",
        "--use-ascend-mc2": "--tp-comm-overlap",
        "--moe-fb-overlap": "--overlap-moe-expert-parallel-comm",
        "--swap-optimizer": "--optimizer-cpu-offload",
    },
    left_out=frozenset(
        {"--ckpt-format", "--use-precision-aware-optimizer", "--optimizer-offload-fraction"}
        | {"--overlap-cpu-optimizer-d2h-h2d", "--padded-vocab-size"}
        | {"--no-gradient-accumulation-fusion"}  # _kernels writes it for every plan
    ),
    replaced={
        "--cp-comm-type": _context,
        "--num-virtual-stages-per-pipeline-rank": _chunks,
        "--attention-backend": _kernels,
        "--vocab-size": _vocabulary,
    },
)


def flags(request: PlanRequest, plan: ParallelPlan) -> tuple[Flag, ...]:
    """Every argument of `pretrain_gpt.py`, grouped."""
    return tuple(CHANGES.written(megatron_flags(request, plan), request, plan))
