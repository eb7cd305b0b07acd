"""GRPO among the ways that fit: against `planner.rl`, arithmetic and the files of a step."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from planner import fit, rl
from planner.answers.fits.answer import FitAnswer, Row
from planner.answers.fits.by_card import parse_cards
from planner.documents.problems import RequestError
from tests.fixtures.commands import Planner

GIB = 2**30
FIT = {"methods": ["grpo"], "lengths": [1024, 8192]}


def grpo(model: str, cluster: str, **training: Any) -> tuple[FitAnswer, Row]:
    answer = fit({"model": model, "cluster": cluster, "training": training, "fit": FIT})
    (row,) = answer.rows
    return answer, row


def step(model: str, cluster: str, length: int, prompts: int = 16) -> Any:
    return rl({
        "model": model, "cluster": cluster, "training": {"lora_rank": 16},
        "reinforcement": {
            "trainer": "trl", "prompts": prompts, "samples": 8, "prompt_tokens": length // 4,
            "max_response_tokens": length - length // 4,
        },
    })  # fmt: skip


def test_it_is_the_step_that_rl_answers() -> None:
    answer, row = grpo("qwen3-1.7b", "1xh100", tokens=10e6)
    for cell in row.cells:
        own = step("qwen3-1.7b", "1xh100", cell.seq_length)
        rate = own.tokens / own.step_time_s
        assert cell.fits
        assert cell.plan == own.training.plan
        assert cell.tokens_per_s == pytest.approx(rate)
        assert cell.hours == pytest.approx(10e6 / rate / 3600)
        price = answer.price_usd_per_accelerator_hour
        assert cell.cost_usd == pytest.approx(cell.hours * price)
        training = next(one for one in own.memory if one.name == "training")
        assert cell.needed_bytes >= training.total_bytes
        assert cell.needed_bytes + cell.spare_bytes == pytest.approx(answer.room_bytes)
    (note,) = (one.text for one in answer.assumptions if one.code == "grpo")
    assert "16 prompts of a quarter of the length and 8 responses" in note
    own = step("qwen3-1.7b", "1xh100", 8192)
    assert f"{own.interval_s[1] / own.step_time_s:.2f} times the time shown" in note


def test_two_copies_of_8b_do_not_fit_24_gb() -> None:
    """TRL keeps the policy while vLLM holds its own copy, 15.3 GiB each; there is no shorter way.

    A length that lacks room for training lacks it for the engine too.
    """
    _, row = grpo("qwen3-8b", "1x1xrtx-4090")
    assert row.longest_seq_length is None
    assert not any(cell.fits or cell.plan or cell.command for cell in row.cells)
    short, long = (cell.spare_bytes for cell in row.cells)
    room = short + row.cells[0].needed_bytes
    assert 2 * 8.19e9 * 2 - room < -short < 2 * 8.19e9 * 2 - room + 4 * GIB
    assert long <= short
    assert row.change is not None
    nodes = row.change.set["nodes"]
    fitting = step("qwen3-8b", f"{nodes}x1xrtx-4090", 1024)
    assert row.change.tokens_per_s == pytest.approx(fitting.tokens / fitting.step_time_s)
    with pytest.raises(RequestError):
        step("qwen3-8b", f"{nodes // 2}x1xrtx-4090", 1024)


def test_the_longest_is_the_last_that_fits() -> None:
    _, row = grpo("qwen3-4b", "1x1xrtx-4090")
    longest = row.longest_seq_length
    assert longest is not None
    assert longest % 256 == 0
    lengths = {"methods": ["grpo"], "lengths": [longest, longest + 256]}
    answer = fit({"model": "qwen3-4b", "cluster": "1x1xrtx-4090", "fit": lengths})
    assert [cell.fits for cell in answer.rows[0].cells] == [True, False]


def test_a_batch_is_prompts_times_their_responses() -> None:
    _, row = grpo("qwen3-1.7b", "1xh100", global_batch_size=32)
    assert "--prompts 4 --samples 8" in (row.cells[0].command or "")
    _, row = grpo("qwen3-1.7b", "1xh100", global_batch_size=6)
    assert "--prompts 3 --samples 2" in (row.cells[0].command or "")
    _, row = grpo("qwen3-1.7b", "1xh100", global_batch_size=15)
    assert row.cells == ()
    assert row.reason == ("GRPO compares the responses of a prompt: the batch must be even, got 15")


def test_the_command_writes_the_step(planner: Planner) -> None:
    _, row = grpo("qwen3-1.7b", "1xh100")
    program, *words = shlex.split(row.cells[0].command or "")
    assert program == "planner"
    code, out, _ = planner(*words)
    assert code == 0
    assert "trl.scripts.grpo" in out
    assert "max_completion_length: 768" in out


def test_every_card_has_no_grpo() -> None:
    """It compares trainers of one pass; which cards run GRPO is asked of one at a time."""
    with pytest.raises(RequestError, match="methods"):
        parse_cards({"model": "qwen3-8b", "cards": {"methods": ["grpo"]}})


@pytest.mark.parametrize(
    ("model", "cluster", "reason"),
    [
        ("deepseek-v2-lite", "1x8xh100-sxm", "family does not have the modules q_proj, k_proj"),
        ("gpt2", "1x8xh100-sxm", "gpt2's family does not have the modules"),
        ("llama-3.1-8b", "1x4xtpu-v5e", "its launch files are for CUDA and ROCm devices"),
    ],
)
def test_what_trl_cannot_run_is_refused_in_its_words(model: str, cluster: str, reason: str) -> None:
    """`planner rl` prices such a step by another framework's plan, without files to run it."""
    _, row = grpo(model, cluster)
    assert row.cells == ()
    assert row.change is None
    assert reason in (row.reason or "")


def test_experts_have_adapters_beside_them_alone(ask: Planner) -> None:
    """Those of experts are not modelled: the offered command writes what was priced."""
    _, row = grpo("olmoe-1b-7b", "1x1xh100-sxm")
    assert "adapters of attention alone" in row.trains_with
    command = row.cells[0].command
    assert command is not None
    code, out, _ = ask(*shlex.split(command)[1:])
    assert code == 0
    assert "q_proj" in out
    assert "gate_proj" not in out


def test_a_size_without_a_legal_plan_loses_no_other_row() -> None:
    """Doubled nodes and longer sequences may leave TRL no plan: the other ways still answer."""
    answer = fit({
        "model": "llama-3.1-405b", "cluster": "1x1xrtx-4090",
        "training": {"global_batch_size": 2}, "fit": {"methods": ["lora", "grpo"]},
    })  # fmt: skip
    assert [row.method for row in answer.rows] == ["lora", "grpo"]
