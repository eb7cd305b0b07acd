"""Steps of GRPO and PPO: seconds and bytes by hand, and input that is refused in its place."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import planner
from cost_models.continuous_batching import Lengths
from cost_models.estimate import CostModel
from cost_models.plans import ParallelPlan
from planner import cli
from planner.answers.plans.emission import NothingFits
from planner.answers.plans.plan_answers import IllegalPlan
from planner.answers.reinforcement.documents import STEP_PARTS, Phase, ReinforcementAnswer
from planner.answers.reinforcement.layouts import forward_pass_s
from planner.answers.reinforcement.parsing import parse_reinforcement
from planner.answers.reinforcement.transfer import expert_bytes, transfer
from planner.documents.problems import Problem, RequestError
from planner.documents.request import PlanRequest
from planner.search.exhaustive import cost_model

WEIGHT_BYTES = 2.0 * 8_030_261_248  # Llama 3.1 8B in bf16
CAPACITY = 85_520_809_984  # of an H100, as its driver says
STEP = {
    "prompts": 64, "samples": 8, "prompt_tokens": 512, "response_tokens": 1536,
    "max_response_tokens": 1536, "generation_tokens_per_s": 2000,
}  # fmt: skip
OTHER = {"generation": "other", "generation_nodes": 1}


def asked(plan: dict[str, Any] | None = None, **step: Any) -> dict[str, Any]:
    """Llama 3.1 8B on two nodes of H100s: 450 GB/s inside, 50 GB/s and 14 us between them."""
    document = {
        "model": "llama-3.1-8b",
        "cluster": "2x8xh100-sxm",
        "reinforcement": {**STEP, **step},
    }
    return document | ({"plan": plan} if plan else {"search": {"tp": 1, "pp": 1, "cp": 1}})


def setting(**changes: Any) -> tuple[PlanRequest, CostModel]:
    request = parse_reinforcement({**asked(), **changes}).request
    return request, cost_model(request)


def phases(answer: ReinforcementAnswer) -> dict[str, Phase]:
    return {phase.name: phase for phase in answer.memory}


class TestTransfer:
    def test_to_other_ranks_all_weights_pass_one_link(self) -> None:
        answer = planner.rl(asked({"tp": 1}, **OTHER))
        (sent,) = answer.transfer
        assert (sent.op, sent.payload_bytes) == ("send", WEIGHT_BYTES)
        # A message reaches 90 % of the link in this profile.
        assert sent.seconds == pytest.approx(14e-6 + WEIGHT_BYTES / (0.9 * 50e9))
        assert answer.parts_s["weight_transfer"] == sent.seconds

    def test_on_the_same_ranks_stages_gather_from_each_other(self) -> None:
        answer = planner.rl(asked({"tp": 4, "sequence_parallel": True, "pp": 2}))
        tensor, stages = answer.transfer
        assert (tensor.ranks, tensor.payload_bytes) == (4, WEIGHT_BYTES / 2)
        assert (stages.ranks, stages.payload_bytes) == (2, WEIGHT_BYTES)
        # Three quarters come over NVLink, at a measured share of its 450 GB/s.
        assert 0.6 * 450e9 < WEIGHT_BYTES / 2 * 3 / 4 / tensor.seconds < 450e9
        # Half comes from the other node, at 94 % of the link, which takes 70 MB to fill.
        by_hand = 14e-6 + (WEIGHT_BYTES + 0.35 * 200e6) / 2 / (0.94 * 50e9)
        assert stages.seconds == pytest.approx(by_hand)

    def test_whole_copies_gather_nothing(self) -> None:
        answer = planner.rl(asked({"tp": 1}))
        assert answer.transfer == ()
        assert answer.parts_s["weight_transfer"] == 0

    def test_experts_are_gathered_over_their_own_groups(self) -> None:
        request, model = setting(model="mixtral-8x7b")
        experts = 2.0 * 32 * 8 * 3 * 4096 * 14336
        assert expert_bytes(request.model) == experts
        plan = ParallelPlan(tp=2, sequence_parallel=True, dp=8, ep=4)
        dense = 2.0 * 46_702_792_704 - experts
        found = {one.title: one.payload_bytes for one in transfer(model, plan, 0)}
        assert found == {"tensor parallel": dense, "expert parallel": experts}

    def test_shards_are_gathered_first(self) -> None:
        _, model = setting()
        plan = ParallelPlan(tp=2, sequence_parallel=True, dp=8, zero_stage=3)
        found = {one.title: (one.ranks, one.payload_bytes) for one in transfer(model, plan, 0)}
        assert found == {
            "ZeRO shards": (8, WEIGHT_BYTES / 2), "tensor parallel": (2, WEIGHT_BYTES),
        }  # fmt: skip

    def test_one_fast_domain_sends_over_its_own_links(self) -> None:
        def sent_s(nodes: int) -> float:
            cluster = {"accelerator": "gb200-nvl72", "nodes": nodes, "accelerators_per_node": 36}
            step = asked(**OTHER, prompts=72, samples=36)
            return planner.rl(step, cluster=cluster).transfer[0].seconds

        # Both nodes of 36 are in one domain of 72 at 900 GB/s; the third is not, at 50 GB/s.
        assert sent_s(3) / sent_s(2) == pytest.approx(18, rel=0.01)


class TestTime:
    def test_parts_by_hand(self) -> None:
        answer = planner.rl(asked({"tp": 1}, **OTHER, reward_s=3, offload=False))
        iteration_s = answer.training.iteration_time_s
        forward_s = answer.training.time_parts_s["forward"]  # of 512 sequences, one stage
        parts = answer.parts_s
        assert set(parts) == set(STEP_PARTS)
        assert parts["generation"] == 512 * 1536 / (2000 * 8)
        assert parts["policy_scoring"] == parts["reference_scoring"] == pytest.approx(forward_s)
        assert parts["policy_training"] == iteration_s
        assert parts["critic_scoring"] == parts["critic_training"] == parts["offload"] == 0
        ways = {way.name: way for way in answer.ways}
        assert answer.ways[0].name == "synchronous"
        serial, pipelined = ways["synchronous"], ways["one step off-policy"]
        transfer_s = parts["weight_transfer"]
        trained_s = 2 * forward_s + iteration_s
        assert serial.step_time_s == pytest.approx(parts["generation"] + 3 + trained_s + transfer_s)
        by_hand = max(parts["generation"] + 3, trained_s) + transfer_s
        assert pipelined.step_time_s == pytest.approx(by_hand)
        assert serial.tokens_per_s == 512 * 2048 / serial.step_time_s
        assert serial.tokens_per_s_per_accelerator == serial.tokens_per_s / 16
        # At a stated throughput no response is waited for.
        assert ways["asynchronous"].step_time_s == pipelined.step_time_s
        assert (answer.training_accelerators, answer.generation_accelerators) == (8, 8)
        assert answer.dominant == "generation"

    def test_a_step_that_cuts_the_longest_ends_sooner_and_tools_make_it_longer(self) -> None:
        step = {**STEP, "max_response_tokens": 12_288, "generation_tp": 1}
        del step["generation_tokens_per_s"]

        def generation_s(**more: Any) -> float:
            document = {**asked({"tp": 1, "dp": 16}), "reinforcement": {**step, **more}}
            return planner.rl(document).parts_s["generation"]

        whole = generation_s()
        cut = generation_s(oversampling=1.5)
        kept = generation_s(oversampling=1.5, partial_rollouts=True)
        assert max(cut, kept) < 0.8 * whole
        # The longest response of 8 times the mean has as many turns more.
        waits = generation_s(turns=5, tool_wait_s=10)
        assert waits - whole == pytest.approx(8 * 4 * 10, rel=0.1)

    def test_same_ranks_take_turns(self) -> None:
        answer = planner.rl(asked({"tp": 1}, generation_tp=2))
        way = answer.ways[0]
        assert way.step_time_s == sum(answer.parts_s.values())
        assert answer.parts_s["generation"] == 512 * 1536 / (2000 * 16)
        assert answer.engines == 8
        stage = answer.training.memory.stages[0].parts
        moved = 2 * (stage["weights"] + stage["optimizer"]) + stage["weights"]
        assert answer.parts_s["offload"] == pytest.approx(moved / 63e9)

    def test_ppo_trains_a_critic_in_several_steps(self) -> None:
        document = asked({"tp": 1}, algorithm="ppo", epochs=2, reference=False)
        answer = planner.rl(document, training={"global_batch_size": 128})
        parts = answer.parts_s
        assert answer.optimizer_steps == 8
        assert parts["policy_training"] == 8 * answer.training.iteration_time_s
        assert parts["critic_training"] == parts["policy_training"]
        assert parts["critic_scoring"] == parts["policy_scoring"]
        assert parts["reference_scoring"] == 0
        document["reinforcement"]["critic_parameters"] = 8_030_261_248 / 4
        small = planner.rl(document, training={"global_batch_size": 128}).parts_s
        assert small["critic_training"] == parts["critic_training"] / 4

    def test_forward_goes_at_the_pace_of_the_busiest_stage(self) -> None:
        _, model = setting()
        plan = ParallelPlan(tp=2, sequence_parallel=True, pp=4, dp=2)
        times, links = model.stage_times(plan)
        one = forward_pass_s(model, plan, 2)
        assert one == pytest.approx(float(times.forward_s.sum()) + 3 * links.transfer_s)
        more = forward_pass_s(model, plan, 4) - one
        assert more == pytest.approx(float(times.forward_s.max()) + links.transfer_s)


class TestTrainers:
    def test_trl_fills_responses_up_to_the_longest_of_a_rank(self) -> None:
        step = {**STEP, "trainer": "trl", "max_response_tokens": 6144, "reference": False}
        answer = planner.rl({**asked(), "search": {}, "reinforcement": step})
        # 64 x 8 responses over 16 ranks.
        longest = Lengths.spread(1536, 6144).expected_longest(32)
        filled = (512 + longest) / (512 + 6144)
        trained_s = filled * answer.training.iteration_time_s
        assert answer.training.plan.dp == 16
        assert answer.parts_s["policy_training"] == pytest.approx(trained_s)
        assert 0.6 < filled < 1.0
        assert "padded" in {note.code for note in answer.notes}

    def test_trl_keeps_its_models_beside_the_engines(self) -> None:
        document = {**asked(trainer="trl"), "search": {}}
        answer = planner.rl(document)
        assert answer.parts_s["offload"] == 0
        beside = phases(answer)["generation"].parts
        states = answer.training.memory.stages[0].parts
        held = sum(states[name] for name in ("weights", "gradients", "optimizer"))
        assert beside["policy"] == pytest.approx(held)
        assert beside["reference"] == pytest.approx(states["weights"])

    def test_openrlhf_runs_on_deepspeed(self) -> None:
        plan = planner.rl({**asked(trainer="openrlhf"), "search": {}}).training.plan
        assert (plan.runtime, plan.zero_stage, plan.attention_kernel) == ("deepspeed", 3, "flash2")

    def test_only_ways_that_the_trainer_can_run_are_offered(self) -> None:
        step = {**STEP, "staleness": 2}
        ways = {
            trainer: {way.name for way in planner.rl(
                {**asked(), "search": {}, "reinforcement": {**step, "trainer": trainer}}
            ).ways}
            for trainer in ("verl", "trl")
        }  # fmt: skip
        assert ways["trl"] == {"synchronous"}
        assert ways["verl"] == {"synchronous", "one step off-policy", "asynchronous"}


class TestTimeline:
    def test_on_the_same_ranks_parts_follow_each_other(self) -> None:
        answer = planner.rl(asked({"tp": 1}, reward_s=2))
        (lane,) = answer.ways[0].lanes
        assert (lane.name, lane.accelerators) == ("all", 16)
        taken = {bar.part: bar.end_s - bar.start_s for bar in lane.bars}
        assert taken == pytest.approx({name: s for name, s in answer.parts_s.items() if s})
        starts = [0.0, *(bar.end_s for bar in lane.bars)]
        assert [bar.start_s for bar in lane.bars] == starts[:-1]
        assert starts[-1] == pytest.approx(answer.step_time_s)

    @pytest.mark.parametrize("staleness", [0, 1, 2])
    def test_engines_apart_work_beside_training_unless_it_is_in_step(self, staleness: int) -> None:
        answer = planner.rl(asked({"tp": 1}, **OTHER, staleness=staleness, reward_s=1))
        for way in answer.ways:
            engines, ranks = way.lanes
            assert (engines.accelerators, ranks.accelerators) == (8, 8)
            late = way.name != "synchronous"
            assert [bar.part for bar in engines.bars] == ["generation", "reward", "weight_transfer"]
            assert [bar.ahead for bar in engines.bars] == [late, late, False]
            # Training waits for the responses, or begins with those of the step before.
            assert ranks.bars[0].start_s == (0.0 if late else engines.bars[1].end_s)
            assert engines.bars[-1] == ranks.bars[-1]
            assert ranks.bars[-1].end_s == pytest.approx(way.step_time_s)


class TestMemory:
    def test_what_waits_is_in_host_memory(self) -> None:
        cluster = {"accelerator": "h100-sxm", "nodes": 2, "host_memory_bytes": 2e12}
        answer = planner.rl(asked({"tp": 1}), cluster=cluster)
        found = phases(answer)
        stage = answer.training.memory.stages[0].parts
        capacity = answer.training.memory.capacity_bytes
        assert found["training"].total_bytes == answer.training.memory.peak_bytes
        assert found["transfer"].total_bytes == (stage["weights"] + WEIGHT_BYTES + stage["driver"])
        assert found["generation"].total_bytes == pytest.approx(0.85 * capacity + stage["driver"])
        waiting = 8 * (2 * stage["weights"] + stage["optimizer"])
        assert found["host"].total_bytes == waiting
        assert answer.fits

    def test_what_stays_may_not_fit(self) -> None:
        document = asked(
            {"tp": 1}, algorithm="ppo", generation_tp=2, offload=False, gpu_memory_utilization=0.3
        )
        answer = planner.rl(document)
        found = phases(answer)
        stage = answer.training.memory.stages[0].parts
        states = stage["weights"] + stage["gradients"] + stage["optimizer"]
        assert found["training"].total_bytes == pytest.approx(
            answer.training.memory.peak_bytes + stage["weights"] + states
        )
        held = 0.3 * found["generation"].capacity_bytes + stage["driver"]
        assert found["generation"].total_bytes == pytest.approx(
            held + 2 * states + stage["weights"]
        )
        assert not answer.fits

    def test_other_ranks_hold_weights_and_cache_alone(self) -> None:
        found = phases(planner.rl(asked({"tp": 1}, **OTHER, gpu_memory_utilization=0.99)))
        assert set(found) == {"training", "generation"}
        assert not found["generation"].fits
        assert found["training"].fits


def test_asked_again_it_answers_the_same() -> None:
    answer = planner.rl(asked(**OTHER))
    assert planner.rl(answer.request) == answer
    held = planner.rl(asked({"tp": 2}, **OTHER))
    assert held.training.plan.dp == 4
    assert planner.rl(held.request) == held


def test_the_plan_is_that_of_the_nodes_that_train() -> None:
    training = {"seq_length": 2048, "global_batch_size": 512}
    search = {"tp": 1, "pp": 1, "cp": 1}
    alone = planner.plan(
        model="llama-3.1-8b", cluster="1x8xh100-sxm", training=training,
        search=search | {"framework": "verl"},
    ).best  # fmt: skip
    found = planner.rl(asked(**OTHER)).training
    assert (found.plan, found.iteration_time_s) == (alone.plan, alone.iteration_time_s)


@pytest.mark.parametrize(
    ("changes", "pointers"),
    [
        ({"reinforcement": None}, {"/reinforcement"}),
        ({"reinforcement": 3}, {"/reinforcement"}),
        ({"reinforcement": {**STEP, "prompts": 0}}, {"/reinforcement/prompts"}),
        ({"reinforcement": {**STEP, "sample": 1}}, {"/reinforcement/sample"}),
        ({"reinforcement": {**STEP, "generation_tokens_per_s": 0}, "model": "llama-9"},
         {"/reinforcement/generation_tokens_per_s", "/model"}),
        ({"reinforcement": {**STEP, "generation": "same", "generation_nodes": 1}},
         {"/reinforcement"}),
        ({"reinforcement": {**STEP, "response_tokens": None, "max_response_tokens": None}},
         {"/reinforcement"}),
        ({"reinforcement": {**STEP, "response_tokens": 1537}}, {"/reinforcement"}),
        ({"reinforcement": {**STEP, "speculative_tokens": 3}}, {"/reinforcement"}),
        ({"reinforcement": {**STEP, "speculative_tokens": 3, "accepted_tokens": 4.5}},
         {"/reinforcement"}),
        ({"reinforcement": {**STEP, "tool_wait_s": 3}}, {"/reinforcement"}),
        ({"reinforcement": {**STEP, "partial_rollouts": True}}, {"/reinforcement"}),
        ({"reinforcement": {**STEP, "oversampling": 2}}, {"/reinforcement"}),
        ({"reinforcement": {**STEP, "gpu_memory_utilization": 1.2}},
         {"/reinforcement/gpu_memory_utilization"}),
        ({"reinforcement": {**STEP, "generation": "other"}, "cluster": "1x8xh100-sxm"},
         {"/reinforcement/generation"}),
        ({"reinforcement": {**STEP, "critic_parameters": 1e9}}, {"/reinforcement"}),
        ({"reinforcement": {**STEP, "generation_tp": 3}}, {"/reinforcement/generation_tp"}),
        ({"reinforcement": {**STEP, "generation_tp": 4}, "model": "qwen2.5-1.5b"}, set()),
        ({"reinforcement": {**STEP, "generation_tp": 12}, "model": "gpt2",
          "cluster": "3x4xh100-sxm"}, {"/reinforcement/max_response_tokens"}),
        ({"reinforcement": {**STEP, "trainer": "trl", "offload": True}},
         {"/reinforcement/offload"}),
        ({"reinforcement": {**STEP, **OTHER, "generation_nodes": 2}},
         {"/reinforcement/generation_nodes"}),
        ({"training": {"seq_length": 4096}}, {"/training/seq_length"}),
        ({"training": {"global_batch_size": 100}}, {"/training/global_batch_size"}),
        ({"training": {"tokens": 1e12, "loss": "dpo"}}, {"/training/tokens", "/training/loss"}),
        ({"training": 7}, {"/training"}),
        ({"plan": {"tp": 0}}, {"/plan/tp"}),
    ],
)  # fmt: skip
def test_what_is_wrong_has_its_place(changes: dict[str, Any], pointers: set[str]) -> None:
    if not pointers:
        parse_reinforcement({**asked(), **changes})
        return
    with pytest.raises(RequestError) as error:
        parse_reinforcement({**asked(), **changes})
    assert {problem.pointer for problem in error.value.problems} == pointers


def test_a_training_that_cannot_be() -> None:
    with pytest.raises(NothingFits):
        planner.rl(asked(), model="llama-3.1-405b")
    with pytest.raises(IllegalPlan):
        planner.rl(asked({"tp": 3}))


def test_a_training_that_does_not_fit_says_by_how_much_and_who_says_what_helps() -> None:
    """TRL's training of 1.5 B weights in fp32 takes 28 of 24 GiB; `planner plan` offloads it."""
    step = {"prompts": 8, "samples": 8, "prompt_tokens": 256, "max_response_tokens": 1024}
    document = {
        "model": "qwen2.5-1.5b",
        "cluster": "1x1xrtx-4090",
        "reinforcement": {**step, "trainer": "trl"},
    }
    found = problem_of(document)
    assert re.search(r"the nearest by TRL misses by \d\.\d GiB", found.detail)
    assert "`planner plan --framework trl --seq-length 1280 --global-batch-size 64`" in found.detail
    asked_there = {
        "model": "qwen2.5-1.5b",
        "cluster": "1x1xrtx-4090",
        "training": {"seq_length": 1280, "global_batch_size": 64},
        "search": {"framework": "trl"},
    }
    there = planner.plan(asked_there)
    assert there.best is None
    assert there.nearest


def problem_of(document: dict[str, Any]) -> Problem:
    with pytest.raises(RequestError) as error:
        planner.rl(document)
    (found,) = error.value.problems
    return found


class TestImpossible:
    """Each refusal has its field, what was got, and what is allowed."""

    def test_engines_that_cannot_share_the_heads(self) -> None:
        found = problem_of({**asked(generation_tp=5), "cluster": "1x5xh100-sxm"})
        assert (found.pointer, found.got) == ("/reinforcement/generation_tp", 5)
        assert "must divide the 32 attention heads" in found.detail
        # 28 query heads in 4 groups: 14 divides the first and is no multiple of the second.
        step = {**asked(generation_tp=14), "model": "qwen2.5-7b", "cluster": "2x7xh100-sxm"}
        found = problem_of(step)
        assert "the 4 key/value heads or be a multiple of them: 1, 2 of 14" in found.detail

    def test_a_table_of_positions_that_is_too_short(self) -> None:
        found = problem_of({**asked(), "model": "gpt2"})
        assert (found.pointer, found.got) == ("/reinforcement/max_response_tokens", 1536)
        assert "must be <= 1024" in found.detail

    def test_a_cache_that_holds_no_sequence(self) -> None:
        changes = {"response_tokens": 524_288, "max_response_tokens": 524_288}
        step = {**asked(generation_tp=1, **changes), "search": {"cp": 16, "tp": 1}}
        del step["reinforcement"]["generation_tokens_per_s"]
        with pytest.raises(NothingFits) as error:
            planner.rl(step)
        (found,) = error.value.problems
        assert (found.pointer, found.got) == ("/reinforcement/max_response_tokens", 524_288)
        # 0.85 of 79.6 GiB less 16.1 GB of weights and 3 GB hold 128 KiB a token.
        most = int(re.findall(r"at most ([\d,]+) tokens", found.detail)[0].replace(",", ""))
        tokens = (0.85 * CAPACITY - WEIGHT_BYTES - 3e9) / (32 * 2 * 8 * 128 * 2)
        assert most == pytest.approx(tokens - 512, abs=2)


WORDS = [
    "rl", "--model", "llama-3.1-8b", "--cluster", "2x8xh100-sxm", "--tp", "1", "--pp", "1",
    "--cp", "1", "--prompts", "64", "--samples", "8", "--prompt-tokens", "512",
    "--response-tokens", "1536", "--max-response-tokens", "1536",
    "--generation-tokens-per-s", "2000",
]  # fmt: skip


@pytest.mark.slow
def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*WORDS, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == planner.rl(asked()).model_dump(mode="json")
    assert cli.run([*WORDS, "--generation", "other", "--generation-nodes", "1"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"training 8 +S+F+P+O*", shown)
    for words in ("GRPO", "one step off-policy", "to the engines: 16.1 GB sent", "Coarser than"):
        assert words in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert cli.run([*WORDS, "--no-offload", "--algorithm", "ppo"]) == 4
    shown = capsys.readouterr().out
    assert "does not fit" in shown
    assert "more room" in shown
    assert cli.run([*WORDS, "--trainer", "slime", "--algorithm", "ppo"]) == 0
    assert "No launch files: slime is written for grpo alone" in capsys.readouterr().out
    assert cli.run([*WORDS, "--samples", "many"]) == 2
    assert "--samples: must be an integer" in capsys.readouterr().err


def test_grpo_needs_two_responses(capsys: pytest.CaptureFixture[str]) -> None:
    """An advantage is a reward less the mean of its prompt: of one alone always zero."""
    at = WORDS.index("--samples")
    assert cli.run([*WORDS[:at], "--samples", "1", *WORDS[at + 2 :]]) == 2
    said = capsys.readouterr().err
    assert "--samples: GRPO compares a prompt's responses: must be at least 2, got 1" in said
    assert cli.run([*WORDS[:at], *WORDS[at + 2 :]]) == 2
    assert "is required: GRPO compares a prompt's responses" in capsys.readouterr().err
    one_each = {"prompts": 512, "samples": 1, "algorithm": "ppo"}
    document = asked()
    document["reinforcement"] = document["reinforcement"] | one_each
    assert parse_reinforcement(document).reinforcement.samples == 1


def test_an_example_in_an_error_keeps_the_rule(capsys: pytest.CaptureFixture[str]) -> None:
    """The usual one, 512, does not divide 63 x 8 = 504 responses."""
    at = WORDS.index("--prompts")
    words = [*WORDS[:at], "--prompts", "63", *WORDS[at + 2 :]]
    assert cli.run([*words, "--global-batch-size", "10"]) == 2
    said = capsys.readouterr().err
    assert "--global-batch-size: must divide 504, prompts x samples, or be left out" in said
    assert "for example" not in said
    assert cli.run([*words, "--global-batch-size", "many"]) == 2
    assert "for example --global-batch-size" in capsys.readouterr().err


class TestInterval:
    """Doubts of parts are independent: their squares add up."""

    def test_of_parts_by_hand(self) -> None:
        answer = planner.rl(asked({"tp": 8, "sequence_parallel": True}))
        report, parts = answer.training, answer.parts_s
        trained = sum(
            taken for name, taken in parts.items() if "scoring" in name or "train" in name
        )
        moved = parts["weight_transfer"] + parts["offload"]
        above = report.error_band.high_s / report.iteration_time_s - 1.0
        below = 1.0 - report.error_band.low_s / report.iteration_time_s
        low, high = answer.interval_s
        # A stated throughput is not doubted; transfers may take three times as long.
        assert high - answer.step_time_s == pytest.approx(
            ((trained * above) ** 2 + (2.0 * moved) ** 2) ** 0.5
        )
        assert answer.step_time_s - low == pytest.approx(trained * below)

    def test_open_lengths_are_wider_on_both_sides(self) -> None:
        step = {"generation_tokens_per_s": None, "max_response_tokens": 8192}
        stated = planner.rl(asked({"tp": 1}, **step, response_tokens=1024))
        left_open = planner.rl(asked({"tp": 1}, **step, response_tokens=None))
        assert left_open.step_time_s == pytest.approx(stated.step_time_s)  # an eighth is assumed
        assert left_open.interval_s[0] < 0.7 * stated.interval_s[0]
        assert left_open.interval_s[1] > 1.5 * stated.interval_s[1]
        assert stated.interval_s[1] < 1.6 * stated.step_time_s
