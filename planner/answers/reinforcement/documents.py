"""The request and the answer about a step of reinforcement learning: `planner rl`, POST /v1/rl."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from cost_models.effects import equal, read_where
from cost_models.fields import Count, Spec
from planner.documents.answer import ProfileInfo
from planner.documents.plan_report import Answer, Document, Note, PlanReport
from planner.documents.request import PlanRequest
from planner.frameworks.step_trainers import TRAINERS, StepTrainer, Trainer, WayName, Where

PART = "reinforcement"
Algorithm = Literal["grpo", "ppo"]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]

# A mean or a longest response that is not stated follows from the other: responses of DAPO's run
# had 1,000 to 5,000 tokens of 20,480 at most (arXiv 2503.14476, figure 7).
MEAN_OF_LONGEST, LONGEST_OF_MEAN = 8, 4
LENGTH_MULTIPLE = 128  # of the longest sequence, so that ranks can split it
# Parts of a step, in its order.
STEP_PARTS = {
    "generation": "responses, until the longest one ends",
    "reward": "rewards, as stated",
    "policy_scoring": "log-probabilities of the policy",
    "reference_scoring": "log-probabilities of the reference",
    "critic_scoring": "values of the critic",
    "policy_training": "optimizer steps of the policy, at expected lengths",
    "critic_training": "optimizer steps of the critic, at expected lengths",
    "weight_transfer": "new weights to the generation engines",
    "offload": "models moved to and from host memory",
}


class ReinforcementSpec(Spec):
    """One step: prompts, their responses, where and how fast these are generated."""

    trainer: Trainer = Field(
        "verl", description="whose launch files are written: plans that it can run are searched"
    )
    algorithm: Algorithm = Field(
        "grpo", description="ppo: with a critic, which is trained beside the policy"
    )
    prompts: Annotated[int, Field(ge=1, le=1_000_000)] = Field(description="per step")
    samples: Annotated[int, Field(ge=1, le=100_000)] = Field(1, description="per prompt")
    prompt_tokens: Tokens = Field(description="mean of a prompt")
    response_tokens: Tokens | None = Field(
        None, description="mean of a response; default: an eighth of the longest"
    )
    max_response_tokens: Tokens | None = Field(
        None, description="longest response, where generation is cut; default: 4 times the mean"
    )
    generated_per_trained: Annotated[float, Field(ge=1, le=100)] = Field(
        1.0, description="responses generated for each one trained on (DAPO's dynamic sampling)"
    )
    oversampling: Annotated[float, Field(ge=1, le=10)] = Field(
        1.0,
        description="responses started for each that a step waits for; when enough prompts have "
        "all of theirs, the others are cut",
    )
    partial_rollouts: bool = Field(
        False, description="cut responses go on in the next step, with oversampling"
    )
    staleness: Annotated[float, Field(ge=0, le=100)] = Field(
        0.0,
        description="most policy updates that a response may lag behind: 0 synchronous, 1 one step "
        "off-policy, more: asynchronous",
    )
    generation_tokens_per_s: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        None,
        description="response tokens per second and accelerator, prompts included, as measured; "
        "default: from the engine's kernels",
    )
    generation: Where | None = Field(
        None,
        description="same: on the ranks that train, in turn; other: on nodes of their own; "
        "default: whichever is faster",
    )
    generation_nodes: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="nodes of the cluster that generate while the others train"
    )
    generation_tp: Count | None = Field(
        None, description="accelerators of one generation engine; default: the fastest"
    )
    generation_precision: Literal["bf16", "fp8"] = Field(
        "bf16", description="of the weights that generate"
    )
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="share of an accelerator's memory for the engine; default: what is free"
    )
    max_num_seqs: Count = Field(1024, description="most responses at a time in one engine")
    speculative_tokens: Annotated[int, Field(ge=0, le=32)] = Field(
        0, description="drafted tokens that a pass verifies"
    )
    accepted_tokens: Annotated[float, Field(ge=1, le=33)] | None = Field(
        None, description="tokens that a pass adds to a response, with speculative_tokens"
    )
    turns: Annotated[float, Field(ge=1, le=10_000)] = Field(
        1.0, description="of a mean response, with a tool between two of them"
    )
    tool_wait_s: Annotated[float, Field(ge=0, le=1e6)] = Field(
        0.0, description="waiting for a tool between two turns"
    )
    reference: bool = Field(True, description="a frozen copy scores the responses (KL)")
    critic_parameters: Annotated[float, Field(ge=1e6, le=1e15)] | None = Field(
        None, **read_where("of a dense critic; None: as the policy", {"algorithm": equal("ppo")})
    )
    epochs: Annotated[int, Field(ge=1, le=1000)] = Field(
        1, description="times that the batch is trained on"
    )
    reward_s: Annotated[float, Field(ge=0, le=1e6)] = Field(
        0.0, description="rewards of one step, beside generation"
    )
    offload: bool = Field(
        True,
        description="models wait for their turn in host memory, engines sleep; with trl engines "
        "alone do",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_trainer(cls, value: Any) -> Any:
        """What the trainer cannot do is left out, unless it is asked for."""
        named = value.get("trainer") if isinstance(value, dict) else None
        trainer = TRAINERS.get(named) if isinstance(named, str) else None  # type: ignore[call-overload]
        if trainer is None:
            return value
        usual = {
            "offload": trainer.offloads, "reference": trainer.references,
            "staleness": trainer.freshest,
        }  # fmt: skip
        return usual | {name: one for name, one in value.items() if one is not None}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.generation_nodes is not None and self.generation != "other":
            raise ValueError("generation_nodes goes with generation: other, and only with it")
        if self.critic_parameters is not None and self.algorithm != "ppo":
            raise ValueError("critic_parameters needs algorithm: ppo")
        if self.response_tokens is None and self.max_response_tokens is None:
            raise ValueError("needs response_tokens, max_response_tokens or both")
        if self.mean_tokens > self.longest_tokens:
            raise ValueError(
                f"response_tokens {self.response_tokens:,}, the mean, is above "
                f"max_response_tokens {self.max_response_tokens:,}"
            )
        if (self.accepted_tokens is not None) != (self.speculative_tokens > 0):
            raise ValueError("speculative_tokens and accepted_tokens go together")
        if (self.accepted_tokens or 1.0) > 1 + self.speculative_tokens:
            raise ValueError("accepted_tokens is at most speculative_tokens + 1")
        return self

    @model_validator(mode="after")
    def _cuts_and_waits(self) -> Self:
        if self.tool_wait_s and self.turns <= 1:
            raise ValueError("tool_wait_s needs turns of more than 1: tools run between two")
        if self.partial_rollouts and self.oversampling <= 1:
            raise ValueError("partial_rollouts needs oversampling of more than 1: nothing is cut")
        if self.oversampling > 1 and self.generation_tokens_per_s is not None:
            raise ValueError("oversampling changes what a stated generation_tokens_per_s measured")
        return self

    @property
    def sequences(self) -> int:
        """Responses of one step that are trained on."""
        return self.prompts * self.samples

    @property
    def waiting_s(self) -> float:
        """Seconds that a mean response waits for its tools."""
        return (self.turns - 1.0) * self.tool_wait_s

    @property
    def mean_tokens(self) -> int:
        """Mean of a response."""
        return self.response_tokens or max(1, (self.max_response_tokens or 0) // MEAN_OF_LONGEST)

    @property
    def longest_tokens(self) -> int:
        """Tokens of the longest response."""
        return self.max_response_tokens or LONGEST_OF_MEAN * (self.response_tokens or 0)

    @property
    def sequence_tokens(self) -> int:
        """Tokens of a prompt and the longest response, which a rank must have room for."""
        total = self.prompt_tokens + self.longest_tokens
        even = self.mean_tokens == self.longest_tokens
        return total if even else -(-total // LENGTH_MULTIPLE) * LENGTH_MULTIPLE


def packed_sequences(spec: ReinforcementSpec, batch: int) -> int:
    """Sequences of full length that hold so many of mean length: the fewest that divide them.

    So ranks that share these evenly share the responses evenly too.
    """
    tokens = batch * (spec.prompt_tokens + spec.mean_tokens)
    least = min(batch, -(-tokens // spec.sequence_tokens))
    small = (n for n in range(1, math.isqrt(batch) + 1) if batch % n == 0)
    return min(n for one in small for n in (one, batch // one) if n >= least)


class ReinforcementRequest(Spec):
    """A request and what is asked of its steps; a plan of it is one of the ranks that train."""

    request: PlanRequest
    reinforcement: ReinforcementSpec

    def training_on(self, nodes: int) -> PlanRequest:
        """The request on so many nodes that train, with its batch in sequences of full length."""
        request, spec = self.request, self.reinforcement
        (group,) = request.cluster.groups
        rest = group.model_copy(update={"nodes": nodes})
        cluster = request.cluster.model_copy(update={"groups": (rest,)})
        batch = request.training.global_batch_size
        packs = batch if self.trainer.pads else packed_sequences(spec, batch)
        training = request.training.model_copy(update={"global_batch_size": packs})
        return request.model_copy(update={"cluster": cluster, "training": training})

    @property
    def trainer(self) -> StepTrainer:
        """What the trainer of the steps can run."""
        return TRAINERS[self.reinforcement.trainer]

    @property
    def nodes(self) -> int:
        """Nodes of the cluster."""
        return self.request.cluster.groups[0].nodes

    @property
    def node_accelerators(self) -> int:
        """Accelerators of a node."""
        return self.request.cluster.groups[0].accelerators_per_node

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


class Bar(Document):
    """A part of a step (STEP_PARTS) on some accelerators, in seconds from the step's start.

    ahead: whether it is for a later step than the one that is trained on meanwhile.
    """

    part: str
    start_s: float
    end_s: float
    ahead: bool = False


class Lane(Document):
    """What equal accelerators do during a step, one bar after the other; between them they wait."""

    name: Literal["all", "generation", "training"]
    accelerators: int
    bars: tuple[Bar, ...]


class Way(Document):
    """A way to run the steps; tokens: of prompts and responses.

    staleness: policy updates that a response lags behind.  same: on the ranks that train.
    limited_by: the part that would have to be shorter.  lanes: the timeline of one step.
    """

    name: WayName
    generation: Where
    generation_nodes: int
    generation_tp: int
    staleness: float
    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_accelerator: float
    limited_by: str
    lanes: tuple[Lane, ...]


class Generation(Document):
    """How the responses of a step are generated.

    decode_s: between two tokens of a response, with `running` of them at a time.  tail_s: from
    when half of the last responses have ended.  cache_bytes: for keys and values on each
    accelerator.  steady_tokens_per_s: of one engine that never runs out of prompts.
    length_shares: of responses, in equal steps of length up to max_tokens.
    """

    engines: int
    tp: int
    expert_parallel: bool
    gpu_memory_utilization: float
    cache_bytes: float
    running: float
    decode_s: float
    prefill_s: float
    tail_s: float
    steady_tokens_per_s: float
    mean_tokens: float
    max_tokens: int
    length_shares: tuple[float, ...]


class ReinforcementAnswer(Answer):
    """The answer: the time of one step by part (STEP_PARTS), the ways to run it, and memory.

    training: the plan of one optimizer step.  dominant: the longest part.  transfer: its steps,
    one after the other.  ways: the fastest first; the first is what parts and memory are of.
    interval_s: where the step is expected, by the doubt of its parts.  generated: None where the
    throughput was stated.
    """

    profile: ProfileInfo
    framework: str | None
    training: PlanReport
    training_accelerators: int
    generation_accelerators: int
    engines: int
    sequences: int
    tokens: int
    optimizer_steps: int
    parts_s: dict[str, float]
    dominant: str
    step_time_s: float
    interval_s: tuple[float, float]
    ways: tuple[Way, ...]
    generated: Generation | None
    weight_bytes: float
    transfer: tuple[TransferStep, ...]
    memory: tuple[Phase, ...]
    fits: bool
    notes: tuple[Note, ...]
