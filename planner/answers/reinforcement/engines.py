"""The engines that generate: how many accelerators each has, and how long the responses take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from cost_models.continuous_batching import Cut, Generated, Lengths, generate
from cost_models.generation import WORKSPACE_BYTES, Engine
from cost_models.spec import ModelSpec
from planner.answers.plans.emission import NothingFits
from planner.answers.reinforcement.documents import PART, Generation, ReinforcementRequest
from planner.documents.formats import size
from planner.evidence.uncertainty.learned_steps import GenerationBelief, generation_belief
from planner.evidence.uncertainty.site_storage import site_of_request
from planner.search.exhaustive import cost_model

# The largest engine that is tried, and the share of memory that engines take where it is free:
# vLLM's default on ranks of their own, less beside the context of a trainer that sleeps.
MOST_TP = 32
MOST_UTILIZATION = {"other": 0.9, "same": 0.85}
LENGTH_STEPS = 32  # of the drawn lengths of responses
FIRST_SIGHT = generation_belief(())


@dataclass(frozen=True)
class Engines:
    """Equal engines on some accelerators; seconds: until the last response of a step ends.

    steady_s: seconds of as many responses where engines never run out of prompts.
    generated, cache_bytes: None and 0 where the throughput is stated.  belief: how long engines
    take, over what is modelled; both times have its factor.
    """

    tp: int
    count: int
    expert_parallel: bool
    utilization: float
    weight_bytes: float
    cache_bytes: float
    seconds: float
    steady_s: float
    generated: Generated | None = None
    belief: GenerationBelief = FIRST_SIGHT

    def document(self, asked: ReinforcementRequest) -> Generation | None:
        """What the answer says of them."""
        made, spec = self.generated, asked.reinforcement
        if made is None:
            return None
        spread, slower = lengths(asked), self.belief.factor
        return Generation(
            engines=self.count, tp=self.tp, expert_parallel=self.expert_parallel,
            gpu_memory_utilization=self.utilization, cache_bytes=self.cache_bytes,
            running=made.running, decode_s=slower * made.decode_s,
            prefill_s=slower * made.prefill_s, tail_s=slower * made.tail_s,
            steady_tokens_per_s=made.steady_tokens_per_s / slower,
            mean_tokens=spread.mean, max_tokens=spec.longest_tokens,
            length_shares=tuple(spread.shares(spec.longest_tokens, LENGTH_STEPS).tolist()),
        )  # fmt: skip


def lengths(asked: ReinforcementRequest) -> Lengths:
    """The lengths of responses."""
    spec = asked.reinforcement
    return _lengths(float(spec.mean_tokens), float(spec.longest_tokens))


@lru_cache(maxsize=64)
def _lengths(mean: float, longest: float) -> Lengths:
    return Lengths.spread(mean, longest)


def fastest_engines(
    asked: ReinforcementRequest, accelerators: int, where: str, beside_bytes: float
) -> Engines:
    """The engines on so many accelerators that generate a step's responses soonest.

    beside_bytes: of other models that stay on an accelerator meanwhile.  Raises NothingFits.
    """
    spec, group = asked.reinforcement, asked.request.cluster.groups[0]
    capacity = group.accelerator.memory_bytes
    free = (capacity - beside_bytes) / capacity
    share = spec.gpu_memory_utilization or max(0.0, min(MOST_UTILIZATION[where], free - 0.02))
    found = list(_candidates(asked, accelerators, share, where))
    if not found:
        raise _no_room(asked, accelerators, share * capacity)
    return min(found, key=lambda one: one.seconds)


def same_engines(asked: ReinforcementRequest, engines: Engines) -> Engines:
    """These engines with the responses of another request."""
    if engines.generated is None:
        stated_s = _stated_s(asked, engines.count * engines.tp)
        return replace(engines, seconds=stated_s, steady_s=stated_s)
    spec = asked.reinforcement
    responses = spec.sequences * spec.generated_per_trained / engines.count
    engine = _engine(asked, engines.tp, engines.expert_parallel)
    made = _generated(asked, engine, responses, engines.count, engines.cache_bytes)
    slower = engines.belief.factor
    steady_s = slower * responses * spec.mean_tokens / made.steady_tokens_per_s
    return replace(engines, seconds=slower * made.seconds, steady_s=steady_s, generated=made)


def _no_room(asked: ReinforcementRequest, accelerators: int, bytes_for_it: float) -> NothingFits:
    """Why no engine fits on so many accelerators, and the longest response for which one would."""
    spec, degrees = asked.reinforcement, _degrees(asked, accelerators)

    def need(tokens: int) -> float:
        return min(_engine_bytes(asked, tp, spec.prompt_tokens + tokens) for tp in degrees)

    has = f"of an accelerator, which has {size(bytes_for_it)} for it"
    missing_bytes = need(spec.longest_tokens) - bytes_for_it
    room = _more_room(asked, accelerators)
    if need(0) > bytes_for_it:
        detail = f"no engine fits: weights and the cache of a prompt need {size(need(0))} {has}"
        pointer = f"/{PART}/generation_tp"
        return NothingFits(detail + room, pointer, spec.generation_tp, missing_bytes)
    low, high = 0, spec.longest_tokens
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if need(middle) <= bytes_for_it else (low, middle)
    detail = (
        f"no engine fits: weights and the cache of one sequence of {spec.sequence_tokens:,} tokens "
        f"need {size(need(spec.longest_tokens))} {has}: at most {low:,} tokens of a response{room}"
    )
    pointer = f"/{PART}/max_response_tokens"
    return NothingFits(detail, pointer, spec.longest_tokens, missing_bytes)


def _more_room(asked: ReinforcementRequest, accelerators: int) -> str:
    """What would make room for an engine, of what the accelerators for engines allow."""
    spec, share = asked.reinforcement, asked.reinforcement.gpu_memory_utilization
    ways = []
    if spec.generation_tp is not None and spec.generation_tp < max(_splits(asked, accelerators)):
        ways.append("a larger generation_tp")
    if share is not None and share < 1.0:
        ways.append("a larger gpu_memory_utilization")
    # A stated share is the same there.
    if asked.nodes > 1 and spec.generation != "other" and share is None:
        ways.append("generation: other")
    if not ways:
        return ""
    return f"; {' or '.join(ways)} may make room"


def _degrees(asked: ReinforcementRequest, accelerators: int) -> list[int]:
    """Accelerators of an engine that are tried: as stated, else all that are possible."""
    stated = asked.reinforcement.generation_tp
    return _splits(asked, accelerators) if stated is None else [stated]


def _splits(asked: ReinforcementRequest, accelerators: int) -> list[int]:
    """Accelerators that an engine may have: powers of two that split heads and ranks."""
    powers = [1 << i for i in range(MOST_TP.bit_length()) if 1 << i <= accelerators]
    if asked.trainer.node_engines:
        powers = [n for n in powers if n <= asked.node_accelerators]
    model = asked.request.model
    return [n for n in powers if accelerators % n == 0 and splits_heads(model, n)] or [1]


def splits_heads(model: ModelSpec, tp: int) -> bool:
    """Whether so many accelerators share the heads evenly, as vLLM and SGLang need.

    With more accelerators than key/value heads, equally many hold the same one.
    """
    groups = model.num_query_groups or model.num_attention_heads
    return model.num_attention_heads % tp == 0 and (groups % tp == 0 or tp % groups == 0)


def _engine(asked: ReinforcementRequest, tp: int, expert_parallel: bool = False) -> Engine:
    spec = asked.reinforcement
    return Engine(cost_model(asked.request), tp, expert_parallel, spec.generation_precision, "bf16")


def least_engine_bytes(asked: ReinforcementRequest, tp: int) -> float:
    """The least memory of an accelerator of an engine for the longest sequence of a step."""
    return _engine_bytes(asked, tp, asked.reinforcement.sequence_tokens)


def _engine_bytes(asked: ReinforcementRequest, tp: int, tokens: int) -> float:
    """The least memory of an accelerator of an engine: weights and the cache of one sequence."""
    one = _engine(asked, tp)
    return one.weight_bytes + WORKSPACE_BYTES + float(one.cache_bytes(np.array(float(tokens))))


def _candidates(
    asked: ReinforcementRequest, accelerators: int, share: float, where: str
) -> Iterator[Engines]:
    spec, model = asked.reinforcement, asked.request.model
    # vLLM's server has copies of mixtures of experts alone (0.14 and later).
    alone = asked.trainer.one_server and where == "other" and model.moe is None
    capacity = asked.request.cluster.groups[0].accelerator.memory_bytes
    site = site_of_request(asked.request.site)
    belief = FIRST_SIGHT if site is None else generation_belief(site.steps)
    for tp in _degrees(asked, accelerators):
        several = model.moe is not None and tp > 1 and asked.trainer.whole_experts
        experts = model.moe.num_experts if model.moe else 1
        for expert_parallel in (False, True) if several and experts % tp == 0 else (False,):
            engine = _engine(asked, tp, expert_parallel)
            weights, count = engine.weight_bytes, 1 if alone else accelerators // tp
            cache = share * capacity - weights - WORKSPACE_BYTES
            responses = spec.sequences * spec.generated_per_trained / count
            if spec.generation_tokens_per_s is not None:
                stated_s = _stated_s(asked, count * tp)
                yield Engines(tp, count, False, share, weights, 0.0, stated_s, stated_s)
                break
            try:
                made = _generated(asked, engine, responses, count, cache)
            except ValueError:  # no room for one sequence
                continue
            steady_s = responses * spec.mean_tokens / made.steady_tokens_per_s
            yield Engines(
                tp, count, expert_parallel, share, weights, cache, belief.factor * made.seconds,
                belief.factor * steady_s, made, belief,
            )  # fmt: skip


def _stated_s(asked: ReinforcementRequest, accelerators: int) -> float:
    """Seconds of the responses at the throughput that is stated."""
    spec = asked.reinforcement
    tokens = spec.sequences * spec.generated_per_trained * spec.mean_tokens
    return tokens / ((spec.generation_tokens_per_s or 1.0) * accelerators) + spec.waiting_s


def _generated(
    asked: ReinforcementRequest, engine: Engine, responses: float, count: int, cache: float
) -> Generated:
    spec = asked.reinforcement
    return generate(
        engine, lengths(asked), float(spec.prompt_tokens), responses, engines=count,
        cache_bytes=cache, max_num_seqs=spec.max_num_seqs,
        # Where engines cache prefixes, the samples of a prompt compute it once.
        prompts_per_response=1.0 / spec.samples if asked.trainer.prefixes else 1.0,
        tokens_per_pass=spec.accepted_tokens or 1.0, drafted=float(spec.speculative_tokens),
        cut=Cut(spec.oversampling, float(spec.samples), spec.partial_rollouts),
        tool_wait_s=spec.waiting_s,
    )  # fmt: skip
