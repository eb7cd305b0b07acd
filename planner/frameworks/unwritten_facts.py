"""Facts of a model that change neither memory nor time, and that a written launch leaves out.

Without them a script trains a different model from the config.json that was planned.  So the
script and the bundle list the facts that the model states but the framework has no option for, and
those that the model can have but does not state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cost_models import package_files
from cost_models.spec import ModelSpec
from planner.documents.plan_report import Note
from planner.frameworks.bash_writer import comment

# Numerics that every model has: if a model states some numerics but not these, they are unknown,
# while others that it does not state are absent.
ALWAYS = {"norm_epsilon", "init_std", "rope_theta"}


@dataclass(frozen=True)
class UnwrittenFact:
    """One such fact, the framework's option for it with its default, and which models have it.

    numerics: the fields of cost_models.numerics.Numerics that hold it.
    """

    fact: str
    how: str
    exists: Callable[[ModelSpec], bool]
    numerics: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.fact}: {self.how}"

    def known(self, model: ModelSpec) -> bool:
        """Whether the model states it, or implies its absence by stating others."""
        stated = model.numerics.stated
        return bool(self.numerics and stated) and not set(self.numerics) & ALWAYS - stated


class Missing(NamedTuple):
    """rows: facts that the model can have but does not state; lost: stated, but not written."""

    rows: tuple[UnwrittenFact, ...]
    lost: tuple[str, ...]


def _every(model: ModelSpec) -> bool:
    return True


def _mixture(model: ModelSpec) -> bool:
    return model.moe is not None


def _rotary(model: ModelSpec) -> bool:
    return model.position == "rope"


def _plain_rotary(model: ModelSpec) -> bool:
    return _rotary(model) and model.mla is None


def _usual_router_scores(model: ModelSpec) -> bool:
    """Whether Megatron-LM's flags leave the router's scores at their default."""
    moe = model.moe
    return moe is not None and not moe.score_correction_bias and moe.top_k > 1


# The models that have a fact, or of which a framework says it so.
_MODELS: dict[str, Callable[[ModelSpec], bool]] = {
    "mixture": _mixture,
    "gated": lambda model: model.gated_mlp,
    "ungated": lambda model: not model.gated_mlp,
    "plain rotary": _plain_rotary,
    "plain rotary without pattern": lambda m: _plain_rotary(m) and not m.layer_pattern,
    "latent rotary": lambda model: _rotary(model) and model.mla is not None,
    "usual router scores": _usual_router_scores,
}

# The facts that several frameworks leave out; those of the numerics by the field that holds them.
_FACTS = {
    "norm_epsilon": UnwrittenFact("norm epsilon", "", _every, ("norm_epsilon",)),
    "rope_theta": UnwrittenFact("rotary base", "", _rotary, ("rope_theta", "local_rope_theta")),
    "rotary": UnwrittenFact("rotary base and scaling", "", _rotary, ("rope_theta", "rope_scaling")),
    "rotary_share": UnwrittenFact(
        "share of rotated head dimensions", "", _rotary, ("rotary_share",)
    ),
    "no_rope": UnwrittenFact("layers without RoPE", "", _rotary),
    "rope_scaling": UnwrittenFact("rope scaling", "", _rotary, ("rope_scaling",)),
    "activation": UnwrittenFact("activation", "", _every, ("activation",)),
    "routed_scaling": UnwrittenFact("routed scaling factor", "", _mixture, ("routed_scaling",)),
    "router_scores": UnwrittenFact("router scores", "", _mixture),
    "balancing": UnwrittenFact("load-balancing loss", "", _mixture),
    "mtp_loss": UnwrittenFact("weight of the MTP loss", "", lambda model: model.mtp_num_layers > 0),
    "init_std": UnwrittenFact(
        "standard deviation of the initial weights", "", _every, ("init_std",)
    ),
    "multipliers": UnwrittenFact(
        "soft-capping of logits or attention scores, multipliers", "", _every,
        ("attention_softcap", "logit_softcap", "attention_scale", "embedding_multiplier",
         "residual_multiplier", "logit_multiplier"),
    ),
}  # fmt: skip


def table(package: str) -> tuple[UnwrittenFact, ...]:
    """The facts that a framework leaves out, as fields.json of its package has them."""
    return tuple(
        _uncarried(*row) for row in package_files.table(package, "fields.json")["unwritten"]
    )


def _uncarried(name: str, how: str, models: str = "") -> UnwrittenFact:
    """A fact of _FACTS, or its own, with an option; models: if only some of them can say it so."""
    fact = _FACTS.get(name, UnwrittenFact(name, "", _every))
    return replace(fact, how=how, exists=_MODELS[models] if models else fact.exists)


def of(
    model: ModelSpec,
    table: Iterable[UnwrittenFact],
    said: Collection[str],
    options: Mapping[str, str] | None = None,
) -> Missing:
    """The facts that the written files leave out.

    said: the fields of the model's numerics that are written.  options: by such a field, those of
    the framework for it that are not written here.
    """
    rows = tuple(row for row in table if row.exists(model) and not row.known(model))
    lost = sorted(model.numerics.stated - set(said))
    words = {name: f"{name} {_words(getattr(model.numerics, name))}" for name in lost}
    for name, how in (options or {}).items():
        if name in words:
            words[name] += f" (by hand: {how})"
    return Missing(rows, tuple(words.values()))


def written(
    model: ModelSpec, names: Collection[str], rotates: Collection[str] = ("rope_theta",)
) -> frozenset[str]:
    """The fields of the model's numerics among these, whose options take whole rotary bases only.

    rotates: those that a model without rotary positions is not given.
    """
    found, base = model.numerics.stated & set(names), model.numerics.rope_theta
    if model.position != "rope":
        found -= set(rotates)
    return found - {"rope_theta"} if base is not None and base != int(base) else found


def _words(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, float | str):
        return f"{value}"
    stated = value.model_dump(exclude_none=True)
    long = {
        name: f"{len(each)} factors" for name, each in stated.items() if isinstance(each, tuple)
    }
    return ", ".join(f"{name} {each}" for name, each in (stated | long).items())


def notes(missing: Missing) -> Iterator[Note]:
    """The bundle's notes on the facts that it leaves out."""
    if missing.lost:
        yield Note(code="cannot_be_said", text=f"{_LOST}: {'; '.join(missing.lost)}.")
    if missing.rows:
        yield Note(
            code="not_carried",
            text="Not part of the plan and left at the default; set by hand if the model's "
            f"config.json differs: {'; '.join(map(str, missing.rows))}.",
        )


def comments(missing: Missing) -> str:
    """Comment lines on the facts that the bundle leaves out."""
    lines = [f"{_LOST}:", *(f"  {row}" for row in missing.lost)] if missing.lost else []
    if missing.rows:
        lines += [
            "Not part of the plan and left at the default; set by hand if config.json differs:",
            *(f"  {row}" for row in missing.rows),
        ]
    return "\n".join(map(comment, lines))


_LOST = "These files leave out facts of the model, so they train another model"
