"""Drawn plans against Megatron-LM itself, both ways: what we write it takes, what it refuses we do.

Its checkouts are those of tests.tools.checkouts.
"""

from __future__ import annotations

import re
from functools import cache

import pytest

from cost_models.spec import ModelSpec
from planner.frameworks.base import Unsupported
from tests.fixtures.draws import Case, features, legal
from tests.fixtures.frameworks.megatron import CASES
from tests.fixtures.launches import MODELS, launch
from tests.fixtures.near_misses import near_misses
from tests.oracles.megatron_questions import MEGATRON, ask, expected, found, question
from tests.planner.frameworks.test_megatron import REFUSED
from tests.tools.checkouts import megatron_lm_versions

VERSIONS = [version for version in megatron_lm_versions() if version >= "0.18"]
GENERATIONS = (8, 9, 10)  # Ampere, Hopper, Blackwell

# What we refuse although Megatron builds it: words of the reason, and why it is refused.
NO_OPTION = "it has no option for it, and without one builds another model"
FORWARD = "an assertion of its first forward pass"
DEVICE = "an error of building the optimizer, over weights on a device"
UNSEEN = {
    "parts \\(cp": f"a sequence scattered over ranks: {FORWARD}",
    "heads must be multiples of tp": f"all-to-all trades the sequence for heads: {FORWARD}",
    "key/value heads and tp .* x cp": f"all-to-all trades the sequence for heads: {FORWARD}",
    "heads do not divide over tp .* x cp": f"all-to-all trades the sequence for heads: {FORWARD}",
    "has no experts": "a dense model is written without expert options; its plan has no such axis",
    "two norms, before attention": NO_OPTION,
    "without torch.compile": NO_OPTION,
    "no parallel attention and MLP": NO_OPTION,
    "no norm after the embedding": NO_OPTION,
    "the output layer has no bias": NO_OPTION,
    "query/key norms are per head": NO_OPTION,
    "all linear layers have biases, none": NO_OPTION,
    "a LayerNorm always has a bias": NO_OPTION,
    "no bias in the query and key/value": NO_OPTION,
    "latent attention has rotary positions only": "it rotates whatever is asked",
    "latent attention without q_lora_rank": "it builds a norm that the model has not",
    "the position table has": "written, the table would grow to the sequence",
    "master weights are always fp32": NO_OPTION,
    "always frees gathered weights": NO_OPTION,
    "its pipeline schedules are 1F1B": "written, it would run 1F1B",
    "steps after the backward pass": NO_OPTION,
    "optimizer_in_backward needs one micro-batch": NO_OPTION,
    "cross_entropy chunked runs on runtime": NO_OPTION,
    "is itself the runtime": "costs are of another runtime",
    "since core 0.18.2 Transformer Engine": "written, it would run the native kernels: more memory",
    "fp8 needs every width": "an assertion of Transformer Engine's fp8 kernels",
    "attention sinks with context": f"Transformer Engine's attention: {FORWARD}",
    "sliding window with context": f"Transformer Engine's attention: {FORWARD}",
    "group-limited routing": "groups are chosen by their best top-k // groups scores: by none",
    "latent attention with a sliding window": "no kernel of Transformer Engine has both",
    "unfused attention cannot split": "Transformer Engine's unfused kernel splits no sequence",
    "to recompute$": "the option would do nothing",
    "recompute_num_layers": "the same as all layers, which is how a plan says it",
    "need sequence_parallel": f"experts under tensor parallelism: {FORWARD}",
    "sequence_parallel needs tp > 1": "it turns the option off without a word",
    "do not split in": "its layout can say it, but costs are of equal chunks in the middle stages",
    "dp_shard .* does not divide": "written, the number of instances would be rounded down",
    "the distributed optimizer needs Adam, not": DEVICE,
    "optimizer states need the distributed optimizer": DEVICE,
    "dynamic_cp needs packed samples": FORWARD,
    "--hybrid-context-parallel does not support": FORWARD,
    "gathers no keys of packed samples": f"Transformer Engine's attention: {FORWARD}",
    "Muon does not train in fp16": DEVICE,
    "Muon is replicated or split by layer": DEVICE,
    "has no kernels for": "the dispatchers are stood in for, their kernels are not asked",
    "offloading the optimizer needs Adam on": f"for SGD and ZeRO 0 {DEVICE}; with its FSDP it "
    "is neither documented nor tested",
    "on the megatron runtime is not possible": "its FSDP would gather and free all weights in "
    "every pass of every micro-batch, which no cost formula counts",
    "the cluster has": "dp is what the other sizes leave of the world, whatever the plan says",
}


# What the draws seldom come to.
THIRTEEN = ModelSpec(**{**MODELS["llama"].model_dump(), "num_layers": 13})
SELDOM = (
    launch(THIRTEEN, pp=2, vpp=3, schedule="interleaved-1f1b", stage_layers=(6, 7)),
    launch(recompute="full", recompute_num_layers=20),
    launch(recompute="selective", recompute_modules=("moe",)),
    launch("gpt", cp=16, cp_kind="a2a"),
)


@cache
def drawn() -> list[Case]:
    """Legal plans: all named cases, and draws."""
    return [*CASES.values(), *legal(MEGATRON, 400, seed=1)]


@pytest.mark.exhaustive
def test_the_draws_have_every_feature() -> None:
    counts = features(drawn())
    assert not [name for name, count in counts.items() if count == 0], counts


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", VERSIONS)
def test_what_we_write_it_takes_and_builds_as_we_count(version: str) -> None:
    """Micro-batches, layers and parameters of every chunk, and ranks of every group."""
    questions = [
        question(MEGATRON.write(*case), case[1], generation=GENERATIONS[index % 3])
        for index, case in enumerate(drawn())
    ]
    wrong = []
    for case, answer in zip(drawn(), ask(version, questions), strict=True):
        wanted = expected(*case)
        if found(answer, wanted) != wanted:
            wrong.append((case, found(answer, wanted), wanted))
    assert not wrong, (len(wrong), wrong[:3])


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", VERSIONS)
def test_what_it_refuses_we_refuse_and_the_other_way_round_or_the_table_says_why(
    version: str,
) -> None:
    cases, questions = [], []
    refused = [case for *_, case in REFUSED]
    for case in [*refused, *SELDOM, *near_misses(legal(MEGATRON, 150, seed=2), 800, seed=3)]:
        try:
            questions.append(question(MEGATRON.render(*case), case[1]))
        except (Unsupported, KeyError):
            assert MEGATRON.reasons(*case)  # no words for it
        else:
            cases.append((case, MEGATRON.reasons(*case)))
    reached, accepted, unexplained = set[str](), [], []
    for (case, reasons), answer in zip(cases, ask(version, questions), strict=True):
        words = [[w for w in UNSEEN if re.search(w, reason.text)] for reason in reasons]
        reached |= {word for some in words for word in some}
        if answer["failed"] is None:
            unexplained += [reasons] if not all(words) else []
        elif not reasons:
            accepted.append((answer["failed"], answer["error"], case))
    assert not accepted, (len(accepted), accepted[:3])
    assert not unexplained, (len(unexplained), unexplained[:5])
    assert sum(not reasons for _, reasons in cases) > 400
    assert sum(bool(reasons) for _, reasons in cases) > 200
    assert reached == set(UNSEEN)


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
@pytest.mark.parametrize("version", VERSIONS)
def test_every_stage_can_refuse(version: str) -> None:
    request, plan = CASES["llama-uneven"]
    base = question(MEGATRON.write(request, plan), plan)
    questions = [
        {**base, "argv": [*(word for word in base["argv"] if word != without), *more.split()]}
        for without, more, _, _ in BROKEN
    ]
    for (_, _, stage, words), answer in zip(BROKEN, ask(version, questions), strict=True):
        assert answer["failed"] == stage, answer
        assert words in answer["error"]
