"""slime: Megatron-LM's options under Ray, for supervised fine-tuning or the training part of RL.

The written launch trains on the next token of samples, with slime's own SFT rollout; an RL run has
the same options and its own rollout.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from cost_models.package_files import table
from cost_models.plans import ParallelPlan
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import megatron, training_calls
from planner.frameworks.accelerate.rules import lacks
from planner.frameworks.base import Bundle, Flag, Row, fields, in_group
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.megatron import reader, slime
from planner.frameworks.megatron.changes import Changes
from planner.frameworks.megatron.flags import flags
from planner.frameworks.read_results import Reading, Unreadable
from planner.frameworks.rules import SMOKE_ITERATIONS
from planner.frameworks.slime.rules import RULES

VERSIONS = "main of August 2026 (624b824) on Megatron-LM core 0.16 to main"

FIELDS = megatron.FIELDS | fields(__name__)
# Options that slime's own replace or that slime ignores.
CHANGES = Changes(left_out=frozenset(table(__name__, "fields.json")["left_out"]))
LAUNCH = Launch(
    "slime",
    "slime",
    VERSIONS,
    __name__,
    "Needs a checkpoint and data: HF_CHECKPOINT and PROMPT_DATA.",
)
NEEDS = Note(
    code="needs",
    text="It starts from a checkpoint (HF_CHECKPOINT, converted to --load) and reads conversations "
    "(PROMPT_DATA); for reinforcement learning replace ROLLOUT_ARGS by your rollout, with "
    "--rollout-batch-size x --n-samples-per-prompt as the global batch.",
)


@in_group("ROLLOUT_ARGS")
def rollout(request: PlanRequest) -> Iterator[Row]:
    """The options that make the samples of a step from conversations."""
    yield (
        "--rollout-function-path",
        "slime.rollout.sft_rollout.generate_rollout",
        "samples from the data, not generated",
    )
    yield "--loss-type", "sft_loss", "next-token loss"
    yield "--calculate-per-token-loss", "loss averaged over tokens, as in pre-training"
    yield "--disable-compute-advantages-and-returns", "fine-tuning without rewards"
    yield "--debug-train-only", "training without inference engines"
    yield "--input-key", "messages", "key of the conversations"
    yield "--rollout-batch-size", request.training.global_batch_size, "samples of one step"
    yield "--num-rollout", SMOKE_ITERATIONS, "steps of a smoke run"


def arguments(request: PlanRequest, plan: ParallelPlan) -> tuple[Flag, ...]:
    """Megatron-LM's options and slime's own."""
    core = CHANGES.written(flags(request, plan), request, plan)
    return (*core, *rollout(request))


def render(request: PlanRequest, plan: ParallelPlan) -> Bundle:
    """The launch script, to be called on every node."""
    options, variables = arguments(request, plan), megatron.environment(plan)
    return LAUNCH.bundle(
        request,
        plan,
        megatron.missing(request.model),
        options,
        variables,
        notes=(NEEDS,),
        words={"env": job_environment(variables)},
    )


def job_environment(variables: Iterable[Flag]) -> str:
    """Variables as further members of the JSON that Ray's job takes, within quotes of bash."""
    told = {one.name: str(one.value) for one in variables}
    env = json.dumps(told)[1:-1].replace('"', '\\"')
    return f", {env}" if env else ""


def recognises(files: Mapping[str, str]) -> bool:
    """Whether some script starts slime's training."""
    try:
        found = training_calls.training_call(files, reader.trains, "slime")
    except Unreadable:
        return False
    return slime.launches(found.launch)


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """Reads a launch of slime with Megatron-LM's reader; raises Unreadable as that does."""
    found = reader.read(files, accelerators)
    return found.model_copy(update={"framework": "slime"})


FRAMEWORK = LAUNCH.framework(
    RULES,
    FIELDS,
    render,
    read=read,
    recognises=recognises,
    choices=megatron.FRAMEWORK.choices,
    trains_all="it trains all weights",
    lacks=lacks,
    competes=False,
)
