"""The request and the answer about a step of reinforcement learning: `planner rl`, POST /v1/rl."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from cost_models.effects import equal, read_where
from cost_models.fields import Count, Spec
from planner.documents.answer import ProfileInfo
from planner.documents.plan_report import Document, Note, PlanReport
from planner.documents.request import PlanRequest

PART = "reinforcement"
Algorithm = Literal["grpo", "ppo"]
Where = Literal["same", "other"]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]

# Parts of a step, in its order.
STEP_PARTS = {
    "generation": "responses, at the stated throughput",
    "reward": "rewards, as stated",
    "policy_scoring": "log-probabilities of the policy",
    "reference_scoring": "log-probabilities of the reference",
    "critic_scoring": "values of the critic",
    "policy_training": "optimizer steps of the policy",
    "critic_training": "optimizer steps of the critic",
    "weight_transfer": "new weights to the generation engines",
    "offload": "models that take turns in memory",
}


class ReinforcementSpec(Spec):
    """One step: prompts, their responses, where and how fast these are generated."""

    algorithm: Algorithm = Field(
        "grpo", description="ppo: with a critic, which is trained beside the policy"
    )
    prompts: Annotated[int, Field(ge=1, le=1_000_000)] = Field(description="per step")
    samples: Annotated[int, Field(ge=1, le=100_000)] = Field(1, description="per prompt")
    prompt_tokens: Tokens = Field(description="mean of a prompt")
    response_tokens: Tokens = Field(description="mean of a response")
    generation_tokens_per_s: Annotated[float, Field(gt=0, le=1e9)] = Field(
        description="response tokens per second and accelerator, prompts included: measured"
    )
    generation: Where = Field("same", description="same: on the ranks that train, in turn")
    generation_nodes: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="nodes of the cluster that generate while the others train"
    )
    generation_tp: Count = Field(1, description="accelerators of one generation engine")
    generation_reserve: Annotated[float, Field(ge=0, le=1)] = Field(
        0.3, description="share of an accelerator's memory for KV cache and engine"
    )
    reference: bool = Field(True, description="a frozen copy scores the responses (KL)")
    critic_parameters: Annotated[float, Field(ge=1e6, le=1e15)] | None = Field(
        None,
        **read_where("of a dense critic; None: as the policy", {"algorithm": equal("ppo")}),
    )
    epochs: Annotated[int, Field(ge=1, le=1000)] = Field(
        1, description="times that the batch is trained on"
    )
    reward_s: Annotated[float, Field(ge=0, le=1e6)] = Field(
        0.0, description="rewards of one step, beside generation"
    )
    offload: bool = Field(
        True, description="models wait for their turn in host memory, engines sleep"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.generation == "other") != (self.generation_nodes is not None):
            raise ValueError("generation_nodes goes with generation: other, and only with it")
        if self.critic_parameters is not None and self.algorithm != "ppo":
            raise ValueError("critic_parameters needs algorithm: ppo")
        return self

    @property
    def sequences(self) -> int:
        """Responses of one step."""
        return self.prompts * self.samples

    @property
    def sequence_tokens(self) -> int:
        """Tokens of a prompt and its response."""
        return self.prompt_tokens + self.response_tokens


class ReinforcementRequest(Spec):
    """A request and what is asked of its steps; a plan of it is one of the ranks that train."""

    request: PlanRequest
    reinforcement: ReinforcementSpec

    @property
    def training(self) -> PlanRequest:
        """The request on the nodes that train."""
        request, taken = self.request, self.reinforcement.generation_nodes or 0
        (group,) = request.cluster.groups
        rest = group.model_copy(update={"nodes": group.nodes - taken})
        cluster = request.cluster.model_copy(update={"groups": (rest,)})
        return request.model_copy(update={"cluster": cluster})

    @property
    def generation_accelerators(self) -> int:
        """Accelerators that generate."""
        (group,) = self.request.cluster.groups
        nodes = self.reinforcement.generation_nodes or group.nodes
        return nodes * group.accelerators_per_node

    def document(self) -> dict[str, Any]:
        """This request as plain data that can be asked again."""
        asked = self.reinforcement.model_dump(mode="json", exclude_none=True)
        return self.request.document() | {PART: asked}


class TransferStep(Document):
    """One collective or message of a weight transfer: by the convention of nccl-tests."""

    title: str
    op: Literal["all_gather", "send"]
    ranks: int
    payload_bytes: float
    seconds: float


class Phase(Document):
    """What one accelerator, or a node's host, holds at a time; the parts add up to the total."""

    name: Literal["training", "transfer", "generation", "host"]
    parts: dict[str, float]
    total_bytes: float
    capacity_bytes: float
    fits: bool


class Way(Document):
    """A way to run the steps; tokens: of prompts and responses."""

    name: Literal["synchronous", "one step off-policy"]
    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_accelerator: float


class ReinforcementAnswer(Document):
    """The answer: the time of one step by part (STEP_PARTS), the ways to run it, and memory.

    training: the plan of one optimizer step.  dominant: the longest part.  transfer: its steps,
    one after the other.  ways: on other ranks also with training one step behind generation.
    """

    request: dict[str, Any]
    version: str
    profile: ProfileInfo
    training: PlanReport
    training_accelerators: int
    generation_accelerators: int
    engines: int
    sequences: int
    tokens: int
    optimizer_steps: int
    parts_s: dict[str, float]
    dominant: str
    ways: tuple[Way, ...]
    weight_bytes: float
    transfer: tuple[TransferStep, ...]
    memory: tuple[Phase, ...]
    fits: bool
    notes: tuple[Note, ...]
