"""Checks for slow computation: recompute, offload, kernels, micro-batches, padding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from cost_models.parameters import padded_vocab_size
from cost_models.plans import Plans, RecomputeModule
from planner.answers.lint.findings import Finding
from planner.answers.lint.gains import slow
from planner.answers.lint.linted_launch import MINIMUM_GAIN, LintedLaunch, at, finding
from planner.documents.formats import share
from planner.frameworks.megatron.flags import VOCAB_MULTIPLE
from planner.search.exhaustive import cost_model

_COUNT = re.compile(r"[1-9][0-9]{0,6}", re.ASCII)
NO_RECOMPUTE: dict[str, Any] = {
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


def recompute_needless(launch: LintedLaunch) -> Iterator[Finding]:
    """Recompute, although the plan fits without it."""
    if launch.plan.recompute != "none":
        text = f"{launch.plan.recompute} recompute, though the plan fits without it"
        yield from slow(
            launch, "recompute_needless", "warning", text, [NO_RECOMPUTE], ("recompute",)
        )


def recompute_full(launch: LintedLaunch) -> Iterator[Finding]:
    """Full recompute, although less recompute fits."""
    plan = launch.plan
    if plan.recompute != "full" or launch.fastest([NO_RECOMPUTE]) is not None:
        return
    fewer = [
        {"recompute_method": "block", "recompute_num_layers": n, "recompute_layers": ()}
        for n in range(
            1,
            plan.recompute_num_layers
            if plan.recompute_method == "block"
            else -(-launch.model.num_layers // (plan.pp * plan.vpp)),
        )
    ]
    lighter = [
        NO_RECOMPUTE | {"recompute": "selective", "recompute_modules": modules}
        for modules in _MODULES
    ]
    text = "every layer is computed again, and less of it fits"
    yield from slow(launch, "recompute_full", "warning", text, [*lighter, *fewer], ("recompute",))


def offload_needless(launch: LintedLaunch) -> Iterator[Finding]:
    """Offload to the host, although the plan fits without it."""
    for field, off in (
        ("offload_optimizer", {"offload_optimizer": False}),
        ("offload_activations", {"offload_activations": False, "offload_num_layers": 0}),
    ):
        if getattr(launch.plan, field):
            text = f"{field.replace('_', ' ')}, and everything fits without"
            yield from slow(
                launch, "offload_needless", "warning", text, [off], (field,), same_work=True
            )


def micro_batch_small(launch: LintedLaunch) -> Iterator[Finding]:
    """Micro-batches that could be larger, whose kernels would run faster."""
    size_ = launch.plan.micro_batch_size
    text = f"micro-batches of {size_}"
    changes = [{"micro_batch_size": size_ * factor} for factor in (2, 4, 8)]
    yield from slow(launch, "micro_batch_small", "hint", text, changes, ("micro_batch_size",))


def attention_unfused(launch: LintedLaunch) -> Iterator[Finding]:
    """Attention that writes and reads the scores of all pairs of tokens."""
    if launch.plan.attention_kernel == "unfused":
        text = "attention materialises the full score matrix"
        changes = [{"attention_kernel": "flash"}]
        about = ("attention_kernel", "--transformer-impl")
        yield from slow(
            launch, "attention_unfused", "warning", text, changes, about, same_work=True
        )


def loss_unfused(launch: LintedLaunch) -> Iterator[Finding]:
    """A loss of many small kernels over fp32 logits instead of a fused one."""
    if launch.plan.cross_entropy == "unfused":
        text = "the loss is computed over fp32 logits with unfused kernels"
        changes = [{"cross_entropy": "fused"}]
        about = ("cross_entropy",)
        yield from slow(launch, "loss_unfused", "hint", text, changes, about, same_work=True)


def vocabulary_padding(launch: LintedLaunch) -> Iterator[Finding]:
    """Padding rows of the vocabulary; their cost is that of a vocabulary larger by as much."""
    option = "--make-vocab-size-divisible-by"
    said = launch.reading.find(option)
    if launch.own is None or said is None or not _COUNT.fullmatch(str(said.value)):
        return
    vocab, step = launch.model.vocab_size, VOCAB_MULTIPLE * launch.plan.tp
    rows = int(padded_vocab_size(vocab, launch.plan.tp, int(str(said.value))))
    usual = int(padded_vocab_size(vocab, launch.plan.tp, VOCAB_MULTIPLE))
    larger = launch.model.model_copy(update={"vocab_size": vocab + step})
    other = cost_model(launch.request.model_copy(update={"model": larger}))
    seconds_each = other.evaluate(Plans.from_rows([launch.plan])).iteration_time_s[0]
    more = (rows - usual) / step * (float(seconds_each) / launch.own.iteration_time_s - 1.0)
    gain = more / (1.0 + more)
    if gain >= MINIMUM_GAIN:
        text = (
            f"{rows} rows for {vocab} tokens, {usual} would do: the rest takes {share(gain)} of "
            "the iteration"
        )
        yield finding("vocabulary_padding", "hint", text, at(said), gain=gain)
