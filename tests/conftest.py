"""Test tiers, and the setting that turns "skipped because something is missing" into a failure."""

from __future__ import annotations

import gc
import os
import re
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from planner.data_folder import VARIABLE
from tests.fixtures import tiers
from tests.fixtures.order import slow_first

# How long an example takes says nothing on a machine that does other work too.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
# Tests run side by side, each on one core.  Read when NumPy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Set in continuous integration: there every tool is installed, so a skipped test is a hole.
STRICT = os.environ.get("PLANNER_TESTS_STRICT") == "1"
# There tests wait for a browser or a service under load, compare many drawn plans, or search often.
SLOW_FOLDERS = (
    "browser", "benchmarks", "frameworks", "lint", "mixed_clusters", "sensitivities", "sizing",
    "fits",
)  # fmt: skip
ALL_SLOW = re.compile(r"^pytestmark = .*mark\.(slow|exhaustive)\b", re.MULTILINE)  # of a module


@pytest.fixture(scope="session", autouse=True)
def own_data_folder() -> Generator[None, None, None]:
    """What whoever runs the tests has calibrated and validated plays no part in them."""
    before = os.environ.get(VARIABLE)
    with tempfile.TemporaryDirectory(prefix="planner-tests-") as folder:
        os.environ[VARIABLE] = folder
        yield
    os.environ.pop(VARIABLE)
    if before is not None:
        os.environ[VARIABLE] = before


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One worker more than there are cores, since tests wait for services, browsers and runs.

    Those of the quick tier do not wait.  Files that are named run in this process: workers take
    longer to start.
    """
    if config.args and all(Path(arg.partition("::")[0]).is_file() for arg in config.args):
        return 0
    waiting = config.option.markexpr != "quick"
    return len(os.sched_getaffinity(0)) + waiting


def pytest_configure(config: pytest.Config) -> None:
    tiers.exhaustive = config.option.markexpr == "exhaustive"
    tiers.quick = config.option.markexpr == "quick"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, None, None]:
    """Nothing of what is collected is garbage: to look for some takes a fifth of the time.

    Nor does it become garbage later: each full collection would look at millions of objects.
    """
    gc.disable()
    yield
    gc.freeze()
    gc.set_threshold(10_000)  # what one test leaves is small: it need not be looked for so often
    gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The quick tier does not even import the folders and modules of which it takes nothing."""
    if config.option.markexpr != "quick":
        return None
    if collection_path.is_dir():
        return True if collection_path.name in SLOW_FOLDERS else None
    slow = collection_path.suffix == ".py" and ALL_SLOW.search(collection_path.read_text())
    return True if slow else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Mark as quick what is neither slow nor exhaustive, before `-m` selects.

    Among the exhaustive tests every drawn one runs again, on all its examples: see tiers.examples.
    Benchmarks run alone: beside other tests (pytest-xdist) they would measure those.
    """
    if hasattr(config, "workerinput"):
        config.hook.pytest_deselected(items=[i for i in items if _is_benchmark(i)])
        items[:] = [item for item in items if not _is_benchmark(item)]
    _sample(items)
    for item in items:
        if item.path.parent.name in SLOW_FOLDERS:
            item.add_marker(pytest.mark.slow)
        if tiers.exhaustive and getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.exhaustive)
        if not any(item.get_closest_marker(name) for name in ("slow", "exhaustive")):
            item.add_marker(pytest.mark.quick)
    yield
    if hasattr(config, "workerinput"):
        items[:] = slow_first(items, config.workerinput["workercount"])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if STRICT and report.skipped and not item.get_closest_marker("device"):
        report.outcome = "failed"
        report.longrepr = f"skipped under PLANNER_TESTS_STRICT: {_reason(report.longrepr)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if STRICT and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped under PLANNER_TESTS_STRICT: {_reason(report.longrepr)}"
    return report


def _sample(items: list[pytest.Item]) -> None:
    """Leave all but one in `share` parameters of a test marked `one_in(share)` to a longer tier.

    one_in(share, quick=share): those of which the quick tier takes only so many of the others.
    """
    numbers = Counter[str]()
    for item in items:
        if sample := item.get_closest_marker("one_in"):
            number, share = numbers[test := item.nodeid.partition("[")[0]], sample.args[0]
            numbers[test] += 1
            if number % share:
                item.add_marker(pytest.mark.exhaustive)
            elif number // share % sample.kwargs.get("quick", 1):
                item.add_marker(pytest.mark.slow)


def _is_benchmark(item: pytest.Item) -> bool:
    return item.path.parent.name == "benchmarks"


def _reason(longrepr: object) -> str:
    return str(longrepr[2] if isinstance(longrepr, tuple) else longrepr)
