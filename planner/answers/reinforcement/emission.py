"""Launch files of a whole step: of the trainer that the request names."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from planner import frameworks
from planner.answers.plans.emission import NothingFits, with_words
from planner.answers.plans.plan_answers import illegal
from planner.answers.reinforcement.compute import interval_s
from planner.answers.reinforcement.documents import PART, ReinforcementRequest, ReinforcementSpec
from planner.answers.reinforcement.layouts import Layout, layouts
from planner.documents.formats import seconds
from planner.documents.problems import Problem, RequestError, Scalar
from planner.frameworks.base import Bundle
from planner.frameworks.rollouts import Rollouts
from planner.frameworks.step_trainers import TRAINERS, StepTrainer

# Fields of a step that not all trainers have options for.
OPTIONAL = (
    "generation_precision", "max_num_seqs", "speculative_tokens", "generated_per_trained",
    "epochs", "oversampling", "partial_rollouts",
)  # fmt: skip


def files(asked: ReinforcementRequest) -> Bundle:
    """Launch files for the fastest way to run the step, by the request's trainer.

    Raises NothingFits, IllegalPlan, SpaceTooLarge, RequestError.
    """
    trainer = asked.trainer
    if problems := [*unsaid(asked)]:
        raise RequestError(problems)
    best = layouts(asked)[0]
    if problems := [*_misplaced(asked, best), *_beyond(asked, best)]:
        raise RequestError(problems)
    request = best.trained.request
    if request.search.framework != trainer.framework:
        why = f"`planner plan --framework {trainer.framework}` says why"
        if asked.request.plan is not None:
            rules = frameworks.get(trainer.framework).rules
            why = "; ".join(one.text for one in illegal(request, asked.request.plan, rules))
        raise NothingFits(
            f"no launch files: {asked.reinforcement.trainer} can't run this training ({why}); the "
            "step is priced all the same"
        )
    # Launch files say the longest sequence, not the lengths that it was priced with.
    training = request.training.model_copy(update={
        "sample_lengths": (), "global_batch_size": asked.request.training.global_batch_size,
    })  # fmt: skip
    said = request.model_copy(update={"training": training})
    bundle: Bundle = import_module(trainer.module).render(
        said, best.trained.plan, _rollouts(asked, best)
    )
    low_s, high_s = interval_s(asked, best)
    expected = f"Expected: {seconds(best.step_time_s)} per step ({seconds(low_s)} to "
    return with_words(bundle, [f"{expected}{seconds(high_s)}: 80 % interval)."])


def _problem(name: str, detail: str, got: Scalar, *allowed: Scalar) -> Problem:
    pointer = f"/{PART}/{name}"
    return Problem(pointer=pointer, code="inconsistent", detail=detail, got=got, allowed=allowed)


def unsaid(asked: ReinforcementRequest) -> Iterator[Problem]:
    """What the trainer has no options for, whatever way the step is run."""
    spec, trainer = asked.reinforcement, asked.trainer
    if asked.request.training.lora_rank and not trainer.adapters:
        yield _without_adapters(trainer, asked.request.training.lora_rank)
    if spec.algorithm not in trainer.algorithms:
        able = [one.title for one in TRAINERS.values() if spec.algorithm in one.algorithms]
        detail = f"{trainer.title} is written for {', '.join(trainer.algorithms)} alone"
        detail += f", got {spec.algorithm}: take {' or '.join(able)}"
        yield _problem("algorithm", detail, spec.algorithm, *trainer.algorithms)
    usual = type(spec).model_fields
    for name in OPTIONAL:
        got, default = getattr(spec, name), usual[name].default
        if got != default and name not in trainer.says:
            able = [one.title for one in TRAINERS.values() if name in one.says]
            others = f", or take {' or '.join(able)}" if able else ""
            detail = f"no option of {trainer.title} says it: must be {default}, got {got}{others}"
            yield _problem(name, detail, got, default)
    if spec.samples < 2 and spec.algorithm == "grpo":
        detail = "GRPO compares the responses to a prompt: must be at least 2, got 1"
        yield _problem("samples", detail, spec.samples)


def _without_adapters(trainer: StepTrainer, rank: int) -> Problem:
    able = " or ".join(one.title for one in TRAINERS.values() if one.adapters)
    detail = f"steps of {trainer.title} with adapters are not written: take {able}, got {rank}"
    problem = _problem("lora_rank", detail, rank, 0)
    return problem.model_copy(update={"pointer": "/training/lora_rank"})


def _misplaced(asked: ReinforcementRequest, best: Layout) -> Iterator[Problem]:
    """What of the way to run the step the trainer has no options for."""
    trainer = asked.trainer
    where = "same" if best.same else "other"
    ways = trainer.ways_of(asked.reinforcement.algorithm)
    if (best.name, where) not in ways:
        known = [f"{name} on {place} accelerators" for name, place in ways]
        detail = (
            f"{trainer.title} runs a step {', or '.join(known)}; got {best.name} on {where}: "
            "change generation or staleness"
        )
        yield _problem("generation", detail, where)
    spec, usual = asked.reinforcement, ReinforcementSpec.model_fields
    for name in trainer.in_step if best.name != "synchronous" else ():
        got, default = getattr(spec, name), usual[name].default
        if got != default:
            detail = f"{trainer.title} has it only in step: must be {default} with a staleness, "
            yield _problem(name, f"{detail}got {got}", got, default)
    nodes = asked.nodes - best.trained.nodes
    if best.same or not trainer.one_server:
        return
    if nodes > 1:
        detail = f"the server of {trainer.title} is on one node: must be 1, got {nodes}"
        yield _problem("generation_nodes", detail, nodes, 1)


def _beyond(asked: ReinforcementRequest, best: Layout) -> Iterator[Problem]:
    """What of a given plan the trainer's files have no words for."""
    plan, trainer = best.trained.plan, asked.trainer
    if asked.request.plan is None:
        return
    layers = asked.request.model.num_layers // (plan.pp * plan.vpp)
    whole = plan.recompute_method == "block" and plan.recompute_num_layers >= layers
    idle = {
        "recompute_method": plan.recompute != "full" or whole,
        "recompute_num_layers": plan.recompute != "full" or whole,
        "sequence_parallel": plan.tp == 1,
        "cp_kind": plan.cp == 1,
        "moe_dispatcher": asked.request.model.moe is None,
        "overlap_p2p": plan.pp == 1,
    }
    for name, values in trainer.limits.items():
        got = getattr(plan, name)
        if got in values or idle.get(name) or name in trainer.runs_as:
            continue
        said = " or ".join(map(str, values))
        yield Problem(
            pointer=f"/plan/{name}", code="inconsistent", got=got, allowed=values,
            detail=f"no option of {trainer.title} says it: must be {said}, got {got}",
        )  # fmt: skip


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
        engines=engines.count,
        tp=engines.tp,
        experts=engines.expert_parallel,
        gpu_memory_utilization=engines.utilization,
        max_num_seqs=spec.max_num_seqs,
        precision=spec.generation_precision,
        generated_per_trained=spec.generated_per_trained,
        oversampling=spec.oversampling,
        partial=spec.partial_rollouts,
        reference=spec.reference,
        offload=spec.offload,
        epochs=spec.epochs,
    )
