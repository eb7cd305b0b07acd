"""Laws every public formula obeys: a known source, vector == scalar, and dimensions.

The formulas are called through the registry, so a new one is tested as soon as it exists; one
whose arguments are not plain numbers names its example here.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache
from typing import Any

import numpy as np
import pytest

import cost_models
from cost_models.profiles import profile
from cost_models.sources import FORMULAS, SOURCES

for _module in pkgutil.walk_packages(cost_models.__path__, "cost_models."):
    importlib.import_module(_module.name)

# The last word of an argument's name is its unit; without one it is a count or a ratio.
SUFFIXES = {
    "flop_per_s": "flop/second",
    "bytes_per_s": "byte/second",
    "flop": "flop",
    "bytes": "byte",
    "s": "second",
}
RESULTS = {"byte": "byte", "s": "second", "flop": "flop", "1": "dimensionless"}
# Arguments that are not numbers: one measured example of each.
H100 = profile("h100-sxm")
TABLES: dict[tuple[str, str], Any] = {
    ("gemm_s", "efficiency"): H100.gemm["bf16"],
    ("memory_pass_s", "efficiency"): H100.memory,
    ("attention_s", "efficiency"): H100.attention[("flash", "forward", True)],
}
# Read a measured table at log2 of an amount: no dimension can follow through that.
EMPIRICAL = {"gemm_s", "memory_pass_s", "attention_s"}
# Counts of FLOP and bytes made of counts alone: the unit enters with the constant.
COUNTED = {
    "gemm_flop", "matmul_flop", "ssd_flop", "selective_scan_flop", "delta_rule_flop",
    "lightning_flop", "wkv_flop", "lru_flop",
}  # fmt: skip
# Arguments that are 0 or 1.
FLAGS = {
    "fused_loss", "kept", "in_place_loss", "autograd_loss", "split_loss", "half_gradients",
    "gathered_input", "transformer_engine",
}  # fmt: skip


# Formulas over specs and plans (test_estimate holds those against one plan at a time).
NUMERIC = sorted(
    name
    for name, formula in FORMULAS.items()
    if all(
        str(p.annotation) in ("Array", "float") or (name.rpartition(".")[2], p.name) in TABLES
        for p in inspect.signature(formula.function).parameters.values()
    )
)


def unit_of(argument: str) -> str:
    for suffix, unit in SUFFIXES.items():
        if argument == suffix or argument.endswith("_" + suffix):
            return unit
    return "dimensionless"


def example(name: str, rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, Any]:
    """Arguments of a formula: positive numbers of a plausible size."""
    function = FORMULAS[name].function
    short = name.rpartition(".")[2]
    values: dict[str, Any] = {}
    for argument in inspect.signature(function).parameters:
        table = TABLES.get((short, argument))
        if table is not None:
            values[argument] = table
        elif argument in FLAGS or argument in ("stages", "zero_stage", "stage"):
            top = {"stages": 8, "zero_stage": 3, "stage": 3}.get(argument, 1)
            low = 4 if argument == "stages" else 0
            values[argument] = rng.integers(low, top + 1, shape).astype(np.float64)
        elif argument == "sum_s":  # of stages, the slowest of which is max_s
            values[argument] = np.exp2(rng.uniform(12.0, 14.0, shape))
        elif argument == "head_dim" and short == "attention_s":
            values[argument] = 128.0
        else:
            values[argument] = np.exp2(rng.uniform(1.0, 12.0, shape))
    return values


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_cites_known_sources(name: str) -> None:
    formula = FORMULAS[name]
    assert formula.sources
    assert set(formula.sources) <= set(SOURCES)
    doc = inspect.getdoc(formula.function)
    assert doc
    assert len(doc.splitlines()[0]) > 15


@pytest.mark.parametrize("name", NUMERIC)
def test_vector_equals_scalar(name: str) -> None:
    rng = np.random.default_rng(sum(map(ord, name)))
    arrays = example(name, rng, (7,))
    together = np.broadcast_to(FORMULAS[name].function(**arrays), (7,))
    assert np.all(np.isfinite(together))
    assert np.all(together >= 0)
    for i in range(7):
        one = {
            k: float(v[i]) if isinstance(v, np.ndarray) and v.shape == (7,) else v
            for k, v in arrays.items()
        }
        assert float(FORMULAS[name].function(**one)) == together[i]


@cache
def registry() -> Any:
    """Units of what formulas take and give."""
    import pint

    units = pint.UnitRegistry()
    units.define("flop = [operations]")
    units.define("byte = [information]")  # else without a dimension, like a count
    return units


@pytest.mark.parametrize("name", [n for n in NUMERIC if n.rpartition(".")[2] not in EMPIRICAL])
def test_dimensions(name: str) -> None:
    units = registry()
    rng = np.random.default_rng(1)
    plain = example(name, rng, ())
    quantities = {k: float(v) * units(unit_of(k)) for k, v in plain.items()}
    result = FORMULAS[name].function(**quantities)
    if not hasattr(result, "dimensionality"):
        result = result * units.dimensionless
    short = name.rpartition(".")[2]
    expected = "dimensionless" if short in COUNTED else RESULTS[FORMULAS[name].unit]
    assert result.check(units(expected).dimensionality), f"{name} gives {result.dimensionality}"


def test_the_registry_is_not_empty() -> None:
    assert len(FORMULAS) >= 50
    assert len(NUMERIC) >= 28
