"""NeMo-RL's whole step of GRPO on Megatron-Core: one YAML over a configuration of its examples.

Keys of examples/configs and of nemo_rl/models/megatron/setup.py (7ea279a).
"""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.plans import ParallelPlan
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks.base import Bundle
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.rollouts import Rollouts
from planner.frameworks.unwritten_facts import Missing
from planner.frameworks.yaml_files import Row

VERSIONS = "main of August 2026 (7ea279a)"
FILE, PARENT = "grpo.yaml", "grpo_math_1B_megatron.yaml"
LAUNCH = Launch(
    "nemo-rl", "NeMo-RL", VERSIONS, __name__.rpartition(".")[0],
    "Needs a checkout of NeMo-RL and a running Ray cluster of all nodes: NEMO_RL and MODEL.",
    starts="first node",
)  # fmt: skip
NEEDS = Note(
    code="needs",
    text=f"It inherits {PARENT} of NeMo-RL's examples: data, rewards and learning rate are those; "
    "MODEL is the checkpoint.",
)


def render(request: PlanRequest, plan: ParallelPlan, rollouts: Rollouts) -> Bundle:
    """The configuration of a whole step and the script that starts it.

    request: of the nodes that train, with sequences of full length.
    """
    rows = list(_rows(request, plan, rollouts))
    # The model is the checkpoint's, with all its facts.
    return LAUNCH.with_config(request, plan, Missing((), ()), FILE, rows, notes=(NEEDS,))


def _rows(request: PlanRequest, plan: ParallelPlan, rollouts: Rollouts) -> Iterator[Row]:
    training, group = request.training, request.cluster.groups[0]
    yield "defaults", PARENT, "of the same folder, NeMo-RL's examples/configs"
    yield "grpo.num_prompts_per_step", rollouts.prompts, "prompts per step"
    yield "grpo.num_generations_per_prompt", rollouts.samples, "responses per prompt"
    if rollouts.generated_per_trained > 1:
        yield "grpo.use_dynamic_sampling", True, "prompts without a difference are left out"
        more = rollouts.generated_per_trained
        yield "grpo.batch_multiplier", more, "prompts that responses are generated for"
    if rollouts.nodes and rollouts.behind >= 1:
        yield "grpo.async_grpo.enabled", True, "generation runs beside training"
        yield "grpo.async_grpo.max_trajectory_age_steps", int(rollouts.behind), "steps behind"
        yield "loss_fn.use_importance_sampling_correction", True, "responses are of older weights"
    kept = "the parent's" if rollouts.reference else "no reference scores the responses"
    yield "loss_fn.reference_policy_kl_penalty", 0.01 if rollouts.reference else 0, kept
    policy = "policy."
    name = "the launch script puts MODEL in its place"
    yield policy + "model_name", request.model.name or "model", name
    yield policy + "train_global_batch_size", rollouts.batch, "responses per optimizer step"
    yield policy + "train_micro_batch_size", plan.micro_batch_size, "longest ones per pass"
    yield policy + "logprob_batch_size", plan.micro_batch_size, "the same while scoring"
    length = training.seq_length
    yield policy + "max_total_sequence_length", length, "the longest prompt and response"
    half = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    yield policy + "precision", half.get(training.precision, "bfloat16"), "of the training"
    yield policy + "sequence_packing.enabled", True, "passes are filled with tokens"
    divisor = plan.tp * plan.cp * (2 if plan.cp > 1 else 1)
    yield policy + "make_sequence_length_divisible_by", divisor, "ranks that split a sequence"
    yield from _core(plan)
    yield from _engines(rollouts)
    yield "cluster.gpus_per_node", group.accelerators_per_node, "accelerators of a node"
    yield "cluster.num_nodes", group.nodes + rollouts.nodes, "nodes that train and generate"


def _core(plan: ParallelPlan) -> Iterator[Row]:
    core = "policy.megatron_cfg."
    yield core + "enabled", True, "trains with Megatron-Core"
    yield core + "tensor_model_parallel_size", plan.tp, "as planned"
    yield core + "sequence_parallel", plan.sequence_parallel, "as planned"
    yield core + "pipeline_model_parallel_size", plan.pp, "as planned"
    for name, count in (("first", plan.first_stage_layers), ("last", plan.last_stage_layers)):
        if count:
            yield f"{core}num_layers_in_{name}_pipeline_stage", count, f"layers of the {name} stage"
    yield core + "context_parallel_size", plan.cp, "as planned"
    yield core + "expert_model_parallel_size", plan.ep, "as planned"
    yield core + "expert_tensor_parallel_size", plan.etp, "as planned"
    again = plan.recompute == "full"
    yield core + "activation_checkpointing", again, "all layers run again" if again else "none"
    core += "distributed_data_parallel_config."
    yield core + "overlap_grad_reduce", plan.overlap_grad_reduce, "as planned"
    yield core + "overlap_param_gather", plan.overlap_param_gather, "as planned"


def _engines(rollouts: Rollouts) -> Iterator[Row]:
    engine = "policy.generation."
    yield engine + "max_new_tokens", rollouts.response_tokens, "where responses are cut"
    yield engine + "colocated.enabled", not rollouts.nodes, "whether ranks train and generate"
    if rollouts.nodes:
        yield engine + "colocated.resources.num_nodes", rollouts.nodes, "nodes that generate"
        yield engine + "colocated.resources.gpus_per_node", None, "all of each"
    engine += "vllm_cfg."
    yield engine + "tensor_parallel_size", rollouts.tp, "accelerators of one engine"
    experts = rollouts.tp if rollouts.experts else 1
    yield engine + "expert_parallel_size", experts, "accelerators that share whole experts"
    share = round(rollouts.gpu_memory_utilization, 2)
    yield engine + "gpu_memory_utilization", share, "weights and caches"
    yield engine + "async_engine", bool(rollouts.nodes and rollouts.behind >= 1), "as planned"
    if rollouts.precision == "fp8":
        yield engine + "precision", "fp8", "weights that generate"
    kept = "policy.generation.vllm_kwargs.max_num_seqs"
    yield kept, rollouts.max_num_seqs, "most responses at a time in one engine"
