"""Encoders of the training script: their entries of CONFIG, and rules for what it cannot build.

The first pipeline stage holds them; their outputs are the first tokens of each sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from cost_models.blocks.attention import Attention
from cost_models.blocks.mlp import MLP
from cost_models.plans import Plans
from cost_models.spec import EncoderSpec, ModelSpec, TrainingSpec
from planner.constraints import BoolArray, Context, Rule
from planner.frameworks.base import rule, unsupported
from planner.frameworks.pytorch import patterns
from planner.frameworks.rules import fixed_part, is_named

# Fields that the blocks of an encoder read, as blocks of the model do.
STACK = (
    "num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "head_dim",
    "ffn_hidden_size", "gated_mlp", "qkv_bias", "attention_output_bias", "mlp_bias", "norm",
    "norm_bias", "qk_norm", "final_norm", "bidirectional", "position", "max_position_embeddings",
    "hidden_dropout", "attention_dropout",
)  # fmt: skip
OWN = ("tokens", "span", "input_width", "merge")
ENCODERS, POSITIONS, FROZEN = "encoders", "encoder_tokens", "frozen"
KEYS = (ENCODERS, POSITIONS, FROZEN)


def entries(model: ModelSpec, training: TrainingSpec) -> Iterator[tuple[str, Any, str]]:
    """Rows: entry, value, reason; none for a model without encoders."""
    if model.encoders:
        each = [_entry(one, model) for one in model.encoders]
        yield ENCODERS, each, "image or sound encoders, for the first tokens of a sample"
        yield POSITIONS, training.encoder_tokens, "positions per sample; None: encoder default"
        yield FROZEN, list(training.frozen), "frozen parts"


def _entry(encoder: EncoderSpec, model: ModelSpec) -> dict[str, Any]:
    fields = {name: getattr(encoder, name) for name in (*OWN, *STACK)}
    fields["projector"] = [[one.inputs, one.outputs] for one in encoder.projector]
    if patterns.layers(model):
        fields["blocks"], fields["layer_pattern"] = patterns.entries(encoder)
    return fields


def read(config: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The encoders and training fields of a CONFIG block; raises ValueError."""
    given = config.get(ENCODERS, [])
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise ValueError("encoders must be a list of dictionaries")
    found = []
    for one in given:
        fields = {name: one[name] for name in (*OWN, *STACK) if name in one}
        fields["projector"] = _projector(one.get("projector", []))
        found.append(fields | {"layer_pattern": patterns.pattern(one)})
    training = {name: config[name] for name in (POSITIONS, FROZEN) if name in config}
    return found, training


def _projector(pairs: Any) -> list[dict[str, Any]]:
    whole = isinstance(pairs, list) and all(isinstance(pair, list) for pair in pairs)
    if not whole or any(len(pair) != 2 for pair in pairs):
        raise ValueError("a projector must be a list of pairs of inputs and outputs")
    return [{"inputs": inputs, "outputs": outputs} for inputs, outputs in pairs]


def _all(fits: Callable[[EncoderSpec, ModelSpec], bool], text: str) -> Rule:
    """A rule that every encoder has to satisfy."""
    return fixed_part(lambda m: all(fits(one, m) for one in m.encoders), text)


def _has_plain_layers(encoder: EncoderSpec) -> bool:
    """Whether its layers are plain attention and MLPs, with no options but chunk and rope."""
    if encoder.mla or encoder.moe or encoder.attention_sinks or encoder.residual_streams > 1:
        return False
    if encoder.sliding_window is not None:
        return False
    blocks = {block for layer in encoder.layer_pattern for block in layer}
    return all(
        block == Attention(chunk=block.chunk, rope=block.rope)
        if isinstance(block, Attention)
        else isinstance(block, MLP) and block.gated in (None, encoder.gated_mlp)
        for block in blocks
    )


def _whole_layers(encoder: EncoderSpec) -> bool:
    """Whether each layer is attention followed by an MLP."""
    return all([b.kind for b in layer] == ["attention", "mlp"] for layer in encoder.layer_pattern)


def _is_chain(encoder: EncoderSpec, model: ModelSpec) -> bool:
    """Whether the projector's matrices are a chain from the encoder's width to the model's."""
    widths = [(one.inputs, one.outputs) for one in encoder.projector]
    starts = [outputs for _, outputs in widths[:-1]]
    first, last = (widths[0][0], widths[-1][1]) if widths else (encoder.hidden_size,) * 2
    return (
        all(one.times == 1 for one in encoder.projector)
        and [inputs for inputs, _ in widths[1:]] == starts
        and first in (encoder.hidden_size, encoder.merge * encoder.hidden_size)
        and last == model.hidden_size
    )


def _span(encoder: EncoderSpec) -> int:
    return encoder.span or encoder.tokens


def _positions(encoder: EncoderSpec, training: TrainingSpec) -> int:
    return training.encoder_tokens or encoder.tokens


def _vectors(c: Context) -> int:
    """Tokens of a sample that come from encoders."""
    return sum(_positions(one, c.training) // one.merge for one in c.model.encoders)


def _whole_images(c: Context) -> bool:
    whole = (
        _positions(one, c.training) % _span(one) == _span(one) % one.merge == 0
        for one in c.model.encoders
    )
    return all(whole) and _vectors(c) <= c.training.seq_length


def _divides(c: Context, p: Plans) -> BoolArray:
    """Whether each rank's part of an image is a whole number of output vectors."""
    gathers = is_named(p, "cp_kind", "all_gather") & (p.cp > 1)
    parts = p.cp * np.where(gathers, 2, 1), p.cp * np.where(p.sequence_parallel > 0, p.tp, 1)
    legal = np.asarray(True)
    for one in c.model.encoders:
        for count in parts:
            legal = legal & ((count == 1) | (_span(one) % (count * one.merge) == 0))
    return legal


def _heads(c: Context, p: Plans) -> BoolArray:
    legal = np.asarray(True)
    ranks = p.tp * np.where(is_named(p, "cp_kind", "a2a"), p.cp, 1)
    for one in c.model.encoders:
        legal = legal & (one.num_query_groups % ranks == 0) & (one.ffn_hidden_size % p.tp == 0)
    return legal


def _chunks_fit(encoder: EncoderSpec) -> bool:
    """Whether the chunks of its attention divide an image evenly."""
    return not any(_span(encoder) % chunk for chunk in _chunks(encoder))


def _chunks(encoder: EncoderSpec) -> set[int]:
    blocks = (block for layer in encoder.layer_pattern for block in layer)
    return {b.chunk for b in blocks if isinstance(b, Attention) and b.chunk}


RULES: tuple[Rule, ...] = (
    _all(
        lambda e, m: _has_plain_layers(e) and _whole_layers(e),
        "encoder layers must be attention and MLP",
    ),
    _all(
        lambda e, m: e.parallel_residual is False and e.norms_per_layer == 2,
        "a layer of an encoder has two norms, one before each part",
    ),
    _all(lambda e, m: e.qk_norm != "full", "query/key norms of encoders are per head"),
    _all(
        lambda e, m: e.position != "alibi" and (e.position != "rope" or e.head_dim % 2 == 0),
        "encoder positions must be learned, rotary with even head width, or none",
    ),
    _all(
        lambda e, m: e.position != "learned" or _span(e) <= (e.max_position_embeddings or 0),
        "an encoder's position table needs a row for each position of an image",
    ),
    _all(lambda e, m: e.input_width is not None, "an encoder needs patches or frames as input"),
    _all(
        lambda e, m: not e.other_parameters,
        "encoders cannot have parameters of which only the number is known",
    ),
    _all(_is_chain, "a projector must be a chain of matrices from the encoder to the model"),
    _all(lambda e, m: _chunks_fit(e), "attention chunks of an encoder must divide an image"),
    fixed_part(
        lambda m: not m.encoders or not any(b.kind == "cross_attention" for b in patterns.each(m)),
        "encoder outputs replace tokens: no cross-attention",
    ),
    unsupported(
        lambda c, p: (
            (p.cp == 1)
            | is_named(p, "cp_kind", "a2a")
            | (not any(_chunks(one) for one in c.model.encoders))
        ),
        "attention chunks need whole images: context parallelism by all-to-all (a2a)",
    ),
    unsupported(
        lambda c, p: _whole_images(c),
        lambda c, p: (
            f"images must be whole and fit into a sample of {c.training.seq_length} tokens, got "
            f"{_vectors(c)} image tokens"
        ),
        "degrees",
    ),
    rule(
        "cp_seq",
        _divides,
        lambda c, p: (
            f"images of {', '.join(str(_span(one)) for one in c.model.encoders)} positions do not "
            f"split over cp {p.cp} x tp {p.tp} into whole output vectors"
        ),
        "groups",
    ),
    rule(
        "heads_not_divisible",
        _heads,
        lambda c, p: (
            f"heads and MLPs of encoders must divide over tp {p.tp}"
            + (f" and cp {p.cp}" if p.cp > 1 else "")
        ),
        "degrees",
    ),
)
PARTIAL_TRAINING: tuple[Rule, ...] = (
    unsupported(
        lambda c, p: not c.training.lora_rank and set(c.training.frozen) <= {ENCODERS},
        "the script trains all weights, or all except encoders",
        "degrees",
    ),
    unsupported(
        lambda c, p: c.training.frozen_dtype == "as trained",
        "frozen weights are stored in the type of the computation, not in nf4",
        "degrees",
    ),
)
