"""Models whose layers differ against Megatron-LM itself: what we write it takes and builds.

Of its checkouts (tests.tools.checkouts) those of core 0.19 and later are asked.
"""

from __future__ import annotations

import pytest

from planner.frameworks.megatron.pattern_rules import RULES
from tests.fixtures.patterns import PATTERNED
from tests.oracles.megatron_questions import MEGATRON, ask, expected, found, question
from tests.planner.frameworks.test_megatron_patterns import REFUSED, drawn
from tests.tools.checkouts import megatron_lm_versions

VERSIONS = [version for version in megatron_lm_versions() if version >= "0.19"]
# Refused although Megatron starts: words of the reason, and why.
UNSEEN = {
    "does not support biases": "biases of one projection have no option: it builds another model",
    "before core 0.20": "its FSDP would gather the whole model at once",
    "no activation offload": "the option would do nothing",
    "no schedule for overlap_ep": "an error of its first forward pass",
    "different numbers": "it would recompute other blocks than planned",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", VERSIONS)
def test_what_we_write_it_takes_and_builds_as_we_count(version: str) -> None:
    """Micro-batches, layers and parameters of every chunk, and ranks of every group."""
    cases = [case for name in PATTERNED for case in drawn(name, 10)]
    questions = [question(MEGATRON.write(*case), case[1]) for case in cases]
    for case, answer in zip(cases, ask(version, questions), strict=True):
        wanted = expected(*case)
        assert found(answer, wanted) == wanted, case


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_rules_refuse_it_refuses_or_the_table_says_why(version: str) -> None:
    questions = [question(MEGATRON.render(*case), case[1]) for _, case in REFUSED]
    assert len(REFUSED) >= len(RULES)
    for (text, _), answer in zip(REFUSED, ask(version, questions), strict=True):
        assert (answer["failed"] is None) is any(words in text for words in UNSEEN), answer
