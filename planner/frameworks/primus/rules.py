"""Primus's rules beyond Megatron-LM's: those of fd1eeab and of ROCm's Transformer Engine."""

from __future__ import annotations

import numpy as np

from cost_models.plans import code
from planner.constraints import Context, Rule, micro_batches
from planner.frameworks import rules
from planner.frameworks.base import rule, unsupported
from planner.frameworks.megatron.model_rules import LATENT_QUERIES
from planner.frameworks.megatron.rules import DISPATCHER_DEVICES, STABLE_LOSS
from planner.frameworks.megatron.rules import RULES as CORE
from planner.frameworks.megatron.rules import SCHEDULES as MEGATRON_SCHEDULES
from planner.frameworks.primus.settings import ALGORITHMS
from planner.frameworks.rules import is_named

VENDOR = "AMD"
SCHEDULES = ("1f1b", "interleaved-1f1b", *ALGORITHMS)
_FLASH2 = code("attention_kernel", "flash2")
_HYBRIDEP = code("moe_dispatcher", "hybridep")
_OWN = tuple(ALGORITHMS)
_FOLDED = ("zb-v", "v-half", "v-min")


def _fp8(c: Context) -> bool:
    return c.training.precision == "fp8"


OWN: tuple[Rule, ...] = (
    LATENT_QUERIES,
    rules.vendor_alone(VENDOR, "it runs on AMD's accelerators"),
    unsupported(
        lambda c, p: p.attention_kernel != _FLASH2,
        "Transformer Engine has no flash-attention on ROCm: its fused attention is AITER's or CK's",
    ),
    unsupported(
        lambda c, p: (c.model.moe is None) | (p.moe_dispatcher != _HYBRIDEP),
        "hybridep runs only on CUDA devices",
    ),
    unsupported(
        lambda c, p: c.training.precision != "fp4",
        "nvfp4 is NVIDIA's format; its own fp4 training is in mxfp4, which is not costed",
    ),
    unsupported(
        lambda c, p: (
            (c.training.optimizer != "muon") | (p.zero_stage > 0) | (p.overlap_grad_reduce == 0)
        ),
        "Muon with overlap_grad_reduce needs ZeRO 1",
    ),
    unsupported(
        lambda c, p: (p.overlap_tp == 0) | (not _fp8(c)), "its overlap_tp does not support fp8"
    ),
    rules.schedules(*SCHEDULES),
    unsupported(
        lambda c, p: (
            (p.pp == 1)
            | ~is_named(p, "schedule", *_OWN)
            | ((p.overlap_grad_reduce == 0) & ((p.vpp == 1) | (p.overlap_p2p == 1)))
        ),
        "its own pipeline runtime reduces gradients after the last micro-batch and never waits for "
        "messages: it needs overlap_grad_reduce off and, in V schedules, overlap_p2p on",
    ),
    unsupported(
        lambda c, p: (
            (p.pp == 1)
            | ~is_named(p, "schedule", *_OWN)
            | ((c.model.mtp_num_layers == 0) & (p.overlap_ep == 0))
        ),
        "its own pipeline runtime supports neither prediction layers nor overlap_ep",
    ),
    rule(
        "schedule_micro_batches",
        lambda c, p: (
            (p.pp == 1) | ~is_named(p, "schedule", "zb-v") | (micro_batches(c, p) >= 2 * p.pp - 1)
        ),
        lambda c, p: f"its zb-v needs 2 x pp - 1 = {2 * p.pp - 1} micro-batches or more",
    ),
    rule(
        "vpp_layout",
        lambda c, p: (
            (p.pp == 1)
            | ~is_named(p, "schedule", *_FOLDED)
            | (
                (p.stage_layers == 0)
                & np.equal(p.first_stage_layers, 0)
                & np.equal(p.last_stage_layers, 0)
            )
        ),
        "V schedules split layers evenly",
    ),
)
# Primus has its own schedules, and DeepEP for ROCm from Primus-Turbo; its Megatron-LM of March 2026
# still has Transformer Engine's cross entropy.
_REPLACED = (MEGATRON_SCHEDULES, DISPATCHER_DEVICES, STABLE_LOSS)
RULES: tuple[Rule, ...] = (*(one for one in CORE if one not in _REPLACED), *OWN)
