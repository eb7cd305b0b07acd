"""Do the tests notice?  Mutants of the physics and of the search, and how many of them are killed.

    python -m tests.mutation --sample 20 --seed 1 cost_models/network.py planner/search/space.py

Without files, all of `[tool.mutmut]`; without a sample, every mutant (hours).  A mutant is killed
by a test that fails or takes far longer than without it.  Ends with 1 where fewer than `--least`
of the mutants are killed.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import time
from fnmatch import fnmatch
from functools import cache
from itertools import islice
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from mutmut.configuration import config

from tests.mutants import other_source
from tests.mutants.other_source import ROOT
from tests.mutation.mutants import mutants

_COST = "tests/cost_models"


def _named(*names: str) -> list[str]:
    return [f"{_COST}/test_{name}.py" for name in names]


# Of the physics, from the fastest to the slowest; `pinned` comes after all others.
_QUICK = (
    "layers", "runtimes", "layer_costs", "placement", "flops", "stages", "state_memory",
    "parameters", "network", "keys", "profiles", "activation_memory", "formulas", "synchronisation",
    "kernel_times", "traffic",
)  # fmt: skip
# File -> the tests that guard it, beside the one of its own name; the first that matches.
# test_estimate takes longer than all others together and guards its own file only.
GUARDS = {
    "planner/search/*": [
        "tests/planner/search/test_search_kept.py",
        "tests/planner/search/test_exhaustive.py",
        "tests/planner/search/test_searches.py",
    ],
    "cost_models/schedules/*": [
        f"{_COST}/schedules/test_{name}.py"
        for name in ("registry", "reference", "levels", "closed_forms", "derivations",
                     "torch_orders", "properties")
    ],
    "cost_models/catalog/models.py": [f"{_COST}/test_catalog.py", f"{_COST}/test_parameters.py"],
    "cost_models/catalog/*": [
        f"{_COST}/test_{name}.py" for name in ("catalog", "instances", "local", "profiles")
    ],
    **{
        f"cost_models/{name}.py": [
            *_named("spec"), "tests/planner/inputs/requests/test_parser.py",
            *_named(*_QUICK, "pinned"),
        ]
        for name in ("fields", "plans", "spec")
    },
    "cost_models/blocks/*": _named(
        "layers", "runtimes", "flops", "state_memory", "layer_costs", "parameters",
        "activation_memory", "formulas", "traffic", "stage_memory", "pinned",
    ),
    "cost_models/runtimes/*": _named(
        "runtimes", "layers", "layer_costs", "activation_memory", "traffic", "stage_memory",
        "pinned",
    ),
    "cost_models/*": _named(*_QUICK, "catalog", "calibrations", "stage_memory", "pinned"),
}  # fmt: skip


def tests_of(path: str) -> list[str]:
    """The test of the same name first, then those that guard the file."""
    own = f"{_COST}/schedules/test_" if "schedules/" in path else f"{_COST}/test_"
    own += f"{Path(path).stem}.py"
    found = next(tests for pattern, tests in GUARDS.items() if fnmatch(path, pattern))
    return [own, *(t for t in found if t != own)] if Path(own).exists() else found


def preload(tests: list[str]) -> None:
    """Import what the tests do, and forget of it what is this project's own."""
    settings.register_profile(
        "mutation",
        max_examples=20,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    other_source.preload([*config().pytest_add_cli_args, *tests])


def killed(path: str, source: str, tests: list[str], limit_s: float) -> bool:
    """Whether a test fails in a process that finds this source in the file's place."""
    runs = [[*config().pytest_add_cli_args, test] for test in tests]
    return other_source.exit_code(path, source, runs, limit_s) != 0


@cache
def alone_s(test: str) -> float:
    """Seconds of a test file without a mutant."""
    start = time.perf_counter()
    if killed("", "", [test], 3600.0):
        raise SystemExit(f"{test} fails without a mutant")
    return time.perf_counter() - start


def changes(path: str, source: str) -> str:
    """The changed lines, as a diff without its context."""
    before = (ROOT / path).read_text(encoding="utf-8").splitlines()
    lines = list(difflib.unified_diff(before, source.splitlines(), n=0, lineterm=""))[2:]
    return "\n".join(f"    {line}" for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("files", nargs="*", help="files or patterns; all when not given")
    parser.add_argument("--sample", type=int, help="mutants of each file, drawn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--least", type=float, default=0.9, help="share that must be killed")
    asked = parser.parse_args()
    os.chdir(ROOT)
    known = sorted(str(p) for folder in config().source_paths for p in folder.rglob("*.py"))
    files = [f for f in known if config().should_mutate(f)]
    files = [f for f in files if not asked.files or any(fnmatch(f, p) for p in asked.files)]
    preload(sorted({test for file in files for test in tests_of(file)}))
    rows, began = [], time.perf_counter()
    for file in files:
        tests = tests_of(file)
        together_s = sum(map(alone_s, tests))
        limit_s = config().timeout_constant + config().timeout_multiplier * together_s
        count = dead = 0
        for source in islice(mutants(ROOT / file, asked.seed), asked.sample):
            count += 1
            if killed(file, source, tests, limit_s):
                dead += 1
            else:
                print(f"{file} survived\n{changes(file, source)}", flush=True)
        rows.append((file, count, dead))
        print(f"{file}: {dead} of {count}", flush=True)
    rows.append(("in all", sum(row[1] for row in rows), sum(row[2] for row in rows)))
    print(f"\n{'file':48}{'mutants':>9}{'killed':>9}{'survived':>9}{'share':>9}")
    for file, count, dead in rows:
        share = f"{dead / count:9.1%}" if count else f"{'':9}"
        print(f"{file:48}{count:9}{dead:9}{count - dead:9}{share}")
    count, dead = rows[-1][1:]
    print(f"{(time.perf_counter() - began) / max(count, 1):.1f} s per mutant")
    return int(dead < asked.least * count)


if __name__ == "__main__":
    sys.exit(main())
