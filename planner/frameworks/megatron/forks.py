"""Options of forks of Megatron-LM that shape the model: those of BigCode, FlagScale, Pai."""

from __future__ import annotations

from math import ceil
from typing import Any

from cost_models.package_files import table
from planner.frameworks.arguments import Arguments

OPTIONS: dict[str, dict[str, Any]] = table("planner.frameworks.megatron", "forks.json")["flags"]


# Pai's names of options that Megatron-LM has too.
_LATENT = {"--qk-nope-head-dim": "--qk-head-dim", "--qk-rope-head-dim": "--qk-pos-emb-head-dim"}
# Switches of forks -> the option of Megatron-LM, and its value if it takes one.
_SWITCHES = {
    "--overlapped-distributed-optimizer": "--use-distributed-optimizer",
    "--RMSNorm": "--normalization",
    "--causal-lm": "--untie-embeddings-and-output-weights",
}
_VALUES = {"--normalization": "RMSNorm"}
_SHARED = "--moe-shared-expert-intermediate-size"


def translate(args: Arguments) -> None:
    """Replaces options of other names by Megatron-LM's: Pai's, and those of its releases to 3.0."""
    if args.has("--activations-checkpoint-method"):
        args.rename("--activations-checkpoint-method", "--recompute-method")
        args.say("--recompute-granularity", "full", "--recompute-method")
    args.rename("--activations-checkpoint-num-layers", "--recompute-num-layers")
    for name, option in _LATENT.items():
        if args.has(name):
            args.rename(name, option)
            args.say("--multi-latent-attention", None, option)
    _same_by_other_names(args)
    args.has("--enable-shared-expert")
    args.rename("--shared-moe-ffn-hidden-size", _SHARED)
    if count := args.integer("--num-shared-experts"):
        width = count * args.integer("--moe-ffn-hidden-size")
        args.say(_SHARED, str(width), "--num-shared-experts")


def _same_by_other_names(args: Arguments) -> None:
    """Options of Megatron-LLaMA, MegaBlocks and BigCode that Megatron-LM has by other names."""
    for name, option in _SWITCHES.items():
        if args.has(name) and option not in args.given:
            args.say(option, _VALUES.get(option), name)
    args.rename("--tokenizer-file", "--tokenizer-model")
    if args.has("--moe-num-experts") and "--moe-expert-model-parallelism" in _unknown(args):
        found = args.given["--moe-num-experts"]
        raise found.unreadable(
            "--moe-expert-model-parallelism: MegaBlocks splits experts over as many ranks as "
            "divide them; give the model by its name (--model)"
        )
    args.rename("--moe-num-experts", "--num-experts")
    args.rename("--moe-top-k", "--moe-router-topk")


def _unknown(args: Arguments) -> set[str]:
    return {one.name for one in args.unknown}


def one_query_group(args: Arguments) -> bool:
    """Whether all query heads share one key/value head."""
    return args.text("--attention-head-type") == "multiquery"


def ffn_width(args: Arguments, hidden: int) -> int | None:
    """The MLP's width by Llama's formula with --multiple-of; None if that does not apply."""
    step = args.integer("--multiple-of")
    if step < 1 or args.has("--ffn-hidden-size"):
        return None
    width = int(args.number("--hidden-dim-multiplier", 1.0) * int(4 * hidden * 2 / 3))
    return step * ceil(width / step)
