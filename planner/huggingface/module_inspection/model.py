"""A whole model: its decoder's layers, its embedding and head, and its encoders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from cost_models.parameters import total_parameters
from cost_models.spec import ModelSpec
from planner.huggingface.module_inspection.feed_forwards import Fields
from planner.huggingface.module_inspection.layer import is_norm
from planner.huggingface.module_inspection.module import Matrix, Module, elements, lists_of_layers
from planner.huggingface.module_inspection.stack import Stack, read_stack

OTHER_INPUTS = (
    "vision", "visual", "audio", "image", "speech", "sound", "vit", "patch", "qformer", "tower",
)  # fmt: skip
# Positions of an encoder whose config does not state an image size.
USUAL_POSITIONS = 1024


class NotUnderstood(ValueError):
    """No stack of layers was found in a model."""


@dataclass(frozen=True)
class InspectedModel:
    """A model read from its modules.

    exact: modules of layers in which a block accounts for every parameter; approximate: modules of
    which only matrix products and parameters are counted; left: modules with other parameters.
    """

    model: ModelSpec
    architecture: str
    exact: tuple[str, ...]
    approximate: tuple[str, ...]
    left: tuple[str, ...]


def inspect_model(model: nn.Module, config: Any, name: str) -> InspectedModel:
    """The blocks of a model that was built on the meta device.

    Raises NotUnderstood where it has no word table and layers after it.
    """
    lists = dict(lists_of_layers(model))
    path = _decoder(lists)
    table = _table(model, path) if path else None
    if path is None or table is None:
        raise NotUnderstood("it has no list of layers after a word table")
    text = config.get_text_config(decoder=True)
    encoders = _encoders(model, lists, path, config)
    tokens = encoders[0][1].fields["tokens"] if encoders else 1
    stack = read_stack(lists[path], text, _width(lists[path], text), tokens)
    fields = stack.fields | _ends(model, text, table, stack.fields["hidden_size"], path)
    if encoders:
        encoders[0][1].fields["projector"] += _connectors(model, path, [p for p, _ in encoders])
    fields["encoders"] = [each.fields for _, each in encoders]
    spec = ModelSpec.model_validate({**fields, "name": name})
    rest = _rest(model, spec, lists[path])
    left = _modules_outside(model, (path, *(p for p, _ in encoders))) if rest else ()
    parts = [stack, *(each for _, each in encoders)]
    return InspectedModel(
        spec.model_copy(update={"other_parameters": rest}),
        type(model).__name__,
        tuple(dict.fromkeys(name for part in parts for name in part.exact)),
        tuple(dict.fromkeys(name for part in parts for name in part.approximate)),
        left,
    )


def _rest(model: nn.Module, spec: ModelSpec, layers: nn.ModuleList) -> int:
    """Number of parameters outside the blocks; raises NotUnderstood if these have too many."""
    rest = _size(model) - total_parameters(spec)
    if rest < 0:
        if shared := _size(layers, once=False) - _size(layers):
            raise NotUnderstood(f"its layers share {shared:,} parameters: blocks have their own")
        raise NotUnderstood(f"its blocks have {-rest:,} parameters more than it")
    return rest


def _size(module: nn.Module, once: bool = True) -> int:
    """Number of parameters of a module; once: count a shared parameter only once."""
    return sum(part.numel() for _, part in module.named_parameters(remove_duplicate=once))


def _is_other_input(path: str) -> bool:
    return any(word in path.lower() for word in OTHER_INPUTS)


def _decoder(lists: Mapping[str, nn.ModuleList]) -> str | None:
    """Path of the list with most parameters that works on text, if possible not an encoder's."""
    own = [path for path in lists if not _is_other_input(path)] or list(lists)
    decoders = [path for path in own if "encoder" not in path.split(".")] or own
    return max(decoders, key=lambda path: _size(lists[path]), default=None)


def _table(model: nn.Module, path: str) -> nn.Module | None:
    """The word table: the one tied to the head, else the decoder's, else the model's input."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    weight, owner = getattr(head, "weight", None), path.split(".")[0]
    tables = {n: m for n, m in model.named_modules() if isinstance(m, nn.Embedding)}
    shared = [m for m in tables.values() if m.weight is weight]
    rows = 0 if weight is None else len(weight)
    own = [m for n, m in tables.items() if n.startswith(owner) and rows and len(m.weight) >= rows]
    try:
        given = [model.get_input_embeddings()]  # type: ignore[operator]
    except NotImplementedError:
        given = []
    found = [*shared, *own[:1], *given]
    return next((m for m in found if getattr(m, "weight", None) is not None), None)


def _width(layers: nn.ModuleList, config: Any) -> int:
    """The width of the hidden state: the stated one if a norm has it, else the usual norm's."""
    sizes: dict[int, int] = {}
    for part in layers.modules():
        weight = getattr(part, "weight", None)
        if "norm" in type(part).__name__.lower() and weight is not None and weight.dim() == 1:
            sizes[weight.numel()] = sizes.get(weight.numel(), 0) + 1
    stated = [getattr(config, name, None) for name in ("hidden_size", "d_model", "n_embd")]
    for size in stated:
        if isinstance(size, int) and (size in sizes or not sizes):
            return size
    if not sizes:
        raise NotUnderstood("the width of its layers is not stated")
    return max(sizes, key=lambda size: sizes[size])


def _ends(model: nn.Module, text: Any, table: nn.Module, hidden: int, path: str) -> Fields:
    """Fields of the word table, head, last norm and positions."""
    rows, width = table.weight.shape  # type: ignore[misc]
    head = model.get_output_embeddings()  # type: ignore[operator]
    weight = getattr(head, "weight", None)
    bias = getattr(head, "bias", None)
    fields: Fields = {
        # Some tables have a few rows more than the head, for images or padding.
        "vocab_size": int(rows) if weight is None else min(int(rows), int(weight.shape[0])),
        "tied_embeddings": weight is None or weight is table.weight,
        "lm_head_bias": bias is not None,
        "position": "rope" if _rotates(model, text) else "none",
    }
    fields["per_layer_input_size"] = getattr(text, "hidden_size_per_layer_input", None) or None
    if fields["per_layer_input_size"]:
        fields["per_layer_input_vocab_size"] = text.vocab_size_per_layer_input
    if width != hidden:
        fields["embedding_size"] = int(width)
    return fields | _beside_layers(model, hidden, path)


def _beside_layers(model: nn.Module, hidden: int, path: str) -> Fields:
    """Fields of the last norm, and of learned positions if the decoder has any."""
    fields: Fields = {"final_norm": False}
    owner = path.rpartition(".")[0]
    for name, part in model.named_modules():
        inside = name.startswith(owner) and not name.startswith(path)
        own = getattr(part, "weight", None)
        if not inside or own is None or _is_other_input(name):
            continue
        if "norm" in type(part).__name__.lower() and tuple(own.shape) == (hidden,):
            fields["final_norm"] = True
        positions = "pos" in name.rpartition(".")[2].lower() or name.endswith("wpe")
        if positions and own.dim() == 2 and own.shape[1] == hidden:
            fields |= {"position": "learned", "max_position_embeddings": int(own.shape[0])}
    return fields


def _rotates(model: nn.Module, text: Any) -> bool:
    """Whether the model uses RoPE: it has a rotary module, or its config states rotary_dim."""
    modules = (part for name, part in model.named_modules() if not _is_other_input(name))
    rotary = any("rotary" in type(part).__name__.lower() for part in modules)
    return rotary or bool(getattr(text, "rotary_dim", None))


def _encoders(
    model: nn.Module, lists: Mapping[str, nn.ModuleList], decoder: str, config: Any
) -> list[tuple[str, Stack]]:
    """Encoders of other inputs, or of the text that a decoder cross-attends to: one for each module
    outside the decoder that holds a list of layers.
    """
    towers: dict[str, str] = {}
    for path in lists:
        first = _root(path, decoder)
        largest = towers.get(first)
        if (
            path != decoder
            and first
            and _is_stack(lists[path])
            and (largest is None or _size(lists[path]) > _size(lists[largest]))
        ):
            towers[first] = path
    modules = dict(model.named_modules())
    found = []
    for root, path in towers.items():
        stack = _encoder(modules[root], lists[path], root, path, config)
        if stack is not None:
            found.append((root, stack))
    return found


def _is_stack(layers: nn.ModuleList) -> bool:
    """Whether the modules of a list are layers rather than single matrices or norms."""
    return any(True for _ in layers[0].children())


def _root(path: str, decoder: str) -> str:
    """The outermost module on a path that does not contain the decoder's layers."""
    parts = path.split(".")
    for i in range(1, len(parts) + 1):
        root = ".".join(parts[:i])
        if not decoder.startswith(root + "."):
            return root
    return ""


def _encoder(
    tower: nn.Module, layers: nn.ModuleList, root: str, path: str, config: Any
) -> Stack | None:
    own = _config_of(root, config)
    try:
        stack = read_stack(layers, own, _width(layers, own), 1)
    except (NotUnderstood, ValueError):
        return None
    fields = dict(stack.fields)
    hidden = fields["hidden_size"]
    tokens = _positions(own)
    rest = Module(tower)
    inside = path.removeprefix(root + ".") + "."
    patch = _patch(rest, inside, hidden)
    outside = [part for name, part in tower.named_modules() if not name.startswith(inside[:-1])]
    fields |= {
        "final_norm": any(is_norm(part, hidden) for part in outside),
        "name": "".join(c if c.isalnum() else " " for c in root).strip() or "encoder",
        "bidirectional": True,
        "tokens": tokens,
        "input_width": elements(rest.shapes[patch]) // hidden if patch else None,
        "merge": _merge(own, config),
        "position": "none",
    }
    fields["projector"] = _products(
        m
        for m in rest.matrices.values()
        if not m.name.startswith(inside) and f"{m.name}.weight" != patch
    )
    return Stack(fields, stack.exact, stack.approximate)


def _config_of(root: str, config: Any) -> Any:
    """The part of the config that describes an encoder."""
    sound = any(word in root.lower() for word in ("audio", "speech", "sound"))
    names = ("audio_config", "encoder_config") if sound else ("vision_config", "encoder_config")
    for name in (*names, "encoder", "vision_config", "audio_config"):
        found = getattr(config, name, None)
        if found is not None and not isinstance(found, (dict, str, int)):
            return found
    return config


def _positions(config: Any) -> int:
    size, patch = getattr(config, "image_size", None), getattr(config, "patch_size", None)
    size = size[0] if isinstance(size, (list, tuple)) else size
    patch = patch[0] if isinstance(patch, (list, tuple)) else patch
    if isinstance(size, int) and isinstance(patch, int) and size >= patch:
        return (size // patch) ** 2
    sound = getattr(config, "max_source_positions", None)
    return sound if isinstance(sound, int) else USUAL_POSITIONS


def _merge(own: Any, config: Any) -> int:
    merge = getattr(own, "spatial_merge_size", None) or getattr(config, "spatial_merge_size", None)
    return merge**2 if isinstance(merge, int) else 1


def _patch(tower: Module, layers: str, hidden: int) -> str | None:
    """The first weight outside the layers whose outputs have their width (patch embedding)."""
    for name, shape in tower.shapes.items():
        if name.startswith(layers) or "pos" in name or "token" in name:
            continue
        if len(shape) >= 2 and shape[0] == hidden and name.endswith("weight"):
            return name
    return None


def _products(matrices: Iterable[Matrix]) -> list[Fields]:
    """Matrices as products; equal ones become one product with `times`."""
    shapes = Counter((m.inputs, m.outputs) for m in matrices)
    return [{"inputs": i, "outputs": o, "times": times} for (i, o), times in shapes.items()]


def _connectors(model: nn.Module, decoder: str, towers: Sequence[str]) -> list[Fields]:
    """Matrices between encoders and language model that are inside neither."""
    text = decoder.rpartition(".")[0]
    return _products(
        m
        for m in Module(model).matrices.values()
        if not any(m.name.startswith(p + ".") for p in (text, *towers))
        and m.name.rpartition(".")[2] != "lm_head"
    )


def _modules_outside(model: nn.Module, names: Iterable[str]) -> tuple[str, ...]:
    """Modules with parameters outside the modules that were read."""
    found: dict[str, None] = {}
    for name, _ in model.named_parameters():
        if not any(name.startswith(path + ".") for path in names):
            found[".".join(name.split(".")[:3]).removesuffix(".weight")] = None
    return tuple(found)
