"""The command that writes the launch files of a plan that fits, to be copied."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from cost_models.effects import is_read
from cost_models.plans import FIELDS, ParallelPlan
from planner.documents.formats import value_words

# Said although they may be the default, since a search would vary them.
_SAID = ("zero_stage", "micro_batch_size", "recompute", "attention_kernel", "cross_entropy")
_FOLLOW = ("dp", "runtime", "recompute_num_layers", "recompute_method")
NEEDLESS = ("tokens",)  # of what a run costs


def command_of(
    model: str, cluster: str, training: Mapping[str, Any], trainer: str, plan: ParallelPlan
) -> str:
    """The planner's command for a plan."""
    usual = ParallelPlan()
    own = {
        name: value
        for name in FIELDS
        if ((value := getattr(plan, name)) != getattr(usual, name) or name in _SAID)
        and name not in _FOLLOW
        and is_read(plan, name)
    }
    asked = {"model": model, "cluster": cluster, **training, "framework": trainer, **own}
    asked = {name: value for name, value in asked.items() if name not in NEEDLESS}
    return shlex.join(["planner", "emit", *option_words(asked)])


def option_words(options: Mapping[str, Any]) -> Iterator[str]:
    """Options as the command line takes them."""
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        else:
            yield from (f"--{flag}", value_words(value))
