"""The posterior of the published runs: closed forms against each other, and what runs teach."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from planner.evidence.published_runs.runs import PUBLISHED_RUNS, runs_in
from planner.evidence.uncertainty.error_features import FACTORS, ErrorFeatures, groups_of
from planner.evidence.uncertainty.posterior import (
    USUAL_HIDDEN_SIZE,
    Posterior,
    Scales,
    SeenRun,
    posterior,
    published,
    read,
)
from planner.learning.accuracy.first_sights import sights
from planner.learning.accuracy.intervals import interval_summary, shots
from planner.learning.accuracy.predict import predict
from planner.learning.accuracy.scores import seen_runs
from tools.accuracy.fit_posterior import coverage, fit, posterior_document

SCALES = Scales((0.1,) * len(FACTORS), (1.0, 0.5, 0.5, 1.0, 2.0, 1.0), 0.05, 0.1, 0.3)
QUANTILES = {"50": 0.7, "80": 1.3, "95": 2.0}


def lean(
    source: str = "",
    accelerator: str = "a",
    experts: bool = False,
    num_layers: int = 32,
    **of: float,
) -> ErrorFeatures:
    shares = tuple(of.get(name, 0.0) for name in FACTORS)
    groups = groups_of("family", accelerator, "runtime", source, USUAL_HIDDEN_SIZE, num_layers)
    return ErrorFeatures(shares, groups, experts, USUAL_HIDDEN_SIZE)


KNOWN = Posterior(
    SCALES,
    (
        SeenRun(lean("one", compute=1.0), 0.1),
        SeenRun(lean("one", compute=0.5, tp=0.5), 0.2),
        SeenRun(lean("two", "b", compute=0.8, cp=0.2), -0.1, noise=3.0),
    ),
    QUANTILES,
)


def predicted(known: Posterior, of: ErrorFeatures) -> tuple[float, float]:
    """Mean and standard deviation of ln(measured / estimated), without noise."""
    mean, shared = known.joint([of])
    return float(mean[0]), float(np.sqrt(shared[0, 0]))


@pytest.mark.parametrize(
    "of",
    [lean("one", compute=0.3, tp=0.7), lean("three", "c", cp=0.5, dp=0.5)],
)
def test_coefficients_say_what_the_runs_say(of: ErrorFeatures) -> None:
    """By how far each factor is off, and by the covariance with every run: one answer."""
    mean, shared = KNOWN.off(of.groups)
    shares = np.array(of.shares)
    expected, deviation = predicted(KNOWN, of)
    assert shares @ mean == pytest.approx(expected)
    assert shares @ shared @ shares == pytest.approx(deviation**2)


def test_a_run_of_a_source_teaches_most_about_that_source() -> None:
    before = predicted(KNOWN, lean("site", compute=1.0))
    after = KNOWN.conditioned_on([SeenRun(lean("site", compute=1.0), 0.3)])
    same, elsewhere = (predicted(after, lean(name, compute=1.0)) for name in ("site", "other"))
    assert abs(same[0] - 0.3) < abs(elsewhere[0] - 0.3) < abs(before[0] - 0.3)
    assert same[1] < elsewhere[1] < before[1]
    assert predicted(after.without("source", "site"), lean("site", compute=1.0)) == before


def test_a_run_teaches_most_about_its_own_model() -> None:
    after = KNOWN.conditioned_on([SeenRun(lean("site", compute=1.0), 0.3)])
    same = predicted(after, lean("site", compute=1.0))
    other = predicted(after, lean("site", num_layers=80, compute=1.0))
    before = predicted(KNOWN, lean("site", num_layers=80, compute=1.0))
    assert abs(same[0] - 0.3) < abs(other[0] - 0.3) < abs(before[0] - 0.3)
    assert same[1] < other[1] < before[1]


def test_narrow_models_are_noisier() -> None:
    wide = lean(compute=1.0)
    narrow = replace(wide, hidden_size=USUAL_HIDDEN_SIZE // 4)
    variances = SCALES.noise_variance([wide, narrow])
    assert variances == pytest.approx([0.05**2, (0.05 * 4**0.3) ** 2])


def test_published_runs_move_no_estimate() -> None:
    """They say how sure it is; what they missed stays in the table."""
    some = next(run.features for run in published().runs if run.ln > 0.1)
    assert predicted(published(), some)[0] != 0.0
    assert predicted(posterior(), some)[0] == 0.0
    assert predicted(posterior(), some)[1] == predicted(published(), some)[1]


def test_without_runs_it_is_the_prior() -> None:
    mean, deviation = predicted(Posterior(SCALES, (), QUANTILES), lean(compute=1.0))
    assert mean == 0.0
    assert deviation**2 == pytest.approx(0.01 * (1 + 0.25 + 0.25 + 1 + 4 + 1))


def test_it_is_written_and_read() -> None:
    document = json.loads(json.dumps(posterior_document(published())))
    assert read(document) == published()


@pytest.mark.slow
def test_scales_are_found_again() -> None:
    """Of runs drawn from known scales; a factor that takes no time keeps its prior."""
    random = np.random.default_rng(3)
    runs = []
    for source in range(40):
        off = random.normal(0.0, 0.15), random.normal(0.0, 0.02)
        for _ in range(5):
            tp = random.uniform(0.0, 0.6)
            ln = tp * off[0] + (1.0 - tp) * off[1] + random.normal(0.0, 0.02)
            runs.append(SeenRun(lean(str(source), str(source % 4), tp=tp, compute=1 - tp), ln))
    found = fit(runs)
    levels = np.sqrt(np.sum(np.square(found.scales.levels)))
    by_factor = dict(zip(FACTORS, np.array(found.scales.factors) * levels, strict=True))
    assert by_factor["tp"] == pytest.approx(0.15, rel=0.35)
    assert by_factor["compute"] == pytest.approx(0.02, rel=0.6)
    assert found.scales.noise == pytest.approx(0.02, rel=0.25)
    assert coverage(found, "source")["80"] == pytest.approx(0.8, abs=0.03)


@pytest.mark.slow
def test_the_shipped_intervals_hold_for_groups_left_out() -> None:
    for level in ("accelerator", "runtime", "source"):
        assert 0.75 <= coverage(published(), level)["80"] <= 0.88, level


@pytest.mark.slow
def test_the_shipped_intervals_are_narrower_than_a_constant() -> None:
    """Than one of constant width that holds as many rows."""
    found = interval_summary(published().runs)
    assert found is not None
    for share in ("80", "95"):
        assert found.rows.mean_width_ln[share] < found.constant_width_ln[share]


def test_the_shipped_runs_are_those_of_the_table() -> None:
    """What the catalog holds is what the code predicts now."""
    rows = [run for run in runs_in(PUBLISHED_RUNS) if run.source_key in ("korth_t5", "sc21_t2")]
    now = seen_runs(predict(run) for run in rows)
    kept = [run for run in published().runs if run.features.groups[3] in ("korth_t5", "sc21_t2")]
    assert len(now) == len(kept) == 15
    for ours, theirs in zip(now, kept, strict=True):
        assert ours.ln == pytest.approx(theirs.ln, abs=1e-4)
        assert ours.features.shares == pytest.approx(theirs.features.shares, abs=1e-4)


@pytest.mark.slow
def test_intervals_of_rows_are_scored() -> None:
    runs = published().runs
    near = interval_summary([replace(run, ln=0.0) for run in runs])
    far = interval_summary([replace(run, ln=9.0) for run in runs])
    assert near is not None
    assert far is not None
    assert set(near.rows.held.values()) == {1.0}
    assert set(far.rows.held.values()) == {0.0}
    assert near.rows.n == sum(score.n for score in near.by_source.values()) == len(runs)
    assert interval_summary([]) is None


def test_runs_that_are_shown_teach_the_others() -> None:
    """A source whose runs are all off alike: a few of them tell the rest."""
    shares = {"compute": 0.9, "dp": 0.1}
    runs = [SeenRun(lean("new", "h100-sxm-80gb", **shares), 0.2 + 0.001 * i) for i in range(12)]
    found = shots(runs, (0, 1, 3))
    assert found["0"].mean == pytest.approx(0.2055)
    assert found["3"].mean < found["1"].mean < found["0"].mean
    assert shots(runs[:3], (3,)) == {}


@pytest.mark.exhaustive
def test_three_runs_of_a_source_make_its_others_better() -> None:
    """In the mean over sources as they were first seen, and one run none worse.

    Sources that the physics was tuned to since gain less, and by three runs only.
    """
    found = shots([sight.run for sight in sights()], (0, 1, 3, 5))
    none, one, three, five = (found[count].mean for count in "0135")
    assert one < 1.01 * none
    assert five < three < one
    tuned = shots(published().runs, (0, 3, 5))
    assert tuned["5"].mean < tuned["3"].mean < tuned["0"].mean
