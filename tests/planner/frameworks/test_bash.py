"""Launch scripts read as bash would read them: compared with bash itself, and held against harm."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.frameworks.bash import Launch, Outcome, arithmetic, evaluate, slurm_variables
from planner.frameworks.reading import Unreadable
from tests.fixtures.frameworks import ALL_CASES, bundle
from tests.fixtures.launches import run_script


def launched(text: str, **files: str) -> Launch:
    """The only call in a script."""
    (call,) = outcome(text, **files).launches
    return call


def outcome(text: str, **files: str) -> Outcome:
    return evaluate(
        {"x.sh": text, **{name.replace("_", "."): f for name, f in files.items()}}, "x.sh"
    )


def texts(call: Launch) -> list[str]:
    return [word.text for word in (*call.before, call.program, *call.arguments)]


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


@settings(max_examples=150, deadline=None)
@given(script=benign_scripts())
def test_words_are_those_that_bash_hands_over(script: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "x.sh").write_text(script)
        (real,) = run_script(Path(folder), "x.sh")
    call = launched(script)
    assert texts(call) == real
    assert all(word.known for word in (*call.before, call.program, *call.arguments))
