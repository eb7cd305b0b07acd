"""One layer of a model as a list of blocks and remaining parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from planner.huggingface.module_inspection.feed_forwards import Fields, experts, mlp
from planner.huggingface.module_inspection.mixers import mixer
from planner.huggingface.module_inspection.module import Module, elements

CROSS = ("encoder_attn", "crossattention", "cross_attn", "cross_attention", "EncDecAttention",
         "encoder_decoder_attention", "encoder_attention")  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A module of a layer: its name, its block as a document, and the remaining parameters."""

    name: str
    block: Fields | None
    left: dict[str, tuple[int, ...]]
    shapes: dict[str, tuple[int, ...]]

    @property
    def total(self) -> int:
        return sum(map(elements, self.shapes.values()))


@dataclass
class Layer:
    """A layer's parts in module order; norms: (elements, class name) of each.

    streams: parameters of each hyper-connection.  loose: parameters outside of submodules.
    """

    parts: list[Part] = field(default_factory=list)
    norms: list[tuple[int, str]] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    loose: dict[str, tuple[int, ...]] = field(default_factory=dict)


def read_layer(module: nn.Module, config: Any, index: int, hidden: int) -> Layer:
    """Norms, blocks and loose parameters of one layer."""
    layer = Layer()
    alone: dict[str, nn.Module] = {}
    for name, part in _parts(module):
        if is_norm(part, hidden):
            count = sum(parameter.numel() for parameter in part.parameters())
            layer.norms.append((count, type(part).__name__))
        elif name.endswith("_hc"):
            layer.streams.append(sum(parameter.numel() for parameter in part.parameters()))
        elif isinstance(part, nn.Linear) or name in ("intermediate", "output"):
            alone[name] = part
        elif any(True for _ in part.parameters()):
            layer.parts.append(_part(name, Module(part), config, index, hidden))
    if alone:
        layer.parts += _loose_matrices(alone, config, index, hidden)
    for name, parameter in module.named_parameters(recurse=False):
        layer.loose[name] = tuple(parameter.shape)
    return layer


def is_norm(part: nn.Module, hidden: int) -> bool:
    weight = getattr(part, "weight", None)
    named = "norm" in type(part).__name__.lower()
    return named and weight is not None and tuple(weight.shape) == (hidden,)


def _parts(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules that are blocks, also those inside modules that only hold blocks."""
    for name, part in module.named_children():
        path = f"{prefix}{name}"
        if _only_holds(part):
            yield from _parts(part, path + ".")
        else:
            yield path, part


def _only_holds(part: nn.Module) -> bool:
    """Whether a module groups an attention or feed-forward with its own norm (T5, BERT)."""
    if isinstance(part, nn.ModuleList):
        return True
    names = {name for name, _ in part.named_children()}
    inner = {"SelfAttention", "EncDecAttention", "DenseReluDense", "self_attention", "mlp", "ffn"}
    return bool(names & inner)


def _loose_matrices(
    alone: dict[str, nn.Module], config: Any, index: int, hidden: int
) -> Iterator[Part]:
    """Parts from matrices directly in a layer: a per-layer input, and its feed-forward."""
    gate, projection = (alone.get(f"per_layer_{n}") for n in ("input_gate", "projection"))
    if gate is not None and projection is not None:
        own = Module(nn.ModuleDict({"gate": gate, "projection": projection}))
        size = own.matrices["gate"].outputs
        own.take("gate", "projection")
        block = {"kind": "per_layer_input", "size": size}
        yield Part("per_layer_input", block, own.left(), own.shapes)
        alone = {n: m for n, m in alone.items() if m is not gate and m is not projection}
    if alone:
        yield _part(" ".join(alone), Module(nn.ModuleDict(alone)), config, index, hidden)


def _part(name: str, module: Module, config: Any, index: int, hidden: int) -> Part:
    moe = experts(module, config, hidden)
    if moe is not None:
        return Part(name, {"kind": "experts", "_moe": moe}, module.left(), module.shapes)
    module.taken.clear()
    block = mixer(module, config, index)
    if block is not None and any(word in name for word in CROSS):
        block["_cross"] = True
    if block is None:
        block = mlp(module, hidden)
    if block is None:
        module.taken.clear()
    return Part(name, block, module.left(), module.shapes)


def products_of(left: dict[str, tuple[int, ...]]) -> Fields | None:
    """Remaining parameters as matrix products (two or three dimensions) and a plain count."""
    products, others = [], 0
    for name, shape in left.items():
        if len(shape) in (2, 3) and min(shape) > 1 and name.endswith("weight"):
            times = shape[0] if len(shape) == 3 else 1
            products.append({"inputs": shape[-1], "outputs": shape[-2], "times": times})
        else:
            others += elements(shape)
    if not products and not others:
        return None
    return {"kind": "products", "products": products, "parameters": others}
