"""The recipe for a dialect of Megatron-LM (docs/adding.md): one file emits, reads and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner import frameworks
from planner.answers.plans.competition import prepared
from planner.documents.request import SearchSpec
from planner.frameworks.base import Unsupported
from planner.frameworks.megatron.changes import Changes
from planner.search.space import Space
from tests.fixtures import dialect
from tests.fixtures.frameworks.megatron import CASES

MEGATRON = frameworks.get("megatron")
LACKS, WHY = "--tp-comm-overlap", "it has no kernels that overlap GEMMs with their messages"
MOST_LINES = 80


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(frameworks.FRAMEWORKS, "megalith", dialect.__name__)


def test_it_is_one_short_file() -> None:
    assert len(Path(dialect.__file__).read_text().splitlines()) <= MOST_LINES


def test_the_catalog_has_its_names_and_the_reason_for_what_it_lacks() -> None:
    fields = frameworks.get("megalith").fields
    assert fields["tp"].names == ("--split-layers",)
    assert fields["overlap_grad_reduce"].names == ("--reduce-early",)
    assert fields["pp"] == MEGATRON.fields["pp"]
    assert not fields["overlap_tp"].supported
    assert fields["overlap_tp"].note == WHY


@pytest.mark.parametrize("case", [case for case, (_, plan) in CASES.items() if not plan.overlap_tp])
def test_what_it_emits_is_read_back(case: str) -> None:
    megalith = frameworks.get("megalith")
    made, core = megalith.write(*CASES[case]), MEGATRON.write(*CASES[case])
    names = {one.name for one in made.flags}
    assert {"--split-layers"} <= names
    assert not names & {*dialect.CHANGES.names.values(), LACKS}
    assert len(made.flags) == len(core.flags)
    assert megalith.recognises(made.files)
    assert megalith.read is not None
    assert MEGATRON.read is not None
    own, theirs = megalith.read(made.files, None), MEGATRON.read(core.files, None)
    assert own.framework == "megalith"
    assert (own.model, own.training, own.plan) == (theirs.model, theirs.training, theirs.plan)
    assert (own.refusals, own.unknown) == ((), ())
    assert [one.name for one in own.unread] == [one.name for one in theirs.unread]


def test_a_plan_that_needs_what_it_lacks_is_refused() -> None:
    request, plan = next(one for one in CASES.values() if one[1].overlap_tp)
    with pytest.raises(Unsupported, match=f"Megalith cannot run this plan: {WHY}"):
        frameworks.get("megalith").write(request, plan)


def test_no_plan_of_a_search_needs_what_it_lacks() -> None:
    request, _ = next(one for one in CASES.values() if one[1].overlap_tp)
    for name, found in (("megatron", {0, 1}), ("megalith", {0})):
        asked, rules = prepared(request.model_copy(update={"search": SearchSpec(framework=name)}))
        plans = list(Space(asked, rules).chunks(1 << 14))
        assert {int(one) for chunk in plans for one in chunk.overlap_tp} == found


def test_a_launch_that_gives_what_it_lacks_is_refused_at_its_line() -> None:
    megalith = frameworks.get("megalith")
    script = megalith.write(*CASES["llama-context-hybrid"]).files["launch.sh"]
    more = script.replace('  "$@"', f"  {LACKS}")
    assert more != script
    assert megalith.read is not None
    (refusal,) = megalith.read({"launch.sh": more}, None).refusals
    assert refusal.reason.text == f"Megalith has no {LACKS}: {WHY}"
    assert refusal.setting is not None
    assert refusal.setting.line == len(more.splitlines())


def test_a_computed_option_cannot_be_declared_missing() -> None:
    with pytest.raises(ValueError, match="--cp-comm-type does not say a field of a plan alone"):
        Changes(missing={"--cp-comm-type": "it has none"}).rules()
