"""Megatron-LM's options that change time or memory but are no field of a plan, with reasons.

A launch with one of them is read and costed without it, with a note.
"""

from __future__ import annotations

from planner.frameworks.arguments import Arguments

_GRAPHS = "CUDA graphs are the runtime megatron-graphs of published runs, of whole steps only"
_OFFLOAD = "which tensors fit under the layers' time is not modelled; whole layers are a field"
_PARTS = "one precision holds for all layers of a plan"
_HIERARCHY = "hierarchical CP is not modelled: rings and all-to-alls are priced apart (cp_kind)"
_WGRAD = "weight gradients are taken to follow their layer: no run with them put off was found"
_OUTER = "outer replicas keep whole states: dp_shard shards within"
_COMPRESSED = "communication is priced in the dtypes of the training"
_SHARP = "reductions in the switch are not modelled"
_DISPATCH = "the dispatcher's own tuning; its kernels are priced as published runs used them"

UNPLANNED: dict[str, str] = {
    "--activation-offload-fraction": _OFFLOAD,
    "--cuda-graph-impl": _GRAPHS,
    "--cuda-graph-modules": _GRAPHS,
    "--cuda-graph-scope": _GRAPHS,
    "--defer-embedding-wgrad-compute": _WGRAD,
    "--delay-wgrad-compute": _WGRAD,
    "--distribute-saved-activations": "inputs of recomputed layers are kept whole, or with "
    "sequence parallelism in shards",
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
    "--moe-expert-rank-capacity-factor": "tokens are taken to spread evenly over ranks",
    "--moe-hybridep-num-sms": _DISPATCH,
    "--moe-paged-stash": _OFFLOAD,
    "--moe-shared-expert-overlap": "shared experts are priced after the all-to-all, not under it",
    "--offload-modules": _OFFLOAD,
    "--optimizer-cuda-graph": _GRAPHS,
    "--outer-dp-sharding-strategy": _OUTER,
    "--overlap-dispatch-backward-with-experts-wgrad": _WGRAD,
    "--overlap-param-gather-with-optimizer-step": "the step is priced after all traffic",
    "--te-precision-config-file": _PARTS,
    "--use-nccl-ub": "buffers that the network reads directly are not modelled",
    "--use-sharp": _SHARP,
    "--use-transformer-engine-op-fuser": "kernels are those of measured runs, which had none",
}


def note(args: Arguments) -> None:
    """Adds an assumption to the reading for each of these options that is given."""
    for name in sorted(args.given.keys() & UNPLANNED.keys()):
        args.assume(f"{name} is not costed: {UNPLANNED[name]}")
