"""`planner lint` and `planner read`: documents, screens, exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from cost_models.plans import ParallelPlan
from planner.answers.lint.findings import CODES, LintAnswer, ReadAnswer
from planner.frameworks import FRAMEWORKS
from planner.inputs.requests.parser import parse_request
from planner.presentation.terminal.lint_screen import lint_screen
from tests.planner.answers.lint.test_scripts import PLANTED, SCRIPTS, linted

QUIET = ("qwen_7b", "4x8xh100-sxm")


def script(name: str) -> str:
    return str(SCRIPTS / f"{name}.sh")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "verdict", "code"),
    [
        ("qwen_7b", "fine", 0),
        ("gpt3_175b", "improvable", 0),
        ("gpt_345m", "improvable", 0),
        ("llama2_70b", "improvable", 0),
        ("out_of_memory", "does not fit", 4),
        ("branches", "refused", 4),
        ("gather_alone", "refused", 4),
        ("llama3_8b", "refused", 4),
    ],
)
def test_the_document_and_the_exit_code(ask: Any, name: str, verdict: str, code: int) -> None:
    cluster = PLANTED[name][0]
    if not isinstance(cluster, str):
        cluster = "1x6xh100-sxm"
    exit_code, out, _ = ask("lint", script(name), "--cluster", cluster, "--json")
    answer = LintAnswer.model_validate_json(out)
    assert (answer.verdict, exit_code) == (verdict, code)
    if verdict == "improvable":
        assert answer.best is not None
        assert answer.gain is not None
        assert answer.gain.speedup > 1
        assert answer.estimate is not None
        own, other = answer.estimate.iteration_time_s, answer.best.report.iteration_time_s
        assert answer.gain.speedup == pytest.approx(own / other)
        assert answer.gain.inside_error == (answer.gain.chance < 0.95)
        assert answer.gain.low < answer.gain.high
        assert answer.mended is None
    if verdict == "refused" and answer.estimate is None:
        assert answer.mended is not None
    if name == "out_of_memory":
        assert answer.nearest[0].changes
    # What was linted can be asked again.
    assert parse_request(answer.request, need_plan=True).plan is not None


def test_the_screen_says_the_verdict_first_and_fits_one(ask: Any) -> None:
    code, out, _ = ask("lint", script("llama3_8b"), "--cluster", "2x8xh100-sxm")
    assert code == 4
    lines = out.splitlines()
    assert lines[0].startswith("llama3_8b.sh will not run · 1 error, 1 warning")
    heads = [line for line in lines if line in ("Errors", "Warnings", "As it is", "Better plan")]
    assert heads == ["Errors", "Warnings", "As it is", "Better plan"]
    for words in (
        "environment  llama3_8b.sh:26  CUDA_DEVICE_MAX_CONNECTIONS",
        "recompute_needless  llama3_8b.sh:24  --recompute-granularity",
        "~ --tensor-model-parallel-size 2 -> 1",
        "+ --use-megatron-fsdp",
        "tokens/s",
        "GiB",
        "x faster",
        "likely to be faster",
    ):
        assert words in out, words
    assert len(lines) <= 60


@pytest.mark.parametrize(
    ("name", "cluster", "measure"),
    [("gpt_345m", "1x8xa100-sxm", True), ("gpt3_175b", "16x8xh100-sxm", False)],
)
def test_a_gain_inside_the_error_is_said_to_be(
    ask: Any, name: str, cluster: str, measure: bool
) -> None:
    _, out, _ = ask("lint", script(name), "--cluster", cluster)
    assert "x faster," in out
    assert ("measure both" in out) == measure


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(ask: Any, width: int) -> None:
    _, out, _ = ask("lint", script("hand_split"), "--cluster", "8x8xh100-sxm", "--json")
    answer = LintAnswer.model_validate_json(out)
    console = Console(width=width, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(lint_screen(answer, 7e10, "hand_split.sh", console))
    assert all(len(line) <= width for line in console.export_text().splitlines())


def test_a_script_of_another_size_is_said(ask: Any) -> None:
    for cluster, severity, code in (("4x8xh100-sxm", "warning", 0), ("1x8xh100-sxm", "error", 4)):
        exit_code, out, _ = ask(
            "lint", script("no_overlap"), "--cluster", cluster.replace("4x", "16x"), "--json"
        )
        answer = LintAnswer.model_validate_json(out)
        (size,) = [one for one in answer.findings if one.code == "world_size"]
        assert (size.severity, size.line, exit_code) == (severity, 4, code)
        assert answer.request["cluster"]["groups"][0]["nodes"] == 8  # priced as the script is


@pytest.mark.parametrize(("name", "cluster"), [QUIET, ("mixtral_8x7b", "4x8xh100-sxm")])
def test_what_is_read_can_be_estimated(ask: Any, name: str, cluster: str, tmp_path: Path) -> None:
    code, out, _ = ask("read", script(name), "--cluster", cluster)
    assert code == 0
    document = yaml.safe_load(out)
    case, _ = linted(name)
    request = parse_request(document, need_plan=True)
    assert request.plan == case.plan
    assert request.model == case.model
    assert request.training == case.training
    assert ("# unknown: --moe-grouped-gem (mixtral_8x7b.sh:46)" in out) == (name != "qwen_7b")
    assert "# assumed: " in out
    file = tmp_path / "request.yaml"
    file.write_text(out)
    code, out, err = ask("estimate", str(file), "--json")
    if name == "qwen_7b":
        assert code == 0
        assert json.loads(out)["estimate"]["iteration_time_s"] == case.own.iteration_time_s  # type: ignore[union-attr]
    else:
        assert code == 2
        assert "sequence_parallel" in out + err


def test_a_script_is_read_without_a_cluster_where_it_says_its_size(ask: Any) -> None:
    code, out, _ = ask("read", script("gpt3_175b"), "--json")
    answer = ReadAnswer.model_validate_json(out)
    assert (code, answer.framework, answer.nodes) == (0, "megatron", 16)
    assert "cluster" not in answer.request
    assert ParallelPlan(**answer.request["plan"]).pp == 8
    code, out, err = ask("read", script("exposed"))  # --nproc-per-node=gpu
    assert code == 2
    assert "give a cluster" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["lint"], "Missing argument"),
        (["lint", script("qwen_7b")], "--cluster"),
        (["lint", script("qwen_7b"), "--cluster", "9x9xtoaster"], "toaster"),
        (["lint", script("qwen_7b"), "--cluster", ""], "cluster"),
        (["lint", "no/such.sh", "--cluster", "1x8xh100-sxm"], "cannot read 'no/such.sh'"),
        (["lint", str(SCRIPTS), "--cluster", "1x8xh100-sxm"], "cannot read"),
        (
            ["lint", script("qwen_7b"), "--cluster", "1x8xh100-sxm", "--framework", "megatrn"],
            "no framework 'megatrn'; did you mean megatron",
        ),
        (
            ["lint", script("ds_3d"), "--cluster", "16x8xh100-sxm", "--framework", "megatron"],
            "not understood",
        ),
        (["lint", *[script("qwen_7b")] * 2, "--cluster", "1x8xh100-sxm"], "two files"),
        (["lint", *[script("qwen_7b")] * 33, "--cluster", "1x8xh100-sxm"], "at most 32 files"),
        (["read", str(SCRIPTS / "ds_3d.json")], "holds neither the model"),
    ],
)
def test_bad_input_is_told(ask: Any, words: list[str], says: str) -> None:
    code, out, err = ask(*words)
    assert code == 2
    assert says in out + err


def test_every_code_has_a_meaning_and_is_found_somewhere() -> None:
    found = {finding.code for name in PLANTED for finding in linted(name)[1]}
    from planner.documents.answer import REASONS

    assert set(CODES) - set(REASONS) - found == {
        "precision_unsupported",
        "not_expressible",
    }
    assert all(text and text == text.strip(".") for text in CODES.values())


def test_memory_that_may_run_out_is_a_warning_with_its_chance(ask: Any, tmp_path: Path) -> None:
    """Above what the accelerator has, and within what published peaks were off by."""
    small, large = "64 --moe-router-topk 6 --moe-ffn-hidden-size 1408", "16 --moe-router-topk 6"
    large += " --moe-ffn-hidden-size 16200"
    text = (SCRIPTS / "no_overlap.sh").read_text()
    assert small in text
    (tmp_path / "run.sh").write_text(text.replace(small, large))
    code, out, _ = ask("lint", str(tmp_path / "run.sh"), "--cluster", "8x8xh100-sxm", "--json")
    answer = LintAnswer.model_validate_json(out)
    (finding,) = [one for one in answer.findings if one.code == "memory_risk"]
    assert answer.estimate is not None
    assert not answer.estimate.fits
    assert 0.5 < answer.estimate.memory.chance_of_running_out < 0.95
    assert (finding.severity, answer.verdict, code) == ("warning", "may run out", 0)
    assert "a risk of 9" in finding.text


def test_narrow_numbers_need_their_units(ask: Any, tmp_path: Path) -> None:
    text = (SCRIPTS / "gpt_345m.sh").read_text().replace("--bf16", "--bf16 --fp8-format hybrid")
    (tmp_path / "run.sh").write_text(text)
    code, out, _ = ask("lint", str(tmp_path / "run.sh"), "--cluster", "1x8xa100-sxm", "--json")
    answer = LintAnswer.model_validate_json(out)
    (finding,) = [one for one in answer.findings if one.severity == "error"]
    assert (finding.code, finding.option) == ("precision_unsupported", "--fp8-format")
    assert (code, answer.estimate, answer.best) == (4, None, None)


def test_what_no_plan_says_is_warned_of_and_priced(ask: Any, tmp_path: Path) -> None:
    """The script runs, so a rule that its model breaks whatever the plan refuses nothing."""
    text = (
        (SCRIPTS / "deepseek_lite.sh")
        .read_text()
        .replace("--q-lora-rank 768", "--q-lora-rank 768 --window-size 1024,0")
    )
    (tmp_path / "run.sh").write_text(text)
    code, out, _ = ask("lint", str(tmp_path / "run.sh"), "--cluster", "4x8xh100-sxm", "--json")
    answer = LintAnswer.model_validate_json(out)
    (finding,) = [one for one in answer.findings if one.severity != "hint"]
    assert (finding.code, finding.severity) == ("not_expressible", "warning")
    assert "latent attention with a sliding window" in finding.text
    assert code == 0
    assert answer.estimate is not None
    assert answer.best is not None


def test_every_framework_that_reads_is_offered() -> None:
    assert {"megatron", "deepspeed"} <= set(FRAMEWORKS)


def test_what_a_script_leaves_out_is_given_on_the_line(ask: Any, tmp_path: Path) -> None:
    text = (SCRIPTS / "llama3_70b.sh").read_text()
    size = "--tensor-model-parallel-size"
    (tmp_path / "run.sh").write_text(re.sub(rf"{size} \S+", f"{size} ${{TP}}", text))
    run = str(tmp_path / "run.sh")
    code, out, _ = ask("read", run, "--cluster", "16x8xh100-sxm")
    assert code == 0
    assert "# open: --tensor-model-parallel-size is ${TP}" in out
    code, _, err = ask("lint", run, "--cluster", "16x8xh100-sxm")
    assert code == 2
    assert "--set TP=..." in err
    code, out, _ = ask("read", run, "--cluster", "16x8xh100-sxm", "--set", "TP=2", "--json")
    assert ReadAnswer.model_validate_json(out).request["plan"]["tp"] == 2
    (tmp_path / "run.sh").write_text(re.sub(rf"{size} \S+", f"{size} $2", text))
    _, out, _ = ask("read", run, "--cluster", "16x8xh100-sxm", "--json", "--", "7B", "4")
    assert ReadAnswer.model_validate_json(out).request["plan"]["tp"] == 4
    for words, says in (("TP", "NAME=VALUE"), ("TPP=2", "no file has a variable 'TPP'")):
        code, _, err = ask("read", run, "--set", words)
        assert code == 2
        assert says in err


def test_a_wrong_size_is_one_finding(ask: Any) -> None:
    for cluster in ("8x8xh100-sxm", "8x4xh100-sxm", "1x64xh100-sxm"):
        _, out, _ = ask("lint", script("gpt3_175b"), "--cluster", cluster, "--json")
        answer = LintAnswer.model_validate_json(out)
        assert [one.code for one in answer.findings if one.severity == "error"] == ["world_size"]


def test_unknown_options_are_one_line(ask: Any, tmp_path: Path) -> None:
    text = (SCRIPTS / "qwen_7b.sh").read_text().replace("--bf16", "--bf16 --my-log a --my-data b")
    (tmp_path / "run.sh").write_text(text)
    _, out, _ = ask("lint", str(tmp_path / "run.sh"), "--cluster", "4x8xh100-sxm", "--json")
    answer = LintAnswer.model_validate_json(out)
    (finding,) = [one for one in answer.findings if one.code == "unknown_option"]
    assert finding.severity == "warning"
    assert finding.text.startswith("--my-log, --my-data: unknown to Megatron-LM upstream")


TRAINER = """from datasets import load_dataset
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B")
arguments = SFTConfig(
    output_dir="out", per_device_train_batch_size=1, gradient_accumulation_steps=8, bf16=True,
    max_length=2048, packing=True, gradient_checkpointing=False,
)
SFTTrainer(model=model, args=arguments, train_dataset=load_dataset("wikitext")["train"]).train()
"""


def test_it_says_where_no_better_plan_was_searched(ask: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    words = ("lint", str(tmp_path / "train.py"), "--cluster", "1xb200")
    code, out, err = ask(*words, "--json")
    assert code == 0, err
    answer = LintAnswer.model_validate_json(out)
    assert (answer.verdict, answer.searched, answer.best) == ("fine", False, None)
    assert "no change that was tried makes it faster; not all plans were" in " ".join(
        ask(*words)[1].split()
    )
