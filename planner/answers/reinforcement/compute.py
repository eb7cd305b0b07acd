"""A step of reinforcement learning, from a planned training step and a stated throughput."""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.estimate import CostModel
from cost_models.parameters import active_parameters, total_parameters
from cost_models.plans import ParallelPlan
from cost_models.schedules import SCHEDULES
from planner.answers.plans.competition import fastest
from planner.answers.plans.emission import NothingFits
from planner.answers.plans.explain import report
from planner.answers.plans.plan_answers import IllegalPlan, illegal
from planner.answers.reinforcement.documents import (
    Phase,
    ReinforcementAnswer,
    ReinforcementRequest,
    ReinforcementSpec,
    TransferStep,
    Way,
)
from planner.answers.reinforcement.transfer import generation_weight_bytes, transfer
from planner.documents.answer import ProfileInfo
from planner.documents.plan_report import Note, PlanReport
from planner.documents.request import PlanRequest
from planner.search.exhaustive import cost_model
from planner.version import __version__

GENERATION_PARTS = ("generation", "reward")
STATES = ("weights", "gradients", "optimizer")


def step(asked: ReinforcementRequest) -> ReinforcementAnswer:
    """Time and memory of one step, for the request's plan or else the fastest that fits.

    Raises RequestError (NothingFits where no plan does), SpaceTooLarge, IllegalPlan.
    """
    spec, request = asked.reinforcement, asked.training
    model, plan = cost_model(request), _plan(request)
    training = report(model, request, plan)
    generating = asked.generation_accelerators
    exchanged = transfer(model, plan, generating if spec.generation == "other" else 0)
    parts = _parts_s(asked, model, training, exchanged)
    memory = tuple(_memory(asked, training))
    return ReinforcementAnswer(
        request=asked.document(),
        version=__version__,
        profile=ProfileInfo.of(model.context.profile, measured={}),
        training=training,
        training_accelerators=request.cluster.accelerators,
        generation_accelerators=generating,
        engines=generating // spec.generation_tp,
        sequences=spec.sequences,
        tokens=spec.sequences * spec.sequence_tokens,
        optimizer_steps=_optimizer_steps(asked),
        parts_s=parts,
        dominant=max(parts, key=parts.__getitem__),
        ways=tuple(_ways(asked, parts)),
        weight_bytes=generation_weight_bytes(request.model),
        transfer=exchanged,
        memory=memory,
        fits=all(phase.fits for phase in memory),
        notes=tuple(_notes(spec)),
    )


def _plan(request: PlanRequest) -> ParallelPlan:
    if request.plan is not None:
        if reasons := illegal(request, request.plan):
            raise IllegalPlan(reasons)
        return request.plan
    best = fastest(request).outcome.best
    if not best:
        raise NothingFits("no plan of the training fits; `planner plan` says why")
    return best[0]


def _optimizer_steps(request: ReinforcementRequest) -> int:
    spec = request.reinforcement
    return spec.sequences // request.request.training.global_batch_size * spec.epochs


def forward_pass_s(model: CostModel, plan: ParallelPlan, sequences: float) -> float:
    """Seconds of a forward pass of so many sequences through the stages of a plan.

    Stages work at the same time: the busiest one's pace, and one micro-batch through the others.
    Left out: what ZeRO-3 gathers beyond what the forward kernels hide.
    """
    times, links = model.stage_times(plan)
    two_way = plan.pp > 1 and SCHEDULES[plan.schedule].placement == "two-way"
    forward = times.forward_s * (0.5 if two_way else 1.0)
    chunks = plan.vpp if plan.pp > 1 and not two_way else 1
    micro_batches = sequences / (plan.dp * plan.micro_batch_size)
    between = chunks * links.transfer_s if links.blocking else 0.0
    filling = float(forward.sum()) + (plan.pp * chunks - 1) * links.transfer_s
    return filling + (micro_batches - 1.0) * (float(forward.sum(axis=1).max()) + between)


def _parts_s(
    request: ReinforcementRequest,
    model: CostModel,
    training: PlanReport,
    exchanged: tuple[TransferStep, ...],
) -> dict[str, float]:
    """STEP_PARTS of a step in seconds."""
    spec = request.reinforcement
    forward_s = forward_pass_s(model, training.plan, spec.sequences)
    critic = _critic_share(request, active_parameters(request.request.model))
    trained_s = _optimizer_steps(request) * training.iteration_time_s
    rate = spec.generation_tokens_per_s * request.generation_accelerators
    host_link = request.request.cluster.groups[0].host_link_bytes_per_s
    moved = _moved_bytes(request, training) if spec.offload else 0.0
    return {
        "generation": spec.sequences * spec.response_tokens / rate,
        "reward": spec.reward_s,
        "policy_scoring": forward_s,
        "reference_scoring": forward_s * spec.reference,
        "critic_scoring": forward_s * critic,
        "policy_training": trained_s,
        "critic_training": trained_s * critic,
        "weight_transfer": sum(one.seconds for one in exchanged),
        "offload": moved / host_link if host_link and moved else 0.0,
    }


def _critic_share(request: ReinforcementRequest, policy_parameters: int) -> float:
    """The critic in multiples of the policy; 0 without one."""
    spec = request.reinforcement
    if spec.algorithm != "ppo":
        return 0.0
    return (spec.critic_parameters or policy_parameters) / policy_parameters


def _ways(request: ReinforcementRequest, parts: dict[str, float]) -> Iterator[Way]:
    """One after the other; on other ranks also training on the responses of the step before."""
    spec = request.reinforcement
    accelerators = request.request.cluster.accelerators

    def way(name: str, seconds: float) -> Way:
        tokens_per_s = spec.sequences * spec.sequence_tokens / seconds
        return Way.model_validate({
            "name": name, "step_time_s": seconds, "tokens_per_s": tokens_per_s,
            "tokens_per_s_per_accelerator": tokens_per_s / accelerators,
        })  # fmt: skip

    serial_s = sum(parts.values())
    yield way("synchronous", serial_s)
    if spec.generation == "other":
        generation_s = sum(parts[name] for name in GENERATION_PARTS)
        transfer_s = parts["weight_transfer"]
        trained_s = serial_s - generation_s - transfer_s
        yield way("one step off-policy", max(generation_s, trained_s) + transfer_s)


def _states(training: PlanReport) -> dict[str, float]:
    """Weights, gradients and optimizer of the policy on the stage that has most of them."""
    stages = (stage.parts for stage in training.memory.stages)
    fullest = max(stages, key=lambda parts: sum(parts[name] for name in STATES))
    return {name: fullest[name] for name in STATES}


def _others_bytes(request: ReinforcementRequest, training: PlanReport) -> dict[str, float]:
    """What the reference and the critic hold on a rank, split as the policy is."""
    states = _states(training)
    found = {}
    # Without its adapters the policy is the reference (PEFT, disable_adapter).
    if request.reinforcement.reference and not request.request.training.lora_rank:
        found["reference"] = states["weights"]
    if share := _critic_share(request, total_parameters(request.request.model)):
        found["critic"] = share * sum(states.values())
    return found


def _waiting_bytes(request: ReinforcementRequest, training: PlanReport) -> dict[str, float]:
    """What a rank has in host memory at some time: gradients are freed, not moved."""
    states = _states(training)
    kept = states["weights"] + states["optimizer"]
    waiting = _others_bytes(request, training)
    if "critic" in waiting:
        waiting["critic"] *= kept / sum(states.values())
    if request.reinforcement.generation == "same" or "critic" in waiting:
        waiting["policy"] = kept
    elif waiting:  # a reference alone takes the place of the weights
        waiting["policy"] = states["weights"]
    return waiting


def _moved_bytes(request: ReinforcementRequest, training: PlanReport) -> float:
    """Policy and critic go to the host and come back; the host keeps its copy of the reference."""
    waiting = _waiting_bytes(request, training)
    return sum(size * (1.0 if name == "reference" else 2.0) for name, size in waiting.items())


def _memory(request: ReinforcementRequest, training: PlanReport) -> Iterator[Phase]:
    """What a rank holds while it trains, takes new weights and generates; and its node's host."""
    spec, (group,) = request.reinforcement, request.request.cluster.groups
    same = spec.generation == "same"
    capacity, memory = group.accelerator.memory_bytes, training.memory
    states = _states(training)
    engine = generation_weight_bytes(request.request.model) / spec.generation_tp
    driver = {"driver": memory.stages[memory.worst_stage].parts["driver"]}
    others = {} if spec.offload else _others_bytes(request, training)
    beside = dict(others) if same else {}
    larger = _critic_share(request, total_parameters(request.request.model)) - 1.0
    if spec.offload and larger > 0:
        others["critic beyond the policy"] = larger * sum(states.values())
    if same and not spec.offload:
        beside["policy"] = sum(states.values())
    yield _phase("training", {"policy": memory.peak_bytes, **others}, capacity)
    if same:
        # The policy's weights are gathered from where they are trained.
        held = {"policy": states["weights"], "generation weights": engine}
        yield _phase("transfer", {**held, **beside, **driver}, capacity)
    cache = {"cache and engine": spec.generation_reserve * capacity}
    yield _phase(
        "generation", {"generation weights": engine, **cache, **beside, **driver}, capacity
    )
    waiting = _waiting_bytes(request, training) if spec.offload else {}
    if waiting and group.host_memory_bytes is not None:
        parts = {name: size * group.accelerators_per_node for name, size in waiting.items()}
        yield _phase("host", parts, group.host_memory_bytes)


def _phase(name: str, parts: dict[str, float], capacity_bytes: float) -> Phase:
    total = sum(parts.values())
    return Phase.model_validate({
        "name": name, "parts": parts, "total_bytes": total, "capacity_bytes": capacity_bytes,
        "fits": total <= capacity_bytes,
    })  # fmt: skip


def _notes(spec: ReinforcementSpec) -> Iterator[Note]:
    """Why the answer is coarser than one about training, and what it takes for granted."""
    yield Note(
        code="coarse",
        text="Coarser than an answer about training: generation is not modelled but stated, as "
        "one throughput; waiting for the longest responses, lengths that differ, starting and "
        "stopping engines are in no part, and it was compared with no published run.",
    )
    where = (
        "every rank gathers all of them over the groups of its plan, stages included, and hands "
        "its engine a part"
        if spec.generation == "same"
        else "one rank of each stage gathers its own and broadcasts them, a stage at a time, over "
        "one accelerator's links"
    )
    yield Note(
        code="weight_transfer",
        text=f"New weights, bf16: {where}. Seconds are the sum of the steps; sending each engine "
        "its shard alone (NeMo RL's NCCL reshard, verl's hybrid engine) moves less.",
    )
    yield Note(
        code="scoring",
        text="Scoring is a forward pass of the training plan for each model; the critic takes the "
        "policy's time and states in the ratio of their parameters.",
    )
    if spec.offload:
        text = (
            "Models take turns: what waits is in host memory, engines free weights and cache while "
            "others work; copies are serial, at the host link's rate."
        )
    else:
        text = "All models stay in accelerator memory; engines free theirs while ranks train."
    yield Note(code="turns", text=text)
