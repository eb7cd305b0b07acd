"""Reads a layer pattern from Megatron-LM's options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.frameworks.arguments import Arguments
from planner.frameworks.megatron import options, windows
from planner.frameworks.megatron.layer_lists import digits_of
from planner.frameworks.megatron.patterns import MAMBA_TAPS, SYMBOLS, VARIANT

Blocks = dict[str, Any]

PATTERN, OLD = "--hybrid-layer-pattern", "--hybrid-override-pattern"
RATIOS = ("--hybrid-attention-ratio", "--hybrid-mlp-ratio")
# Letters of a hybrid model, and the blocks that they stand for.
KINDS = {letter: kind for kind, letter in SYMBOLS.items()} | {
    "D": "latent_attention",
    "+": "latent_attention",
}
EXPAND = 2  # inner width / hidden width of Mamba-2 without --mamba-num-heads


def hybrid_pattern(args: Arguments) -> str:
    """The letters of a hybrid model; empty for another model.

    Raises Unreadable if letters are unknown or missing.
    """
    text = args.text(PATTERN) or args.text(OLD) or _by_ratios(args)
    setting = args.given.get(PATTERN) or args.given.get(OLD) or args.given.get("--is-hybrid-model")
    if not text and args.has("--is-hybrid-model") and setting is not None:
        raise setting.unreadable(f"a hybrid model needs {PATTERN}")
    main, *predicted = text.split("/")
    letters = set(text) - {"|", "/"}
    if text and setting is not None and (letters - set(KINDS) or not main.replace("|", "")):
        raise setting.unreadable(
            f"{setting.name} {text[:100]}: the letters are {' '.join(KINDS)}, | between "
            "stages, and / before a prediction layer"
        )
    if len(set(predicted)) > 1:
        args.refuse("all prediction layers of a pattern must be the same", PATTERN, OLD)
    return text


def _by_ratios(args: Arguments) -> str:
    """The letters of a hybrid model given by ratios of layer kinds; empty for another model.

    Follows mamba_hybrid_layer_allocation.py of core 0.12 to 0.15: attention is spread evenly
    between stretches of Mamba layers, then MLPs evenly among these, right-justified.
    """
    attention, mlp = (args.number(option, 0.0) for option in RATIOS)
    layers = args.integer("--num-layers")
    if not (0.0 < attention + mlp <= 1.0 and min(attention, mlp) >= 0.0 and layers > 0):
        return ""
    attentions, mlps = round(layers * attention), round(layers * mlp)
    mixers = layers - attentions
    letters = _spread(["M"] * layers, "*", mixers / (attentions + 1))
    return "".join(_spread(letters, "-", (mixers - mlps) / mlps) if mlps else letters)


def _spread(letters: list[str], letter: str, stretch: float) -> list[str]:
    """The letters, with `letter` in place of one M after every `stretch` of Ms."""
    found, left = list(letters), stretch
    for place, one in enumerate(letters):
        if one != "M":
            continue
        if left < 0.5:
            found[place] = letter
            left += stretch
        else:
            left -= 1
    return found


def layers_of(text: str) -> int:
    """The number of layers of a hybrid model, without prediction layers."""
    return len(text.split("/")[0].replace("|", ""))


def hybrid_fields(args: Arguments, text: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a hybrid model; fields: those of a GPT model with its other options."""
    main, *predicted = text.split("/")
    letters = main.replace("|", "")
    args.has("--spec")
    if set(letters) & {"D", "+"} and fields["mla"] is None:
        args.assume("letters D and + imply --multi-latent-attention")
    attention = _attention(args, fields, len(letters))

    def block(place: int, letter: str) -> dict[str, Any]:
        return attention[place] if letter in "*D+" else _plain(args, KINDS[letter], fields)

    layers = [[block(place, letter)] for place, letter in enumerate(letters)]
    found = _fields(fields, layers) | {"mtp_num_layers": len(predicted)}
    if predicted and predicted[0] != letters[-1]:
        first = next((place for place, letter in enumerate(letters) if letter in "*D+"), 0)
        found["mtp_layer"] = [block(first, letter) for letter in predicted[0]]
    return found


def gpt_fields(
    args: Arguments, fields: dict[str, Any], experts: Sequence[int]
) -> dict[str, Any] | None:
    """The fields of a GPT model that needs a layer pattern; None if it needs none.

    experts: 1 for each layer with experts.
    """
    variant = args.text(VARIANT)
    uneven = windows.uneven(args, len(experts))
    if not (variant or uneven or args.has("--attention-output-gate", "--no-rope-freq")):
        return None
    mixers = _attention(args, fields, len(experts))
    if variant in ("gated_delta_net", "gdn"):
        linear = digits_of(args, "--linear-attention-freq", len(experts), 0)
        if not linear:
            args.refuse(f"{VARIANT} {variant} needs --linear-attention-freq", VARIANT)
        delta = _delta_net(args)
        mixers = [
            delta if one else mixer
            for one, mixer in zip(linear or [1] * len(mixers), mixers, strict=True)
        ]
    elif variant == "gdn2":
        args.assume("gdn2 is costed as full attention")
    kinds = ["experts" if one else "mlp" for one in experts]
    return _fields(fields, [[m, {"kind": kind}] for m, kind in zip(mixers, kinds, strict=True)])


def _fields(fields: dict[str, Any], layers: list[list[Blocks]]) -> dict[str, Any]:
    """The fields with the shortest repeating layer pattern in place of those that it covers."""
    moe = fields["moe"]
    if moe is not None:
        places = ("num_dense_layers", "layer_frequency", "layer_offset")
        moe = {name: value for name, value in moe.items() if name not in places}
    left = {"sliding_window": None, "full_attention_period": None, "moe": moe}
    pattern = layers[: _period(layers)]
    return fields | left | {"num_layers": len(layers), "layer_pattern": pattern}


def _period(items: Sequence[Any]) -> int:
    """The smallest n for which every item equals the one n places before it."""
    border, borders = 0, [0]  # length of each prefix's longest border (prefix = suffix)
    for item in items[1:]:
        while border and items[border] != item:
            border = borders[border - 1]
        border += items[border] == item
        borders.append(border)
    return len(items) - borders[-1]


def _attention(args: Arguments, fields: dict[str, Any], layers: int) -> list[Blocks]:
    """An attention block for each layer."""
    if fields["mla"] is not None:
        return [_latent(args)] * layers
    block: Blocks = {"kind": "attention"}
    if args.has("--attention-output-gate"):
        block["gate"] = "element"
    window = fields.get("sliding_window")
    slides = windows.slides(args, layers)
    unplaced = digits_of(args, "--no-rope-freq", layers, 1) or [0] * layers
    return [
        block | ({"window": window} if window and near else {}) | ({"rope": False} if bare else {})
        for near, bare in zip(slides, unplaced, strict=True)
    ]


def _latent(args: Arguments) -> Blocks:
    if args.text(VARIANT) != "dsa" and "D" not in args.text(PATTERN):
        return {"kind": "latent_attention"}
    args.has("--no-rope-fusion", "--dsa-indexer-loss-coeff", "--dsa-indexer-use-sparse-loss")
    if args.integer("--dsa-indexer-topk-freq", 1) > 1:
        args.assume("layers that reuse an earlier indexer's keys are costed with an indexer")
    return {"kind": "latent_attention", "indexer": options.fields(args, "indexer")}


def _plain(args: Arguments, kind: str, fields: dict[str, Any]) -> Blocks:
    if kind == "mamba2":
        return _mamba(args, fields["hidden_size"])
    return _delta_net(args) if kind == "gated_delta_net" else {"kind": kind}


def _mamba(args: Arguments, hidden: int) -> Blocks:
    def heads(read: Mapping[str, int]) -> int:
        return max(EXPAND * hidden // read["head_dim"], 1)

    own = options.fields(args, "mamba2", num_heads=heads)
    return {"kind": "mamba2", **own, "convolution": MAMBA_TAPS}


def _delta_net(args: Arguments) -> Blocks:
    return {"kind": "gated_delta_net", **options.fields(args, "delta_net")}
