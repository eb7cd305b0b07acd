"""Commands and prompts of docs/ with what they print, in blocks such as

    ```console
    $ planner model gpt2
    gpt2  124.4 M parameters
    ...
    ```

and Python prompts (`pycon`).  A line `...` in the output of a command stands for any lines.  A test
holds each page against what is printed now; `python -m tools.shown_output --write` writes that into
the pages.  Lines above and below a `...` are found again by their first word.
"""

from __future__ import annotations

import argparse
import difflib
import doctest
import io
import os
import re
import runpy
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from planner import cli

README = Path(__file__).parents[1] / "README.md"
DOCS = README.parent / "docs"
ANY = "..."
WIDTH = "88"  # columns of the terminal
_BLOCK = re.compile(r"^```(console|pycon)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"`([\w.]+)`:\n\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Shown(NamedTuple):
    """A command, and the lines that a page shows of its output."""

    command: str
    lines: tuple[str, ...]


def pages() -> list[Path]:
    """The pages that show what is printed."""
    return [page for page in sorted(DOCS.rglob("*.md")) if _BLOCK.search(page.read_text("utf-8"))]


def shown(block: str) -> Iterator[Shown]:
    """The commands of a block, in order."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *lines = part.rstrip("\n").split("\n")
        while command.endswith("\\"):
            command = f"{command[:-1].rstrip()} {lines.pop(0).strip()}"
        yield Shown(command, tuple(lines))


def printed(command: str) -> list[str]:
    """What a command prints here: `planner`, or `python` with one of the examples."""
    program, *words = shlex.split(command)
    out = io.StringIO()
    with redirect_stdout(out):
        if program == "python":
            runpy.run_path(str(DOCS / "examples" / Path(words[0]).name), run_name="__main__")
        elif program != "planner" or cli.run(words):
            raise ValueError(f"cannot run, or ends with an error: {command}")
    return [line.rstrip() for line in out.getvalue().rstrip("\n").split("\n")]


def current(lines: Sequence[str], now: Sequence[str]) -> list[str]:
    """The lines that a page should show, given what the command prints now."""
    if ANY not in lines:
        return list(now)
    found, at = [], 0
    for line in lines:
        if line == ANY:
            found.append(ANY)
            continue
        rest = now[at:]
        # The same line, else the next that is most like it among those with its first word.
        same = [one for one in rest if one.split()[:1] == line.split()[:1]]
        near = [line] if line in rest else difflib.get_close_matches(line, same, 1, 0.0)
        if not near:
            raise ValueError(f"nothing printed is like {line!r}")
        at += rest.index(near[0]) + 1
        found.append(near[0])
    return found


def rewritten(page: str) -> str:
    """The page with what its commands print now, run in the current folder."""
    for name, text in _FILE.findall(page):
        Path(name).write_text(text, encoding="utf-8")

    names: dict[str, object] = {}

    def block(match: re.Match[str]) -> str:
        kind, body = match.groups()
        return f"```{kind}\n{_prompt(body, names) if kind == 'pycon' else _session(body)}```"

    return _BLOCK.sub(block, page)


def readme() -> str:
    """README.md with the answer that its command prints now: the whole, and ten lines of it."""
    text = README.read_text("utf-8")
    (command,) = re.findall(r"^`\.venv/bin/(planner plan .*)` prints", text, re.MULTILINE)
    short, whole = re.findall(r"^```\n(llama.*?)\n^```", text, re.DOTALL | re.MULTILINE)
    lines = printed(command)
    now = "\n".join(lines[: lines.index("Next")]).strip()
    return text.replace(whole, now, 1).replace(
        short, "\n".join(current([*short.split("\n"), ANY], lines)[:-1]), 1
    )


def _session(body: str) -> str:
    """A block of commands, with what they print now."""
    for one in shown(body):
        before = "\n".join(one.lines)
        after = "\n".join(current(one.lines, printed(one.command)))
        if one.lines and before != after:
            body = body.replace(before, after, 1)
    return body


def _prompt(body: str, names: dict[str, object]) -> str:
    """A block of a Python prompt, with what it prints now; names: those that it defined so far."""
    lines: list[str] = []
    for example in doctest.DocTestParser().get_examples(body):
        first, *more = example.source.rstrip("\n").split("\n")
        out = io.StringIO()
        with redirect_stdout(out):
            exec(compile(example.source, "prompt", "single"), names)
        lines += [f">>> {first}", *(f"... {line}" for line in more), *out.getvalue().splitlines()]
    return "\n".join([*lines, ""])


def in_folder(page: Path) -> str:
    """A page as its commands, run in an empty folder with data of their own, would have it."""
    kept = {name: os.environ.get(name) for name in ("COLUMNS", "PLANNER_DATA_DIR")}
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"COLUMNS": WIDTH, "PLANNER_DATA_DIR": str(Path(folder) / "data")}
        try:
            lesson = Path(folder) / page.stem  # a model's name is that of its folder
            lesson.mkdir()
            with chdir(lesson):
                return readme() if page == README else rewritten(page.read_text("utf-8"))
        finally:
            for name, value in kept.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def main() -> None:
    """Write the pages anew, or name those that are out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the pages")
    write = parser.parse_args().write
    for page in (README, *pages()):
        text = in_folder(page)
        if text != page.read_text("utf-8"):
            print(page.relative_to(README.parent))
            if write:
                page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
