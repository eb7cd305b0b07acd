"""nanotron: configs that others wrote are read."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from planner import frameworks
from planner.frameworks.read_results import Unreadable
from tests.fixtures.frameworks.nanotron import (
    CASES,
    MODELS_HERE,
)
from tests.fixtures.mutations import damaged
from tests.fixtures.tiers import examples

NANOTRON = frameworks.get("nanotron")


def files_of(case: str = "llama-data", **replaced: tuple[str, str]) -> dict[str, str]:
    """A bundle with texts of its files changed: launch, config."""
    files = dict(NANOTRON.write(*CASES[case]).files)
    endings = {"launch": ".sh", "config": ".yaml"}
    for name, (old, new) in replaced.items():
        file = name + endings[name]
        assert old in files[file]
        files[file] = files[file].replace(old, new, 1)
    return files


def read(files: dict[str, str], accelerators: int | None = None) -> Any:
    assert NANOTRON.read is not None
    return NANOTRON.read(files, accelerators)


def test_a_config_alone_is_read_with_the_defaults_of_the_classes() -> None:
    text = """\
general: {project: mine}
parallelism: {dp: 2, tp: 2, pp: 1}
tokens:
  {sequence_length: 64, train_steps: 5, micro_batch_size: 2, batch_accumulation_per_replica: 3}
model:
  model_config: {hidden_size: 512, num_attention_heads: 8, z_loss_enabled: true}
  init_method: {std: 0.1}
"""
    reading = read({"mine.yaml": text}, 8)
    assert (reading.plan.dp, reading.plan.tp, reading.plan.sequence_parallel) == (2, 2, False)
    assert reading.model.num_layers == 32
    assert reading.model.num_query_groups == 8
    assert reading.training.global_batch_size == 12
    assert [one.name for one in reading.unread] == ["model.model_config.z_loss_enabled"]
    texts = [one.reason.text for one in reading.refusals]
    assert "the trainer needs the section optimizer" in texts
    assert "ParallelContext: tp x cp x dp x pp is 4, but the launch starts 8 processes" in texts
    assert any("afab keeps all micro-batches" in text for text in reading.assumed)


def test_unknown_keys_are_listed_and_nanotron_stops_at_them() -> None:
    reading = read(
        files_of(config=("  micro_batch_size: 1", "  micro_batchsize: 2\n  micro_batch_size: 1"))
    )
    (unknown,) = reading.unknown
    assert (unknown.name, unknown.file, unknown.line) == (
        "tokens.micro_batchsize",
        "config.yaml",
        25,
    )
    (refusal,) = reading.refusals
    assert refusal.setting == unknown
    assert "did you mean micro_batch_size" in refusal.reason.text


REFUSING: list[tuple[str, tuple[str, str]]] = [
    ("required key optimizer.zero_stage is missing", ("  zero_stage: 0", "  # none")),
    ("required key data_stages.0.name is missing", ("name: mock data", "sequence_length: 2048")),
    ("expert_parallel_size 2", ("expert_parallel_size: 1", "expert_parallel_size: 2")),
    ("lr_warmup_style must be", ("lr_warmup_style: linear", "lr_warmup_style: null")),
    ("is 8, but the launch starts 16 processes", ("dp: 16", "dp: 8")),
    ("unknown key optimiser.zero; did", ("general:", "optimiser: {zero: 1}\ngeneral:")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "change"), REFUSING, ids=[text for text, _ in REFUSING])
def test_what_nanotron_itself_refuses_is_said(text: str, change: tuple[str, str]) -> None:
    texts = [one.reason.text for one in read(files_of(config=change)).refusals]
    assert any(text in one for one in texts), texts


UNREADABLE: list[tuple[str, dict[str, tuple[str, str]]]] = [
    ("config.yaml:13: parallelism.dp must be a whole", {"config": ("dp: 16", "dp: many")}),
    ("parallelism.dp is missing", {"config": ("dp: 16", "dp: null")}),
    ("pp_engine must be one of 1f1b, afab", {"config": (": 1f1b", ": zb")}),
    ("must be one of bfloat16", {"config": (": bfloat16", ": int8")}),
    ("model.model_config is missing", {"config": ("model_config:", "model_cfg:")}),
    ("Starcoder2Config", {"config": ("is_qwen2_config", "is_starcoder2_config")}),
    (
        "not a multiple of num_query_groups",
        {"config": ("num_key_value_heads: 4", "num_key_value_heads: 5")},
    ),
    ("is not among the files", {"launch": ("BUNDLE/config.yaml", "BUNDLE/other.yaml")}),
    ("no call of torchrun run_train.py", {"launch": ("run_train.py", "train.py")}),
    ("nproc_per_node must be a whole", {"launch": ("--nproc_per_node 8", "--nproc_per_node x")}),
    ("cannot be read", {"config": ("tokens:", "tokens: {")}),
]


@pytest.mark.parametrize(("text", "change"), UNREADABLE, ids=[text for text, _ in UNREADABLE])
def test_what_cannot_be_read_is_named(text: str, change: dict[str, tuple[str, str]]) -> None:
    with pytest.raises(Unreadable, match=re.escape(text)):
        read(files_of(**change))


@pytest.mark.parametrize("layers", ["[1, 2, 4]", "[3, 2]", "[]", "[a]", "7"])
def test_odd_layers_of_experts_are_named(layers: str) -> None:
    change = ("layers: [1, 2, 3, 4, 5, 6, 7, 8]", f"layers: {layers}")
    with pytest.raises(Unreadable, match="must be all layers from a first one"):
        read(files_of("shared-expert", config=change))


def test_minus_one_is_every_layer() -> None:
    change = ("layers: [0, 1, 2, 3, 4, 5, 6, 7]", "layers: [-1]")
    assert set(read(files_of("mixtral", config=change)).model.feed_forwards) == {"moe"}


def test_the_script_that_is_given_calls_it_whatever_lies_beside() -> None:
    files = files_of()
    script = {"train.sh": files.pop("launch.sh"), "launch.sh": 'python3 "$@"\n'}
    assert read({**script, **files}).model.num_layers == read(files).model.num_layers


def test_ranks_of_torchrun_come_from_the_machine_where_it_is_left_to_it() -> None:
    reading = read(files_of(launch=("--nproc_per_node 8", "--nproc_per_node gpu")), 16)
    assert (reading.nodes, reading.accelerators_per_node) == (2, 8)


def test_cases_hold_every_model() -> None:
    assert {request.model.name for request, _ in CASES.values()} == {
        model.name for model in MODELS_HERE.values()
    }


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_damaged_files_are_read_or_named_as_unreadable(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(sorted(CASES)))
    whole = NANOTRON.write(*CASES[case]).files
    files = data.draw(damaged(whole))
    try:
        reading = read(files, data.draw(st.sampled_from([None, 8])))
    except Unreadable:
        event("unreadable")
    else:
        assert reading.framework == "nanotron"


def test_a_program_of_its_examples_is_read_by_its_configuration() -> None:
    request, plan = next(iter(CASES.values()))
    files = dict(NANOTRON.write(request, plan).files)
    files["launch.sh"] = files["launch.sh"].replace("run_train.py", "examples/moe/train_moe.py")
    assert NANOTRON.read is not None
    assert NANOTRON.read(files, None).model.num_layers == request.model.num_layers


def test_options_of_a_forks_program_overrule_the_config() -> None:
    """Upstream's run_train.py has none of them."""
    config = files_of()["config.yaml"]
    words = "--tp 1 --dp 4 --micro-batch-size 7 --batch-accumulation-per-replica 3"
    call = "torchrun --nproc_per_node 4 run_train.py --config-file config.yaml "
    found = read({"launch.sh": call + words, "config.yaml": config})
    assert (found.plan.tp, found.plan.dp, found.plan.micro_batch_size) == (1, 4, 7)
    assert found.training.global_batch_size == 84
    with pytest.raises(Unreadable, match=r"--dp is [$]N, which the files do not say: --set N="):
        read({"launch.sh": call + "--dp $N", "config.yaml": config})


def test_processes_that_a_command_counts_are_open() -> None:
    files = files_of()
    (line,) = re.findall(r"--nproc_per_node \S+", files["launch.sh"])
    found = read(files_of(launch=(line, '--nproc_per_node "$(nvidia-smi -L | wc -l)"')))
    assert found.accelerators_per_node is None
