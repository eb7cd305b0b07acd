"""llm-analysis: latency and memory by FLOP and bytes (github cli99/llm-analysis)."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

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

# Its README for training: "up to 0.5" of the peak, and 0.9 as the target for memory.
FLOPS_EFFICIENCY, MEMORY_EFFICIENCY = 0.5, 0.9
# The GPUs that it describes, by our names; others are described from our catalog.
GPUS = {
    "a100-sxm-40gb": "a100-sxm-40gb",
    "a100-sxm-80gb": "a100-sxm-80gb",
    "h100-sxm-80gb": "h100-sxm-80gb",
    "v100-sxm-32gb": "v100-sxm-32gb",
}
RECOMPUTATION = {"none": 0, "attention": 1, "full": 4}
MESSAGE_LATENCY_S = 8e-6  # in every file of its gpu_configs


def express(question: Question) -> Inputs:
    """The model, the GPU and the parallelism in its words."""
    case, plan = question.case, question.plan
    need_plain_training(question)
    need_plain_decoder(question)
    need_even_stages(question)
    model = case.model
    need(model.mla is None, "latent attention")
    need(model.head_dim * model.num_attention_heads == model.hidden_size, "another width of heads")
    need(plan.cp == 1, "context parallelism")
    moe = model.moe
    if moe is not None:
        routed = not moe.num_dense_layers and moe.layer_frequency == 1
        need(routed and not moe.shared_expert_ffn_hidden_size, "dense layers or shared experts")
    shard = plan.dp_shard or plan.dp
    return {
        "model": {
            "name": "run", "num_layers": model.num_layers, "n_head": model.num_attention_heads,
            "hidden_dim": model.hidden_size, "vocab_size": model.vocab_size,
            "max_seq_len": case.training.seq_length,
            "num_key_value_heads": model.num_query_groups,
            "ffn_embed_dim": moe.expert_ffn_hidden_size if moe else model.ffn_hidden_size,
            "moe_num_experts": moe.num_experts if moe else 1, "moe_top_k": moe.top_k if moe else 1,
            "mlp_gated_linear_units": model.gated_mlp,
        },
        "gpu": GPUS.get(question.accelerator) or _gpu(question),
        "parallelism": {
            "tp_size": plan.tp, "pp_size": plan.pp, "dp_size": shard, "rdp_size": plan.dp // shard,
            "ep_size": plan.ep, "sp_size": plan.tp if plan.sequence_parallel else 1,
        },
        "micro_batch": plan.micro_batch_size, "micro_batches": question.micro_batches,
        "length": case.training.seq_length, "zero": plan.zero_stage,
        "recomputation": RECOMPUTATION[recomputed(question)],
        "flash": plan.attention_kernel != "unfused",
        "dropout": model.attention_dropout > 0,
    }  # fmt: skip


def _gpu(question: Question) -> Inputs:
    """A file of its gpu_configs, from our catalog."""
    nodes = question.case.cluster.groups[0]
    peak = nodes.accelerator.peak_bf16_flop_per_s or nodes.accelerator.peak_fp16_flop_per_s
    need(peak is not None, "an accelerator without bf16")
    assert peak is not None
    outside = nodes.network[-1].bandwidth_bytes_per_s * nodes.accelerators_per_node
    return {
        "name": question.accelerator,
        "mem_per_GPU_in_GB": nodes.accelerator.memory_bytes / 2**30,
        "hbm_bandwidth_in_GB_per_sec": nodes.accelerator.memory_bytes_per_s / 1e9,
        "intra_node_bandwidth_in_GB_per_sec": nodes.network[0].bandwidth_bytes_per_s / 1e9,
        "intra_node_min_message_latency": MESSAGE_LATENCY_S,
        "peak_fp16_TFLOPS": peak / 1e12,
        "inter_node_bandwidth_in_GB_per_sec": outside / 1e9,
    }


def estimate(checkout: Path, inputs: Inputs) -> Estimate:
    """Its training analysis of one iteration."""
    config = importlib.import_module("llm_analysis.config")
    analysis = importlib.import_module("llm_analysis.analysis")
    logging.disable(logging.CRITICAL)
    gpu = inputs["gpu"]
    gpu = config.get_gpu_config_by_name(gpu) if isinstance(gpu, str) else config.GPUConfig(**gpu)

    def trained(parallelism: Inputs) -> Any:
        return analysis.LLMAnalysis(
            config.ModelConfig(**inputs["model"]), gpu, config.DtypeConfig(),
            config.ParallelismConfig(**parallelism), flops_efficiency=FLOPS_EFFICIENCY,
            hbm_memory_efficiency=MEMORY_EFFICIENCY,
        ).training(
            batch_size_per_gpu=inputs["micro_batch"],
            gradient_accumulation_steps=inputs["micro_batches"],
            seq_len=inputs["length"],
            activation_recomputation=analysis.ActivationRecomputation(inputs["recomputation"]),
            ds_zero=analysis.DSZeRO(inputs["zero"]),
            flash_attn=inputs["flash"],
            softmax_dropout=inputs["dropout"],
        )  # fmt: skip

    parallelism = inputs["parallelism"]
    summary = timed = trained(parallelism)
    if inputs["zero"] < 2:
        ranks = parallelism["dp_size"] * parallelism["rdp_size"]
        timed = trained({**parallelism, "dp_size": 1, "rdp_size": ranks})
    return Estimate(timed["latency_per_iter"], summary["estimated_peak_memory_per_gpu"])


PEER = Peer(
    "llm-analysis", "cli99/llm-analysis", "d841e40aec8c", "0.2.2", express, estimate,
    (
        "half of the peak FLOP rate and 0.9 of the memory's, as its README says of training",
        "GPUs that it does not describe: peak, memory and links of our catalog",
        "below ZeRO 2 its time is asked for with every rank as a replica (rdp_size): else it "
        "gathers each layer's weights",
        "it leaves out the bubble of the pipeline, so interleaving makes no difference",
    ),
    validated_on=("sc21_t1", "sc21_t2", "mtnlg"),
)  # fmt: skip
