"""Checks for slow parallel layouts and missing overlap; each yields its findings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.answers.lint.findings import Finding
from planner.answers.lint.gains import saves, slow, wasteful
from planner.answers.lint.linted_launch import LintedLaunch, finding
from planner.documents.formats import share
from planner.search.axes import divisors

# Share of the iteration from which a bubble is reported.
_LARGE_BUBBLE = 0.2


def tp_across_nodes(launch: LintedLaunch) -> Iterator[Finding]:
    """Tensor parallelism whose collectives cross the slow network in every layer."""
    plan, domain = launch.plan, launch.domain
    if plan.tp <= domain or launch.own is None:
        return
    text = f"tp {plan.tp} is wider than {_fastest(launch)}: every layer waits for the slower one"
    found = launch.fastest(_narrower_axis(launch, "tp", domain))
    if found is not None and found.seconds < launch.own.iteration_time_s:
        gain = 1.0 - found.seconds / launch.own.iteration_time_s
        text += f"; {saves(found, launch.own.iteration_time_s)}"
        yield finding(
            "tp_across_nodes", "warning", text, launch.place("tp"), gain=gain, set=found.set
        )
    else:
        yield finding("tp_across_nodes", "warning", text, launch.place("tp"))


def _fastest(launch: LintedLaunch) -> str:
    tier = launch.request.cluster.groups[0].network[0]
    return f"the {launch.domain} accelerators of the fastest network, {tier.name}"


def _narrower_axis(launch: LintedLaunch, axis: str, most: int) -> Iterator[dict[str, int]]:
    """Changes that limit an axis to a width and give the rest to data or pipeline parallelism."""
    width: int = getattr(launch.plan, axis)
    for narrow in divisors(width):
        if narrow <= most and narrow < width:
            for other in ("dp", "pp"):
                yield {axis: narrow, other: getattr(launch.plan, other) * (width // narrow)}


def cp_across_nodes(launch: LintedLaunch) -> Iterator[Finding]:
    """Context parallelism whose keys and values cross the slow network in every layer."""
    plan, domain = launch.plan, launch.domain
    if plan.cp == 1 or plan.tp * plan.cp <= domain:
        return
    text = f"tp {plan.tp} x cp {plan.cp} is wider than {_fastest(launch)}"
    changes = _narrower_axis(launch, "cp", max(1, domain // plan.tp))
    yield from slow(launch, "cp_across_nodes", "warning", text, changes, ("cp",))


def ep_across_nodes(launch: LintedLaunch) -> Iterator[Finding]:
    """Expert parallelism whose tokens cross the slow network in every layer."""
    plan, domain = launch.plan, launch.domain
    if plan.ep == 1 or plan.ep * plan.etp <= domain:
        return
    text = f"ep {plan.ep} x etp {plan.etp} is wider than {_fastest(launch)}"
    changes = ({"ep": ep} for ep in divisors(plan.ep) if ep * plan.etp <= domain)
    yield from slow(launch, "ep_across_nodes", "warning", text, changes, ("ep",))


def _shorter_pipelines(launch: LintedLaunch) -> list[dict[str, Any]]:
    """The plan with fewer stages and more ranks of tp or dp instead."""
    plan = launch.plan
    even = {"first_stage_layers": 0, "last_stage_layers": 0, "stage_layers": ()}
    shorter = [
        {"pp": pp, other: getattr(plan, other) * (plan.pp // pp)}
        | (even if _uneven(launch) else {})
        for pp in divisors(plan.pp)[:-1]
        for other in ("tp", "dp")
        if other == "dp" or plan.tp * (plan.pp // pp) <= launch.domain
    ]
    if plan.vpp == 1:
        return shorter
    whole = [change for change in shorter if change["pp"] == 1]
    return shorter + [{**change, "vpp": 1, "schedule": "1f1b"} for change in whole]


def few_micro_batches(launch: LintedLaunch) -> Iterator[Finding]:
    """A pipeline with too few micro-batches."""
    plan, own = launch.plan, launch.own
    if own is None or plan.pp == 1 or own.num_micro_batches >= 4 * plan.pp:
        return
    bubble = own.time_parts_s["bubble"] / own.iteration_time_s
    text = (
        f"{own.num_micro_batches} micro-batches for {plan.pp} stages (fewer than four each): "
        f"{share(bubble)} of the iteration is the pipeline's bubble"
    )
    smaller = [{"micro_batch_size": n} for n in divisors(plan.micro_batch_size)[:-1]]
    changes = [*smaller, *_shorter_pipelines(launch)]
    told = list(slow(launch, "few_micro_batches", "warning", text, changes, ("pp",)))
    if not told and bubble >= _LARGE_BUBBLE:
        text += "; a larger batch shortens it, or more data and less pipeline parallelism"
        told = [finding("few_micro_batches", "warning", text, launch.place("pp"))]
    yield from told


def interleaving_unused(launch: LintedLaunch) -> Iterator[Finding]:
    """A pipeline whose bubble several chunks per stage would shorten."""
    plan, own = launch.plan, launch.own
    if own is None or plan.pp == 1 or plan.vpp > 1:
        return
    bubble, messages = (
        share(own.time_parts_s[part] / own.iteration_time_s) for part in ("bubble", "pp_comm")
    )
    text = (
        f"one chunk of layers per stage: {bubble} of the iteration is bubble, {messages} messages"
    )
    changes = (
        {"vpp": vpp, "schedule": "interleaved-1f1b"}
        for vpp in range(2, max(own.layers_per_stage) + 1)
    )
    yield from slow(launch, "interleaving_unused", "hint", text, changes, ("vpp", "pp"))


def _uneven(launch: LintedLaunch) -> bool:
    plan = launch.plan
    return bool(plan.first_stage_layers or plan.last_stage_layers or plan.stage_layers)


def uneven_stages(launch: LintedLaunch) -> Iterator[Finding]:
    """A manual split of the layers that is slower than an even one."""
    if launch.own is None or not _uneven(launch):
        return
    text = f"stages of {', '.join(map(str, launch.own.layers_per_stage))} layers"
    even = {"first_stage_layers": 0, "last_stage_layers": 0, "stage_layers": ()}
    about = ("stage_layers", "first_stage_layers", "last_stage_layers")
    yield from slow(launch, "uneven_stages", "warning", text, [even], about, words="an even split")


def gradient_reduce_exposed(launch: LintedLaunch) -> Iterator[Finding]:
    """Gradients that are reduced after the backward pass, not under it."""
    plan = launch.plan
    if plan.overlap_grad_reduce or plan.dp * plan.cp == 1:
        return
    text = "gradients are reduced after the backward pass"
    changes = [{"overlap_grad_reduce": True}]
    yield from slow(
        launch, "gradient_reduce_exposed", "warning", text, changes, ("overlap_grad_reduce",),
        same_work=True,
    )  # fmt: skip


def param_gather_exposed(launch: LintedLaunch) -> Iterator[Finding]:
    """Weights that are gathered before the forward pass, not under it."""
    plan, own = launch.plan, launch.own
    if own is None or plan.overlap_param_gather or plan.dp * plan.cp == 1 or not plan.zero_stage:
        return
    reduced = {"overlap_grad_reduce": True}  # the frameworks gather early only beside it
    before = launch.fastest([reduced])
    if before is not None:
        text = "weights are gathered before the forward pass"
        yield from slow(
            launch, "param_gather_exposed", "warning", text, [{"overlap_param_gather": True}],
            ("overlap_param_gather",), reduced, before.seconds, same_work=True,
        )  # fmt: skip


def sequence_parallel_off(launch: LintedLaunch) -> Iterator[Finding]:
    """Norms and dropout on all tokens of every tensor-parallel rank; a fault at any cost."""
    if launch.plan.tp > 1 and not launch.plan.sequence_parallel:
        text = f"tp {launch.plan.tp} keeps norms and dropout whole on every rank"
        yield from wasteful(
            launch, "sequence_parallel_off", text, {"sequence_parallel": True},
            ("sequence_parallel", "tp"),
        )  # fmt: skip


def distributed_optimizer_off(launch: LintedLaunch) -> Iterator[Finding]:
    """Optimizer states that every replica holds in full."""
    replicas = launch.plan.dp * launch.plan.cp
    if launch.plan.zero_stage == 0 and replicas > 1:
        text = f"each of {replicas} replicas holds the whole optimizer state"
        yield from wasteful(
            launch, "distributed_optimizer_off", text, {"zero_stage": 1}, ("zero_stage",)
        )
