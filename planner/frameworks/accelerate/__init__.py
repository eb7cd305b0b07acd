"""Hugging Face accelerate: its launch config, a transformers model and a training script.

FSDP 2 over a mesh of replicas, shards and context parallelism, or plain data parallelism.
"""

from __future__ import annotations

from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner.constraints import Context
from planner.documents.request import PlanRequest
from planner.frameworks import unwritten_facts, yaml_files
from planner.frameworks.accelerate import reader
from planner.frameworks.accelerate.peft import NAMES, PARTIAL_TRAINING
from planner.frameworks.accelerate.rules import RULES, lacks
from planner.frameworks.accelerate.script import train_script
from planner.frameworks.accelerate.settings import arguments, config_json, launch_rows
from planner.frameworks.base import Bundle, cannot, says
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.model_parts import EVERY_BLOCK, EVERY_PART
from planner.frameworks.unwritten_facts import Missing, Uncarried, mixture, uncarried
from planner.huggingface.export.exporter import config_of
from planner.huggingface.numerics import used_numerics

VERSIONS = "accelerate 1.15.0, transformers 5.23.0, torch 2.13"

FSDP, MESH = "fsdp_config.fsdp_", "parallelism_config.parallelism_config_"
FIELDS = {
    "tp": cannot("FSDP 2 with a tp axis fails on transformers 5 (ReplicateParallel is gone)", 1),
    "sequence_parallel": cannot("there is no tensor parallelism"),
    "cp": says(MESH + "cp_size", note="with FSDP"),
    "cp_kind": says(
        MESH + "cp_comm_strategy",
        note="when cp > 1; Ulysses is DeepSpeed's",
        only=("all_gather", "p2p"),
    ),
    "dynamic_cp": cannot("every sequence is split over all cp ranks", False),
    "pp": cannot("ParallelismConfig has no pipeline axis", 1),
    "vpp": cannot("ParallelismConfig has no pipeline axis"),
    "dp": says("num_processes", note="world size / cp"),
    "dp_shard": says(MESH + "dp_shard_size", MESH + "dp_replicate_size"),
    "ep": cannot("ParallelismConfig has no expert axis", 1),
    "etp": cannot("ParallelismConfig has no expert axis", 1),
    "zero_stage": says(
        "distributed_type",
        FSDP + "version",
        note="0: MULTI_GPU; 3: FSDP 2, which shards weights, gradients and states together",
        only=(3, 0),
    ),
    "reshard_after_forward": says(FSDP + "reshard_after_forward"),
    "micro_batch_size": says("--per_device_train_batch_size", "--gradient_accumulation_steps"),
    "recompute": says(
        FSDP + "activation_checkpointing",
        "--gradient_checkpointing",
        note="whole layers or none",
        only=("none", "full"),
    ),
    "recompute_modules": cannot("whole layers are recomputed"),
    "recompute_method": cannot("each layer is one checkpoint", "block"),
    "recompute_num_layers": cannot("each layer is one checkpoint: all layers"),
    "recompute_layers": cannot("there is no pipeline", ()),
    "schedule": cannot("ParallelismConfig has no pipeline axis"),
    "first_stage_layers": cannot("ParallelismConfig has no pipeline axis"),
    "last_stage_layers": cannot("ParallelismConfig has no pipeline axis"),
    "stage_layers": cannot("ParallelismConfig has no pipeline axis", ()),
    "rank_order": cannot("the mesh is fixed: cp, dp_shard, dp_replicate, innermost first"),
    "offload_optimizer": says(
        FSDP + "offload_params", note="weight and gradient shards are offloaded too"
    ),
    "offload_activations": says(FSDP + "activation_checkpointing_offload", note="with recompute"),
    "offload_num_layers": cannot("activations of all layers are offloaded, or of none", 0),
    "attention_kernel": says("--attn_implementation", only=("flash", "flash2", "unfused")),
    "cross_entropy": cannot("the loss works on an fp32 copy of the logits", "unfused"),
    "moe_dispatcher": cannot("every rank has all experts", "alltoall"),
    "overlap_grad_reduce": cannot("gradients are always reduced during the backward pass", True),
    "overlap_param_gather": cannot("FSDP always prefetches weights", True),
    "overlap_tp": cannot("there is no tensor parallelism"),
    "overlap_ep": cannot("every rank has all experts"),
    "overlap_p2p": cannot("ParallelismConfig has no pipeline axis"),
    "runtime": cannot("the model is that of transformers", "transformers"),
    "compile": says("dynamo_config.dynamo_backend"),
}


UNWRITTEN = (
    uncarried("norm_epsilon", "rms_norm_eps, layer_norm_epsilon in config.json"),
    uncarried("rotary", "rope_parameters in config.json"),
    uncarried("activation", "hidden_act, activation_function in config.json"),
    uncarried("init_std", "initializer_range in config.json"),
    Uncarried("special tokens", "bos_token_id, eos_token_id in config.json", lambda model: True),
    uncarried("balancing", "output_router_logits (false), router_aux_loss_coef"),
    Uncarried("router weights", "norm_topk_prob, routed_scaling_factor", mixture),
)


LAUNCH = Launch("accelerate", "Hugging Face accelerate", VERSIONS, __name__)


def missing(model: ModelSpec) -> Missing:
    """The facts that neither config.json nor the script has."""
    return unwritten_facts.of(model, UNWRITTEN, used_numerics(model, config_of(model) or {}))


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The launch script, its config, the model's config and the training script."""
    c = Context(request.model, request.cluster, request.training)
    launch, options = list(launch_rows(c, plan)), tuple(arguments(c, plan))
    config, keys = config_json(c)
    return LAUNCH.bundle(
        request,
        plan,
        missing(c.model),
        options,
        flags=(*yaml_files.flags("accelerate.yaml", launch), *keys, *options),
        files={
            "accelerate.yaml": f"{LAUNCH.head(request, plan)}\n{yaml_files.document(launch)}",
            "config.json": config,
            "train.py": train_script(c.training.lora_rank > 0),
        },
    )


FRAMEWORK = LAUNCH.framework(
    RULES,
    FIELDS,
    render,
    reader,
    adapters={"lora_targets": NAMES, "gradient_reduce_dtype": "fp32"},
    partial_training=PARTIAL_TRAINING,
    blocks=EVERY_BLOCK,
    parts=EVERY_PART,
    lacks=lacks,
)
