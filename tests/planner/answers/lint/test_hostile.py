"""Scripts of strangers: nothing of them runs, and whatever they hold ends in a clear answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.answers.lint.lint import found_in
from planner.documents.problems import RequestError
from planner.frameworks.sources import MOST_BYTES
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.call_bound import bounded_work
from tests.fixtures.tiers import examples
from tests.planner.answers.lint.test_scripts import SCRIPTS

CLUSTER = parse_cluster("1x8xh100-sxm")
TRAIN = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 "
    "--num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 --vocab-size 1000 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 --train-iters 1 --lr 1e-4 "
    "--use-distributed-optimizer"
)
# What would write the canary if anything of it ran.
RUNS: dict[str, str] = {
    "command": "touch {canary}",
    "substitution": "A=$(touch {canary})",
    "backticks": "A=`touch {canary}`",
    "nested": 'A="$(echo "$(touch {canary})")"',
    "in an argument": "torchrun $(touch {canary}) x.py",
    "in arithmetic": "A=$((x[$(touch {canary})]))",
    "in a default": "A=${{B:-$(touch {canary})}}",
    "eval": "eval 'touch {canary}'",
    "source": "source <(echo touch {canary})",
    "here-doc to bash": "bash <<EOT\ntouch {canary}\nEOT",
    "here-doc expands": "cat <<EOT > x.json\n$(touch {canary})\nEOT",
    "here-string": "bash <<< 'touch {canary}'",
    "bash -c": "bash -c 'touch {canary}'",
    "python": 'python3 -c \'open("{canary}", "w")\'',
    "process substitution": "cat <(touch {canary})",
    "trap": "trap 'touch {canary}' EXIT DEBUG ERR",
    "prompt": "PS4='$(touch {canary})'; set -x",
    "function named as a launcher": "torchrun() {{ touch {canary}; }}",
    "redirect": "echo x > {canary}",
    "exec": "exec 3> {canary}",
    "alias": "alias torchrun='touch {canary}'\nshopt -s expand_aliases",
    "environment": "export BASH_ENV={canary} LD_PRELOAD={canary}",
    "coprocess": "coproc touch {canary}",
    "background": "touch {canary} &",
    "glob": "for f in /*; do touch {canary}; done",
    "mapfile": "mapfile -t A < <(touch {canary}; echo 1)",
    "printf -v": "printf -v 'A[$(touch {canary})]' x",
    "test": "[[ -v 'A[$(touch {canary})]' ]]",
    "indirect": "B='$(touch {canary})'; A=${{!B}}; C=${{B@P}}",
    "an option": "OPTIONS='--lr $(touch {canary})'",
}
HEAVY: dict[str, str] = {
    "fork bomb": ":(){ :|:& };:",
    "endless loop": "while true; do :; done",
    "endless doubling": "A=xx\nwhile :; do A=$A$A; done",
    "doubling written out": "A=xxxxxxxxxx\n" + "A=$A$A$A$A$A$A$A$A\n" * 40,
    "recursion": "f() { f; f; }\nf",
    "itself": 'source "$0"\nbash "$0"',
    "recursive variables": "A='$A$A'\nB=$A$B$C\neval B=$B",
    "braces": "A=({1..1000000000})",
    "nested braces": "echo " + "{a,b}" * 60,
    "arithmetic": "A=$((9**9**9**9))\nB=$((1/0))\nC=$((1<<999999999))",
    "for": "for ((i=0;i<1000000000;i++)); do A+=x; done",
    "seq": "for i in $(seq 1000000000); do A+=x; done",
    "depth": "A=" + "$(" * 2000 + ")" * 2000,
    "parentheses": "A=$((" + "(" * 5000 + "1" + ")" * 5000 + "))",
    "ifs": "if true; then " * 3000 + "fi;" * 3000,
    "quotes": "'" * 9999,
    "long line": "A=" + "x" * 200_000,
    "many lines": "A=$A\n" * 2_000,
    "many options": "B='" + "--no-such-option 1 " * 300 + "'",
    "remove": "rm -rf / --no-preserve-root",
}
LONG = ("doubling written out", "many options")
LIMIT = 60_000_000  # calls: what would run for ever makes more


@pytest.mark.one_in(2)
@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("line", RUNS.values(), ids=RUNS)
def test_nothing_runs(ask: Any, tmp_path: Path, line: str, where: str) -> None:
    canary = tmp_path / "canary"
    text = line.format(canary=canary)
    lines = [text, TRAIN] if where == "before" else [TRAIN, text]
    script = tmp_path / "run.sh"
    script.write_text("\n".join(["#!/bin/bash", *lines, ""]))
    before = sorted(tmp_path.iterdir())
    code, _, err = ask("read", str(script), "--cluster", "1x8xh100-sxm")
    assert code in (0, 2), err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.exhaustive if n in LONG else ()) for n in HEAVY]
)
def test_work_is_bounded(ask: Any, tmp_path: Path, name: str) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/bash\n{HEAVY[name]}\n{TRAIN} $A $B $C\n")
    with bounded_work(LIMIT):
        code, out, err = ask("read", str(script), "--cluster", "1x8xh100-sxm", "--json")
    assert code in (0, 2), err
    if code == 2:
        assert '"detail"' in out


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no launch of a framework"),
        (b"\x00", "zero byte"),
        (b"#!/bin/bash\nA=1\n\x00\n", "line 3 has a zero byte"),
        (b"\xff\xfe\x00x", "is not UTF-8 text"),
        (b"\x7fELF\x02\x01\x01" + bytes(range(128, 256)), "is not UTF-8 text"),
        (b"A=" + b"x" * 10_000_000, f"at most {MOST_BYTES:,} bytes"),
        ("\u202e\u2028\ud7ff é 漢字 \U0001f4a5\n".encode(), "no launch of a framework"),
        (b"{" * 100_000, "no launch of a framework"),
    ],
)
def test_what_is_no_script_is_refused(ask: Any, tmp_path: Path, data: bytes, says: str) -> None:
    script = tmp_path / "run.sh"
    script.write_bytes(data)
    for command in ("lint", "read"):
        with bounded_work(LIMIT):
            code, out, err = ask(command, str(script), "--cluster", "1x8xh100-sxm")
        assert code == 2
        assert out == ""
        assert says in err
        assert len(err) < 2000


def test_signs_of_a_terminal_do_not_reach_it(ask: Any, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"{TRAIN} --no-such-\x1b[31moption\x07 $'\\e]0;title\\a'\n")
    for command in ("lint", "read"):
        _, out, err = ask(command, str(script), "--cluster", "1x8xh100-sxm")
        assert not {"\x1b", "\x07"} & set(out + err)


def test_windows_line_ends_are_read(ask: Any, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_bytes((SCRIPTS / "gpt3_175b.sh").read_bytes().replace(b"\n", b"\r\n"))
    assert ask("read", str(script), "--cluster", "16x8xh100-sxm")[0] == 0


TEXTS = [path.read_text() for path in sorted(SCRIPTS.glob("*.sh"))]
WORDS = ("0", "-1", "3", "10" * 20, "", "$X", "'", "(", "\\", "nan", "é", "$(id)", "--fp16", "full")


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_scripts_are_linted_or_refused(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(TEXTS), label="script")
    words = text.split(" ")
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(words) - 1))
        words[place] = data.draw(st.sampled_from(WORDS) | st.text(max_size=5))
    try:
        case, findings = found_in({"run.sh": " ".join(words)}, CLUSTER)
    except RequestError:
        return
    assert case.own is not None or findings
