"""What a rank holds while it trains, takes new weights and generates; and its node's host."""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.parameters import active_parameters, total_parameters
from planner.answers.reinforcement.documents import Phase, ReinforcementRequest
from planner.answers.reinforcement.engines import Engines
from planner.documents.plan_report import PlanReport

STATES = ("weights", "gradients", "optimizer")


def critic_share(request: ReinforcementRequest, active: bool) -> float:
    """The critic in multiples of the policy's parameters; 0 without one.

    active: of those that each token uses.
    """
    spec, model = request.reinforcement, request.request.model
    if spec.algorithm != "ppo":
        return 0.0
    policy = active_parameters(model) if active else total_parameters(model)
    return (spec.critic_parameters or policy) / policy


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
    if share := critic_share(request, active=False):
        found["critic"] = share * sum(states.values())
    return found


def _waiting_bytes(
    request: ReinforcementRequest, training: PlanReport, same: bool
) -> dict[str, float]:
    """What a rank has in host memory at some time: gradients are freed, not moved."""
    states = _states(training)
    kept = states["weights"] + states["optimizer"]
    waiting = _others_bytes(request, training)
    if "critic" in waiting:
        waiting["critic"] *= kept / sum(states.values())
    if same or "critic" in waiting:
        waiting["policy"] = kept
    elif waiting:  # a reference alone takes the place of the weights
        waiting["policy"] = states["weights"]
    return waiting


def swapped_bytes(request: ReinforcementRequest, training: PlanReport, same: bool) -> float:
    """Policy and critic go to the host and come back; the host keeps its copy of the reference."""
    waiting = _waiting_bytes(request, training, same)
    return sum(size * (1.0 if name == "reference" else 2.0) for name, size in waiting.items())


def resident_training_bytes(request: ReinforcementRequest, training: PlanReport) -> float:
    """Bytes of an accelerator that are taken while engines on the same ranks generate."""
    driver = training.memory.stages[training.memory.worst_stage].parts["driver"]
    if request.reinforcement.offload:
        return driver
    return driver + sum(_others_bytes(request, training).values()) + sum(_states(training).values())


def phases(
    request: ReinforcementRequest, training: PlanReport, engines: Engines, same: bool
) -> Iterator[Phase]:
    """The memory of each phase of a step."""
    spec, (group,) = request.reinforcement, request.request.cluster.groups
    capacity, memory = group.accelerator.memory_bytes, training.memory
    states, weights = _states(training), engines.weight_bytes
    driver = {"driver": memory.stages[memory.worst_stage].parts["driver"]}
    others = {} if spec.offload else _others_bytes(request, training)
    beside = dict(others) if same else {}
    larger = critic_share(request, active=False) - 1.0
    if spec.offload and larger > 0:
        others["critic beyond the policy"] = larger * sum(states.values())
    if same and not spec.offload:
        beside["policy"] = sum(states.values())
    yield _phase("training", {"policy": memory.peak_bytes, **others}, capacity)
    if same:
        # The policy's weights are gathered from where they are trained.
        held = {"policy": states["weights"], "generation weights": weights}
        yield _phase("transfer", {**held, **beside, **driver}, capacity)
    cache = {"cache and engine": max(0.0, engines.utilization * capacity - weights)}
    yield _phase(
        "generation", {"generation weights": weights, **cache, **beside, **driver}, capacity
    )
    waiting = _waiting_bytes(request, training, same) if spec.offload else {}
    if waiting and group.host_memory_bytes is not None:
        parts = {name: size * group.accelerators_per_node for name, size in waiting.items()}
        yield _phase("host", parts, group.host_memory_bytes)


def _phase(name: str, parts: dict[str, float], capacity_bytes: float) -> Phase:
    total = sum(parts.values())
    return Phase.model_validate({
        "name": name, "parts": parts, "total_bytes": total, "capacity_bytes": capacity_bytes,
        "fits": total <= capacity_bytes,
    })  # fmt: skip
