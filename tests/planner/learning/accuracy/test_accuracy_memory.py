"""Predicted memory against the published runs, each in the quantity that its source measured."""

from __future__ import annotations

import pytest

from planner.learning.accuracy.predict import Prediction
from tests.planner.learning.accuracy.published import predictions

pytestmark = pytest.mark.slow  # the memory of every published run

# Not explained yet: two BLOOM plans that ran out of memory where larger ones of the table ran,
# the largest ZeRO-3 plan of SC'21, whose recomputed layer leaves gaps of its size, and a 340B
# whose recipe recomputes nothing; the others do not say what they recompute (low confidence).
UNEXPLAINED_OOM = {"bloom_prequel-096", "bloom_prequel-110"}
UNEXPLAINED_RUN = {"sc21_t2-004", "nemo2407-010", "nemo2407-015", "automodel-001"}


LONG_KNOWN = ("simumax_b200", "titan2412", "titan_h200", "bloom_prequel")
# What the table held before its rows of 2025 and 2026, and of other stacks.
OLD = (
    *LONG_KNOWN,
    "sc21",
    "korth",
    "mcore",
    "nemo",
    "automodel-",
    "titan",
    "mosaic",
    "simumax_a100",
)

LATER = ("nanotron", "litgpt_thunder")
# Runs that are predicted not to fit, of sources opened later: what XLA and Neuron place before they
# run, and InternEvo's and MindSpeed's own savings, have no terms.
NO_TERMS = ("internevo", "maxtext_v5p", "dgxc_paxml", "trn1", "mindspeed_910b")


def old(prediction: Prediction) -> bool:
    return prediction.run.id.startswith(OLD)


def confident(prediction: Prediction) -> bool:
    return prediction.run["confidence"].lower() != "low"


def tuning(prediction: Prediction) -> bool:
    """Fine-tuning on a few cards, whose savings of memory have no terms yet."""
    return prediction.run.is_tuning


def errors(source: str = "") -> list[float]:
    """Signed relative errors of the rows with a memory measurement."""
    return [
        p.peak_bytes / p.run.peak_bytes - 1.0
        for p in predictions()
        if p.peak_bytes and p.run.peak_bytes and source in p.run.source_key
    ]


@pytest.mark.parametrize(
    ("source", "limit"),
    [*zip(LONG_KNOWN, (0.02, 0.08, 0.08, 0.08), strict=True)],
)
def test_mean_error_of_a_source(source: str, limit: float) -> None:
    found = errors(source)
    assert found
    assert sum(map(abs, found)) / len(found) <= limit


def test_few_rows_need_more_than_predicted() -> None:
    """One row in ten is the aim; torchtitan with TP and a sixth of BLOOM's sweep miss it.

    So do runs that came to the table later: half of nanotron's, and four of litgpt's five.
    """
    found = [
        (p, p.peak_bytes / p.run.peak_bytes < 0.97)
        for p in predictions()
        if p.peak_bytes and p.run.peak_bytes and not tuning(p)
    ]
    before = [is_low for p, is_low in found if old(p)]
    assert sum(before) / len(before) <= 0.16
    sure = [(p, is_low) for p, is_low in found if p.settled and confident(p)]
    later = [is_low for p, is_low in sure if p.run.source_key in LATER]
    others = [is_low for p, is_low in sure if p.run.source_key not in LATER]
    assert sum(later) / len(later) <= 0.55
    assert sum(others) / len(others) <= 0.16


def test_what_ran_out_of_memory_does_not_fit() -> None:
    ran_out = [p for p in predictions() if p.run.flag("oom") and not tuning(p)]
    fit = {p.run.id for p in ran_out if p.fits}
    assert fit <= UNEXPLAINED_OOM


def test_what_ran_fits() -> None:
    peaks = [p for p in predictions() if p.peak_bytes is not None and not tuning(p)]
    ran = [p for p in peaks if not p.run.flag("oom")]
    impossible = {p.run.id for p in ran if p.fits is False and old(p)}
    assert impossible <= UNEXPLAINED_RUN
    sure = [p.fits is False for p in ran if confident(p) and p.run.source_key not in NO_TERMS]
    assert len(sure) > 850
    assert sum(sure) / len(sure) <= 0.03
