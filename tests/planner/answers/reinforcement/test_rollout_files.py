"""Launch files of whole steps: they say the plan and the engines, and read back as the plan."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import planner
from cost_models.catalog.models import model
from planner import cli, frameworks
from planner.answers.plans.emission import NothingFits
from planner.answers.reinforcement.emission import files
from planner.answers.reinforcement.parsing import parse_reinforcement
from planner.documents.problems import RequestError
from planner.frameworks.launch_files import GivenValues, LaunchFiles
from planner.frameworks.step_trainers import TRAINERS
from tests.fixtures.canonical import canonical
from tests.fixtures.launches import joining, run_script, written

STEP = {
    "prompts": 64, "samples": 8, "prompt_tokens": 512, "response_tokens": 1000,
    "max_response_tokens": 4096,
}  # fmt: skip


def asked(model: str = "llama-3.1-8b", cluster: str = "2x8xh100-sxm", **step: Any) -> Any:
    return {"model": model, "cluster": cluster, "reinforcement": {**STEP, **step}}


def overrides(script: str) -> dict[str, str]:
    """What a script of verl sets, by key."""
    lines = script.split("OVERRIDES=(\n")[1].split("\n)\n")[0].splitlines()
    words = (line.strip().strip("'").lstrip("+").split("  #")[0] for line in lines)
    return dict(word.split("=", 1) for word in words)


# Whose reader reads the training part of each trainer's files.
READERS = {
    "verl": "verl", "nemo-rl": "megatron", "trl": "trl", "slime": "slime", "openrlhf": "accelerate",
    "prime-rl": "pytorch", "areal": "megatron",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize("staleness", [0, 4, 1])
@pytest.mark.parametrize("trainer", READERS)
def test_they_read_back_as_the_plan(trainer: str, staleness: float) -> None:
    staleness = max(staleness, TRAINERS[trainer].freshest)  # type: ignore[index]
    request = asked(trainer=trainer, staleness=staleness)
    answer, bundle = planner.rl(request), files(parse_reinforcement(request))
    given = GivenValues(model=model("llama-3.1-8b"))
    reader = frameworks.get(READERS[trainer]).read
    assert reader is not None
    reading = reader(LaunchFiles(bundle.files, given), None)
    own = answer.training.plan
    assert reading.refusals == ()
    assert reading.training.seq_length == 512 + 4096
    if trainer == "nemo-rl":  # what is known of its run is the training, with its own kernels
        own = own.model_copy(update={"cross_entropy": reading.plan.cross_entropy})
    assert canonical(reading.plan, reading.model) == canonical(own, reading.model)
    assert reading.unknown == ()
    assert reading.training.global_batch_size == 512


EXPECTED = re.compile(
    r"# Expected: (\S+) (ms|s) per step \((\S+) (ms|s) to (\S+) (ms|s): 80 % interval\)\."
)


@pytest.mark.one_in(1, quick=4)
@pytest.mark.parametrize("trainer", READERS)
def test_their_header_says_what_is_expected(trainer: str) -> None:
    """The time of a step and its interval, as the answer has them, under the trainer's name."""
    request = asked(trainer=trainer, staleness=TRAINERS[trainer].freshest)  # type: ignore[index]
    answer, bundle = planner.rl(request), files(parse_reinforcement(request))
    text = bundle.files[bundle.main]
    first, title, line, *_ = text.splitlines()
    assert first.startswith("#!")
    assert title.startswith(f"# {TRAINERS[trainer].title} (")  # type: ignore[index]
    assert text.count("Expected:") == 1
    found = EXPECTED.fullmatch(line)
    assert found is not None, line
    pairs = zip(found.groups()[::2], found.groups()[1::2], strict=True)
    said = [float(number.replace(",", "")) * {"s": 1, "ms": 1e-3}[unit] for number, unit in pairs]
    assert said == pytest.approx([answer.step_time_s, *answer.interval_s], rel=0.0051)


def test_what_verl_is_told() -> None:
    request = asked(generation="same", max_num_seqs=300, epochs=2)
    answer = planner.rl(request, training={"global_batch_size": 128})
    bundle = files(parse_reinforcement({**request, "training": {"global_batch_size": 128}}))
    made, said = answer.generated, overrides(bundle.files["launch.sh"])
    assert made is not None
    rollout = "actor_rollout_ref.rollout."
    assert said["data.train_batch_size"] == "64"
    assert said["actor_rollout_ref.actor.ppo_mini_batch_size"] == "16"
    assert said["actor_rollout_ref.actor.ppo_epochs"] == "2"
    assert said[rollout + "n"] == "8"
    assert said[rollout + "tensor_model_parallel_size"] == str(made.tp)
    assert said[rollout + "gpu_memory_utilization"] == f"{made.gpu_memory_utilization:.2f}"
    assert said[rollout + "max_num_seqs"] == "300"
    assert said["data.max_response_length"] == "4096"
    assert said["actor_rollout_ref.actor.megatron.optimizer_offload"] == "True"
    assert "verl.trainer.main_ppo" in bundle.files["launch.sh"]


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("staleness", [0, 4])
@pytest.mark.parametrize("trainer", READERS)
def test_what_nobody_asked_for_is_the_trainers_default(trainer: str, staleness: float) -> None:
    """No learning rate or number of steps is made up, and the answer says whose they are."""
    staleness = max(staleness, TRAINERS[trainer].freshest)  # type: ignore[index]
    bundle = files(parse_reinforcement(asked(trainer=trainer, staleness=staleness)))
    assert not any("PLACEHOLDER" in text for text in bundle.files.values())
    if trainer == "verl":
        assert not any(
            key.endswith((".lr", "training_steps")) for key in overrides(bundle.files["launch.sh"])
        )
        (needs,) = [note.text for note in bundle.notes if note.code == "needs"]
        assert "verl's defaults" in needs


def test_engines_apart_have_their_nodes(tmp_path: Path) -> None:
    bundle = files(parse_reinforcement(asked(generation="other", generation_nodes=1, staleness=3)))
    script = bundle.files["launch.sh"]
    said = overrides(script)
    assert said["rollout.nnodes"] == "1"
    assert said["async_training.staleness_threshold"] == "2.0"
    assert "fully_async_main" in script
    written(tmp_path, bundle)
    variables = {"NODE_RANK": "0", "MASTER_ADDR": "node-0"}
    joining(tmp_path, [8, 16])
    _, submit = run_script(tmp_path, bundle.main, ("ray",), variables)
    assert "trainer.nnodes=1" in submit


def test_what_nemo_rl_is_told() -> None:
    request = asked(trainer="nemo-rl", generation="other", generation_nodes=1, staleness=2)
    document = yaml.safe_load(files(parse_reinforcement(request)).files["grpo.yaml"])
    assert document["cluster"] == {"gpus_per_node": 8, "num_nodes": 2}
    generation = document["policy"]["generation"]
    assert generation["colocated"] == {
        "enabled": False, "resources": {"num_nodes": 1, "gpus_per_node": None},
    }  # fmt: skip
    assert document["grpo"]["async_grpo"] == {"enabled": True, "max_trajectory_age_steps": 2}
    assert document["policy"]["train_global_batch_size"] == 512


@pytest.mark.slow
def test_a_plan_that_the_trainer_cannot_run_has_no_files() -> None:
    request = {**asked(), "search": {"framework": "torchtitan"}}
    with pytest.raises(NothingFits, match="no launch files: verl can't run"):
        files(parse_reinforcement(request))
    with pytest.raises(RequestError, match="NeMo-RL is written for grpo alone"):
        files(parse_reinforcement(asked(trainer="nemo-rl", algorithm="ppo")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "changes", "field", "said"),
    [
        ("trl", {"generation_precision": "fp8"}, "generation_precision", "must be bf16, got fp8"),
        ("slime", {"epochs": 2}, "epochs", "must be 1, got 2, or take verl or TRL or OpenRLHF"),
        ("openrlhf", {"max_num_seqs": 300}, "max_num_seqs", "must be 1024, got 300"),
        ("openrlhf", {"samples": 1}, "samples", "must be at least 2, got 1"),
        ("verl", {"speculative_tokens": 3, "accepted_tokens": 2}, "speculative_tokens",
         "must be 0, got 3"),
        ("verl", {"generation": "other", "generation_nodes": 1}, "generation",
         "got synchronous on other"),
        ("trl", {"generation": "other", "generation_nodes": 2}, "generation_nodes",
         "must be 1, got 2"),
        ("prime-rl", {"reference": True}, "reference", "must be false, got true"),
        ("prime-rl", {"staleness": 0}, "staleness", "must be at least 1, got 0"),
        ("areal", {"epochs": 2}, "epochs", "must be 1, got 2"),
        ("nemo-rl", {"generation": "other", "generation_nodes": 1, "staleness": 1,
                     "generated_per_trained": 2}, "generated_per_trained", "got 2.0"),
    ],
)  # fmt: skip
def test_what_a_trainer_cannot_say_is_refused_at_its_field(
    trainer: str, changes: dict[str, Any], field: str, said: str
) -> None:
    request = asked(cluster="3x8xh100-sxm", trainer=trainer, prompts=96, **changes)
    with pytest.raises(RequestError) as error:
        files(parse_reinforcement(request))
    (found,) = error.value.problems
    assert found.pointer == f"/reinforcement/{field}"
    assert found.got == changes.get(field, "other")
    assert said in found.detail


def test_a_framework_that_writes_steps_may_name_the_trainer() -> None:
    named = parse_reinforcement({**asked(), "search": {"framework": "trl"}})
    assert named.reinforcement.trainer == "trl"
    assert named.reinforcement.offload is False


def test_a_given_plan_is_written() -> None:
    plan = {"tp": 2, "sequence_parallel": True}
    bundle = files(parse_reinforcement({**asked(), "plan": plan}))
    said = overrides(bundle.files["launch.sh"])
    assert said["actor_rollout_ref.actor.megatron.tensor_model_parallel_size"] == "2"
    other = {**asked(), "plan": {**plan, "cross_entropy": "fused"}}
    with pytest.raises(NothingFits, match="is unfused, not fused"):
        files(parse_reinforcement(other))


@pytest.mark.parametrize(
    ("trainer", "plan", "field", "said"),
    [
        ("nemo-rl", {"pp": 4, "vpp": 2, "schedule": "interleaved-1f1b"}, "vpp", "must be 1, got 2"),
        ("nemo-rl", {"recompute": "full", "recompute_method": "block", "recompute_num_layers": 3},
         "recompute_num_layers", "must be 1, got 3"),
        ("areal", {"tp": 2}, "sequence_parallel", "must be True, got False"),
    ],
)  # fmt: skip
def test_a_given_plan_beyond_the_trainers_words_is_refused(
    trainer: str, plan: dict[str, Any], field: str, said: str
) -> None:
    split = {"generation": "other", "generation_nodes": 1} if trainer == "areal" else {}
    with pytest.raises(RequestError) as error:
        files(parse_reinforcement({**asked(trainer=trainer, staleness=1, **split), "plan": plan}))
    found = {one.pointer: one.detail for one in error.value.problems}
    assert said in found[f"/plan/{field}"]


def test_trainers_that_generate_apart_need_the_nodes_of_a_given_plan() -> None:
    request = asked(trainer="areal")
    with pytest.raises(RequestError, match="a plan of these needs it, with generation: other"):
        parse_reinforcement({**request, "plan": {"tp": 2}})
    with pytest.raises(RequestError, match="generates on nodes of their own: needs a second node"):
        parse_reinforcement(asked(trainer="areal", cluster="1x8xh100-sxm"))
    with pytest.raises(RequestError, match="is on one node: must be at most 8, got 16"):
        parse_reinforcement(asked(trainer="prime-rl", cluster="4x8xh100-sxm", generation_tp=16))


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["verl", "openrlhf"])
def test_engines_are_those_that_the_trainer_can_start(trainer: str) -> None:
    """OpenRLHF's and TRL's engines have no option for whole experts on each accelerator."""
    step = asked("qwen3-30b-a3b", trainer=trainer, generation_tp=8)
    made = planner.rl(step).generated
    assert made is not None
    assert made.expert_parallel is (trainer == "verl")


@pytest.mark.parametrize("staleness", [0, 1])
def test_openrlhf_trains_a_critic_on_the_ranks_of_the_policy(staleness: float) -> None:
    step = asked(trainer="openrlhf", algorithm="ppo", staleness=staleness)
    script = files(parse_reinforcement(step)).files["launch.sh"]
    assert "--algo.advantage.estimator gae" in script
    assert "--critic.num_nodes" in script
    assert "--train.colocate_all" in script  # beside the policy, with engines apart too
    apart = {**step["reinforcement"], "staleness": 0, "generation": "other", "generation_nodes": 1}
    with pytest.raises(RequestError, match="runs a step synchronous on same accelerators, or one"):
        files(parse_reinforcement({**step, "reinforcement": apart}))


def test_trl_serves_on_a_node_of_its_own(tmp_path: Path) -> None:
    step = asked(trainer="trl", generation="other", generation_nodes=1)
    bundle = files(parse_reinforcement(step))
    written(tmp_path, bundle)
    said = {"MASTER_ADDR": "node-0", "VLLM_HOST": "node-1", "MODEL": "here"}
    programs = ("accelerate", "trl")
    (train,) = run_script(tmp_path, bundle.main, programs, {"NODE_RANK": "0", **said})
    assert train[:2] == ["accelerate", "launch"]
    assert train[train.index("--num_machines") + 1] == "1"
    assert train[-2:] == ["--vllm_server_host", "node-1"]
    (serve,) = run_script(tmp_path, bundle.main, programs, {"NODE_RANK": "1", **said})
    assert serve[:4] == ["trl", "vllm-serve", "--model", "here"]
    assert serve[serve.index("--tensor_parallel_size") + 1] == "8"


@pytest.mark.slow
def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = files(parse_reinforcement(asked()))
    source = tmp_path / "step.json"
    source.write_text(json.dumps(asked()))
    assert cli.run(["rl-emit", str(source), "--output", str(tmp_path / "run")]) == 0
    assert {path.name: path.read_text() for path in (tmp_path / "run").iterdir()} == own.files
    capsys.readouterr()
    assert cli.run(["rl-emit", str(source), "--framework", "torchtitan"]) == 4
    assert "No launch files" in capsys.readouterr().err


@pytest.mark.slow
def test_screen_and_files_say_what_a_number_is_of(capsys: pytest.CaptureFixture[str]) -> None:
    """The most responses beside those expected; a step of full sequences beside what is spent."""
    step = [
        "--prompts", "64", "--samples", "8", "--prompt-tokens", "512",
        "--max-response-tokens", "4096", "--max-num-seqs", "700",
    ]  # fmt: skip
    assert cli.run(["rl", "--model", "llama-3.1-8b", "--cluster", "2x8xh100-sxm", *step]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert "responses at a time, of at most 700" in screen
    assert "per optimizer step of full sequences" in screen
    assert "optimizer steps of the policy, at expected lengths" in screen
    script = files(parse_reinforcement(asked(max_num_seqs=700))).files["launch.sh"]
    assert "max_num_seqs=700  # most responses at a time in one engine" in script
