"""verl's whole step: the actor's plan, the engines, and where they are.

Keys of verl/trainer/config and of verl/experimental (one_step_off_policy, fully_async_policy) of
January 2026 (b178a3c).
"""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.plans import ParallelPlan
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import verl
from planner.frameworks.base import Bundle
from planner.frameworks.megatron.verl_actor import ENGINE
from planner.frameworks.rollouts import Rollouts
from planner.frameworks.verl_overrides import ACTOR, MICRO, MINI, ROOT
from planner.frameworks.yaml_files import Row

ENGINES, CONFIG = ROOT + "rollout.", "one_step_off_ppo_megatron_trainer.yaml"
ONE_BEHIND = ("verl.experimental.one_step_off_policy.main_ppo", CONFIG)
ASYNCHRONOUS = (
    "verl.experimental.fully_async_policy.fully_async_main",
    "fully_async_ppo_megatron_trainer.yaml",
)
# Keys of a smoke run of the actor alone that a whole step leaves at verl's defaults.
LEFT_TO_VERL = frozenset({ACTOR + "optim.lr", "trainer.total_training_steps"})
NEEDS = Note(
    code="needs",
    text="It starts from a checkpoint (MODEL) and prompts with their rewards' ground truth "
    "(TRAIN_FILES). The learning rate and the number of steps are verl's defaults: "
    "actor.optim.lr and trainer.total_training_steps set them.",
)


def render(request: PlanRequest, plan: ParallelPlan, rollouts: Rollouts) -> Bundle:
    """The launch script of a whole step.

    request: of the nodes that train, with sequences of full length.
    """
    own = list(_rows(request, plan, rollouts))
    left = {key for key, _, _ in own} | LEFT_TO_VERL
    rows = [*(row for row in verl.rows(request, plan) if row[0] not in left), *own]
    program, apart = _program(rollouts), rollouts.nodes
    return verl.bundle(request, plan, rows, NEEDS, program=program, apart=apart)


def _program(rollouts: Rollouts) -> tuple[str, str]:
    """The module that is started and its configuration."""
    if not rollouts.nodes or rollouts.behind < 1:
        return verl.SYNCHRONOUS
    return ONE_BEHIND if rollouts.behind <= 1 else ASYNCHRONOUS


def _rows(request: PlanRequest, plan: ParallelPlan, rollouts: Rollouts) -> Iterator[Row]:
    """(key, value, why) of what is planned beside the actor's training."""
    length = request.training.seq_length
    yield "algorithm.adv_estimator", {"grpo": "grpo", "ppo": "gae"}[rollouts.algorithm], "as asked"
    prompt = "longer prompts are left out: raise it where yours are longer"
    yield "data.max_prompt_length", rollouts.prompt_tokens, prompt
    yield "data.max_response_length", rollouts.response_tokens, "where responses are cut"
    asynchronous = _program(rollouts) == ASYNCHRONOUS
    # The asynchronous trainer takes responses as they come.
    batch = 0 if asynchronous else rollouts.prompts
    yield "data.train_batch_size", batch, "prompts per step"
    yield ENGINES + "n", rollouts.samples, "responses per prompt"
    yield MINI, max(1, rollouts.batch // rollouts.samples), "prompts per optimizer step"
    yield ACTOR + "ppo_epochs", rollouts.epochs, "times that a batch is trained on"
    yield MICRO, plan.micro_batch_size, "sequences per pass, where passes are not by tokens"
    yield ACTOR + "use_dynamic_bsz", True, "passes are filled with tokens, not with sequences"
    tokens = length * plan.micro_batch_size // plan.cp
    yield ACTOR + "ppo_max_token_len_per_gpu", tokens, "tokens of one pass, as planned"
    yield ENGINES + "log_prob_max_token_len_per_gpu", tokens, "the same while scoring"
    scored = "longest ones per pass while scoring, where passes are not by tokens"
    yield ENGINES + "log_prob_micro_batch_size_per_gpu", plan.micro_batch_size, scored
    yield ACTOR + "use_kl_loss", rollouts.reference, "whether a reference scores the responses"
    yield from _engines(rollouts)
    if rollouts.offload and not rollouts.nodes:
        for name in ("param_offload", "grad_offload", "optimizer_offload"):
            yield ENGINE + name, True, "the trainer makes room while engines generate"
    if rollouts.reference and rollouts.offload:
        yield ROOT + "ref.megatron.param_offload", True, "the reference waits on the host"
    if rollouts.nodes and rollouts.behind >= 1:
        yield ROOT + "hybrid_engine", False, "engines have nodes of their own"
        yield "rollout.nnodes", rollouts.nodes, "nodes that generate"
        each = request.cluster.groups[0].accelerators_per_node
        yield "rollout.n_gpus_per_node", each, "all of each"
    if asynchronous:
        bound = "of responses that may lag, in batches between two weight updates"
        yield "async_training.staleness_threshold", rollouts.behind - 1.0, bound
        yield "async_training.trigger_parameter_sync_step", rollouts.updates, "updates per step"
        yield "async_training.require_batches", 1, "mini-batches that the trainer takes at once"
        yield "async_training.partial_rollout", True, "responses go on with new weights"
        yield "rollout.total_rollout_steps", 20 * rollouts.prompts, "prompts of 20 steps: raise it"


def _engines(rollouts: Rollouts) -> Iterator[Row]:
    yield ENGINES + "name", "vllm", "the engine that was priced"
    yield ENGINES + "tensor_model_parallel_size", rollouts.tp, "accelerators of one engine"
    if rollouts.experts:
        yield ENGINES + "expert_parallel_size", rollouts.tp, "whole experts on each of them"
    share = round(rollouts.gpu_memory_utilization, 2)
    yield ENGINES + "gpu_memory_utilization", share, "weights and caches"
    yield ENGINES + "max_num_seqs", rollouts.max_num_seqs, "most responses at a time in one engine"
    total = rollouts.prompt_tokens + rollouts.response_tokens
    yield ENGINES + "max_model_len", total, "the longest prompt and response"
    if rollouts.precision == "fp8":
        yield ENGINES + "quantization", "fp8", "weights that generate"
