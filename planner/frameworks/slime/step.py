"""slime's whole step: Megatron-LM's options, slime's own, and those of its SGLang engines.

Options of slime/utils/arguments.py and slime/backends/sglang_utils (624b824).
"""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.plans import ParallelPlan
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import bash_writer, megatron, slime
from planner.frameworks.base import Bundle, Row, in_group
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.megatron.flags import flags
from planner.frameworks.rollouts import Rollouts
from planner.frameworks.rules import accelerators_per_node, nodes

LAUNCH = Launch(
    "slime", "slime", slime.VERSIONS, slime.__name__,
    "Needs a checkpoint and prompts: HF_CHECKPOINT, REF_LOAD and PROMPT_DATA.",
    template="step.sh.txt",
)  # fmt: skip
FILTER = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"
FULLY = "slime.rollout.fully_async_rollout.generate_rollout_fully_async"
# What the training of samples sets otherwise than a whole step.
OWN = frozenset({"--lr"})
NEEDS = Note(
    code="needs",
    text="It starts from a checkpoint (HF_CHECKPOINT, and converted to Megatron-Core, REF_LOAD) "
    "and reads prompts with labels (PROMPT_DATA), which RM_TYPE rewards. --num-epoch and --lr are "
    "those of slime's examples: set your own.",
)


def render(request: PlanRequest, plan: ParallelPlan, rollouts: Rollouts) -> Bundle:
    """The launch script of a whole step, to be called on every node.

    request: of the nodes that train, with sequences of full length.
    """
    core = slime.CHANGES.written(flags(request, plan), request, plan)
    options = (
        *(one for one in core if one.name not in OWN),
        *_rollouts(request, plan, rollouts),
        *_engines(request, rollouts),
    )
    variables = megatron.environment(plan)
    trainers = nodes(request.cluster)
    return LAUNCH.bundle(
        request,
        plan,
        megatron.missing(request.model),
        options,
        variables,
        notes=(NEEDS,),
        words={
            "env": slime.job_environment(variables),
            "rendezvous": bash_writer.rendezvous(trainers + rollouts.nodes),
            "main": "train_async.py" if rollouts.behind >= 1 else "train.py",
            "trainers": trainers if rollouts.apart else '"$NNODES"',
        },
    )


@in_group("ROLLOUT_ARGS")
def _rollouts(request: PlanRequest, plan: ParallelPlan, rollouts: Rollouts) -> Iterator[Row]:
    if rollouts.behind > 1:
        yield "--rollout-function-path", FULLY, "responses go on while ranks train"
    yield "--input-key", "prompt", "key of the prompts"
    yield "--label-key", "label", "key of what the reward compares with"
    yield "--apply-chat-template", "prompts are messages"
    yield "--rollout-shuffle", "prompts in random order"
    yield "--num-epoch", 1, "passes over the prompts"
    yield "--rollout-batch-size", rollouts.prompts, "prompts per step"
    yield "--n-samples-per-prompt", rollouts.samples, "responses per prompt"
    more = round(rollouts.prompts * rollouts.generated_per_trained * rollouts.oversampling)
    if more > rollouts.prompts:
        yield "--over-sampling-batch-size", more, "prompts that responses are generated for"
    if rollouts.partial:
        yield "--partial-rollout", "cut responses go on in the next step"
    if rollouts.generated_per_trained > 1:
        yield "--dynamic-sampling-filter-path", FILTER, "prompts without a difference are left out"
    yield "--rollout-max-prompt-len", rollouts.prompt_tokens, "longer prompts are left out"
    yield "--rollout-max-response-len", rollouts.response_tokens, "where responses are cut"
    yield "--advantage-estimator", "grpo", "as asked"
    if rollouts.reference:
        yield "--use-kl-loss", "a reference scores the responses"
        yield "--kl-loss-coef", "0.001", "weight of the reference's KL"
        yield "--kl-loss-type", "low_var_kl", "GRPO's estimate of it"
    yield "--lr", "1e-6", "of slime's examples"
    yield "--use-dynamic-batch-size", "passes are filled with tokens, not with sequences"
    tokens = request.training.seq_length * plan.micro_batch_size // plan.cp
    yield "--max-tokens-per-gpu", tokens, "tokens of one pass, as planned"
    yield "--balance-data", "ranks get as many tokens"


@in_group("ENGINE_ARGS")
def _engines(request: PlanRequest, rollouts: Rollouts) -> Iterator[Row]:
    each = accelerators_per_node(request.cluster)
    if rollouts.apart:
        yield "--rollout-num-gpus", rollouts.engines * rollouts.tp, "accelerators that generate"
    else:
        yield "--colocate", "engines share the ranks that train"
        if not rollouts.offload:
            yield "--no-offload-train", "the trainer's models stay in accelerator memory"
    yield "--num-gpus-per-node", each, "accelerators of a node"
    yield "--rollout-num-gpus-per-engine", rollouts.tp, "accelerators of one engine"
    if rollouts.experts:
        yield "--sglang-ep-size", rollouts.tp, "whole experts on each of them"
    share = round(rollouts.gpu_memory_utilization, 2)
    yield "--sglang-mem-fraction-static", share, "weights and caches"
    yield "--sglang-max-running-requests", rollouts.max_num_seqs, "most responses at a time"
    yield "--sglang-context-length", rollouts.tokens, "the longest prompt and response"
