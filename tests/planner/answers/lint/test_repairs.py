"""What `lint` offers and `--fix` writes: scripts that run, in the words of their framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.answers.lint import fixes
from planner.answers.lint.findings import FlagChange, LintAnswer
from planner.answers.lint.lint import lint
from planner.inputs.requests.parser import parse_cluster

CLUSTER = "4x8xa100-sxm-80gb"
SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP={tp}
PP={pp}
SEQ=4096
torchrun --nnodes 4 --nproc_per_node 8 pretrain_gpt.py \\
  --num-layers 40 --hidden-size 5120 --num-attention-heads 40 --ffn-hidden-size 13824 \\
  --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm \\
  --position-embedding-type rope --disable-bias-linear --bf16 \\
  --untie-embeddings-and-output-weights --vocab-size 32000 --use-flash-attn \\
  --seq-length $SEQ --max-position-embeddings $SEQ --micro-batch-size 4 \\
  --global-batch-size 1024 --use-distributed-optimizer --overlap-grad-reduce \\
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP {more} \\
  --overlap-param-gather
"""


def script(pp: int, more: str = "--sequence-parallel") -> str:
    return SCRIPT.format(tp=4, pp=pp, more=more)


def judged(text: str) -> LintAnswer:
    return lint({"run.sh": text}, parse_cluster(CLUSTER))


def errors(answer: LintAnswer) -> list[str]:
    return [one.code for one in answer.findings if one.severity == "error"]


def test_layers_that_do_not_divide_are_mended_by_what_the_script_says() -> None:
    """The plan as it is cannot be written; its pipeline still stands in the script."""
    text = script(pp=3)
    answer = judged(text)
    assert {"layers_not_divisible", "world_size"} <= set(errors(answer))
    assert answer.mended is not None
    assert answer.mended.report.plan.pp == 1
    assert [(one.option, one.before, one.after) for one in answer.mended.changes] == [
        ("--pipeline-model-parallel-size", "3", "1")
    ]
    assert not errors(judged(answer.mended.files["run.sh"]))


def test_the_assignment_of_a_variable_is_changed_where_it_says_one_option() -> None:
    answer = judged(script(pp=3))
    assert answer.mended is not None
    assert answer.mended.files["run.sh"] == script(pp=1)


def test_a_variable_of_two_options_keeps_its_assignment() -> None:
    """As the size of stages too it would change what is not to change."""
    text = script(pp=3).replace("--micro-batch-size 4", "--micro-batch-size $PP")
    text = text.replace("--global-batch-size 1024", "--global-batch-size 1536")
    answer = judged(text)
    assert answer.mended is not None
    assert {one.option for one in answer.mended.changes} == {"--pipeline-model-parallel-size"}
    written = answer.mended.files["run.sh"]
    assert "PP=3\n" in written
    assert "--pipeline-model-parallel-size 1 " in written


@pytest.mark.parametrize(
    ("assignment", "wanted"),
    [
        ("TP=4", "TP=8"),
        ("export TP='4'  # ranks", "export TP='8'  # ranks"),
        ("TP=${TP:-4}", "TP=${TP:-8}"),
        ("TP=${1:-4}; PP=2", "TP=${1:-8}; PP=2"),
        ("TP=4\nTP=2", None),
        ("TP=$((2 * 2))", None),
        ("for TP in 4; do", None),
    ],
)
def test_one_assignment(assignment: str, wanted: str | None) -> None:
    lines = assignment.count("\n") + 2
    change = FlagChange(option="--tp", before="4", after="8", why="", file="a.sh", line=lines)
    found = fixes.fixed_files({"a.sh": f"{assignment}\nx --tp $TP"}, [change], by_variable=True)
    said = f"{wanted}\nx --tp $TP" if wanted else f"{assignment}\nx --tp 8"
    assert found.files["a.sh"] == said


def test_a_variable_that_is_read_no_more_goes_with_its_option() -> None:
    change = FlagChange(option="--pp", before="3", after=None, why="", file="a.sh", line=3)
    text = "PP=3\nTP=4\n--pp $PP \\\n--tp $TP"
    assert fixes.fixed_files({"a.sh": text}, [change]).files["a.sh"] == "TP=4\n--tp $TP"
    text = "PP=3\necho $PP\n--pp $PP"
    assert fixes.fixed_files({"a.sh": text}, [change]).files["a.sh"] == "PP=3\necho $PP"


def test_a_misspelled_option_that_means_one_is_corrected() -> None:
    answer = judged(script(pp=2, more="--sequence-paralell"))
    assert errors(answer) == ["unknown_option"]
    assert answer.mended is not None
    assert answer.mended.report.plan.sequence_parallel
    assert [(one.misspelled, one.option) for one in answer.mended.changes] == [
        ("--sequence-paralell", "--sequence-parallel")
    ]
    assert answer.mended.files["run.sh"] == script(pp=2)
    assert not answer.mended.stays
    assert answer.best is None or not answer.best.stays


def test_a_misspelling_and_a_plan_are_mended_together() -> None:
    answer = judged(script(pp=3, more="--sequence-paralell"))
    assert answer.mended is not None
    assert len(answer.mended.changes) == 2
    assert answer.mended.files["run.sh"] == script(pp=1)


def test_an_error_that_no_plan_mends_is_said_and_left(ask: Any, tmp_path: Path) -> None:
    """A value that the parser refuses stays: the plan alone is mended."""
    path = tmp_path / "run.sh"
    path.write_text(script(pp=3, more="--sequence-parallel --lr-decay-style cosin"))
    code, out, said = ask("lint", str(path), "--cluster", CLUSTER, "--fix")
    assert code == 4
    assert "Fewest changes to the plan; 1 error stays" in out
    assert f"changed: {path}" in said
    assert "left: framework_unsupported run.sh:13 --lr-decay-style" in said
    assert "PP=1\n" in path.read_text()


def test_nothing_to_change_is_said(ask: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    answer = judged(script(pp=2))
    better = fixes.change_to_write(answer)
    assert better is not None
    path.write_text(better.files["run.sh"])
    _, _, said = ask("lint", str(path), "--cluster", CLUSTER, "--fix")
    assert "nothing is changed" in said
    assert path.read_text() == better.files["run.sh"]


def test_errors_of_a_script_name_its_options(ask: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(script(pp=3))
    _, out, _ = ask("lint", str(path), "--cluster", CLUSTER)
    assert (
        "give --decoder-first-pipeline-num-layers / --decoder-last-pipeline-num-layers, or a "
        "--pipeline-model-parallel-size that divides 40: 1, 2, 4, 8"
    ) in " ".join(out.split())
    assert "stage_layers" not in out
    found = judged(script(pp=2, more="").replace("size 1024", "size 1022"))
    (batch,) = [one for one in found.findings if one.code == "batch_identity"]
    assert "--global-batch-size 1022 is not a multiple of dp 4 x --micro-batch-size 4" in batch.text
