"""A faster plan of a launch that is not written here: by the options of it that are known.

No framework's writer tells the options of such files.  Two choices stand in nearly all of them, are
changed without a change of anything else, and gain most: the sequences of a micro-batch, with its
accumulation, and whether layers are computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from cost_models.plans import ParallelPlan
from planner.answers.lint.findings import Better, FlagChange
from planner.answers.lint.linted_launch import MINIMUM_GAIN, LintedLaunch, changed
from planner.answers.lint.slow_work import NO_RECOMPUTE
from planner.answers.plans.explain import report
from planner.frameworks.named_files import PYTHON
from planner.frameworks.read_results import Setting
from planner.frameworks.unread_trainers import CONFIGS

# Options of transformers' Trainer, with and without dashes, and those that say the same elsewhere.
MICRO_BATCH = (
    "per_device_train_batch_size", "micro_batch_size", "micro_train_batch_size", "batch_size",
    "device_train_microbatch_size",
)  # fmt: skip
ACCUMULATION = ("gradient_accumulation_steps", "accumulation_steps")
# The batch of a step, in whose file accumulation follows from the micro-batch.
BATCH = ("train_batch_size", "global_batch_size", "global_train_batch_size")
_OF_DEEPSPEED = ("train_micro_batch_size_per_gpu", "train_batch_size")
RECOMPUTE = (
    "gradient_checkpointing", "activation_checkpointing", "enable_activation_checkpointing",
)  # fmt: skip
MOST_MICRO_BATCH = 64


def best(launch: LintedLaunch) -> Better | None:
    """The fastest plan with another micro-batch or recompute that fits.

    None where the launch's options for them are not known, or nothing is likely to be faster by
    MINIMUM_GAIN.
    """
    own = launch.own
    found = launch.fastest(_choices(launch)) if own is not None else None
    if own is None or found is None:
        return None
    if own.fits:
        gain = 1.0 - found.seconds / own.iteration_time_s
        if gain < MINIMUM_GAIN or not launch.likely_faster(found):
            return None
    plan = found.priced.plan
    return Better(
        report=report(launch.costs, launch.request, plan), changes=tuple(_changes(launch, plan))
    )


def _choices(launch: LintedLaunch) -> Iterator[dict[str, Any]]:
    """Fields to set: micro-batches that divide the batch of a rank, with and without recompute."""
    plan = launch.plan
    sizes: list[dict[str, Any]] = [{}]
    recomputes: list[dict[str, Any]] = [{}]
    if _says_micro_batch(launch):
        each = launch.training.global_batch_size // plan.dp
        powers = [_together(launch) << i for i in range(MOST_MICRO_BATCH.bit_length())]
        sizes = [{"micro_batch_size": n} for n in powers if each % n == 0]
    layers = -(-launch.model.num_layers // (plan.pp * plan.vpp))
    blocks = plan.recompute == "full" and plan.recompute_method == "block"
    some = plan.recompute == "selective" or (blocks and plan.recompute_num_layers < layers)
    if _said(launch, RECOMPUTE) and not some:
        whole = {"recompute": "full", "recompute_method": "block", "recompute_num_layers": layers}
        recomputes = [NO_RECOMPUTE, {}] if plan.recompute == "full" else [{}, whole]
    for size, recompute in product(sizes, recomputes):
        if changed(plan, {**size, **recompute}) not in (None, plan):
            yield {**size, **recompute}


def _says_micro_batch(launch: LintedLaunch) -> bool:
    """Whether one file alone says the micro-batch and how many of them are a step's.

    Where DeepSpeed's configuration says numbers too, both would have to change.
    """
    micro, steps, batch = (_said(launch, names) for names in (MICRO_BATCH, ACCUMULATION, BATCH))
    if micro is None or not (steps or (batch and batch.file == micro.file)):
        return False
    files = {micro.file, *([steps.file] if steps else [])}
    numbers = {*MICRO_BATCH, *ACCUMULATION, *_OF_DEEPSPEED}
    return not any(
        _bare(one.name) in numbers and str(one.value).isdigit() and one.file not in files
        for one in launch.reading.settings
    )


def _together(launch: LintedLaunch) -> int:
    """Sequences of what the launch's option counts: preferences are pairs of them."""
    said = _said(launch, MICRO_BATCH)
    stated = str(said.value) if said is not None else ""
    return max(launch.plan.micro_batch_size // int(stated), 1) if stated.isdigit() else 1


def _said(launch: LintedLaunch, names: tuple[str, ...]) -> Setting | None:
    """The last setting of the first of these names that the files have, as a key or an option."""
    said = [one for one in reversed(launch.reading.settings) if one.line]
    named = {name: [one for one in said if _bare(one.name) == name] for name in names}
    return next((found[0] for found in named.values() if found), None)


def _bare(option: str) -> str:
    return option.lstrip("-").replace("-", "_").rpartition(".")[2]


def _changes(launch: LintedLaunch, plan: ParallelPlan) -> Iterator[FlagChange]:
    """The options that change, each where it stands."""
    size, each = plan.micro_batch_size, _together(launch)
    if size != launch.plan.micro_batch_size:
        steps = launch.training.global_batch_size // (plan.dp * size)
        yield from _change(_said(launch, MICRO_BATCH), str(size // each), "the micro-batch")
        yield from _change(_said(launch, ACCUMULATION), str(steps), "for the same batch of a step")
    if plan.recompute != launch.plan.recompute:
        said, on = _said(launch, RECOMPUTE), plan.recompute != "none"
        why = "all layers are computed again" if on else "nothing is computed again"
        yield from _change(said, None if said is None else _switched(said, on), why)


def _change(said: Setting | None, after: str | None, why: str) -> Iterator[FlagChange]:
    if said is None:
        return
    before = "" if said.value is None else str(said.value)
    # Keys of a configuration, and arguments of a call, are read as options.
    option = _bare(said.name) if said.file.endswith((*PYTHON, *CONFIGS)) else said.name
    if before != after:
        yield FlagChange(
            option=option, before=before, after=after, why=why, file=said.file, line=said.line
        )


def _switched(said: Setting, on: bool) -> str | None:
    """The value of a setting that switches something, as the file writes them; None: left out."""
    if said.value is None:  # a bare option
        return "" if on else None
    word = str(said.value)
    if word.lower() not in ("true", "false"):
        return "1" if on else "0"
    small = said.file.endswith(CONFIGS) or word[0].islower()
    return str(on).lower() if small else str(on)
