"""Launches of slime: the training part of its RL, translated to Megatron-LM's options."""

from __future__ import annotations

from typing import Any

from planner.frameworks.arguments import Arguments
from planner.frameworks.bash import ProgramCall
from planner.frameworks.training_calls import World

# slime's own options at 624b824; those with a + take several words.  Those that freeze weights or
# choose another backend are left out, so that they are refused or reported as unknown.
_SWITCHES = """
allgather-cp apply-chat-template balance-by-flops balance-data check-weight-update-equal
ci-disable-kl-checker ci-test colocate debug-rollout-only debug-train-only
disable-compute-advantages-and-returns disable-grpo-std-normalization
disable-rewards-normalization disable-rollout-global-dataset disable-wandb-random-suffix
enable-mtp-training get-mismatch-metrics group-rm keep-old-actor log-correct-samples
log-multi-turn log-passrate mask-offpolicy-in-partial-rollout normalize-advantages offload
partial-rollout recompute-loss-function release-train reset-optimizer-states rollout-shuffle
rollout-skip-special-tokens skip-eval-before-train update-weight-disk-keep-files
use-distributed-post use-dynamic-batch-size use-fault-tolerance use-kl-loss use-opd use-opsm
use-rollout-entropy use-rollout-logprobs use-rollout-routing-replay use-routing-replay
use-stateless-adam use-tensorboard use-tis use-unbiased-kl use-wandb wandb-always-use-train-step
"""
_VALUED = """
advantage-estimator apply-chat-template-kwargs buffer-filter-path ci-load-grad-norm
ci-save-grad-norm ci-train-rollout-logprob-abs-diff-threshold custom-advantage-function-path
custom-config-path custom-convert-samples-to-train-data-path
custom-eval-rollout-log-function-path custom-generate-function-path custom-loss-function-path
custom-megatron-before-log-prob-hook-path custom-megatron-before-train-step-hook-path
custom-megatron-init-path custom-model-provider-path custom-pg-loss-reducer-function-path
custom-reward-post-process-path custom-rm-path custom-rollout-log-function-path
custom-tis-function-path custom-update-weight-post-write-path data-pad-size-multiplier
data-source-path dump-details dynamic-sampling-filter-path entropy-coef eps-clip eps-clip-c
eps-clip-high eval-config eval-function-path eval-input-key eval-label-key eval-max-context-len
eval-max-prompt-len eval-max-response-len eval-min-new-tokens eval-prompt-data+ eval-reward-key
eval-temperature eval-tool-key eval-top-k eval-top-p fetch-trajectory-retry-times gamma
hf-checkpoint http-proxy input-key kl-coef kl-loss-coef kl-loss-type label-key lambd
load-debug-rollout-data load-debug-rollout-data-subsample load-forge-rollout-data
log-probs-chunk-size log-probs-max-tokens-per-gpu log-reward-category loss-mask-type loss-type
megatron-config-path megatron-deepgemm-forward-layers+ megatron-deepgemm-forward-modules+
megatron-deepgemm-moe-forward-layers+ megatron-deepgemm-moe-forward-modules+ memory-recorder
memory-snapshot-dir memory-snapshot-num-steps metadata-key min-batch-collection-ratio model-name
multimodal-keys n-samples-per-eval-prompt num-critic-only-steps num-epoch num-gpus-per-node
num-rollout offload-rollout offload-train opd-kl-coef opd-teacher-ckpt-step opd-teacher-load
opd-type opsm-delta over-sampling-batch-size profile-target+ prompt-data qwen-gdn-backend
ref-ckpt-step ref-load ref-update-interval reward-key rm-type rm-url
rollout-all-samples-process-path rollout-buffer-url rollout-data-postprocess-path
rollout-data-transport rollout-external-engine-addrs+ rollout-function-path
rollout-health-check-first-wait rollout-health-check-interval rollout-health-check-timeout
rollout-max-context-len rollout-num-gpus rollout-num-gpus-per-engine rollout-sample-filter-path
rollout-sample-hook-path rollout-seed rollout-stop+ rollout-stop-token-ids+ rollout-task-type
rollout-temperature rollout-top-k rollout-top-p save-debug-rollout-data save-debug-train-data
save-hf start-rollout-id tb-experiment-name tb-project-name tis-clip tis-clip-low tool-key
train-env-vars update-weight-buffer-size update-weight-delta-checksum
update-weight-delta-encoding update-weight-disk-dir update-weight-local-checkpoint-dir
update-weight-mode update-weight-transport update-weights-interval value-clip wandb-dir
wandb-group wandb-host wandb-key wandb-mode wandb-run-id wandb-team
"""
_WHOLE = """
actor-num-gpus-per-node actor-num-nodes max-tokens-per-gpu n-samples-per-prompt
num-steps-per-rollout rollout-batch-size rollout-max-prompt-len rollout-max-response-len
"""
OPTIONS: dict[str, dict[str, Any]] = {
    **{f"--{name}": {"kind": "switch"} for name in _SWITCHES.split()},
    **{
        f"--{name.rstrip('+')}": {"kind": "store", **({"nargs": "+"} if name[-1] == "+" else {})}
        for name in _VALUED.split()
    },
    **{f"--{name}": {"kind": "store", "type": "int"} for name in _WHOLE.split()},
}
MARKS = {"--actor-num-nodes", "--actor-num-gpus-per-node", "--rollout-batch-size"}
MOST_ROWS = "--max-position-embeddings"


def launches(launch: ProgramCall) -> bool:
    """Whether a call is slime's."""
    return len(MARKS & {word.text.partition("=")[0] for word in launch.arguments}) > 1


def world(args: Arguments, reached: World) -> World:
    """The accelerators that train; those that only generate are not counted."""
    args.lenient = True
    nodes, each = args.integer("--actor-num-nodes", 1), args.integer("--actor-num-gpus-per-node")
    args.lenient = False
    return World(nodes, each or None, nodes * each or None)


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
        args.assume("micro-batches of --max-tokens-per-gpu tokens are costed as one sequence")
        args.say("--micro-batch-size", "1", "--use-dynamic-batch-size")
    elif "--micro-batch-size" not in args.given and args.given:
        args.say("--micro-batch-size", "1", next(iter(args.given)))
    for name in ("--bf16", "--use-distributed-optimizer"):
        if name not in args.given and "--fp16" not in args.given:
            args.say(name, None, next(iter(args.given)))
    args.has("--max-tokens-per-gpu", "--colocate")
