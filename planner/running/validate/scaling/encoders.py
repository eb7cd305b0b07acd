"""Scales encoders down: layers of every kind remain, and images that still split over all ranks."""

from __future__ import annotations

from typing import Any

from cost_models.blocks.attention import Attention
from cost_models.blocks.products import Product
from cost_models.spec import EncoderSpec, ModelSpec
from planner.running.validate.scaling.patterns import Scale

# Limits on the images of a sample, and on layers if all are of one kind.
_MOST_IMAGES, _LAYERS = 2, 2


def narrowed(
    model: ModelSpec, hidden: int, scale: Scale, parts: int, tokens: int | None
) -> tuple[EncoderSpec, ...]:
    """The encoders for a model that is scaled down to width `hidden`.

    parts: the number of ranks that may split an image; tokens: encoder positions of a sample, if
    the training gives them.
    """
    return tuple(_encoder(e, hidden, scale, parts, tokens) for e in model.encoders)


def _encoder(
    encoder: EncoderSpec, hidden: int, scale: Scale, parts: int, tokens: int | None
) -> EncoderSpec:
    every = tokens or encoder.tokens
    span = 2 * parts * encoder.merge
    kinds = tuple(dict.fromkeys(encoder.layer_pattern))
    update: dict[str, Any] = {
        "num_layers": min(encoder.num_layers, max(_LAYERS, len(kinds))),
        "hidden_size": scale.width(encoder.hidden_size),
        "num_attention_heads": parts,
        "num_query_groups": parts,
        "head_dim": scale.dim(encoder.head_dim),
        "ffn_hidden_size": scale.width(encoder.ffn_hidden_size),
        "layer_pattern": tuple(tuple(_chunked(b, span) for b in layer) for layer in kinds),
        "tokens": span * min(every // (encoder.span or every), _MOST_IMAGES),
        "span": span,
        "input_width": encoder.input_width and scale.width(encoder.input_width),
    }
    if encoder.max_position_embeddings is not None:
        update["max_position_embeddings"] = span
    small = encoder.model_copy(update=update)
    return small.model_copy(update={"projector": _projector(encoder, small, hidden, scale)})


def _chunked(block: Any, span: int) -> Any:
    """The block; if it attends within chunks, these become halves of an image."""
    if not isinstance(block, Attention) or block.chunk is None:
        return block
    return block.model_copy(update={"chunk": span // 2})


def _projector(
    encoder: EncoderSpec, small: EncoderSpec, hidden: int, scale: Scale
) -> tuple[Product, ...]:
    """The projector from the encoder's new width, with as many merged positions, to the model's."""
    if not encoder.projector:
        return ()
    joined = encoder.projector[0].inputs // encoder.hidden_size
    inner = [scale.width(product.outputs) for product in encoder.projector[:-1]]
    widths = [joined * small.hidden_size, *inner, hidden]
    return tuple(
        product.model_copy(update={"inputs": widths[i], "outputs": widths[i + 1]})
        for i, product in enumerate(encoder.projector)
    )
