"""DeepSpeed: a JSON config and the launch line of Megatron-DeepSpeed's `pretrain_gpt.py`.

The JSON holds neither model nor pipeline, so only the whole bundle expresses a plan.  The flags
are those of an older Megatron, not of today's Megatron-LM.
"""

from __future__ import annotations

import json

from cost_models.parameters import padded_vocab_size
from cost_models.plans import ParallelPlan
from planner.constraints import Context
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import bash_writer, unwritten_facts
from planner.frameworks.base import Bundle, Flag, cannot, flag, says
from planner.frameworks.deepspeed import reader
from planner.frameworks.deepspeed.flags import (
    VOCAB_MULTIPLE,
    arguments,
    config,
    nested,
    numerics_fields,
)
from planner.frameworks.deepspeed.rules import RULES
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.package_files import text
from planner.frameworks.rules import accelerators_per_node, nodes
from planner.frameworks.unwritten_facts import gated, uncarried, ungated

VERSIONS = "DeepSpeed 0.16 to 0.19; Megatron-DeepSpeed of July 2025 (4efb479)"

FIELDS = {
    "tp": says("--tensor-model-parallel-size"),
    "sequence_parallel": says("--sequence-parallel"),
    "cp": says("--ds-sequence-parallel-size", note="Ulysses; only without tp and pp"),
    "cp_kind": cannot("only Ulysses (all-to-all)", "a2a"),
    "dynamic_cp": cannot("every sequence is split over all ranks of sequence parallelism", False),
    "pp": says("--pipeline-model-parallel-size", "--no-pipeline-parallel"),
    "vpp": cannot("the pipeline engine has one chunk of layers per stage", 1),
    "dp": says("--num_nodes", "--num_gpus", note="world size / (tp x cp x pp)"),
    "dp_shard": cannot("shards span all data-parallel ranks (MiCS needs model code)", 0),
    "ep": cannot("its own MoE layers are not planned"),
    "etp": cannot("its own MoE layers are not planned"),
    "zero_stage": says("zero_optimization.stage", "--zero-stage"),
    "reshard_after_forward": cannot("ZeRO-3 always frees gathered weights", True),
    "micro_batch_size": says(
        "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "--micro-batch-size"
    ),
    "recompute": says("--recompute-granularity", "--deepspeed-activation-checkpointing"),
    "recompute_modules": says("--recompute-granularity", note="core_attn only"),
    "recompute_method": says("--recompute-method", only=("uniform",)),
    "recompute_num_layers": says("--recompute-num-layers", "--checkpoint-num-layers"),
    "recompute_layers": cannot("--checkpoint-num-layers is the same on every stage", ()),
    "schedule": cannot("the pipeline engine runs 1F1B only", "1f1b"),
    "first_stage_layers": cannot("the pipeline engine splits layers evenly", 0),
    "last_stage_layers": cannot("the pipeline engine splits layers evenly", 0),
    "stage_layers": cannot("the pipeline engine splits layers evenly", ()),
    "rank_order": cannot(
        "the topology is fixed: pipe, data, model, outermost first", "tp-cp-ep-dp-pp"
    ),
    "offload_optimizer": says("zero_optimization.offload_optimizer", "--cpu-optimizer"),
    "offload_activations": says("--checkpoint-in-cpu", note="with full recompute"),
    "offload_num_layers": cannot("activations of all layers are offloaded, or of none", 0),
    "attention_kernel": says(
        "--use-flash-attn-v2",
        only=("flash", "unfused", "flash2"),
        note="flash-attention 1 cannot be installed with its torch",
    ),
    "cross_entropy": cannot("the loss works on an fp32 copy of the logits", "unfused"),
    "moe_dispatcher": cannot("its own MoE layers are not planned"),
    "overlap_grad_reduce": says("zero_optimization.overlap_comm"),
    "overlap_param_gather": says("zero_optimization.overlap_comm", note="ZeRO-3 prefetch only"),
    "overlap_tp": cannot("tensor-parallel communication is not overlapped", False),
    "overlap_ep": cannot("its own MoE layers are not planned", False),
    "overlap_p2p": cannot("only interleaved schedules overlap messages, which it does not have"),
    "runtime": cannot("DeepSpeed is itself the runtime", "deepspeed"),
    "compile": cannot("Megatron-DeepSpeed has its own fused kernels", False),
}

UNWRITTEN = (
    uncarried("norm_epsilon", "--layernorm-epsilon (1e-5)"),
    uncarried("rope_theta", "--rotary-position-embeddings-theta (10000)"),
    uncarried("rotary_share", "--rotary-percent (1.0)"),
    uncarried("rope_scaling", "no option"),
    uncarried("activation", "SwiGLU, no other gate", gated),
    uncarried("activation", "--squared-relu, --openai-gelu (GELU)", ungated),
    uncarried("init_std", "--init-method-std (0.02)"),
    uncarried("multipliers", "no option"),
)


def environment(
    plan: ParallelPlan, why: str = "required by sequence parallelism"
) -> tuple[Flag, ...]:
    """Environment variables that the options need."""
    named = flag("environment", "CUDA_DEVICE_MAX_CONNECTIONS", 1, why)
    return (named,) if plan.sequence_parallel else ()


def hostfile(request: PlanRequest) -> str:
    """A hostfile of DeepSpeed's launcher, with names to fill in."""
    slots, count = accelerators_per_node(request.cluster), nodes(request.cluster)
    hosts = ["localhost"] if count == 1 else [f"node-{i}" for i in range(count)]
    head = "# Put the names of your nodes here, one per line, the launching node first.\n"
    return head + "".join(f"{host} slots={slots}\n" for host in hosts)


def beside(request: PlanRequest, package: str) -> tuple[dict[str, str], dict[str, object]]:
    """What a launch with DeepSpeed has beside its config: files, and words of the script."""
    files = {"hostfile": hostfile(request), "mock_data.py": text(package, "mock_data.py.txt")}
    length = request.training.seq_length + 1
    return files, {"vocab_size": request.model.vocab_size, "length": length}


def padded(request: PlanRequest, plan: ParallelPlan) -> Note:
    """A note on the rows of the embedding."""
    rows = int(padded_vocab_size(request.model.vocab_size, plan.tp, VOCAB_MULTIPLE))
    return Note(code="padded_vocab", text=f"The embedding has {rows} rows.")


LAUNCH = Launch("deepspeed", "Megatron-DeepSpeed", VERSIONS, __name__, starts="first node")


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The JSON, the launch script, the hostfile and the mock-data script."""
    c = Context(request.model, request.cluster, request.training)
    keys = list(config(c, plan))
    variables, options = environment(plan), arguments(c, plan)
    files, words = beside(request, __name__)
    document = nested({key: value for key, value, _ in keys})
    files = {"ds_config.json": json.dumps(document, indent=2) + "\n", **files}
    if variables:
        files["deepspeed_env"] = "".join(f"{'='.join(v.words)}\n" for v in variables)
        carried = 'export DS_ENV_FILE="$BUNDLE/deepspeed_env"  # carries it to every node'
        words["exports"] = "\n".join((*map(bash_writer.export, variables), carried))
    return LAUNCH.bundle(
        request,
        plan,
        unwritten_facts.of(c.model, UNWRITTEN, numerics_fields(c.model)),
        options,
        variables,
        (*(flag("ds_config.json", key, json.dumps(value), why) for key, value, why in keys),
         *options),
        (padded(request, plan),),
        files,
        words,
    )  # fmt: skip


FRAMEWORK = LAUNCH.framework(
    RULES,
    FIELDS,
    render,
    reader,
    title="DeepSpeed",
    choices={"overlap_grad_reduce": (False, True), "overlap_param_gather": (False, True)},
    trains_all="Megatron-DeepSpeed's pretrain_gpt.py trains all weights",
)
