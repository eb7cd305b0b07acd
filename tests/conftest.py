"""Test tiers, and the setting that turns "skipped because something is missing" into a failure."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator

import pytest

from planner.data_folder import VARIABLE

# Set in continuous integration: there every tool is installed, so a skipped test is a hole.
STRICT = os.environ.get("PLANNER_TESTS_STRICT") == "1"
# There tests wait for a browser or a service under load, compare many drawn plans, or search often.
SLOW_FOLDERS = ("browser", "benchmarks", "frameworks", "mixed")


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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as quick what is neither slow nor exhaustive, before `-m` selects."""
    for item in items:
        if item.path.parent.name in SLOW_FOLDERS:
            item.add_marker(pytest.mark.slow)
        if not any(item.get_closest_marker(name) for name in ("slow", "exhaustive")):
            item.add_marker(pytest.mark.quick)


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


def _reason(longrepr: object) -> str:
    return str(longrepr[2] if isinstance(longrepr, tuple) else longrepr)
