"""From a training log to a run that a site can learn from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import prod
from typing import Any

from cost_models.catalog.models import model as catalog_model
from cost_models.catalog.names import UnknownName
from cost_models.spec import ClusterSpec
from planner.answers.plans.plan_answers import illegal
from planner.documents.loading import scalar
from planner.documents.problems import RequestError, from_reasons, refuse, shown
from planner.documents.request import PlanRequest
from planner.evidence.published_runs.clusters import accelerator_id
from planner.evidence.uncertainty.site import LearnedRun, Site
from planner.evidence.uncertainty.site_pricing import run_of_plan
from planner.frameworks.base import one_line
from planner.inputs.logs.read import NEEDED
from planner.inputs.logs.run_log import CodeBase, Fact, RunLog
from planner.inputs.requests.parser import parse_request

PARTS = ("model", "training", "plan")
# Fields that identify a model: if one differs, the request is about another model than the log.
SHAPE = (
    "num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "ffn_hidden_size",
    "vocab_size",
)  # fmt: skip
# Fields without which a run cannot be priced, unless a launch script is given; dp follows.
REQUIRED = (
    *(field for field in NEEDED if field.startswith(("training.", "plan."))
      and field not in ("plan.attention_kernel", "plan.dp")),
    "plan.runtime",
)  # fmt: skip
# The runtime of each code base; MLPerf's logs may be of any.
RUNTIMES: dict[CodeBase, str] = {
    "megatron-lm": "megatron",
    "megatron-bridge": "megatron",
    "mindspeed": "megatron",
    "nemo": "megatron",
    "megatron-deepspeed": "deepspeed",
    "deepspeed": "deepspeed",
    "torchtitan": "torch",
    "accelerate": "torch",
    "trainer": "torch",
    "nanotron": "nanotron",
}
# Code bases whose logs print the whole config of a model, which is read by its own reader.
WHOLE_MODELS: tuple[CodeBase, ...] = ("trainer", "accelerate")
# Memory reports, the most informative first.
REPORTS = ("max allocated", "max reserved", "in use")
MAX_NOTES = 50


@dataclass(frozen=True)
class LearningRequest:
    """The statements of a user that accompany the logs.

    model: a preset's name or a document, in place of the log's.  settings: values by their path,
    such as plan.recompute.  files: the launch script and its files, by name.
    """

    site: str
    cluster: ClusterSpec
    model: Any = None
    settings: Mapping[str, Any] | None = None
    files: Mapping[str, str] | None = None


def setting(text: str) -> tuple[str, Any]:
    """(path, value) of text such as plan.recompute=full.  Raises RequestError."""
    path, equals, value = text.partition("=")
    part, dot, name = path.strip().partition(".")
    if not equals or not dot or part not in PARTS or not name:
        detail = f"must be such as plan.recompute=full or model.vocab_size=32000, got {shown(text)}"
        raise refuse("/set", "not_allowed", detail, text, allowed=PARTS)
    values = [scalar(item.strip(), "/set") for item in value.split(",")]
    return f"{part}.{name}", values if len(values) > 1 else values[0]


def learned_run(log: RunLog, learning: LearningRequest, site: Site) -> LearnedRun:
    """The run of a log, read and priced.  Raises RequestError."""
    request, assumed = request_of(log, learning)
    if reasons := illegal(request, request.named_plan):
        raise RequestError(from_reasons(reasons))
    memory = next((m for name in REPORTS for m in log.memory if m.quantity == name), None)
    step = log.step
    measured = {
        "id": digest(log, learning.files or {}),
        "file": one_line(log.name)[:200],
        "code_base": log.code_base,
        "learned_at": datetime.now(UTC),
        "left_open": assumed,
        "assumed": tuple(one_line(note)[:2_000] for note in log.assumed[:MAX_NOTES]),
        "step_s": step.seconds,
        "steps": step.steps,
        "left_out": {note.reason: note.steps for note in step.left_out},
        "peak_bytes": memory.bytes if memory else None,
        "memory_quantity": memory.quantity if memory else None,
    }
    try:
        return run_of_plan(request, site, measured)
    except RequestError:
        raise
    except ValueError as error:
        raise refuse("/log", "not_priced", f"{log.name}: {error}") from None


def digest(log: RunLog, files: Collection[str]) -> str:
    """A digest of the log's own content, independent of the file's name and of stated values."""
    facts = sorted((fact.field, str(fact.value)) for fact in _printed_facts(log, files))
    memory = [[fact.quantity, fact.bytes] for fact in log.memory]
    content = [log.code_base, log.step.seconds, log.step.steps, memory, facts]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


def request_of(log: RunLog, learning: LearningRequest) -> tuple[PlanRequest, tuple[str, ...]]:
    """The request of a log's run, and the values assumed for fields that it does not state.

    Raises RequestError where a value is missing, or is stated twice and differently.
    """
    settings = dict(learning.settings or {})
    _check_accelerator(log, learning.cluster)
    _check_settings(log, settings, learning.files or {})
    document = _document(log, learning)
    if learning.cluster.before_ampere and "plan.attention_kernel" in log.left_open:
        document["plan"] = {**document["plan"], "attention_kernel": "unfused"}
    for path, value in settings.items():
        part, _, name = path.partition(".")
        document[part] = {**document[part], name: value}
    if log.reading is None:
        _check_complete(log, document)
        document["plan"] = _every_layer(document["plan"], document["model"])
    document["cluster"] = _used_cluster(learning.cluster, log, document["plan"]).model_dump(
        mode="json", exclude_none=True
    )
    request = parse_request(document, need_plan=True)
    _check_model(log, request)
    open_fields = [path for path in log.left_open if path not in settings]
    return request, tuple(_assumed(path, request) for path in open_fields)


def _document(log: RunLog, request: LearningRequest) -> dict[str, Any]:
    """The request, as far as the log and its files state it."""
    if log.reading is not None:
        reading = log.reading
        document = {
            part: getattr(reading, part).model_dump(mode="json", exclude_none=True)
            for part in PARTS
        }
        files = request.files or {}
        for fact in log.facts:
            part, _, name = fact.field.partition(".")
            if fact.file in files and fact.line and part in PARTS and name != "name":
                document[part][name] = fact.value
    else:
        fields: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
        for fact in log.facts:
            part, _, name = fact.field.partition(".")
            if part in ("training", "plan"):
                fields[part][name] = fact.value
        document = {**fields, "model": _model_of(log, request)}
        if (runtime := RUNTIMES.get(log.code_base)) is not None:
            document["plan"] = {"runtime": runtime, **document["plan"]}
    if request.model is not None:
        document["model"] = request.model
    if isinstance(named := document["model"], str):
        document["model"] = _catalog(named)
    return document


def _catalog(name: str) -> Any:
    """The fields of a model of the catalog, so that a setting can change them."""
    try:
        return catalog_model(name).model_dump(mode="json", exclude_none=True)
    except UnknownName as error:
        raise refuse(
            "/model", "unknown_name", f"no model {shown(name)!r}", name, did_you_mean=error.nearest
        ) from None


def _model_of(log: RunLog, request: LearningRequest) -> Any:
    """The model that a log prints or else names; used where no launch script is given."""
    if request.model is not None:
        return request.model
    if log.code_base in WHOLE_MODELS and log.get("model.num_layers") is not None:
        facts = (fact for fact in log.facts if fact.field.startswith("model."))
        return {fact.field.removeprefix("model."): _value(fact) for fact in facts}
    name = str(log.get("model.name") or "")
    try:
        return catalog_model(name.rsplit("/", 1)[-1]).name
    except UnknownName:
        said = [f"{fact.field} {fact.value}" for fact in log.facts if fact.value is not None]
        read = ", ".join([f"a step of {log.step.seconds:.4g} s", *said[:8]])[:300]
        detail = (
            f"{log.name} does not print all of its model: give the model, or the launch script "
            f"(read: {read})"
        )
        raise refuse("/log", "left_open", detail) from None


def _every_layer(plan: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """The plan with full recompute of every layer, if the number of layers is not stated."""
    layers = model.get("num_layers") if isinstance(model, dict) else None
    chunks = [plan.get(name, 1) for name in ("pp", "vpp")]
    counts = [layers, *chunks]
    if plan.get("recompute") != "full" or not all(type(count) is int and count for count in counts):
        return dict(plan)
    return {"recompute_num_layers": -(-counts[0] // prod(chunks)), **plan}


def _value(fact: Fact) -> Any:
    """The value of a field; a log's facts hold nested documents as JSON."""
    if isinstance(fact.value, str) and fact.value[:1] in ("{", "["):
        return json.loads(fact.value)
    return fact.value


def _check_complete(log: RunLog, document: Mapping[str, Any]) -> None:
    """Raise RequestError where a field that the estimate needs is not stated."""
    paths = [(path, *path.split(".")) for path in REQUIRED]
    missing = [path for path, part, name in paths if name not in document[part]]
    if missing:
        detail = (
            f"{log.name} leaves open {', '.join(missing)}: give the launch script, or set each "
            f"({missing[0]}=...)"
        )
        raise refuse("/log", "left_open", detail)


def _check_settings(log: RunLog, settings: Mapping[str, Any], files: Collection[str]) -> None:
    """Raise RequestError where a setting contradicts the log."""
    for fact in _printed_facts(log, files):
        if fact.field not in settings or settings[fact.field] == fact.value:
            continue
        value, source = settings[fact.field], f"{log.name} line {fact.line}"
        detail = f"{fact.field} is set to {shown(value)}, but {source} says {shown(fact.value)}"
        raise refuse("/set", "contradicts_log", detail, value, allowed=(str(fact.value),))


def _printed_facts(log: RunLog, files: Collection[str]) -> list[Fact]:
    """The fields that the log itself prints."""
    return [fact for fact in log.facts if fact.line and fact.file not in files]


def _check_model(log: RunLog, request: PlanRequest) -> None:
    """Raise RequestError if the model contradicts what the log prints of it."""
    for name in SHAPE:
        logged, value = log.get(f"model.{name}"), getattr(request.model, name)
        # A log prints the width of one half of a gated MLP, or of both.
        if logged is None or logged == value or (name == "ffn_hidden_size" and logged == 2 * value):
            continue
        detail = f"{request.model.name} has {name} {value}, the model of {log.name} has {logged}"
        raise refuse("/model", "another_model", detail, value, allowed=(str(logged),))


def _used_cluster(cluster: ClusterSpec, log: RunLog, plan: Mapping[str, Any]) -> ClusterSpec:
    """The part of the cluster that the run used.  Raises RequestError."""
    if len(cluster.groups) > 1:
        raise refuse("/cluster", "mixed", "a run is learned on equal nodes")
    group = cluster.groups[0]
    degrees = [plan.get(name, 1) for name in ("tp", "cp", "pp", "dp")]
    ranks = log.get("accelerators")
    if ranks is None and "dp" in plan and all(isinstance(degree, int) for degree in degrees):
        ranks = prod(degrees)
    if not isinstance(ranks, int) or ranks == cluster.accelerators:
        return cluster
    each = group.accelerators_per_node
    if ranks > cluster.accelerators:
        detail = f"{log.name} ran on {ranks:,} accelerators, the cluster has"
        raise refuse("/cluster", "too_small", f"{detail} {cluster.accelerators:,}", ranks)
    if ranks > each and ranks % each:
        detail = f"{log.name} ran on {ranks:,} accelerators: no whole number of nodes of {each}"
        raise refuse("/cluster", "no_whole_nodes", detail, ranks)
    resized = {"nodes": max(ranks // each, 1), "accelerators_per_node": min(ranks, each)}
    return cluster.model_copy(update={"groups": (group.model_copy(update=resized),)})


def _check_accelerator(log: RunLog, cluster: ClusterSpec) -> None:
    """Raise RequestError where the log names another accelerator than the cluster's."""
    named, name = log.get("accelerator"), cluster.groups[0].accelerator.id
    if named is None:
        return
    try:
        logged = accelerator_id(str(named)).value
    except ValueError:
        return
    if logged != name:
        detail = f"{log.name} ran on {shown(named)} ({logged}), the cluster has {name}"
        raise refuse("/cluster", "another_accelerator", detail, name, allowed=(logged,))


def _assumed(path: str, request: PlanRequest) -> str:
    """The note on an open field: the value that is assumed for it."""
    part, _, name = path.partition(".")
    value = getattr(getattr(request, part, None), name, None)
    return path if value is None else f"{path}: {value} assumed"
