"""Steps of reinforcement learning from what trainers print: seconds of each phase.

verl's console lines (b178a3c), NeMo-RL's timing tables (7ea279a), slime's perf lines (624b824) and
the metrics of TRL's GRPO (f2cd577).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from cost_models.fields import Spec
from planner.inputs.logs.run_log import refused
from planner.inputs.logs.stream import clean

SCORING = "policy_scoring + reference_scoring"  # NeMo-RL times both together
MAX_STEPS = 100_000
# What a trainer prints -> the part of a step (planner.answers.reinforcement.documents.STEP_PARTS),
# "step" for all of it, or a mean length.
VERL = {
    "timing_s/gen": "generation", "timing_s/reward": "reward",
    "timing_s/old_log_prob": "policy_scoring", "timing_s/ref": "reference_scoring",
    "timing_s/values": "critic_scoring", "timing_s/update_actor": "policy_training",
    "timing_s/update_critic": "critic_training", "timing_s/update_weights": "weight_transfer",
    "timing_s/step": "step", "response_length/mean": "response_tokens",
    "prompt_length/mean": "prompt_tokens",
}  # fmt: skip
SLIME = {
    "perf/rollout_time": "generation", "perf/log_probs_time": "policy_scoring",
    "perf/ref_log_probs_time": "reference_scoring", "perf/actor_train_time": "policy_training",
    "perf/update_weights_time": "weight_transfer", "perf/step_time": "step",
    "rollout/response_len/mean": "response_tokens",
}  # fmt: skip
NEMO_RL = {
    "generation": "generation", "exposed_generation": "generation",
    "reward_calculation": "reward", "policy_and_reference_logprobs": SCORING,
    "policy_training": "policy_training", "weight_sync": "weight_transfer",
    "prepare_for_generation/transfer_and_update_weights": "weight_transfer",
    "Total step time": "step", "Mean Generation Length": "response_tokens",
}  # fmt: skip
TRL = {"step_time": "step", "completions/mean_length": "response_tokens"}
LENGTHS = ("response_tokens", "prompt_tokens")
_VERL = re.compile(r"(?:^|[\s)])step:(\d{1,9}) - (?=.*timing_s/step:)")
_OF_VERL = re.compile(r"([\w/]+):(?:np\.float\d+\()?(-?[\d.]+(?:e[+-]?\d+)?)")
_SLIME = re.compile(r"\bperf (\d{1,9}): (\{.*\})")
_PAIR = re.compile(r"'([\w/-]+)': '?(-?[\d.]+(?:e[+-]?\d+)?)'?")
_NEMO_RL = re.compile(r"[•*] ([\w/ ]+): (-?[\d.]+)s?\b")
_TRL = re.compile(r"\{.*'completions/mean_length'.*\}")


class MeasuredSteps(Spec):
    """The median of a log's steps, without the first where others follow.

    parts_s: seconds of the parts that the trainer times.  response_tokens, prompt_tokens: means.
    """

    trainer: str
    steps: int
    parts_s: dict[str, float]
    step_time_s: float | None = None
    response_tokens: float | None = None
    prompt_tokens: float | None = None


@dataclass
class _Steps:
    """Values by step, of one trainer."""

    trainer: str = ""
    values: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))

    def take(self, trainer: str, step: int, values: Iterable[tuple[str, float]]) -> None:
        """Values of a step.  Raises RequestError where another trainer said earlier ones."""
        if self.trainer not in ("", trainer):
            raise refused("two_runs", f"a log of {self.trainer} has lines of {trainer} too")
        self.trainer = trainer
        if len(self.values) <= MAX_STEPS:
            self.values[step].update(values)


def read_steps(lines: Iterable[str], name: str) -> MeasuredSteps:
    """What a log says of its steps.  Raises RequestError: /log where it says nothing of them."""
    steps, tables, printed = _Steps(), 0, 0
    for _, _, text in clean(lines, name):
        if match := _VERL.search(text):
            steps.take("verl", int(match[1]), _known_values(VERL, _OF_VERL.findall(text)))
        elif match := _SLIME.search(text):
            steps.take("slime", int(match[1]), _known_values(SLIME, _PAIR.findall(match[2])))
        elif match := _TRL.search(text):
            printed += 1
            steps.take("TRL", printed, _known_values(TRL, _PAIR.findall(match[0])))
        elif "•" in text:
            # A table begins with its results, and these with the loss.
            tables += "• Loss:" in text
            if pairs := list(_known_values(NEMO_RL, _NEMO_RL.findall(text))):
                steps.take("NeMo-RL", tables, pairs)
    complete = {number: row for number, row in steps.values.items() if set(row) - set(LENGTHS)}
    if not complete:
        detail = f"{name} has no times of steps of reinforcement learning"
        known = ("verl", "NeMo-RL", "slime", "TRL")
        raise refused("unknown_log", detail, allowed=known)
    return _middle(steps.trainer, complete)


def _known_values(
    names: Mapping[str, str], pairs: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, float]]:
    """The values that stand for something here."""
    for name, text in pairs:
        if name in names:
            value = float(text)
            if 0.0 <= value < 1e9:
                yield names[name], value


def _middle(trainer: str, values: Mapping[int, Mapping[str, float]]) -> MeasuredSteps:
    """The median of each value; the first step also compiles and captures graphs."""
    steps = [values[number] for number in sorted(values)]
    steps = steps[1:] if len(steps) > 1 else steps
    by_name: dict[str, list[float]] = defaultdict(list)
    for row in steps:
        for name, value in row.items():
            by_name[name].append(value)
    middle = {name: float(np.median(each)) for name, each in by_name.items()}
    lengths = {name: middle.pop(name, None) for name in LENGTHS}
    step = middle.pop("step", None)
    return MeasuredSteps(
        trainer=trainer, steps=len(steps), parts_s=middle, step_time_s=step, **lengths
    )
