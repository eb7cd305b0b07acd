"""What would make a way to tune fit: more nodes, or what is offloaded to the memory of a node."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from planner.answers.fits.attempt import Tried, best_at, tried
from planner.answers.fits.request import FitRequest, Tuning, usual_batch
from planner.answers.fits.trainer_choice import Chosen
from planner.answers.plans.near_misses import LARGEST_ENLARGEMENT, change_of, offloaded
from planner.documents.answer import Change
from planner.search.axes import SpaceTooLarge
from planner.search.exhaustive import cost_model


def smallest_change(
    asked: FitRequest, method: Tuning, chosen: Chosen, seq_length: int
) -> Change | None:
    """The smallest that makes a length fit; None where nothing helps with any trainer.

    What fits on the cards as they are comes first, but for full tuning, of which the row of
    full-offload tells that.
    """
    trainers = (chosen.one, *chosen.others)
    by_nodes = (
        change
        for one in trainers
        if (change := _enlarged(asked, method, one.trainer, seq_length)) is not None
    )
    by_host = (change for one in trainers for change in _offloaded(one, seq_length))
    ways = (by_nodes, by_host) if method == "full" else (by_host, by_nodes)
    return next(chain(*ways), None)


def _enlarged(asked: FitRequest, method: Tuning, trainer: str, seq_length: int) -> Change | None:
    """The smallest doubling of the nodes that fits, with the batch that is usual there."""
    factor = 1
    while (factor := 2 * factor) <= LARGEST_ENLARGEMENT:
        larger = on_more_nodes(asked, factor)
        try:
            found = best_at(tried(larger, method, trainer, seq_length), seq_length)
        except SpaceTooLarge:
            continue
        if found.outcome.best:
            request = found.one.at(seq_length)
            nodes = {"nodes": request.cluster.groups[0].nodes}
            return change_of(request, cost_model(request), found.outcome.best[0], nodes)
    return None


def on_more_nodes(asked: FitRequest, factor: int) -> FitRequest:
    """The question on so many times the nodes, with the batch that is usual there."""
    cluster, batch = asked.base.cluster, asked.training["global_batch_size"]
    group = cluster.groups[0].model_copy(update={"nodes": cluster.groups[0].nodes * factor})
    larger = cluster.model_copy(update={"groups": (group,)})
    if asked.usual_batch:
        batch = usual_batch(larger.accelerators)
    return asked.model_copy(
        update={
            "base": asked.base.model_copy(update={"cluster": larger}),
            "training": {**asked.training, "global_batch_size": batch},
        }
    )


def _offloaded(one: Tried, seq_length: int) -> Iterator[Change]:
    """What fits with states or activations in the memory of a node."""
    for each in one.each:
        yield from offloaded(each.at(seq_length), each.rules)
