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
from api.problems import ProblemDocument
from cost_models.plans import FIELDS, ParallelPlan
from cost_models.spec import ClusterSpec, ModelSpec, TrainingSpec
from planner.answers.pipelines.all_schedules import ComparisonRequest
from planner.answers.pipelines.timeline import TimelineRequest
from planner.answers.reinforcement.documents import PART as STEP
from planner.answers.reinforcement.documents import ReinforcementSpec
from planner.answers.sensitivities.documents import SensitivitySpec
from planner.answers.sizing.request import PARTS, SizingSpec
from planner.documents.request import SearchSpec

_PREFIX = "#/components/schemas/"
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "where the service has keys"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
_CONFIG = {
    "type": "object",
    "description": "a Hugging Face config.json",
    "anyOf": [{"required": ["model_type"]}, {"required": ["architectures"]}],
}


# For routes whose answers have an entity tag.
# Of answers that may come as events, with the progress before them (api.progress_events).
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {}}}}  # of an event: any
}
NOT_CHANGED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The caller has this answer: If-None-Match named its ETag"}
}


def request_body(examples: dict[str, Any], schema: str = "Request") -> dict[str, Any]:
    """The OpenAPI entry of a route that takes a request, of the schema with this name."""
    content = {"schema": {"$ref": _PREFIX + schema}, "examples": examples}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def _node_results() -> dict[str, Any]:
    """What POST /v1/one-node/results takes."""
    left = {"type": "array", "items": {"type": "object"}, "maxItems": 64}
    left["description"] = "the rank-N.json of every rank, as the script left them"
    return _object({"request": {"$ref": _PREFIX + "Request"}, "ranks": left}, ["request", "ranks"])


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
            schemas["SensitivityRequest"] = _sensitivity_request(schemas["Request"])
            schemas["ReinforcementRequest"] = _step_request(schemas["Request"])
            schemas["LintRequest"] = _lint_request(schemas["Request"], ["files", "cluster"])
            schemas["ReadRequest"] = _lint_request(schemas["Request"], ["files"])
            schemas["LessonRequest"] = site_schema.request(schemas["Request"])
            schemas |= job_schema.requests(schemas["Request"])
            schemas["NodeResults"] = _node_results()
            schemas["SizingRequest"] = _sizing_request(schemas["Request"])
            schemas["TimelineOrRequest"] = _either("TimelineRequest")
            schemas["ScheduleComparisonRequest"] = _either("ComparisonRequest")
            pair = {"a": {"$ref": _PREFIX + "Request"}, "b": {"$ref": _PREFIX + "Request"}}
            schemas["ComparisonOfPlans"] = _object(pair, ["a", "b"])
            schemas["ModelConfig"] = _CONFIG
            document["components"]["securitySchemes"] = _KEYS
            document["security"] = [{}, *({name: []} for name in _KEYS)]
            for operations in document["paths"].values():
                for operation in operations.values():
                    _summarise(operation)
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
        return generate()

    app.openapi = openapi  # type: ignore[method-assign]


def _definitions() -> dict[str, Any]:
    models = (
        ModelSpec,
        ClusterSpec,
        TrainingSpec,
        ParallelPlan,
        SearchSpec,
        SizingSpec,
        SensitivitySpec,
        ReinforcementSpec,
        TimelineRequest,
        ComparisonRequest,
        ProblemDocument,
        *job_schema.SPECS,
    )
    _, schema = models_json_schema(
        [(model, "validation") for model in models], ref_template=_PREFIX + "{model}"
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
    named = {"accelerator": {"anyOf": [{"type": "string"}, {"$ref": _PREFIX + "AcceleratorSpec"}]}}
    own = {name: s for name, s in cluster["properties"].items() if name != "groups"}
    flat = group["properties"] | named | own | {"preset": {"type": "string"}}
    mixed = group | {
        "properties": group["properties"] | named,
        "required": ["accelerator", "nodes"],
    }
    search = definitions["SearchSpec"]["properties"]
    limits = {
        name: _limit(name, definitions["ParallelPlan"]["properties"][name]) for name in FIELDS
    }
    return {
        "type": "object",
        "required": ["model", "cluster", "training"],
        "additionalProperties": False,
        "properties": {
            "model": {
                "description": "a preset's name, the model's dims, or a config.json",
                "anyOf": [{"type": "string"}, {"$ref": _PREFIX + "ModelSpec"}, _CONFIG],
            },
            "cluster": {
                "description": "a preset's name, a shorthand such as 8x8xh100-sxm, equal nodes, "
                "or groups of nodes",
                "anyOf": [
                    {"type": "string"},
                    _object(flat),
                    _object(own | {"groups": {"type": "array", "items": mixed}}, ["groups"]),
                ],
            },
            "training": {"$ref": _PREFIX + "TrainingSpec"},
            "search": _object(search | limits),
            "plan": {"$ref": _PREFIX + "ParallelPlan"},
            "profile": {"type": "string", "description": "an efficiency profile by its id"},
            "site": {"type": "string", "description": "a site whose learned runs correct times"},
            "guessed": {"type": "array", "items": {"type": "string"}},
            "defaulted": {"type": "array", "items": {"type": "string"}},
        },
    }


def _sensitivity_request(request: dict[str, Any]) -> dict[str, Any]:
    own = {"sensitivity": {"$ref": _PREFIX + "SensitivitySpec"}}
    return request | {"properties": request["properties"] | own}


def _step_request(request: dict[str, Any]) -> dict[str, Any]:
    """The training may leave out what follows from a step."""
    training = _definitions()["TrainingSpec"]
    own = {
        STEP: {"$ref": _PREFIX + "ReinforcementSpec"},
        "training": _object(training["properties"]),
    }
    asked = {"required": ["model", "cluster", STEP]}
    return request | asked | {"properties": request["properties"] | own}


def _lint_request(request: dict[str, Any], required: list[str]) -> dict[str, Any]:
    files = {
        "type": "object",
        "description": "the files of a launch by name, the script first",
        "additionalProperties": {"type": "string"},
    }
    named = {"type": "string", "description": "framework of the launch; recognised where left out"}
    cluster = request["properties"]["cluster"]
    values = {
        "type": "object",
        "description": "values that the files leave out: variables, options and keys by name",
        "additionalProperties": {"type": ["string", "number"]},
    }
    arguments = {
        "type": "array",
        "description": "arguments of the script",
        "items": {"type": "string"},
    }
    fields = {
        "files": files,
        "cluster": cluster,
        "framework": named,
        "model": request["properties"]["model"],
        "set": values,
        "arguments": arguments,
    }
    return _object(fields, required)


def _summarise(operation: dict[str, Any]) -> None:
    """Say what an operation does in one line: the first of what is said of it."""
    first, _, rest = operation["description"].partition("\n")
    operation["summary"] = first.rstrip(".").replace("`", "")
    operation["description"] = rest.strip()
    # The framework's own, of parameters that cannot be wrong; ours are problem documents.
    if JSON in operation["responses"].get("422", {}).get("content", {}):
        del operation["responses"]["422"]


def _either(pipeline: str) -> dict[str, Any]:
    """A pipeline alone, or a request with a plan."""
    return {"anyOf": [{"$ref": _PREFIX + pipeline}, {"$ref": _PREFIX + "Request"}]}


def _sizing_request(request: dict[str, Any]) -> dict[str, Any]:
    asked = {name: request["properties"][name] for name in PARTS if name != "sizing"}
    sizing = {"sizing": {"$ref": _PREFIX + "SizingSpec"}}
    return _object(asked | sizing, ["model", "training"])


def _limit(name: str, field: dict[str, Any]) -> dict[str, Any]:
    value = {key: item for key, item in field.items() if key not in ("default", "title")}
    return {
        "description": f"limits on {name}: a value, a list of values, or bounds",
        "anyOf": [value, {"type": "array", "items": value}, {"$ref": _PREFIX + "Bounds"}],
    }


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required or [],
        "additionalProperties": False,
    }
