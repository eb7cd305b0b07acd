"""Frameworks that are told everything by arguments of a script: exactly those, and no others."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from planner import frameworks
from tests.fixtures.frameworks import ALL_CASES, CASES, bundle
from tests.fixtures.launches import FIRST_NODE, run_script, stored_flags, written

# Framework -> the stored list of its parser's flags.
STORED = {
    "megatron": "megatron",
    "deepspeed": "megatron_deepspeed",
    "mindspeed": "mindspeed",
}
NAMES = sorted(STORED)
SCRIPTS = [(name, case) for name, case in ALL_CASES if name in STORED]
LAUNCHER_OPTIONS = {"--nnodes", "--nproc_per_node", "--num_nodes", "--num_gpus"}


@pytest.mark.parametrize("name", NAMES)
def test_names_in_the_field_table_are_names_the_framework_has(name: str) -> None:
    keys = {flag.name for case in CASES[name] for flag in bundle(name, case).flags}
    known = set(stored_flags(STORED[name])["flags"])
    said = {n for field in frameworks.get(name).fields.values() for n in field.names}
    assert said <= keys | known | LAUNCHER_OPTIONS | {"zero_optimization.offload_optimizer"}


@pytest.mark.parametrize(("name", "case"), SCRIPTS)
def test_the_script_is_sound_bash_and_hands_over_exactly_the_flags(
    name: str, case: str, tmp_path: Path
) -> None:
    made = bundle(name, case)
    main = written(tmp_path, made)
    subprocess.run(["/bin/bash", "-n", main], check=True)
    (*_, call) = run_script(tmp_path, made.main)
    options = [f for f in made.flags if f.name.startswith("--")]
    words = [word for flag in options for word in flag.words]
    assert call[-len(words) :] == words


@pytest.mark.parametrize("name", NAMES)
def test_the_default_run_is_short_and_says_so_and_the_environment_lengthens_it(
    name: str, tmp_path: Path
) -> None:
    case, (request, _) = next(
        (case, asked) for case, asked in CASES[name].items() if asked[0].training.tokens
    )
    made = bundle(name, case)
    text = written(tmp_path, made).read_text()

    def iterations(**variables: str) -> list[str]:
        (*_, call) = run_script(tmp_path, made.main, variables={**FIRST_NODE, **variables})
        return call[call.index("--train-iters") + 1 : call.index("--train-iters") + 2]

    assert iterations() == iterations(TRAIN_ITERS="") == ["20"]
    assert iterations(TRAIN_ITERS="500") == ["500"]
    hostile = "1 2;touch pwned $(touch pwned) `touch pwned` *"
    assert iterations(TRAIN_ITERS=hostile) == [hostile]
    assert not (tmp_path / "pwned").exists()
    tokens, each = request.training.tokens, request.training.tokens_per_iteration
    assert tokens is not None
    length = f"iterations of {each} tokens; the {tokens:.4g} tokens asked for are"
    assert f"{length} {round(tokens / each)} iterations" in text
    assert "MOCK DATA" in text.split("set -euo")[0]
    assert "--lr 1.0e-4  # PLACEHOLDER" in text


@pytest.mark.parametrize(("name", "case"), SCRIPTS)
def test_what_the_plan_does_not_carry_is_listed_before_the_model_and_in_one_note(
    name: str, case: str
) -> None:
    made, model = bundle(name, case), CASES[name][case][0].model
    (note,) = [note for note in made.notes if note.code == "not_carried"]
    before, _, _ = made.files[made.main].partition("MODEL_ARGS=(")
    listed = re.findall(r"^#   (.+: .+)$", before, re.MULTILINE)
    assert note.text.endswith("; ".join(listed) + ".")
    facts = {line.partition(":")[0] for line in listed}
    assert len(facts) == len(listed)
    assert {"norm epsilon", "activation"} <= facts
    assert any("soft-capping" in fact for fact in facts)
    assert ("rotary base" in facts) == ("rope scaling" in facts) == (model.position == "rope")
    assert ("routed scaling factor" in facts) == (model.moe is not None)
    assert ("weight of the MTP loss" in facts) == (model.mtp_num_layers > 0)


@pytest.mark.parametrize(("name", "case"), SCRIPTS)
def test_options_named_for_what_is_not_carried_exist_and_are_not_given(
    name: str, case: str
) -> None:
    made = bundle(name, case)
    known = stored_flags(STORED[name])
    (note,) = [note for note in made.notes if note.code == "not_carried"]
    options = set(re.findall(r"--[a-z0-9-]+", note.text))
    assert options
    for option in options:
        assert option in known["flags"]
        assert set(known["flags"][option].get("versions", known["versions"])) >= set(
            known["versions"]
        )
    assert options & {flag.name for flag in made.flags} <= {"--swiglu"}
