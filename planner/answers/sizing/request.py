"""The request of a sizing: model, training with its tokens, search limits, clusters to compare.

`{"model", "training", "search", "profile", "site", "sizing"}`; `sizing` holds the fields of
SizingSpec.  All problems of a document are raised together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from cost_models.catalog import hardware
from cost_models.fields import Spec
from planner.documents.problems import (
    Gathered,
    RequestError,
    join,
    problem,
    refuse,
    shown,
    unknown_field,
)
from planner.documents.request import PlanRequest
from planner.documents.typed_values import looked_up, plain_object, require_object, validate
from planner.inputs.requests.parser import parse_request

PARTS = ("model", "training", "search", "profile", "site", "sizing")
# Accelerators that are commonly rented in large numbers and have a price in the catalog.
KINDS = (
    "a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb", "gb200-nvl72", "mi300x",
    "mi325x",
)  # fmt: skip
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
MOST_KINDS, MOST_SIZES, MOST_ROWS = 40, 100, 500
# Default limits of the search: the choices common at scale.
SPACE: dict[str, Any] = {
    "schedule": ["1f1b", "interleaved-1f1b"],
    "zero_stage": [1, 3],
    "cp": [1, 2, 4, 8],
    "etp": [1],
    "micro_batch_size": [1, 2, 4, 8],
}

Positive = Annotated[float, Field(gt=0, le=1e15)]
Seconds = Annotated[float, Field(ge=0, le=1e6)]


class SizingSpec(Spec):
    """The clusters to compare and the limits to keep."""

    accelerators: tuple[str, ...] = Field(
        KINDS, min_length=1, max_length=MOST_KINDS, description="kinds, by catalog name"
    )
    sizes: tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...] = Field(
        SIZES, min_length=1, max_length=MOST_SIZES,
        description="numbers of accelerators; each is rounded up to whole nodes",
    )  # fmt: skip
    clusters: tuple[Annotated[str, Field(max_length=100)], ...] = Field(
        (), max_length=MOST_KINDS,
        description="a number of one kind each, such as 256xh100-sxm; these alone are compared, "
        "instead of every kind in every number",
    )  # fmt: skip
    deadline_days: Positive | None = Field(None, description="latest end")
    budget_usd: Positive | None = Field(None, description="most to spend")
    power_watts: Positive | None = Field(None, description="most that the site gives, PUE included")
    prices_usd_per_accelerator_hour: dict[str, Annotated[float, Field(ge=0, le=1e6)]] = Field(
        default_factory=dict, max_length=MOST_KINDS, description="instead of the catalog's"
    )
    pue: Annotated[float, Field(ge=1, le=10)] | None = Field(
        None, description="power usage effectiveness of the site; None: the cluster's"
    )
    failures_per_1000_node_days: Annotated[float, Field(ge=0, le=1e6)] | None = Field(
        None, description="None: the catalog's; 0: nothing fails"
    )
    checkpoint_s: Seconds | None = Field(
        None, description="training stands still for one checkpoint; None: computed"
    )
    detect_s: Seconds = Field(60.0, description="until a failure is found")
    restart_s: Seconds = Field(600.0, description="until training is back after a failure")
    critical_batch_size: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        None, description="sequences at which twice the tokens are needed (arXiv 1812.06162)"
    )

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        rows = len(self.clusters) or len(self.accelerators) * len(self.sizes)
        if rows > MOST_ROWS:
            raise ValueError(f"{rows} clusters to size, at most {MOST_ROWS}")
        return self


class SizingRequest(Spec):
    """A resolved sizing: a plan request on the first cluster, and the clusters to compare."""

    base: PlanRequest
    sizing: SizingSpec

    def document(self) -> dict[str, Any]:
        """This request as plain data that can be sent again."""
        base = self.base.document()
        return {name: base[name] for name in PARTS if name in base} | {
            "sizing": self.sizing.model_dump(mode="json", exclude_none=True)
        }


def parse_sizing(document: Any) -> SizingRequest:
    """The sizing that a user's document describes.  Raises RequestError with all problems."""
    document = plain_object(document)
    problems = Gathered(unknown_field("", name, PARTS) for name in document if name not in PARTS)
    sizing = problems.of(lambda: _sizing(document.get("sizing")))
    request = {name: document[name] for name in PARTS if name in document and name != "sizing"}
    request["search"] = _search(request.get("search"))
    base = problems.of(lambda: _base(request, sizing.accelerators if sizing else KINDS))
    if base is not None and base.training.tokens is None:
        detail = "is required: days and cost are of a whole training"
        problems.append(problem("/training/tokens", "missing", detail))
    if problems or base is None or sizing is None:
        raise RequestError(problems)
    return SizingRequest(base=base, sizing=sizing)


def _base(request: dict[str, Any], kinds: tuple[str, ...]) -> PlanRequest:
    """The request on one node of the first kind that supports the asked precision."""
    first: RequestError | None = None
    for kind in kinds:
        try:
            return parse_request({**request, "cluster": {"accelerator": kind, "nodes": 1}})
        except RequestError as error:
            first = first or error
            # Another kind can only fix an unsupported precision.
            if any(problem.code != "unsupported_precision" for problem in error.problems):
                break
    assert first is not None
    raise first


def _search(value: Any) -> Any:
    """The request's search, with the default limits for fields that it does not limit."""
    if value is None:
        return dict(SPACE)
    if not isinstance(value, Mapping):
        return value
    nested = value.get("limits")
    named = set(value) | set(nested if isinstance(nested, Mapping) else ())
    return {**{name: limit for name, limit in SPACE.items() if name not in named}, **value}


def _sizing(value: Any) -> SizingSpec:
    if value is None:
        return SizingSpec()
    require_object("/sizing", value)
    spec = validate("/sizing", value, SizingSpec)
    if spec.clusters:
        pairs = [_pair(join("/sizing/clusters", i), text) for i, text in enumerate(spec.clusters)]
        update = {
            "clusters": tuple(dict.fromkeys(f"{number}x{kind}" for number, kind in pairs)),
            "accelerators": tuple(kind for _, kind in pairs),
            "sizes": tuple(number for number, _ in pairs),
        }
        spec = spec.model_copy(update=update)
    kinds = tuple(
        _kind(join("/sizing/accelerators", i), name) for i, name in enumerate(spec.accelerators)
    )
    at = "/sizing/prices_usd_per_accelerator_hour"
    prices = {
        _kind(join(at, name), name): price
        for name, price in spec.prices_usd_per_accelerator_hour.items()
    }
    sizes = tuple(sorted(set(spec.sizes)))
    return spec.model_copy(
        update={
            "accelerators": tuple(dict.fromkeys(kinds)),
            "sizes": sizes,
            "prices_usd_per_accelerator_hour": prices,
        }
    )


def _pair(pointer: str, text: str) -> tuple[int, str]:
    """The number and the kind of '256xh100-sxm' or '256 h100'.  Raises RequestError."""
    match = re.fullmatch(r"\s*(\d{1,7})\s*[x×*\s]\s*(\S.*?)\s*", text)
    if match is None or not int(match[1]):
        detail = "must be a number and a kind, such as 256xh100-sxm"
        raise refuse(pointer, "wrong_value", f"{detail}, got {shown(text)!r}", text)
    return int(match[1]), _kind(pointer, match[2])


def _kind(pointer: str, name: str) -> str:
    return looked_up(pointer, lambda: hardware.accelerator(name)).id
