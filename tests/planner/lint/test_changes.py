"""The flags to change: made in the script, they say the better plan."""

from __future__ import annotations

import shlex

import pytest

from planner.frameworks.arguments import known_arguments
from planner.frameworks.reading import canonical
from planner.lint.better import best, mended
from planner.lint.case import Case
from planner.lint.findings import Better
from tests.planner.lint.test_scripts import PLANTED, linted

OPTIONS = known_arguments("planner.frameworks.megatron")["flags"]
MEGATRON = [name for name in PLANTED if not name.startswith("ds_")]
# A search each: these speak for the others.
QUICK = ("gpt3_175b", "llama3_8b", "hand_split", "branches", "mixtral_8x7b")


def said_again(case: Case, better: Better) -> str:
    """The script as its options and the changes leave it."""
    options: dict[str, tuple[str, ...]] = {}
    for said in case.reading.settings:
        if said.name in OPTIONS:
            value = said.value
            options[said.name] = (
                () if value is None else (value,) if isinstance(value, str) else value
            )
    for change in better.changes:
        if not change.option.startswith("-"):
            continue
        if change.before is None:
            assert change.option not in options
        else:
            assert " ".join(options.pop(change.option)) == change.before
        if change.after is not None:
            options[change.option] = tuple(change.after.split())
    group = case.request.cluster.groups[0]
    words = [word for name, values in options.items() for word in (name, *values)]
    return (
        f"export CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun --nnodes {group.nodes} "
        f"--nproc_per_node {group.accelerators_per_node} pretrain_gpt.py {shlex.join(words)}\n"
    )


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in MEGATRON]
)
def test_lead_to_the_better_plan(name: str) -> None:
    case, _ = linted(name)
    runs = case.own is not None and case.own.fits and not case.broken
    found = [best(case), None if runs else mended(case)]
    assert any(found) or runs or name == "out_of_memory"
    for better in filter(None, found):
        assert better.changes
        assert better.report.fits
        assert not case.framework.reasons(case.request, better.report.plan)
        assert case.framework.read is not None
        again = case.framework.read({"run.sh": said_again(case, better)}, None)
        want = better.report.plan
        assert canonical(again.plan, case.model) == canonical(want, case.model)
        assert again.training == case.training
        assert again.model == case.model
    if runs and found[0] is not None and case.own is not None:
        assert found[0].report.iteration_time_s < case.own.iteration_time_s
