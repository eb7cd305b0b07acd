"""A site's posterior: what runs change, what they teach, and what is kept of them."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from cost_models.catalog.names import UnknownName
from planner.documents.problems import RequestError
from planner.evidence.uncertainty import site_storage as storage
from planner.evidence.uncertainty.error_features import FACTORS, ErrorFeatures
from planner.evidence.uncertainty.posterior import posterior, site_noise_factor
from planner.evidence.uncertainty.site import MAX_RUNS, LearnedRun, Site
from planner.evidence.uncertainty.site_corrections import errors, kinds, site_answer
from planner.evidence.uncertainty.site_pricing import current
from tests.planner.learning.sites.runs import NAMES, log, run, site


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_DATA_DIR", str(tmp_path))


def shift(of: Site, features: ErrorFeatures) -> float:
    return of.belief.mixture(features).mean


def test_run_is_what_the_log_says() -> None:
    found = run("megatron_gpt_8_nodes")
    assert found.step_s == log("megatron_gpt_8_nodes").step.seconds
    assert (found.steps, found.left_out["skipped or NaN iterations"]) == (160, 20)
    assert (found.memory_quantity, found.peak_bytes) == ("max allocated", 21018719232.0)
    assert found.request["plan"]["pp"] == 8
    assert found.groups[1:] == ("v100-sxm2-32gb", "megatron", "site:lab")
    assert found.left_open == ("plan.attention_kernel: unfused assumed",)


def test_estimates_of_real_runs_are_near() -> None:
    """Nothing was fitted to V100s; the six are within 15 %, so that they are read right."""
    assert all(abs(run(name).ln) < 0.15 for name in NAMES)


def test_no_run_changes_nothing() -> None:
    assert shift(Site(name="lab"), run(NAMES[0]).features) == 0.0


def test_many_runs_settle_it() -> None:
    """A hundred runs 20 % slower than answered: the site answers 20 % more."""
    one = run("megatron_gpt_52b")
    slow = one.model_copy(update={"step_s": 1.2 * one.estimated_s})
    lab = Site(name="lab", runs=(slow,) * 100)
    assert shift(lab, one.features) == pytest.approx(math.log(1.2), rel=0.02)


def test_one_run_is_believed_in_part() -> None:
    one = run("megatron_gpt_64_nodes")
    assert one.ln < 0
    assert one.ln < shift(site("megatron_gpt_64_nodes"), one.features) < 0.1 * one.ln


def test_far_run_is_believed_less() -> None:
    one = run("megatron_gpt_52b")
    moved = []
    for times in (1.1, 8.0):
        lab = Site(name="lab", runs=(one.model_copy(update={"step_s": times * one.estimated_s}),))
        moved.append(shift(lab, one.features) / math.log(times))
    assert moved[1] < 0.5 * moved[0]


def test_learns_what_these_runs_share() -> None:
    """Their pipelines, of one micro-batch a stage, probably take less than is answered."""
    (kind,) = kinds(site())
    found = {one.factor: one for one in kind.factors}
    assert list(found) == ["common", *FACTORS]
    assert -0.2 < found["pipeline"].longer < -0.02
    assert found["pipeline"].deviation < 0.1 < found["pipeline"].deviation_before / 10
    assert found["common"].deviation < found["common"].deviation_before / 3
    assert found["ep"].verdict == "unused"


def test_learns_what_is_plain() -> None:
    """The same runs with pipelines that take 40 % less than is answered."""
    at = list(FACTORS).index("pipeline")
    runs = [
        one.model_copy(update={"step_s": one.estimated_s * (1 - 0.4 * one.features.shares[at])})
        for one in site().runs
    ]
    (kind,) = kinds(site().with_runs(tuple(runs)))
    found = {one.factor: one for one in kind.factors}
    assert found["pipeline"].verdict == "learned"
    assert -0.5 < found["pipeline"].longer < -0.2
    assert found["compute"].verdict == "cannot tell yet"


@pytest.mark.slow
def test_left_out_errors_are_those_of_sites_without_the_run() -> None:
    found = {one.file.removesuffix(".log"): one for one in errors(site())}
    for name in NAMES:
        others = site(*(other for other in NAMES if other != name))
        answered = run(name).estimated_s * math.exp(shift(others, run(name).features))
        # In closed form, with the noise that outliers have among all of them.
        assert found[name].error_left_out == pytest.approx(
            answered / run(name).step_s - 1, abs=0.01
        )


def test_others_tell_more_than_nobody() -> None:
    answer = site_answer(site())
    assert answer.median_error_left_out is not None
    assert answer.median_error_without is not None
    assert answer.median_error_left_out < 0.6 * answer.median_error_without


def test_a_few_runs_are_taken_to_scatter_more() -> None:
    assert [one.noise for one in site().seen] == [site_noise_factor(6)] * 6
    (alone,) = site(NAMES[0]).seen
    assert alone.noise == site_noise_factor(1) == 9.0
    assert posterior().with_outlier_noise(()) == ()


def test_kept_and_found_again() -> None:
    lab, new = storage.learn("lab", (run(NAMES[0]), run(NAMES[1])))
    assert len(new) == 2
    assert storage.find("lab") == lab
    assert storage.names() == ("lab",)
    again, new = storage.learn("lab", (run(NAMES[1]), run(NAMES[2]), run(NAMES[2])))
    assert [one.id for one in new] == [run(NAMES[2]).id]
    assert len(again.runs) == len(storage.find("lab").runs) == 3
    assert again.digest != lab.digest


def test_forgotten() -> None:
    storage.learn("lab", tuple(map(run, NAMES[:2])))
    storage.forget("lab", run(NAMES[0]).id[:5])
    assert [one.id for one in storage.find("lab").runs] == [run(NAMES[1]).id]
    storage.forget("lab")
    with pytest.raises(UnknownName):
        storage.find("lab")
    with pytest.raises(RequestError, match="no site"):
        storage.forget("lab")


def test_unknown_run_is_not_forgotten() -> None:
    storage.learn("lab", (run(NAMES[0]),))
    with pytest.raises(RequestError, match="no such run"):
        storage.forget("lab", "zzz")
    assert len(storage.find("lab").runs) == 1


def test_damaged_file_says_where() -> None:
    storage.learn("lab", (run(NAMES[0]),))
    path = storage.folder() / "lab.json"
    path.write_text(re.sub(r'"steps": (?=\d)', '"steps": -', path.read_text()))
    with pytest.raises(ValueError, match=r"site lab: its file is damaged: /runs/0/steps: "):
        storage.find("lab")
    ((name, problem),) = storage.everything()
    assert name == "lab"
    assert "damaged" in str(problem)
    with pytest.raises(RequestError, match="damaged"):
        storage.learn("lab", (run(NAMES[1]),))
    storage.forget("lab")
    assert storage.names() == ()


def test_runs_are_bounded() -> None:
    one = run(NAMES[0])
    many = tuple(one.model_copy(update={"id": f"{i:012x}"}) for i in range(MAX_RUNS + 1))
    with pytest.raises(RequestError, match="keeps at most 1,000"):
        storage.learn("lab", many)
    assert storage.names() == ()


@pytest.mark.parametrize("name", ["", "..", "a/b", "Lab", "x" * 65, "-lab"])
def test_names(name: str) -> None:
    with pytest.raises(RequestError, match="must be 1 to 64"):
        storage.learn(name, (run(NAMES[0]),))


def test_run_of_another_version_is_priced_anew() -> None:
    one = run(NAMES[0])
    old = one.model_copy(update={"version": "0.0", "estimated_s": 99.0, "shares": {}})
    found = current(old, site())
    assert (found.estimated_s, dict(found.shares)) == (one.estimated_s, dict(one.shares))
    unreadable = old.model_copy(update={"request": {"model": "gone"}})
    assert current(unreadable, site()) == unreadable


def test_file_of_a_site_is_read_back_whole() -> None:
    one = run(NAMES[0])
    assert LearnedRun.model_validate_json(one.model_dump_json()) == one
    assert np.isclose(sum(one.features.shares), sum(one.shares.values()))
