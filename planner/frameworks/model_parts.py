"""Parts of a model, other than its layers' kinds of blocks, that few frameworks support."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cost_models.blocks import SUBLAYERS, kind_of
from cost_models.blocks.experts import Experts
from cost_models.blocks.mlp import MLP
from cost_models.spec import ModelSpec

Has = Callable[[ModelSpec], bool]

# Name -> whether a model has the part, and its title.
PARTS: dict[str, tuple[Has, str]] = {
    "residual_streams": (lambda m: m.residual_streams > 1, "hyper-connections"),
    "per_layer_inputs": (
        lambda m: m.per_layer_input_size is not None,
        "a separate embedding per layer",
    ),
    "encoders": (lambda m: bool(m.encoders), "an image or audio encoder"),
    "embedding_size": (
        lambda m: m.embedding_size not in (None, m.hidden_size),
        "an embedding width other than the hidden size",
    ),
    "bidirectional": (lambda m: m.bidirectional, "bidirectional attention"),
    "no_final_norm": (lambda m: not m.final_norm, "a model without a final norm"),
    "other_parameters": (lambda m: m.other_parameters > 0, "parameters outside of all blocks"),
    "mtp_layer": (
        lambda m: bool(m.mtp_layer),
        "prediction layers with other blocks than the last layer",
    ),
    "zero_experts": (
        lambda m: m.moe is not None and m.moe.zero_experts > 0,
        "zero-computation experts",
    ),
    "expert_latents": (
        lambda m: m.moe is not None and m.moe.latent_size is not None,
        "routed experts with a latent width",
    ),
}
# Blocks that every framework supports, with a layer pattern or without.
PLAIN = {MLP(), Experts()}
EVERY_PART = tuple(PARTS)
EVERY_BLOCK = tuple(map(kind_of, SUBLAYERS))


def unsaid(model: ModelSpec, blocks: tuple[str, ...], parts: tuple[str, ...]) -> Iterator[str]:
    """Sentences on what a model has beyond these kinds of blocks and parts."""
    pattern = {block for layer in model.layer_pattern for block in layer} - PLAIN
    others = sorted({block.label for block in pattern if block.kind not in blocks})
    if others:
        yield f"no option for layers with {', '.join(others)}"
    missing = [what for name, (has, what) in PARTS.items() if name not in parts and has(model)]
    if missing:
        yield f"no option for {', '.join(missing)}"
