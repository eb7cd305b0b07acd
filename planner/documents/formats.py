"""Numbers as a person reads them.  Only the rim formats: inside, all is bytes and seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cost_models.plans import ParallelPlan
from cost_models.units import GIB
from planner.documents.answer import REASONS
from planner.documents.plan_report import Memory

_MAX_KINDS = 6  # limit on the kinds that one line names


def short(value: float) -> str:
    """A count with three digits: 70.6 B, 116 k."""
    for scale, suffix in ((1e15, " Q"), (1e12, " T"), (1e9, " B"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= scale:
            divisor = 1e3 if suffix == " k" else scale
            return f"{value / divisor:.3g}{suffix}"
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.3g}"


def seconds(value: float) -> str:
    """A duration with three digits: 72.3 s, 812 ms, 45 us."""
    if value == 0:
        return "0 s"
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if abs(value) >= scale:
            return f"{_three_digits(value / scale)} {unit}"
    return f"{_three_digits(value / 1e-6)} us"


def gib(value: float) -> str:
    """Bytes in GiB, one decimal."""
    return f"{value / GIB:.1f}"


# Plans whose times differ by less than this share, which `share` rounds to 0.0 %, are equally fast.
TIE = 5e-4


def share(value: float) -> str:
    """A share as a percentage."""
    return f"{100 * value:.1f} %"


def gap(value: float) -> str:
    """A difference as a percentage with the two digits that an estimate has."""
    percent = 100 * value
    return f"{percent:#.2g}".rstrip(".") + " %" if percent < 99.5 else f"{percent:,.0f} %"


def chance(value: float) -> str:
    """A chance in whole per cent; what is possible is not 0 %, and no estimate is 100 %."""
    if 0.0 < value < 0.01:
        return "< 1 %"
    return "> 99 %" if value > 0.99 else f"{100 * value:.0f} %"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: 2, 3 and 4."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def days(value: float) -> str:
    """Days, or hours where it is less than one."""
    return f"{_three_digits(value)} days" if value >= 1 else f"{_three_digits(value * 24)} hours"


def dollars(value: float) -> str:
    """An amount of money."""
    return f"${short(value).replace(' ', '')}"


def energy(kwh: float) -> str:
    """An amount of energy, given in kWh."""
    for scale, unit in ((1e6, "GWh"), (1e3, "MWh")):
        if kwh >= scale:
            return f"{_three_digits(kwh / scale)} {unit}"
    return f"{_three_digits(kwh)} kWh"


def kinds_words(layers: Mapping[str, int]) -> str:
    """Layers of each kind: 6 mamba2, 1 full attention."""
    parts = [f"{count} {kind}" for kind, count in layers.items()]
    rest = tuple(layers.values())[_MAX_KINDS:]
    more = [f"{sum(rest)} of {len(rest)} more kinds"] if rest else []
    return ", ".join((*parts[:_MAX_KINDS], *more)) or "no layers"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if magnitude >= 10 else f"{value:.2f}"


def usual_schedule(plan: Mapping[str, Any]) -> bool:
    """Whether the schedule goes without saying."""
    return plan["pp"] == 1 or plan["schedule"] in ("1f1b", "interleaved-1f1b")


def plan_words(plan: Mapping[str, Any], *, schedule: bool = True) -> list[str]:
    """A plan in words, what splits the work first; what is at 1 or off goes unsaid.

    schedule: whether an unusual one is named.
    """
    parts = [f"tp {plan['tp']}" + (" +sp" if plan["sequence_parallel"] else "")]
    if plan["cp"] > 1:
        parts.append(f"cp {plan['cp']} ({plan['cp_kind']})")
    parts.append(f"pp {plan['pp']}")
    if plan["vpp"] > 1:
        parts.append(f"vpp {plan['vpp']}")
    if schedule and not usual_schedule(plan):
        parts.append(str(plan["schedule"]))
    parts.append(f"dp {plan['dp']}")
    if plan["dp_shard"]:
        parts.append(f"shard {plan['dp_shard']}")
    if plan["ep"] > 1:
        parts.append(f"ep {plan['ep']}")
    if plan["etp"] > 1:
        parts.append(f"etp {plan['etp']}")
    parts += [f"zero {plan['zero_stage']}", f"mbs {plan['micro_batch_size']}"]
    return parts


def recompute_words(plan: Mapping[str, Any]) -> str:
    """What a plan computes again in backward."""
    if plan["recompute"] == "full":
        if each := plan.get("recompute_layers"):
            return f"full, by stage {','.join(map(str, each))}"
        return f"full, {plan['recompute_method']} {plan['recompute_num_layers']}"
    return "+".join(plan["recompute_modules"]) or "none"


def memory_words(plan: Mapping[str, Any]) -> list[str]:
    """What a plan trades time for memory with."""
    parts = [f"recompute {recompute_words(plan)}"]
    if plan["offload_optimizer"]:
        parts.append("offload optimizer")
    if plan["offload_activations"]:
        layers = plan.get("offload_num_layers")
        parts.append(f"offload activations of {layers} layers" if layers else "offload activations")
    return parts


def whole_plan_words(plan: ParallelPlan | Mapping[str, Any]) -> list[str]:
    """How a plan splits the work, and what it trades time for memory with."""
    fields = plan if isinstance(plan, Mapping) else plan.model_dump()
    return [*plan_words(fields), *memory_words(fields)]


def or_dash(value: float | None, format_value: Callable[[float], str]) -> str:
    """A value in these words, or that there is none."""
    return "-" if value is None else format_value(value)


def signed_share(value: float) -> str:
    """A share as a percentage with its sign."""
    return f"{100 * value:+.1f} %"


def tflop_per_s(value: float) -> str:
    """A rate of one accelerator, in TFLOP/s."""
    rate = value / 1e12
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def reason_words(code: str) -> str:
    """A reason code in words."""
    return REASONS[code].short if code in REASONS else code.replace("_", " ")


def value_words(value: Any) -> str:
    """A value of a plan field, as one would type it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def size(value: float) -> str:
    """An amount of memory: GiB, or MiB where it is little."""
    return f"{gib(value)} GiB" if abs(value) >= GIB / 10 else f"{value / 2**20:.1f} MiB"


def overflow(memory: Memory) -> str:
    """A sentence on how much the worst stage needs more than it has."""
    over = memory.peak_bytes - memory.capacity_bytes
    return (
        f"stage {memory.worst_stage} needs {gib(memory.peak_bytes)} GiB, the accelerator has "
        f"{gib(memory.capacity_bytes)} GiB: {size(over)} over"
    )


def amount(value: float) -> str:
    """Bytes on a link, in powers of ten as rates of links are: 2.26 GB."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= scale:
            return f"{_three_digits(value / scale)} {unit}"
    return f"{value:,.0f} B"
