"""What was typed wrongly is said with the options that were typed, or have to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.planner.inputs.requests.test_parser import LLAMA_CONFIG
from tests.planner.test_cli import NAMED, PLANNED, SMALL

STEP = ["--model", "llama-3.1-8b", "--cluster", "1x8xh100-sxm"]
# Without the length, which some of the cases give themselves.
UNSIZED = [word for name in ("--model", "--cluster") for word in (name, SMALL[name])]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["estimate", *PLANNED], "no plan is given: add --tp, --pp"),
        (["why", *PLANNED], "for example --tp 8 --pp 2"),
        (["rl", *STEP], "--prompts, --prompt-tokens and --max-response-tokens: are required"),
        (["rl", *STEP], "for example: planner rl --model"),
        (["rl", *STEP, "--prompts", "8"], "--prompt-tokens: is required\n"),
        (["rl", *STEP, "--prompts", "8"], "--max-response-tokens: is required\n"),
        (["rl", *STEP, "--prompts", "8", "--prompt-tokens", "9", "--response-tokens", "9000",
          "--max-response-tokens", "8192"],
         "--response-tokens: 9,000, the mean, is above --max-response-tokens 8,192"),
        (["plan", *PLANNED, "--frozen-dtype", "nf4"], "--frozen-dtype: needs --lora-rank or froz"),
        (["estimate", *PLANNED, "--pp", "3"],
         "--pp: 32 layers do not divide over 3 stages; give --first-stage-layers or --last-stage"),
        (["fit", "--model", "llama-3.1-8b", "--card", "rtx40"], "--card: cluster '1x1xrtx40': unk"),
        (["sensitivity", *PLANNED, "--input", "bogus"], "--input: no input 'bogus'; one of matri"),
        (["plan", "absent.yaml"], "FILE: cannot read 'absent.yaml'"),
        (["lint", "absent.sh", "--cluster", "1x8xh100-sxm"], "FILE: cannot read 'absent.sh'"),
        (["compare", "a", "b"], "B: cannot read 'b'"),
        (["plan", *PLANNED, "--preciison", "bf16"], "--preciison; did you mean --precision?"),
        (["plan", *PLANNED, "--micro-batch", "1"], "did you mean --micro-batch-size?"),
        (["fit", "--model", "llama-3.1-8b", "--card", "rtx-4090", "--cards", "0"],
         "--cards: must be >= 1"),
        (["catalog", "modles"], "got modles; did you mean models?"),
        (["ranks", *NAMED, "--order", "megatrn"], "--order: unknown framework 'megatrn'"),
        (["ranks", *NAMED, "--order", "megatrn"], "did you mean megatron"),
        (["plan", *PLANNED, "--zero-stage", "4"], "for example --zero-stage 0, 1, 2 or 3"),
        (["plan", *PLANNED, "--memory-risk", "5"], "for example --memory-risk 5%"),
        (["plan", *UNSIZED, "--global-batch-size", "64", "--seq-length", "100M"],
         "got 104857600 (100M counts in powers of 1,024)"),
        (["plan", *UNSIZED, "--global-batch-size", "64", "--seq-length", "1e99"],
         "got 1e+99, a number with a point or an exponent"),
    ],
)  # fmt: skip
def test_options_are_named(ask: Any, words: list[str], says: str) -> None:
    code, out, err = ask(*words)
    assert (code, out) == (2, "")
    assert says in err
    assert "\n  /" not in err


def test_what_lacks_items_since_they_are_wrong_is_told_once(ask: Any) -> None:
    words = ["fit", "--model", "llama-3.1-8b", "--card", "rtx-4090", "--lengths", "2x"]
    _, _, err = ask(*words)
    assert err.splitlines()[1:] == ["  --lengths: must be an integer, got the string '2x'"]


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (["--mbs", "4"], ["--micro-batch-size", "4"]),
        (["--mbs=4"], ["--micro-batch-size", "4"]),
        (["--sp"], ["--sequence-parallel"]),
        (["--no-sp"], ["--no-sequence-parallel"]),
        (["--zero", "3"], ["--zero-stage", "3"]),
    ],
)
def test_words_of_the_screens_are_options(ask: Any, short: list[str], long: list[str]) -> None:
    base = ["estimate", *PLANNED, "--tp", "8" if "sp" in short[0] else "1", "--json"]
    plans = []
    for words in (short, long):
        code, out, err = ask(*base, *words)
        assert (code, err) in ((0, ""), (4, "")), err
        plans.append(json.loads(out)["estimate"]["plan"])
    assert plans[0] == plans[1]


def test_no_example_where_the_problem_states_a_rule(ask: Any) -> None:
    said = ask("estimate", *PLANNED, "--tp", "3")[2]
    assert "--tp: 32 attention heads do not divide over tp 3\n" in said
    assert "for example" not in said


def test_words_of_the_screens_are_fields_that_are_nearest(ask: Any, tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps({**SMALL_REQUEST, "plan": {"zero": 3}}))
    assert "no field 'zero' here; did you mean zero_stage?" in ask("estimate", str(path))[2]


SMALL_REQUEST = {
    "model": "llama-3.1-8b",
    "cluster": "1x8xh100-sxm",
    "training": {"seq_length": 4096, "global_batch_size": 64},
}


def test_an_option_that_stands_twice_is_said(ask: Any) -> None:
    code, out, err = ask("estimate", *PLANNED, "--tp", "8", "--tp", "4")
    assert code == 0
    assert "tp 4" in out
    assert "note: --tp stands 2 times (8, 4): the last counts" in err
    assert ask("estimate", *PLANNED, "--tp", "4", "--tp=4")[2] == ""


def test_a_model_is_a_folder_with_a_config(ask: Any, tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    code, out, err = ask("estimate", *PLANNED[2:], "--model", str(folder), "--tp", "1", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["request"]["model"]["name"] == "odd"
    (folder / "config.json").unlink()
    said = ask("estimate", *PLANNED[2:], "--model", str(folder), "--tp", "8")[2]
    assert f"--model: no config.json in '{folder}'" in said
    (folder / "weights").write_text("x")
    said = ask("estimate", *PLANNED[2:], "--model", str(folder / "weights"), "--tp", "8")[2]
    assert "--model: '" in said
    assert "' is no config.json" in said


def test_a_card_is_found_without_its_hyphen(ask: Any) -> None:
    code, _, err = ask("estimate", *PLANNED[:2], *PLANNED[4:], "--cluster", "rtx4090", "--tp", "1")
    assert code in (0, 4), err


def test_next_leaves_out_what_the_framework_takes_by_itself(ask: Any) -> None:
    words = ["--model", "llama-3.2-1b", "--cluster", "rtx-4090", "--seq-length", "2048"]
    words += ["--global-batch-size", "16", "--lora-rank", "16", "--framework", "trl"]
    code, out, _ = ask("plan", *words)
    assert code == 0
    (why,) = (line for line in out.splitlines() if line.startswith("  planner why"))
    assert not any(f" --{name} " in why for name in ("cp-kind", "ep", "etp", "moe-dispatcher"))


def test_a_launch_of_another_model_is_a_warning(ask: Any) -> None:
    code, _, err = ask("emit", *PLANNED, "--tp", "1", "--framework", "maxtext")
    assert code == 0
    assert "warning: These files leave out facts of the model, so they train another" in err
