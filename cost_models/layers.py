"""A model as a sequence of layers: the kinds of layers, their blocks, and their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from cost_models.blocks.attention import Attention
from cost_models.blocks.base import Block, Mixer, Sublayer
from cost_models.blocks.experts import Experts
from cost_models.blocks.hyper_connection import HyperConnection
from cost_models.blocks.latent_attention import LatentAttention
from cost_models.blocks.mlp import MLP
from cost_models.blocks.norm import Norm, Residual
from cost_models.blocks.records import Record, Split, Weight
from cost_models.dims import Dims
from cost_models.spec import StackSpec


@dataclass(frozen=True)
class LayerKind:
    """A kind of layer: each sublayer has a norm, a block and a residual.

    title: the name for people, with its blocks separated by a plus.
    """

    name: str
    title: str
    sublayers: tuple[Sublayer, ...]
    residual_streams: int = 1

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks in forward order."""
        mixed = (HyperConnection(),) if self.residual_streams > 1 else ()
        return tuple(
            block
            for sublayer in self.sublayers
            for block in (
                (*mixed, norm_before(sublayer), sublayer, Residual(name=sublayer.norm))
                if sublayer.norms != 0.0
                else (sublayer,)  # beside another one
            )
        )

    def weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        """The weights of a layer on one rank."""
        for block in self.blocks:
            yield from block.weights(model, split)

    def records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        """The records of one micro-batch, in forward order."""
        for block in self.blocks:
            yield from block.records(model, d)


@dataclass(frozen=True)
class Layers:
    """The kinds of a model's layers, in the order in which they first occur, and their order.

    `order[i]` is the index in `kinds` of layer i; `predicted` the same for the layers of
    multi-token prediction, which follow.
    """

    kinds: tuple[LayerKind, ...]
    order: tuple[int, ...]
    predicted: tuple[int, ...] = ()

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Layers of each kind."""
        return tuple(self.order.count(i) for i in range(len(self.kinds)))

    @cached_property
    def trained_counts(self) -> tuple[int, ...]:
        """Layers of each kind, those of multi-token prediction too."""
        return tuple((*self.order, *self.predicted).count(i) for i in range(len(self.kinds)))

    @cached_property
    def titles(self) -> tuple[str, ...]:
        """The title of each layer, first to last."""
        return tuple(self.kinds[kind].title for kind in self.order)

    @cached_property
    def by_title(self) -> dict[str, int]:
        """The number of layers of each kind."""
        return dict(Counter(self.titles))

    @cached_property
    def shared(self) -> dict[tuple[int, ...], tuple[Block, ...]]:
        """Every block once, by the indices of all kinds that contain it."""
        shared_blocks: dict[tuple[int, ...], tuple[Block, ...]] = {}
        for block in dict.fromkeys(block for kind in self.kinds for block in kind.blocks):
            kinds = tuple(i for i, kind in enumerate(self.kinds) if block in kind.blocks)
            shared_blocks[kinds] = (*shared_blocks.get(kinds, ()), block)
        return shared_blocks


def norm_before(sublayer: Sublayer) -> Norm:
    """The norms of a sublayer."""
    return Norm(
        name=sublayer.norm, gathers=sublayer.gathers, module=sublayer.module, count=sublayer.norms
    )


def layers_of(model: StackSpec) -> Layers:
    """The layers of a model, first to last; kept with the model, as its own derived values are."""
    layers: Layers | None = vars(model).get("_layers")
    if layers is None:
        pattern = model.layer_pattern or _default_layers(model)
        order = tuple(pattern[i % len(pattern)] for i in range(model.num_layers))
        layers = _layers(order, model.residual_streams, _mtp_layers(model, order[-1]))
        vars(model)["_layers"] = layers
    return layers


def _mtp_layers(model: StackSpec, last: tuple[Sublayer, ...]) -> tuple[tuple[Sublayer, ...], ...]:
    """The multi-token-prediction layers of a language model."""
    count = getattr(model, "mtp_num_layers", 0)
    return (getattr(model, "mtp_layer", ()) or last,) * count


def _default_layers(model: StackSpec) -> tuple[tuple[Sublayer, ...], ...]:
    """A mixer and a feed-forward in every layer, as the model's other fields say."""
    mixers, blocks = _mixers(model), {"dense": MLP(), "moe": Experts()}
    return tuple(
        (mixers[i % len(mixers)], blocks[kind]) for i, kind in enumerate(model.feed_forwards)
    )


def _mixers(model: StackSpec) -> tuple[Mixer, ...]:
    """The pattern of mixers that repeats over the layers."""
    if model.mla is not None:
        return (LatentAttention(),)
    attention, period = Attention(window=model.sliding_window), model.full_attention_period
    if model.sliding_window is None or period is None:
        return (attention,)
    return (*(attention,) * (period - 1), Attention())


def _layers(
    pattern: tuple[tuple[Sublayer, ...], ...],
    residual_streams: int,
    predicted: tuple[tuple[Sublayer, ...], ...],
) -> Layers:
    """The layers of a pattern, their kinds named by their blocks but for a mixer that all have."""
    index = {layer: i for i, layer in enumerate(dict.fromkeys((*pattern, *predicted)))}
    mixed = len({block for layer in index for block in layer if isinstance(block, Mixer)}) > 1

    def labelled(layer: tuple[Sublayer, ...]) -> tuple[Sublayer, ...]:
        return tuple(b for b in layer if mixed or not isinstance(b, Mixer)) or layer

    def name(layer: tuple[Sublayer, ...]) -> str:
        return " ".join(filter(None, (b.label for b in labelled(layer)))) or "empty"

    def title(layer: tuple[Sublayer, ...]) -> str:
        return " + ".join(filter(None, (b.title for b in labelled(layer)))) or "empty"

    kinds = tuple(LayerKind(name(layer), title(layer), layer, residual_streams) for layer in index)
    order, after = (tuple(index[layer] for layer in each) for each in (pattern, predicted))
    return Layers(kinds, order, after)
