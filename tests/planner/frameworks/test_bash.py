"""Launch scripts read as bash would read them: compared with bash itself, and held against harm."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.frameworks.bash import Outcome, ProgramCall, arithmetic, evaluate, slurm_variables
from planner.frameworks.read_results import Unreadable
from tests.fixtures.frameworks import ALL_CASES, bundle
from tests.fixtures.tiers import examples


def launched(text: str, **files: str) -> ProgramCall:
    """The only call in a script."""
    (call,) = outcome(text, **files).launches
    return call


def outcome(text: str, **files: str) -> Outcome:
    return evaluate(
        {"x.sh": text, **{name.replace("_", "."): f for name, f in files.items()}}, "x.sh"
    )


def texts(call: ProgramCall) -> list[str]:
    return [word.text for word in (*call.before, call.program, *call.arguments)]


CALL = "torchrun pretrain_gpt.py"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        # As users write them, with what a comment, a quote or a line end may do to the words.
        ("ARGS=(\n --x 1 # why\n # --y 2\n --z '3 4'\n)\n{c} ${ARGS[@]}", "--x 1 --z 3 4"),
        ('ARGS="--x 1 \\\n --y 2"\nARGS="$ARGS --z"\n{c} $ARGS', "--x 1 --y 2 --z"),
        ('ARGS+=("--x 1")\nARGS+=(--y)\n{c} ${ARGS[*]}', "--x 1 --y"),
        ("N=$((2 * 8))\n{c} --n $N --m $[N/4]", "--n 16 --m 4"),
        ("N=8\n{c} --n $[${N}*$[N]]", "--n 64"),
        (
            "N=4\n{c} --n $(expr $N \\* 2) --m `expr ${N} + 1` --k $(expr $N / 2 - 1)",
            "--n 8 --m 5 --k 1",
        ),
        # Brackets in brackets, and those that close nothing.
        ("L=(a b c)\n{c} --l ${L[$(( 4 % ${#L[*]} ))]} --m ${L[${#L[@]}-1]}", "--l b --m c"),
        ("X=$(case $A in a) echo 1;; (b) echo 2;; esac)\n{c} --x 1", "--x 1"),
        ("X=$(\n# don't (do\ncat y)\n{c} --x 1", "--x 1"),
        ("X=$(grep case in.txt)\n{c} --x 1", "--x 1"),
        ("TP=${TP:-4}\n: ${PP:=2}\n{c} --tp $TP --pp ${PP}", "--tp 4 --pp 2"),
        ("{c} --x 1 \\\n  --y 2 # end\n", "--x 1 --y 2"),
        # A loop that starts again what stops is over with its first start.
        (
            "N=0\nr() { N=$((N + 1)); {c} --n $N; [ $? = 0 ] && return; }\nwhile true; do r; done",
            "--n 1",
        ),
        (
            "while :; do\nI=$((I + 1))\nif [ $I -gt 3 ]; then break; fi\ndone\n{c} --x 1",
            "--x 1",
        ),
        # Loops that wait for a program, or read on, are followed once.
        (
            "while kill -0 $PID; do nvidia-smi | while read -r l; do sleep 1; done; done\n"
            "{c} --x 1",
            "--x 1",
        ),
        (
            "SIZE=7B\nif [[ $SIZE == 7B ]]; then L=32\nelif true; then L=40; fi\n{c} $L",
            "32",
        ),
        ("case $1 in big) L=80 ;; *) L=32 ;; esac\n{c} $L", "32"),
        ("if [ -z $NNODES ]; then NNODES=2; fi\n{c} $NNODES", "2"),
        ("while [[ $# -gt 0 ]]; do shift; done\n{c} --x", "--x"),
        ('if [ $# -lt 1 ]; then\n echo "usage: $0 DATA"\n exit 1\nfi\n{c} --x', "--x"),
        ("[ -f data.bin ] || exit 1\n{c} --x", "--x"),
        ("mkdir -p out && cd out && {c} --x", "--x"),
        ("{c} --x 2>&1 | tee log", "--x"),
        ('CMD="{c} --x 1"\neval $CMD', "--x 1"),
        ('CMD="{c} --x 1"\n$CMD --y', "--x 1 --y"),
        ('srun -N 2 bash -c "cd /x && {c} --x 1"', "--x 1"),
        # A shell's text is given what follows it; the first is its name.
        ("bash -c '{c} \"$@\"' start --x 1", "--x 1"),
        ("set -- --y 2\nbash -c '{c} --x \"$@\"'", "--x"),
        ("pdsh -w node[0-3] 'cd /x; {c} --x 1'", "--x 1"),
        ("run() { {c} --n $1; }\nrun 5", "--n 5"),
        ("for a in 1; do {c} --n $a; done", "--n 1"),
        ('( A=1; {c} --n "$A" )', "--n 1"),
        ("A=1\n( A=2 )\n{c} $A", "1"),
        ("{c} --freq [0]*3+[1]*2", "--freq [0]*3+[1]*2"),
        ("X=1 {c} --n ${X:-unset}", "--n unset"),
        (
            'D=Fp8\n{c} --low ${D,,} --high "${D^^}_X" --open ${E,,}',
            "--low fp8 --high FP8_X --open ${E,,}",
        ),
        ('{c} --x "$@"', "--x"),
        ("A=limo-1k\nif echo $A | grep -q -- limo; then B=2; else B=1; fi\n{c} $B", "2"),
        ("A=math\nif ! echo $A | grep -qi LIMO; then B=2; else B=1; fi\n{c} $B", "2"),
        ("N=8\nwhile getopts 'n:v' o; do case $o in n) N=$OPTARG ;; esac; done\n{c} $N", "8"),
        ("f() { while getopts n:v o; do [ $o = n ] && N=$OPTARG; done; }\nf -v -n 4\n{c} $N", "4"),
        ("cat <<'E' >/dev/null\n{c} --no $(x\nE\n{c} --yes", "--yes"),
    ],
)
def test_scripts_as_users_write_them(script: str, words: str) -> None:
    call = launched(script.replace("{c}", CALL))
    assert texts(call)[-len(words.split()) :] == words.split()
    assert call.program.text == "pretrain_gpt.py"


@pytest.mark.parametrize(
    ("call", "launcher"),
    [
        ("torchrun --nproc_per_node 8 x.py --a", "torchrun"),
        ("python -m torch.distributed.run --nproc_per_node 8 x.py --a", "torchrun"),
        ("python3 -u -m torch.distributed.launch x.py --a", "torchrun"),
        ("deepspeed --num_gpus 8 x.py --a", "deepspeed"),
        ("python -m deepspeed.launcher.runner x.py --a", "deepspeed"),
        ("srun python -u x.py --a", "python"),
        ("torchrun -m pkg.x.py --a", "torchrun"),
        ("nsys profile -o out python x.py --a", "python"),
        ("site-launch x.py --a --per_device_train_batch_size=1", ""),
    ],
)
def test_launchers(call: str, launcher: str) -> None:
    found = launched(call)
    assert (found.launcher, found.program.text[-4:], found.arguments[0].text) == (
        launcher,
        "x.py",
        "--a",
    )


def test_a_console_command_in_a_container() -> None:
    call = "apptainer run --nv -B /a:/b --env A=1 run.sif llamafactory-cli train run.yaml"
    assert launched(call).arguments[0].text == "run.yaml"


def test_what_only_running_could_tell_is_unknown_and_reads_as_written() -> None:
    call = launched(
        f'A=$(nproc)\nB="x-$A"\n{CALL} --a $A --b $B --c `nproc` --d $HOSTNAME --e $((A+1))'
    )
    values = call.arguments[1::2]
    assert [value.text for value in values] == [
        "$(nproc)",
        "x-$(nproc)",
        "`nproc`",
        "$HOSTNAME",
        "$((A+1))",
    ]
    assert not any(value.known for value in values)
    assert all(name.known for name in call.arguments[::2])


def test_every_word_keeps_its_line_through_variables_arrays_and_nested_shells() -> None:
    script = (
        "TP=8\n"  # 1
        "ARGS=(\n --tp $TP\n --pp 4  # stages\n)\n"  # 2 to 5
        'OLD="--x 1 \\\n --y 2"\n'  # 6, 7
        'CMD="\ntorchrun pretrain_gpt.py ${ARGS[@]} $OLD"\n'  # 8, 9
        'srun bash -c "$CMD"\n'
    )
    lines = {word.text: word.line for word in launched(script).arguments}
    assert lines == {"--tp": 3, "8": 1, "--pp": 4, "4": 4, "--x": 6, "1": 6, "--y": 7, "2": 7}


def test_slurm_says_nodes_and_processes() -> None:
    script = (
        "#SBATCH --nodes=16 --gpus-per-node=h100:8\n#SBATCH --ntasks-per-node 1 # one\n"
        f"{CALL} $SLURM_NNODES $SLURM_JOB_NUM_NODES $SLURM_GPUS_PER_NODE ${{SLURM_NTASKS}}\n"
    )
    call = launched(script)
    assert texts(call)[2:] == ["16", "16", "8", "16"]
    assert slurm_variables(call.slurm)["SLURM_NTASKS_PER_NODE"] == 1
    call = launched(f"#SBATCH -N4\n#SBATCH --gres=gpu:4\n{CALL} $SLURM_GPUS_ON_NODE")
    assert texts(call)[2:] == ["4"]


def test_of_an_array_of_jobs_the_first_is_read() -> None:
    script = f"#SBATCH --array=1-3%2\nALL=(a b c)\n{CALL} ${{ALL[$SLURM_ARRAY_TASK_ID]}}\n"
    assert texts(launched(script))[2:] == ["b"]
    assert "SLURM_NNODES" not in slurm_variables(launched(script).slurm)


def test_a_job_in_a_here_document_is_read_with_its_own_slurm_lines() -> None:
    script = (
        "TP=4\nsbatch <<EOF\n#!/bin/bash\n#SBATCH --nodes=2\n"
        f"srun {CALL} --tp $TP \\$SLURM_NNODES\nEOF\n"
    )
    call = launched(script)
    assert [word.text for word in call.arguments] == ["--tp", "4", "2"]


def test_files_written_by_the_script_are_at_hand() -> None:
    script = (
        "Z=3\ncat <<EOT > conf/ds.json\n{\"stage\": $Z}\nEOT\ncat > raw.json <<'EOT'\n$Z\nEOT\n"
    )
    done = outcome(script)
    assert done.files == {"ds.json": '{"stage": 3}\n', "raw.json": "$Z\n"}
    assert done.places == {"ds.json": ("x.sh", 3), "raw.json": ("x.sh", 6)}


def test_other_scripts_are_followed_where_they_are_at_hand() -> None:
    script = 'TP=2\nsource ./conf.sh\n. gone.sh\nexport TP\nbash train.sh "$PP" 7\n'
    train = "torchrun pretrain_gpt.py --tp $TP --pp $1 --last $2 $PP"
    done = evaluate({"x.sh": script, "conf.sh": "PP=4\nreturn\nPP=5", "train.sh": train}, "x.sh")
    (call,) = done.launches
    assert [word.text for word in call.arguments] == [
        "--tp",
        "2",
        "--pp",
        "4",
        "--last",
        "7",
        "$PP",
    ]
    assert {word.file for word in call.arguments} == {"train.sh"}
    assert done.notes == ["x.sh:3: gone.sh is not among the given files and was not read"]


COUNTED = [
    (
        "a=(); for ((i=0; i<4; i++)); do if ((i < 2)); then a+=(0); else a+=(1); fi; done\n",
        "${a[*]}",
        ["0", "0", "1", "1"],
    ),
    (
        "L='['; for ((i=0;i<3;i++)); do L+=$i; if [ $i -lt 2 ]; then L+=,; fi; done; L+=']'\n",
        "$L",
        ["[0,1,2]"],
    ),
    ("a=(0 1); printf -v F '[%s]' \"$(IFS=', '; echo \"${a[*]}\")\"\n", "$F", ["[0,1]"]),
    ("i=0; while ((i < 5)); do ((i += 2)); let k=i*3; done\n", "$i $k", ["6", "18"]),
    (
        "for ((;;)); do z=1; break; done; ((n = 3, m = n * 4, n++))\n",
        "$z $n $m",
        ["1", "4", "12"],
    ),
    ("S=; for i in {1..3}; do S=$S$i; done\n", "$S", ["123"]),
    ("", "[$(printf '0,%.0s' $(seq 1 3))1]", ["[0,0,0,1]"]),
    ("for i in $(seq 2 4); do L=$i; done; D=$(dirname /a/b.json)\n", "$L $D", ["4", "/a"]),
    ("", "$(basename /m/llama-7b.json .json)", ["llama-7b"]),
    ("A=$(which swift); B=$(command -v torchrun)\n", "$A $B", ["swift", "torchrun"]),
    ("read -r -d '' A <<EOF\n--a 1 \\\n  --b 2\nEOF\n", "$A", ["--a", "1", "--b", "2"]),
]


@pytest.mark.parametrize(("script", "words", "expected"), COUNTED)
def test_loops_that_count_and_texts_that_are_printed(
    script: str, words: str, expected: list[str]
) -> None:
    call = launched(f"{script}torchrun pretrain_gpt.py {words}\n")
    assert [word.text for word in call.arguments] == expected


@pytest.mark.parametrize(
    "loop",
    [
        "for ((i=0; i<$UNSET; i++)); do A=1; done",
        "for ((i=0; i<100000; i++)); do A=$i; done",
        "select one in a b; do A=$one; done",
    ],
)
def test_what_a_loop_sets_that_is_not_followed_is_unknown(loop: str) -> None:
    call = launched(f"A=0\n{loop}\ntorchrun pretrain_gpt.py --tp $A\n")
    assert [word.text for word in call.arguments] == ["--tp", "$A"]


def test_scripts_that_are_not_at_hand_are_named() -> None:
    done = outcome('R=/repo\nsource env.sh\nTP=4 bash "$R/scripts/run.sh" x\nsbatch job.slurm\n')
    assert done.missing == ["env.sh", "/repo/scripts/run.sh", "job.slurm"]


def test_what_was_assumed_is_said() -> None:
    notes = outcome(
        "A=${MASTER_PORT:-1}\n[ -f x ] && B=1\nselect i in a b; do :; done\n"
        "[ $# -gt 0 ] || exit 1\nif [ $1 = big ]; then B=2; fi\n[ -z $C ] && C=1"
    ).notes
    assert [note.partition(": ")[2] for note in notes] == [
        "whether [ -f x ] holds is not known: taken as false",
        "this loop is not followed",
        "the check that would end the script here is taken to pass",
        "$1 is not given: this test is taken as without it",
        "MASTER_PORT",
    ]


HOSTILE = [
    "touch pwned; $(touch pwned) `touch pwned` > pwned; eval 'touch pwned'; bash -c 'touch pwned'",
    "cat <<E > pwned\n$(touch pwned)\nE\n" + CALL,
    "A=xx\n" + "A=$A$A\n" * 60,
    "R=(a)\n" + 'R+=("${R[@]}" "${R[@]}")\n' * 60,
    "A=\n" + "A+=x\n" * 10_000,
    "f() { f; }\nf",
    "".join(f"f{i}() {{ f{i + 1}; f{i + 1}; }}\n" for i in range(40)) + "f0",
    "while true; do while true; do A+=x; done; done",
    "source x.sh",
    "bash x.sh & bash x.sh",
    'A=\'eval "$A"\'\neval "$A"',
    "${A:-" * 20_000,
    '"$((' * 20_000,
    "if " * 20_000,
    "[[ " + "( " * 20_000,
    "A=$((" + "(" * 5_000 + "1" + ")" * 5_000 + "))\nB=$((9**9**9**9))\nC=$((1 << 9999999))",
    "{," * 60_000,
    "case " + "a" * 4_000 + " in " + "*a" * 2_000 + ") ;; esac",
    "'" * 99_999,
    "#" * 300_000,
]


@pytest.mark.parametrize("script", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_scripts_end_and_do_nothing(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with suppress(Unreadable):
        outcome(script)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("A=1\n'", 2),
        ("if true\nthen x", 1),
        ("A=(1\n2", 1),
        ("x\ny )", 2),
        ("A=<\n", 1),
        ("a &&& b", 1),
    ],
)
def test_what_is_no_bash_is_refused_with_its_line(script: str, line: int) -> None:
    with pytest.raises(Unreadable) as caught:
        outcome(script)
    assert caught.value.line == line


SCRIPTS = [
    bundle(name, case).files["launch.sh"]
    for name, case in ALL_CASES
    if name in ("megatron", "deepspeed")
]
PIECES = re.findall(
    r"\S+",
    "$ { } ( ) [ ] ' \" ` \\ ; & | < > = # ! * 1 A $( $(( )) ${ ${A:- ${A[@]} [[ ]] <<E ;; if then "
    "fi do done while for in case esac f() eval break return exit x.py torchrun {a,b} $' \x00",
)
TOKENS = st.sampled_from([*PIECES, "\nE\n", "\U000f0001"])


@settings(max_examples=examples(150), deadline=None)
@given(tokens=st.lists(TOKENS, max_size=25), glue=st.sampled_from(["", " ", "\n"]))
@example(tokens=["break"], glue="")
@example(tokens=["return"], glue="")
def test_any_text_is_read_or_refused(tokens: list[str], glue: str) -> None:
    with suppress(Unreadable):
        outcome(glue.join(tokens))


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_any_damage_to_a_script_is_read_or_refused(data: st.DataObject) -> None:
    script = data.draw(st.sampled_from(SCRIPTS))
    at = data.draw(st.integers(0, len(script)))
    damaged = script[:at] + data.draw(TOKENS) + script[at + data.draw(st.integers(0, 40)) :]
    with suppress(Unreadable):
        outcome(damaged)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2 + 3 * 4", 14),
        ("(2 + 3) * 4", 20),
        ("-7 / 2", -3),
        ("-7 % 3", -1),
        ("2 ** 3 * 2", 16),
        ("1 ? 2 : 3", 2),
        ("010 + 0x10", 24),
        ("N * 2 >= 6 && !0", 1),
        ("9223372036854775807 + 1", -(2**63)),
        ("1 / 0", None),
        ("unset + 1", None),
        ("N = 4", None),
        ("1 +", None),
        ("", 0),
    ],
)
def test_arithmetic(text: str, number: int | None) -> None:
    assert arithmetic.evaluate(text, {"N": 3}.get) == number


def test_a_script_finds_what_lies_beside_it() -> None:
    found = launched(
        'HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" >/dev/null 2>&1 ; pwd -P)"\n'
        'ROOT="$(cd "$HERE/.." && pwd)"\n'
        f'{CALL} --a "$HERE/a.yaml" --b "$ROOT/b.yaml" --c $(dirname $(readlink -f "$0"))/c.yaml'
    )
    assert texts(found)[2:] == ["--a", "./a.yaml", "--b", "./../b.yaml", "--c", "./c.yaml"]


def test_the_first_node_is_followed() -> None:
    script = f"if [ $NODE_RANK == 0 ]; then\n{CALL} --x 1\nelse\nray start\nfi\n"
    assert texts(launched(script))[2:] == ["--x", "1"]
    script = f'if [[ "$SLURM_PROCID" -eq 0 ]]; then {CALL} --x 2; else sleep 1; fi\n'
    assert texts(launched(script))[2:] == ["--x", "2"]


def test_a_script_that_is_written_with_a_long_substitution_is_parsed() -> None:
    long = "$(find $DATA -type f | sed -E 's/[.][^.]+$//' | sort -u | tr '\\n' ' ' | head -c 100)"
    text = f"PATHS={long}\ncat > job.sh <<- END\n{CALL} --data $PATHS --x 1\nEND\nbash job.sh\n"
    assert texts(launched(text))[-2:] == ["--x", "1"]


def test_a_guard_of_the_main_script_holds() -> None:
    guarded = f'run() {{ {CALL} --x 1; }}\nif [[ "${{BASH_SOURCE[0]}}" == "$0" ]]; then run; fi\n'
    assert texts(launched(guarded))[2:] == ["--x", "1"]
    sourced = outcome(f"source other.sh\n{CALL} --x 2", other_sh=guarded)
    assert [texts(one)[2:] for one in sourced.launches] == [["--x", "2"]]
