"""Which published recipes are nearest to a question: of its model, accelerator and scale."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from math import log, log2
from typing import Any

from cost_models.catalog.hardware import accelerator
from cost_models.parameters import total_parameters
from cost_models.profiles import profile_for
from planner.documents.recipes import Recipe, recipes, shape_of
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty.error_features import NARROW
from planner.frameworks.devices import STACKS

# Recipes that are priced, the nearest first, and the factor within which another model of the
# family is of the same class of size.
MOST_PRICED = 16
LIKE_SIZE = 1.6
# How far a recipe is from a question: for what it has otherwise, and for each factor of two (a
# judgement: what decides the plan weighs most; a year is a tenth of a factor of two in ranks).
_OTHER_FAMILY, _OTHER_CHIP, _OTHER_WIDTH, _OTHER_FRAMEWORK = 4.0, 1.0, 1.0, 2.0
_PER_DOUBLING = {"accelerators": 0.5, "seq_length": 1.0}
_PER_YEAR = 0.05
# Vendors' own software.
_OWN_SOFTWARE = (*STACKS, "Huawei")


def nearest_recipes(request: PlanRequest) -> tuple[list[tuple[Recipe, float]], bool]:
    """Recipes and how far they are, the nearest first; whether they are of the same model."""
    group, training = request.cluster.groups[0], request.training
    chip = group.accelerator
    alike, same = _of_model(
        shape_of(request.model), total_parameters(request.model), request.model.name,
        request.model.moe is not None,
    )  # fmt: skip
    family, narrow = profile_for(chip).family, training.precision in NARROW

    def apart(one: Recipe) -> float:
        other = 0.0
        if one.accelerator != chip.id:
            other = _OTHER_CHIP if _family(one.accelerator) == family else _OTHER_FAMILY
        other += _OTHER_WIDTH * ((one.precision in NARROW) != narrow)
        named = request.search.framework
        other += _OTHER_FRAMEWORK * (named is not None and one.framework != named)
        scale = log2(one.accelerators / request.cluster.accelerators)
        length = log2(one.seq_length / training.seq_length)
        other += _PER_DOUBLING["accelerators"] * abs(scale)
        other += _PER_DOUBLING["seq_length"] * abs(length)
        return other - _PER_YEAR * one.year

    found = [
        (one, apart(one))
        for one in alike
        if one.adapters == training.freezes and _same_software(one.accelerator, chip.vendor)
    ]
    return sorted(found, key=lambda pair: pair[1])[:MOST_PRICED], same


@lru_cache(maxsize=256)
def _of_model(
    shape: str, parameters: int, name: str, experts: bool
) -> tuple[tuple[Recipe, ...], bool]:
    """The recipes of a model, else of those of its family and size; whether they are its own."""
    if own := tuple(one for one in _fastest() if one.shape == shape):
        return own, True
    family = family_name(name)
    alike = tuple(
        one
        for one in _fastest()
        if family and family_name(one.model) == family
        and (one.shape.count("-") > _DENSE) == experts
        and abs(log(one.parameters / parameters)) <= log(LIKE_SIZE)
    )  # fmt: skip
    return alike, False


@cache
def _fastest() -> tuple[Recipe, ...]:
    """Recipes without those that the same publisher has outdone: one for each question.

    One that no speed was published of outdoes none, and none outdoes it.
    """
    most: dict[Any, float] = {}
    for one in recipes():
        most[_question(one)] = max(most.get(_question(one), 0.0), one.model_flop_per_s or 0.0)
    return tuple(
        one
        for one in recipes()
        if one.model_flop_per_s is None or one.model_flop_per_s == most[_question(one)]
    )


def _question(one: Recipe) -> tuple[Any, ...]:
    """What a recipe answers: recipes of one publisher that agree in it are of several releases."""
    chips = one.accelerator, one.accelerators
    return one.by, one.shape, one.adapters, *chips, one.precision in NARROW, one.seq_length


_DENSE = 4  # dashes in the shape of a model without experts


def family_name(model: str) -> str:
    """The family that a model's name begins with: llama of Meta-Llama-3-8B."""
    last = model.rpartition("/")[2].lower().removeprefix("meta-").removeprefix("nvidia-")
    found = re.match(r"[a-z]{2,}", last)
    return found[0] if found else ""


@cache
def _family(accelerator_id: str) -> str:
    return profile_for(accelerator(accelerator_id)).family


@cache
def _same_software(accelerator_id: str, vendor: str) -> bool:
    """Whether plans for one accelerator run on those of a vendor: one may need its own software."""
    own = accelerator(accelerator_id).vendor
    return own == vendor or not ({own, vendor} & set(_OWN_SOFTWARE))
