"""Which frameworks can train a model, and why the others cannot."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cache, lru_cache
from itertools import product

import numpy as np

from cost_models.plans import VOCABULARIES, Plans, code
from cost_models.spec import ClusterSpec, ModelSpec
from planner import frameworks
from planner.constraints import BoolArray, Context, Rule
from planner.frameworks.base import Framework
from planner.frameworks.plan_defaults import own_trainings
from planner.frameworks.rules import nodes

# Plan fields for which a framework may insist on some value, and all their values.
CHOICES = {
    "zero_stage": range(4),
    "attention_kernel": range(len(VOCABULARIES["attention_kernel"])),
    "cross_entropy": range(len(VOCABULARIES["cross_entropy"])),
    "overlap_grad_reduce": range(2),
    "overlap_param_gather": range(2),
    "reshard_after_forward": range(2),
    "compile": range(2),
}
# A model that every framework builds.
PLAIN = ModelSpec.model_validate(
    {
        "num_layers": 8,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "vocab_size": 32_000,
        "gated_mlp": True,
        "norm": "rmsnorm",
    }
)


# Whose usual adapters those of a request are that names no framework and has one node.
PEFT = "accelerate"


def tunes_on_one_node(cluster: ClusterSpec, adapters: bool) -> bool:
    """Whether adapters are asked for where one command starts a trainer of the kind of PEFT."""
    return adapters and nodes(cluster) == 1


@lru_cache(maxsize=64)
def framework_titles(context: Context) -> tuple[str, ...]:
    """Titles of the frameworks that run the model in some plan whose only axis is dp."""
    return tuple(frameworks.get(name).title for name in runners(context))


@lru_cache(maxsize=64)
def runners(context: Context) -> tuple[str, ...]:
    """Names of the frameworks that run the model in some plan whose only axis is dp.

    Trainers of adapters compete for these: they have options there that accelerate's script lacks.
    """
    (found,) = runners_on_each(context, (context.cluster.accelerators,))
    return found


def running(context: Context) -> Iterator[str]:
    """What `runners` says where no adapters are asked for, one name after another."""
    for name in frameworks.FRAMEWORKS:
        if frameworks.get(name).competes and runs(name, context):
            yield name


def runners_on_each(context: Context, sizes: Sequence[int]) -> list[tuple[str, ...]]:
    """What `runners` says on clusters of so many accelerators, else as the context's."""
    tuning = context.training.lora_rank > 0
    each = {
        name: _runs_on_each(name, context, sizes)
        for name in frameworks.FRAMEWORKS
        if frameworks.get(name).competes or (tuning and frameworks.get(name).adapters)
    }
    return [
        tuple(name for name, on_each in each.items() if on_each[place])
        for place in range(len(sizes))
    ]


@lru_cache(maxsize=64)
def trainers(context: Context) -> tuple[str, ...]:
    """Names of the frameworks with adapters of their own that run the model in such a plan."""
    return tuple(
        name
        for name in frameworks.FRAMEWORKS
        if frameworks.get(name).adapters and runs(name, context)
    )


def trainers_left_out(context: Context, left_out: Collection[str]) -> dict[str, str]:
    """Trainers that run the model's adapters as they train by themselves, and what is against the
    training as it is: their first reason.

    left_out: training fields that are free to be as theirs.  Of those that one command starts on
    one node; none where the request is for something else.
    """
    if not tunes_on_one_node(context.cluster, context.training.lora_rank > 0):
        return {}
    found = {}
    for name in frameworks.FRAMEWORKS:
        framework = frameworks.get(name)
        if not framework.adapters or framework.competes or runs(name, context):
            continue
        if any(runs(name, own) for own in _own_contexts(framework, context, left_out)):
            found[name] = obstacles(framework, context)[1][0]
    return found


def _own_contexts(
    framework: Framework, context: Context, left_out: Collection[str]
) -> Iterator[Context]:
    for own in own_trainings(framework, context.training, left_out):
        yield Context(context.model, context.cluster, own)


def obstacles(framework: Framework, context: Context) -> tuple[bool, tuple[str, ...]]:
    """Whether the model is the obstacle, and the reasons why a framework can run no plan.

    The reasons are those of rules that every plan with dp as its only axis breaks; if there are
    none, some plan may run.
    """
    if lacking := framework.unsaid(context.model):
        return True, lacking
    broken = _broken(framework, context)
    plain = Context(PLAIN, context.cluster, context.training)
    rules = [rule for rule in _broken(framework, plain) if rule in broken]
    plan = _plans(framework, context).row(0)
    own = [rule for rule in broken if rule not in rules]
    texts = dict.fromkeys(rule.explain(context, plan) for rule in own or rules)
    return bool(own), tuple(texts)


def _plans(framework: Framework, context: Context, sizes: Sequence[int] = ()) -> Plans:
    """Plans whose only axis is dp, on each number of accelerators, else the context's.

    A micro-batch of preferences is a pair.  Samples of many lengths are shared by pairs of cp
    ranks.
    """
    sizes = sizes or (context.cluster.accelerators,)
    pair = 2 if context.training.loss == "dpo" else 1
    plans = _choices(code("runtime", framework.runtime), pair)
    every, ranks = (
        plans.take(np.tile(np.arange(len(plans)), len(sizes))),
        np.repeat(sizes, len(plans)),
    )
    if not context.training.sample_lengths:
        return every.with_columns(dp=ranks)
    cp = np.where(ranks % 2 == 0, 2, 1)
    return every.with_columns(dp=ranks // cp, cp=cp, dynamic_cp=cp - 1)


@cache
def _choices(runtime: int, micro_batch_size: int) -> Plans:
    rows = np.array(list(product(*CHOICES.values())))
    chosen = dict(zip(CHOICES, rows.T, strict=True))
    return Plans.build(runtime=runtime, micro_batch_size=micro_batch_size, **chosen)


def _broken(framework: Framework, context: Context) -> list[Rule]:
    """The framework's rules that all of `_plans` break."""
    plans = _plans(framework, context)
    return [rule for rule in framework.rules if not np.any(rule.legal(context, plans))]


@lru_cache(maxsize=64)
def attention_kernels(name: str, context: Context) -> tuple[str, ...]:
    """Kernels with which a framework runs the model in some such plan.

    Rules that all of them break are about something else, as the samples of a micro-batch.
    """
    framework = frameworks.get(name)
    plans = _plans(framework, context)
    legal = np.ones(len(plans), dtype=np.bool_)
    for rule in framework.rules:
        passes = rule.legal(context, plans)
        legal &= passes | (not passes.any())
    kernels = plans.attention_kernel[legal]
    return tuple(VOCABULARIES["attention_kernel"][i] for i in np.unique(kernels))


def runs(name: str, context: Context) -> bool:
    """Whether a framework runs the model in some plan whose only axis is dp."""
    return bool(_runs_on_each(name, context, (context.cluster.accelerators,)).item())


def _runs_on_each(name: str, context: Context, sizes: Sequence[int]) -> BoolArray:
    """What `runs` says on clusters of so many accelerators, shape (sizes,)."""
    framework = frameworks.get(name)
    if framework.unsaid(context.model):
        return np.zeros(len(sizes), dtype=np.bool_)
    legal = _legal(framework, context, _plans(framework, context, sizes))
    return np.asarray(legal.reshape(len(sizes), -1).any(axis=1))


def _legal(framework: Framework, context: Context, plans: Plans) -> BoolArray:
    """Which of the plans break no rule of the framework."""
    legal = np.ones(len(plans), dtype=np.bool_)
    for rule in framework.rules:
        legal = legal & rule.legal(context, plans)
        if not legal.any():
            break
    return legal
