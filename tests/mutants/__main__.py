"""Places broken on purpose, each with the test that must notice: `places.tsv`.

    python -m tests.mutants [WORD ...]

Runs the test of each place while its file is broken (in that process alone: the working tree stays
as it is) and prints what came of it.  WORD: only places whose row has it.  Ends with 1 where a test
passes all the same, or where a text no longer stands exactly once in its file.
"""

from __future__ import annotations

import csv
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mutants.other_source import ROOT, exit_code, preload

PLACES = Path(__file__).with_name("places.tsv")
_OPTIONS = ("-n", "0", "-x", "-q", "-p", "no:cacheprovider")
_LIMIT_S = 900.0


class Broken(NamedTuple):
    """A row of the table: in which file which text becomes what, and the test that must fail."""

    file: str
    text: str
    becomes: str
    test: str


def places() -> list[Broken]:
    """The table, without its head."""
    with PLACES.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    return [Broken(*row) for row in rows]


def not_once(broken: list[Broken]) -> list[str]:
    """The places whose text does not stand exactly once in its file."""
    found = ((one, (ROOT / one.file).read_text(encoding="utf-8").count(one.text)) for one in broken)
    return [f"{one.file}: {one.text!r} {count} times" for one, count in found if count != 1]


def notices(one: Broken) -> bool:
    """Whether the test of a place fails while it is broken; an import that does is no answer."""
    whole = (ROOT / one.file).read_text(encoding="utf-8")
    source = whole.replace(one.text, one.becomes)
    code = exit_code(one.file, source, [[*_OPTIONS, one.test]], _LIMIT_S)
    return code == pytest.ExitCode.TESTS_FAILED


def main(words: list[str]) -> int:
    os.chdir(ROOT)
    broken = [one for one in places() if all(word in "\t".join(one) for word in words)]
    if gone := not_once(broken):
        print(*gone, sep="\n")
        return 1
    began, tests = time.perf_counter(), list(dict.fromkeys(one.test for one in broken))
    preload([*_OPTIONS, *tests])
    if exit_code("", "", [[*_OPTIONS, *tests]], _LIMIT_S):
        failing = [test for test in tests if exit_code("", "", [[*_OPTIONS, test]], _LIMIT_S)]
        print("fails while nothing is broken:", *failing, sep="\n")
        return 1
    print(f"{'file':45} {'text':50} {'test':60} failed seconds", flush=True)
    survivors = 0
    for one in broken:
        start = time.perf_counter()
        failed = notices(one)
        survivors += not failed
        print(
            f"{one.file:45} {one.text[:50]:50} {one.test.rpartition('::')[2][:60]:60} "
            f"{'yes' if failed else 'NO':6} {time.perf_counter() - start:7.1f}",
            flush=True,
        )
    print(
        f"{len(broken) - survivors} of {len(broken)} noticed, {time.perf_counter() - began:.0f} s"
    )
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
