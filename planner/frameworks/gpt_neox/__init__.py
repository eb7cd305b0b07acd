"""GPT-NeoX: one YAML for its `deepy.py`, on DeepSpeed's engine."""

from __future__ import annotations

from cost_models.parameters import padded_vocab_size
from cost_models.plans import ParallelPlan
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import unwritten_facts
from planner.frameworks.base import Bundle, Field, Flag, Framework, cannot, flag, says
from planner.frameworks.deepspeed import hostfile
from planner.frameworks.gpt_neox.reader import read, recognises
from planner.frameworks.gpt_neox.rules import RULES
from planner.frameworks.gpt_neox.settings import VOCAB_MULTIPLE, numerics_fields, rows
from planner.frameworks.single_config_bundle import OneConfig
from planner.frameworks.unwritten_facts import MULTIPLIERS, Uncarried, gated, rotary, ungated

VERSIONS = "main of May 2026 (ea7aefd) with DeepSpeed"

NO_CONTEXT = "sequences are not split over ranks"
EVENLY = "the pipeline engine splits layers evenly"
NO_EXPERTS = "its megablocks experts are not planned"
FIELDS: dict[str, Field] = {
    "tp": says("model_parallel_size"),
    "sequence_parallel": says("sequence_parallel"),
    "cp": cannot(NO_CONTEXT, 1),
    "cp_kind": cannot(NO_CONTEXT, "a2a"),
    "dynamic_cp": cannot(NO_CONTEXT, False),
    "pp": says("pipe_parallel_size", note="0: no pipeline engine"),
    "vpp": cannot("the pipeline engine has one chunk of layers per stage", 1),
    "dp": says("train_batch_size", note="accelerators of the hostfile / (tp x pp)"),
    "dp_shard": cannot("shards span all data-parallel ranks", 0),
    "ep": cannot(NO_EXPERTS, 1),
    "etp": cannot(NO_EXPERTS),
    "zero_stage": says("zero_optimization.stage"),
    "reshard_after_forward": cannot("ZeRO-3 always frees gathered weights", True),
    "micro_batch_size": says("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    "recompute": says("checkpoint_activations", note="whole layers or none", only=("none", "full")),
    "recompute_modules": cannot("whole layers are recomputed"),
    "recompute_method": cannot("each layer is one checkpoint", "uniform"),
    "recompute_num_layers": cannot("each layer is one checkpoint", 1),
    "recompute_layers": cannot("checkpoint_activations is the same on every stage", ()),
    "schedule": cannot("the pipeline engine runs 1F1B only", "1f1b"),
    "first_stage_layers": cannot(EVENLY, 0),
    "last_stage_layers": cannot(EVENLY, 0),
    "stage_layers": cannot(EVENLY, ()),
    "rank_order": cannot(
        "the topology is fixed: pipe, data, model, outermost first", "tp-cp-ep-dp-pp"
    ),
    "offload_optimizer": says("zero_optimization.offload_optimizer.device", "optimizer.type"),
    "offload_activations": says("checkpoint_in_cpu", note="with full recompute"),
    "offload_num_layers": cannot("activations of all layers are offloaded, or of none", 0),
    "attention_kernel": says(
        "attention_config", note="flash: flash-attention 2", only=("flash", "unfused", "flash2")
    ),
    "cross_entropy": cannot("the loss works on an fp32 copy of the logits", "unfused"),
    "moe_dispatcher": cannot(NO_EXPERTS),
    "overlap_grad_reduce": says("zero_optimization.overlap_comm"),
    "overlap_param_gather": says("zero_optimization.overlap_comm", note="ZeRO-3 prefetch only"),
    "overlap_tp": cannot("tensor-parallel communication is not overlapped", False),
    "overlap_ep": cannot(NO_EXPERTS, False),
    "overlap_p2p": cannot("only interleaved schedules overlap messages, which it does not have"),
    "runtime": cannot("DeepSpeed is the runtime", "deepspeed"),
    "compile": cannot("it has its own kernels", False),
}
UNWRITTEN = (
    Uncarried(
        "norm epsilon",
        "layernorm_epsilon (1e-5), rms_norm_epsilon (1e-8)",
        numerics=("norm_epsilon",),
    ),
    Uncarried(
        "rotary base",
        "rotary_emb_base (10000)",
        rotary,
        numerics=("rope_theta", "local_rope_theta"),
    ),
    Uncarried(
        "share of rotated head dimensions", "rotary_pct (1.0)", rotary, numerics=("rotary_share",)
    ),
    Uncarried("rope scaling", "no key", rotary, numerics=("rope_scaling",)),
    Uncarried("activation", "activation (swiglu)", gated, numerics=("activation",)),
    Uncarried("activation", "activation (gelu)", ungated, numerics=("activation",)),
    Uncarried(
        "standard deviation of the initial weights",
        "init_method_std (0.02)",
        numerics=("init_std",),
    ),
    Uncarried(
        "soft-capping of logits or attention scores, multipliers", "no key", numerics=MULTIPLIERS
    ),
)
SCRIPT = """\
#!/usr/bin/env bash
{head}
set -euo pipefail

# Run it once, on the first node; the launcher reaches the others through the hostfile.
# Every node must see this folder and the checkout under the same paths.
NEOX_PATH="$(cd "${{NEOX_PATH:-.}}" && pwd)"  # a checkout of GPT-NeoX, installed
{bundle}
cd "$BUNDLE"
export DLTS_HOSTFILE="${{HOSTFILE:-hostfile}}"
{exports}
if [ ! -f mock_data/mock.idx ]; then
  PYTHONPATH="$NEOX_PATH" python3 mock_data.py mock_data {vocab_size} {length}
fi

python3 "$NEOX_PATH/deepy.py" "$NEOX_PATH/train.py" config.yml "$@"
"""
LAUNCH = OneConfig("gpt-neox", "GPT-NeoX", VERSIONS, "config.yml", SCRIPT, "first node")
MOCK_DATA = '''\
"""Writes random tokens and a tokenizer of as many: mock_data.py FOLDER VOCAB LENGTH."""

import json
import os
import sys

import numpy as np
from megatron.data.indexed_dataset import make_builder

folder, vocab_size, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.makedirs(folder, exist_ok=True)
names = ["<|endoftext|>", "<|padding|>", *map(str, range(2, vocab_size))][:vocab_size]
model = {"type": "WordLevel", "vocab": {name: i for i, name in enumerate(names)}}
with open(f"{folder}/tokenizer.json", "w") as file:
    json.dump({"version": "1.0", "model": {**model, "unk_token": "<|padding|>"}}, file)
builder = make_builder(f"{folder}/mock.bin", impl="mmap", vocab_size=vocab_size)
kind = np.uint16 if vocab_size < 65500 else np.int32
random = np.random.default_rng(0)
for _ in range(64):
    builder.add_item(random.integers(vocab_size, size=length).astype(kind))
    builder.end_document()
builder.finalize(f"{folder}/mock.idx")
'''


def _environment(plan: ParallelPlan) -> tuple[Flag, ...]:
    if not plan.sequence_parallel:
        return ()
    why = "sequence parallelism needs communication issued before compute kernels"
    return (flag("environment", "CUDA_DEVICE_MAX_CONNECTIONS", 1, why),)


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The launch script, the config, the hostfile and the mock-data script."""
    vocabulary = request.model.vocab_size
    padded = int(padded_vocab_size(vocabulary, plan.tp, VOCAB_MULTIPLE))
    return LAUNCH.bundle(
        request,
        plan,
        list(rows(request, plan)),
        unwritten_facts.of(request.model, UNWRITTEN, numerics_fields(request.model)),
        _environment(plan),
        (Note(code="padded_vocab", text=f"The embedding has {padded} rows."),),
        words={"vocab_size": vocabulary, "length": request.training.seq_length + 1},
        files={"hostfile": hostfile(request), "mock_data.py": MOCK_DATA},
    )


FRAMEWORK = Framework(
    name="gpt-neox",
    title="GPT-NeoX",
    versions=VERSIONS,
    choices={"overlap_grad_reduce": (False, True), "overlap_param_gather": (False, True)},
    rules=RULES,
    fields=FIELDS,
    render=render,
    read=read,
    recognises=recognises,
    trains_all="its trainer trains all weights",
)
