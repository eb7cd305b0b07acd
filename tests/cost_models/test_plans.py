"""One plan as a document and many as arrays: the same plan, and which are no plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from cost_models.plans import FIELDS, RECOMPUTE_MODULES, VOCABULARIES, ParallelPlan, Plans, code
from cost_models.plans import is_one_of as one_of

CHUNKS = {"vpp": 2, "schedule": "interleaved-1f1b"}
SELECTIVE = {"recompute": "selective", "recompute_modules": ("core_attn", "moe_act")}
ROWS = [
    ParallelPlan(),
    ParallelPlan(tp=2, cp=3, pp=5, dp=7, sequence_parallel=True, cp_kind="a2a", zero_stage=3),
    ParallelPlan.model_validate({"pp": 2, **SELECTIVE, "stage_layers": (3, 5)}),
    ParallelPlan.model_validate({"pp": 2, "stage_layers": (1, 7), "runtime": "torch"}),
    ParallelPlan(recompute="full", recompute_num_layers=2, recompute_method="uniform"),
    ParallelPlan(pp=4, vpp=3, schedule="interleaved-1f1b", rank_order="tp-cp-ep-pp-dp"),
]


def test_arrays_hold_the_same_plans() -> None:
    plans = Plans.from_rows(ROWS)
    assert len(plans) == len(ROWS)
    assert [plans.row(i) for i in range(len(ROWS))] == ROWS
    values = plans.values()
    for i, row in enumerate(ROWS):
        assert {name: values[name][i] for name in FIELDS} == row.model_dump()
        alone = Plans.of(row)
        assert (len(alone), alone.row(0)) == (1, row)
        assert alone.take(np.array([0])) is alone
    assert [plans.take([4, 2]).row(i) for i in range(2)] == [ROWS[4], ROWS[2]]
    wider = plans.with_columns(tp=8)
    assert [wider.row(i).tp for i in range(len(ROWS))] == [8] * len(ROWS)
    assert wider.row(3) == ROWS[3].model_copy(update={"tp": 8})


def test_columns_that_are_left_out_take_their_default() -> None:
    plans = Plans.build(tp=[1, 2], pp=4)
    assert [plans.row(i) for i in range(2)] == [ParallelPlan(tp=tp, pp=4) for tp in (1, 2)]
    with pytest.raises(TypeError, match="unknown plan fields"):
        Plans.build(tp=1, tensor=2)


def test_codes_are_places_in_the_vocabularies() -> None:
    plans = Plans.from_rows(ROWS)
    for name, words in VOCABULARIES.items():
        assert set(words) == set(ParallelPlan.model_json_schema()["properties"][name]["enum"])
        assert [code(name, word) for word in words] == list(range(len(words)))
        spelled = [getattr(row, name) for row in ROWS]
        assert [words[i] for i in getattr(plans, name)] == spelled
        flags = one_of(getattr(plans, name), name, *words[1:])
        assert flags.tolist() == [float(word != words[0]) for word in spelled]
    schema = ParallelPlan.model_json_schema()["properties"]["recompute_modules"]
    assert tuple(schema["items"]["enum"]) == RECOMPUTE_MODULES


def test_modules_are_bits() -> None:
    """The first module is 1, the second 2, the third 4."""
    for i, module in enumerate(RECOMPUTE_MODULES):
        plan = ParallelPlan(recompute="selective", recompute_modules=(module,))
        assert plan.recompute_module_bits == 2**i
    assert ROWS[2].recompute_module_bits == 1 + 8


def test_accelerators_are_the_product_of_what_splits_them() -> None:
    """Experts live on the same ranks: their degrees do not count."""
    assert ROWS[1].accelerators == 2 * 3 * 5 * 7
    assert ParallelPlan(dp=8, ep=4, etp=2).accelerators == 8


@pytest.mark.parametrize(
    ("changes", "bad"),
    [
        (SELECTIVE, False),
        ({"recompute": "selective"}, True),
        ({"recompute_modules": ("mlp",)}, True),
        ({"recompute": "full", "recompute_num_layers": 1, "recompute_modules": ("mlp",)}, True),
        ({"recompute": "full", "recompute_num_layers": 1}, False),
        ({"recompute": "full"}, True),
        ({"recompute_num_layers": 1}, True),
        ({**SELECTIVE, "recompute_num_layers": 1}, True),
        ({"pp": 2, "stage_layers": (2, 2)}, False),
        ({"pp": 3, "stage_layers": (2, 2)}, True),
        ({"pp": 2, **CHUNKS, "stage_layers": (2, 2)}, False),
        ({"pp": 2, **CHUNKS, "stage_layers": (0, 2, 2, 0)}, False),
        ({"pp": 2, **CHUNKS, "stage_layers": (2, 2, 2)}, True),
        ({"pp": 2, "stage_layers": (2, 2), "first_stage_layers": 2}, True),
        ({"pp": 2, "stage_layers": (2, 2), "last_stage_layers": 2}, True),
        ({"pp": 2, "first_stage_layers": 2, "last_stage_layers": 2}, False),
        ({"pp": 2, "vpp": 2}, True),
        ({"pp": 2, "schedule": "interleaved-1f1b"}, True),
        ({"pp": 2, "vpp": 2, "schedule": "interleaved-1f1b"}, False),
        ({"pp": 2, "vpp": 7, "schedule": "interleaved-1f1b"}, False),
        ({"pp": 2, "vpp": 2, "schedule": "zb-v"}, False),
        ({"pp": 2, "vpp": 3, "schedule": "zb-v"}, True),
        ({"pp": 2, "vpp": 1, "schedule": "zb-v"}, True),
    ],
)
def test_plans_are_consistent(changes: dict[str, Any], bad: bool) -> None:
    if bad:
        with pytest.raises(ValidationError):
            ParallelPlan.model_validate(changes)
    else:
        ParallelPlan.model_validate(changes)
