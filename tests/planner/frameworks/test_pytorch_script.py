"""Native PyTorch: one script whatever the plan, read back from its CONFIG."""

from __future__ import annotations

import re

import pytest

from planner import frameworks
from planner.frameworks.pytorch.config import EXPERTS, KEYS
from planner.frameworks.rank_orders import ORDERS
from planner.frameworks.read_results import Unreadable
from tests.fixtures.frameworks.pytorch import CASES

PYTORCH = frameworks.get("pytorch")


def test_only_the_config_block_differs() -> None:
    # Layers of other kinds, encoders and recompute by stage bring lines of their own.
    cases = [
        (request, plan)
        for request, plan in CASES.values()
        if not (request.model.layer_pattern or request.model.encoders or plan.recompute_layers)
    ]
    texts = [PYTORCH.write(*case).files["train.py"] for case in cases]
    blocks = [re.search(r"^CONFIG = \{\n(    .*\n)+\}$", text, re.MULTILINE) for text in texts]
    assert all(blocks)
    rest = {
        re.sub(r"^#.*\n", "", text.replace(block[0], ""), flags=re.MULTILINE)
        for text, block in zip(texts, blocks, strict=True)
        if block
    }
    assert len(rest) == 1


def test_every_entry_is_used_and_every_use_is_an_entry() -> None:
    text = PYTORCH.write(*CASES["llama-3d"]).files["train.py"]
    assert set(re.findall(r"\bC\.(\w+)", text)) == KEYS | EXPERTS.keys()


def test_the_mesh_is_the_order_of_ranks() -> None:
    text = PYTORCH.write(*CASES["llama-3d"]).files["train.py"]
    names = re.search(r"mesh_dim_names=\((.*)\)", text)
    assert names
    said = tuple(re.findall(r'"(\w+)"', names[1]))
    assert said == ORDERS["pytorch"].axes[::-1] == ORDERS["torchtitan"].axes[::-1]


def changed(name: str, value: str) -> dict[str, str]:
    files = dict(PYTORCH.write(*CASES["llama-3d"]).files)
    text, count = re.subn(
        rf'^(    "{name}": ).*?,(  #|$)', rf"\g<1>{value},\2", files["train.py"], flags=re.MULTILINE
    )
    assert count == 1
    return files | {"train.py": text}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("tp", "__import__('os').getpid()", "plain values only"),
        ("tp", "-1", "tp: Input should be greater"),
        ("hidden_size", "'wide'", "hidden_size: Input should be a valid integer"),
        ("stage_layers", "[4, 4, 4]", "3 stages for pp 4"),
        ("stage_layers", "[4, 0, 4, 4]", "an empty stage"),
        ("stage_layers", "'4444'", "list of integers"),
        ("stage_layers", "[4, 4, 4, 4, 1, 4, 4, 4]", "vpp 2 does not go with schedule 1f1b"),
        ("schedule", "'Ring'", "no schedule 'Ring'"),
        ("schedule", "'ZBVZeroBubble'", "vpp 1 does not go with schedule zb-v"),
        ("pp", "0", "degrees at least 1"),
        ("pp", "'4'", "list of integers"),
        ("dp_shard", "10 ** 9", "plain values only"),
        ("dp_shard", "1000000000", "dp: Input should be less"),
    ],
)
def test_what_makes_no_sense_is_not_read_and_says_where(name: str, value: str, text: str) -> None:
    assert PYTORCH.read
    with pytest.raises(Unreadable, match=re.escape(text)) as caught:
        PYTORCH.read(changed(name, value), None)
    assert caught.value.file == "train.py"
    assert caught.value.line > 0


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("", "no CONFIG block"),
        ("CONFIG = [", "not Python"),
        ("CONFIG = dict(tp=1)", "not a dictionary"),
        ("CONFIG = {**__import__('os').environ}", "plain values only"),
        ("CONFIG = {'tp': 1}", "CONFIG has no"),
        ("CONFIG = \0", "not Python"),
        ("CONFIG = " + "(" * 5000, "not Python"),
    ],
)
def test_scripts_without_a_config_are_not_read(script: str, text: str) -> None:
    assert PYTORCH.read
    with pytest.raises(Unreadable, match=text):
        PYTORCH.read({"train.py": script}, None)


@pytest.mark.parametrize(
    ("was", "now", "text"),
    [
        ('"encoders": [', '"encoders": ["none", ', "a list of dictionaries"),
        ("[[1024, 1024], [1024, 512]]", "[1024, 512]", "a list of pairs"),
        ("[[1024, 1024], [1024, 512]]", "1024", "a list of pairs"),
        ('"frozen": ["encoders"]', '"frozen": ["all"]', "frozen"),
    ],
)
def test_encoders_that_make_no_sense_are_not_read(was: str, now: str, text: str) -> None:
    files = dict(PYTORCH.write(*CASES["encoders-frozen"]).files)
    assert PYTORCH.read
    assert files["train.py"].count(was) == 1
    with pytest.raises(Unreadable, match=text):
        PYTORCH.read(files | {"train.py": files["train.py"].replace(was, now)}, None)


def test_a_script_alone_is_read_and_leaves_the_machine_open() -> None:
    assert PYTORCH.read
    request, plan = CASES["llama-3d"]
    script = PYTORCH.write(request, plan).files["train.py"]
    reading = PYTORCH.read({"train.py": script.replace('"tp": 2', '"tq": 1, "tp": 2')}, None)
    assert (reading.plan, reading.nodes, reading.accelerators_per_node) == (
        plan.model_copy(update={"dp_shard": 0}),
        None,
        None,
    )
    assert [one.name for one in reading.unknown] == ["tq"]
    with pytest.raises(Unreadable, match="missing"):
        PYTORCH.read({}, None)
