"""Releases of TRL that a repository pins, and the defaults that follow."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.answers.lint.findings import ReadAnswer
from planner.answers.lint.lint import read
from planner.frameworks.pinned_releases import pinned
from planner.frameworks.sources import launch_at
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.python_scripts import IMPORTS, SFT
from tests.fixtures.trainer_scripts import TRL

OWN = "TRL {} is pinned: the defaults are its own"
OLD_KEY = "max_seq_length is a key of TRL before 0.20"
# Pins -> what is recomputed, and the kernel of the loss.
DEFAULTS = [
    ("trl==0.12.2", "none", "unfused"),
    ("trl==0.21.0", "none", "unfused"),
    ("trl==0.22", "full", "unfused"),
    ("trl==0.23", "full", "unfused"),
    ("trl==1.6.3", "full", "unfused"),
    ("trl==1.7", "full", "chunked"),
    ("trl==1.10.0", "full", "chunked"),
    ("", "full", "chunked"),
]
KINDS = ["train.yaml", "train.py"]
FORMS = {
    "requirements.txt": "torch\ntrl=={}\n",
    "requirements-dev.txt": "trl ~= {}  # of the paper\n",
    "environment.yaml": "dependencies:\n  - pip:\n      - trl=={}\n",
    "environment_gpu.yml": "dependencies:\n  - trl=={}\n",
    "pyproject.toml": '[project]\ndependencies = ["torch", "trl=={}"]\n',
    "setup.py": 'setup(install_requires=["torch>=2", "trl=={}"])\n',
}


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """So deep that no folder above it, in which pins are looked for too, is someone else's."""
    folder = tmp_path / "in" / "these" / "folders"
    folder.mkdir(parents=True)
    return folder


def launch(kind: str, old_key: bool = False) -> dict[str, str]:
    text = TRL if kind == "train.yaml" else IMPORTS + SFT
    return {kind: text.replace("max_length", "max_seq_length") if old_key else text}


def found(files: dict[str, str]) -> ReadAnswer:
    return read(files, parse_cluster("1x8xh100-sxm"))


def defaults(answer: ReadAnswer) -> tuple[str, str]:
    plan = answer.request["plan"]
    return plan.get("recompute", "none"), plan["cross_entropy"]


def tree(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def pins_at(path: Path) -> str:
    """The pins that are found with a launch, which stand under one name; empty without any."""
    return launch_at([str(path)])[0].get("requirements.txt", "")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("pin", "recompute", "loss"), DEFAULTS)
def test_defaults_are_those_of_the_release(kind: str, pin: str, recompute: str, loss: str) -> None:
    answer = found({**launch(kind), "requirements.txt": f"torch==2.5\n{pin}\n"})
    assert defaults(answer) == (recompute, loss)
    said = OWN.format(pin.partition("==")[2])
    assert (said in answer.assumed) is (loss == "unfused")
    assert found(launch(kind)).request["plan"]["cross_entropy"] == "chunked"


@pytest.mark.parametrize("kind", KINDS)
def test_the_old_name_of_the_length_says_that_trl_is_old(kind: str) -> None:
    answer = found(launch(kind, old_key=True))
    assert defaults(answer) == ("none", "unfused")
    assert OLD_KEY in str(answer.assumed)
    newer = found({**launch(kind, old_key=True), "requirements.txt": "trl==1.7\n"})
    assert OLD_KEY not in str(newer.assumed)
    assert newer.request["plan"]["recompute"] == "full"


def test_what_is_stated_counts_more_than_a_default() -> None:
    pins = {"requirements.txt": "trl==0.12.2\n"}
    asked = {"train.yaml": TRL + "gradient_checkpointing: true\n", **pins}
    assert defaults(found(asked)) == ("full", "unfused")
    off = {"train.yaml": TRL + "gradient_checkpointing: false\n", "requirements.txt": "trl==1.7\n"}
    assert defaults(found(off)) == ("none", "chunked")


@pytest.mark.parametrize(
    "text",
    [
        "# trl==0.12.2", "torch==2.5  # as trl==0.12.2 needs", "trlx==0.3", "my-trl==0.1",
        "xtrl==0.1", "my_trl==0.1", "transformers==4.40", "trl", "trl>=0.12", "trl @ git+https://a",
    ],
)  # fmt: skip
def test_comments_and_other_libraries_pin_nothing(text: str, tmp_path: Path) -> None:
    tree(tmp_path, {**launch("train.yaml"), "requirements.txt": f"{text}\n"})
    assert pins_at(tmp_path / "train.yaml") == ""
    assert pinned({"requirements.txt": text}, "trl") is None
    answer = found({**launch("train.yaml"), "requirements.txt": f"{text}\n"})
    assert defaults(answer) == ("full", "chunked")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", ["", "recipes/sft/"])
def test_pins_of_the_launch_and_of_folders_above_are_found(
    form: str, where: str, tmp_path: Path
) -> None:
    tree(tmp_path, {form: FORMS[form].format("0.12.2")})
    tree(tmp_path / where, launch("train.yaml"))
    path = tmp_path / where / "train.yaml"
    files, places = launch_at([str(path)])
    assert files["requirements.txt"] == "trl==0.12.2\n"
    assert places[-1] == str(tmp_path.resolve() / form)
    assert defaults(found(files)) == ("none", "unfused")


def test_the_nearest_folder_and_what_was_installed_count(tmp_path: Path) -> None:
    tree(tmp_path, {"requirements.txt": "trl==0.9\n", "a/pyproject.toml": '"trl==0.23"\n'})
    tree(tmp_path / "a", launch("train.yaml"))
    assert pins_at(tmp_path / "a" / "train.yaml") == "trl==0.23\n"
    tree(tmp_path, {"a/setup.py": '"trl==0.8"\n', "a/requirements.txt": "torch\n"})
    assert pins_at(tmp_path / "a" / "train.yaml") == "trl==0.23\n"
    tree(tmp_path, {"a/requirements.txt": "trl==1.7\n"})
    assert pins_at(tmp_path / "a" / "train.yaml") == "trl==1.7\n"


def test_pins_that_are_given_are_not_looked_for(tmp_path: Path) -> None:
    tree(tmp_path, {**launch("train.yaml"), "requirements.txt": "trl==0.12.2\n"})
    tree(tmp_path, {"own/requirements.txt": "trl==1.7\n"})
    paths = [str(tmp_path / "train.yaml"), str(tmp_path / "own" / "requirements.txt")]
    files, _ = launch_at(paths)
    pin = pinned(files, "trl")
    assert pin is not None
    assert pin.release == (1, 7)


def test_pins_of_another_repository_are_left_alone(tmp_path: Path) -> None:
    tree(tmp_path, {"requirements.txt": "trl==0.12.2\n", "own/.git/HEAD": ""})
    tree(tmp_path / "own", launch("train.yaml"))
    assert pins_at(tmp_path / "own" / "train.yaml") == ""


@pytest.mark.parametrize("data", [b"trl==0.12.2\n\xff", b"trl==0.12.2\n" + b"#" * (1 << 18)])
def test_a_file_that_is_no_text_or_too_large_pins_nothing(data: bytes, tmp_path: Path) -> None:
    tree(tmp_path, launch("train.yaml"))
    (tmp_path / "requirements.txt").write_bytes(data)
    assert pins_at(tmp_path / "train.yaml") == ""
    tree(tmp_path, {"setup.py": '"trl==0.23"\n'})
    assert pins_at(tmp_path / "train.yaml") == "trl==0.23\n"


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("trl==0.12.2", (0, 12, 2)),
        ('"trl == v1.7"', (1, 7)),
        ("trl==1.2.3.4.5", (1, 2, 3)),
        ("trl~=0.9\ntrl==1.0", (0, 9)),
        (f"trl=={'9' * 5_000}.1", (999_999,)),
    ],
)
def test_a_release_has_up_to_three_numbers(text: str, release: tuple[int, ...]) -> None:
    pin = pinned({"a/requirements.txt": text}, "trl")
    assert pin is not None
    assert pin.release == release
    assert pinned({"constraints.txt": text}, "trl") is None


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("trl<0.22", (0, 21, 999_999)),
        ("trl>=0.12,<0.20", (0, 19, 999_999)),
        ("trl<1.0", (0, 999_999)),
        ("trl[vllm]==0.12.2", (0, 12, 2)),
        ("  - trl=0.12.2", (0, 12, 2)),
        ('trl = "^0.12.2"', (0, 12, 2)),
        ('[[package]]\nname = "trl"\nversion = "0.12.2"\n', (0, 12, 2)),
        ("trl>=0.9", None),
    ],
)
def test_pins_of_every_kind(text: str, release: tuple[int, ...] | None) -> None:
    pin = pinned({"requirements.txt": text}, "trl")
    assert (pin and pin.release) == release


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("trl<0.20", "TRL before 0.20 is pinned"),
        ("trl>=0.8,<1.0", "TRL before 1.0 is pinned"),
        ("trl~=0.9.3", "TRL 0.9.3 is pinned"),
    ],
)
def test_a_pin_is_said_as_it_is_written(line: str, said: str, tmp_path: Path) -> None:
    tree(tmp_path, {**launch("train.yaml"), "requirements.txt": f"{line}\n"})
    files, _ = launch_at([str(tmp_path / "train.yaml")])
    assert said in str(found(files).assumed)


def test_lines_without_end_cost_no_time(tmp_path: Path) -> None:
    tree(tmp_path, {**launch("train.yaml"), "requirements.txt": " trl[" * 40_000})
    assert pins_at(tmp_path / "train.yaml") == ""
