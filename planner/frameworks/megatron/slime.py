"""slime's launches: the training part of reinforcement learning, in Megatron-LM's words."""

from __future__ import annotations

from typing import Any

from planner.frameworks.arguments import Arguments
from planner.frameworks.bash import Launch
from planner.frameworks.scripts import World

_WHOLE = {"kind": "store", "type": "int"}
OPTIONS: dict[str, dict[str, Any]] = {
    "--actor-num-nodes": _WHOLE,
    "--actor-num-gpus-per-node": _WHOLE,
    "--rollout-batch-size": _WHOLE,
    "--n-samples-per-prompt": _WHOLE,
    "--num-steps-per-rollout": _WHOLE,
    "--rollout-max-prompt-len": _WHOLE,
    "--rollout-max-response-len": _WHOLE,
    "--max-tokens-per-gpu": _WHOLE,
    "--use-dynamic-batch-size": {"kind": "switch"},
    "--colocate": {"kind": "switch"},
}
MARKS = {"--actor-num-nodes", "--actor-num-gpus-per-node", "--rollout-batch-size"}
MOST_ROWS = "--max-position-embeddings"


def launches(launch: Launch) -> bool:
    """Whether a call is slime's."""
    return len(MARKS & {word.text.partition("=")[0] for word in launch.arguments}) > 1


def world(args: Arguments, reached: World) -> World:
    """The accelerators that train; those that only generate are not counted."""
    args.lenient = True
    nodes, each = args.integer("--actor-num-nodes", 1), args.integer("--actor-num-gpus-per-node")
    args.lenient = False
    return World(nodes, each or None, nodes * each or None)


def translate(args: Arguments) -> None:
    """The length and the number of sequences of a step, and what its own defaults set."""
    response = args.integer("--rollout-max-response-len")
    if "--seq-length" not in args.given and response:
        longest = response + args.integer("--rollout-max-prompt-len")
        args.say("--seq-length", str(longest), "--rollout-max-response-len")
        args.assume(f"every sequence is as long as the longest response, {longest} tokens")
    if "--seq-length" in args.given and MOST_ROWS not in args.given:
        args.say(MOST_ROWS, args.text("--seq-length"), "--seq-length")
    samples = args.integer("--rollout-batch-size") * args.integer("--n-samples-per-prompt", 1)
    if "--global-batch-size" not in args.given and samples:
        steps = args.positive("--num-steps-per-rollout")
        args.say("--global-batch-size", str(max(samples // steps, 1)), "--rollout-batch-size")
    if args.has("--use-dynamic-batch-size"):
        args.assume("micro-batches that --max-tokens-per-gpu fills are costed as one sequence")
    if "--micro-batch-size" not in args.given and args.given:
        args.say("--micro-batch-size", "1", next(iter(args.given)))
    for name in ("--bf16", "--use-distributed-optimizer"):
        if name not in args.given and "--fp16" not in args.given:
            args.say(name, None, next(iter(args.given)))
    args.has("--max-tokens-per-gpu", "--colocate")
