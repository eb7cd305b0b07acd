"""A whole step of reinforcement learning, as its launch files say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Rollouts:
    """How responses are generated and trained on, beside the plan of the training.

    batch: responses of one optimizer step.  prompt_tokens, response_tokens: the longest.
    nodes: of the engines alone; 0: engines share the ranks that train.  behind: policy updates
    that responses may lag behind; 0: none.  engines: how many there are, each of tp accelerators.
    experts: whether whole experts are on each of them.  oversampling: prompts started for each that
    a step waits for.  partial: whether cut responses go on in the next step.
    """

    algorithm: Literal["grpo", "ppo"]
    prompts: int
    samples: int
    batch: int
    prompt_tokens: int
    response_tokens: int
    nodes: int
    behind: float
    engines: int
    tp: int
    experts: bool
    gpu_memory_utilization: float
    max_num_seqs: int
    precision: Literal["bf16", "fp8"]
    generated_per_trained: float
    oversampling: float
    partial: bool
    reference: bool
    offload: bool
    epochs: int

    @property
    def tokens(self) -> int:
        """Tokens of the longest prompt and response."""
        return self.prompt_tokens + self.response_tokens

    @property
    def apart(self) -> bool:
        """Whether engines have nodes of their own."""
        return self.nodes > 0

    @property
    def updates(self) -> int:
        """Optimizer steps of one pass over the responses of a step."""
        return self.prompts * self.samples // self.batch
