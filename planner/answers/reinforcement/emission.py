"""Launch files of a whole step: of the trainer that the request names."""

from __future__ import annotations

from planner.answers.plans.emission import NothingFits
from planner.answers.reinforcement.documents import ReinforcementRequest
from planner.answers.reinforcement.layouts import CORE, Layout, layouts
from planner.documents.problems import refuse
from planner.frameworks.base import Bundle
from planner.frameworks.nemo_rl import step as nemo_rl
from planner.frameworks.rollouts import Rollouts
from planner.frameworks.verl import step as verl

RENDER = {"verl": verl.render, "nemo-rl": nemo_rl.render}


def files(asked: ReinforcementRequest) -> Bundle:
    """Launch files for the fastest way to run the step, by the request's trainer.

    Raises NothingFits, IllegalPlan, SpaceTooLarge, RequestError.
    """
    spec = asked.reinforcement
    if spec.trainer == "nemo-rl" and spec.algorithm == "ppo":
        detail = "nemo-rl is written for grpo alone; verl has a critic too"
        raise refuse("/reinforcement/trainer", "inconsistent", detail)
    best = layouts(asked)[0]
    request = best.trained.request
    if request.search.framework != CORE:
        raise NothingFits(
            f"no launch files: {spec.trainer} can't run this training on Megatron-Core "
            f"(`planner plan --framework {CORE}` says why); the step is priced all the same"
        )
    # Launch files say the longest sequence, not the lengths that it was priced with.
    training = request.training.model_copy(update={
        "sample_lengths": (), "global_batch_size": asked.request.training.global_batch_size,
    })  # fmt: skip
    said = request.model_copy(update={"training": training})
    return RENDER[spec.trainer](said, best.trained.plan, _rollouts(asked, best))


def _rollouts(asked: ReinforcementRequest, best: Layout) -> Rollouts:
    spec, engines = asked.reinforcement, best.engines
    behind = {"synchronous": 0.0, "one step off-policy": 1.0}
    return Rollouts(
        algorithm=spec.algorithm,
        prompts=spec.prompts,
        samples=spec.samples,
        batch=asked.request.training.global_batch_size,
        prompt_tokens=spec.sequence_tokens - spec.longest_tokens,
        response_tokens=spec.longest_tokens,
        nodes=0 if best.same else asked.nodes - best.trained.nodes,
        behind=behind.get(best.name, max(2.0, spec.staleness)),
        tp=engines.tp,
        experts=engines.expert_parallel,
        gpu_memory_utilization=engines.utilization,
        max_num_seqs=spec.max_num_seqs,
        precision=spec.generation_precision,
        reference=spec.reference,
        offload=spec.offload,
        epochs=spec.epochs,
    )
