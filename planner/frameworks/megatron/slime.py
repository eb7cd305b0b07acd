"""Launches of slime: the training part of its RL, translated to Megatron-LM's options."""

from __future__ import annotations

from typing import Any

from cost_models.package_files import table
from planner.frameworks import post_training
from planner.frameworks.arguments import Arguments
from planner.frameworks.bash import ProgramCall
from planner.frameworks.training_calls import World

# slime's own options; those with a + take several words.
_NAMES = table("planner.frameworks.megatron", "slime_options.json")
OPTIONS: dict[str, dict[str, Any]] = {
    **{f"--{name}": {"kind": "switch"} for name in _NAMES["switches"]},
    **{
        f"--{name.rstrip('+')}": {"kind": "store", **({"nargs": "+"} if name[-1] == "+" else {})}
        for name in _NAMES["valued"]
    },
    **{f"--{name}": {"kind": "store", "type": "int"} for name in _NAMES["whole"]},
}
MARKS = {"--actor-num-nodes", "--actor-num-gpus-per-node", "--rollout-batch-size"}
MOST_ROWS = "--max-position-embeddings"


def launches(launch: ProgramCall) -> bool:
    """Whether a call is slime's."""
    return len(MARKS & {word.text.partition("=")[0] for word in launch.arguments}) > 1


ONLY_TRAINING = "only the policy's training is costed, without generation, references and rewards"


def world(args: Arguments, reached: World) -> World:
    """The accelerators that train; those that only generate are not counted."""
    args.lenient = True
    nodes, each = args.integer("--actor-num-nodes", 1), args.integer("--actor-num-gpus-per-node")
    args.lenient = False
    return World(nodes, each or None, nodes * each or None)


def _sequences(args: Arguments) -> int:
    """The longest sequences of a pass that is filled with tokens, which cp ranks share."""
    cp = args.positive("--context-parallel-size")
    each = args.positive("--tensor-model-parallel-size") * cp
    each *= args.positive("--pipeline-model-parallel-size")
    ranks = args.integer("--actor-num-nodes", 1) * args.integer("--actor-num-gpus-per-node", 8)
    share = max(1, args.integer("--global-batch-size") // max(1, ranks // each))
    tokens, length = args.integer("--max-tokens-per-gpu") * cp, args.integer("--seq-length")
    return post_training.sequences(tokens, length, share) if length else 1


def translate(args: Arguments) -> None:
    """Sets the sequence length and batch sizes of a step, and the defaults that slime changes."""
    response = args.integer("--rollout-max-response-len")
    longest = response + args.integer("--rollout-max-prompt-len")
    # Its sequences vary in length: --seq-length only satisfies Megatron-LM's parser.
    if response and longest > args.integer("--seq-length"):
        args.say("--seq-length", str(longest), "--rollout-max-response-len")
        args.assume(f"every sequence is as long as the longest response, {longest} tokens")
    if "--seq-length" in args.given and MOST_ROWS not in args.given:
        args.say(MOST_ROWS, args.text("--seq-length"), "--seq-length")
    samples = args.integer("--rollout-batch-size") * args.integer("--n-samples-per-prompt", 1)
    if "--global-batch-size" not in args.given and samples:
        steps = args.positive("--num-steps-per-rollout")
        args.say("--global-batch-size", str(max(samples // steps, 1)), "--rollout-batch-size")
    if args.has("--use-dynamic-batch-size"):
        micro = _sequences(args)
        several = f"{micro} of the longest sequences" if micro > 1 else "one sequence"
        args.assume(f"micro-batches of --max-tokens-per-gpu tokens are costed as {several}")
        args.say("--micro-batch-size", str(micro), "--use-dynamic-batch-size")
    elif "--micro-batch-size" not in args.given and args.given:
        args.say("--micro-batch-size", "1", next(iter(args.given)))
    for name in ("--bf16", "--use-distributed-optimizer"):
        if name not in args.given and "--fp16" not in args.given:
            args.say(name, None, next(iter(args.given)))
    args.has("--max-tokens-per-gpu", "--colocate")
    args.assume(ONLY_TRAINING)


def require_training(args: Arguments, launch: ProgramCall) -> None:
    """Raises Unreadable where nothing is trained."""
    if args.has("--debug-rollout-only"):
        raise launch.program.unreadable("--debug-rollout-only: it generates, and trains nothing")


def require_model(args: Arguments, launch: ProgramCall) -> None:
    """Raises Unreadable where the options of the model are not here."""
    if args.has("--num-layers"):
        return
    start = args.given.get("--hf-checkpoint")
    said = f" (--hf-checkpoint {start.value})" if start is not None else ""
    raise launch.program.unreadable(
        "the model's options are not among the files: give the one of slime's scripts/models that "
        f"sets MODEL_ARGS, or the model by its name, --model NAME{said}"
    )
