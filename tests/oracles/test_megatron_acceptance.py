"""Drawn plans against Megatron-LM itself, both ways: what we write it takes, what it refuses we do.

MEGATRON_LM_PATHS names its checkouts, separated like PATH.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from planner.answer import Reason
from planner.frameworks.base import Unsupported
from tests.fixtures.draws import Case, features, legal, near_misses
from tests.fixtures.frameworks.megatron import CASES
from tests.oracles.megatron_questions import MEGATRON, PATHS, ask, expected, found, question

CHECKOUTS = [pytest.param(path, id=Path(path).name) for path in PATHS] or [
    pytest.param("", marks=pytest.mark.skip(reason="MEGATRON_LM_PATHS names no checkout"))
]
GENERATIONS = (8, 9, 10)  # Ampere, Hopper, Blackwell

# What we refuse although Megatron builds it: words of the reason, and why it is refused.
NO_OPTION = "it has no option for it, and without one builds another model"
FORWARD = "an assertion of its first forward pass"
UNSEEN = {
    "does not split into": f"sequence parallelism scatters the sequence: {FORWARD}",
    "has no experts": "a dense model is written without expert options; its plan has no such axis",
    "two norms, one before each part": NO_OPTION,
    "attention and MLP never run in parallel": NO_OPTION,
    "no norm after the embedding": NO_OPTION,
    "the output layer has no bias": NO_OPTION,
    "query/key norm runs over one head": NO_OPTION,
    "linear biases are all, none": NO_OPTION,
    "its shared experts have no biases": NO_OPTION,
    "no bias in the query and key/value": NO_OPTION,
    "training without fp32 master weights": NO_OPTION,
    "there is no GPipe schedule": "written, it would run 1F1B",
    "is disabled since core 0.18.2": "written, it would run the native kernels: more memory",
    "fp8 needs every width": "an assertion of Transformer Engine's fp8 kernels",
    "at least one per group": "groups are chosen by their best top-k // groups scores: by none",
    "latent attention with a sliding window": "no kernel of Transformer Engine has both",
    "latent attention without q_lora_rank": "builds a norm that the model has not",
    "recompute_num_layers": "the same as all layers, which is how a plan says it",
    "unfused attention cannot split the sequence": "Transformer Engine's unfused kernel has no "
    "context parallelism",
    "need sequence_parallel": f"experts under tensor parallelism: {FORWARD}",
    "sequence_parallel needs tp > 1": "it turns the option off without a word",
    "the distributed optimizer runs Adam": "an assertion of DistributedOptimizer, once there are "
    "weights on a device",
    "on the megatron stack is not possible": "its FSDP would gather and free all weights in every "
    "pass of every micro-batch, which no cost formula counts",
    "needs host_link_bytes_per_s": "what the host link does is not known",
}


@cache
def drawn() -> list[Case]:
    """Legal plans: all named cases, and draws."""
    return [*CASES.values(), *legal(MEGATRON, 400, seed=1)]


def test_the_draws_have_every_feature() -> None:
    counts = features(drawn())
    assert not [name for name, count in counts.items() if count == 0], counts


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", CHECKOUTS)
def test_what_we_write_it_takes_and_builds_as_we_count(path: str) -> None:
    """Micro-batches, layers and parameters of every chunk, and ranks of every group."""
    questions = [
        question(MEGATRON.write(*case), case[1], generation=GENERATIONS[index % 3])
        for index, case in enumerate(drawn())
    ]
    wrong = []
    for case, answer in zip(drawn(), ask(path, questions), strict=True):
        wanted = expected(*case)
        if found(answer, wanted) != wanted:
            wrong.append((case, found(answer, wanted), wanted))
    assert not wrong, (len(wrong), wrong[:3])


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", CHECKOUTS)
def test_what_it_refuses_we_refuse_and_the_other_way_round_or_the_table_says_why(path: str) -> None:
    cases, questions = [], []
    for case in near_misses(legal(MEGATRON, 150, seed=2), 1200, seed=3):
        try:
            questions.append(question(MEGATRON.render(*case), case[1]))
        except (Unsupported, KeyError):
            assert MEGATRON.reasons(*case)  # no words for it
        else:
            cases.append((case, MEGATRON.reasons(*case)))
    reached: set[str] = set()
    accepted, unexplained = [], []
    for (case, reasons), answer in zip(cases, ask(path, questions), strict=True):
        if answer["failed"] is None and not set(reasons) <= set(explained(reasons)):
            unexplained.append(reasons)
        elif answer["failed"] is None:
            reached |= set(explained(reasons).values())
        elif not reasons:
            accepted.append((answer["failed"], answer["error"], case))
    assert not accepted, (len(accepted), accepted[:3])
    assert not unexplained, (len(unexplained), unexplained[:5])
    assert sum(not reasons for _, reasons in cases) > 400
    assert sum(bool(reasons) for _, reasons in cases) > 300
    assert reached == set(UNSEEN)


def explained(reasons: tuple[Reason, ...]) -> dict[Reason, str]:
    """The reasons that the table has, with its key."""
    return {
        reason: words for reason in reasons for words in UNSEEN if re.search(words, reason.text)
    }


# Switch left out, arguments added at the end (the last one counts), stage and words that refuse.
BROKEN = (
    ("", "--log-throughputs", "parse", "--log-throughputs"),
    ("", "--train-iters 1e3", "parse", "1e3"),
    ("", "--global-batch-size 65", "validate", "65"),
    ("--sequence-parallel", "", "validate", "sequence parallelism"),
    ("", "--num-attention-heads 15", "config", "15"),
    ("", "--num-layers 17", "config", "11 must be"),
    ("", "--exp-avg-dtype bf16", "optimizer", "exp_avg_dtype"),
    ("", "--num-distributed-optimizer-instances 3", "groups", ""),
    ("", "--ffn-hidden-size 1791", "model", "1791"),
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", CHECKOUTS)
def test_every_stage_can_refuse(path: str) -> None:
    request, plan = CASES["llama-uneven"]
    base = question(MEGATRON.write(request, plan), plan)
    questions = [
        {**base, "argv": [*(word for word in base["argv"] if word != without), *more.split()]}
        for without, more, _, _ in BROKEN
    ]
    for (_, _, stage, words), answer in zip(BROKEN, ask(path, questions), strict=True):
        assert answer["failed"] == stage, answer
        assert words in answer["error"]
