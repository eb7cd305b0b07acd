"""Four thousand bundles whose names are pieces of shell, Python, JSON and YAML, run in bash."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.fixtures.frameworks import CASES
from tests.fixtures.hostile_names import check_only_names

pytestmark = pytest.mark.exhaustive
BUNDLES = 4_000
PIECES = (
    "$(touch pwned)", "`touch pwned`", "; touch pwned", "&& touch pwned", "| touch pwned",
    "\ntouch pwned\n", "\rtouch pwned", "\u2028touch pwned", "> pwned", "<(touch pwned)", "'", '"',
    "\\", "\\'", '\\"', "'\"'\"'", "$", "${x:-$(touch pwned)}", "#", "\n#SBATCH --uid=0\n", "%s",
    "%$(touch pwned)", "{{", "}}", "{", "}", "END_OF_FILE", "\nEND_OF_FILE\ntouch pwned\n", "EOF",
    '"""', "'''", '""";import os;os.system("touch pwned")#', "\n- x: y", ": ", "&a", "*a", "!!x",
    "../../pwned", "-rf", "--help", "\t", " ", "é", "\U0001f600", "a", "7b", "!", "~", "*", "?",
)  # fmt: skip


@pytest.mark.parametrize("framework", sorted(CASES))
def test_no_name_is_run(framework: str, tmp_path: Path) -> None:
    random = Random(framework)
    cases = list(CASES[framework].values())
    count = -(-BUNDLES // len(CASES))
    for number in range(count):
        request, plan = cases[number % len(cases)]
        name = "".join(random.choices(PIECES, k=random.randint(1, 6)))
        folder = tmp_path / str(number)
        folder.mkdir()
        check_only_names(framework, request, plan, name, folder)
