"""SimuMax: a static model of Megatron-LM's training (github MooreThreads/SimuMax)."""

from __future__ import annotations

import copy
import importlib
import json
from pathlib import Path
from typing import Any

from tools.peers.common import (
    Estimate,
    Inputs,
    Peer,
    Question,
    need,
    need_plain_decoder,
    need_plain_training,
    recomputed,
)

# Nearest of its two measured systems, as its documentation advises, and what is replaced: peak
# TFLOP/s, GB/s of memory (None: as measured), GB/s of NVLink.
SYSTEMS: dict[str, tuple[str, float | None, float | None, float | None]] = {
    "b200-sxm-180gb": ("b200_bf16_ceperm", None, None, None),
    "a100-sxm-80gb": ("a100_pcie", None, None, 300.0),
    "a100-sxm-40gb": ("a100_pcie", None, None, 300.0),
    "h100-sxm-80gb": ("a100_pcie", 989.0, 3350.0, 450.0),
    "h100-sxm-96gb-hbm2e-500w": ("a100_pcie", 989.0, 2400.0, 450.0),
    "h200-sxm-141gb": ("a100_pcie", 989.0, 4800.0, 450.0),
}
NODE = 8
MEGATRON_RECOMPUTE = ("layernorm", "mla_up_proj", "moe_act", "mlp", "moe")
# Megatron-LM 0.14 and its Transformer Engine.
RECENT, TE_VERSION = 2025, "2.11.0"


def express(question: Question) -> Inputs:
    """Its three documents: model, strategy and system."""
    case, plan, model = question.case, question.plan, question.case.model
    need(question.accelerator in SYSTEMS, "an accelerator far from its two systems")
    need_plain_training(question)
    need_plain_decoder(question)
    need(plan.zero_stage < 2, "ZeRO 2 and 3")
    need(plan.cp == 1 or plan.cp_kind == "a2a", "context parallelism by rings or gathers")
    known = plan.pp == 1 or plan.schedule in ("1f1b", "interleaved-1f1b")
    need(known, f"the schedule {plan.schedule}")
    need(not plan.stage_layers, "stages of different numbers of layers")
    return {
        "system": SYSTEMS[question.accelerator],
        "inter_node_gb_per_s": case.cluster.groups[0].network[-1].bandwidth_bytes_per_s
        * NODE / 1e9,
        "model": _model(question),
        "strategy": {
            "seq_len": case.training.seq_length, "micro_batch_size": plan.micro_batch_size,
            "micro_batch_num": question.micro_batches, "dtype": "bf16",
            "world_size": plan.accelerators, "tp_size": plan.tp, "cp_size": plan.cp,
            "pp_size": plan.pp, "ep_size": plan.ep, "etp_size": plan.etp,
            "enable_sequence_parallel": plan.sequence_parallel, "interleaving_size": plan.vpp,
            "pp_comm_async": plan.vpp == 1,
            "num_layers_in_first_pipeline_stage": plan.first_stage_layers or None,
            "num_layers_in_last_pipeline_stage": plan.last_stage_layers or None,
            "zero_state": plan.zero_stage, "overlap_grad_reduce": plan.overlap_grad_reduce,
            "grad_reduce_in_bf16": case.training.gradient_reduce_dtype == "bf16",
            "enable_dropout": model.hidden_dropout > 0,
            "use_flash_sdp": plan.attention_kernel != "unfused",
            "use_math_sdp": plan.attention_kernel == "unfused",
            "cross_entropy_loss_fusion": plan.cross_entropy in ("fused", "in_place"),
            "te_version": TE_VERSION if case.run.year >= RECENT else None,
            "dispatch_probs": case.run.year >= RECENT, **_recompute(question),
        },
    }  # fmt: skip


def _model(question: Question) -> Inputs:
    model = question.case.model
    fields: Inputs = {
        "model_type": "dense", "model_name": "run", "hidden_size": model.hidden_size,
        "head_num": model.num_attention_heads, "kv_head_num": model.num_query_groups,
        "head_size": model.head_dim, "intermediate_size": model.ffn_hidden_size,
        "layer_num": model.num_layers, "vocab_size": model.vocab_size,
        "use_swiglu": model.gated_mlp,
    }  # fmt: skip
    if model.mla is not None:
        need(model.mla.q_lora_rank is not None, "queries without a rank")
        fields |= {
            "attention_type": "mla", "kv_head_num": model.num_attention_heads,
            "v_head_dim": model.mla.v_head_dim, "qk_head_dim": model.mla.qk_nope_head_dim,
            "qk_pos_emb_head_dim": model.mla.qk_rope_head_dim,
            "q_lora_rank": model.mla.q_lora_rank, "kv_lora_rank": model.mla.kv_lora_rank,
        }  # fmt: skip
    if moe := model.moe:
        need(moe.layer_frequency == 1, "experts in some layers")
        fields |= {
            "model_type": "moe", "expert_num": moe.num_experts, "topk": moe.top_k,
            "moe_ffn_hidden_size": moe.expert_ffn_hidden_size,
            "moe_shared_expert_intermediate_size": moe.shared_expert_ffn_hidden_size or None,
            "dense_layers": moe.num_dense_layers,
        }  # fmt: skip
    return fields


def _recompute(question: Question) -> Inputs:
    plan, layers = question.plan, question.case.model.num_layers
    if plan.recompute == "none":
        return {"enable_recompute": False}
    modules = plan.recompute_modules
    if plan.recompute == "selective" and all(name in MEGATRON_RECOMPUTE for name in modules):
        return {
            "enable_recompute": True, "recompute_granularity": "selective_recompute",
            "recompute_layer_num": layers, "megatron_recompute": True,
            "megatron_recompute_modules": list(modules),
        }  # fmt: skip
    granularity = "full_block" if recomputed(question) == "full" else "sdp_only"
    return {
        "enable_recompute": True, "recompute_granularity": granularity,
        "recompute_layer_num": layers,
    }  # fmt: skip


def estimate(checkout: Path, inputs: Inputs) -> Estimate:
    """What its PerfLLM says of cost and memory."""
    config = importlib.import_module("simumax.core.config")
    perf = importlib.import_module("simumax.core.perf_llm").PerfLLM()
    perf.configure(
        strategy_config=config.StrategyConfig.init_from_dict(inputs["strategy"]),
        model_config=config.ModelConfig.init_from_dict(inputs["model"]),
        system_config=config.SystemConfig.init_from_dict(_system(checkout, inputs)),
    )
    perf.run_estimate()
    memory, cost = perf.analysis_mem().data, perf.analysis_cost().data
    stages = [memory] if "peak_mem" in memory else list(memory.values())
    peak_bytes = max(_bytes(stage["peak_mem"]) for stage in stages)
    return Estimate(_seconds(cost["duration_time_per_iter"]), peak_bytes)


def _system(checkout: Path, inputs: Inputs) -> dict[str, Any]:
    folder = checkout / "configs" / "system"
    name, tflops, memory, nvlink = inputs["system"]
    system: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    parts = system["accelerator"]
    if nvlink is None:
        return system
    # The links that it measured on B200, at this machine's rate.
    measured = json.loads((folder / "b200_bf16_ceperm.json").read_text())["networks"]
    system["networks"] = copy.deepcopy(measured)
    for tier in ("low_intra_node", "high_intra_node"):
        system["networks"][tier]["bandwidth"]["gbps"] = nvlink
    system["networks"]["inter_node"]["bandwidth"]["gbps"] = inputs["inter_node_gb_per_s"]
    if tflops is not None:
        for operation in parts["op"].values():
            operation |= {"tflops": tflops, "accurate_efficient_factor": {}}
    if memory is not None:
        for kind in parts["bandwidth"].values():
            kind["gbps"] = memory
    return system


def _number(text: Any, units: dict[str, float]) -> float:
    value, unit = str(text).split()
    return float(value) * units[unit]


def _bytes(text: Any) -> float:
    return _number(text, {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40})


def _seconds(text: Any) -> float:
    return _number(text, {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0})


PEER = Peer(
    "SimuMax", "MooreThreads/SimuMax", "4dcaae513ba7", "1.2", express, estimate,
    (
        "B200: its own file as it is, measured on the machine of its B200 runs",
        "A100 SXM: its file of A100 PCIe with the links that it measured on B200, at NVLink's rate",
        "H100 and H200: the same with their peaks and memory, and its default efficiency of 0.75",
        "interleaved stages with blocking sends, the only kind it times",
        "the network between nodes has the rate that the run states",
    ),
    validated_on=("simumax_b200",),
)  # fmt: skip
