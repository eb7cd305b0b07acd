"""What we write ourselves, for every framework that can be read: linted without a false alarm."""

from __future__ import annotations

import pytest

from planner import frameworks
from planner.answers.lint.findings import CODES
from planner.answers.lint.lint import found_in
from tests.fixtures.frameworks import CASES, bundle

# Of a framework's cases every third; the exhaustive tests lint all.
READ = [
    pytest.param(name, case, marks=() if place % 3 == 0 else pytest.mark.exhaustive)
    for name, cases in CASES.items()
    if frameworks.get(name).reads_back
    for place, case in enumerate(cases)
]
# Small models and made-up accelerators: these may be slow, or short of units, but never wrong.
ALLOWED = {"precision_unsupported"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case"), READ)
def test_a_bundle_is_not_refused(name: str, case: str) -> None:
    request, _ = CASES[name][case]
    files = bundle(name, case).files
    found, findings = found_in(files, request.cluster)
    assert found.framework.name == name
    assert {one.code for one in findings if one.severity == "error"} <= ALLOWED
    wrong = {"ignored_option", "unknown_option", "unknown_key", "world_size", "environment"}
    assert wrong < set(CODES)
    assert not wrong & {one.code for one in findings}
    for one in findings:
        assert one.file in files
        assert not one.line or one.line <= len(files[one.file].splitlines())
