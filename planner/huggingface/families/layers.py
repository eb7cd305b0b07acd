"""Layers that differ: the kind of each, its mixer, and what works on each token after it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from cost_models.blocks import Sublayer
from cost_models.layers import layers_of
from cost_models.spec import ModelSpec
from planner.huggingface.config import LAYERS, Config
from planner.huggingface.families import rows
from planner.huggingface.families.attention import FULL, SLIDING
from planner.huggingface.families.rows import Fields, Keys

Layer = list[Fields]
Mixer = Fields | rows.Block
Kinds = tuple[list[str], str]  # of the layers by default, and how notes call the default

ATTENTION: Fields = {"kind": "attention"}
LATENT: Fields = {"kind": "latent_attention"}
MLP: Fields = {"kind": "mlp"}
EXPERTS: Fields = {"kind": "experts"}
LINEAR = "linear_attention"


def pattern(layers: Sequence[Layer]) -> Fields:
    """The shortest list of layers whose repetition gives these."""
    places: dict[str, int] = {}
    order = [places.setdefault(repr(layer), len(places)) for layer in layers]
    # For each prefix, the length of its longest proper suffix that is a prefix too (Knuth, Morris
    # and Pratt).
    borders = [0] * len(order)
    for i in range(1, len(order)):
        length = borders[i - 1]
        while length and order[i] != order[length]:
            length = borders[length - 1]
        borders[i] = length + (order[i] == order[length])
    return {"layer_pattern": list(layers[: len(order) - borders[-1]])}


def numbered(config: Config, name: str) -> set[int] | None:
    """The layer numbers that the file lists under `name`; None if it has no such list."""
    stated = config.value(name)
    if stated is None:
        return None
    if not isinstance(stated, list | tuple) or any(type(layer) is not int for layer in stated):
        config.refuse(name, "must be a list of layer numbers")
        return set()
    return set(stated)


def kinds(
    config: Config, name: str, default: Sequence[str], allowed: Collection[str], because: str
) -> list[str]:
    """The kind of each layer, as listed in the file or else in `default`.

    because: where the default comes from.
    """
    stated = config.data.get(name)
    if stated is None:
        config.guess(name, because, "by default")
        return list(default)
    if not isinstance(stated, list) or len(stated) != len(default):
        config.refuse(name, f"must be a list of {len(default)}, one for each layer")
        return list(default)
    if any(not isinstance(kind, str) or kind not in allowed for kind in stated):
        config.refuse(name, f"may hold only {', '.join(sorted(allowed))}")
        return list(default)
    return stated


def every(
    period: int, *, key: str = "", others: str = SLIDING, first: int | None = None
) -> Callable[[Config, int], Kinds]:
    """Full attention in every period-th layer, starting with `first`; key: of a stated period."""

    def found(config: Config, layers: int) -> Kinds:
        step = period
        if key and not config.states("layer_types"):
            step = config.count(key, most=LAYERS, default=period)
        start = step - 1 if first is None else first
        listed = [FULL if i % step == start % step else others for i in range(layers)]
        return listed, f"full in every {step}th layer"

    return found


def rotary_layers(config: Config, layers: int) -> list[bool]:
    """Whether each layer has rotary positions; a 1 in no_rope_layers means that it has."""
    stated = config.data.get("no_rope_layers")
    if isinstance(stated, list) and stated:
        if len(stated) != layers or any(flag not in (0, 1) for flag in stated):
            config.refuse("no_rope_layers", f"must be a list of {layers} of 0 and 1")
            return [True] * layers
        return [bool(flag) for flag in stated]
    period = config.count("no_rope_layer_interval", most=LAYERS, default=4)
    return [(i + 1) % period != 0 for i in range(layers)]


def each_layer(model: ModelSpec) -> list[tuple[Sublayer, ...]]:
    """The blocks of every layer of a model."""
    layers = layers_of(model)
    return [layers.kinds[place].sublayers for place in layers.order]


def is_sparse(layer: tuple[Sublayer, ...]) -> bool:
    return any(block.kind == "experts" for block in layer)


@dataclass(frozen=True)
class FeedForwardLayout:
    """What works on each token after the mixer of each layer, and the keys that say so."""

    read: Callable[[Config, Fields], Sequence[Fields]]
    keys: Callable[[ModelSpec], Keys] = lambda model: {}


ALL_DENSE = FeedForwardLayout(lambda config, fields: [MLP] * fields["num_layers"])
ALL_SPARSE = FeedForwardLayout(lambda config, fields: [EXPERTS] * fields["num_layers"])


def dense_first(default: int = 0) -> FeedForwardLayout:
    """An MLP or experts, as listed, or experts after the first `default` layers."""

    def read(config: Config, fields: Fields) -> Sequence[Fields]:
        layers, dense = fields["num_layers"], default
        frequency = config.data.get("moe_layer_freq")
        if isinstance(frequency, list) and not config.states("mlp_layer_types"):
            if len(frequency) < layers or any(flag not in (0, 1) for flag in frequency):
                config.refuse("moe_layer_freq", f"must be a list of {layers} of 0 and 1")
                return [EXPERTS] * layers
            return [EXPERTS if flag else MLP for flag in frequency[:layers]]
        config.require("moe_layer_freq", 1, "every layer after the dense ones has experts")
        if not config.states("mlp_layer_types"):
            dense = config.count("first_k_dense_replace", least=0, most=LAYERS, default=default)
        dense = min(dense, layers)
        usual = ["dense"] * dense + ["sparse"] * (layers - dense)
        how = f"the first {dense} are dense"
        listed = kinds(config, "mlp_layer_types", usual, {"dense", "sparse"}, how)
        return [MLP if kind == "dense" else EXPERTS for kind in listed]

    def keys(model: ModelSpec) -> Keys:
        words = ["sparse" if is_sparse(one) else "dense" for one in each_layer(model)]
        return {"mlp_layer_types": words}

    return FeedForwardLayout(read, keys)


def read_mixer(mixer: Mixer, config: Config, fields: Fields) -> Fields:
    """The block of a mixer, with what the file says of it."""
    return mixer(config, fields) if isinstance(mixer, rows.Block) else mixer


@dataclass(frozen=True)
class Layers:
    """Layers of a mixer and a feed-forward; the file lists the mixer of each by its kind.

    usual: the kinds where the file lists none.  name: of the list, with other spellings.
    """

    mixers: Mapping[str, Mixer]
    usual: Callable[[Config, int], Kinds]
    feeds: FeedForwardLayout = ALL_DENSE
    name: str = "layer_types"

    def __call__(self, config: Config, fields: Fields) -> Fields:
        default, because = self.usual(config, fields["num_layers"])
        name = next(
            (each for each in self.name.split() if config.states(each)), self.name.split()[0]
        )
        listed = kinds(config, name, default, self.mixers, because)
        mixers = {
            kind: read_mixer(self.mixers[kind], config, fields) for kind in dict.fromkeys(listed)
        }
        feeds = self.feeds.read(config, fields)
        return stacked([mixers[kind] for kind in listed], feeds)

    def keys(self, model: ModelSpec) -> Keys:
        """The keys of the mixers that a model has, and the kind of each of its layers.

        A layer with another mixer gets the last kind: the model that is read back differs there.
        """
        listed = [
            next((kind for kind, mixer in self.mixers.items() if rows.is_like(mixer, layer[0])), "")
            for layer in each_layer(model)
        ]
        *_, last = self.mixers
        found: Keys = {self.name.split()[0]: [kind or last for kind in listed]}
        for kind, mixer in self.mixers.items():
            found |= rows.keys_of(mixer, model) if kind in listed else {}
        return found | self.feeds.keys(model)


def stack(mixer: Mixer, feeds: FeedForwardLayout = ALL_DENSE) -> rows.Hook:
    """Layers with one mixer and these feed-forwards."""

    def read(config: Config, fields: Fields) -> Fields:
        own, found = read_mixer(mixer, config, fields), feeds.read(config, fields)
        return stacked([own] * len(found), found)

    return rows.Hook(read, lambda model: rows.keys_of(mixer, model) | feeds.keys(model))


def stacked(mixers: Sequence[Fields], feeds: Sequence[Fields]) -> Fields:
    """Layers of a mixer and a feed-forward each."""
    pairs = zip(mixers, feeds, strict=True)
    return pattern(
        [[mixer, *([feed] if isinstance(feed, dict) else feed)] for mixer, feed in pairs]
    )


def has_experts(fields: Fields) -> bool:
    """Whether a layer read so far has experts."""
    layers: list[Layer] = fields.get("layer_pattern", [[EXPERTS]])
    return any(EXPERTS in (block, *block.get("branches", ())) for x in layers for block in x)
