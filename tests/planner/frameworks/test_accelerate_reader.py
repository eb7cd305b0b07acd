"""Accelerate: configs that others wrote are read."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from planner import frameworks
from planner.frameworks.read_results import Unreadable
from planner.huggingface.export.exporter import config_of
from tests.fixtures.frameworks.accelerate import (
    CASES,
    QWEN3,
)
from tests.fixtures.mutations import damaged
from tests.fixtures.tiers import examples

ACCELERATE = frameworks.get("accelerate")


def files_of(case: str = "llama-fsdp", **replaced: tuple[str, str]) -> dict[str, str]:
    """A bundle with texts of its files changed: launch, accelerate, config."""
    files = dict(ACCELERATE.write(*CASES[case]).files)
    endings = {"launch": ".sh", "accelerate": ".yaml", "config": ".json"}
    for name, (old, new) in replaced.items():
        file = name + endings[name]
        assert old in files[file]
        files[file] = files[file].replace(old, new)
    return files


def read(files: dict[str, str], accelerators: int | None = None) -> Any:
    assert ACCELERATE.read is not None
    return ACCELERATE.read(files, accelerators)


def test_options_of_the_launcher_win_over_the_config() -> None:
    more = '"${LAUNCH_ARGS[@]}" --mixed-precision fp16 --fsdp_reshard_after_forward=false'
    reading = read(files_of(launch=('"${LAUNCH_ARGS[@]}"', more)))
    assert reading.training.precision == "fp16"
    assert reading.plan.reshard_after_forward is False
    assert reading.find("--fsdp_reshard_after_forward").line == 44


def test_unknown_and_unread_keys_are_listed_with_what_may_be_meant() -> None:
    reading = read(
        files_of(
            accelerate=(
                "  fsdp_version: 2",
                "  fsdp_version: 2\n  fsdp_reshard_forward: true\n  backward_prefetch: X",
            ),
            launch=("--optim", "--weight_decay 0.1 --optim"),
        )
    )
    (unknown,) = reading.unknown
    assert (unknown.name, unknown.line) == ("fsdp_config.fsdp_reshard_forward", 11)
    assert any("did you mean fsdp_reshard_after_forward" in text for text in reading.assumed)
    assert [one.name for one in reading.unread] == [
        "fsdp_config.backward_prefetch",
        "--weight_decay",
    ]


def test_what_accelerate_itself_refuses_is_said() -> None:
    reading = read(
        files_of(
            accelerate=("num_processes: 16", "num_processes: 12\nmixed_precison: bf16"),
            launch=("--machine_rank", "--machin_rank"),
        )
    )
    texts = [one.reason.text for one in reading.refusals]
    assert (
        "accelerate stops at the unknown key mixed_precison; did you mean mixed_precision?" in texts
    )
    assert "accelerate launch has no option --machin_rank; did you mean machine_rank?" in texts
    assert "ParallelismConfig: dp_shard 16 is not num_processes 12" in texts


def test_a_config_of_ones_own_is_read_with_what_it_leaves_open() -> None:
    files = {
        "my.yaml": "distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_version: 2}\n",
        "config.json": json.dumps(config_of(QWEN3)),
        "run.sh": "accelerate launch --config_file my.yaml run_clm.py --block_size 1024 "
        "--per_device_train_batch_size 4 --config_name config.json",
    }
    reading = read(files)
    assert reading.plan.dp == 8
    assert reading.plan.zero_stage == 3
    assert reading.training.global_batch_size == 32
    assert reading.training.gradient_reduce_dtype == "bf16"
    assert len(reading.assumed) == 4


UNREADABLE: list[tuple[str, dict[str, tuple[str, str]]]] = [
    ("accelerate.yaml:8: num_processes must be a whole", {"accelerate": (": 16", ": many")}),
    ("MEGATRON_LM cannot be read: only FSDP", {"accelerate": (": FSDP", ": MEGATRON_LM")}),
    ("must be one of no, bf16", {"accelerate": (": bf16", ": int4")}),
    ("is not YAML", {"accelerate": ("num_processes: 16", "num_processes: 2024-99-99")}),
    ("cannot be read", {"accelerate": ("fsdp_config:", "fsdp_config: [")}),
    ("not among the files", {"launch": ("accelerate.yaml", "other.yaml")}),
    ("no sequence length: --set max_length", {"launch": ("--block_size 2048", "")}),
    ("must be one of sdpa", {"launch": (" sdpa", " fastest")}),
    ("config.json: holds no model", {"config": ("hidden_size", "hiden_size")}),
    ("config.json:2: is not JSON: Expecting", {"config": ("{", "[")}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "change"), UNREADABLE, ids=[text for text, _ in UNREADABLE])
def test_what_cannot_be_read_is_named(text: str, change: dict[str, tuple[str, str]]) -> None:
    with pytest.raises(Unreadable, match=re.escape(text)):
        read(files_of(**change))


@pytest.mark.parametrize("missing", ["accelerate.yaml", "config.json"])
def test_missing_files_are_named(missing: str) -> None:
    files = files_of()
    del files[missing]
    with pytest.raises(Unreadable, match=missing):
        read(files)


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_damaged_files_are_read_or_named_as_unreadable(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(sorted(CASES)))
    whole = ACCELERATE.write(*CASES[case]).files
    files = data.draw(damaged({file: text for file, text in whole.items() if file != "train.py"}))
    try:
        reading = read(files, data.draw(st.sampled_from([None, 8])))
    except Unreadable:
        event("unreadable")
    else:
        assert reading.framework == "accelerate"
