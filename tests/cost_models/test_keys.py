"""Keys: equal rows are found once, and no cost can read a field that its key does not have."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cost_models import keyed_plans, stages
from cost_models.catalog.hardware import parse_shorthand
from cost_models.catalog.models import model as preset
from cost_models.estimate import CostModel
from cost_models.keys import Key, Memo, UndeclaredField, group
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import TrainingSpec


@pytest.mark.slow
@given(
    columns=st.integers(1, 300).flatmap(
        lambda n: st.lists(
            st.one_of(
                arrays(np.int64, n, elements=st.integers(0, 5)),
                arrays(np.int64, n, elements=st.integers(0, 10**9)),
                arrays(np.int64, n, elements=st.integers(0, 20_000)),
                arrays(np.int64, (), elements=st.integers(0, 5)),
            ),
            min_size=1,
            max_size=6,
        )
    )
)
def test_groups_are_exactly_the_distinct_rows(columns: list[np.ndarray]) -> None:  # type: ignore[type-arg]
    full = [c for c in columns if c.ndim]
    groups = group(*columns)
    if not full:
        assert groups.inverse is None
        assert groups.first.tolist() == [0]
        return
    rows = np.stack(full, axis=1)
    assert groups.inverse is not None
    assert len(groups.first) == len(np.unique(rows, axis=0))
    assert np.array_equal(rows[groups.first][groups.inverse], rows)
    assert np.array_equal(groups.spread(rows[groups.first]), rows)


def test_one_key_spreads_as_a_scalar() -> None:
    groups = group(np.array(3), np.array(4))
    assert groups.spread(np.array([7.0])) == 7.0


# Of each key: the model and the plan for which every field of it is read.
READING: dict[str, tuple[str, dict[str, object]]] = {
    "LAYER_KEY": (
        "mixtral-8x7b",
        {"tp": 2, "sequence_parallel": True, "cp": 2, "ep": 2, "etp": 2, "dp": 2},
    ),
    "STATE_KEY": ("mixtral-8x7b", {"pp": 2, "dp": 4, "ep": 2}),
    "LAYOUT_KEY": ("mixtral-8x7b", {"pp": 2, "dp": 4}),
}
KEYS = {"LAYER_KEY": keyed_plans, "STATE_KEY": keyed_plans, "LAYOUT_KEY": stages}


def evaluate(name: str) -> None:
    model, plan = READING[name]
    training = TrainingSpec(seq_length=1024, global_batch_size=64)
    cost = CostModel(preset(model), parse_shorthand("1x8xh100-sxm"), training)
    cost.evaluate(Plans.from_rows([ParallelPlan.model_validate(plan)]))


@pytest.mark.parametrize(
    ("name", "field"),
    [(name, field) for name, module in KEYS.items() for field in getattr(module, name).fields],
)
def test_a_key_without_a_field_that_costs_depend_on_raises(
    name: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = getattr(KEYS[name], name)
    evaluate(name)
    without = Key(*(other for other in key.fields if other != field))
    monkeypatch.setattr(KEYS[name], name, without)
    with pytest.raises(UndeclaredField, match=f"^{field} is read"):
        evaluate(name)


def test_a_view_has_the_fields_of_its_key_and_no_others() -> None:
    rows = [ParallelPlan(tp=tp, dp=dp) for tp, dp in ((1, 8), (2, 4), (2, 2), (1, 8))]
    groups, view = Key("tp", "zero_stage").distinct(Plans.from_rows(rows))
    assert view.tp.tolist() == [1, 2]
    assert view.zero_stage.tolist() == [1, 1]
    assert len(view) == 2
    assert groups.spread(view.tp).tolist() == [1, 2, 2, 1]
    with pytest.raises(UndeclaredField, match="dp is read, but the key is tp, zero_stage"):
        _ = view.dp
    with pytest.raises(AttributeError, match="nonsense"):
        _ = view.nonsense  # type: ignore[attr-defined]


def test_amounts_are_kept_for_many_models_within_one_bound() -> None:
    """What a few keys cost is computed once for each of a hundred models, whoever comes between."""
    _, view = Key("tp").distinct(Plans.of(ParallelPlan(tp=2)))
    memos = [Memo() for _ in range(100)]
    computed: list[int] = []

    def compute(i: int) -> int:
        computed.append(i)
        return i

    def asked() -> list[int]:
        return [memo.of("amounts", view, partial(compute, i)) for i, memo in enumerate(memos)]

    assert asked() == asked() == list(range(100))
    assert computed == list(range(100))
    for i in range(Memo.MOST):
        memos[0].of(f"others {i}", view, lambda: 0)
    assert len(Memo._kept) <= Memo.MOST
    assert asked() == list(range(100))
