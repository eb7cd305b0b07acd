"""The fastest way to train a model on a cluster that fits, and why.

    >>> from planner import plan
    >>> answer = plan(
    ...     model="llama-3.1-8b",
    ...     cluster="2x8xh100-sxm",
    ...     training={"seq_length": 8192, "global_batch_size": 128},
    ... )
    >>> answer.best.fits
    True

`plan`, `estimate`, `why`, `emit`, `size`, `fit` and `sensitivity` take the documents of the command
line and the service, whole or as keywords, and return the same answers as typed objects. All raise
`planner.documents.problems.RequestError` for a request that cannot be understood, with a JSON
pointer to each problem; `plan`, `why` and `sensitivity` raise
`planner.search.exhaustive.SpaceTooLarge` where the limits leave more plans than one search may
price; `estimate` raises `planner.answers.plans.plan_answers.IllegalPlan`, with every reason, for a
plan that cannot run at all. That nothing fits is an answer, not an error.

`rl` prices a step of reinforcement learning.  `sweep` asks many requests at once, a grid of them,
and returns a table.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from planner.version import __version__

if TYPE_CHECKING:
    from planner.answers.fits.answer import FitAnswer
    from planner.answers.mixed_clusters.answer import MixedAnswer
    from planner.answers.reinforcement.documents import ReinforcementAnswer
    from planner.answers.sensitivities.documents import SensitivityAnswer
    from planner.answers.sizing.answer import SizingAnswer
    from planner.documents.answer import EstimateAnswer, PlanAnswer, WhyAnswer
    from planner.documents.request import PlanRequest
    from planner.frameworks.base import Bundle
    from planner.running.sweeps.run import SweepAnswer

__all__ = [
    "__version__", "emit", "estimate", "fit", "plan", "rl", "sensitivity", "size", "sweep", "why",
]  # fmt: skip

P = ParamSpec("P")
Answer = TypeVar("Answer")


def _prints(function: Callable[P, Answer]) -> Callable[P, Answer]:
    """The function, whose answers print their screens and are short at a prompt."""

    @wraps(function)
    def answered(*words: P.args, **named: P.kwargs) -> Answer:
        from planner.presentation.print_answers import short, text

        answer = function(*words, **named)
        kind: Any = type(answer)
        kind.__str__, kind.__repr__ = text, short
        return answer

    return answered


@_prints
def plan(
    document: PlanRequest | Mapping[str, Any] | None = None, **parts: Any
) -> PlanAnswer | MixedAnswer:
    """The fastest plans that fit; `best` is None where nothing does.

    Where nodes differ, a MixedAnswer: the ways to use them, the fastest of `options` first.
    Raises RequestError, SpaceTooLarge.
    """
    from planner.answers import mixed_clusters
    from planner.answers.plans import plan_answers

    request = _request(document, parts, mixed_cluster=True)
    return (
        mixed_clusters.find(request)
        if len(request.cluster.groups) > 1
        else plan_answers.find(request)
    )


@_prints
def estimate(
    document: PlanRequest | Mapping[str, Any] | None = None, **parts: Any
) -> EstimateAnswer:
    """Time and memory of the request's plan.  Raises RequestError, IllegalPlan."""
    from planner.answers.plans import plan_answers

    request = _request(document, parts, need_plan=True)
    return plan_answers.estimate(request, request.named_plan)


@_prints
def why(document: PlanRequest | Mapping[str, Any] | None = None, **parts: Any) -> WhyAnswer:
    """Why the request's plan cannot run, does not fit or is not the best, and what would.

    Raises RequestError, SpaceTooLarge.
    """
    from planner.answers.plans import plan_answers

    request = _request(document, parts, need_plan=True)
    return plan_answers.why(request, request.named_plan)


@_prints
def emit(
    document: PlanRequest | Mapping[str, Any] | None = None,
    *,
    launcher: str | None = None,
    pick: str | None = None,
    **parts: Any,
) -> Bundle:
    """Files that launch the request's plan, or else the recommended one, and the why of each flag.

    For `search.framework`, Megatron-LM where it names none; launcher: torchrun, deepspeed, slurm,
    kubernetes, jobset, trainjob or skypilot; pick: recommended, fastest or most-headroom.  Raises
    RequestError, or its kind planner.answers.plans.emission.NothingFits where no plan fits,
    SpaceTooLarge, and planner.frameworks.base.Unsupported with every reason.
    """
    from planner.answers.plans import emission

    return emission.emit(_request(document, parts), launcher, pick)


@_prints
def size(document: Mapping[str, Any] | None = None, **parts: Any) -> SizingAnswer:
    """Days, cost and energy of a training on each kind and number of accelerators.

    The document has `model`, `training` with its tokens, and `sizing` (deadline, budget, kinds,
    sizes, ...).  Raises RequestError, SpaceTooLarge.
    """
    from planner.answers.sizing.compute import size as compute
    from planner.answers.sizing.request import parse_sizing

    asked = {name: _plain(part) for name, part in {**(document or {}), **parts}.items()}
    return compute(parse_sizing(asked))


@_prints
def fit(document: Mapping[str, Any] | None = None, **parts: Any) -> FitAnswer:
    """Which ways to fine-tune a model fit on given cards, by length of sequence, and how fast.

    The document has `model`, `cluster` (a name), and may have `training` and `fit` (methods,
    lengths).  Raises RequestError.
    """
    from planner.answers.fits.compute import fit as compute
    from planner.answers.fits.request import parse_fit

    asked = {name: _plain(part) for name, part in {**(document or {}), **parts}.items()}
    return compute(parse_fit(asked))


@_prints
def sensitivity(
    document: PlanRequest | Mapping[str, Any] | None = None, **parts: Any
) -> SensitivityAnswer:
    """How the answer moves with each input, with the plan held and planned again.

    For the request's plan, or else the best one; its part `sensitivity` may name `inputs`,
    `factors` and a `resolution`.  Raises RequestError, or its kind
    planner.answers.plans.emission.NothingFits where no plan fits, SpaceTooLarge, IllegalPlan.
    """
    from planner.answers.sensitivities import analysis

    asked = analysis.parse_sensitivity(_document(document, parts))
    return analysis.sensitivity(asked.request, asked.sensitivity)


@_prints
def rl(
    document: PlanRequest | Mapping[str, Any] | None = None, **parts: Any
) -> ReinforcementAnswer:
    """Time and memory of one step of GRPO or PPO; coarser than an answer about training.

    The part `reinforcement` says what a step is, and how fast responses are generated.  For the
    request's plan, or else the fastest.  Raises RequestError, or its kind
    planner.answers.plans.emission.NothingFits where no plan fits, SpaceTooLarge, IllegalPlan.
    """
    from planner.answers.reinforcement.compute import step
    from planner.answers.reinforcement.parsing import parse_reinforcement

    return step(parse_reinforcement(_document(document, parts)))


@_prints
def sweep(
    document: Mapping[str, Any] | None = None,
    *,
    results: str | os.PathLike[str] | None = None,
    backend: str = "local",
    workers: int | None = None,
    shard: str = "1/1",
    **parts: Any,
) -> SweepAnswer:
    """A row for each request of a grid: `base`, and what varies as `axes` and `points`.

        >>> from planner import sweep
        >>> answer = sweep(
        ...     base={"model": "llama-3.1-8b", "training": {"seq_length": 8192}},
        ...     axes={"cluster": ["1x8xh100-sxm"], "training.global_batch_size": [64, 128]},
        ...     workers=1,
        ... )
        >>> [row["outcome"] for row in answer.rows]
        ['fits', 'fits']

    results: a folder where each result is kept once it is there; a sweep that was ended goes on
    from it.  backend: local, ray or dask.  workers: how many at a time, None: one per core.
    shard: 3/64 asks only the third of 64 parts.  Raises RequestError where the grid is no
    good, planner.running.sweeps.workers.WorkersLost where workers die again and again.
    """
    from pathlib import Path

    from planner.documents.problems import RequestError, wrong_type
    from planner.running.sweeps.grid import parse_grid
    from planner.running.sweeps.run import sweep as run

    if not isinstance(document, Mapping | None):
        raise RequestError([wrong_type("", "an object", document)])
    return run(
        parse_grid({**(document or {}), **parts}),
        None if results is None else Path(results),
        backend=backend,
        workers=workers,
        shard=shard,
    )


def _request(
    document: PlanRequest | Mapping[str, Any] | None,
    parts: Mapping[str, Any],
    need_plan: bool = False,
    mixed_cluster: bool = False,
) -> PlanRequest:
    from planner.inputs.requests.parser import parse_request

    return parse_request(
        _document(document, parts), need_plan=need_plan, mixed_cluster=mixed_cluster
    )


def _document(
    document: PlanRequest | Mapping[str, Any] | None, parts: Mapping[str, Any]
) -> dict[str, Any]:
    """A request and its parts as one document."""
    from planner.documents.problems import RequestError, wrong_type
    from planner.documents.request import PlanRequest

    if isinstance(document, PlanRequest):
        document = document.document()
    if not isinstance(document, Mapping | None):
        raise RequestError([wrong_type("", "an object", document)])
    return {name: _plain(part) for name, part in {**(document or {}), **parts}.items()}


def _plain(part: Any) -> Any:
    """A part given as a spec, as the document that says the same."""
    from pydantic import BaseModel

    return part.model_dump(mode="json", exclude_none=True) if isinstance(part, BaseModel) else part


def __dir__() -> list[str]:
    """The functions that are meant to be called."""
    return __all__


if "IPython" in sys.modules:  # in a notebook answers show themselves
    from planner.presentation.notebook import install

    install()
