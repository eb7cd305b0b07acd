"""Words of launch scripts, compared with what bash itself hands over."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.frameworks.read_results import Unreadable
from tests.fixtures.launches import run_script
from tests.fixtures.tiers import examples
from tests.planner.frameworks.test_bash import launched, texts

# Scripts drawn from what launch scripts are made of, each with a value that bash and we can tell.
NAMES = ("A", "B", "C")
ARRAYS = ("R", "S")
PLAIN = st.text("ab01-_=./:,+@%", min_size=1, max_size=6)
ANY = st.text("ab0 \t\n$'\"\\`*?[](){}<>|;&#!~=-", max_size=8)


def single(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def double(text: str) -> str:
    for char in '\\"$`':
        text = text.replace(char, f"\\{char}")
    return f'"{text}"'


def dollar(text: str) -> str:
    """In $'...' quotes."""
    text = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + text.replace("\n", "\\n").replace("\t", "\\t") + "'"


@st.composite
def quoted_pieces(draw: st.DrawFn) -> str:
    """Expansions between double quotes."""
    return '"' + "".join(draw(st.lists(PLAIN | expansions(), max_size=3))) + '"'


def expansions() -> st.SearchStrategy[str]:
    name, array = st.sampled_from(NAMES), st.sampled_from(ARRAYS)
    number = st.integers(0, 3)
    return st.one_of(
        name.map(lambda n: f"${{{n}}}"),
        name.map(lambda n: f"${{#{n}}}"),
        st.tuples(name | st.just("UNSET"), st.sampled_from([":-", "-", ":="]), PLAIN).map(
            lambda t: f"${{{t[0]}{t[1]}{t[2]}}}"
        ),
        st.tuples(name | st.just("UNSET3"), st.sampled_from([":-", "-", "+"]), ANY.map(double)).map(
            lambda t: f"${{{t[0]}{t[1]}{t[2]} a}}"
        ),
        st.tuples(name, st.sampled_from([":+", "+"]), PLAIN).map(
            lambda t: f"${{{t[0]}{t[1]}{t[2]}}}"
        ),
        st.tuples(name, name).map(lambda t: f"${{UNSET2:-${{{t[0]}:-${t[1]}}}}}"),
        array.map(lambda n: f"${{{n}[@]}}"),
        array.map(lambda n: f"${{{n}[*]}}"),
        array.map(lambda n: f"${{#{n}[@]}}"),
        array.map(lambda n: f"${{{n}[0]}}"),
        array.map(lambda n: f"${{{n}}}"),
        st.tuples(array, number).map(lambda t: f"${{{t[0]}[{t[1]}]:-none}}"),
        st.tuples(number, number).map(lambda t: f"$((N*{t[0]} + $N - {t[1]} % 3))"),
    )


def words() -> st.SearchStrategy[str]:
    piece = st.one_of(
        PLAIN,
        ANY.map(single),
        ANY.map(double),
        ANY.map(dollar),
        quoted_pieces(),
        expansions(),
        st.sampled_from(["\\ ", "\\$", "\\\n", "\\'", "[0]*3+[1]*2", "#x"]).map(str),
    )
    return st.lists(piece, min_size=1, max_size=3).map("".join).filter(lambda w: w[0] not in "#~")


def statements() -> st.SearchStrategy[str]:
    name, array = st.sampled_from(NAMES), st.sampled_from(ARRAYS)
    several = st.lists(words(), max_size=3)
    blank = st.sampled_from([" ", "\n  ", '  # it\'s a "comment" $(x\n', " \\\n"])
    filled = st.tuples(several, blank).map(lambda t: "".join(w + t[1] for w in t[0]))
    setting = st.one_of(
        st.tuples(name, st.sampled_from(["=", "+="]), words()).map("".join),
        st.tuples(name, words()).map(lambda t: f"export {t[0]}={t[1]}"),
        st.tuples(array, st.sampled_from(["=", "+="]), filled).map(
            lambda t: f"{t[0]}{t[1]}({t[2]}\n)"
        ),
        st.tuples(name, name).map(lambda t: f'{t[0]}="${t[0]} --more ${t[1]}"'),
    )
    test = st.one_of(
        st.tuples(st.sampled_from(["-z", "-n"]), name).map(lambda t: f'[ {t[0]} "${t[1]}" ]'),
        st.tuples(name, st.sampled_from(["=", "==", "!="]), PLAIN).map(
            lambda t: f'[[ ${t[0]} {t[1]} "{t[2]}" ]]'
        ),
        st.tuples(st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]), st.integers(0, 5)).map(
            lambda t: f'[ "$N" -{t[0]} {t[1]} ]'
        ),
        st.tuples(st.integers(0, 4), name).map(lambda t: f'[[ $N -gt {t[0]} && -n "${t[1]}" ]]'),
        st.integers(0, 4).map(lambda n: f"(( N > {n} ))"),
        st.sampled_from(["true", "false", "! true"]),
    )
    conditional = st.tuples(test, setting, setting).map(
        lambda t: f"if {t[0]}; then\n  {t[1]}\nelse\n  {t[2]}\nfi"
    )
    chosen = st.tuples(test, st.sampled_from(["&&", "||"]), setting).map(" ".join)
    case = st.tuples(name, PLAIN, setting, setting).map(
        lambda t: f'case "${t[0]}" in\n  "{t[1]}"|x) {t[2]} ;;\n  *)\n {t[3]}\n ;;\nesac'
    )
    loop = st.tuples(name, several, setting).map(
        lambda t: f"for {t[0]} in {' '.join(t[1])}; do\n{t[2]}\ndone"
    )
    function = st.tuples(setting, words()).map(lambda t: f"f() {{ {t[0]}\n A=$1; }}\nf {t[1]}")
    return st.one_of(setting, setting, conditional, chosen, case, loop, function)


@st.composite
def benign_scripts(draw: st.DrawFn) -> str:
    lines = ["A=1", "B='x  y'", "C=", "R=(p 'q r')", "S=()", "N=3"]
    lines += draw(st.lists(statements(), max_size=6))
    call = " ".join(f"--x {word}" for word in draw(st.lists(words(), min_size=1, max_size=5)))
    lines += [f'torchrun --nnodes 2 pretrain_gpt.py {call} "${{R[@]}}" ${{S[*]}} $A "$B"']
    return "\n".join(lines) + "\n"


def within_limits(script: str) -> bool:
    """Whether no array of a script, doubled in its loops, outgrows what a reader follows."""
    try:
        launched(script)
    except Unreadable as error:
        return "more than 4096 words" not in error.text
    return True


def as_bash_has_it(script: str) -> None:
    """Every word is bash's, or open for its wildcards and bash's where it looks for no files.

    Open too is the length of a variable that holds such a word.
    """
    call = launched(script)
    said = (*call.before, call.program, *call.arguments)
    open_words = [word.text for word in said if not word.known]
    assert all(re.search(r"[*?[]|\$\{#", text) for text in open_words)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "x.sh").write_text("set -f\n" * bool(open_words) + script)
        (real,) = run_script(Path(folder), "x.sh")
    for word, text in zip(said, real, strict=True):
        assert word.text == text or (not word.known and "${#" in word.text)


@pytest.mark.parametrize(
    ("setting", "word", "known"),
    [
        ("A='*'", "$A", False),
        ("A='*'", '"$A"', True),
        ("A='*'", "${UNSET:-$A}", False),
        ("A='*'", '${UNSET:-"$A"}', True),
        ("A=(x '?')", "${A[*]}", False),
        ("A=/data", "$A/*.bin", False),
        ("A=1", "part-[0-9].json", False),
        ("A=1", "part-\\[0-9].json", True),
        ("A='([0]*3+[1]*2)'", "$A", True),
        ("A='[1]*61'", "$A", True),
        ("A=wandb", "trainer.logger=[console,$A]", True),
        ("A='Et*3|(tt|)*29,m|L'", "$A", True),
        ("A=M-M*-", "$A", True),
    ],
)
def test_only_what_may_be_names_of_files_is_open(setting: str, word: str, known: bool) -> None:
    script = f"{setting}\ntorchrun x.py {word}\n"
    as_bash_has_it(script)
    assert launched(script).arguments[-1].known == known


@pytest.mark.parametrize("setting", ["C=", "R=(p)"])
def test_what_a_value_sets_is_there_when_it_is_appended(setting: str) -> None:
    as_bash_has_it(f'{setting}\nC+="${{C:=0}}"\nR+=("${{R:=1}}")\ntorchrun x.py "$C" "${{R[@]}}"\n')


@pytest.mark.parametrize(
    "word",
    [
        '${U:-"x  y"}', 'x${U:-"1 2" 3 }y', "${U-a\\ b}${U-''}", '${B+"$B" r}', "${U:-a 'b c' d}",
        '"${U:-"x  y}"}"', '${U3:="x  y"}', "${U- } ${U-''}",
    ],
)  # fmt: skip
def test_quotes_in_a_default_hold_its_words_together(word: str) -> None:
    as_bash_has_it(f"B='p q'\ntorchrun x.py {word}\n")


@pytest.mark.parametrize(
    "script",
    [
        'IFS=\',\' read -r A B C <<< "2,4,1,True"\ntorchrun x.py $A $B "$C"',
        'read A B <<< \'  p   q r  \'\ntorchrun x.py "$A" "$B"',
        'read -r A <<< \'p q\'\nIFS=: read -a R <<< 1:2::3\ntorchrun x.py "$A" "${R[@]}"',
        "L='a=1 \n  b=2'\nIFS= read -r A <<< ' p '\ntorchrun x.py \"$A\" \"$L\"",
    ],
)
def test_lines_are_read_as_bash_does(script: str) -> None:
    as_bash_has_it(f"{script}\n")


@pytest.mark.parametrize(
    "filters", [r"""| tr '\n' ' ' | sed 's/  \+/ /g'""", "| xargs", r"""| tr -s '\n' ' '"""]
)
def test_a_substitution_that_joins_lines_is_known(filters: str) -> None:
    script = f'L=\'a=1 \n  b=2\n\'\nC="torchrun x.py $(echo "$L" {filters})"\n'
    assert texts(launched(f'{script}srun bash -c "$C"\n')) == ["torchrun", "x.py", "a=1", "b=2"]
    other = script.replace(filters, "| head -1")
    assert not launched(f'{other}bash -c "$C"\n').arguments[0].known


@settings(max_examples=examples(50), deadline=None)
@given(script=benign_scripts())
def test_words_are_those_that_bash_hands_over(script: str) -> None:
    assume(within_limits(script))
    as_bash_has_it(script)


@pytest.mark.exhaustive
@settings(max_examples=2000, deadline=None)
@given(script=benign_scripts())
def test_words_of_many_scripts_are_those_that_bash_hands_over(script: str) -> None:
    assume(within_limits(script))
    as_bash_has_it(script)


PARTS = (
    "${V#*/}", "${V##*/}", "${V%/*}", "${V%%/*}", "${V%_v?}", "${V%.[0-9]*}", "${V#mod}", "${V%x}",
    "${V/o/0}", "${V//o/0}", "${V//[aeo]}", "${V/#models/m}", "${V/%_v1/_v2}", "${V//\\//-}",
    "${V:3}", "${V:0:6}", "${V: -4}", "${V: -7:2}", "${V:2:-3}", "${V#$W}", "${V/$W/x}",
    "${V%'_v1'}", '${V%"_v1"}', "${V//./}", "${V:99}", "${V#*'*'}",
)  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_a_variable_are_those_that_bash_leaves(part: str) -> None:
    script = f'V=models/Qwen/Qwen2.5-7B_v1\nW=models\ntorchrun train.py "x{part}"\n'
    as_bash_has_it(script)


def test_parts_of_what_is_not_known_stay_open() -> None:
    for script, known in (
        ("P=/data/$USER/Qwen3-8B\ntorchrun train.py ${P##*/}\n", True),
        ("P=Qwen3-8B/$USER\ntorchrun train.py ${P%%/*}\n", True),
        ("P=/data/$USER/Qwen3-8B\ntorchrun train.py ${P#/*/}\n", False),
        ("P=$USER/Qwen3-8B\ntorchrun train.py ${P:0:4}\n", False),
        ("P=a/$USER\ntorchrun train.py ${P##*/}\n", False),
        ("torchrun train.py ${P##*/}\n", False),
        (f"P={'ab' * 4000}\ntorchrun train.py ${{P##*a*b*}}\n", False),
    ):
        (word,) = launched(script).arguments
        assert word.known is known, script
