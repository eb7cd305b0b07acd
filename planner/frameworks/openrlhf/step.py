"""OpenRLHF's whole step of GRPO or PPO: DeepSpeed's ZeRO 3 and vLLM's engines under Ray.

Options of openrlhf/cli/train_ppo_ray.py (3c3be62).
"""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.plans import ParallelPlan
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import bash_writer
from planner.frameworks.accelerate.settings import ATTENTION
from planner.frameworks.base import Bundle, Row, in_group
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.rollouts import Rollouts
from planner.frameworks.rules import accelerators_per_node, nodes
from planner.frameworks.unwritten_facts import Missing

VERSIONS = "0.11 (main of August 2026, 3c3be62)"
LAUNCH = Launch(
    "openrlhf", "OpenRLHF", VERSIONS, __name__.rpartition(".")[0],
    "Needs a checkpoint, prompts and a reward: MODEL, PROMPTS and REWARD.",
)  # fmt: skip
NEEDS = Note(
    code="needs",
    text="It starts from a checkpoint (MODEL), reads prompts (PROMPTS) and asks REWARD. Learning "
    "rate and epochs over the prompts are OpenRLHF's defaults.",
)
KL_WEIGHT = 0.001


def render(request: PlanRequest, plan: ParallelPlan, rollouts: Rollouts) -> Bundle:
    """The launch script of a whole step, to be called on every node.

    request: of the nodes that train, with sequences of full length.
    """
    options = (
        *_placement(request, rollouts),
        *_engines(rollouts),
        *_step(rollouts),
        *_training(request, plan),
    )
    trainers = nodes(request.cluster)
    return LAUNCH.bundle(
        request,
        plan,
        Missing((), ()),  # the model is the checkpoint's, with all its facts
        options,
        notes=(NEEDS,),
        words={"rendezvous": bash_writer.rendezvous(trainers + rollouts.nodes)},
    )


@in_group("PLACEMENT_ARGS")
def _placement(request: PlanRequest, rollouts: Rollouts) -> Iterator[Row]:
    count, each = nodes(request.cluster), accelerators_per_node(request.cluster)
    yield "--actor.num_nodes", count, "nodes that train"
    yield "--actor.num_gpus_per_node", each, "accelerators of a node"
    yield "--ref.num_nodes", count, "the reference is on the ranks that train"
    yield "--ref.num_gpus_per_node", each, "accelerators of a node"
    critic = rollouts.algorithm == "ppo"
    if critic:
        yield "--critic.num_nodes", count, "the critic is on the ranks that train"
        yield "--critic.num_gpus_per_node", each, "accelerators of a node"
    if not rollouts.apart:
        yield "--train.colocate_all", "engines share the ranks that train"
        yield "--vllm.enable_sleep", "engines free their memory while ranks train"
        if rollouts.offload:
            yield "--ds.enable_sleep", "the trainer makes room while engines generate"
    elif critic:
        yield "--train.colocate_all", "all but the engines, as generation runs beside training"
    else:
        yield "--train.colocate_actor_ref", "engines have nodes of their own"
    if rollouts.reference and rollouts.offload:
        yield "--ref.offload", "the reference waits on the host"
    if rollouts.behind >= 1:
        yield "--train.async_enable", "generation runs beside training"
        waiting = max(1, round(rollouts.behind) - 1)
        yield "--train.async_queue_size", waiting, "batches that may wait for the trainer"
    if rollouts.behind > 1:
        yield "--train.partial_rollout_enable", "responses go on with new weights"


@in_group("ENGINE_ARGS")
def _engines(rollouts: Rollouts) -> Iterator[Row]:
    yield "--vllm.num_engines", rollouts.engines, "engines that generate"
    yield "--vllm.tensor_parallel_size", rollouts.tp, "accelerators of one engine"
    share = round(rollouts.gpu_memory_utilization, 2)
    yield "--vllm.gpu_memory_utilization", share, "weights and caches"
    yield "--vllm.enable_prefix_caching", "samples of a prompt compute it once"
    yield "--vllm.sync_backend", "nccl", "how new weights get there"


@in_group("STEP_ARGS")
def _step(rollouts: Rollouts) -> Iterator[Row]:
    yield "--data.input_key", "prompt", "key of the prompts"
    yield "--data.label_key", "label", "key of what the reward compares with"
    yield "--data.apply_chat_template", "prompts are messages"
    yield "--data.max_len", rollouts.tokens, "the longest prompt and response"
    yield "--rollout.max_new_tokens", rollouts.response_tokens, "where responses are cut"
    yield "--rollout.batch_size", rollouts.prompts, "prompts per step"
    yield "--rollout.n_samples_per_prompt", rollouts.samples, "responses per prompt"
    yield "--train.max_epochs", rollouts.epochs, "times that a batch is trained on"
    estimator = {"grpo": "group_norm", "ppo": "gae"}[rollouts.algorithm]
    yield "--algo.advantage.estimator", estimator, "as asked"
    if rollouts.generated_per_trained > 1:
        yield "--algo.dynamic_filtering_enable", "prompts without a difference are left out"
    kl = "weight of the reference's KL" if rollouts.reference else "no reference scores responses"
    yield "--algo.kl.init_coef", KL_WEIGHT if rollouts.reference else 0, kl
    if rollouts.reference:
        yield "--algo.kl.use_loss", "it is part of the loss"
        yield "--algo.kl.estimator", "k3", "GRPO's estimate of it"


@in_group("TRAINING_ARGS")
def _training(request: PlanRequest, plan: ParallelPlan) -> Iterator[Row]:
    training = request.training
    yield "--train.batch_size", training.global_batch_size, "responses per optimizer step"
    yield "--train.micro_batch_size", plan.micro_batch_size, "where passes are not by tokens"
    yield "--rollout.micro_batch_size", plan.micro_batch_size, "the same while scoring"
    yield "--train.dynamic_batch_enable", "passes are filled with tokens, not with sequences"
    tokens = training.seq_length * plan.micro_batch_size
    yield "--train.max_tokens_per_gpu", tokens, "tokens of one pass, as planned"
    yield "--rollout.max_tokens_per_gpu", tokens, "the same while scoring"
    yield "--ds.packing_samples", "sequences of a pass are one after the other"
    yield "--ds.attn_implementation", ATTENTION[plan.attention_kernel], "attention kernel"
    yield "--ds.zero_stage", plan.zero_stage, "weights, gradients and states are sharded"
    yield "--ds.param_dtype", training.precision, "type of weights and activations"
    yield "--ds.grad_accum_dtype", training.gradient_dtype, "type of accumulated gradients"
    if plan.recompute == "full":
        yield "--actor.gradient_checkpointing_enable", "full activation recompute"
    if plan.offload_optimizer:
        yield "--ds.adam_offload", "optimizer states in host memory"
