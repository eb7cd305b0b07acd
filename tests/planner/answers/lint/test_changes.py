"""The flags to change: made in the script, they say the better plan."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from planner import frameworks
from planner.answers.lint.better_plans import best, fewest_changes
from planner.answers.lint.changed_options import changes
from planner.answers.lint.findings import FlagChange
from planner.answers.lint.lint import lint
from planner.answers.lint.linted_launch import changed
from planner.answers.lint.variables import variables
from planner.frameworks.arguments import known_arguments
from planner.frameworks.base import Framework
from planner.frameworks.deepspeed.flags import nested
from planner.frameworks.read_results import Reading
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.canonical import canonical
from tests.fixtures.frameworks import CASES
from tests.fixtures.tiers import examples
from tests.planner.answers.lint.test_scripts import PLANTED, linted

# A search each: these speak for the others.
QUICK = ("gpt3_175b", "llama3_8b", "hand_split", "branches", "mixtral_8x7b", "ds_3d")


VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"  # stands in no option of the script
EVEN: dict[str, Any] = {"first_stage_layers": 0, "last_stage_layers": 0, "stage_layers": ()}


def said_again(
    framework: Framework, reading: Reading, shape: tuple[int, int], changes: Iterable[FlagChange]
) -> dict[str, str]:
    """The launch as its options, its keys and the changes leave it; shape: nodes, ranks of each."""
    known = known_arguments(f"planner.frameworks.{framework.name}")["flags"]
    said_of: dict[str, tuple[str, ...]] = {}
    for said in reading.settings:
        if said not in reading.unknown and (said.name in known or said.name[0] != "-"):
            value = said.value
            said_of[said.name] = (
                () if value is None else (value,) if isinstance(value, str) else value
            )
    for change in changes:
        if change.option == VARIABLE:
            continue
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
    nodes, each = shape
    launcher = (
        f"deepspeed --num_nodes {nodes} --num_gpus {each}"
        if keys
        else f"torchrun --nnodes {nodes} --nproc_per_node {each}"
    )
    script = f"export {VARIABLE}=1\n{launcher} pretrain_gpt.py {shlex.join(words)}\n"
    return {"run.sh": script, **({"ds.json": json.dumps(nested(keys))} if keys else {})}


def tier(place: int, name: str) -> Any:
    """Of the scripts that do not speak for the others every second one waits for all draws."""
    if name in QUICK:
        return ()
    return pytest.mark.slow if place % 2 else pytest.mark.exhaustive


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=tier(place, name)) for place, name in enumerate(PLANTED)]
)
def test_lead_to_the_better_plan(name: str) -> None:
    case, _ = linted(name)
    runs = case.own is not None and case.own.fits and not case.broken
    found = [best(case), None if runs else fewest_changes(case)]
    assert any(found) or runs or name == "out_of_memory"
    for better in filter(None, found):
        assert better.changes
        assert better.report.fits
        training = case.training
        if better.global_batch_size is not None:
            size = {"global_batch_size": better.global_batch_size}
            training = training.model_copy(update=size)
        asked = case.request.model_copy(update={"training": training})
        assert not case.framework.reasons(asked, better.report.plan)
        assert case.framework.read is not None
        group = case.request.cluster.groups[0]
        shape = group.nodes, group.accelerators_per_node
        files = said_again(case.framework, case.reading, shape, better.changes)
        again = case.framework.read(files, None)
        want = better.report.plan
        assert canonical(again.plan, case.model) == canonical(want, case.model)
        # A script counts iterations: with another batch they are other tokens.
        assert again.training.model_copy(update={"tokens": training.tokens}) == training
        assert again.model == case.model
    if runs and found[0] is not None and case.own is not None:
        assert found[0].report.iteration_time_s < case.own.iteration_time_s


# Choices to change together; what they lead to is kept where the framework runs it.
MOVES: tuple[dict[str, Any], ...] = (
    *({"tp": tp, "sequence_parallel": tp > 1} for tp in (1, 2, 4)),
    *({"tp": tp, "etp": etp, "sequence_parallel": True} for tp in (2, 4) for etp in (1, 2)),
    {"sequence_parallel": False},
    *({"cp": cp} for cp in (1, 2)),
    *({"cp_kind": kind} for kind in ("all_gather", "a2a")),
    *({"pp": pp, "vpp": 1, "schedule": "1f1b", **EVEN} for pp in (1, 2, 4)),
    *({"pp": pp, "vpp": 2, "schedule": "interleaved-1f1b", **EVEN} for pp in (2, 4)),
    {"pp": 4, "vpp": 1, "schedule": "1f1b", **EVEN, "first_stage_layers": 2},
    *({"ep": ep} for ep in (1, 2, 4)),
    *({"zero_stage": stage, "pp": 1, "vpp": 1, "schedule": "1f1b", **EVEN} for stage in range(4)),
    *({"micro_batch_size": size} for size in (1, 2)),
    {"recompute": "none", "recompute_modules": (), "recompute_num_layers": 0},
    {"recompute": "selective", "recompute_modules": ("core_attn",), "recompute_num_layers": 0},
    {
        "recompute": "selective",
        "recompute_modules": ("layernorm", "mlp"),
        "recompute_num_layers": 0,
    },
    *(
        {
            "recompute": "full",
            "recompute_modules": (),
            "recompute_method": method,
            "recompute_num_layers": 1,
        }
        for method in ("block", "uniform")
    ),
    *({"offload_optimizer": on} for on in (False, True)),
    *({"cross_entropy": kind} for kind in ("fused", "in_place", "unfused")),
    *({"moe_dispatcher": kind} for kind in ("alltoall", "allgather", "deepep")),
    {"overlap_grad_reduce": False, "overlap_param_gather": False},
    {"overlap_grad_reduce": True, "overlap_param_gather": True},
    {"overlap_p2p": False},
    {"rank_order": "tp-cp-ep-pp-dp"},
    {"attention_kernel": "unfused"},
)


@pytest.mark.parametrize("name", ["megatron", "deepspeed"])
@settings(max_examples=examples(120), deadline=None)
@given(data=st.data())
def test_lead_from_a_plan_to_another(name: str, data: st.DataObject) -> None:
    framework = frameworks.get(name)
    request, own = CASES[name][data.draw(st.sampled_from(sorted(CASES[name])))]
    world = request.cluster.accelerators
    plan = own
    for move in data.draw(st.lists(st.sampled_from(MOVES), min_size=1, max_size=5)):
        sizes = {field: move.get(field, getattr(plan, field)) for field in ("tp", "cp", "pp")}
        after = changed(plan, {**move, "dp": max(1, world // math.prod(sizes.values()))})
        if after is not None and not framework.reasons(request, after):
            plan = after
    assert framework.read is not None
    reading = framework.read(framework.write(request, own).files, None)
    group = request.cluster.groups[0]
    found = changes(framework, request, reading, plan, {})
    event(f"{min(len(found), 9)} changes")
    files = said_again(framework, reading, (group.nodes, group.accelerators_per_node), found)
    again = framework.read(files, None)
    assert canonical(again.plan, request.model) == canonical(plan, request.model)


def test_a_variable_is_set_where_it_is_missed_or_another() -> None:
    found = {}
    for name in ("llama3_8b", "few_micro_batches", "padded"):
        case, _ = linted(name)
        assert case.own is not None
        sharded = changed(case.plan, {"zero_stage": 2})
        for key, plan in (("same", case.plan), ("sharded", sharded)):
            assert plan is not None
            said = {one.name: one.value for one in variables(case.files)}
            rows = changes(case.framework, case.request, case.reading, plan, said)
            (row,) = [one for one in rows if one.option == VARIABLE] or [None]
            found[name, key] = row and (row.before, row.after)
    assert found["llama3_8b", "same"] == (None, "1")  # the script does not set it
    assert found["few_micro_batches", "same"] is None  # it does
    assert found["few_micro_batches", "sharded"] == ("1", "8")
    assert found["llama3_8b", "sharded"] == (None, "8")
    assert found["padded", "same"] == ("8", "1")


NODE = "1x8xh100-sxm"
LAUNCH = """export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nnodes {nodes} --nproc_per_node 8 pretrain_gpt.py \\
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --swiglu --bf16 \\
  --num-attention-heads 32 --group-query-attention --num-query-groups 8 \\
  --normalization RMSNorm --disable-bias-linear --use-rotary-position-embeddings \\
  --untie-embeddings-and-output-weights --vocab-size 128256 --seq-length 8192 \\
  --max-position-embeddings 8192 --tensor-model-parallel-size 8 --sequence-parallel \\
  --micro-batch-size 1 --global-batch-size 500 --use-distributed-optimizer --use-flash-attn
"""


def test_another_batch_where_it_costs_less_speed_than_another_plan() -> None:
    """500 sequences over 64 replicas: 512 keep the plan, context parallelism takes its speed."""
    found = lint({"run.sh": LAUNCH.format(nodes=64)}, parse_cluster("64x8xh100-sxm"))
    assert [one.code for one in found.findings if one.severity == "error"] == ["batch_identity"]
    assert found.mended is not None
    assert found.mended.global_batch_size == 512
    assert [(one.option, one.before, one.after) for one in found.mended.changes] == [
        ("--global-batch-size", "500", "512")
    ]
    assert (found.mended.report.plan.cp, found.mended.report.plan.dp) == (1, 64)


def test_layers_with_unfused_attention_alone_go_where_it_is_to_be_fused() -> None:
    """Of --transformer-impl local nothing but --use-flash-attn changes the attention."""
    local = LAUNCH.format(nodes=1).replace("size 500", "size 512 --transformer-impl local")
    unfused = lint({"run.sh": local.replace(" --use-flash-attn", "")}, parse_cluster(NODE))
    better = unfused.best
    assert unfused.estimate is not None
    assert better is not None
    before, after = unfused.estimate.plan, better.report.plan
    assert (before.attention_kernel, after.attention_kernel) == ("unfused", "flash")
    (removed,) = [one for one in better.changes if one.option == "--transformer-impl"]
    assert (removed.before, removed.after, removed.line) == ("local", None, 8)
    text = better.files["run.sh"]
    assert "--attention-backend flash" in text
    assert not any(word in text for word in ("--transformer-impl", "local"))
    again = lint({"run.sh": text}, parse_cluster(NODE))
    assert again.estimate is not None
    assert again.estimate.plan == after
    # What has fused attention keeps its layers.
    fused = lint({"run.sh": local}, parse_cluster(NODE)).best
    assert fused is not None
    assert fused.changes
    assert "--transformer-impl local --use-d" in fused.files["run.sh"]


@pytest.mark.parametrize(("nodes", "cluster"), [(3, "5x8xh100-sxm"), (3, "1x8xh100-sxm")])
def test_a_wrong_number_of_ranks_is_one_finding(nodes: int, cluster: str) -> None:
    """What does not divide, the sum that does not come out, and the cluster's own size."""
    text = LAUNCH.format(nodes=nodes).replace("size 8 --seq", "size 16 --seq")
    found = lint({"run.sh": text}, parse_cluster(cluster))
    (size,) = [one for one in found.findings if one.code == "world_size"]
    assert "the script starts 3 x 8 ranks" in size.text
    assert size.text.count("the cluster has") == 1
    assert (size.line, size.severity) == (2, "error")
