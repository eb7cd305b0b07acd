"""The flags to change: made in the script, they say the better plan."""

from __future__ import annotations

import json
import shlex

import pytest

from planner.frameworks.arguments import known_arguments
from planner.frameworks.deepspeed.flags import nested
from planner.frameworks.reading import canonical
from planner.lint.better import best, mended
from planner.lint.case import Case
from planner.lint.findings import Better
from tests.planner.lint.test_scripts import PLANTED, linted

# A search each: these speak for the others.
QUICK = ("gpt3_175b", "llama3_8b", "hand_split", "branches", "mixtral_8x7b", "ds_3d")


def said_again(case: Case, better: Better) -> dict[str, str]:
    """The launch as its options, its keys and the changes leave it."""
    known = known_arguments(f"planner.frameworks.{case.framework.name}")["flags"]
    said_of: dict[str, tuple[str, ...]] = {}
    for said in case.reading.settings:
        if said not in case.reading.unknown and (said.name in known or said.name[0] != "-"):
            value = said.value
            said_of[said.name] = (
                () if value is None else (value,) if isinstance(value, str) else value
            )
    for change in better.changes:
        if change.before is None:
            assert change.option not in said_of
        else:
            assert " ".join(said_of.pop(change.option)) == change.before
        if change.after is not None:
            said_of[change.option] = tuple(change.after.split())
    options = {name: values for name, values in said_of.items() if name.startswith("-")}
    keys = {name: json.loads(values[0]) for name, values in said_of.items() if name[0].islower()}
    if keys:
        options["--deepspeed_config"] = ("ds.json",)
    words = [word for name, values in options.items() for word in (name, *values)]
    nodes, each = case.request.cluster.groups[0].nodes, case.request.cluster.groups[0]
    launcher = (
        f"deepspeed --num_nodes {nodes} --num_gpus {each.accelerators_per_node}"
        if keys
        else f"torchrun --nnodes {nodes} --nproc_per_node {each.accelerators_per_node}"
    )
    script = (
        f"export CUDA_DEVICE_MAX_CONNECTIONS=1\n{launcher} pretrain_gpt.py {shlex.join(words)}\n"
    )
    return {"run.sh": script, **({"ds.json": json.dumps(nested(keys))} if keys else {})}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in PLANTED]
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
        again = case.framework.read(said_again(case, better), None)
        want = better.report.plan
        assert canonical(again.plan, case.model) == canonical(want, case.model)
        assert again.training == case.training
        assert again.model == case.model
    if runs and found[0] is not None and case.own is not None:
        assert found[0].report.iteration_time_s < case.own.iteration_time_s
