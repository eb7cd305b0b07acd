"""Megatron-LM's options that change time or memory but are no field of a plan, with reasons.

A launch with one of them is read and costed without it, with a note.
"""

from __future__ import annotations

from planner.frameworks.arguments import Arguments

_GRAPHS = "only CUDA graphs of whole steps are modelled, as the runtime megatron-graphs"
_OFFLOAD = "only the offload of whole layers is modelled, not of single tensors"
_PARTS = "a plan has one precision for all layers"
_HIERARCHY = "hierarchical CP is not modelled: cp_kind is a ring or an all-to-all, not both"
_WGRAD = "weight gradients are costed with their layer: no run with a delay was found"
_OUTER = "states are sharded within groups of dp_shard ranks only"
_COMPRESSED = "communication is costed in the dtypes of the training"
_SHARP = "in-switch reductions are not modelled"
_DISPATCH = "dispatcher kernels are costed as tuned in published runs"

UNPLANNED: dict[str, str] = {
    "--activation-offload-fraction": _OFFLOAD,
    "--cuda-graph-impl": _GRAPHS,
    "--cuda-graph-modules": _GRAPHS,
    "--cuda-graph-scope": _GRAPHS,
    "--defer-embedding-wgrad-compute": _WGRAD,
    "--delay-wgrad-compute": _WGRAD,
    "--distribute-saved-activations": "inputs of recomputed layers are costed whole, or "
    "sharded with sequence parallelism",
    "--enable-cuda-graph": _GRAPHS,
    "--enable-full-sharding-in-hsdp": _OUTER,
    "--external-cuda-graph": _GRAPHS,
    "--fine-grained-activation-offloading": _OFFLOAD,
    "--first-last-layers-bf16": _PARTS,
    "--fp32-residual-connection": "the residual stream has the type of the weights",
    "--fp8-output-proj": _PARTS,
    "--hierarchical-context-parallel-sizes": _HIERARCHY,
    "--megatron-fsdp-grad-comm-dtype": _COMPRESSED,
    "--megatron-fsdp-main-grads-dtype": _COMPRESSED,
    "--megatron-fsdp-main-params-dtype": "master weights are fp32",
    "--moe-combine-bwd-dtype": _COMPRESSED,
    "--moe-dispatch-fwd-dtype": _COMPRESSED,
    "--moe-expert-rank-capacity-factor": "tokens are assumed to spread evenly over ranks",
    "--moe-hybridep-num-sms": _DISPATCH,
    "--moe-paged-stash": _OFFLOAD,
    "--moe-shared-expert-overlap": "shared experts are costed without overlap",
    "--offload-modules": _OFFLOAD,
    "--optimizer-cuda-graph": _GRAPHS,
    "--outer-dp-sharding-strategy": _OUTER,
    "--overlap-dispatch-backward-with-experts-wgrad": _WGRAD,
    "--overlap-param-gather-with-optimizer-step": "the step is costed after all communication",
    "--te-precision-config-file": _PARTS,
    "--use-nccl-ub": "buffers registered with NCCL are not modelled",
    "--use-sharp": _SHARP,
    "--use-transformer-engine-op-fuser": "kernels are costed as in measured runs, without a fuser",
}


def note(args: Arguments) -> None:
    """Adds an assumption to the reading for each of these options that is given."""
    for name in sorted(args.given.keys() & UNPLANNED.keys()):
        args.assume(f"{name} is not costed: {UNPLANNED[name]}")
