"""verl with a Megatron actor: the training part of GRPO, in Hydra overrides.

Keys and defaults are those of verl/trainer/config of January 2026 (b178a3c).  The options of
generation and reward are placeholders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cost_models.package_files import filled, text
from cost_models.plans import ParallelPlan
from planner.constraints import Context
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import accelerate, bash_writer, megatron, verl_overrides
from planner.frameworks.accelerate.rules import lacks
from planner.frameworks.accelerate.settings import config_json
from planner.frameworks.base import Bundle, Flag, fields
from planner.frameworks.config_files import model_of_config
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.launch_files import LaunchFiles, given_with
from planner.frameworks.megatron import attribute_names, reader
from planner.frameworks.megatron.flags import flags
from planner.frameworks.megatron.verl_actor import DEGREES, ENGINE
from planner.frameworks.read_results import Reading
from planner.frameworks.rules import PLACEHOLDER, accelerators_per_node, nodes
from planner.frameworks.verl.rules import RULES
from planner.frameworks.verl_overrides import ACTOR, MICRO, MINI, ROOT
from planner.frameworks.yaml_files import Row

VERSIONS = "main of January 2026 (b178a3c) with Megatron-Core 0.15 and mbridge"
CONFIG = "config.json"
# The module that is started and its configuration, where engines share the ranks that train.
SYNCHRONOUS = ("verl.trainer.main_ppo", "ppo_megatron_trainer.yaml")
MOST_RESPONSES = 8  # of one prompt
TRANSFORMER = ENGINE + "override_transformer_config."
# Group of overrides -> the attributes of Megatron-LM that belong there.
GROUPS: dict[str, frozenset[str]] = {
    ENGINE: DEGREES,
    TRANSFORMER: frozenset(
        {"recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers"}
        | {"attention_backend", "overlap_p2p_comm", "pipeline_model_parallel_layout"}
        | {"num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"}
        | {"moe_token_dispatcher_type", "moe_flex_dispatcher_backend"}
    ),
    ENGINE + "override_ddp_config.": frozenset(
        {"overlap_grad_reduce", "overlap_param_gather", "grad_reduce_in_fp32"}
    ),
    ACTOR + "optim.override_optimizer_config.": frozenset(
        {"optimizer_cpu_offload", "optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d"}
        | {"use_precision_aware_optimizer"}
    ),
}
LAUNCH = Launch(
    "verl", "verl", VERSIONS, __name__, "Needs a checkpoint and prompts: MODEL and TRAIN_FILES."
)
NEEDS = Note(
    code="needs",
    text="It starts from a checkpoint (MODEL) and generates from prompts (TRAIN_FILES): "
    "generation, rewards and learning rate are placeholders; the plan is for the actor's training.",
)


def _key(option: str) -> str:
    """The override for an option of Megatron-LM; "" if there is none."""
    name = attribute_names.core_name(option)
    return next((group + name for group, names in GROUPS.items() if name in names), "")


FIELDS = attribute_names.with_keys(megatron.FIELDS, _key) | fields(__name__)


def rows(request: PlanRequest, plan: ParallelPlan) -> Iterator[Row]:
    """(key, value, why) of all overrides."""
    training = request.training
    batch, length = training.global_batch_size, training.seq_length
    responses = next(n for n in range(MOST_RESPONSES, 0, -1) if batch % n == 0)
    yield "algorithm.adv_estimator", "grpo", "advantages over the responses of each prompt"
    yield "data.max_prompt_length", length // 2, f"prompt and response: {length} tokens"
    yield "data.max_response_length", length - length // 2, "tokens of the longest response"
    yield "data.train_batch_size", batch // responses, "prompts per step"
    yield MINI, batch // responses, "prompts per update"
    yield ROOT + "rollout.n", responses, f"responses per prompt: {batch} samples per update"
    yield MICRO, plan.micro_batch_size, "sequences per pass and replica"
    yield ACTOR + "use_dynamic_bsz", False, "micro-batches of equal numbers of sequences"
    half = {"bf16": "bfloat16", "fp16": "float16"}[training.precision]
    yield ENGINE + "dtype", half, "type of weights and activations"
    yield ACTOR + "optim.optimizer", training.optimizer, "as planned"
    yield from _core(request, plan)
    generation = "PLACEHOLDER of generation: choose for your engine"
    yield ROOT + "rollout.name", "vllm", generation
    yield ROOT + "rollout.tensor_model_parallel_size", plan.tp, generation
    yield ROOT + "rollout.log_prob_micro_batch_size_per_gpu", plan.micro_batch_size, generation
    yield ACTOR + "optim.lr", "1e-6", PLACEHOLDER
    yield "trainer.total_training_steps", 20, "a smoke run"


def _core(request: PlanRequest, plan: ParallelPlan) -> Iterator[Row]:
    """Megatron-LM's options, by the names of Megatron-Core's configurations."""
    core = {one.name: one for one in flags(request, plan)}
    for option, one in core.items():
        if key := _key(option):
            yield key, attribute_names.value(one), attribute_names.in_keys(one.why)
    if plan.vpp > 1 and "--num-virtual-stages-per-pipeline-rank" not in core:
        name = ENGINE + "virtual_pipeline_model_parallel_size"
        yield name, plan.vpp, "chunks per stage, as in the layout"
    if plan.tp == 1 or not plan.sequence_parallel:
        yield ENGINE + "sequence_parallel", False, "sequence not split in norms and dropout"
    if plan.zero_stage == 0:
        yield ENGINE + "use_distributed_optimizer", False, "optimizer states are not sharded"
    if "--accumulate-allreduce-grads-in-fp32" not in core:
        name = ENGINE + "override_ddp_config.grad_reduce_in_fp32"
        yield name, False, f"gradients accumulated in {request.training.gradient_dtype}"


def _word(value: Any) -> str:
    """A value as Hydra reads it."""
    if isinstance(value, list):
        return f"[{','.join(map(_word, value))}]"
    text = str(value)
    return f"'{text}'" if any(one in text for one in "|*, ") else text


def _overrides(written: Iterable[Row]) -> str:
    """A bash array with one override per line; ++ if the configuration may lack the key."""
    lines = []
    for key, value, why in written:
        new = "++" if ".override_" in key else ""
        lines.append(
            f"  {bash_writer.word(f'{new}{key}={_word(value)}')}  {bash_writer.comment(why)}"
        )
    return "\n".join(("OVERRIDES=(", *lines, ")"))


def _joined(request: PlanRequest) -> str:
    """Waits for all nodes: verl counts accelerators once (ResourcePoolManager) and stops if few."""
    return filled(text(__name__, "joined.sh.txt"), {"each": accelerators_per_node(request.cluster)})


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The launch script, to be called on every node, and the model's config.json."""
    return bundle(request, plan, list(rows(request, plan)), NEEDS)


def bundle(
    request: PlanRequest,
    plan: ParallelPlan,
    written: Sequence[Row],
    needs: Note,
    *,
    program: tuple[str, str] = SYNCHRONOUS,
    apart: int = 0,
) -> Bundle:
    """The script with these overrides, and the config.json.

    program: the module that is started and its configuration.  apart: nodes that only generate,
    beside those of the request.
    """
    config, keys = config_json(Context(request.model, request.cluster, request.training))
    said = (Flag(name=key, value=_word(value), why=why) for key, value, why in written)
    main, name = program
    trainers = nodes(request.cluster)
    return LAUNCH.bundle(
        request,
        plan,
        accelerate.missing(request.model),
        variables=megatron.environment(plan),
        flags=(*said, *keys),
        notes=(needs,),
        files={CONFIG: config},
        words={
            "overrides": _overrides(written),
            "rendezvous": bash_writer.rendezvous(trainers + apart),
            "main": main,
            "config": name,
            "joined": _joined(request) if trainers + apart > 1 else "",
            "trainers": trainers if apart else '"$NNODES"',
        },
    )


def recognises(files: Mapping[str, str]) -> bool:
    """Whether some script starts verl's training on Megatron-Core."""
    return verl_overrides.call(files, verl_overrides.on_megatron) is not None


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """Reads the actor's training with Megatron-LM's reader; raises Unreadable.

    The model is that of the config.json among the files, or else the preset of its name.
    """
    given = given_with(files)
    if given.model is None and CONFIG in files:
        files = LaunchFiles(files, replace(given, model=model_of_config(files, CONFIG)))
    found = reader.read(files, accelerators)
    return found.model_copy(update={"framework": "verl"})


FRAMEWORK = LAUNCH.framework(
    RULES,
    FIELDS,
    render,
    read=read,
    recognises=recognises,
    choices={
        name: values for name, values in megatron.FRAMEWORK.choices.items() if not FIELDS[name].only
    },
    trains_all="all weights are trained: verl's adapters are not written",
    lacks=lacks,
    competes=False,
)
