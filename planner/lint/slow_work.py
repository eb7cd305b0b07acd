"""Slow choices of what is computed: recompute, offload, kernels, micro-batches, padding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from cost_models.parameters import padded_vocab_size
from cost_models.plans import Plans, RecomputeModule
from planner.documents.formats import share
from planner.frameworks.megatron.flags import VOCAB_MULTIPLE
from planner.lint.case import MINIMUM_GAIN, Case, at, finding
from planner.lint.findings import Finding
from planner.lint.gains import slow
from planner.search.exhaustive import cost_model

_COUNT = re.compile(r"[1-9][0-9]{0,6}", re.ASCII)
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
        text = f"{case.plan.recompute} recompute, though the plan fits without it"
        yield from slow(
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
    yield from slow(case, "recompute_full", "warning", text, [*lighter, *fewer], ("recompute",))


def offload_needless(case: Case) -> Iterator[Finding]:
    """Transfers to the host to save memory that nobody needs."""
    for field, off in (
        ("offload_optimizer", {"offload_optimizer": False}),
        ("offload_activations", {"offload_activations": False, "offload_num_layers": 0}),
    ):
        if getattr(case.plan, field):
            text = f"{field.replace('_', ' ')}, and everything fits without"
            yield from slow(
                case, "offload_needless", "warning", text, [off], (field,), same_work=True
            )


def micro_batch_small(case: Case) -> Iterator[Finding]:
    """Kernels that are larger than they have to be run faster."""
    size_ = case.plan.micro_batch_size
    text = f"micro-batches of {size_}"
    changes = [{"micro_batch_size": size_ * factor} for factor in (2, 4, 8)]
    yield from slow(case, "micro_batch_small", "hint", text, changes, ("micro_batch_size",))


def attention_unfused(case: Case) -> Iterator[Finding]:
    """Scores of all pairs of tokens, written out and read again."""
    if case.plan.attention_kernel == "unfused":
        text = "attention materialises the full score matrix"
        changes = [{"attention_kernel": "flash"}]
        about = ("attention_kernel", "--transformer-impl")
        yield from slow(case, "attention_unfused", "warning", text, changes, about, same_work=True)


def loss_unfused(case: Case) -> Iterator[Finding]:
    """A loss of many small kernels over fp32 logits."""
    if case.plan.cross_entropy == "unfused":
        text = "the loss is computed over fp32 logits with unfused kernels"
        changes = [{"cross_entropy": "fused"}]
        about = ("cross_entropy",)
        yield from slow(case, "loss_unfused", "hint", text, changes, about, same_work=True)


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
        yield finding("vocabulary_padding", "hint", text, at(said), gain=gain)
