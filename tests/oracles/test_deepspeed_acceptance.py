"""Drawn plans against DeepSpeed, and with a checkout against Megatron-DeepSpeed, both ways.

The checkout is that of tests.tools.checkouts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from planner.frameworks.base import Unsupported
from tests.fixtures.draws import DEEPSPEED_FEATURES, Case, features, legal
from tests.fixtures.frameworks.deepspeed import CASES
from tests.fixtures.near_misses import near_misses
from tests.oracles.deepspeed_questions import DEEPSPEED, ask, expected, question
from tests.planner.frameworks.test_deepspeed import REFUSED
from tests.tools.checkouts import checkout

REPOSITORY = "deepspeedai/Megatron-DeepSpeed"

# What we refuse although nothing of theirs does: words of the reason, and why it is refused.
NO_OPTION = "there is no option for it, and without one it builds or does another thing"
SILENT = "the option would do nothing"
OWN = "a rule of the planner for any pipeline; the engine deals layers out by itself"
UNSEEN = {
    "two norms, before attention": NO_OPTION,
    "has its own fused kernels": NO_OPTION,
    "no parallel attention and MLP": NO_OPTION,
    "no norm after the embedding": NO_OPTION,
    "the output layer has no bias": NO_OPTION,
    "no norms on queries and keys": NO_OPTION,
    "no latent attention": NO_OPTION,
    "its own MoE layers are not planned": NO_OPTION,
    "no attention sinks": NO_OPTION,
    "no sliding window": NO_OPTION,
    "no multi-token prediction": NO_OPTION,
    "biases in all places or in none": NO_OPTION,
    "has no experts": "a dense model is written without expert options; its plan has no such axis",
    "master weights and states are always fp32": NO_OPTION,
    "the topology is fixed": NO_OPTION,
    "tensor-parallel communication is not overlapped": NO_OPTION,
    "shards span all": NO_OPTION,
    "has one chunk of layers per stage": NO_OPTION,
    "works on an fp32 copy of the logits": NO_OPTION,
    "always frees gathered weights": NO_OPTION,
    "the position table has": "written, the table would grow to the sequence",
    "optimizer offload needs Adam": "without ZeRO the key is not read; SGD has no CPU kernel",
    "activations of all layers are offloaded": NO_OPTION,
    "key/value heads and tp .* x cp": "an assertion of its first forward pass",
    "recompute_num_layers .* of": "it would recompute every layer",
    "cross_entropy chunked runs on runtime": NO_OPTION,
    "is itself the runtime": "costs are of another runtime",
    "runs 1F1B only": "written, it would run 1F1B",
    "only Ulysses \\(all-to-all\\)": "written, it would be all-to-all",
    "runs only without tp and pp": "its groups and its pipeline engine know no sequence axis",
    "seq_length .* does not split": "an assertion on the first batch, or in the first forward pass",
    "splits layers evenly": OWN,
    "need pp > 1": OWN,
    "needs pp > 1": OWN,
    "do not divide over": OWN,
    "sequence_parallel needs tp > 1": SILENT,
    "does not divide dp x cp": NO_OPTION,
    "gradients are reduced after the backward": SILENT,
    "only ZeRO-3 prefetches weights": SILENT,
    "activation offload needs full recompute": SILENT,
    "selective recompute needs unfused": SILENT,
    "recompute_method is uniform": SILENT,
    "flash-attention 1 cannot be installed": "a package that does not install beside its torch",
    "unfused attention cannot split": "its unfused attention builds scores of the whole sequence",
}


def write(cases: list[Case]) -> list[dict[str, Any]]:
    return [question(DEEPSPEED.write(*case), case[1]) for case in cases]


def different(cases: list[Case], answers: list[dict[str, Any]], own: Path | None) -> list[Any]:
    """Cases that were refused, or found to be another thing than they are."""
    return [
        (case, answer)
        for case, answer in zip(cases, answers, strict=True)
        if answer != expected(*case, own)
    ]


@pytest.mark.exhaustive
def test_deepspeed_takes_what_we_write_and_we_refuse_what_it_refuses() -> None:
    """The installed package: its config, topology and launcher."""
    fine = [*CASES.values(), *legal(DEEPSPEED, 40, seed=1)]
    near = near_misses(fine, 60, seed=2)
    questions = [question(DEEPSPEED.render(*case), case[1]) for case in near]
    sound = write(fine)
    broken = {**sound[0], "config": {**sound[0]["config"], "zero_optimisation": {}}}
    *answers, unread = ask([*sound, *questions, broken])
    assert different(fine, answers[: len(fine)], None) == []
    refused = [
        (case, answer)
        for case, answer in zip(near, answers[len(fine) :], strict=True)
        if answer["failed"]
    ]
    assert len(refused) > 3
    assert [each for each in refused if not DEEPSPEED.reasons(*each[0])] == []
    assert "zero_optimisation" in unread["error"]


@pytest.mark.slow
def test_the_draws_have_every_feature() -> None:
    counts = features([*CASES.values(), *legal(DEEPSPEED, 400, seed=3)])
    assert not [name for name in DEEPSPEED_FEATURES if counts[name] == 0], counts


@pytest.mark.exhaustive
def test_what_we_write_megatron_deepspeed_takes_and_builds_as_we_count() -> None:
    """Micro-batches, groups, and layers and parameters of every stage."""
    own = checkout(REPOSITORY)
    fine = [*CASES.values(), *legal(DEEPSPEED, 400, seed=3)]
    assert different(fine, ask(write(fine), own), own) == []


@pytest.mark.exhaustive
def test_what_they_refuse_we_refuse_and_the_other_way_round_or_the_table_says_why() -> None:
    refused = [case for *_, case in REFUSED]
    cases, questions = list[Case](), []
    for case in [*refused, *near_misses(legal(DEEPSPEED, 150, seed=4), 400, seed=5)]:
        try:
            questions.append(question(DEEPSPEED.render(*case), case[1]))
        except (Unsupported, KeyError):
            assert DEEPSPEED.reasons(*case)  # no words for it
        else:
            cases.append(case)
    reached, accepted, unexplained = set[str](), [], []
    for case, answer in zip(cases, ask(questions, checkout(REPOSITORY)), strict=True):
        reasons = DEEPSPEED.reasons(*case)
        words = [[w for w in UNSEEN if re.search(w, reason.text)] for reason in reasons]
        reached |= {word for some in words for word in some}
        if answer["failed"] is None:
            unexplained += [reasons] if not all(words) else []
        elif not reasons:
            accepted.append((answer["failed"], answer["error"], case))
    assert not accepted, (len(accepted), accepted[:3])
    assert not unexplained, (len(unexplained), unexplained[:5])
    assert reached == set(UNSEEN)
