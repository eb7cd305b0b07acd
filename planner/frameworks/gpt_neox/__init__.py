"""GPT-NeoX: one YAML for its `deepy.py`, on DeepSpeed's engine."""

from __future__ import annotations

from cost_models.plans import ParallelPlan
from planner.documents.request import PlanRequest
from planner.frameworks import deepspeed, unwritten_facts
from planner.frameworks.base import Bundle, Field, cannot, says
from planner.frameworks.gpt_neox import reader
from planner.frameworks.gpt_neox.rules import RULES
from planner.frameworks.gpt_neox.settings import numerics_fields, rows
from planner.frameworks.launch_bundle import Launch, mock_data
from planner.frameworks.unwritten_facts import gated, uncarried, ungated

VERSIONS = "main of May 2026 (ea7aefd) with DeepSpeed"
CONFIG = "config.yml"

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
    uncarried("norm_epsilon", "layernorm_epsilon (1e-5), rms_norm_epsilon (1e-8)"),
    uncarried("rope_theta", "rotary_emb_base (10000)"),
    uncarried("rotary_share", "rotary_pct (1.0)"),
    uncarried("rope_scaling", "no key"),
    uncarried("activation", "activation (swiglu)", gated),
    uncarried("activation", "activation (gelu)", ungated),
    uncarried("init_std", "init_method_std (0.02)"),
    uncarried("multipliers", "no key"),
)
LAUNCH = Launch("gpt-neox", "GPT-NeoX", VERSIONS, __name__, mock_data(CONFIG), starts="first node")


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The launch script, the config, the hostfile and the mock-data script."""
    files, words = deepspeed.beside(request, __name__)
    why = "sequence parallelism needs communication issued before compute kernels"
    return LAUNCH.with_config(
        request,
        plan,
        unwritten_facts.of(request.model, UNWRITTEN, numerics_fields(request.model)),
        CONFIG,
        list(rows(request, plan)),
        deepspeed.environment(plan, why),
        (deepspeed.padded(request, plan),),
        files=files,
        words=words,
    )


FRAMEWORK = LAUNCH.framework(
    RULES,
    FIELDS,
    render,
    reader,
    choices={"overlap_grad_reduce": (False, True), "overlap_param_gather": (False, True)},
    trains_all="its trainer trains all weights",
)
