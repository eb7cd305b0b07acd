"""Native PyTorch: a training script on torch's own parallelism, and its launch script.

The training script is one template (train.py.txt, not a module: planner does not import torch);
its CONFIG block holds the plan.
"""

from __future__ import annotations

import textwrap
from importlib.resources import files

from cost_models.plans import ParallelPlan
from planner.constraints import Context
from planner.documents.request import PlanRequest
from planner.frameworks import bash_writer, unwritten_facts
from planner.frameworks.base import Bundle, Flag, Framework, cannot, flag, says
from planner.frameworks.pytorch import encoders, patterns
from planner.frameworks.pytorch.config import NUMERICS, WIDTH, flags
from planner.frameworks.pytorch.reader import LAUNCH, SCRIPT, read, recognises
from planner.frameworks.pytorch.rules import RULES
from planner.frameworks.rules import accelerators_per_node, nodes
from planner.frameworks.torch_schedules import SCHEDULES
from planner.frameworks.unwritten_facts import (
    MULTIPLIERS,
    Uncarried,
    gated,
    mixture,
    rotary,
    ungated,
)

VERSIONS = "torch 2.13"
FIELDS = {
    "tp": says("tp"),
    "sequence_parallel": says("sequence_parallel"),
    "cp": says("cp"),
    "cp_kind": says(
        "cp_kind",
        note="torch's own ring is experimental and runs on GPUs only",
        only=("a2a", "all_gather"),
    ),
    "dynamic_cp": cannot("every sequence is split over all cp ranks", False),
    "pp": says("pp", "stage_layers"),
    "vpp": says("stage_layers", note="stages per rank"),
    "dp": says("dp_replicate", "dp_shard", note="their product"),
    "dp_shard": says("dp_shard", note="times cp"),
    "ep": says("ep"),
    "etp": cannot("experts are not split by tensor parallelism", 1),
    "zero_stage": says(
        "zero_stage",
        note="3: fully_shard, 2 is 3 without reshard_after_forward, 0: replicate",
        only=(3, 0),
    ),
    "reshard_after_forward": says("reshard_after_forward"),
    "micro_batch_size": says("micro_batch_size"),
    "recompute": says("recompute"),
    "recompute_modules": says("recompute_modules", note="core_attn, mlp, moe; or op"),
    "recompute_method": says("recompute_method"),
    "recompute_num_layers": says("recompute_num_layers"),
    "recompute_layers": says("recompute_layers"),
    "schedule": says("schedule", only=tuple(SCHEDULES)),
    "first_stage_layers": says("stage_layers"),
    "last_stage_layers": says("stage_layers"),
    "stage_layers": says("stage_layers"),
    "rank_order": cannot("pp is the outermost axis of the mesh", "tp-cp-ep-dp-pp"),
    "offload_optimizer": cannot("fully_shard would also offload the weights", False),
    "offload_activations": cannot("activations stay on the accelerator", False),
    "offload_num_layers": cannot("activations stay on the accelerator"),
    "attention_kernel": says(
        "attention_kernel",
        note="scaled_dot_product_attention has no flash-attention 1",
        only=("flash", "flash2", "unfused"),
    ),
    "cross_entropy": cannot("the loss is torch's own, unfused", "unfused"),
    "moe_dispatcher": cannot("tokens are always dispatched by all-to-all", "alltoall"),
    "overlap_grad_reduce": cannot("always on without a pipeline, off with one"),
    "overlap_param_gather": cannot("fully_shard always prefetches weights", True),
    "overlap_tp": cannot("tensor-parallel communication is not overlapped", False),
    "overlap_p2p": cannot("schedules with several stages per rank always overlap messages", True),
    "overlap_ep": cannot("expert all-to-all is not overlapped", False),
    "runtime": cannot("PyTorch is itself the runtime", "torch"),
    "compile": says("compile"),
}
UNWRITTEN = (
    Uncarried("norm epsilon", "norm_epsilon (1e-5)", numerics=("norm_epsilon",)),
    Uncarried(
        "rotary base", "rotary_base (10000)", rotary, numerics=("rope_theta", "local_rope_theta")
    ),
    Uncarried(
        "share of rotated head dimensions", "1.0, no entry", rotary, numerics=("rotary_share",)
    ),
    Uncarried("rope scaling", "no entry", rotary, numerics=("rope_scaling",)),
    Uncarried("activation", "SwiGLU only", gated, numerics=("activation",)),
    Uncarried("activation", "GELU only", ungated, numerics=("activation",)),
    Uncarried("router scores", "softmax; top-k scores are normalized to sum 1", mixture),
    Uncarried("routed scaling factor", "none, no entry", mixture, numerics=("routed_scaling",)),
    Uncarried("load balancing of experts", "none, no entry", mixture),
    Uncarried(
        "standard deviation of the initial weights", "init_std (0.02)", numerics=("init_std",)
    ),
    Uncarried(
        "soft-capping of logits or attention scores, multipliers", "no entry", numerics=MULTIPLIERS
    ),
)
LAUNCHER = """\
#!/usr/bin/env bash
{head}
set -euo pipefail

{rendezvous}
# The training script lies beside this one.  Without GPUs it runs on CPUs, for a small model.
BUNDLE="${{BASH_SOURCE[0]%/*}}"
[ -d "$BUNDLE" ] || BUNDLE=.
{variables}
{exports}
{launch}
# Words name=value replace entries of CONFIG in the training script.
torchrun "${{LAUNCH_ARGS[@]}}" "$BUNDLE/train.py" "train_iters=$TRAIN_ITERS" "$@"
"""


def _block(entries: tuple[Flag, ...], missing: str) -> str:
    """The CONFIG block as Python."""
    return "\n".join(
        [missing, "CONFIG = {", *(line for one in entries for line in _lines(one)), "}"]
    )


def _lines(entry: Flag) -> list[str]:
    """An entry with its reason as a comment, above it if the line would be too long."""
    said = f'    "{entry.name}": {entry.value},'
    line = f"{said}  # {entry.why}"
    if len(line) <= WIDTH:
        return [line]
    return [*(f"    # {part}" for part in textwrap.wrap(entry.why, WIDTH - 6)), said]


_OWN_RECOMPUTE = "    C.recompute_num_layers = C.recompute_layers[index]\n"


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The training script with its CONFIG, and the launch script."""
    c = Context(request.model, request.cluster, request.training)
    entries = flags(c, plan)
    missing = unwritten_facts.of(c.model, UNWRITTEN, {field for _, _, field in NUMERICS})
    allocator = flag(
        "environment",
        "PYTORCH_CUDA_ALLOC_CONF",
        "expandable_segments:True",
        "less fragmentation, as the plan counts",
    )
    template = files(__package__).joinpath("train.py.txt").read_text(encoding="utf-8")
    launcher = LAUNCHER.format(
        head=bash_writer.header("Native PyTorch", VERSIONS, request, plan),
        rendezvous=bash_writer.rendezvous(nodes(c.cluster)),
        variables=bash_writer.overridable(entries),
        exports=bash_writer.export(allocator),
        launch=bash_writer.torchrun(accelerators_per_node(c.cluster)),
    )
    marks = {
        "@CONFIG@": _block(entries, unwritten_facts.comments(missing)),
        **patterns.classes(c.model),
    }
    marks["@OWN RECOMPUTE@"] = _OWN_RECOMPUTE if plan.recompute_layers else ""
    for mark, text in marks.items():
        template = template.replace(mark, text)
    return Bundle(
        framework="pytorch",
        versions=VERSIONS,
        main=LAUNCH,
        files={LAUNCH: launcher, SCRIPT: template},
        flags=(allocator, *entries),
        notes=tuple(unwritten_facts.notes(missing)),
    )


FRAMEWORK = Framework(
    name="pytorch",
    title="Native PyTorch",
    versions=VERSIONS,
    choices={"overlap_grad_reduce": (True, False), "compile": (False, True)},
    rules=RULES,
    fields=FIELDS,
    render=render,
    read=read,
    recognises=recognises,
    blocks=patterns.KINDS,
    parts=patterns.PARTS,
    partial_training=encoders.PARTIAL_TRAINING,
)
