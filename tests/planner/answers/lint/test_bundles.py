"""What we write ourselves, for every framework that can be read: linted without a false alarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner import frameworks
from planner.answers.lint.findings import CODES
from planner.answers.lint.lint import found_in
from planner.documents.problems import RequestError
from planner.frameworks.bash_writer import one_script, parts
from planner.frameworks.sources import launch_at
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


@pytest.mark.one_in(4)
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


@pytest.mark.slow
@pytest.mark.parametrize("name", frameworks.FRAMEWORKS)
def test_the_launch_script_alone_is_enough(name: str, tmp_path: Path) -> None:
    """What it names and starts lies beside it and is read with it, as `planner lint` does."""
    framework = frameworks.get(name)
    request, plan = next(iter(CASES[name].values()))
    bundle = framework.write(request, plan)
    for file, text in bundle.files.items():
        (tmp_path / file).write_text(text)
    texts, _ = launch_at([str(tmp_path / bundle.main)])
    if not framework.reads_back:
        with pytest.raises(RequestError, match="which is not read: it") as error:
            found_in(texts, request.cluster)
        assert framework.title in str(error.value)
        return
    found, findings = found_in(texts, request.cluster)
    assert found.framework.name == name
    assert {one.code for one in findings if one.severity == "error"} <= ALLOWED


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if frameworks.get(name).reads_back])
def test_one_script_of_all_files_is_their_launch(name: str, tmp_path: Path) -> None:
    """What `planner emit` prints, as its files say it."""
    framework = frameworks.get(name)
    request, plan = next(iter(CASES[name].values()))
    bundle = framework.write(request, plan)
    script = tmp_path / "run.sh"
    script.write_text(one_script(bundle))
    texts, paths = launch_at([str(script)])
    if len(bundle.files) > 1:
        assert dict(texts) == {
            file: f"{one.rstrip(chr(10))}\n" for file, one in bundle.files.items()
        }
        assert set(paths) == {str(script)}
    found, findings = found_in(texts, request.cluster)
    assert found.framework.name == name
    assert {one.code for one in findings if one.severity == "error"} <= ALLOWED


def test_changes_are_written_into_the_script_of_all_files(ask: Any, tmp_path: Path) -> None:
    request, plan = next(iter(CASES["deepspeed"].values()))
    script = tmp_path / "run.sh"
    text = one_script(frameworks.get("deepspeed").write(request, plan))
    script.write_text(text.replace("--micro-batch-size 1", "--micro-batch-sise 1"))
    assert script.read_text() != text
    _, _, said = ask("lint", str(script), "--cluster", request.cluster.name, "--fix")
    assert f"changed: {script}" in said
    assert "--micro-batch-sise" not in script.read_text()
    assert script.read_text().startswith("#!/usr/bin/env bash\n# deepspeed: ")
    assert parts(script.read_text()).keys() == parts(text).keys()


@pytest.mark.parametrize("first", ["accelerate.yaml", "config.json"])
def test_the_verdict_is_of_the_launch_script(first: str, ask: Any, tmp_path: Path) -> None:
    """Whatever the order in which a shell lists the files."""
    request, plan = next(iter(CASES["trl"].values()))
    files = frameworks.get("trl").write(request, plan).files
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    paths = [str(tmp_path / name) for name in (first, *(one for one in files if one != first))]
    _, out, _ = ask("lint", *paths, "--cluster", "1x1xh100-sxm", "--framework", "trl")
    assert out.startswith("launch.sh ")
