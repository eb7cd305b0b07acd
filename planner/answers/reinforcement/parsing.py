"""Parses a user's document into a request about reinforcement learning.

Everything wrong with it is collected and raised once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cost_models.spec import ModelSpec
from planner import frameworks
from planner.answers.reinforcement.documents import PART, ReinforcementRequest, ReinforcementSpec
from planner.answers.reinforcement.engines import splits_heads
from planner.documents.problems import Gathered, Problem, RequestError, missing
from planner.documents.request import PlanRequest
from planner.documents.typed_values import plain_object, require_object, validate
from planner.frameworks.step_trainers import TRAINERS
from planner.inputs.requests.parser import parse_request
from planner.search.axes import divisors

# An advantage is a response's reward less the mean of its prompt: none of one alone.
LEAST_OF_GRPO = 2


def parse_reinforcement(document: Any) -> ReinforcementRequest:
    """A request with the part `reinforcement` beside the others.  Raises RequestError.

    The length of a sequence and the batch follow from that part where the training leaves them
    out; a plan is one of the nodes that train.
    """
    document = plain_object(document)
    rest = {name: part for name, part in document.items() if name not in (PART, "plan")}
    problems, request = Gathered(), None
    if (spec := problems.of(lambda: _spec(_named(document.get(PART), rest)))) is not None:
        rest["training"] = _training(rest.get("training"), spec)
    try:
        request = parse_request(rest)
    except RequestError as error:
        # Without its part a request lacks what would follow from it.
        own = [p for p in error.problems if spec is not None or p.code != "missing"]
        problems += [_of_step(one, document, spec) for one in own]
    if spec is None or request is None:
        raise RequestError(problems)
    problems += [
        *_of_algorithm(spec), *_of_training(request, spec), *_of_cluster(request, spec),
        *_of_trainer(request, spec),
    ]  # fmt: skip
    problems.check()
    asked = ReinforcementRequest(request=request, reinforcement=spec)
    return asked if document.get("plan") is None else _planned(asked, document["plan"])


def _planned(asked: ReinforcementRequest, plan: Any) -> ReinforcementRequest:
    """The request with a plan of the nodes that train.  Raises RequestError."""
    spec = asked.reinforcement
    if asked.trainer.apart and spec.generation_nodes is None:
        detail = f"{asked.trainer.title} trains on the other nodes: a plan of these needs it, "
        detail += "with generation: other"
        pointer = f"/{PART}/generation_nodes"
        raise RequestError([Problem(pointer=pointer, code="missing", detail=detail)])
    nodes = asked.nodes - (spec.generation_nodes or 0)
    trained = asked.training_on(nodes)
    if trained.search.framework is None:  # what a plan leaves out is as the trainer has it
        trained = trained.for_framework(asked.trainer.framework)
    trained = parse_request({**trained.document(), "plan": plan})
    planned = asked.request.model_copy(update={"plan": trained.plan})
    return asked.model_copy(update={"request": planned})


def _named(value: Any, rest: dict[str, Any]) -> Any:
    """The part with the trainer that a search names as its framework, where it says none itself."""
    search = rest.get("search")
    if not isinstance(search, dict) or not isinstance(value, dict) or "trainer" in value:
        return value
    name = search.get("framework")
    if name not in TRAINERS:
        return value
    rest["search"] = {key: part for key, part in search.items() if key != "framework"}
    return {**value, "trainer": name}


def _of_step(one: Problem, document: dict[str, Any], spec: ReinforcementSpec | None) -> Problem:
    """A problem with the length of a sequence at the field that it follows from."""
    training = document.get("training")
    said = isinstance(training, dict) and training.get("seq_length") is not None
    if spec is None or said or one.pointer != "/training/seq_length":
        return one
    longest = spec.longest_tokens
    detail = f"with a prompt of {spec.prompt_tokens:,} tokens and {longest:,} more: {one.detail}"
    update = {"pointer": f"/{PART}/max_response_tokens", "detail": detail, "got": longest}
    return one.model_copy(update=update)


def _spec(value: Any) -> ReinforcementSpec:
    if value is None:
        raise RequestError([missing(PART)])
    require_object(f"/{PART}", value)
    try:
        return validate(f"/{PART}", value, ReinforcementSpec)
    except RequestError as error:
        lengths = ("response_tokens", "max_response_tokens")
        lacking = all(value.get(name) is None for name in lengths)
        # A check between fields is not made where one of them is missing.
        if not lacking or all(one.code != "missing" for one in error.problems):
            raise
        raise RequestError([*error.problems, missing(lengths[-1], f"/{PART}")]) from None


def _training(value: Any, spec: ReinforcementSpec) -> Any:
    """The training with what follows from a step; what is no object is left to the parser."""
    if value is not None and not isinstance(value, dict):
        return value
    usual: dict[str, Any] = {
        "seq_length": spec.sequence_tokens, "global_batch_size": spec.sequences,
    }  # fmt: skip
    given = {name: part for name, part in (value or {}).items() if part is not None}
    trainer = TRAINERS[spec.trainer]
    if given.get("lora_rank"):
        usual |= frameworks.get(trainer.framework).adapters
    return {**usual, **trainer.training, **given}


def _of_algorithm(spec: ReinforcementSpec) -> Iterator[Problem]:
    """What the algorithm needs of a step."""
    if spec.algorithm == "grpo" and spec.samples < LEAST_OF_GRPO:
        said = "samples" in spec.model_fields_set
        rule = f"GRPO compares a prompt's responses: must be at least {LEAST_OF_GRPO}"
        yield Problem(
            pointer=f"/{PART}/samples",
            code="inconsistent" if said else "missing",
            detail=f"{rule}, got {spec.samples}" if said else f"is required: {rule}",
            got=spec.samples,
        )


def _of_training(request: PlanRequest, spec: ReinforcementSpec) -> Iterator[Problem]:
    """What of a training contradicts the step, or says what is not asked here."""
    training = request.training

    def problem(name: str, detail: str, got: Any) -> Problem:
        return Problem(pointer=f"/training/{name}", code="inconsistent", detail=detail, got=got)

    if training.seq_length != spec.sequence_tokens:
        detail = (
            f"must be {spec.sequence_tokens}, a prompt and the longest response, or be left out"
        )
        yield problem("seq_length", f"{detail}; got {training.seq_length}", training.seq_length)
    batch = training.global_batch_size
    if spec.sequences % batch:
        detail = f"must divide {spec.sequences}, prompts x samples, or be left out; got {batch}"
        yield problem("global_batch_size", detail, batch)
    if training.loss != "next_token":
        detail = f"follows from the algorithm, {spec.algorithm}; leave it out"
        yield problem("loss", detail, training.loss)
    if training.sample_lengths:
        yield problem("sample_lengths", "a sequence is one prompt and response; leave it out", None)
    if training.tokens is not None:
        detail = "days and cost are of a training; here a step is priced: leave it out"
        yield problem("tokens", detail, training.tokens)


def _of_cluster(request: PlanRequest, spec: ReinforcementSpec) -> Iterator[Problem]:
    """What of the generation the cluster has no place for."""

    def problem(name: str, detail: str, got: Any) -> Problem:
        return Problem(pointer=f"/{PART}/{name}", code="inconsistent", detail=detail, got=got)

    (group,) = request.cluster.groups
    nodes = spec.generation_nodes or 0
    if nodes >= group.nodes:
        detail = f"must leave nodes to train on: the cluster has {group.nodes}, got {nodes}"
        yield problem("generation_nodes", detail, nodes)
    if spec.generation_tp is not None:
        ranks = (nodes or group.nodes) * group.accelerators_per_node
        if detail := _engine_split_problem(request.model, spec.generation_tp, ranks):
            yield problem("generation_tp", detail, spec.generation_tp)
    if spec.generation == "other" and group.nodes < 2:
        detail = "needs a second node: one generates while the other trains"
        yield problem("generation", detail, "other")
    turns = spec.generation != "other" or spec.reference or spec.algorithm == "ppo"
    if spec.offload and turns and group.host_link_bytes_per_s is None:
        yield problem("offload", "needs host_link_bytes_per_s in the cluster, or false", True)


def _of_trainer(request: PlanRequest, spec: ReinforcementSpec) -> Iterator[Problem]:
    """What of the step its trainer can't do, whatever the plan."""

    def problem(name: str, detail: str, got: Any, pointer: str = PART) -> Problem:
        return Problem(pointer=f"/{pointer}/{name}", code="inconsistent", detail=detail, got=got)

    trainer, (group,) = TRAINERS[spec.trainer], request.cluster.groups
    if spec.offload and not trainer.offloads:
        detail = f"{trainer.title} keeps its models in accelerator memory: must be false, got true"
        yield problem("offload", detail, True)
    if spec.reference and not trainer.references:
        detail = f"{trainer.title} has no reference that scores responses: must be false, got true"
        yield problem("reference", detail, True)
    if trainer.apart and spec.generation is None and group.nodes < 2:
        detail = f"{trainer.title} generates on nodes of their own: needs a second node"
        yield problem("generation", detail, None)
    if spec.staleness < trainer.freshest:
        least = f"{trainer.freshest:g}, got {spec.staleness:g}"
        detail = f"{trainer.title} generates while it trains: must be at least {least}"
        yield problem("staleness", detail, spec.staleness)
    most = group.accelerators_per_node
    if trainer.node_engines and spec.generation_tp is not None and spec.generation_tp > most:
        detail = f"an engine of {trainer.title} is on one node: must be at most {most}, got "
        yield problem("generation_tp", f"{detail}{spec.generation_tp}", spec.generation_tp)
    batch = request.training.global_batch_size
    if trainer.one_update and batch != spec.sequences:
        detail = f"{trainer.title} hands new weights on after each optimizer step: must be "
        detail += f"{spec.sequences}, prompts x samples, or be left out; got {batch}"
        yield problem("global_batch_size", detail, batch, "training")


def _engine_split_problem(model: ModelSpec, tp: int, ranks: int) -> str:
    """Why engines of so many accelerators can't be made of these; "" where they can."""
    if ranks % tp:
        return f"must divide the {ranks} accelerators that generate, got {tp}"
    if splits_heads(model, tp):
        return ""
    heads = model.num_attention_heads
    able = [str(n) for n in divisors(ranks) if splits_heads(model, n)]
    return (
        f"must divide the {heads} attention heads, and divide the "
        f"{model.num_query_groups or heads} key/value heads or be a multiple of them: "
        f"{', '.join(able)} of {ranks} accelerators; got {tp}"
    )
