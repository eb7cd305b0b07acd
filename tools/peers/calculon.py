"""Calculon: co-design of systems and transformers (github calculon-ai/calculon)."""

from __future__ import annotations

import importlib
import json
import logging
from pathlib import Path

from tools.peers.common import (
    Estimate,
    Inputs,
    Peer,
    Question,
    need,
    need_even_stages,
    need_plain_decoder,
    need_plain_training,
    recomputed,
)

# Its systems, with its own efficiency of matrices, vectors, memory and links.
SYSTEMS = {
    "a100-sxm-40gb": "a100_80g",
    "a100-sxm-80gb": "a100_80g",
    "h100-sxm-80gb": "h100_80g_nvl8",
    "h100-sxm-96gb-hbm2e-500w": "h100_80g_nvl8",
    "h200-sxm-141gb": "h100_80g_nvl8",
    "h800-sxm-80gb": "h100_80g_nvl8",
}
NODE = 8
RECOMPUTE = {"none": "none", "attention": "attn_only", "full": "full"}
# So that a run which it takes not to fit is estimated all the same.
ENOUGH_GIB = 1e6


def express(question: Question) -> Inputs:
    """Its three documents: application, execution, system."""
    case, plan, model = question.case, question.plan, question.case.model
    need(question.accelerator in SYSTEMS, "an accelerator without a system file")
    need_plain_training(question, ("bf16", "fp16", "fp8"))
    need_plain_decoder(question)
    need_even_stages(question)
    need(model.moe is None, "experts")
    need(not model.gated_mlp, "gated MLPs")
    need(model.mla is None and model.num_query_groups == model.num_attention_heads, "shared keys")
    need(plan.cp == 1, "context parallelism")
    need(plan.zero_stage < 2, "ZeRO 2 and 3")
    precision = case.training.precision
    need(precision != "fp8" or SYSTEMS[question.accelerator] != "a100_80g", "fp8 arithmetic")
    recompute = RECOMPUTE[recomputed(question)]
    if recompute == "none" and plan.attention_kernel != "unfused":
        recompute = "attn_only"
    inside = plan.tp * plan.dp if plan.tp * plan.dp <= NODE else plan.tp
    return {
        "system": SYSTEMS[question.accelerator],
        "application": {
            "hidden": model.hidden_size, "feedforward": model.ffn_hidden_size,
            "seq_size": case.training.seq_length, "attn_heads": model.num_attention_heads,
            "attn_size": model.head_dim, "num_blocks": model.num_layers,
        },
        "execution": {
            "num_procs": plan.accelerators, "tensor_par": plan.tp, "pipeline_par": plan.pp,
            "data_par": plan.dp, "tensor_par_net": 0 if plan.tp <= NODE else 1,
            "pipeline_par_net": 0 if plan.accelerators <= NODE else 1,
            "data_par_net": 0 if inside > plan.tp or plan.accelerators <= NODE else 1,
            "batch_size": case.training.global_batch_size, "microbatch_size": plan.micro_batch_size,
            "datatype": "float8" if precision == "fp8" else "float16",
            "fused_activation": True, "attention_type": "multihead",
            "activation_recompute": recompute, "pipeline_interleaving": plan.vpp,
            "optimizer_sharding": plan.zero_stage == 1 and plan.dp > 1,
            "tensor_par_comm_type": "rs_ag" if plan.sequence_parallel else "ar",
            "tensor_par_overlap": "ring" if plan.overlap_tp and plan.tp > 1 else "none",
            "seq_par_ag_redo": plan.sequence_parallel and recompute != "full",
            "data_par_overlap": plan.overlap_grad_reduce and plan.dp > 1,
            "weight_offload": False, "activations_offload": False, "optimizer_offload": False,
            "training": True,
        },
    }  # fmt: skip


def estimate(checkout: Path, inputs: Inputs) -> Estimate:
    """What its command `llm` calculates."""
    module = importlib.import_module("calculon.llm.llm")
    system = json.loads((checkout / "systems" / f"{inputs['system']}.json").read_text())
    system["mem1"]["GiB"] = ENOUGH_GIB
    machine = module.System(system)
    application = module.Llm.Application(inputs["application"])
    run = module.Llm(application, logging.getLogger("calculon"))
    run.compile(machine, module.Llm.Execution.from_json(inputs["execution"]))
    run.run(machine)
    return Estimate(run.get_total_time(), run.get_mem_tier1_cap_req())


PEER = Peer(
    "Calculon", "calculon-ai/calculon", "caa4b11f8fe1", "Feb 2024", express, estimate,
    (
        "its own files of A100 80 GB and of H100, also for their variants with other memory",
        "it knows no flash attention: attention recomputed, which keeps as little",
        "it knows no vocabulary: embedding and head are left out",
        "memory without a limit, so that a run which it takes not to fit is estimated too",
    ),
    validated_on=("korth_t5", "korth_t4"),
)  # fmt: skip
