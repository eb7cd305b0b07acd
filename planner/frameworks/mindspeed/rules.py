"""MindSpeed's rules, in addition to some of Megatron-LM's.

Sources: Megatron-LM core_v0.12.1 and the features of MindSpeed 028de58.
"""

from __future__ import annotations

from cost_models.plans import RECOMPUTE_MODULES, code
from planner.constraints import Rule, micro_batches
from planner.frameworks import rules
from planner.frameworks.base import rule, unsupported
from planner.frameworks.megatron.model_rules import MODEL_RULES
from planner.frameworks.megatron.rules import FEATURE_RULES, SIZE_RULES
from planner.frameworks.rules import fixed_experts, fixed_part, is_named

VENDOR = "Huawei"
SCHEDULES = ("1f1b", "interleaved-1f1b", "dualpipe-v")
# Modules that core 0.12.1 recomputes; those of later versions free other amounts of memory.
MODULES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe")
_UNKNOWN_MODULES = sum(
    1 << place for place, name in enumerate(RECOMPUTE_MODULES) if name not in MODULES
)
_DUALPIPE_V = code("schedule", "dualpipe-v")
_ALLTOALL = code("moe_dispatcher", "alltoall")
_CUDA_ONLY = ("deepep", "hybridep")
_FLASH = code("attention_kernel", "flash")
_IN_PLACE = code("cross_entropy", "in_place")

OWN: tuple[Rule, ...] = (
    rules.vendor_alone(VENDOR, "it runs on Ascend NPUs"),
    fixed_part(lambda m: not m.attention_sinks, "core 0.12 has no attention sinks"),
    fixed_part(lambda m: m.sliding_window is None, "core 0.12 has no option for a sliding window"),
    fixed_experts(
        lambda e: not e.shared_expert_gate,
        "core 0.12 has no option for a gate on the shared experts",
    ),
    unsupported(
        lambda c, p: (not c.model.mtp_num_layers) | (p.cp == 1),
        "core 0.12 has multi-token prediction only with cp 1, got {p.cp}",
    ),
    unsupported(
        lambda c, p: c.model.moe is None or c.training.precision != "fp16",
        "grouped experts support bf16, not fp16",
    ),
    unsupported(lambda c, p: c.training.precision != "fp4", "core 0.12 has no fp4"),
    unsupported(
        lambda c, p: c.training.precision != "fp8" or not c.training.fp8_param_gather,
        "weights stored in fp8 need Transformer Engine, which no NPU has",
    ),
    unsupported(
        lambda c, p: c.training.optimizer_state_dtype == "fp32",
        "{c.training.optimizer_state_dtype} optimizer states need Transformer Engine's Adam, "
        "which no NPU has",
    ),
    unsupported(
        lambda c, p: (c.training.optimizer != "muon") | (p.overlap_param_gather == 0),
        "core 0.12 overlaps weight gathering only with its distributed optimizer, not with Muon",
    ),
    unsupported(
        lambda c, p: p.attention_kernel == _FLASH,
        "the attention kernel is always the NPU's fused one, not {p.attention_kernel}",
    ),
    unsupported(
        lambda c, p: p.cross_entropy != _IN_PLACE,
        "cross_entropy in_place needs Transformer Engine, which no NPU has",
    ),
    unsupported(
        lambda c, p: (c.model.moe is None) | ~is_named(p, "moe_dispatcher", *_CUDA_ONLY),
        "deepep and hybridep run only on CUDA devices",
    ),
    rule(
        "recompute",
        lambda c, p: (p.recompute_modules & _UNKNOWN_MODULES) == 0,
        lambda c, p: (
            f"core 0.12 recomputes {', '.join(MODULES)} selectively, not "
            + ", ".join(name for name in p.recompute_modules if name not in MODULES)
        ),
    ),
    unsupported(
        lambda c, p: (
            (p.overlap_tp == 0)
            | (c.training.precision != "fp8" or c.training.fp8_recipe == "mxfp8")
        ),
        "in fp8, overlap_tp (MC2) supports only mxfp8, not {c.training.fp8_recipe}",
    ),
    unsupported(
        lambda c, p: (
            (p.overlap_ep == 0)
            | (
                (p.etp == 1)
                & (p.moe_dispatcher == _ALLTOALL)
                & (p.overlap_grad_reduce == 0)
                & ((p.pp == 1) | (p.schedule == _DUALPIPE_V) | (micro_batches(c, p) > p.pp))
            )
        ),
        "overlap_ep (fb overlap) needs etp 1, the alltoall dispatcher, no overlap_grad_reduce "
        "and, interleaved, more than pp micro-batches; got etp {p.etp}, {p.moe_dispatcher}, "
        "overlap_grad_reduce {p.overlap_grad_reduce}",
    ),
    rules.schedules(*SCHEDULES),
    unsupported(
        lambda c, p: (
            (p.schedule != _DUALPIPE_V)
            | (p.pp == 1)
            | (
                (p.cp == 1)
                & (p.overlap_grad_reduce == 0)
                & (p.overlap_p2p == 1)
                & (not c.model.tied_embeddings)
            )
        ),
        "dualpipe-v needs cp 1, overlap_p2p (its messages never block), no overlap_grad_reduce "
        "and untied embeddings; got cp {p.cp}, overlap_p2p {p.overlap_p2p}, "
        "overlap_grad_reduce {p.overlap_grad_reduce}, tied {c.model.tied_embeddings}",
    ),
    rule(
        "vpp_layout",
        lambda c, p: (p.schedule != _DUALPIPE_V) | (p.pp == 1) | (p.stage_layers == 0),
        "dualpipe-v splits layers evenly",
    ),
    rule(
        "schedule_micro_batches",
        lambda c, p: (
            (p.schedule != _DUALPIPE_V) | (p.pp == 1) | (micro_batches(c, p) >= 2 * p.pp - 1)
        ),
        lambda c, p: f"dualpipe-v needs 2 x pp - 1 = {2 * p.pp - 1} micro-batches or more",
    ),
)
RULES: tuple[Rule, ...] = (*MODEL_RULES, *SIZE_RULES, *FEATURE_RULES, *OWN)
