"""Writes a model's numerics as Megatron-LM's options, and reads them back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from cost_models.numerics import RopeScaling
from cost_models.spec import ModelSpec
from planner.frameworks import unwritten_facts
from planner.frameworks.arguments import Arguments
from planner.frameworks.base import Row
from planner.frameworks.megatron import options, patterns
from planner.frameworks.megatron.options import CONFIG
from planner.frameworks.megatron_option_rows import spelled
from planner.frameworks.unwritten_facts import Missing, UnwrittenFact

# Values besides the scaling factor that `--use-rope-scaling` fixes (core/models/common/embeddings/
# rotary_pos_embedding.py), and that latent attention fixes for YaRN (MLATransformerConfig).
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096}
SCALES = {"mscale": "--mscale", "mscale_all_dim": "--mscale-all-dim"}
SQUARED_RELU = "relu2"
# argument_utils.py, _apply_yarn_config_from_args.
YARN_BY_HAND = (
    "since core 0.19 --position-embedding-type yarn, --rotary-scaling-factor and --yarn-..."
)


def rows(model: ModelSpec) -> Iterator[tuple[str, Row]]:
    """The fields of Numerics that have several options, each with its option."""
    numerics = model.numerics
    if options.is_quick(model):
        yield "activation", ("--quick-geglu", "gated MLP, by a sigmoid of 1.702 times the gate")
        if "dense" in model.feed_forwards:  # core/transformer/mlp.py raises
            yield "activation", ("--no-bias-gelu-fusion", "a fusion for GELU and SwiGLU alone")
    if numerics.activation == SQUARED_RELU and not model.gated_mlp:
        yield "activation", ("--squared-relu", CONFIG)
        yield "activation", ("--no-bias-gelu-fusion", "a fusion for GELU alone")
    if patterns.position(model) == "rope":
        yield from _rotary(model)


def _rotary(model: ModelSpec) -> Iterator[tuple[str, Row]]:
    scaling = model.numerics.rope_scaling
    if scaling is None or scaling.factor is None:
        return
    plain = model.mla is None and not patterns.is_hybrid(model)
    if plain and scaling == RopeScaling(kind="llama3", factor=scaling.factor, **LLAMA3):
        yield "rope_scaling", ("--use-rope-scaling", "RoPE scaling of Llama 3.1")
        yield "rope_scaling", ("--rope-scaling-factor", scaling.factor, CONFIG)
    scales = {"mscale": scaling.mscale, "mscale_all_dim": scaling.mscale_all_dim}
    if model.mla is not None and scaling == RopeScaling(
        kind="yarn", factor=scaling.factor, **YARN, **scales
    ):
        yield "rope_scaling", ("--rotary-scaling-factor", scaling.factor, "YaRN factor " + CONFIG)
        for name, option in SCALES.items():
            if (value := scales[name]) is not None:
                yield "rope_scaling", (option, value, CONFIG)


def _written(model: ModelSpec) -> frozenset[str]:
    """The fields of Numerics that are written."""
    own = (row for row, _ in spelled(options.OPTIONS.values(), patterns.records(model)))
    return frozenset(
        (*(row.own for row in own if row.record == "numerics"), *(name for name, _ in rows(model)))
    )


def missing(model: ModelSpec, table: Iterable[UnwrittenFact], yarn: str = "") -> Missing:
    """The facts listed in `table` that the written options do not state.

    yarn: the options that stretch plain rotary positions by YaRN, which only some releases have.
    """
    scaling = model.numerics.rope_scaling
    stretched = yarn and model.mla is None and scaling is not None and scaling.kind == "yarn"
    options_by_hand = {"rope_scaling": yarn} if stretched else {}
    return unwritten_facts.of(model, table, _written(model), options_by_hand)


def read(args: Arguments, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of Numerics that the options state.

    fields: those of the model.
    """
    stated = options.fields(args, "numerics")
    found = {name: value for name, value in stated.items() if value is not None}
    if args.has("--squared-relu"):
        args.mark_read("--no-bias-gelu-fusion")
        found["activation"] = SQUARED_RELU
    if args.has("--quick-geglu"):
        args.mark_read("--no-bias-gelu-fusion")
        found["activation"] = options.QUICK_GELU
    if args.has("--use-rope-scaling"):
        factor = args.number("--rope-scaling-factor", 8.0)
        found["rope_scaling"] = {"kind": "llama3", "factor": factor, **LLAMA3}
    if fields["mla"] is not None and args.number("--rotary-scaling-factor", 1.0) != 1.0:
        scaling = {"kind": "yarn", "factor": args.number("--rotary-scaling-factor"), **YARN}
        for name, option in SCALES.items():
            if args.has(option):
                scaling[name] = args.number(option)
        found["rope_scaling"] = scaling
    return found
