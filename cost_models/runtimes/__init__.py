"""Runtimes by name: one file each, in the order of their codes; those of plugins come last."""

from __future__ import annotations

from functools import cache, partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from cost_models import plugins
from cost_models.arrays import all_of
from cost_models.runtimes import (
    deepspeed,
    eager,
    internevo,
    jax,
    litgpt,
    litgpt_2023,
    megatron,
    megatron_2021,
    megatron_2022,
    megatron_2026,
    megatron_graphs,
    megatron_sync,
    nanotron,
    torch,
    torchtune_2024,
    transformers,
    transformers_foreach,
    unsloth,
)
from cost_models.runtimes.base import TRAITS, Runtime, Traits

_MODULES = (
    megatron, torch, deepspeed, megatron_2021, megatron_2022, megatron_sync, megatron_2026,
    megatron_graphs, nanotron, jax, transformers, eager, transformers_foreach,
    internevo, litgpt, litgpt_2023, torchtune_2024, unsloth,
)  # fmt: skip
RUNTIMES: dict[str, Runtime] = {module.RUNTIME.name: module.RUNTIME for module in _MODULES}


def _added(module: plugins.Module) -> Runtime:
    runtime = plugins.attribute(module, "RUNTIME", Runtime)
    plugins.require_unused_names([runtime.name], RUNTIMES)
    for name in TRAITS:
        float(getattr(runtime, name))
    return runtime


for _module in plugins.modules("runtimes"):
    _found = plugins.attempt(_module.plugin.name, _module.path, partial(_added, _module))
    if _found is not None:
        RUNTIMES[_found.name] = _found


def traits(codes: NDArray[np.int64]) -> Traits:
    """The traits of plans whose runtimes have these codes: numbers for one, else arrays."""
    if codes.ndim == 0 or not codes.size or all_of(codes == codes.flat[0]):
        return _traits_of_code(int(codes.flat[0]) if codes.size else 0)
    return cast(Traits, _PerPlan(codes))


class _PerPlan:
    """Traits as arrays over plans, each laid out when it is first read."""

    def __init__(self, codes: NDArray[np.int64]) -> None:
        self._codes = codes

    def __getattr__(self, name: str) -> NDArray[np.float64]:
        if name not in TRAITS:
            raise AttributeError(name)
        values = _table()[name][self._codes]
        setattr(self, name, values)
        return values


@cache
def _table() -> dict[str, NDArray[np.float64]]:
    runtimes = RUNTIMES.values()
    return {name: np.array([float(getattr(r, name)) for r in runtimes]) for name in TRAITS}


@cache
def _traits_of_code(code: int) -> Traits:
    return Traits(**{name: float(values[code]) for name, values in _table().items()})
