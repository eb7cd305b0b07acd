"""ColossalAI: a training script whose plugin holds the plan, and its torchrun launch script."""

from __future__ import annotations

import json

from cost_models.plans import ParallelPlan
from planner.constraints import Context
from planner.documents.request import PlanRequest
from planner.frameworks import bash_writer, python_writer, unwritten_facts
from planner.frameworks.base import Bundle, cannot, flag, says
from planner.frameworks.colossalai.rules import RULES, STYLES
from planner.frameworks.colossalai.settings import arguments, config, constants, plugin
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.package_files import filled, text
from planner.frameworks.unwritten_facts import uncarried
from planner.huggingface.export.exporter import config_of
from planner.huggingface.numerics import used_numerics

VERSIONS = "ColossalAI main of April 2026 (4f9953b, after 0.5.1), transformers 4.51"

FIELDS = {
    "tp": says("plugin.tp_size"),
    "sequence_parallel": says(
        "plugin.enable_sequence_parallelism", "plugin.sequence_parallelism_mode"
    ),
    "cp": says("plugin.sp_size", note="Ulysses, or ring attention for llama models"),
    "cp_kind": says("plugin.sequence_parallelism_mode", note="all_to_all: a2a, ring_attn: p2p"),
    "dynamic_cp": cannot("every sequence is split over all ranks of sequence parallelism", False),
    "pp": says("plugin.pp_size"),
    "vpp": says("plugin.num_model_chunks"),
    "dp": says("--nnodes", "--nproc_per_node", note="world size / (tp x cp x pp)"),
    "dp_shard": cannot("its shards span all data-parallel ranks", 0),
    "ep": says("plugin.ep_size", note="inside dp"),
    "etp": cannot("experts are split like the other layers: etp is tp"),
    "zero_stage": says("plugin.zero_stage", "plugin.shard_param_frac", note="3: GeminiPlugin"),
    "reshard_after_forward": cannot("Gemini always frees gathered weights", True),
    "micro_batch_size": says(
        "train.MICRO_BATCH_SIZE", "train.ACCUMULATION", "plugin.microbatch_size"
    ),
    "recompute": says(
        "train.RECOMPUTE", "plugin.gradient_checkpoint_config", only=("none", "full")
    ),
    "recompute_modules": cannot("whole layers are recomputed"),
    "recompute_method": says("plugin.gradient_checkpoint_config", note="in a pipeline"),
    "recompute_num_layers": says("plugin.gradient_checkpoint_config", note="in a pipeline"),
    "recompute_layers": says("plugin.gradient_checkpoint_config", note="in a pipeline"),
    "schedule": says("plugin.pp_style", only=tuple(STYLES)),
    "first_stage_layers": says("plugin.num_layers_per_stage"),
    "last_stage_layers": says("plugin.num_layers_per_stage"),
    "stage_layers": says("plugin.num_layers_per_stage"),
    "rank_order": says("plugin.dp_outside", "plugin.moe_dp_outside"),
    "offload_optimizer": says("plugin.cpu_offload", "plugin.offload_optim_frac"),
    "offload_activations": cannot("activations stay on the accelerator", False),
    "offload_num_layers": cannot("activations stay on the accelerator"),
    "attention_kernel": says("plugin.enable_flash_attention", only=("flash", "unfused")),
    "cross_entropy": cannot("there is no fused cross entropy", "unfused"),
    "moe_dispatcher": cannot("tokens are always dispatched by alltoall", "alltoall"),
    "overlap_grad_reduce": says("plugin.overlap_communication", "plugin.enable_async_reduce"),
    "overlap_param_gather": says("plugin.overlap_allgather", "plugin.max_prefetch"),
    "overlap_tp": cannot("tensor-parallel communication is not overlapped", False),
    "overlap_ep": cannot("expert-parallel communication is not overlapped", False),
    "overlap_p2p": says("plugin.overlap_p2p", note="interleaved schedules"),
    "runtime": cannot("ColossalAI runs on torch", "torch"),
    "compile": cannot("its models are modified in place", False),
}
UNWRITTEN = (
    uncarried("norm_epsilon", "rms_norm_eps, layer_norm_epsilon in config.json"),
    uncarried("rotary", "rope_theta, rope_scaling in config.json"),
    uncarried("activation", "hidden_act, activation_function in config.json"),
    uncarried("init_std", "initializer_range in config.json"),
    uncarried("balancing", "output_router_logits (false), router_aux_loss_coef in config.json"),
)


LAUNCH = Launch("colossalai", "ColossalAI", VERSIONS, __name__)


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The training script with the plugin, the model's config, and the script that launches it."""
    c = Context(request.model, request.cluster, request.training)
    said, told, keys = arguments(c, plan), tuple(constants(c, plan)), config(c)
    missing = unwritten_facts.of(
        c.model, UNWRITTEN, used_numerics(c.model, config_of(c.model) or {})
    )
    words = {
        "head": LAUNCH.head(request, plan),
        "unwritten": unwritten_facts.comments(missing),
        "constants": "\n".join(
            f"{one.name.partition('.')[2]} = {one.words[1]}  {bash_writer.comment(one.why)}"
            for one in told
        ),
        "plugin": python_writer.call(f"return {plugin(c, plan)}", said, indent=4),
    }
    template = text(__name__, "train.py.txt")
    used = f"{template} {words['plugin']} {words['constants']}"
    imports = python_writer.imports(text(__name__, "imports.py.txt"), used)
    model = (
        flag("config.json", f"config.{key}", json.dumps(value), "the model as planned")
        for key, value in keys.items()
    )
    return LAUNCH.bundle(
        request,
        plan,
        missing,
        variables=(VARIABLE,),
        flags=(*told, *said, *model),
        files={
            "train.py": filled(template, words | {"imports": imports}),
            "config.json": json.dumps(keys, indent=2) + "\n",
        },
    )


VARIABLE = flag("environment", "OMP_NUM_THREADS", 8, "host threads of each rank")

FRAMEWORK = LAUNCH.framework(
    RULES,
    FIELDS,
    render,
    choices={
        "cp_kind": ("a2a", "p2p"),
        "rank_order": ("tp-cp-ep-pp-dp", "tp-cp-ep-dp-pp"),
        "overlap_grad_reduce": (True, False),
        "overlap_param_gather": (True, False),
    },
    training={"gradient_dtype": "bf16", "gradient_reduce_dtype": "bf16"},
    no_reader="the plan is in Python code, which must run before its values are known",
    trains_all="the script trains all weights, without Booster.enable_lora",
)
