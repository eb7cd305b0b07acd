"""Native PyTorch: a training script on torch's own parallelism, and its launch script.

The training script is one template (train.py.txt, not a module: planner does not import torch);
its CONFIG block holds the plan.
"""

from __future__ import annotations

import textwrap

from cost_models.plans import ParallelPlan
from planner.constraints import Context
from planner.documents.request import PlanRequest
from planner.frameworks import unwritten_facts
from planner.frameworks.base import Bundle, Flag, cannot, flag, says
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.package_files import text
from planner.frameworks.pytorch import encoders, patterns, reader
from planner.frameworks.pytorch.config import NUMERICS, WIDTH, flags
from planner.frameworks.pytorch.reader import SCRIPT
from planner.frameworks.pytorch.rules import RULES
from planner.frameworks.torch_schedules import SCHEDULES
from planner.frameworks.unwritten_facts import Uncarried, gated, mixture, uncarried, ungated

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
    uncarried("norm_epsilon", "norm_epsilon (1e-5)"),
    uncarried("rope_theta", "rotary_base (10000)"),
    uncarried("rotary_share", "1.0, no entry"),
    uncarried("rope_scaling", "no entry"),
    uncarried("activation", "SwiGLU only", gated),
    uncarried("activation", "GELU only", ungated),
    uncarried("router_scores", "softmax; top-k scores are normalized to sum 1"),
    uncarried("routed_scaling", "none, no entry"),
    Uncarried("load balancing of experts", "none, no entry", mixture),
    uncarried("init_std", "init_std (0.02)"),
    uncarried("multipliers", "no entry"),
)


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


LAUNCH = Launch("pytorch", "Native PyTorch", VERSIONS, __name__)
ALLOCATOR = flag(
    "environment",
    "PYTORCH_CUDA_ALLOC_CONF",
    "expandable_segments:True",
    "less fragmentation, as the plan counts",
)
_OWN_RECOMPUTE = "    C.recompute_num_layers = C.recompute_layers[index]\n"


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The training script with its CONFIG, and the launch script."""
    c = Context(request.model, request.cluster, request.training)
    entries = flags(c, plan)
    missing = unwritten_facts.of(c.model, UNWRITTEN, {field for _, _, field in NUMERICS})
    template = text(__name__, "train.py.txt")
    marks = {
        "@CONFIG@": _block(entries, unwritten_facts.comments(missing)),
        **patterns.classes(c.model),
    }
    marks["@OWN RECOMPUTE@"] = _OWN_RECOMPUTE if plan.recompute_layers else ""
    for mark, part in marks.items():
        template = template.replace(mark, part)
    return LAUNCH.bundle(request, plan, missing, entries, (ALLOCATOR,), files={SCRIPT: template})


FRAMEWORK = LAUNCH.framework(
    RULES,
    FIELDS,
    render,
    reader,
    choices={"overlap_grad_reduce": (True, False), "compile": (False, True)},
    blocks=patterns.KINDS,
    parts=patterns.PARTS,
    partial_training=encoders.PARTIAL_TRAINING,
)
