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
from planner.frameworks.base import Bundle, Flag, Framework, cannot, flag, says
from planner.frameworks.deepspeed.flags import (
    VOCAB_MULTIPLE,
    arguments,
    config,
    nested,
    numerics_fields,
)
from planner.frameworks.deepspeed.reader import read, recognises
from planner.frameworks.deepspeed.rules import RULES
from planner.frameworks.rules import accelerators_per_node, nodes
from planner.frameworks.unwritten_facts import MULTIPLIERS, Uncarried, gated, rotary, ungated

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
    Uncarried("norm epsilon", "--layernorm-epsilon (1e-5)", numerics=("norm_epsilon",)),
    Uncarried(
        "rotary base",
        "--rotary-position-embeddings-theta (10000)",
        rotary,
        numerics=("rope_theta", "local_rope_theta"),
    ),
    Uncarried(
        "share of rotated head dimensions",
        "--rotary-percent (1.0)",
        rotary,
        numerics=("rotary_share",),
    ),
    Uncarried("rope scaling", "no option", rotary, numerics=("rope_scaling",)),
    Uncarried("activation", "SwiGLU, no other gate", gated, numerics=("activation",)),
    Uncarried(
        "activation", "--squared-relu, --openai-gelu (GELU)", ungated, numerics=("activation",)
    ),
    Uncarried(
        "standard deviation of the initial weights",
        "--init-method-std (0.02)",
        numerics=("init_std",),
    ),
    Uncarried(
        "soft-capping of logits or attention scores, multipliers", "no option", numerics=MULTIPLIERS
    ),
)

SCRIPT = """\
#!/usr/bin/env bash
{head}
set -euo pipefail

# Run it once, on the first node; the launcher reaches the others through the hostfile.
# Every node must see this folder and the checkout under the same paths.
BUNDLE="${{BASH_SOURCE[0]%/*}}"
[ -d "$BUNDLE" ] || BUNDLE=.
HOSTFILE="${{HOSTFILE:-$BUNDLE/hostfile}}"
MASTER_PORT="${{MASTER_PORT:-29500}}"
MEGATRON_PATH="${{MEGATRON_PATH:-.}}"  # a checkout of Megatron-DeepSpeed
# Without DATA_PATH it trains on MOCK DATA, random tokens: nothing to learn.
DATA_PATH="${{DATA_PATH:-$BUNDLE/mock_data}}"
{variables}
{exports}
if [ ! -f "$DATA_PATH.idx" ]; then
  PYTHONPATH="$MEGATRON_PATH" python3 "$BUNDLE/mock_data.py" "$DATA_PATH" {vocab_size} {length}
fi

LAUNCH_ARGS=(
  --hostfile "$HOSTFILE"
  --num_nodes {nodes}
  --num_gpus {processes}
  --master_port "$MASTER_PORT"
)
DEEPSPEED_ARGS=(
  --deepspeed
  --deepspeed_config "$BUNDLE/ds_config.json"
  --data-path "$DATA_PATH"
)
{unwritten}
{arrays}

deepspeed "${{LAUNCH_ARGS[@]}}" "$MEGATRON_PATH/pretrain_gpt.py" \\
  "${{DEEPSPEED_ARGS[@]}}" \\
  {spread} \\
  "$@"
"""
MOCK_DATA = '''\
"""Writes random tokens as a Megatron-DeepSpeed data set: mock_data.py PREFIX VOCAB LENGTH."""

import sys

import torch
from megatron.data.indexed_dataset import make_builder

prefix, vocab_size, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
random = torch.Generator().manual_seed(0)
builder = make_builder(prefix + ".bin", impl="mmap", vocab_size=vocab_size)
for _ in range(64):
    builder.add_item(torch.randint(vocab_size, (length,), generator=random))
    builder.end_document()
builder.finalize(prefix + ".idx")
'''


def _environment(plan: ParallelPlan) -> tuple[Flag, ...]:
    if not plan.sequence_parallel:
        return ()
    why = "required by sequence parallelism"
    return (flag("environment", "CUDA_DEVICE_MAX_CONNECTIONS", 1, why),)


def hostfile(request: PlanRequest) -> str:
    """A hostfile of DeepSpeed's launcher, with names to fill in."""
    slots, count = accelerators_per_node(request.cluster), nodes(request.cluster)
    hosts = ["localhost"] if count == 1 else [f"node-{i}" for i in range(count)]
    head = "# Put the names of your nodes here, one per line, the launching node first.\n"
    return head + "".join(f"{host} slots={slots}\n" for host in hosts)


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The JSON, the launch script, the hostfile and the mock-data script."""
    c = Context(request.model, request.cluster, request.training)
    keys = list(config(c, plan))
    variables, options = _environment(plan), arguments(c, plan)
    arrays, names = bash_writer.arrays(options)
    missing = unwritten_facts.of(c.model, UNWRITTEN, numerics_fields(c.model))
    exports = [bash_writer.export(variable) for variable in variables]
    if variables:
        exports.append('export DS_ENV_FILE="$BUNDLE/deepspeed_env"  # carries it to every node')
    script = SCRIPT.format(
        head=bash_writer.header("Megatron-DeepSpeed", VERSIONS, request, plan),
        variables=bash_writer.overridable(options),
        exports="\n".join(exports),
        vocab_size=c.model.vocab_size,
        length=c.training.seq_length + 1,
        nodes=nodes(c.cluster),
        processes=accelerators_per_node(c.cluster),
        unwritten=unwritten_facts.comments(missing),
        arrays=arrays,
        spread=bash_writer.spread(names),
    )
    files = {
        "launch.sh": script,
        "ds_config.json": json.dumps(nested({key: value for key, value, _ in keys}), indent=2)
        + "\n",
        "hostfile": hostfile(request),
        "mock_data.py": MOCK_DATA,
    }
    if variables:
        files["deepspeed_env"] = "".join(f"{'='.join(v.words)}\n" for v in variables)
    return Bundle(
        framework="deepspeed",
        versions=VERSIONS,
        main="launch.sh",
        starts="first node",
        files=files,
        flags=(
            *variables,
            *(flag("ds_config.json", key, json.dumps(value), why) for key, value, why in keys),
            *options,
        ),
        notes=(
            Note(
                code="padded_vocab",
                text="The embedding has "
                f"{int(padded_vocab_size(c.model.vocab_size, plan.tp, VOCAB_MULTIPLE))} rows.",
            ),
            *unwritten_facts.notes(missing),
        ),
    )


FRAMEWORK = Framework(
    name="deepspeed",
    title="DeepSpeed",
    versions=VERSIONS,
    choices={"overlap_grad_reduce": (False, True), "overlap_param_gather": (False, True)},
    rules=RULES,
    fields=FIELDS,
    render=render,
    read=read,
    recognises=recognises,
    trains_all="Megatron-DeepSpeed's pretrain_gpt.py trains all weights",
)
