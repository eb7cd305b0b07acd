"""A step of reinforcement learning: the fastest way to run it, its parts, memory and doubt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.answers.reinforcement.documents import (
    MEAN_OF_LONGEST,
    ReinforcementAnswer,
    ReinforcementRequest,
    ReinforcementSpec,
    Way,
)
from planner.answers.reinforcement.engines import same_engines
from planner.answers.reinforcement.layouts import Layout, layouts
from planner.answers.reinforcement.memory import phases
from planner.answers.reinforcement.timeline import lanes
from planner.answers.reinforcement.transfer import generation_weight_bytes
from planner.documents.answer import ProfileInfo
from planner.documents.plan_report import Note
from planner.frameworks.step_trainers import STALENESS
from planner.version import __version__

# Of transfers and offload, which frameworks do in buckets of their own: up to three times longer.
TRANSFER_DOUBT = 3.0
# Of the mean of the responses where it is not stated: a thirtieth to half of the longest.
LENGTH_DOUBT = 4.0
APART = ("reward", "weight_transfer", "offload", "generation")


def step(asked: ReinforcementRequest) -> ReinforcementAnswer:
    """Time and memory of one step, for the request's plan or else the fastest that fits.

    Raises RequestError (NothingFits where no plan does), SpaceTooLarge, IllegalPlan.
    """
    spec = asked.reinforcement
    found = layouts(asked)
    best = found[0]
    memory = tuple(phases(asked, best.trained.report, best.engines, best.same))
    generating = best.engines.count * best.engines.tp
    return ReinforcementAnswer(
        request=asked.document(),
        version=__version__,
        profile=ProfileInfo.of(best.trained.model.context.profile, measured={}),
        framework=best.trained.request.search.framework,
        training=best.trained.report,
        training_accelerators=best.trained.request.cluster.accelerators,
        generation_accelerators=generating,
        engines=best.engines.count,
        sequences=spec.sequences,
        tokens=spec.sequences * (spec.prompt_tokens + spec.mean_tokens),
        optimizer_steps=best.trained.optimizer_steps,
        parts_s=best.parts_s,
        dominant=max(best.parts_s, key=best.parts_s.__getitem__),
        step_time_s=best.step_time_s,
        interval_s=interval_s(asked, best),
        ways=tuple(_way(asked, one) for one in found),
        generated=best.engines.document(asked),
        weight_bytes=generation_weight_bytes(asked.request.model),
        transfer=best.transfer,
        memory=memory,
        fits=all(phase.fits for phase in memory),
        notes=tuple(_notes(spec, best)),
    )


def _way(asked: ReinforcementRequest, one: Layout) -> Way:
    spec, seconds = asked.reinforcement, one.step_time_s
    tokens_per_s = spec.sequences * (spec.prompt_tokens + spec.mean_tokens) / seconds
    accelerators = asked.request.cluster.accelerators
    return Way(
        name=one.name,
        generation="same" if one.same else "other",
        generation_nodes=asked.nodes if one.same else asked.nodes - one.trained.nodes,
        generation_tp=one.engines.tp,
        staleness=STALENESS[one.name],
        step_time_s=seconds,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_accelerator=tokens_per_s / accelerators,
        limited_by=one.limited_by,
        lanes=tuple(lanes(one)),
    )


def interval_s(asked: ReinforcementRequest, best: Layout) -> tuple[float, float]:
    """Where a step is expected: the doubts of its parts are independent, so squares add up.

    Each doubt moves its parts to an end of their own 80 % interval, the others being in the middle.
    """
    moved = [_at_extremes(asked, best, sign) for sign in (-1, 1)]
    low, high = (
        sum((changed.step_time_s - best.step_time_s) ** 2 for changed in ends) ** 0.5
        for ends in moved
    )
    return max(best.step_time_s - low, 0.1 * best.step_time_s), best.step_time_s + high


def _at_extremes(asked: ReinforcementRequest, best: Layout, sign: int) -> Iterator[Layout]:
    """The step with one doubt at a time at its lower or upper end."""
    band, middle = best.trained.report.error_band, best.trained.report.iteration_time_s
    trained = {name for name in best.parts_s if name not in APART}
    yield _times(best, trained, (band.high_s if sign > 0 else band.low_s) / middle)
    if best.engines.generated is not None:
        yield _times(best, {"generation"}, best.engines.belief.doubt**sign)
    if sign > 0:
        yield _times(best, {"weight_transfer", "offload"}, TRANSFER_DOUBT)
    if asked.reinforcement.response_tokens is None:
        yield _with_mean(asked, best, LENGTH_DOUBT**sign)


def _times(best: Layout, names: set[str], factor: float) -> Layout:
    """The step with some parts so many times as long."""
    parts = {name: taken * (factor if name in names else 1) for name, taken in best.parts_s.items()}
    return replace(best, parts_s=parts)


def _with_mean(asked: ReinforcementRequest, best: Layout, times: float) -> Layout:
    """The step on the same accelerators with so many times the mean response."""
    spec = asked.reinforcement
    mean = min(spec.longest_tokens, max(1, round(times * spec.mean_tokens)))
    other = asked.model_copy(update={
        "reinforcement": spec.model_copy(update={"response_tokens": mean})
    })  # fmt: skip
    made = same_engines(other, best.engines)
    tokens = (spec.prompt_tokens + mean) / (spec.prompt_tokens + spec.mean_tokens)
    slower = {
        "generation": made.steady_s if best.name == "asynchronous" else made.seconds,
        **{n: tokens * taken for n, taken in best.parts_s.items() if n not in APART},
    }
    return replace(best, parts_s={**best.parts_s, **slower})


def _notes(spec: ReinforcementSpec, best: Layout) -> Iterator[Note]:
    """Why the answer is coarser than one about training, and what it takes for granted."""
    yield from _of_generation(spec, best)
    where = (
        "every rank gathers all of them over the groups of its plan, stages included, and hands "
        "its engine a part"
        if best.same
        else "one rank of each stage gathers its own and broadcasts them, a stage at a time, over "
        "one accelerator's links"
    )
    yield Note(
        code="weight_transfer",
        text=f"New weights, bf16: {where}. Seconds are the sum of the steps; sending each engine "
        "its shard alone (NeMo RL's NCCL reshard, verl's hybrid engine) moves less.",
    )
    yield Note(
        code="scoring",
        text="Scoring is a forward pass of the training plan for each model"
        + (
            "; the critic takes the policy's time and states in the ratio of their parameters."
            if spec.algorithm == "ppo"
            else "."
        ),
    )
    if best.trained.asked.trainer.pads:
        yield Note(
            code="padded",
            text="The trainer fills the responses of a rank up to its longest one: scoring and "
            "training are priced with that.",
        )
    if spec.offload:
        text = (
            "Models take turns: what waits is in host memory, engines free weights and cache while "
            "others work; copies are serial, at the host link's rate."
        )
    else:
        text = "All models stay in accelerator memory; engines free theirs while ranks train."
    yield Note(code="turns", text=text)


def _of_generation(spec: ReinforcementSpec, best: Layout) -> Iterator[Note]:
    """What generation rests on: kernels or a rate, a site's steps, lengths."""
    stated = spec.generation_tokens_per_s is not None
    how = (
        "generation is at the throughput that was stated; waiting for the longest responses is in "
        "no part"
        if stated
        else "generation is priced kernel by kernel and held against published throughputs of "
        "engines, not against your engine's release"
    )
    yield Note(
        code="coarse",
        text=f"Coarser than an answer about training: {how}; rewards take as long as stated.",
    )
    if (belief := best.engines.belief).steps:
        times = "1 step" if belief.steps == 1 else f"{belief.steps} steps"
        yield Note(
            code="site",
            text=f"Generation takes {belief.factor:.2f} times as long as modelled, within a factor "
            f"of {belief.doubt:.2f}: learned from {times} of site {best.trained.request.site}; "
            "scoring and training have the correction of the site's runs.",
        )
    if spec.response_tokens is None:
        yield Note(
            code="lengths",
            text=f"The mean response is not stated: 1/{MEAN_OF_LONGEST} of the longest, "
            f"{spec.mean_tokens:,} tokens, is assumed. Everything grows with it: state it "
            "(response_tokens), or expect the whole interval.",
        )
    elif spec.max_response_tokens is None and not stated:
        yield Note(
            code="lengths",
            text=f"The longest response is not stated: {spec.longest_tokens:,} tokens, 4 times "
            "the mean, is assumed. Memory and the wait for the last response follow from it.",
        )
