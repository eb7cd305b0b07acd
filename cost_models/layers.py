"""A model as its layers in order: each a kind, (mixer, feed-forward), and how the kinds repeat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from cost_models.blocks.attention import Attention
from cost_models.blocks.base import Block, Mixer
from cost_models.blocks.experts import Experts
from cost_models.blocks.latent_attention import LatentAttention
from cost_models.blocks.mlp import MLP
from cost_models.blocks.norm import Norm, Residual
from cost_models.blocks.records import Record, Split, Weight
from cost_models.dims import Dims
from cost_models.spec import ModelSpec


@dataclass(frozen=True)
class LayerKind:
    """Layers that are alike: norm, mixer, residual; norm, feed-forward, residual."""

    name: str
    mixer: Mixer
    feed_forward: Block

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """In forward order."""
        dense = isinstance(self.feed_forward, MLP)
        return (
            Norm(name="attention"),
            self.mixer,
            Residual(name="attention"),
            Norm(name="mlp", gathers=dense, module="mlp" if dense else ""),
            self.feed_forward,
            Residual(name="mlp"),
        )

    def weights(self, model: ModelSpec, split: Split) -> Iterator[Weight]:
        """The parameters of one rank."""
        for block in self.blocks:
            yield from block.weights(model, split)

    def records(self, model: ModelSpec, d: Dims) -> Iterator[Record]:
        """One micro-batch, in forward order."""
        for block in self.blocks:
            yield from block.records(model, d)


@dataclass(frozen=True)
class Layers:
    """kinds: in the order in which they first occur; order: the place of each layer's kind there.

    Multi-token prediction adds layers of the last one's kind.
    """

    kinds: tuple[LayerKind, ...]
    order: tuple[int, ...]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Layers of each kind."""
        return tuple(self.order.count(i) for i in range(len(self.kinds)))

    @cached_property
    def shared(self) -> dict[tuple[int, ...], tuple[Block, ...]]:
        """Every block once, by the places of all kinds that it stands in."""
        found: dict[tuple[int, ...], tuple[Block, ...]] = {}
        for block in dict.fromkeys(block for kind in self.kinds for block in kind.blocks):
            kinds = tuple(i for i, kind in enumerate(self.kinds) if block in kind.blocks)
            found[kinds] = (*found.get(kinds, ()), block)
        return found


def layers_of(model: ModelSpec) -> Layers:
    """The layers of a model, first to last; kept with the model, as its own derived values are."""
    found: Layers | None = vars(model).get("_layers")
    if found is None:
        mixers = _mixers(model)
        found = _layers(
            tuple(mixers[i % len(mixers)] for i in range(model.num_layers)),
            model.feed_forwards,
            MLP(width=model.ffn_hidden_size, bias=model.mlp_bias),
        )
        vars(model)["_layers"] = found
    return found


def _mixers(model: ModelSpec) -> tuple[Mixer, ...]:
    """The pattern of mixers that repeats over the layers."""
    if model.mixer_pattern:
        return model.mixer_pattern
    if model.mla is not None:
        return (LatentAttention(),)
    local, period = Attention(window=model.sliding_window), model.full_attention_period
    if model.sliding_window is None or period is None:
        return (local,)
    return (*(local,) * (period - 1), Attention())


def _layers(mixers: tuple[Mixer, ...], feed_forwards: tuple[str, ...], dense: MLP) -> Layers:
    several = len(set(mixers)) > 1
    kinds: dict[tuple[Mixer, str], LayerKind] = {}
    for mixer, feed_forward in zip(mixers, feed_forwards, strict=True):
        name = f"{mixer.label} {feed_forward}" if several else feed_forward
        block = dense if feed_forward == "dense" else Experts()
        kinds.setdefault((mixer, feed_forward), LayerKind(name, mixer, block))
    places = {key: i for i, key in enumerate(kinds)}
    order = tuple(places[key] for key in zip(mixers, feed_forwards, strict=True))
    return Layers(tuple(kinds.values()), order)
