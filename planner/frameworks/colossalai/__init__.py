"""ColossalAI: a training script whose plugin holds the plan, and its torchrun launch script."""

from __future__ import annotations

import json

from cost_models.plans import ParallelPlan
from planner.constraints import Context
from planner.documents.request import PlanRequest
from planner.frameworks import bash_writer, python_writer, unwritten_facts
from planner.frameworks.base import Bundle, Framework, cannot, flag, says
from planner.frameworks.colossalai.rules import RULES, STYLES
from planner.frameworks.colossalai.script import IMPORTS, LAUNCH, TRAIN
from planner.frameworks.colossalai.settings import arguments, config, constants, plugin
from planner.frameworks.rules import accelerators_per_node, nodes
from planner.frameworks.unwritten_facts import Uncarried, mixture, rotary
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
    Uncarried(
        "norm epsilon",
        "rms_norm_eps, layer_norm_epsilon in config.json",
        numerics=("norm_epsilon",),
    ),
    Uncarried(
        "rotary base and scaling",
        "rope_theta, rope_scaling in config.json",
        rotary,
        numerics=("rope_theta", "rope_scaling"),
    ),
    Uncarried(
        "activation", "hidden_act, activation_function in config.json", numerics=("activation",)
    ),
    Uncarried(
        "standard deviation of the initial weights",
        "initializer_range in config.json",
        numerics=("init_std",),
    ),
    Uncarried(
        "load-balancing loss",
        "output_router_logits (false), router_aux_loss_coef in config.json",
        mixture,
    ),
)


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The training script with the plugin, the model's config, and the script that launches it."""
    c = Context(request.model, request.cluster, request.training)
    said, told = arguments(c, plan), tuple(constants(c, plan))
    missing = unwritten_facts.of(
        c.model, UNWRITTEN, used_numerics(c.model, config_of(c.model) or {})
    )
    head = bash_writer.header("ColossalAI", VERSIONS, request, plan)
    built = python_writer.call(f"return {plugin(c, plan)}", said, indent=4)
    lines = "\n".join(
        f"{one.name.partition('.')[2]} = {one.words[1]}  {bash_writer.comment(one.why)}"
        for one in told
    )
    train = TRAIN.format(
        head=head,
        imports=python_writer.imports(IMPORTS, f"{TRAIN} {built} {lines}"),
        unwritten=unwritten_facts.comments(missing),
        constants=lines,
        plugin=built,
    )
    script = LAUNCH.format(
        head=head,
        bundle=bash_writer.BUNDLE,
        rendezvous=bash_writer.rendezvous(nodes(c.cluster)),
        exports=bash_writer.export(VARIABLE),
        launch=bash_writer.torchrun(accelerators_per_node(c.cluster)),
    )
    keys = config(c)
    return Bundle(
        framework="colossalai",
        versions=VERSIONS,
        main="launch.sh",
        files={
            "launch.sh": script,
            "train.py": train,
            "config.json": json.dumps(keys, indent=2) + "\n",
        },
        flags=(
            VARIABLE,
            *told,
            *said,
            *(
                flag("config.json", f"config.{key}", json.dumps(value), "the model as planned")
                for key, value in keys.items()
            ),
        ),
        notes=tuple(unwritten_facts.notes(missing)),
    )


VARIABLE = flag("environment", "OMP_NUM_THREADS", 8, "host threads of each rank")

FRAMEWORK = Framework(
    name="colossalai",
    title="ColossalAI",
    versions=VERSIONS,
    choices={
        "cp_kind": ("a2a", "p2p"),
        "rank_order": ("tp-cp-ep-pp-dp", "tp-cp-ep-dp-pp"),
        "overlap_grad_reduce": (True, False),
        "overlap_param_gather": (True, False),
    },
    rules=RULES,
    training={"gradient_dtype": "bf16", "gradient_reduce_dtype": "bf16"},
    fields=FIELDS,
    render=render,
    no_reader="the plan is in Python code, which must run before its values are known",
    trains_all="the script trains all weights, without Booster.enable_lora",
)
