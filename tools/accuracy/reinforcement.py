"""Published steps of reinforcement learning beside what the planner says of them.

    python -m tools.accuracy.reinforcement

rl_runs.csv: 45 steps with their parts where the source states them.  Hardly any states the mean
response, which everything grows with.  So each step is priced twice: as asked, with the mean that
the planner assumes, which says whether its interval holds; and with the mean that makes the
optimizer steps take as long as measured, which says whether generation and scoring fit together
with them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import planner
from planner.answers.reinforcement.documents import ReinforcementAnswer
from planner.documents.problems import RequestError

FILE = Path(__file__).with_name("rl_runs.csv")
ACCELERATORS = {
    "H20 96GB": "h20", "H100 80GB": "h100-sxm", "H800 80GB": "h800", "H200 SXM 141GB": "h200",
}  # fmt: skip
MODELS = {
    "Qwen2.5-Math-7B": "qwen2.5-7b", "Qwen2.5-7B": "qwen2.5-7b", "Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Qwen3-0.6B": "qwen3-0.6b",
}  # fmt: skip
# Tokens of a prompt where none are stated: of mathematics, all rows but those of tools.
PROMPT_TOKENS = 300
PARTS = {"gen_s": "generation", "old_logprob_s": "policy_scoring", "ref_s": "reference_scoring"}
ALIKE = 1.05  # steps that differ by less are not ranked


@dataclass(frozen=True)
class Step:
    """One row with what is asked for it."""

    row: dict[str, str]
    document: dict[str, Any]

    def priced(self, **reinforcement: Any) -> ReinforcementAnswer:
        """The answer, with changed fields of the step."""
        step = {**self.document["reinforcement"], **reinforcement}
        return planner.rl({**self.document, "reinforcement": step})

    def measured(self, name: str) -> float | None:
        """A column, in seconds."""
        return float(self.row[name]) if self.row[name] else None

    @cached_property
    def asked(self) -> ReinforcementAnswer:
        """With the mean response that the planner assumes, or the row states."""
        return self.priced()

    @cached_property
    def matched(self) -> ReinforcementAnswer | None:
        """With the mean response that makes the optimizer steps take as long as measured."""
        update_s = self.measured("update_s")
        if update_s is None:
            return None
        longest = self.document["reinforcement"]["max_response_tokens"]
        low, high = 16, longest
        while high - low > max(8, longest // 100):
            middle = (low + high) // 2
            trained = self.priced(response_tokens=middle).parts_s["policy_training"]
            low, high = (middle, high) if trained < update_s else (low, middle)
        return self.priced(response_tokens=high)


def steps() -> Iterator[Step]:
    """The rows that state prompts, samples, accelerators and a longest response."""
    with FILE.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            needed = ("prompts_per_step", "samples_per_prompt", "max_response", "step_s")
            if row["gpu"] not in ACCELERATORS or row["model"] not in MODELS:
                continue
            if not all(row[name] for name in needed):
                continue
            each, apart = int(row["gpus_per_node"]), row["train_gpus"] != row["n_gpus"]
            if apart and int(row["rollout_gpus"]) % each:
                continue
            yield Step(row, _document(row, each, apart))


def _document(row: dict[str, str], each: int, apart: bool) -> dict[str, Any]:
    prompts, samples = int(row["prompts_per_step"]), int(row["samples_per_prompt"])
    step: dict[str, Any] = {
        "prompts": prompts, "samples": samples, "prompt_tokens": PROMPT_TOKENS,
        "max_response_tokens": int(row["max_response"]), "reference": bool(row["ref_s"]),
        "generation": "other" if apart else "same",
    }  # fmt: skip
    if row["mean_response"]:
        step["response_tokens"] = int(row["mean_response"])
    if apart:
        step["generation_nodes"] = int(row["rollout_gpus"]) // each
        step["staleness"] = 2 if "async" in row["mode"] else 1
    return {
        "model": MODELS[row["model"]],
        "cluster": f"{int(row['n_gpus']) // each}x{each}x{ACCELERATORS[row['gpu']]}",
        "training": {"global_batch_size": int(row["train_batch"] or prompts) * samples},
        "reinforcement": step,
    }


def main() -> None:
    """Prints a line per step, then how often intervals hold, errors of parts, and the order."""
    found, held, narrow, errors = [], 0, list[bool](), {name: [] for name in PARTS}  # type: ignore[var-annotated]
    for one in steps():
        try:
            asked, matched = one.asked, one.matched
        except RequestError as error:
            print(f"{one.row['id']:16} {error}")
            continue
        found.append(one)
        measured = one.measured("step_s") or 0.0
        low, high = asked.interval_s
        held += low <= measured <= high
        line = f"{one.row['id']:16} {measured:6.0f} s, said {asked.step_time_s:6.0f} s"
        line += f" ({low:.0f} to {high:.0f})"
        if matched is not None:
            low, high = matched.interval_s
            narrow.append(low <= measured <= high)
            line += f"; mean {matched.tokens // matched.sequences - PROMPT_TOKENS}:"
            for column, part in PARTS.items():
                taken = one.measured(column)
                if taken and matched.ways[0].name == "synchronous":
                    ratio = matched.parts_s[part] / taken
                    errors[column].append(abs(ratio - 1.0))
                    line += f" {part} {ratio:.2f}"
        print(line)
    print(f"{held} of {len(found)} steps are inside their intervals")
    print(f"{sum(narrow)} of {len(narrow)} with the mean that the optimizer steps imply")
    for name, each in errors.items():
        if each:
            print(f"{PARTS[name]}: {np.median(each):.0%} off in the middle of {len(each)}")
    right, pairs = order(found)
    print(f"{right} of {pairs} pairs of ways in the order that was measured")


def order(found: list[Step]) -> tuple[int, int]:
    """Pairs of one model on as many accelerators, that differ by ALIKE: those in order, and all."""
    right = pairs = 0
    for i, one in enumerate(found):
        for other in found[:i]:
            same = all(one.row[n] == other.row[n] for n in ("model", "n_gpus", "max_response"))
            a, b = one.measured("step_s") or 0.0, other.measured("step_s") or 0.0
            kinds = one.asked.ways[0].name != other.asked.ways[0].name
            if not same or not kinds or max(a, b) < ALIKE * min(a, b):
                continue
            pairs += 1
            right += (a < b) == (one.asked.step_time_s < other.asked.step_time_s)
    return right, pairs


if __name__ == "__main__":
    main()
