"""The request of what fits: model, cards, and the methods and lengths to try.

`{"model", "cluster", "training", "fit"}`; `fit` holds the fields of FitSpec.  What the training
leaves out is as the trainers have it.
"""

from __future__ import annotations

from math import lcm
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from cost_models.fields import Spec
from planner.documents.problems import Gathered, RequestError, problem, unknown_field
from planner.documents.request import PlanRequest
from planner.documents.typed_values import plain_object, require_object, require_string, validate
from planner.inputs.requests.parser import parse_request

PARTS = ("model", "cluster", "training", "fit")
Tuning = Literal["full", "full-offload", "full-in-backward", "lora", "qlora", "dpo"]
Method = Literal[Tuning, "grpo"]
LENGTHS = (1024, 2048, 4096, 8192, 16384)
SEQUENCES = 16  # of a batch, at least
MOST_ACCELERATORS = 1024


class FitSpec(Spec):
    """What to try on the cards."""

    methods: tuple[Method, ...] = Field(
        get_args(Method), min_length=1, max_length=7,
        description="ways to tune; full-offload: optimizer in host memory; full-in-backward: one "
        "micro-batch, updates in the backward pass; dpo, grpo: with LoRA",
    )  # fmt: skip
    lengths: tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...] = Field(
        LENGTHS, min_length=1, max_length=8, description="tokens of a sequence, each tried"
    )
    price_usd_per_accelerator_hour: Annotated[float, Field(ge=0, le=1e6)] | None = Field(
        None, description="of one card; None: the catalog's"
    )


class FitRequest(Spec):
    """A resolved question; base: a request whose length says nothing, others: as in the document.

    model_file: what a command calls a model that is no name.  usual_batch: whether nobody gave the
    batch that is in training.
    """

    base: PlanRequest
    model: Any
    training: dict[str, Any]
    fit: FitSpec
    model_file: str = "config.json"
    usual_batch: bool = False

    def document(self) -> dict[str, Any]:
        """This request as plain data that can be sent again."""
        fit = self.fit.model_dump(mode="json", exclude_none=True)
        kept = (n for n in self.training if n != "global_batch_size" or not self.usual_batch)
        training = {name: self.training[name] for name in kept}
        own = {"model": self.model, "cluster": self.base.cluster.name, "training": training}
        return {**own, "fit": fit}


def parse_fit(document: Any) -> FitRequest:
    """What a user's document asks.  Raises RequestError with all problems."""
    document = plain_object(document)
    problems = Gathered(unknown_field("", name, PARTS) for name in document if name not in PARTS)
    fit = problems.of(lambda: _fit(document.get("fit"))) or FitSpec()
    own = {} if document.get("training") is None else document["training"]
    problems.of(lambda: _free(own))
    if document.get("cluster") is not None:
        problems.of(lambda: require_string("/cluster", document["cluster"], "a name"))
    usual = {"seq_length": 1, "global_batch_size": SEQUENCES}  # lengths are tried later
    asked = {name: document[name] for name in ("model", "cluster") if name in document}
    training = usual | own if isinstance(own, dict) else own
    base = problems.of(lambda: parse_request({**asked, "training": training}))
    if problems or base is None:
        raise RequestError(dict.fromkeys(problems))
    _bounded(base, fit)
    price = {"price_usd_per_accelerator_hour": fit.price_usd_per_accelerator_hour}
    groups = base.cluster.groups
    if fit.price_usd_per_accelerator_hour is not None:
        groups = tuple(group.model_copy(update=price) for group in groups)
    # The name as it is written is what a command repeats.
    cluster = base.cluster.model_copy(update={"name": document["cluster"], "groups": groups})
    left_out = own.get("global_batch_size") is None
    if left_out:
        own = {**own, "global_batch_size": usual_batch(cluster.accelerators)}
    base = base.model_copy(update={"cluster": cluster})
    return FitRequest(
        base=base, model=document["model"], training=own, fit=fit, usual_batch=left_out
    )


def usual_batch(accelerators: int, together: int = 1) -> int:
    """Sequences of a step where nobody says how many: whole pairs, shared by all cards.

    together: sequences of a micro-batch, at least.
    """
    each = lcm(2, accelerators * together)
    return -(-SEQUENCES // each) * each


def _fit(value: Any) -> FitSpec:
    require_object("/fit", value := {} if value is None else value)
    spec = validate("/fit", value, FitSpec)
    once = tuple(dict.fromkeys(spec.methods)), tuple(sorted(set(spec.lengths)))
    return spec.model_copy(update=dict(zip(("methods", "lengths"), once, strict=True)))


def _free(training: Any) -> None:
    """Refuse what follows from the methods and lengths.  Raises RequestError."""
    require_object("/training", training)
    by_method = dict.fromkeys(("loss", "frozen", "frozen_dtype"), "methods")
    Gathered(
        problem(f"/training/{name}", "inconsistent", f"follows from fit.{part}; leave it out")
        for name, part in {"seq_length": "lengths", **by_method}.items()
        if training.get(name) is not None
    ).check()


def _bounded(base: PlanRequest, fit: FitSpec) -> None:
    """Refuse more cards than are tried, and lengths that the model does not read."""
    count, most = base.cluster.accelerators, base.model.max_position_embeddings
    problems = Gathered()
    if count > MOST_ACCELERATORS:
        detail = f"at most {MOST_ACCELERATORS:,} accelerators are tried, got {count:,}; use plan"
        problems.append(problem("/cluster", "less_than_equal", detail))
    if most is not None and fit.lengths[0] > most:
        detail = f"none is within the {most:,} positions of {base.model.name}"
        problems.append(problem("/fit/lengths", "less_than_equal", detail))
    problems.check()
