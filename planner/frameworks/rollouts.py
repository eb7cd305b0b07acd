"""A whole step of reinforcement learning, as its launch files say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Rollouts:
    """How responses are generated and trained on, beside the plan of the training.

    batch: responses of one optimizer step.  prompt_tokens, response_tokens: the longest.
    nodes: of the engines alone; 0: engines share the ranks that train.  behind: policy updates
    that responses may lag behind; 0: none.  experts: whether whole experts are on each accelerator.
    """

    algorithm: Literal["grpo", "ppo"]
    prompts: int
    samples: int
    batch: int
    prompt_tokens: int
    response_tokens: int
    nodes: int
    behind: float
    tp: int
    experts: bool
    gpu_memory_utilization: float
    max_num_seqs: int
    precision: Literal["bf16", "fp8"]
    reference: bool
    offload: bool
    epochs: int

    @property
    def updates(self) -> int:
        """Optimizer steps of one pass over the responses of a step."""
        return self.prompts * self.samples // self.batch
