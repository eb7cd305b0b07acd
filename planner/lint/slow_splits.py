"""Slow choices of how the work is split and what overlaps it; each yields its findings."""

from __future__ import annotations

from collections.abc import Iterator

from planner.documents.formats import share
from planner.lint.case import Case, finding
from planner.lint.findings import Finding
from planner.lint.gains import saves, slow, wasteful
from planner.search.axes import divisors

# Share of the iteration from which a bubble is worth a word, whatever would shorten it.
_LARGE_BUBBLE = 0.2


def tp_across_nodes(case: Case) -> Iterator[Finding]:
    """Several collectives per layer on the slow network."""
    plan, domain = case.plan, case.domain
    if plan.tp <= domain or case.own is None:
        return
    text = f"tp {plan.tp} is wider than {_fastest(case)}: every layer waits for the slower one"
    found = case.fastest(_moved(case, "tp", domain))
    if found is not None and found.seconds < case.own.iteration_time_s:
        gain = 1.0 - found.seconds / case.own.iteration_time_s
        text += f"; {saves(found, case.own.iteration_time_s)}"
        yield finding(
            "tp_across_nodes", "warning", text, case.place("tp"), gain=gain, set=found.set
        )
    else:
        yield finding("tp_across_nodes", "warning", text, case.place("tp"))


def _fastest(case: Case) -> str:
    tier = case.request.cluster.groups[0].network[0]
    return f"the {case.domain} accelerators of the fastest network, {tier.name}"


def _moved(case: Case, axis: str, most: int) -> Iterator[dict[str, int]]:
    """The axis at most so wide, and what is left of it in data or pipeline parallelism."""
    width: int = getattr(case.plan, axis)
    for narrow in divisors(width):
        if narrow <= most and narrow < width:
            for other in ("dp", "pp"):
                yield {axis: narrow, other: getattr(case.plan, other) * (width // narrow)}


def cp_across_nodes(case: Case) -> Iterator[Finding]:
    """Keys and values of every layer on the slow network."""
    plan, domain = case.plan, case.domain
    if plan.cp == 1 or plan.tp * plan.cp <= domain:
        return
    text = f"tp {plan.tp} x cp {plan.cp} is wider than {_fastest(case)}"
    changes = _moved(case, "cp", max(1, domain // plan.tp))
    yield from slow(case, "cp_across_nodes", "warning", text, changes, ("cp",))


def ep_across_nodes(case: Case) -> Iterator[Finding]:
    """Tokens of every layer on the slow network."""
    plan, domain = case.plan, case.domain
    if plan.ep == 1 or plan.ep * plan.etp <= domain:
        return
    text = f"ep {plan.ep} x etp {plan.etp} is wider than {_fastest(case)}"
    changes = ({"ep": ep} for ep in divisors(plan.ep) if ep * plan.etp <= domain)
    yield from slow(case, "ep_across_nodes", "warning", text, changes, ("ep",))


def few_micro_batches(case: Case) -> Iterator[Finding]:
    """A pipeline with little to fill it."""
    plan, own = case.plan, case.own
    if own is None or plan.pp == 1 or own.num_micro_batches >= 4 * plan.pp:
        return
    bubble = own.time_parts_s["bubble"] / own.iteration_time_s
    text = (
        f"{own.num_micro_batches} micro-batches for {plan.pp} stages (fewer than four each): "
        f"{share(bubble)} of the iteration is the pipeline's bubble"
    )
    smaller = [{"micro_batch_size": n} for n in divisors(plan.micro_batch_size)[:-1]]
    shorter = [
        {"pp": pp, other: getattr(plan, other) * (plan.pp // pp)}
        for pp in divisors(plan.pp)[:-1]
        for other in ("tp", "dp")
        if other == "dp" or plan.tp * (plan.pp // pp) <= case.domain
    ]
    unlayered = {"first_stage_layers": 0, "last_stage_layers": 0, "stage_layers": ()}
    shorter = [{**change, **(unlayered if _uneven(case) else {})} for change in shorter]
    if plan.vpp > 1:
        shorter += [
            {**change, "vpp": 1, "schedule": "1f1b"} for change in shorter if change["pp"] == 1
        ]
    told = list(slow(case, "few_micro_batches", "warning", text, [*smaller, *shorter], ("pp",)))
    if not told and bubble >= _LARGE_BUBBLE:
        text += "; a larger batch shortens it, or more data and less pipeline parallelism"
        told = [finding("few_micro_batches", "warning", text, case.place("pp"))]
    yield from told


def interleaving_unused(case: Case) -> Iterator[Finding]:
    """Several chunks per stage shorten the bubble."""
    plan, own = case.plan, case.own
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
    yield from slow(case, "interleaving_unused", "hint", text, changes, ("vpp", "pp"))


def _uneven(case: Case) -> bool:
    plan = case.plan
    return bool(plan.first_stage_layers or plan.last_stage_layers or plan.stage_layers)


def uneven_stages(case: Case) -> Iterator[Finding]:
    """A split by hand that an even one beats."""
    if case.own is None or not _uneven(case):
        return
    text = f"stages of {', '.join(map(str, case.own.layers_per_stage))} layers"
    even = {"first_stage_layers": 0, "last_stage_layers": 0, "stage_layers": ()}
    about = ("stage_layers", "first_stage_layers", "last_stage_layers")
    yield from slow(case, "uneven_stages", "warning", text, [even], about, words="an even split")


def gradient_reduce_exposed(case: Case) -> Iterator[Finding]:
    """Gradients that travel while nothing is computed."""
    plan = case.plan
    if plan.overlap_grad_reduce or plan.dp * plan.cp == 1:
        return
    text = "gradients are reduced after the backward pass"
    changes = [{"overlap_grad_reduce": True}]
    yield from slow(
        case, "gradient_reduce_exposed", "warning", text, changes, ("overlap_grad_reduce",),
        same_work=True,
    )  # fmt: skip


def param_gather_exposed(case: Case) -> Iterator[Finding]:
    """Weights that travel while nothing is computed."""
    plan, own = case.plan, case.own
    if own is None or plan.overlap_param_gather or plan.dp * plan.cp == 1 or not plan.zero_stage:
        return
    reduced = {"overlap_grad_reduce": True}  # the frameworks gather early only beside it
    before = case.fastest([reduced])
    if before is not None:
        text = "weights are gathered before the forward pass"
        yield from slow(
            case, "param_gather_exposed", "warning", text, [{"overlap_param_gather": True}],
            ("overlap_param_gather",), reduced, before.seconds, same_work=True,
        )  # fmt: skip


def sequence_parallel_off(case: Case) -> Iterator[Finding]:
    """Norms and dropout kept whole on every rank; a fault whatever it costs."""
    if case.plan.tp > 1 and not case.plan.sequence_parallel:
        text = f"tp {case.plan.tp} keeps norms and dropout whole on every rank"
        yield from wasteful(
            case, "sequence_parallel_off", text, {"sequence_parallel": True},
            ("sequence_parallel", "tp"),
        )  # fmt: skip


def distributed_optimizer_off(case: Case) -> Iterator[Finding]:
    """The optimizer's states, once per replica."""
    replicas = case.plan.dp * case.plan.cp
    if case.plan.zero_stage == 0 and replicas > 1:
        text = f"each of {replicas} replicas holds the whole optimizer state"
        yield from wasteful(
            case, "distributed_optimizer_off", text, {"zero_stage": 1}, ("zero_stage",)
        )
