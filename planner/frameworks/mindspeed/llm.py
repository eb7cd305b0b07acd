"""Translates MindSpeed-LLM's own options to Megatron-LM's, which are then read.

Its list of options is llm.json; tests/oracles/declared_arguments.py writes it.
"""

from __future__ import annotations

from typing import Any, get_args

from cost_models.adapters import AdapterTarget
from cost_models.package_files import table
from planner.frameworks.arguments import Arguments
from planner.frameworks.megatron import layout
from planner.frameworks.megatron.changes import Changes
from planner.frameworks.megatron.patterns import VARIANT

PACKAGE = "planner.frameworks.mindspeed"
_NAMES = table(PACKAGE, "names.json")
# Its own names of Megatron-LM's options.
CHANGES = Changes(_NAMES["llm_names"])
# Options that build layers which a ModelSpec cannot have, unless they are 0 or 1.
UNSUPPORTED_OPTIONS: dict[str, str] = _NAMES["llm_unsupported"]
# Switches of kernels that cost nothing extra or that the cost model assumes; options for files and
# formats, or for other kernels of the same cost.
FREE = (*_NAMES["kernels"], *_NAMES["free"])
LORA_TARGETS = {name: name for name in get_args(AdapterTarget)}


def flags() -> dict[str, Any]:
    """The options that MindSpeed-LLM adds, and those that it gives more choices."""
    found: dict[str, Any] = table(PACKAGE, "llm.json")["flags"]
    return found


def translate(args: Arguments) -> None:
    """Replaces those options of MindSpeed-LLM that depend on others by Megatron-LM's.

    Raises Unreadable if one builds layers that a ModelSpec cannot have.
    """
    for name, what in UNSUPPORTED_OPTIONS.items():
        if name in args.given and args.given[name].value not in ("0", "1"):
            one = args.given[name]
            raise one.unreadable(
                f"{name}: {what}, which is not read from options; give the model by its name "
                "(--model)"
            )
    if "--enable-dsa-indexer" in args.given:
        args.say(VARIANT, "dsa", "--enable-dsa-indexer")
    _linear_attention(args)
    _experts(args)
    _windows(args)
    _stages(args)


def _linear_attention(args: Arguments) -> None:
    """Qwen3-Next's delta nets: the last layer of every interval has full attention."""
    name = "--full-attention-interval"
    if args.integer(name) > 1:
        args.say(VARIANT, "gated_delta_net", name)
        args.say("--linear-attention-freq", args.text(name), name)
        args.say("--attention-output-gate", None, name)


def _experts(args: Arguments) -> None:
    """Sets the layers that have experts, and the width of shared experts."""
    layers, shared = args.integer("--num-layers"), args.integer("--n-shared-experts")
    if shared and "--moe-shared-expert-intermediate-size" not in args.given:
        width = args.integer("--moe-ffn-hidden-size") or args.integer("--ffn-hidden-size")
        args.say("--moe-shared-expert-intermediate-size", str(shared * width), "--n-shared-experts")
    dense, name = args.integer("--first-k-dense-replace"), "--moe-layer-freq"
    text = args.text(name, "1")
    if "--num-experts" not in args.given or not text.lstrip("-").isdigit():
        return
    step = abs(int(text)) or 1  # -1 and 1: every layer
    kinds = [int(place >= dense and place % step == 0) for place in range(layers)]
    noop = noop_layers(args)
    kept = [kind for place, kind in enumerate(kinds) if place not in noop]
    about = name if name in args.given else "--num-experts"
    args.say(name, "+".join(f"[{kind}]*1" for kind in kept), about)


def _windows(args: Arguments) -> None:
    """Sets sliding windows; with an interleaved size, in every other layer."""
    for name, skip in (("--sliding-window-size", ""), ("--interleave-sliding-window", "2")):
        if args.integer(name) > 0:
            args.say("--window-size", f"({args.integer(name) - 1},0)", name)
            if skip:
                args.say("--window-attn-skip-freq", skip, name)


def noop_layers(args: Arguments) -> set[int]:
    """Layers that do nothing and have no weights."""
    text = args.text("--noop-layers").strip(", ")
    try:
        return {int(part) for part in text.split(",")} if text and text != "None" else set()
    except ValueError:
        one = args.given["--noop-layers"]
        raise one.unreadable(
            f"--noop-layers {text[:60]}: layer numbers with commas are needed"
        ) from None


def _stages(args: Arguments) -> None:
    """Sets the layers of each pipeline chunk if they are listed or some layers are no-ops."""
    listed, away = args.text("--num-layer-list"), noop_layers(args)
    layers, pp = args.integer("--num-layers"), args.positive("--pipeline-model-parallel-size")
    if listed and not away:
        counts = [int(part) for part in listed.split(",") if part.strip().isdigit()]
        about = "--num-layer-list"
    elif away:
        about, counts = "--noop-layers", _chunks(args, layers, pp, away)
        args.say("--num-layers", str(layers - len(away & set(range(layers)))), about)
    else:
        return
    if pp > 1 and counts:
        args.given.pop("--num-layers-per-virtual-pipeline-stage", None)
        args.say(layout.OPTION, "|".join("t" * n for n in counts), about)


def _chunks(args: Arguments, layers: int, pp: int, away: set[int]) -> list[int]:
    """The number of layers with weights in each of equal chunks."""
    each = args.integer("--num-layers-per-virtual-pipeline-stage")
    if args.has("--schedules-method"):
        each = layers // (2 * pp)
    each = each or max(layers // pp, 1)
    starts = range(0, layers, each)
    return [sum(place not in away for place in range(one, one + each)) for one in starts]


def adapter_fields(args: Arguments) -> dict[str, Any]:
    """The TrainingSpec fields for LoRA and for the loss."""
    found: dict[str, Any] = {}
    rank = args.integer("--lora-r")
    if rank > 0 and args.has("--lora-target-modules"):
        targets = args.words("--lora-target-modules")
        kept = tuple(one for one in targets if one in LORA_TARGETS)
        if left := [one for one in targets if one not in LORA_TARGETS]:
            args.assume(f"adapters of {', '.join(left)} are not modelled")
        if kept:
            found |= {"lora_rank": rank, "lora_targets": kept}
    args.mark_read("--lora-alpha", "--lora-fusion", "--lora-load", "--lora-ckpt-filter")
    if args.text("--stage") == "dpo":
        found["loss"] = "dpo"
    return found
