"""The OpenAPI description of a request: the specs, and the short forms a user may write.

The body is read by `planner.inputs.requests.parser`, not by FastAPI, so that one parser and one
wording of errors serve the command line, Python and HTTP; this module describes what it takes.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from api.negotiation import JSON
from api.openapi import job_schema, site_schema
from api.openapi.parts import PREFIX, closed, ref, text
from api.problems import ProblemDocument
from cost_models.plans import FIELDS, ParallelPlan
from cost_models.spec import ClusterSpec, ModelSpec, TrainingSpec
from planner.answers.fits.by_card import CardsSpec
from planner.answers.fits.request import FitSpec
from planner.answers.pipelines.all_schedules import ComparisonRequest
from planner.answers.pipelines.timeline import TimelineRequest
from planner.answers.reinforcement.documents import PART as STEP
from planner.answers.reinforcement.documents import ReinforcementSpec
from planner.answers.sensitivities.documents import SensitivitySpec
from planner.answers.sizing.request import PARTS, SizingSpec
from planner.documents.request import SearchSpec

_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "where the service has keys"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
_CONFIG = {
    "type": "object",
    "description": "a Hugging Face config.json",
    "anyOf": [{"required": ["model_type"]}, {"required": ["architectures"]}],
}

# Of answers that may come as events, with the progress before them (api.progress_events).
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {}}}}  # of an event: any
}
# For routes whose answers have an entity tag.
NOT_CHANGED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The caller has this answer: If-None-Match named its ETag"}
}


def request_body(examples: dict[str, Any], schema: str = "Request") -> dict[str, Any]:
    """The OpenAPI entry of a route that takes a request, of the schema with this name."""
    content = {"schema": ref(schema), "examples": examples}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def _node_results() -> dict[str, Any]:
    """What POST /v1/one-node/results takes."""
    ranks = {"type": "array", "items": {"type": "object"}, "maxItems": 64}
    ranks["description"] = "the rank-N.json of every rank, as the script left them"
    return closed({"request": ref("Request"), "ranks": ranks}, ["request", "ranks"])


def describe(app: FastAPI) -> None:
    """Add the schemas of the request and of problems to the application's OpenAPI document."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            schemas = document["components"]["schemas"]
            for name, schema in _definitions().items():
                schemas.setdefault(name, schema)
            schemas["Request"] = _request()
            schemas |= _question_schemas(schemas["Request"])
            document["components"]["securitySchemes"] = _KEYS
            document["security"] = [{}, *({name: []} for name in _KEYS)]
            for operations in document["paths"].values():
                for operation in operations.values():
                    _summarise(operation)
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
        return generate()

    app.openapi = openapi  # type: ignore[method-assign]


def _question_schemas(request: dict[str, Any]) -> dict[str, Any]:
    """The schemas of what questions take besides a request, given that of a request."""
    sensitivity = request["properties"] | {"sensitivity": ref("SensitivitySpec")}
    return {
        "SensitivityRequest": request | {"properties": sensitivity},
        "ReinforcementRequest": _step_request(request),
        "LintRequest": _lint_request(request, ["files", "cluster"]),
        "ReadRequest": _lint_request(request, ["files"]),
        "MachineRequest": closed(
            {
                "files": _texts("what programs printed, by name of the file"),
                "name": text("of the cluster"),
            },
            ["files"],
        ),
        "LessonRequest": site_schema.request(request),
        **job_schema.requests(request),
        "NodeResults": _node_results(),
        "SizingRequest": _sizing_request(request),
        "FitRequest": _fit_request(request),
        "CardsRequest": _cards_request(request),
        # A pipeline alone, or a request with a plan.
        "TimelineOrRequest": {"anyOf": [ref("TimelineRequest"), ref("Request")]},
        "ScheduleComparisonRequest": {"anyOf": [ref("ComparisonRequest"), ref("Request")]},
        "ComparisonOfPlans": closed({"a": ref("Request"), "b": ref("Request")}, ["a", "b"]),
        "ModelConfig": _CONFIG,
    }


def _definitions() -> dict[str, Any]:
    models = (
        ModelSpec, ClusterSpec, TrainingSpec, ParallelPlan, SearchSpec, SizingSpec, FitSpec,
        CardsSpec, SensitivitySpec, ReinforcementSpec, TimelineRequest, ComparisonRequest,
        ProblemDocument, *job_schema.SPECS,
    )  # fmt: skip
    _, schema = models_json_schema(
        [(model, "validation") for model in models], ref_template=PREFIX + "{model}"
    )
    definitions: dict[str, Any] = schema["$defs"]
    # These widths follow from others when they are left out.
    derived = {"num_query_groups", "head_dim", "ffn_hidden_size"}
    model = definitions["ModelSpec"]
    definitions["ModelSpec"] = model | {
        "required": [name for name in model["required"] if name not in derived]
    }
    return definitions


def _request() -> dict[str, Any]:
    definitions = _definitions()
    group, cluster = definitions["NodeGroup"], definitions["ClusterSpec"]
    named = {"accelerator": {"anyOf": [{"type": "string"}, ref("AcceleratorSpec")]}}
    properties = {name: s for name, s in cluster["properties"].items() if name != "groups"}
    flat = group["properties"] | named | properties | {"preset": {"type": "string"}}
    mixed = group | {
        "properties": group["properties"] | named,
        "required": ["accelerator", "nodes"],
    }
    search = definitions["SearchSpec"]["properties"]
    limits = {
        name: _limit(name, definitions["ParallelPlan"]["properties"][name]) for name in FIELDS
    }
    fields = {
        "model": {
            "description": "a preset's name, the model's dims, or a config.json",
            "anyOf": [{"type": "string"}, ref("ModelSpec"), _CONFIG],
        },
        "cluster": {
            "description": "a preset's name, a shorthand such as 8x8xh100-sxm, equal nodes, "
            "or groups of nodes",
            "anyOf": [
                {"type": "string"},
                closed(flat),
                closed(properties | {"groups": {"type": "array", "items": mixed}}, ["groups"]),
            ],
        },
        "training": ref("TrainingSpec"),
        "search": closed(search | limits),
        "plan": ref("ParallelPlan"),
        "profile": text("an efficiency profile by its id"),
        "site": text("a site whose learned runs correct times"),
        "guessed": {"type": "array", "items": {"type": "string"}},
        "defaulted": {"type": "array", "items": {"type": "string"}},
    }
    return closed(fields, ["model", "cluster", "training"])


def _step_request(request: dict[str, Any]) -> dict[str, Any]:
    """The training may leave out what follows from a step."""
    training = _definitions()["TrainingSpec"]
    properties = {STEP: ref("ReinforcementSpec"), "training": closed(training["properties"])}
    required = {"required": ["model", "cluster", STEP]}
    return request | required | {"properties": request["properties"] | properties}


def _texts(description: str) -> dict[str, Any]:
    texts = {"additionalProperties": {"type": "string"}}
    return {"type": "object", "description": description, **texts}


def _lint_request(request: dict[str, Any], required: list[str]) -> dict[str, Any]:
    fields = {
        "files": _texts("the files of a launch by name, the script first"),
        "cluster": request["properties"]["cluster"],
        "framework": text("framework of the launch; recognised where left out"),
        "model": request["properties"]["model"],
        "set": {
            "type": "object",
            "description": "values that the files leave out: variables, options and keys by name",
            "additionalProperties": {"type": ["string", "number"]},
        },
        "arguments": {
            "type": "array",
            "description": "arguments of the script",
            "items": {"type": "string"},
        },
    }
    return closed(fields, required)


def _summarise(operation: dict[str, Any]) -> None:
    """Say what an operation does in one line: the first of what is said of it."""
    first, _, rest = operation["description"].partition("\n")
    operation["summary"] = first.rstrip(".").replace("`", "")
    operation["description"] = rest.strip()
    # The framework's own, of parameters that cannot be wrong; ours are problem documents.
    if JSON in operation["responses"].get("422", {}).get("content", {}):
        del operation["responses"]["422"]


def _sizing_request(request: dict[str, Any]) -> dict[str, Any]:
    properties = {name: request["properties"][name] for name in PARTS if name != "sizing"}
    sizing = {"sizing": ref("SizingSpec")}
    return closed(properties | sizing, ["model", "training"])


def _fit_request(request: dict[str, Any]) -> dict[str, Any]:
    """A request to fit; lengths and methods are in its part `fit`."""
    parts = {"model": request["properties"]["model"], "cluster": text("name of cards or a node")}
    training = {"type": "object", "description": "fields of TrainingSpec; all may be left out"}
    return closed(parts | {"training": training, "fit": ref("FitSpec")}, ["model", "cluster"])


def _cards_request(request: dict[str, Any]) -> dict[str, Any]:
    """What fits on one of each card: a fit without a cluster, at one length."""
    parts = _fit_request(request)["properties"]
    properties = {name: parts[name] for name in ("model", "training")}
    return closed(properties | {"cards": ref("CardsSpec")}, ["model"])


def _limit(name: str, field: dict[str, Any]) -> dict[str, Any]:
    value = {key: item for key, item in field.items() if key not in ("default", "title")}
    return {
        "description": f"limits on {name}: a value, a list of values, or bounds",
        "anyOf": [value, {"type": "array", "items": value}, ref("Bounds")],
    }
