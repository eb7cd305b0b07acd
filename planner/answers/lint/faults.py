"""Faults of a launch: options that the framework refuses, ignores or misreads, and memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from cost_models.runtimes import RUNTIMES
from planner.answers.lint.changed_options import ENVIRONMENT, launched
from planner.answers.lint.findings import Finding
from planner.answers.lint.linted_launch import LintedLaunch, Place, at, finding
from planner.answers.lint.option_facts import IGNORED
from planner.answers.lint.variables import refused, stale, variables
from planner.documents.answer import Reason
from planner.documents.formats import chance, gib
from planner.evidence.uncertainty.error_band import SURE
from planner.frameworks.read_results import UNSHARDED
from planner.search.memory_reasons import memory_reason

# Up to this many micro-batches, gradients accumulated in 16 bits are not reported.
FEW_SUMS = 8
_MOST_STAGES = 8  # that a sentence lists
_MOST_NAMES = 12  # likewise
_BATCH = ("--global-batch-size", "global_batch_size", "train_batch_size", "micro_batch_size")
# Names that trainers on transformers have for it.
_ATTENTION = ("flash_attention", "flash_attn", "attn_implementation", "use_flash_attention_2",
              "use_flash_attn")  # fmt: skip
# The options that a reason is about, if those are not the field whose default would keep the rule.
_ABOUT: dict[str, tuple[str, ...]] = {
    "batch_identity": _BATCH,
    "schedule_micro_batches": ("vpp", *_BATCH),
    "vpp_layout": ("vpp",),
    "layers_not_divisible": ("pp",),
    "sequence_parallel": ("sequence_parallel", "tp"),
    "zero_stage": ("zero_stage",),
    "attention_kernel": ("attention_kernel", *_ATTENTION),
    "gradient_scaling": ("--fp16", "fp16", "dtype"),
    "fp8_shape": ("--fp8-format", "fp8", "tp"),
}
# The fields to change if a part of the memory is the largest.
_FILLS: dict[str, tuple[str, ...]] = {
    "weights": ("tp", "pp"),
    "gradients": ("tp", "pp"),
    "optimizer": ("tp", "pp", "zero_stage"),
    "activations": ("micro_batch_size", "recompute"),
    "logits": ("micro_batch_size",),
    "working": ("micro_batch_size",),
    "communication": ("overlap_param_gather", "tp"),
}

# Where torch's allocator grows its segments instead of adding further ones of a fixed size.
_GROWING = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def refusals(launch: LintedLaunch) -> Iterator[Finding]:
    """Refusals of the reader: settings that no plan can express, and unknown options."""
    unknown = set(launch.reading.unknown)
    for refusal in launch.reading.refusals:
        said = refusal.setting
        code = "unknown_option" if said in unknown else refusal.reason.code
        yield finding(code, "error", refusal.reason.text, at(said) if said else Place(launch.main))


def excused_rules(launch: LintedLaunch) -> Iterator[Finding]:
    """Settings that no plan of this framework can express, although the script is valid."""
    for _, reason in launch.excused:
        text = f"no plan field expresses this for {launch.framework.title}: {reason.text}"
        yield finding("not_expressible", "warning", text, Place(launch.main))


def precision(launch: LintedLaunch) -> Iterator[Finding]:
    """A number format that the accelerator has no matrix units for."""
    for problem in launch.contradictions:
        if problem.pointer == "/training/precision":
            about = ("--fp4-format", "--fp8-format", "--fp16", "fp16.enabled", "--bf16")
            yield finding("precision_unsupported", "error", problem.detail, launch.place(*about))


def unknown_keys(launch: LintedLaunch) -> Iterator[Finding]:
    """Unknown names without a near known one: a single finding for all of them."""
    stops = {refusal.setting for refusal in launch.reading.refusals}
    left = [said for said in launch.reading.unknown if said not in stops]
    for options in (True, False):
        found = [said for said in left if said.name.startswith("--") == options]
        if not found:
            continue
        names = list(dict.fromkeys(said.name for said in found))
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        shown = ", ".join(names[:_MOST_NAMES]) + more
        code = "unknown_option" if options else "unknown_key"
        what = (
            f"unknown to {launch.framework.title} upstream, which rejects them; options of a fork?"
            if options
            else f"{launch.framework.title} ignores them silently"
        )
        yield finding(code, "warning", f"{shown}: {what}", at(found[0]))


def broken_rules(launch: LintedLaunch) -> Iterator[Finding]:
    """Rules of the framework, and of every runtime, that the plan breaks.

    What the reader has refused for the same option and cause stands among its refusals.
    """
    told = {(one.reason.code, one.setting and one.setting.name) for one in launch.reading.refusals}
    for rule, reason in launch.broken:
        place = (
            launch.place(*_ABOUT[reason.code]) if reason.code in _ABOUT else launch.culprit(rule)
        )
        if reason.code == "world_size" and not place.line:
            place = launch.place("dp_shard", "dp")
        if (reason.code, place.option) not in told:
            yield finding(reason.code, "error", _in_options(launch, reason), place)


def _in_options(launch: LintedLaunch, reason: Reason) -> str:
    """The text of a reason with the framework's options in place of the fields of a plan."""
    fields, text = launch.framework.fields, reason.text
    head, stages, _ = text.partition("; give first_stage_layers or last_stage_layers")
    if stages:
        ends = [fields[name].names[:1] for name in ("first_stage_layers", "last_stage_layers")]
        options = " / ".join(dict.fromkeys(chain.from_iterable(ends)))
        other = f"a {' '.join(fields['pp'].names[:1])} that divides {launch.model.num_layers}: "
        other += ", ".join(map(str, _stages(launch)))
        text = f"{head}; give {f'{options}, or ' if options else ''}{other}"
    for name, field in fields.items():
        if "_" in name and field.names:
            text = re.sub(rf"\b{name}\b", field.names[0], text)
    batch = next(filter(None, map(launch.reading.find, _BATCH)), None)
    return text if batch is None else text.replace("global_batch_size", batch.name)


def _stages(launch: LintedLaunch) -> list[int]:
    """The numbers of pipeline stages that divide the layers, and the accelerators if some do."""
    layers, world = launch.model.num_layers, launch.request.cluster.accelerators
    found = [pp for pp in range(1, min(layers, world) + 1) if layers % pp == 0]
    return [pp for pp in found if world % (launch.plan.tp * launch.plan.cp * pp) == 0] or found


def ignored_options(launch: LintedLaunch) -> Iterator[Finding]:
    """Options without effect, since another one is missing."""
    for row in IGNORED.get(launch.framework.name, ()):
        said = launch.reading.find(row.option)
        if said is None:
            continue
        if row.needs and not any(map(launch.reading.find, row.needs)):
            text = f"without {row.needs[0]} it is not read: {row.why}"
            yield finding("ignored_option", "warning", text, at(said))
        spoiling = launch.reading.find(row.spoiled[0])
        if spoiling is not None and spoiling.value == row.spoiled[1]:
            text = f"beside {' '.join(row.spoiled)} it is not read: {row.why}"
            yield finding("ignored_option", "warning", text, at(said))


def environment(launch: LintedLaunch) -> Iterator[Finding]:
    """Environment variables that the framework requires and the launch does not set."""
    queued = launch.request.cluster.groups[0].accelerator.before_blackwell
    if not (launch.reading.written and queued):
        return
    for wanted in launched(launch.framework, launch.request, launch.reading).values():
        missed = any(wanted.name in text for text in launch.reading.assumed)
        if wanted.group != ENVIRONMENT or not missed:
            continue
        (value,) = wanted.words[1:]
        said = next((one for one in variables(launch.files) if one.name == wanted.name), None)
        place = launch.place("tp", "cp")
        have = f"is {said.value}" if said else "is not set by the script"
        yield finding(
            "environment",
            "error",
            f"{launch.framework.title} demands {value}, and it {have}: {wanted.why}",
            said.place() if said else Place(place.file, place.line, wanted.name),
        )


def harmful_environment(launch: LintedLaunch) -> Iterator[Finding]:
    """Environment variables that the launch sets and should not set."""
    core = launch.framework.runtime == "megatron" and launch.framework.name != "mindspeed"
    for said in variables(launch.files):
        if why := refused(said, launch.reading, core):
            yield finding("environment", "error", why, said.place())
        elif row := stale(said):
            text = f"{said.name}={said.value}: {row.why}"
            yield finding("stale_variable", row.severity, text, said.place())


def memory(launch: LintedLaunch) -> Iterator[Finding]:
    """The stages that overflow, by how much, and the largest parts of their memory.

    An error only where published peaks leave no doubt, the accelerator has no room for the tensors
    and the driver alone, and no file that is not given may shard them; else a warning with its
    chance.  What the allocator cannot reuse is the least certain part: the peaks that are published
    of Megatron-Core do not contain it, and a variable changes it.
    """
    own = launch.own
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
    gaps = worst.parts["fragmentation"]
    only_gaps = worst.total_bytes - gaps <= capacity
    if only_gaps and not RUNTIMES[launch.plan.runtime].expandable_segments:
        text += f"; {gib(gaps)} GiB of it are gaps of the allocator, fewer with {_GROWING}"
    largest = max(
        (part for part in _FILLS if part in worst.parts), key=lambda part: worst.parts[part]
    )
    place = launch.place(*_FILLS[largest])
    doubt = f"{UNSHARDED}; with none " * (UNSHARDED in launch.reading.assumed)
    if own.memory.chance_of_running_out >= SURE and not (only_gaps or doubt):
        yield finding("memory", "error", text, place)
    else:
        odds = f"a risk of {chance(own.memory.chance_of_running_out)} to run out of memory"
        yield finding("memory_risk", "warning", f"{doubt}{odds}: {text}", place)


def narrow_accumulation(launch: LintedLaunch) -> Iterator[Finding]:
    """Small addends vanish in a 16-bit sum."""
    dtype = launch.training.gradient_dtype
    if launch.own is not None and dtype != "fp32" and launch.own.num_micro_batches >= FEW_SUMS:
        text = (
            f"gradients of {launch.own.num_micro_batches} micro-batches are added up in {dtype}: "
            "what is small beside the sum is lost"
        )
        about = ("--grad-reduce-in-bf16", "data_types.grad_accum_dtype", "bf16.enabled", "--bf16")
        yield finding("narrow_accumulation", "hint", text, launch.place(*about))
