"""The command line: documents, exit codes, and no traceback whatever is typed."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cost_models.plans import ParallelPlan
from cost_models.spec import TrainingSpec
from planner.answers.fits.request import FitSpec
from planner.answers.reinforcement.documents import ReinforcementSpec
from planner.answers.sizing.request import SizingSpec
from planner.commands import options
from planner.commands import plans as commands
from planner.documents.answer import EstimateAnswer, PlanAnswer, WhyAnswer
from planner.documents.request import SearchSpec
from planner.inputs.requests.model_import import ModelAnswer
from planner.version import __version__
from tests.planner.inputs.requests.test_parser import ASKED, LLAMA_CONFIG
from tools import field_table

SMALL = {
    "--model": "llama-3.1-8b",
    "--cluster": "1x8xh100-sxm",
    "--seq-length": "4096",
    "--global-batch-size": "64",
}
PLANNED = [word for pair in SMALL.items() for word in pair]
# For tests of something else than the search: one framework's plans, or a plan that is named.
ALONE = [*PLANNED, "--framework", "megatron"]
NAMED = [*PLANNED, "--tp", "8", "--sequence-parallel"]
# Far too little for this model: nothing fits.
STARVED = ["--model", "llama-3.1-405b", "--cluster", "1x1xh100-sxm", *PLANNED[4:]]


@pytest.mark.slow
def test_options_are_the_fields_of_the_documents() -> None:
    """The table is a file to keep start-up light, so it is held against the documents."""
    command = "python -m tools.field_table --write"
    assert options.TABLE.read_text() == field_table.text(), command
    by_part: dict[str, set[str]] = {}
    for field in field_table.table():
        by_part.setdefault(field.part, set()).add(field.name)
    assert by_part["plan"] == set(ParallelPlan.model_fields)
    assert by_part["training"] == set(TrainingSpec.model_fields)
    assert by_part["search"] == set(SearchSpec.model_fields) - {"limits"}
    assert by_part["reinforcement"] == set(ReinforcementSpec.model_fields)
    assert by_part["fit"] == set(FitSpec.model_fields)
    # Prices are pairs, and the PUE is an option of every command.
    own = {"prices_usd_per_accelerator_hour", "pue"}
    assert by_part["sizing"] == set(SizingSpec.model_fields) - own
    assert all(field.help for field in field_table.table())


@pytest.mark.parametrize(
    ("name", "text", "limits", "value"),
    [
        ("tp", "8", True, 8),
        ("tp", "1..8", True, {"min": 1, "max": 8}),
        ("tp", "..8", True, {"max": 8}),
        ("tp", "2..", True, {"min": 2}),
        ("tp", "1, 2,4", True, [1, 2, 4]),
        ("tp", "x", True, "x"),
        ("recompute", "full,none", True, ["full", "none"]),
        ("schedule", "interleaved-1f1b", False, "interleaved-1f1b"),
        ("recompute_modules", "core_attn,mlp", False, ["core_attn", "mlp"]),
        ("stage_layers", "41,39", False, [41, 39]),
        ("tokens", "15e12", False, 15e12),
        ("model", "123", False, "123"),
    ],
)
def test_option_text(name: str, text: str, limits: bool, value: object) -> None:
    assert options.read(name, text, limits) == value


def test_options_lie_over_the_document() -> None:
    document = {"cluster": "dgx-h100", "search": {"top_k": 3}, "plan": None}
    given = {"nodes": "4", "tp": "8", "seq_length": "4096", "sequence_parallel": False}
    assert options.merge(document, given, limits=True) == {
        "cluster": {"preset": "dgx-h100", "nodes": 4},
        "search": {"top_k": 3, "tp": 8, "sequence_parallel": False},
        "training": {"seq_length": 4096},
        "plan": None,
    }
    assert options.merge(document, given, limits=False)["plan"] == {
        "tp": 8,
        "sequence_parallel": False,
    }


def test_an_option_replaces_a_limit_of_the_document() -> None:
    document = {"search": {"limits": {"tp": {"values": [8]}, "pp": {"max": 4}}}}
    merged = options.merge(document, {"tp": "4"}, limits=True)
    assert merged == {"search": {"tp": 4, "limits": {"pp": {"max": 4}}}}
    for odd in (0, False, "", []):  # no object: left for the parser to refuse
        assert options.merge({"search": odd}, {"tp": "4"}, limits=True) == {"search": odd}


@pytest.mark.parametrize("text", ["", " ", ",", "1,", "null", "~"])
@pytest.mark.parametrize("name", ["tp", "recompute_modules", "tokens", "framework", "nodes"])
def test_an_option_without_a_value_is_refused(ask: Any, name: str, text: str) -> None:
    flag = options.FIELDS[name].flag
    code, out, err = ask("plan", *PLANNED, flag, text)
    assert (code, out) == (2, "")
    assert flag in err


@pytest.mark.parametrize("name", ["model", "cluster", "profile"])
def test_a_name_without_a_value_is_refused(ask: Any, name: str) -> None:
    code, out, err = ask("plan", *PLANNED, f"--{name}", "")
    assert (code, out) == (2, "")
    assert f"--{name}: needs a value" in err


def test_command_line_repeats_the_request() -> None:
    given = {"model": "my model", "tp": "1..8", "overlap_tp": True, "overlap_p2p": False}
    words = options.command_line(given, "a.yaml", ())
    assert words == ("--request a.yaml --model 'my model' --tp 1..8 --overlap-tp --no-overlap-p2p")
    assert options.command_line(given, None, ("tp", "model", "overlap_tp", "overlap_p2p")) == ""
    assert options.command_line({}, "-", ()) == "--request FILE"


@pytest.mark.slow
def test_plan_document(ask: Any) -> None:
    code, out, err = ask("plan", *PLANNED, "--top-k", "3", "--json")
    assert (code, err) == (0, "")
    answer = PlanAnswer.model_validate_json(out)
    assert answer.best is not None
    assert answer.best.fits
    assert len(answer.plans) == 3
    assert answer.version == __version__
    assert "/training/precision" in answer.request["defaulted"]
    again = subprocess.run(
        [sys.executable, "-m", "planner.cli", "plan", "-", "--json"],
        input=json.dumps(answer.request),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert again.returncode == 0, again.stderr
    second = PlanAnswer.model_validate_json(again.stdout)
    assert second.model_copy(update={"search_time_s": 0}) == answer.model_copy(
        update={"search_time_s": 0}
    )


@pytest.mark.slow
def test_plan_screen(ask: Any) -> None:
    code, out, _ = ask("plan", *PLANNED)
    assert code == 0
    assert len(out.splitlines()) <= 50
    for words in ("Best plan", "tokens/s", "Memory", "Time", "plans fit,", "Next"):
        assert words in out
    assert f"planner emit {' '.join(PLANNED)} --framework megatron > run.sh" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["plan", *PLANNED, "--framework", "jax"], "--framework: no framework 'jax'; one of megat"),
        (["plan", *PLANNED, "--framework", "megatrn"], "; did you mean megatron"),
        (["plan", *PLANNED, "--model", "nope"], "--model: no model 'nope'; planner catalog models"),
        (["plan", *PLANNED, "--tp", "x"], "--tp: must be an integer, got the string 'x'"),
        (["plan", *PLANNED, "--schedule", "zbv"], "--schedule: must be one of naive, gpipe"),
        (["estimate", *PLANNED, "--tp", "x"], "--tp: must be an integer"),
        (["emit", *NAMED, "--launcher", "k8s"], "--launcher: no launcher 'k8s'; one of deepspe"),
        (["emit", *NAMED, "--launcher", "k8s"], "; for example --launcher slurm"),
        (["plan", *PLANNED[:4]], "--seq-length and --global-batch-size: are required"),
        (["plan"], "for example: planner plan --model llama-3.1-8b --cluster 1x8xh100-sxm"),
    ],
)
def test_errors_name_what_was_typed_and_the_choices(ask: Any, words: list[str], says: str) -> None:
    code, out, err = ask(*words)
    assert (code, out) == (2, "")
    assert says in err
    document = json.loads(ask(*words, "--json")[1])
    assert document["errors"][0]["pointer"].startswith("/")


@pytest.mark.slow
def test_the_worked_example_works(ask: Any) -> None:
    from planner.commands.option_messages import EXAMPLE

    assert ask(*shlex.split(EXAMPLE)[1:])[0] == 0


def test_help_cuts_no_name(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = ask("plan", "--help-all")
    assert code == 0
    assert "…" not in out
    assert "ator" in out  # the end of --reserved-bytes-per-accelerator, a line lower


def test_help_shows_common_options_and_all_when_asked(ask: Any) -> None:
    assert options.FIELDS.keys() >= options._COMMON
    code, common, _ = ask("plan", "--help")
    assert code == 0
    code, every, _ = ask("plan", "--help-all")
    assert code == 0
    for name in options.FIELDS:
        shown = f"--{name.replace('_', '-')} " in common.replace("\n", " ")
        assert shown == (name in options._COMMON), name
    assert len(common.splitlines()) < len(every.splitlines()) / 2
    assert "--overlap-tp" in every


def test_names_are_completed() -> None:
    for name, typed, full in (
        ("model", "llama-3.1-4", "llama-3.1-405b"),
        ("cluster", "dgx-h", "dgx-h100"),
        ("framework", "meg", "megatron"),
        ("schedule", "zb", "zb-v"),
    ):
        found = options.COMPLETIONS[name](typed)
        assert full in found
        assert all(one.startswith(typed) for one in found)
    assert commands._launchers("sl") == ["slurm"]


@pytest.mark.slow
def test_a_search_that_is_enough_answers_with_what_it_has() -> None:
    from planner.answers.plans.plan_answers import find
    from planner.inputs.requests.parser import parse_request
    from planner.progress import Watch, watched

    training = {"seq_length": 4096, "global_batch_size": 256}
    asked = {"model": "llama-3.1-70b", "cluster": "8x8xh100-sxm", "training": training}
    with watched(Watch(enough=lambda: True)):
        found = find(parse_request(asked))
    assert found.counts.cut_short
    assert found.counts.enumerated < 1_000_000
    whole = find(parse_request({**asked, "search": {"tp": 8, "pp": 2, "cp": 1}}))
    assert not whole.counts.cut_short


def next_lines(out: str) -> list[str]:
    return [line.strip() for line in out.partition("\nNext\n")[2].splitlines()]


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        [],
        ["--framework", "megatron", "--tp", "2..8", "--recompute", "selective"],
        ["--framework", "deepspeed"],
        ["--sequence-parallel", "--vpp", "2", "--top-k", "1"],
    ],
)
def test_next_commands_work(ask: Any, more: list[str]) -> None:
    code, out, _ = ask("plan", *PLANNED, *more)
    assert code == 0
    emit, why = next_lines(out)
    if "deepspeed" in more:
        assert "--framework deepspeed > run.sh" in emit
    command, _, written = emit.partition(" > run.sh  # ")
    assert written in ("the best plan", "the recommended plan; --pick fastest: the best")
    program, command, *words = shlex.split(command)
    assert (program, command) == ("planner", "emit")
    assert ask("emit", *words)[0] == 0
    best = json.loads(ask("plan", *PLANNED, *more, "--json")[1])["best"]["plan"]
    why, _, neighbour = why.partition("  # the best plan with ")
    assert neighbour
    program, command, *words = shlex.split(why)
    assert (program, command) == ("planner", "why")
    answer = WhyAnswer.model_validate_json(ask("why", *words, "--json")[1])
    assert answer.verdict != "best"
    assert answer.estimate is not None
    asked = answer.estimate.plan.model_dump(mode="json")
    changed = {name for name in asked if asked[name] != best[name]} - {"dp"}
    assert len(changed) == 1
    assert neighbour.split()[0] in changed


@pytest.mark.slow
def test_next_says_why_there_are_no_launch_files(ask: Any) -> None:
    code, out, _ = ask("plan", "--model", "falcon-40b", *PLANNED[2:])
    assert code == 0
    first = next_lines(out)[0]
    assert first.startswith("no launch files: Megatron-LM cannot run this plan: ")
    assert "planner emit" not in out


@pytest.mark.slow
def test_next_after_standard_input_does_not_hang(tmp_path: Path) -> None:
    asked = ASKED | {"model": "llama-3.1-8b", "cluster": "1x8xh100-sxm", "plan": {"tp": 2}}
    result = subprocess.run(
        [sys.executable, "-m", "planner.cli", "plan", "-"],
        input=json.dumps(asked), capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0
    lines = next_lines(result.stdout)
    assert all(" - " not in line for line in lines)
    assert "planner why --request FILE " in lines[1]
    assert "FILE: the request that came from standard input" in lines[-1]


@pytest.mark.slow
def test_limits_hold(ask: Any) -> None:
    code, out, _ = ask("plan", *PLANNED, "--tp", "2..4", "--pp", "1,2", "--json")
    assert code == 0
    for report in json.loads(out)["plans"]:
        assert report["plan"]["tp"] in (2, 4)
        assert report["plan"]["pp"] in (1, 2)


@pytest.mark.slow
def test_nothing_fits(ask: Any) -> None:
    code, out, _ = ask("plan", *STARVED, "--json")
    assert code == 4
    assert json.loads(out)["best"] is None
    code, out, _ = ask("plan", *STARVED)
    assert code == 4
    assert "Nothing fits" in out


def test_estimate(ask: Any) -> None:
    code, out, _ = ask("estimate", *PLANNED, "--tp", "8", "--sequence-parallel", "--json")
    assert code == 0
    answer = EstimateAnswer.model_validate_json(out)
    assert answer.estimate.plan.tp == 8
    code, out, _ = ask("estimate", *PLANNED, "--tp", "8")
    assert code == 0
    assert "Not modelled" in out
    assert ask("estimate", *STARVED, "--tp", "1")[0] == 4


def test_why(ask: Any) -> None:
    code, out, _ = ask("why", *ALONE, "--tp", "3", "--json")
    assert code == 0
    answer = WhyAnswer.model_validate_json(out)
    assert answer.verdict == "illegal"
    code, out, _ = ask("why", *ALONE, "--tp", "3")
    assert code == 0
    assert "This plan cannot run" in out
    assert answer.reasons[0].text[:40] in out
    assert answer.reasons[0].code not in out


@pytest.mark.slow
def test_emit(ask: Any, tmp_path: Path) -> None:
    code, script, _ = ask("emit", *PLANNED)
    assert code == 0
    assert script.startswith("#!")
    folder = tmp_path / "run"
    code, out, _ = ask("emit", *ALONE, "--output", str(folder))
    assert code == 0
    written = [Path(line) for line in out.splitlines()]
    assert script in [path.read_text() for path in written]
    code, _, err = ask("emit", *ALONE, "--output", str(folder))
    assert code == 2
    assert "already has" in err
    assert ask("emit", *STARVED)[0] == 4


def test_emit_writes_and_prints(ask: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, out, err = ask("emit", *NAMED, "--output", str(folder), "--json")
    assert (code, err) == (0, "")
    bundle = json.loads(out)
    written = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.iterdir()}
    assert written == bundle["files"]


@pytest.mark.slow
def test_emit_says_what_it_cannot_write(ask: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for folder, says in {
        str(file): "is not a folder",
        str(file / "below"): "cannot write",
        "/proc/nowhere": "cannot write",
        "": "--output needs a folder",
        "x" * 5000: "cannot write",
    }.items():
        code, out, err = ask("emit", *NAMED, "--output", folder)
        assert (code, out) == (2, ""), folder
        assert says in err


def test_emit_refuses_what_does_not_fit(ask: Any, tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    big = {"model": "llama-3.1-405b", "cluster": "1x8xh100-sxm", "plan": {"tp": 8}}
    request.write_text(json.dumps(ASKED | big))
    folder = tmp_path / "run"
    code, out, err = ask("emit", str(request), "--output", str(folder))
    assert (code, out) == (4, "")
    assert re.search(r"does not fit: stage 0 needs [\d.]+ GiB, the accelerator has 79.6 GiB", err)
    assert not folder.exists()
    code, out, err = ask("emit", str(request), "--json")
    assert (code, err) == (4, "")
    (error,) = json.loads(out)["errors"]
    assert error["code"] == "nothing_fits"


def test_emit_takes_the_plan_of_the_request(ask: Any, tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    plan = {"tp": 4, "sequence_parallel": True}
    asked = ASKED | {"model": "llama-3.1-8b", "cluster": "1x8xh100-sxm", "plan": plan}
    request.write_text(json.dumps(asked))
    code, out, _ = ask("emit", str(request))
    assert code == 0
    assert "--tensor-model-parallel-size 4" in out
    code, out, _ = ask("emit", str(request), "--tp", "2")
    assert "--tensor-model-parallel-size 2" in out


@pytest.mark.slow
@pytest.mark.parametrize("where", ["option", "argument", "file"])
def test_config_json(ask: Any, tmp_path: Path, where: str) -> None:
    config = tmp_path / "my-model" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(LLAMA_CONFIG))
    if where == "argument":
        code, out, _ = ask("model", str(config), "--json")
        document = json.loads(out)
        assert list(document) == list(ModelAnswer.model_fields)
        assert document["model"]["name"] == "my-model"
        return
    words = ["--model", str(config), *ALONE[2:]]
    if where == "file":  # a path in a request is relative to the request
        request = tmp_path / "request.yaml"
        request.write_text("model: my-model/config.json\n")
        words = [str(request), *ALONE[2:]]
    code, out, err = ask("plan", *words, "--json")
    assert code == 0, err
    assert json.loads(out)["request"]["model"]["name"] == "my-model"


@pytest.mark.parametrize("stated", ["", None])
def test_an_empty_name_is_that_of_the_folder(ask: Any, tmp_path: Path, stated: str | None) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**LLAMA_CONFIG, "_name_or_path": stated}))
    _, out, _ = ask("model", str(config), "--json")
    assert json.loads(out)["model"]["name"] == tmp_path.name


@pytest.mark.slow
def test_catalog_and_model(ask: Any) -> None:
    for kind in ("models", "accelerators", "clusters"):
        code, out, _ = ask("catalog", kind, "--json")
        assert code == 0
        assert len(json.loads(out)[kind]) >= 8
        assert ask("catalog", kind)[0] == 0
    code, out, _ = ask("model", "deepseek-v3")
    assert code == 0
    assert "active per token" in out


@pytest.mark.slow
def test_version_and_help(ask: Any) -> None:
    assert ask("--version") == (0, __version__ + "\n", "")
    code, out, _ = ask("--help")
    assert code == 0
    assert "Exit codes" in out
    for command in ("plan", "estimate", "why", "emit", "model", "catalog", "serve"):
        assert command in out
        assert ask(command, "--help")[0] == 0
    assert ask()[0] == 2
