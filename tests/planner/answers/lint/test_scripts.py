"""Launch scripts with planted mistakes: every one is found at its line, and none is invented."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from planner.answers.lint.findings import CODES, Finding
from planner.answers.lint.lint import found_in
from planner.answers.lint.linted_launch import LintedLaunch
from planner.frameworks.sources import files_at
from planner.inputs.requests.parser import parse_cluster

SCRIPTS = Path(__file__).parents[3] / "scripts"
SIX = {"accelerator": "h100-sxm", "nodes": 1, "accelerators_per_node": 6}
# Script -> (cluster, the errors and warnings in it: code and line; 0: no line says it).
PLANTED: dict[str, tuple[str | dict[str, object], set[tuple[str, int]]]] = {
    # Nothing is wrong with these.
    "gpt3_175b": ("16x8xh100-sxm", set()),
    "gpt_345m": ("1x8xa100-sxm", set()),
    "llama3_70b": ("16x8xh100-sxm", set()),
    "deepseek_lite": ("4x8xh100-sxm", set()),
    "qwen_7b": ("4x8xh100-sxm", set()),
    "ds_3d": ("16x8xh100-sxm", set()),
    # What the framework refuses.
    "branches": (
        SIX,
        {
            ("heads_not_divisible", 42),
            ("kv_heads", 42),
            ("ffn_not_divisible", 42),
            ("cp_seq", 42),
        },
    ),
    "uneven_layers": ("16x8xh100-sxm", {("layers_not_divisible", 15)}),
    "virtual_stages": ("8x8xh100-sxm", {("vpp_layout", 7)}),
    "scheduler": ("4x8xh100-sxm", {("batch_identity", 36)}),
    "mixtral_8x7b": ("4x8xh100-sxm", {("unknown_option", 46), ("sequence_parallel", 65)}),
    "gather_alone": (
        "4x8xa100-sxm",
        {("framework_unsupported", 9), ("distributed_optimizer_off", 0)},
    ),
    "old_style": (
        "4x8xa100-sxm",
        {
            ("unknown_option", 29),
            ("framework_unsupported", 30),
            ("recompute_needless", 30),
            ("sequence_parallel_off", 16),
            ("gradient_reduce_exposed", 0),
        },
    ),
    "llama3_8b": ("2x8xh100-sxm", {("environment", 26), ("recompute_needless", 24)}),
    "padded": ("1x8xh100-sxm", {("environment", 3), ("offload_needless", 11)}),
    "ds_zero3": ("2x8xh100-sxm", {("unknown_option", 20)}),
    "ds_zero3_pipeline": ("4x8xh100-sxm", {("zero_stage", 4)}),
    "ds_ulysses": ("2x8xh100-sxm", {("batch_identity", 2), ("unknown_key", 9)}),
    "rates": ("1x8xa100-sxm", {("learning_rate_schedule", 20), ("learning_rate_schedule", 22)}),
    "trainer": (
        "1x8xh100-sxm",
        {
            ("deepspeed_values", 2),
            ("deepspeed_values", 3),
            ("deepspeed_values", 8),
            ("deepspeed_values", 12),
        },
    ),
    # What does not fit.
    "out_of_memory": ("2x8xh100-sxm", {("memory", 17)}),
    # What is slow, or not what was meant.
    "slurm_template": ("8x8xh100-sxm", {("tp_across_nodes", 44)}),
    "few_micro_batches": ("8x8xh100-sxm", {("few_micro_batches", 10)}),
    "exposed": (
        "8x8xh100-sxm",
        {("gradient_reduce_exposed", 0), ("param_gather_exposed", 0)},
    ),
    "no_overlap": ("8x8xh100-sxm", {("ep_across_nodes", 11)}),
    "long_context": ("8x8xh100-sxm", {("cp_across_nodes", 12)}),
    "hand_split": ("8x8xh100-sxm", {("uneven_stages", 12), ("recompute_full", 14)}),
    "llama2_70b": ("16x8xh100-sxm", {("ignored_option", 27), ("sequence_parallel_off", 18)}),
    "local_layers": (
        "4x8xh100-sxm",
        {("attention_unfused", 12), ("ignored_option", 13), ("few_micro_batches", 15)},
    ),
    "gpt_857m": (
        "1x8xa100-sxm",
        {
            ("recompute_needless", 23),
            ("distributed_optimizer_off", 0),
            ("gradient_reduce_exposed", 0),
        },
    ),
}


@cache
def linted(name: str) -> tuple[LintedLaunch, tuple[Finding, ...]]:
    paths = [str(path) for path in sorted(SCRIPTS.glob(f"{name}.*"), reverse=True)]
    return found_in(files_at(paths), parse_cluster(PLANTED[name][0]))


def test_every_script_has_its_row() -> None:
    assert {path.stem for path in SCRIPTS.glob("*.sh")} == set(PLANTED)
    assert sum(not planted for _, planted in PLANTED.values()) >= 5


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", PLANTED)
def test_finds_what_was_planted_and_invents_nothing(name: str) -> None:
    _, findings = linted(name)
    assert {
        (finding.code, finding.line) for finding in findings if finding.severity != "hint"
    } == PLANTED[name][1]
    for finding in findings:
        assert finding.code in CODES
        assert finding.file == f"{name}.sh" or finding.file.startswith(f"{name}.")
        if finding.line:  # the option stands on the line that is named
            lines = (SCRIPTS / finding.file).read_text().splitlines()
            around = "\n".join(lines[finding.line - 1 : finding.line])
            assert finding.code == "environment" or finding.option.split(".")[-1] in around


# Refused, out of memory or as good as it can be: nothing to set would make these faster.
WITHOUT_GAINS = {
    "deepseek_lite", "qwen_7b", "branches", "uneven_layers", "virtual_stages", "scheduler",
    "mixtral_8x7b", "ds_zero3_pipeline", "ds_ulysses", "out_of_memory", "llama3_70b",
    "rates", "trainer",
    "gpt_345m",  # its kernels are so short that no gain is sure
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in PLANTED if name not in WITHOUT_GAINS])
def test_a_gain_is_what_pricing_the_change_says(name: str) -> None:
    """Each slow finding names fields; the plan with them is faster by the gain it names."""
    case, findings = linted(name)
    gains = [finding for finding in findings if finding.gain and finding.set]
    assert gains
    for finding in gains:
        if finding.code == "param_gather_exposed":
            continue
        assert case.own is not None
        changed = case.fastest([finding.set], fitting=False)
        assert changed is not None
        gain = 1 - changed.seconds / case.own.iteration_time_s
        assert finding.gain == pytest.approx(gain)
