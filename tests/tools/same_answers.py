"""Whether a change keeps every answer: draw requests, answer them before and after, compare.

    python -m tests.tools.same_answers draw 2000 requests.jsonl
    python -m tests.tools.same_answers answer requests.jsonl before.jsonl    # on the code before
    python -m tests.tools.same_answers answer requests.jsonl after.jsonl     # on the code after
    python -m tests.tools.same_answers compare requests.jsonl before.jsonl after.jsonl

Numbers are equal within a relative 1e-9, everything else exactly.  `compare` exits with 1 where
answers differ, and names for each kind of question the first fields that do.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from pydantic import ValidationError

import planner
from cost_models.catalog import models as catalog
from cost_models.catalog.hardware import parse_shorthand
from cost_models.plans import RECOMPUTE_MODULES, VOCABULARIES, ParallelPlan
from cost_models.schedules import SCHEDULES
from cost_models.spec import ModelSpec, TrainingSpec
from planner.answers.pipelines import timeline
from planner.answers.plans import ranks
from planner.constraints import RULES, Context, violations
from planner.documents.problems import RequestError
from planner.documents.request import PlanRequest
from planner.inputs.requests.parser import parse_request
from planner.search.axes import divisors
from planner.search.exhaustive import cost_model
from tests.fixtures import draws

TOLERANCE = 1e-9
PRESETS = (
    "gpt2", "gpt3-175b", "bloom-176b", "falcon-40b", "llama-3.1-8b", "llama-3.1-70b",
    "llama-3.1-405b", "mistral-7b", "gemma-2-27b", "gpt-oss-20b", "gpt-oss-120b", "qwen2.5-72b",
    "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v2-lite", "deepseek-v3",
)  # fmt: skip
CLUSTERS = (
    "1x1xh100-sxm", "1x8xh100-sxm", "2x8xh100-sxm", "8x8xh100-sxm", "4x8xa100-sxm-80gb",
    "2x8xa100-sxm-40gb", "2x4xl40s", "1x8xmi300x", "4x8xb200", "2x8xgb300-nvl72", "16x8xh200-sxm",
)  # fmt: skip
# Answers that depend on the clock or the version, not on the model.
VOLATILE = ("search_time_s", "version", "id")


def training(random: Random) -> TrainingSpec:
    """A step of any precision."""
    pick = random.choice
    precision = pick(("bf16", "bf16", "bf16", "fp16", "fp8", "fp4"))
    gradient = pick(draws.GRADIENT_DTYPES[precision])
    return TrainingSpec(
        seq_length=pick((512, 1024, 2048, 4096, 8192)),
        global_batch_size=pick((8, 24, 64, 256, 512)),
        precision=precision,
        fp8_recipe=pick(("tensorwise", "delayed", "rowwise", "blockwise", "mxfp8")),
        fp8_param_gather=pick((False, True)),
        gradient_dtype=gradient,
        gradient_reduce_dtype=gradient,
        optimizer=pick(("adam", "adam", "sgd", "muon", "adafactor", "adam_8bit")),
        optimizer_state_dtype=pick(("fp32", "bf16")),
        tokens=pick((None, 1e12)),
    )


def any_plan(random: Random, request: PlanRequest) -> ParallelPlan:
    """A plan of the cluster's size with any values; most are not legal."""
    pick = random.choice
    world = request.cluster.accelerators
    tp = pick(divisors(min(world, 8)))
    cp = pick([1, 1, *divisors(min(world // tp, 4))])
    pp = pick(divisors(world // tp // cp))
    dp = world // tp // cp // pp
    experts = request.model.moe is not None
    schedule = pick(list(SCHEDULES)) if pp > 1 else "1f1b"
    chunks = SCHEDULES[schedule].chunk_counts
    recompute = pick(("none", "none", "selective", "full"))
    modules = random.sample(RECOMPUTE_MODULES, pick((1, 1, 2)))
    values: dict[str, Any] = {
        name: pick((False, True))
        for name, field in ParallelPlan.model_fields.items()
        if field.annotation is bool
    }
    values |= {
        name: pick(names) for name, names in VOCABULARIES.items() if not name.startswith("rec")
    }
    return ParallelPlan.model_validate(
        values
        | {
            "tp": tp, "cp": cp, "pp": pp, "dp": dp, "schedule": schedule,
            "vpp": pick(chunks) if chunks else pick((2, 3, 4)),
            "ep": pick(divisors(min(tp * cp * dp, 8))) if experts else 1,
            "etp": pick((1, tp)) if experts else 1,
            "dp_shard": pick((0, 0, 1, 2, 4)), "zero_stage": pick((0, 1, 1, 2, 3)),
            "micro_batch_size": pick((1, 1, 2, 4)), "recompute": recompute,
            "recompute_modules": modules if recompute == "selective" else (),
            "recompute_method": pick(("block", "uniform")),
            "recompute_num_layers": pick((1, 2, 3)) if recompute == "full" else 0,
            "first_stage_layers": pick((0, 0, 1)) if pp > 1 else 0,
            "last_stage_layers": pick((0, 0, 1)) if pp > 1 else 0,
        }
    )  # fmt: skip


def question(random: Random) -> PlanRequest:
    """A preset or a drawn model, a cluster and a batch."""
    made: ModelSpec = (
        catalog.model(random.choice(PRESETS)) if random.random() < 0.6 else draws.model(random)
    )
    return PlanRequest(
        model=made, cluster=parse_shorthand(random.choice(CLUSTERS)), training=training(random)
    )


def with_plan(random: Random) -> PlanRequest:
    """A question with a plan that is legal for it."""
    while True:
        try:
            request = parse_request(question(random).document())
            context = Context(request.model, request.cluster, request.training)
            for _ in range(200):
                try:
                    plan = any_plan(random, request)
                except ValidationError:
                    continue
                if not violations(context, plan, RULES):
                    return request.model_copy(update={"plan": plan})
        except (ValidationError, RequestError):
            continue


def limited(random: Random) -> PlanRequest:
    """A question whose plan bounds the space that is searched: another value of a few fields."""
    request = with_plan(random)
    assert request.plan is not None
    plan = request.plan.model_dump(mode="json")
    free = {"dp", "recompute_num_layers", *random.sample(["tp", "pp", "zero_stage", "ep"], 2)}
    free |= {"recompute", "recompute_modules", "recompute_method", "schedule", "vpp", "etp"}
    free |= {"recompute_layers"}  # no limits of these: they follow from each stage's memory
    free |= {"first_stage_layers", "last_stage_layers", "stage_layers", "reshard_after_forward"}
    limits = {name: {"values": [value]} for name, value in plan.items() if name not in free}
    document = request.document() | {"search": {"limits": limits, "top_k": 3}}
    return PlanRequest.model_validate(document)


def _ranks(request: PlanRequest) -> Any:
    assert request.plan is not None
    return ranks.ranks(request, request.plan, "megatron")


def _timeline(request: PlanRequest) -> Any:
    assert request.plan is not None
    times = cost_model(request).stage_times(request.plan)
    return timeline.timeline_of_plan(request, request.plan, *times)


# What is asked: how many of 100, what is drawn for it, and the answer.
QUESTIONS: dict[str, tuple[int, Callable[[Random], PlanRequest], Callable[[PlanRequest], Any]]] = {
    "estimate": (64, with_plan, planner.estimate),
    "ranks": (10, with_plan, _ranks),
    "timeline": (10, with_plan, _timeline),
    "plan": (10, limited, planner.plan),
    "why": (6, limited, planner.why),
}


def draw(count: int) -> Iterator[str]:
    """So many questions as lines of JSON."""
    for kind, (share, make, _) in QUESTIONS.items():
        random = Random(kind)
        for _ in range(count * share // 100):
            yield json.dumps({"kind": kind, "request": make(random).document()})


def answer(line: str) -> str:
    """The answer to one of them, or the error."""
    asked = json.loads(line)
    request = PlanRequest.model_validate(asked["request"])
    try:
        found = QUESTIONS[asked["kind"]][2](request).model_dump(mode="json")
    except (ValueError, RequestError) as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    return json.dumps(found, default=str)


def differences(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(where, before, after) of what two answers do not have alike."""
    number = (int, float)
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before.keys() | after.keys():
            if name not in VOLATILE and name != "request":
                yield from differences(before.get(name), after.get(name), f"{path}/{name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{path}/{i}")
    elif isinstance(before, number) and isinstance(after, number):
        if not math.isclose(before, after, rel_tol=TOLERANCE, abs_tol=1e-15):
            yield path, before, after
    elif before != after:
        yield path, before, after


def compare(requests: str, before: str, after: str, most: int = 12) -> int:
    """Print what differs; how many answers do."""
    different: Counter[str] = Counter()
    total: Counter[str] = Counter()
    with open(requests) as a, open(before) as b, open(after) as c:
        for number, (asked, one, other) in enumerate(zip(a, b, c, strict=True)):
            question = json.loads(asked)
            kind, name = question["kind"], question["request"]["model"]["name"]
            total[kind] += 1
            found = list(differences(json.loads(one), json.loads(other)))
            if not found:
                continue
            different[kind] += 1
            if sum(different.values()) <= most:
                print(f"{number} {kind} of {name}: {len(found)} differences")
                for place, was, now in found[:5]:
                    print(f"    {place}: {str(was)[:300]} -> {str(now)[:300]}")
    for kind, count in total.items():
        print(f"{kind}: {count - different[kind]} of {count} equal")
    return sum(different.values())


def main(arguments: list[str]) -> int:
    match arguments:
        case ["draw", count, path]:
            with open(path, "w") as lines:
                lines.writelines(line + "\n" for line in draw(int(count)))
        case ["answer", path, answers]:
            with open(path) as asked, open(answers, "w") as lines:
                lines.writelines(answer(line) + "\n" for line in asked)
        case ["compare", *paths] if len(paths) == 3:
            return int(compare(*paths) > 0)
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
