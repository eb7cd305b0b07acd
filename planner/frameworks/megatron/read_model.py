"""Reads the fields of a ModelSpec from Megatron-LM's options."""

from __future__ import annotations

from typing import Any

from planner.frameworks.arguments import Arguments
from planner.frameworks.bash import ProgramCall
from planner.frameworks.megatron import forks, options, windows
from planner.frameworks.megatron.layer_lists import listed
from planner.frameworks.megatron.read_patterns import (
    gpt_fields,
    hybrid_fields,
    hybrid_pattern,
    layers_of,
)
from planner.frameworks.megatron_option_readers import (
    LENGTHS,
    PADDED,
    VOCABULARY,
    has_null_tokenizer,
    mlp_width,
    position_rows,
    query_groups,
    tokens,
    vocabulary,
)
from planner.frameworks.read_results import Unreadable

REQUIRED = ("--hidden-size", "--num-attention-heads")
POSITIONS = {
    "learned_absolute": "learned",
    "rope": "rope",
    "yarn": "rope",
    "mrope": "rope",
    "none": "none",
}
ANY_VOCABULARY = 128_256


def _required(args: Arguments, launch: ProgramCall, name: str, old: str = "") -> int:
    for option in (name, old):
        if option and args.has(option):
            return args.positive(option)
    wrong = next((one for one in args.refusals if one.setting and one.setting.name == name), None)
    if wrong is not None and wrong.setting is not None:
        raise Unreadable(wrong.reason.text, wrong.setting.file, wrong.setting.line)
    raise launch.program.unreadable(f"{name} is missing")


def position_kind(args: Arguments) -> str:
    if args.has("--use-rotary-position-embeddings"):
        return "rope"
    kind = args.text("--position-embedding-type", "learned_absolute")
    if kind not in POSITIONS:
        args.assume(f"{kind} positions are not modelled: none assumed")
    return POSITIONS.get(kind, "none")


def _vocabulary(args: Arguments, hidden: int) -> int:
    """The size that is given, or else the known one of the tokenizer, or a noted guess."""
    if (given := vocabulary(args)) is not None:
        if has_null_tokenizer(args):
            args.assume(f"NullTokenizer has {VOCABULARY} tokens (before core 0.18 one more)")
        return given
    for option in PADDED:
        if args.has(option) and args.words(option):
            args.assume(f"the vocabulary size is that of {option}")
            return args.positive(option)
    return tokens(args, hidden, ANY_VOCABULARY)


def model_fields(args: Arguments, launch: ProgramCall) -> dict[str, Any]:
    """The fields of a ModelSpec."""
    hybrid = hybrid_pattern(args)
    if hybrid:
        args.has("--num-layers")  # counts as looked up; the pattern gives the number
        layers = layers_of(hybrid)
        return hybrid_fields(args, hybrid, _fields(args, launch, layers))
    layers = _required(args, launch, "--num-layers", "--encoder-num-layers")
    fields = _fields(args, launch, layers)
    return gpt_fields(args, fields, _experts_of(args, fields, layers)) or fields


def _experts_of(args: Arguments, fields: dict[str, Any], layers: int) -> list[int]:
    """1 for each layer with experts, 0 for the others."""
    if fields["moe"] is None:
        return [0] * layers
    try:
        return listed(args.text("--moe-layer-freq", "1"), layers)
    except ValueError:
        return [1] * layers  # _expert_layers has refused the option


def _fields(args: Arguments, launch: ProgramCall, layers: int) -> dict[str, Any]:
    """The fields of a model whose layers differ only in windows and experts."""
    hidden, heads = (_required(args, launch, name) for name in REQUIRED)
    seq = _required(args, launch, *LENGTHS)
    own = options.fields(args, "model", ffn_hidden_size=mlp_width(args, hidden))
    ffn = forks.ffn_width(args, hidden) or own["ffn_hidden_size"]
    if not args.has("--kv-channels") and hidden % heads:
        args.refuse(
            f"--hidden-size {hidden} is not a multiple of --num-attention-heads {heads}; give "
            "--kv-channels",
            "--hidden-size",
        )
    latent = args.has("--multi-latent-attention")
    groups = _groups(args, heads, latent)
    position = _position(args, seq)
    biases = not args.has("--disable-bias-linear")
    moe = _experts(args, layers, ffn, biases)
    qk_norm = args.has("--qk-layernorm")
    if latent and not qk_norm:
        args.assume("latent attention is costed with --qk-layernorm, which is not given")
    return own | {
        "num_layers": layers,
        "num_query_groups": groups,
        "ffn_hidden_size": ffn,
        "gated_mlp": own["gated_mlp"] or args.has("--quick-geglu"),
        "vocab_size": _vocabulary(args, hidden),
        "qkv_bias": (biases or args.has("--add-qkv-bias")) and not latent,
        "attention_output_bias": biases,
        "mlp_bias": biases and _has_dense_layers(moe, layers),
        "qk_norm": "head" if qk_norm and not latent else "none",
        "attention_sinks": _sinks(args),
        "mla": options.fields(args, "mla") if latent else None,
        "moe": moe,
        **position,
        **windows.fields(args, layers),
    }


def _groups(args: Arguments, heads: int, latent: bool) -> int:
    groups = heads
    if args.has("--group-query-attention"):
        groups = args.positive("--num-query-groups", 1)
    elif forks.one_query_group(args):
        groups = 1
    elif args.integer("--num-query-groups", heads) not in (heads, 1):
        args.assume("--num-query-groups is ignored without --group-query-attention")
    return query_groups(args, heads, heads if latent else groups, "--num-query-groups")


def _position(args: Arguments, seq: int) -> dict[str, Any]:
    kind, rows = position_kind(args), position_rows(args, seq)
    limited = kind == "learned" or rows > seq
    return {"position": kind, "max_position_embeddings": rows or seq if limited else None}


def _has_dense_layers(moe: dict[str, Any] | None, layers: int) -> bool:
    return moe is None or any(
        i < moe["num_dense_layers"] or (i - moe["layer_offset"]) % moe["layer_frequency"]
        for i in range(layers)
    )


def _sinks(args: Arguments) -> bool:
    kind = args.text("--softmax-type", "vanilla")
    if kind == "off-by-one":
        args.assume("the off-by-one softmax is costed as the plain one")
    return kind == "learnable"


def _expert_layers(args: Arguments, layers: int) -> dict[str, int]:
    """Which layers have experts, as the three fields of a MoESpec for it."""
    text = args.text("--moe-layer-freq", "1")
    try:
        pattern = listed(text, layers)
        if 1 not in pattern:
            raise ValueError("no layer has experts")
    except ValueError as error:
        args.refuse(f"--moe-layer-freq {text}: {error}", "--moe-layer-freq")
        pattern = [1] * layers
    first = pattern.index(1)
    for dense in (0, first):
        for step in range(1, min(layers, 64) + 1):
            for offset in range(step):
                if all(
                    bool(kind) == (i >= dense and (i - offset) % step == 0)
                    for i, kind in enumerate(pattern)
                ):
                    return {
                        "num_dense_layers": dense,
                        "layer_frequency": step,
                        "layer_offset": offset,
                    }
    dense = pattern.count(0)
    args.assume(f"--moe-layer-freq {text}: the {dense} dense layers are assumed to come first")
    return {"num_dense_layers": dense, "layer_frequency": 1, "layer_offset": 0}


def _experts(args: Arguments, layers: int, ffn: int, biases: bool) -> dict[str, Any] | None:
    if not args.has("--num-experts"):
        return None
    count = args.positive("--num-experts")
    if count < 2:
        args.assume("one expert is costed as a dense layer")
        return None
    own = options.fields(args, "moe", expert_ffn_hidden_size=ffn)
    if (top := own["top_k"]) > count:
        args.refuse(f"--moe-router-topk {top} is above the {count} experts", "--moe-router-topk")
        own["top_k"] = count
    if not args.has("--moe-grouped-gemm"):
        args.assume("experts are costed with --moe-grouped-gemm, which is not given")
    groups, chosen = own["num_groups"], own["top_k_groups"]
    if groups == 1:
        groups = chosen = None
    if (groups is None) != (chosen is None) or (
        groups and chosen and (count % groups or chosen > groups)
    ):
        args.refuse(
            f"--moe-router-group-topk {chosen} of --moe-router-num-groups {groups} with {count} "
            "experts: both options and groups of equal size are needed",
            "--moe-router-num-groups",
            "--moe-router-group-topk",
        )
        groups = chosen = None
    score = args.text("--moe-router-score-function", "softmax")
    if own["score_correction_bias"] and score == "softmax":
        args.refuse(
            "--moe-router-enable-expert-bias needs --moe-router-score-function sigmoid",
            "--moe-router-enable-expert-bias",
        )
    args.has("--moe-router-pre-softmax")
    return own | {
        "num_groups": groups,
        "top_k_groups": chosen,
        "router_bias": biases,
        "expert_bias": biases,
        "latent_bias": biases and own["latent_size"] is not None,
        **_expert_layers(args, layers),
    }
