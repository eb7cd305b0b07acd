"""Every option of Megatron-LM's parser was looked at: a field of a plan, or a reason why not."""

from __future__ import annotations

import json

from planner import frameworks
from planner.frameworks.arguments import known_arguments
from planner.frameworks.megatron.unplanned import UNPLANNED
from tests.fixtures.frameworks.megatron import CASES
from tests.fixtures.goldens import GOLDEN
from tests.oracles.megatron_arguments import FILE, merged, text

MEGATRON = frameworks.get("megatron")
KNOWN = known_arguments("planner.frameworks.megatron")
# After a refresh of arguments.json: decide of each new option whether it is written, read, listed
# in planner/frameworks/megatron/unplanned.py, or costs nothing; then add it here.
LOOKED = json.loads((GOLDEN / "megatron_looked.json").read_text())


def test_no_option_of_a_newer_release_was_left_unlooked_at() -> None:
    assert sorted(set(KNOWN["flags"]) - set(LOOKED["options"])) == []
    assert max(KNOWN["versions"]) == LOOKED["until"]


def test_a_new_option_would_be_noticed() -> None:
    newer = {**KNOWN["flags"], "--brand-new": {"kind": "switch"}}
    assert set(newer) - set(LOOKED["options"]) == {"--brand-new"}


def test_what_is_no_field_is_an_option_and_is_not_written() -> None:
    assert set(UNPLANNED) <= set(KNOWN["flags"])
    written = {flag.name for case in CASES.values() for flag in MEGATRON.write(*case).flags} | {
        name for field in MEGATRON.fields.values() for name in field.names
    }
    assert not set(UNPLANNED) & written


def test_a_launch_that_gives_one_says_that_it_is_not_costed() -> None:
    assert MEGATRON.read is not None
    script = MEGATRON.write(*CASES["llama-uneven"]).files["launch.sh"]
    more = script.replace('  "$@"', "  --delay-wgrad-compute --cuda-graph-impl local")
    assert more != script
    before, after = (MEGATRON.read({"launch.sh": text}, None) for text in (script, more))
    assert after.plan == before.plan
    said = set(after.assumed) - set(before.assumed)
    assert {text.split(" is not costed: ")[0] for text in said} == {
        "--cuda-graph-impl",
        "--delay-wgrad-compute",
    }


def test_a_version_is_added_to_the_list() -> None:
    """To refresh arguments.json: a known version changes nothing, a new one adds its options."""
    last = max(KNOWN["versions"])
    rows = {
        name: {key: value for key, value in row.items() if key != "versions"}
        for name, row in KNOWN["flags"].items()
        if last in row.get("versions", KNOWN["versions"])
    }
    assert merged(KNOWN, last, KNOWN["versions"][last], rows) == KNOWN
    assert text(KNOWN) == FILE.read_text()
    newer = merged(KNOWN, "9.0.0", "tag", {**rows, "--brand-new": {"kind": "switch"}})
    assert newer["flags"]["--brand-new"] == {"kind": "switch", "versions": ["9.0.0"]}
    assert newer["flags"]["--adam-eps"] == KNOWN["flags"]["--adam-eps"]
    gone = next(
        name for name, row in KNOWN["flags"].items() if last not in row.get("versions", [last])
    )
    assert newer["flags"][gone] == KNOWN["flags"][gone]
