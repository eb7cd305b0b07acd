"""What fits: against arithmetic, against estimates and emitted files, and against wrong input."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
from pydantic import ValidationError

import planner
from cost_models.plans import ParallelPlan
from planner import estimate
from planner.answers.fits import compute
from planner.answers.fits.answer import FitAnswer, Row
from planner.answers.fits.compute import with_micro_batch
from planner.answers.fits.request import LENGTHS, parse_fit
from planner.documents.answer import PlanAnswer
from planner.documents.problems import RequestError
from planner.inputs.requests.parser import parse_request
from planner.questions.examples import examples
from tests.fixtures.commands import Planner

GIB = 2**30
# Keys of the micro-batch that are not the Trainer's.
MICRO_BATCH = {"torchtune": "batch_size", "axolotl": "micro_batch_size"}
CARD = {"model": "llama-3.1-8b", "cluster": "1x1xrtx-4090", "training": {"tokens": 10e6}}
# Full tuning fits with the optimizer in host memory; a price is given.
NODE = {
    "model": "qwen3-4b", "cluster": "1x4xrtx-4090", "training": {"tokens": 10e6},
    "fit": {"lengths": [2048, 16384], "price_usd_per_accelerator_hour": 0.5},
}  # fmt: skip


@pytest.fixture(scope="module")
def card() -> FitAnswer:
    return planner.fit(CARD)


@pytest.fixture(scope="module")
def node() -> FitAnswer:
    return planner.fit(NODE)


def by_method(answer: FitAnswer) -> dict[str, Row]:
    return {row.method: row for row in answer.rows}


def test_what_everybody_knows_of_an_8b_on_24_gb(card: FitAnswer) -> None:
    """QLoRA and, in 16 bits with checkpoints, LoRA run; AdamW all in bf16 needs 8 bytes each."""
    rows = by_method(card)
    assert all(cell.fits for cell in rows["qlora"].cells)
    assert rows["lora"].cells[0].fits
    assert not any(cell.fits for cell in rows["full"].cells)
    assert rows["full"].trainer == "axolotl"
    assert rows["full"].cells[0].needed_bytes > 8 * 8.03e9
    assert rows["full"].longest_seq_length is None
    assert "ZeRO 3" in (rows["full-offload"].reason or "")
    own = rows["full-in-backward"]
    assert own.trainer == "torchtune"
    assert own.cells[0].fits
    assert "--optimizer paged_adam_8bit" in (own.cells[0].command or "")
    assert rows["qlora"].cells[2].largest_micro_batch > rows["lora"].cells[2].largest_micro_batch
    assert card.capacity_bytes == pytest.approx(24 * GIB, rel=0.01)


def test_optimizer_in_host_memory(node: FitAnswer) -> None:
    """FSDP takes bf16 weights, their gradients and both moments there: 8 bytes of a parameter."""
    rows = by_method(node)
    assert (rows["full"].trainer, rows["full-offload"].trainer) == ("axolotl", "axolotl")
    assert rows["full"].cells[0].needed_bytes > 8 * 4.02e9 / 4
    assert all(cell.fits for cell in rows["full-offload"].cells)
    assert rows["full-offload"].cells[0].host_bytes == pytest.approx(8 * 4.02e9, rel=0.01)


@pytest.mark.parametrize("name", ["card", "node"])
def test_longer_sequences_never_fit_more(name: str, request: pytest.FixtureRequest) -> None:
    answer: FitAnswer = request.getfixturevalue(name)
    for row in answer.rows:
        fits = [cell.fits for cell in row.cells]
        assert fits == sorted(fits, reverse=True)
        batches = [cell.largest_micro_batch for cell in row.cells if cell.largest_plan]
        assert batches or row.method == "grpo" or not any(fits)
        assert batches == sorted(batches, reverse=True)
        for cell in row.cells:
            assert cell.fits == (cell.spare_bytes >= 0)
            if row.longest_seq_length is not None:
                assert cell.fits == (cell.seq_length <= row.longest_seq_length)


@pytest.mark.parametrize("name", ["card", "node"])
def test_the_largest_micro_batch_is_the_largest(name: str, request: pytest.FixtureRequest) -> None:
    """Estimates of it and of the next one: each with the risk that a search allows, or more."""
    answer: FitAnswer = request.getfixturevalue(name)
    for row in answer.rows:
        for cell in (cell for cell in row.cells if cell.largest_plan):
            assert cell.largest_plan.micro_batch_size == cell.largest_micro_batch
            assert cell.largest_micro_batch >= cell.plan.micro_batch_size
            assert chance(answer, row, cell.seq_length, cell.largest_plan) <= answer.memory_risk
            more = {"micro_batch_size": cell.largest_micro_batch + 1}
            next_one = cell.largest_plan.model_copy(update=more)
            assert chance(answer, row, cell.seq_length, next_one) > answer.memory_risk


def test_the_longest_sequence_is_the_longest(card: FitAnswer) -> None:
    """A search at that length finds a plan, and one at the next step of 256 tokens none."""
    row = by_method(card)["lora"]
    for length, fits in ((row.longest_seq_length, True), (row.longest_seq_length + 256, False)):
        fit = {"methods": ["lora"], "lengths": [length]}
        (found,) = planner.fit(CARD | {"fit": fit}).rows
        assert found.cells[0].fits == fits, length


def chance(answer: FitAnswer, row: Row, seq_length: int, plan: ParallelPlan) -> float:
    """The chance that a plan runs out of memory, estimated on its own."""
    own = {"lora": {"lora_rank": 16}, "qlora": {"lora_rank": 16, "frozen_dtype": "nf4"},
           "dpo": {"lora_rank": 16, "loss": "dpo"}}.get(row.method, {})  # fmt: skip
    if row.method == "full-in-backward":
        own = {"optimizer_in_backward": True, "global_batch_size": plan.dp}
        own |= {"optimizer": "paged_adam_8bit"} if plan.dp == 1 else {}
    request = parse_request(
        {
            "model": answer.request["model"],
            "cluster": answer.request["cluster"],
            "training": {"seq_length": seq_length, "global_batch_size": 16} | own,
            "search": {"framework": row.trainer},
        }
    )
    request = with_micro_batch(request, plan)
    return estimate(request, plan=plan).estimate.memory.chance_of_running_out


@pytest.mark.parametrize("name", ["card", "node"])
def test_commands_write_the_plans_of_the_table(
    name: str, request: pytest.FixtureRequest, planner: Planner
) -> None:
    """Each runs; the longest of a method says the same plan and speed, by its trainer."""
    answer: FitAnswer = request.getfixturevalue(name)
    for row in answer.rows:
        for cell in row.cells:
            assert (cell.command is None) != cell.fits
        fitting = [cell for cell in row.cells if cell.fits]
        for cell in fitting[::3] + fitting[-1:]:
            code, out, err = planner(*shlex.split(cell.command)[1:], "--json")
            assert code == 0, (cell.command, err)
            said = json.loads(out)
            assert said["framework"] == row.trainer
            each = cell.plan.micro_batch_size // (2 if row.method == "dpo" else 1)
            key = MICRO_BATCH.get(row.trainer, "per_device_train_batch_size")
            written = said["files"].get("config.yaml") or said["files"]["train.py"]
            assert re.search(rf"\b{key}(: |=){each}\b", written)


def test_hours_and_dollars(node: FitAnswer) -> None:
    for row in node.rows:
        for cell in (cell for cell in row.cells if cell.fits):
            assert cell.hours == pytest.approx(10e6 / cell.tokens_per_s / 3600)
            assert cell.cost_usd == pytest.approx(cell.hours * 4 * 0.5)
    assert node.request == parse_fit(NODE).document()
    assert planner.fit(node.request).rows == node.rows


def test_what_would_help(card: FitAnswer) -> None:
    """Full tuning of an 8B wants its 8 bytes a parameter on some number of such cards."""
    change = by_method(card)["full"].change
    assert change is not None
    assert change.set == {"nodes": 8}
    assert change.peak_bytes < card.capacity_bytes
    assert by_method(card)["lora"].change is None  # something of it fits


def test_fp16_where_there_is_no_bf16_and_a_batch_for_all_cards() -> None:
    fit = {"methods": ["lora"], "lengths": [1024]}
    old = planner.fit({"model": "qwen3-0.6b", "cluster": "1x3xv100-sxm2-32gb", "fit": fit})
    assert old.precision == "fp16"
    assert old.global_batch_size == 18
    (row,) = old.rows
    assert "--precision" not in row.cells[0].command
    assert row.cells[0].fits
    assert row.cells[0].hours is None


def test_lengths_stop_where_the_model_does() -> None:
    answer = planner.fit(model="gpt2", cluster="1x1xt4", fit={"methods": ["full", "lora"]})
    assert answer.lengths == LENGTHS[:1]
    full, lora = answer.rows
    assert full.longest_seq_length == 1024
    assert "adapters are modelled here for llama, mistral, " in (lora.reason or "")
    assert any(note.code == "lengths" for note in answer.assumptions)


def test_no_trainer_for_a_tpu_and_no_pairs() -> None:
    (row,) = planner.fit(model="llama-3.1-8b", cluster="tpu-v5p", fit={"methods": ["full"]}).rows
    assert "CUDA" in (row.reason or "")
    odd = {"training": {"global_batch_size": 3}, "fit": {"methods": ["dpo"], "lengths": [1024]}}
    (row,) = planner.fit(CARD | odd).rows
    assert row.reason == "global_batch_size 3 is not made of pairs"


@pytest.mark.parametrize(
    ("wrong", "pointer", "said"),
    [
        ({"cluster": "1x1xrtx-4091"}, "/cluster", "rtx-4090"),
        ({"cluster": "p5.48xlargee"}, "/cluster", ""),
        ({"cluster": {"accelerator": "rtx-4090", "nodes": 1}}, "/cluster", "a name"),
        ({"cluster": "1000x8xh100-sxm"}, "/cluster", "at most 1,024"),
        ({"cluster": None}, "/cluster", "required"),
        ({"model": "qwen8b"}, "/model", ""),
        ({"model": None}, "/model", "required"),
        ({"training": [1]}, "/training", "object"),
        ({"training": {"seq_length": 8}}, "/training/seq_length", "fit.lengths"),
        ({"training": {"loss": "dpo"}}, "/training/loss", "fit.methods"),
        ({"training": {"lora_rank": -1}}, "/training/lora_rank", ">= 0"),
        ({"training": {"tokens": float("nan")}}, "/training/tokens", ""),
        ({"training": {"global_batch_size": 10**12}}, "/training/global_batch_size", ""),
        ({"fit": {"lengths": []}}, "/fit/lengths", "at least 1"),
        ({"fit": {"lengths": [10**9]}}, "/fit/lengths/0", "1000000"),
        ({"fit": {"lengths": list(range(1, 10))}}, "/fit/lengths", "at most 8"),
        ({"fit": {"lengths": [float("inf")]}}, "/fit/lengths/0", ""),
        ({"model": "gpt2", "fit": {"lengths": [1025]}}, "/fit/lengths", "1,024 positions"),
        ({"fit": {"methods": ["qlorra"]}}, "/fit/methods/0", "qlora"),
        ({"fit": {"lengths": 1024}}, "/fit/lengths", "list"),
        ({"fit": "lora"}, "/fit", "object"),
        ({"search": {}}, "/search", ""),
    ],
)  # fmt: skip
def test_wrong_input_is_named(wrong: dict[str, Any], pointer: str, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_fit(CARD | wrong)
    assert pointer in {one.pointer for one in caught.value.problems}
    assert said in str(caught.value)


def test_answers_are_closed() -> None:
    with pytest.raises(ValidationError):
        Row(method="lora", title="", more=1)  # type: ignore[call-arg]


SHORT = ("--model", "llama-3.1-8b", "--methods", "full,qlora,full-offload", "--lengths", "2k,32k")


@pytest.mark.parametrize("width", [80, 120])
def test_screen(planner: Planner, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = planner("fit", *SHORT, "--card", "rtx-4090", "--tokens", "10M")
    assert code == 0
    screen, _, commands = out.partition("QLoRA (nf4), 2,048 tokens, by TRL:\n")
    assert max(map(len, screen.splitlines())) <= width
    assert commands.startswith("  planner emit --model llama-3.1-8b --cluster 1x1xrtx-4090")
    lines = {line.split("  ")[0]: line for line in screen.splitlines()}
    assert "-41.9" in lines["full"]
    assert "not run" in lines["full, host"]
    assert lines["QLoRA"].split()[-1].replace(",", "").isdigit()
    assert "would fit with 8 such nodes" in " ".join(screen.split())
    for word in ("tokens/s", "hours", "max mbs", "no price known"):
        assert word in screen


def test_command(planner: Planner) -> None:
    """The same document; what is wrong is said in the words of the options."""
    on = ("--on", "1x1xrtx-4090", "--json")
    code, out, _ = planner("fit", *SHORT, *on)
    assert code == 0
    here = FitAnswer.model_validate_json(out)
    asked = {"methods": ["full", "qlora", "full-offload"], "lengths": [2048, 32768]}
    assert here.rows == planner_fit(fit=asked)
    code, out, _ = planner("fit", *SHORT[:2], "--methods", "full", "--card", "rtx-4090", "--json")
    assert code == 4
    assert json.loads(out)["rows"][0]["cells"][0]["fits"] is False
    for words, said in (
        (("--card", "rtx-4090", "--on", "p5.48xlarge"), "--card rtx-4090 or --on"),
        (("--card", "rtx-4091"), "did you mean rtx-4090"),
        (("--card", "rtx-4090", "--cards", "0"), "--cards"),
        (("--card", "rtx-4090", "--cards", "999999999"), "more than"),
        (("--card", "rtx-4090", "--lengths", "1k,x"), "--lengths"),
        (("--card", "rtx-4090", "--lengths", ","), "--lengths"),
        (("--card", "rtx-4090", "--tokens", "nan"), "--tokens"),
    ):
        code, _, err = planner("fit", *SHORT[:2], *words)
        assert code == 2, words
        assert said in err, err


def planner_fit(**parts: Any) -> tuple[Row, ...]:
    return planner.fit({"model": "llama-3.1-8b", "cluster": "1x1xrtx-4090"}, **parts).rows


def test_model_file_is_repeated(planner: Planner, tmp_path: Any) -> None:
    """A command that is printed reads the file that was given."""
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512,
        "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 32000,
        "intermediate_size": 1024, "max_position_embeddings": 2048,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    fitted = ("--card", "t4", "--lengths", "1k", "--methods", "lora", "--json")
    code, out, err = planner("fit", "--model", str(path), *fitted)
    assert code == 0, err
    command = json.loads(out)["rows"][0]["cells"][0]["command"]
    code, _, err = planner(*shlex.split(command)[1:])
    assert code == 0, err


def test_example_is_answered() -> None:
    answer = planner.fit(examples("fit")["short"]["value"])
    assert [row.method for row in answer.rows] == ["lora", "qlora"]


def test_full_tuning_names_the_way_that_fits_on_these_cards(planner: Planner) -> None:
    """Asked alone it does not say that more nodes are needed, since `plan` offloads here."""
    asked = ("--model", "llama-3.1-8b", "--card", "rtx-4090", "--cards", "2", "--lengths", "1k")
    code, screen, _ = planner("fit", *asked, "--methods", "full")
    assert code != 0
    said = " ".join(screen.split())
    assert "would fit on these cards with the optimizer in 59.8 GiB of host memory" in said
    assert "(--methods full-offload), or with 4 such nodes" in said
    code, _, _ = planner("fit", *asked, "--methods", "full-offload")
    assert code == 0


def test_host_memory_that_is_too_small_is_no_way() -> None:
    for known_bytes, fits in ((64 * GIB, True), (32 * GIB, False)):
        asked = parse_fit(
            {
                "model": "llama-3.1-8b",
                "cluster": "1x2xrtx-4090",
                "fit": {"methods": ["full"], "lengths": [1024]},
            }
        )
        (group,) = asked.base.cluster.groups
        group = group.model_copy(update={"host_memory_bytes": known_bytes})
        cluster = asked.base.cluster.model_copy(update={"groups": (group,)})
        base = asked.base.model_copy(update={"cluster": cluster})
        (row,) = compute.fit(asked.model_copy(update={"base": base})).rows
        assert (row.host_bytes is not None) == fits


def test_each_row_says_what_it_trains_with(card: FitAnswer) -> None:
    """8-bit Adam, states in bf16 and another batch are another training than the header says."""
    rows = by_method(card)
    own = rows["full-in-backward"].trains_with
    assert "paged 8-bit Adam with states in 8 bits" in own
    assert "1 sequence here, not 16" in own
    assert rows["full"].trains_with == (
        "Adam with states in bf16, gradients in bf16, no fp32 copy of the weights"
    )
    assert "an fp32 copy of the adapters" in rows["dpo"].trains_with
    told = [note.text for note in card.assumptions if note.code == "trained_with"]
    assert told[0].startswith("full, by Axolotl: Adam")
    assert len(told) == len([row for row in card.rows if row.cells])


SMALL = ("lora", "1x2xl40s", "qwen2.5-32b"), ("dpo", "1x8xa100-sxm-40gb", "llama-3.1-70b")


@pytest.mark.parametrize(("method", "cluster", "model"), SMALL)
def test_what_plan_fits_by_itself_fits_here(method: str, cluster: str, model: str) -> None:
    """Nothing fits with gradients reduced in fp32; FSDP's own reduction lets the weights shard."""
    own = {"lora_rank": 16} | ({"loss": "dpo"} if method == "dpo" else {})
    asked = {"model": model, "cluster": cluster}
    (row,) = planner.fit({**asked, "fit": {"methods": [method], "lengths": [1024]}}).rows
    (cell,) = row.cells
    assert cell.fits
    assert cell.plan.zero_stage == 3
    assert "--gradient-reduce-dtype bf16" in (cell.command or "")
    assert "gradients reduced in bf16" in row.trains_with
    training = {"seq_length": 1024, "global_batch_size": 16, **own}
    found = planner.plan({**asked, "training": training})
    assert isinstance(found, PlanAnswer)
    assert found.best is not None
    assert found.launch is not None
    assert "gradient_reduce_dtype bf16" in (found.fallback or "")


def test_all_weights_fit_by_the_trainer_that_keeps_least() -> None:
    """Torchtune's Adam in bf16 shards on four cards; others, with another loss, do not."""
    asked = {"model": "llama-3.1-8b", "cluster": "1x4xrtx-4090"}
    (row,) = planner.fit({**asked, "fit": {"methods": ["full"], "lengths": [1024]}}).rows
    assert row.trainer == "torchtune"
    assert row.cells[0].fits


def test_a_trainer_without_a_published_run_is_named_where_it_alone_fits() -> None:
    """A sequence a little too long for those that runs are known of."""
    (row,) = planner.fit(CARD | {"fit": {"methods": ["lora"], "lengths": [7936]}}).rows
    assert not row.cells[0].fits
    assert row.unmeasured_trainer == "Unsloth"


def test_more_nodes_bring_a_batch_of_their_own() -> None:
    """Nothing is accumulated where weights are updated in the backward pass: a sequence a card."""
    asked = {"model": "qwen2.5-32b", "cluster": "1x2xl40s"}
    fit = {"methods": ["full-in-backward"], "lengths": [1024]}
    (row,) = planner.fit({**asked, "fit": fit}).rows
    assert row.change is not None
    nodes = row.change.set["nodes"]
    (larger,) = planner.fit({**asked, "cluster": f"{nodes}x2xl40s", "fit": fit}).rows
    assert larger.cells[0].tokens_per_s == pytest.approx(row.change.tokens_per_s, rel=1e-3)


def test_what_is_not_modelled_is_no_fault_of_the_trainers() -> None:
    """They adapt the experts of gpt-oss; the plans here end at its attention, which is said."""
    asked = {"model": "gpt-oss-20b", "cluster": "1x1xh100-sxm"}
    fit = {"methods": ["lora", "qlora", "dpo"], "lengths": [1024]}
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    rows = planner.fit({**asked, "fit": fit}).rows
    for row in rows:
        assert row.cells[0].fits
        assert "adapters of attention alone" in row.trains_with
        assert f"--lora-targets {','.join(attention)}" in str(row.cells[0].command)
    assert planner.fit({**asked, "fit": fit, "training": {"lora_targets": attention}}).rows == rows
    every = {"lora_targets": [*attention, "gate_proj", "up_proj", "down_proj"]}
    for row in planner.fit({**asked, "fit": fit, "training": every}).rows:
        assert "adapters on weights of experts, which PEFT has, are not modelled" in str(row.reason)
        assert "lora_targets q_proj,k_proj,v_proj,o_proj" in str(row.reason)


def test_preferences_are_a_pair_on_each_card() -> None:
    asked = {"model": "llama-3.1-8b", "cluster": "2x8xa100-sxm-40gb"}
    fit = {"methods": ["dpo"], "lengths": [1024]}
    answer = planner.fit({**asked, "fit": fit})
    (row,) = answer.rows
    assert row.cells[0].fits
    assert "a pair of each card per step (32 sequences here, not 16)" in row.trains_with
    assert planner.fit(answer.request).rows == answer.rows
    (given,) = planner.fit({**asked, "fit": fit, "training": {"global_batch_size": 16}}).rows
    assert given.reason == "global_batch_size 16 is not a multiple of dp 16 x micro_batch_size 2"
