"""One function per thing that can be wrong with a launch script; each yields its findings.

What a slow choice costs is never a constant: the plan is priced again with that one thing
changed, and the finding is kept where that saves MINIMUM_GAIN of the iteration, or where the
choice is a fault whatever it costs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cost_models.parameters import padded_vocab_size
from cost_models.plans import Plans, RecomputeModule
from planner.documents.formats import chance, gib, seconds, share, size
from planner.frameworks.megatron.flags import VOCAB_MULTIPLE
from planner.frameworks.reading import Setting
from planner.lint.case import MINIMUM_GAIN, Case, Neighbour, Place
from planner.lint.findings import Finding, Severity
from planner.lint.flags import ENVIRONMENT, launched
from planner.lint.knowledge import IGNORED, needs_variable
from planner.lint.variables import refused, stale, variables
from planner.search.axes import divisors
from planner.search.exhaustive import cost_model
from planner.search.memory_reasons import memory_reason
from planner.uncertainty.error_band import SURE

Check = Callable[[Case], Iterator[Finding]]

# Share of the accelerator's memory that is worth a word where no time is saved.
MINIMUM_SAVED = 0.02
# Micro-batches whose gradients may be added up in 16 bits without a word.
FEW_SUMS = 8
_COUNT = re.compile(r"[1-9][0-9]{0,6}", re.ASCII)
_MOST_STAGES = 8  # that a sentence lists
_MOST_NAMES = 12  # likewise
# Share of the iteration from which a bubble is worth a word, whatever would shorten it.
_LARGE_BUBBLE = 0.2
_BATCH = ("--global-batch-size", "global_batch_size", "train_batch_size", "micro_batch_size")
# Which options a reason is about, where that is not the first field that mends it.
_ABOUT: dict[str, tuple[str, ...]] = {
    "batch_identity": _BATCH,
    "schedule_micro_batches": ("vpp", *_BATCH),
    "vpp_layout": ("vpp",),
    "layers_not_divisible": ("pp",),
    "sequence_parallel": ("sequence_parallel", "tp"),
    "zero_stage": ("zero_stage",),
    "fp8_shape": ("--fp8-format", "fp8", "tp"),
}
# What to turn where a part of the memory is the largest.
_FILLS: dict[str, tuple[str, ...]] = {
    "weights": ("tp", "pp"),
    "gradients": ("tp", "pp"),
    "optimizer": ("tp", "pp", "zero_stage"),
    "activations": ("micro_batch_size", "recompute"),
    "logits": ("micro_batch_size",),
    "working": ("micro_batch_size",),
    "communication": ("overlap_param_gather", "tp"),
}


def _finding(code: str, severity: Severity, text: str, place: Place, /, **more: Any) -> Finding:
    return Finding(
        code=code, severity=severity, text=text, file=place.file, line=place.line,
        option=place.option, **more,
    )  # fmt: skip


def _at(said: Setting) -> Place:
    return Place(said.file, said.line, said.name)


# What the framework refuses.


def refusals(case: Case) -> Iterator[Finding]:
    """What the reader found that no plan can hold, unknown options among it."""
    unknown = set(case.reading.unknown)
    for refusal in case.reading.refusals:
        said = refusal.setting
        code = "unknown_option" if said in unknown else refusal.reason.code
        yield _finding(code, "error", refusal.reason.text, _at(said) if said else Place(case.main))


def excused_rules(case: Case) -> Iterator[Finding]:
    """What no plan can hold for the framework, though a script may well ask for it."""
    for _, reason in case.excused:
        text = f"no plan says this for {case.framework.title}: {reason.text}"
        yield _finding("not_expressible", "warning", text, Place(case.main))


def precision(case: Case) -> Iterator[Finding]:
    """A number format that the accelerator has no matrix units for."""
    for problem in case.contradictions:
        if problem.pointer == "/training/precision":
            about = ("--fp4-format", "--fp8-format", "--fp16", "fp16.enabled", "--bf16")
            yield _finding("precision_unsupported", "error", problem.detail, case.place(*about))


def unknown_keys(case: Case) -> Iterator[Finding]:
    """Names that are not the framework's and no slips of the pen: one finding for all of them."""
    stops = {refusal.setting for refusal in case.reading.refusals}
    left = [said for said in case.reading.unknown if said not in stops]
    for options in (True, False):
        found = [said for said in left if said.name.startswith("--") == options]
        if not found:
            continue
        names = list(dict.fromkeys(said.name for said in found))
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        shown = ", ".join(names[:_MOST_NAMES]) + more
        code = "unknown_option" if options else "unknown_key"
        what = (
            f"unknown to {case.framework.title} upstream, which stops at them; a fork's own?"
            if options
            else f"{case.framework.title} reads none of them and goes on without"
        )
        yield _finding(code, "warning", f"{shown}: {what}", _at(found[0]))


def broken_rules(case: Case) -> Iterator[Finding]:
    """Rules of the framework, and of every runtime, that the plan breaks."""
    for rule, reason in case.broken:
        place = case.place(*_ABOUT[reason.code]) if reason.code in _ABOUT else case.culprit(rule)
        if reason.code == "world_size" and not place.line:
            place = case.place("dp_shard", "dp")
        yield _finding(reason.code, "error", reason.text, place)


def ignored_options(case: Case) -> Iterator[Finding]:
    """Options without effect, since another one is missing."""
    for row in IGNORED.get(case.framework.name, ()):
        said = case.reading.find(row.option)
        if said is None:
            continue
        if row.needs and not any(map(case.reading.find, row.needs)):
            text = f"without {row.needs[0]} it is not read: {row.why}"
            yield _finding("ignored_option", "warning", text, _at(said))
        spoiling = case.reading.find(row.spoiled[0])
        if spoiling is not None and spoiling.value == row.spoiled[1]:
            text = f"beside {' '.join(row.spoiled)} it is not read: {row.why}"
            yield _finding("ignored_option", "warning", text, _at(said))


def environment(case: Case) -> Iterator[Finding]:
    """Variables that the framework demands of its surroundings, where the reader misses them."""
    if not (case.reading.written and needs_variable(case.request.cluster)):
        return
    for wanted in launched(case.framework, case.request, case.plan).values():
        missed = any(wanted.name in text for text in case.reading.assumed)
        if wanted.group != ENVIRONMENT or not missed:
            continue
        (value,) = wanted.words[1:]
        said = next((one for one in variables(case.files) if one.name == wanted.name), None)
        place = case.place("tp", "cp")
        have = f"is {said.value}" if said else "is not set by the script"
        yield _finding(
            "environment",
            "error",
            f"{case.framework.title} demands {value}, and it {have}: {wanted.why}",
            Place(said.file, said.line, said.name)
            if said
            else Place(place.file, place.line, wanted.name),
        )


def surroundings(case: Case) -> Iterator[Finding]:
    """Variables that the launch sets and should not."""
    core = case.framework.runtime == "megatron" and case.framework.name != "mindspeed"
    for said in variables(case.files):
        place = Place(said.file, said.line, said.name)
        if why := refused(said, case.reading, core):
            yield _finding("environment", "error", why, place)
        elif row := stale(said):
            text = f"{said.name}={said.value}: {row.why}"
            yield _finding("stale_variable", row.severity, text, place)


# What runs out of memory.


def memory(case: Case) -> Iterator[Finding]:
    """Which stages overflow, by how much, and what fills them.

    An error only where published peaks leave no doubt; else a warning with its chance.
    """
    own = case.own
    if own is None or own.fits:
        return
    stages, capacity = own.memory.stages, own.memory.capacity_bytes
    worst = stages[own.memory.worst_stage]
    text = memory_reason(own).text
    if len(stages) > 1:
        over = [(s.stage, s.total_bytes - capacity) for s in stages if s.total_bytes > capacity]
        listed = ", ".join(f"{stage} by {gib(by)}" for stage, by in over[:_MOST_STAGES])
        text += (
            f"; it is fullest with {worst.in_flight:g} micro-batches in flight; "
            f"{len(over)} of {len(stages)} stages overflow: {listed} GiB"
            + (", ..." if len(over) > _MOST_STAGES else "")
        )
    largest = max(
        (part for part in _FILLS if part in worst.parts), key=lambda part: worst.parts[part]
    )
    place = case.place(*_FILLS[largest])
    if own.memory.chance_of_running_out >= SURE:
        yield _finding("memory", "error", text, place)
    else:
        odds = f"a chance of {chance(own.memory.chance_of_running_out)} to run out of memory"
        yield _finding("memory_risk", "warning", f"{odds}: {text}", place)


# What is slow.


def _slow(
    case: Case,
    code: str,
    severity: Severity,
    text: str,
    changes: Iterable[Mapping[str, Any]],
    about: tuple[str, ...],
    base: Mapping[str, Any] | None = None,
    before_s: float | None = None,
    words: str = "",
    same_work: bool = False,
) -> Iterator[Finding]:
    """The finding, where the fastest of some changes saves enough time, and likely does.

    base: what all of the changes go with, and what an iteration takes with that alone.
    words: for the change, where its fields do not speak for themselves.
    same_work: the change only hides or leaves out work, so that no doubt of the model matters.
    """
    own = case.own
    found = case.fastest(changes, base) if own is not None else None
    if own is None or found is None:
        return
    before = own.iteration_time_s if before_s is None else before_s
    gain = 1.0 - found.seconds / before
    if gain >= MINIMUM_GAIN and (same_work or case.likely_faster(found)):
        text = f"{text}: {_saves(found, before, words)}"
        yield _finding(code, severity, text, case.place(*about), gain=gain, set=found.set)


def _saves(found: Neighbour, before: float, words: str = "") -> str:
    usual = {"recompute_num_layers": 0, "schedule": "interleaved-1f1b", "recompute_method": "block"}
    words = words or ", ".join(
        f"{name} {_word(value)}"
        for name, value in found.set.items()
        if value not in ((), usual.get(name))
    )
    return (
        f"with {words}, an iteration takes {seconds(found.seconds)} and not {seconds(before)}, "
        f"{share(1.0 - found.seconds / before)} less"
    )


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


def tp_across_nodes(case: Case) -> Iterator[Finding]:
    """Several collectives per layer on the slow network."""
    plan, domain = case.plan, case.domain
    if plan.tp <= domain or case.own is None:
        return
    text = f"tp {plan.tp} is wider than {_fastest(case)}: every layer waits for the slower one"
    found = case.fastest(_moved(case, "tp", domain))
    if found is not None and found.seconds < case.own.iteration_time_s:
        gain = 1.0 - found.seconds / case.own.iteration_time_s
        text += f"; {_saves(found, case.own.iteration_time_s)}"
        yield _finding(
            "tp_across_nodes", "warning", text, case.place("tp"), gain=gain, set=found.set
        )
    else:
        yield _finding("tp_across_nodes", "warning", text, case.place("tp"))


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
    yield from _slow(case, "cp_across_nodes", "warning", text, changes, ("cp",))


def ep_across_nodes(case: Case) -> Iterator[Finding]:
    """Tokens of every layer on the slow network."""
    plan, domain = case.plan, case.domain
    if plan.ep == 1 or plan.ep * plan.etp <= domain:
        return
    text = f"ep {plan.ep} x etp {plan.etp} is wider than {_fastest(case)}"
    changes = ({"ep": ep} for ep in divisors(plan.ep) if ep * plan.etp <= domain)
    yield from _slow(case, "ep_across_nodes", "warning", text, changes, ("ep",))


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
    told = list(_slow(case, "few_micro_batches", "warning", text, [*smaller, *shorter], ("pp",)))
    if not told and bubble >= _LARGE_BUBBLE:
        text += "; a larger batch shortens it, or more data and less pipeline parallelism"
        told = [_finding("few_micro_batches", "warning", text, case.place("pp"))]
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
    yield from _slow(case, "interleaving_unused", "hint", text, changes, ("vpp", "pp"))


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
    yield from _slow(case, "uneven_stages", "warning", text, [even], about, words="an even split")


def gradient_reduce_exposed(case: Case) -> Iterator[Finding]:
    """Gradients that travel while nothing is computed."""
    plan = case.plan
    if plan.overlap_grad_reduce or plan.dp * plan.cp == 1:
        return
    text = "gradients are reduced after the backward pass"
    changes = [{"overlap_grad_reduce": True}]
    yield from _slow(
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
        yield from _slow(
            case, "param_gather_exposed", "warning", text, [{"overlap_param_gather": True}],
            ("overlap_param_gather",), reduced, before.seconds, same_work=True,
        )  # fmt: skip


def sequence_parallel_off(case: Case) -> Iterator[Finding]:
    """Norms and dropout kept whole on every rank; a fault whatever it costs."""
    if case.plan.tp > 1 and not case.plan.sequence_parallel:
        text = f"tp {case.plan.tp} keeps norms and dropout whole on every rank"
        yield from _wasteful(
            case, "sequence_parallel_off", text, {"sequence_parallel": True},
            ("sequence_parallel", "tp"),
        )  # fmt: skip


def distributed_optimizer_off(case: Case) -> Iterator[Finding]:
    """The optimizer's states, once per replica."""
    replicas = case.plan.dp * case.plan.cp
    if case.plan.zero_stage == 0 and replicas > 1:
        text = f"each of {replicas} replicas holds the whole optimizer state"
        yield from _wasteful(
            case, "distributed_optimizer_off", text, {"zero_stage": 1}, ("zero_stage",)
        )


def _wasteful(
    case: Case, code: str, text: str, change: dict[str, Any], about: tuple[str, ...]
) -> Iterator[Finding]:
    """The finding, where a change saves memory or time worth a word."""
    own = case.own
    found = case.fastest([change], fitting=False) if own is not None else None
    if own is None or found is None:
        return
    saved = own.memory.peak_bytes - found.peak_bytes
    gain = 1.0 - found.seconds / own.iteration_time_s
    if saved >= MINIMUM_SAVED * case.capacity_bytes or gain >= MINIMUM_GAIN:
        worst = f"{size(saved)} more than needed on the fullest stage" if saved > 0 else ""
        faster = _saves(found, own.iteration_time_s) if gain >= MINIMUM_GAIN else ""
        yield _finding(
            code, "warning", f"{text}: {'; '.join(filter(None, (worst, faster)))}",
            case.place(*about), gain=max(gain, 0.0), set=change,
        )  # fmt: skip


_NO_RECOMPUTE: dict[str, Any] = {
    "recompute": "none", "recompute_modules": (), "recompute_num_layers": 0,
    "recompute_layers": (),
}  # fmt: skip
_MODULES: tuple[tuple[RecomputeModule, ...], ...] = (
    ("core_attn",),
    ("layernorm",),
    ("layernorm", "moe_act"),
    ("layernorm", "mla_up_proj"),
    ("layernorm", "moe_act", "mla_up_proj"),
    ("layernorm", "mlp"),
    ("core_attn", "layernorm", "mlp"),
    ("layernorm", "mlp", "moe_act"),
    ("layernorm", "moe"),
)


def recompute_needless(case: Case) -> Iterator[Finding]:
    """Work done twice to save memory that nobody needs."""
    if case.plan.recompute != "none":
        text = f"{case.plan.recompute} recompute, and everything fits without"
        yield from _slow(
            case, "recompute_needless", "warning", text, [_NO_RECOMPUTE], ("recompute",)
        )


def recompute_full(case: Case) -> Iterator[Finding]:
    """More work done twice than the memory asks for."""
    plan = case.plan
    if plan.recompute != "full" or case.fastest([_NO_RECOMPUTE]) is not None:
        return
    fewer = [
        {"recompute_method": "block", "recompute_num_layers": n, "recompute_layers": ()}
        for n in range(
            1,
            plan.recompute_num_layers
            if plan.recompute_method == "block"
            else -(-case.model.num_layers // (plan.pp * plan.vpp)),
        )
    ]
    lighter = [
        _NO_RECOMPUTE | {"recompute": "selective", "recompute_modules": modules}
        for modules in _MODULES
    ]
    text = "every layer is computed again, and less of it fits"
    yield from _slow(case, "recompute_full", "warning", text, [*lighter, *fewer], ("recompute",))


def offload_needless(case: Case) -> Iterator[Finding]:
    """Transfers to the host to save memory that nobody needs."""
    for field, off in (
        ("offload_optimizer", {"offload_optimizer": False}),
        ("offload_activations", {"offload_activations": False, "offload_num_layers": 0}),
    ):
        if getattr(case.plan, field):
            text = f"{field.replace('_', ' ')}, and everything fits without"
            yield from _slow(case, "offload_needless", "warning", text, [off], (field,))


def micro_batch_small(case: Case) -> Iterator[Finding]:
    """Kernels that are larger than they have to be run faster."""
    size_ = case.plan.micro_batch_size
    text = f"micro-batches of {size_}"
    changes = [{"micro_batch_size": size_ * factor} for factor in (2, 4, 8)]
    yield from _slow(case, "micro_batch_small", "hint", text, changes, ("micro_batch_size",))


def attention_unfused(case: Case) -> Iterator[Finding]:
    """Scores of all pairs of tokens, written out and read again."""
    if case.plan.attention_kernel == "unfused":
        text = "attention writes the scores of all pairs of tokens to memory"
        changes = [{"attention_kernel": "flash"}]
        about = ("attention_kernel", "--transformer-impl")
        yield from _slow(case, "attention_unfused", "warning", text, changes, about, same_work=True)


def loss_unfused(case: Case) -> Iterator[Finding]:
    """A loss of many small kernels over fp32 logits."""
    if case.plan.cross_entropy == "unfused":
        text = "the loss runs kernel by kernel over fp32 logits"
        changes = [{"cross_entropy": "fused"}]
        about = ("cross_entropy",)
        yield from _slow(case, "loss_unfused", "hint", text, changes, about, same_work=True)


def vocabulary_padding(case: Case) -> Iterator[Finding]:
    """Rows that no token has; what they cost is what as many more tokens would."""
    option = "--make-vocab-size-divisible-by"
    said = case.reading.find(option)
    if case.own is None or said is None or not _COUNT.fullmatch(str(said.value)):
        return
    vocab, step = case.model.vocab_size, VOCAB_MULTIPLE * case.plan.tp
    rows = int(padded_vocab_size(vocab, case.plan.tp, int(str(said.value))))
    usual = int(padded_vocab_size(vocab, case.plan.tp, VOCAB_MULTIPLE))
    larger = case.model.model_copy(update={"vocab_size": vocab + step})
    other = cost_model(case.request.model_copy(update={"model": larger}))
    seconds_each = other.evaluate(Plans.from_rows([case.plan])).iteration_time_s[0]
    more = (rows - usual) / step * (float(seconds_each) / case.own.iteration_time_s - 1.0)
    gain = more / (1.0 + more)
    if gain >= MINIMUM_GAIN:
        text = (
            f"{rows} rows for {vocab} tokens, {usual} would do: the rest takes {share(gain)} of "
            "the iteration"
        )
        yield _finding("vocabulary_padding", "hint", text, _at(said), gain=gain)


# Checks without a plan to compare with.


def narrow_accumulation(case: Case) -> Iterator[Finding]:
    """Small addends vanish in a 16-bit sum."""
    dtype = case.training.gradient_dtype
    if case.own is not None and dtype != "fp32" and case.own.num_micro_batches >= FEW_SUMS:
        text = (
            f"gradients of {case.own.num_micro_batches} micro-batches are added up in {dtype}: "
            "what is small beside the sum is lost"
        )
        about = ("--grad-reduce-in-bf16", "data_types.grad_accum_dtype", "bf16.enabled", "--bf16")
        yield _finding("narrow_accumulation", "hint", text, case.place(*about))


CHECKS: tuple[Check, ...] = (
    refusals,
    broken_rules,
    excused_rules,
    precision,
    unknown_keys,
    ignored_options,
    environment,
    surroundings,
    memory,
    tp_across_nodes,
    cp_across_nodes,
    ep_across_nodes,
    few_micro_batches,
    interleaving_unused,
    uneven_stages,
    gradient_reduce_exposed,
    param_gather_exposed,
    sequence_parallel_off,
    distributed_optimizer_off,
    recompute_needless,
    recompute_full,
    offload_needless,
    micro_batch_small,
    attention_unfused,
    loss_unfused,
    vocabulary_padding,
    narrow_accumulation,
)
