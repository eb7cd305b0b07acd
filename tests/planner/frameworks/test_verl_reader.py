"""verl's Hydra overrides: the Megatron actor that they train, and what they leave unread."""

from __future__ import annotations

import pytest

from cost_models.catalog import models
from planner.answers.lint.lint import lint
from planner.answers.lint.lint import read as said
from planner.documents.problems import RequestError
from planner.frameworks import get
from planner.frameworks.launch_files import GivenValues, LaunchFiles
from planner.frameworks.read_results import Reading, Unreadable
from planner.inputs.requests.parser import parse_cluster

ACTOR = "actor_rollout_ref.actor."
SCRIPT = """\
#!/usr/bin/env bash
max_prompt_length=$((1024 * 2))
max_response_length=$((1024 * 6))
TP=${TP:-4}
MODEL_PATH=$HOME/models/Qwen3-30B-A3B

python3 -m verl.trainer.main_ppo --config-path=config \\
    --config-name='ppo_megatron_trainer.yaml' \\
    algorithm.adv_estimator=grpo \\
    data.train_batch_size=512 \\
    data.max_prompt_length=${max_prompt_length} \\
    data.max_response_length=${max_response_length} \\
    actor_rollout_ref.model.path="${MODEL_PATH}" \\
    actor_rollout_ref.model.use_fused_kernels=True \\
    actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \\
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=$TP \\
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 \\
    actor_rollout_ref.actor.megatron.expert_model_parallel_size=4 \\
    actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=1 \\
    actor_rollout_ref.actor.megatron.param_offload=True \\
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full \\
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform \\
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=1 \\
    +actor_rollout_ref.actor.megatron.override_transformer_config.persist_layer_norm=True \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=8 \\
    actor_rollout_ref.rollout.n=8 \\
    actor_rollout_ref.ref.megatron.tensor_model_parallel_size=2 \\
    trainer.n_gpus_per_node=8 \\
    trainer.nnodes=4 "$@"
"""
LORA = "actor_rollout_ref.model.lora"
MICRO = "ppo_micro_batch_size_per_gpu=2"


def read(text: str = SCRIPT, given: GivenValues | None = None) -> Reading:
    framework = get("verl")
    assert framework.read is not None
    files = LaunchFiles({"run.sh": text}, given)
    assert framework.recognises(files)
    return framework.read(files, None)


def test_the_actor_is_read_and_not_what_generates() -> None:
    reading = read()
    plan, training = reading.plan, reading.training
    assert (plan.tp, plan.pp, plan.ep, plan.etp, plan.dp) == (4, 2, 4, 1, 4)
    assert (plan.sequence_parallel, plan.zero_stage, plan.micro_batch_size) == (True, 1, 2)
    assert (plan.recompute, plan.attention_kernel) == ("full", "flash")
    assert plan.moe_dispatcher == "alltoall"
    assert (training.global_batch_size, training.seq_length) == (64 * 8, 8192)
    assert (training.precision, training.gradient_reduce_dtype) == ("bf16", "fp32")
    assert (reading.nodes, reading.accelerators_per_node) == (4, 8)
    assert reading.model.num_layers == 48
    assert reading.refusals == ()


def test_what_is_left_is_named() -> None:
    reading = read()
    assert {one.name for one in reading.unread} == {
        "actor_rollout_ref.model.use_fused_kernels",
        ACTOR + "megatron.override_transformer_config.persist_layer_norm",
    }
    notes = " ".join(reading.assumed)
    assert "without generation, reference, reward and critic" in notes
    assert "as long as the longest prompt and response, 8192 tokens" in notes
    assert "offloaded between the phases" in notes


def test_a_micro_batch_of_all_ranks_is_split_over_the_replicas() -> None:
    """4 replicas of tp 4 x pp 2 on 32 accelerators."""
    assert read(SCRIPT.replace(MICRO, "ppo_micro_batch_size=8")).plan.micro_batch_size == 2


def test_micro_batches_by_tokens_are_costed_as_full_sequences() -> None:
    dynamic = f"use_dynamic_bsz=True {ACTOR}ppo_max_token_len_per_gpu=20000"
    assert read(SCRIPT.replace(MICRO, dynamic)).plan.micro_batch_size == 2
    context = f"{dynamic} {ACTOR}megatron.context_parallel_size=2"
    plan = read(SCRIPT.replace(MICRO, context)).plan
    assert (plan.cp, plan.dp, plan.micro_batch_size) == (2, 2, 4)
    # A rank has no more than its share of the mini-batch, in equal parts.
    few = SCRIPT.replace(MICRO, dynamic.replace("20000", "90000"))
    assert read(few.replace("mini_batch_size=64", "mini_batch_size=3")).plan.micro_batch_size == 6


def test_prediction_layers_train_only_where_they_are_asked_for() -> None:
    text = SCRIPT.replace("Qwen3-30B-A3B", "DeepSeek-V3")
    assert models.model("deepseek-v3").mtp_num_layers == 1
    assert read(text).model.mtp_num_layers == 0
    asked = text.replace(MICRO, f"{MICRO} actor_rollout_ref.model.mtp.enable=True")
    assert read(asked).model.mtp_num_layers == 1


def test_adapters_of_both_actors() -> None:
    canonical = f"{MICRO} {LORA}.rank=16 {LORA}.target_modules=[linear_q,linear_fc1_up,linear_fc2]"
    training = read(SCRIPT.replace(MICRO, canonical)).training
    assert (training.lora_rank, training.lora_dropout) == (16, 0.0)
    assert training.lora_targets == ("q_proj", "up_proj", "linear_fc2")
    usual = read(SCRIPT.replace(MICRO, f"{MICRO} {LORA}.rank=16")).training
    assert usual.lora_targets == ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
    latent = SCRIPT.replace("Qwen3-30B-A3B", "DeepSeek-V3").replace(MICRO, f"{MICRO} {LORA}.rank=8")
    assert "linear_kv_up_proj" in read(latent).training.lora_targets
    assert read().training.lora_rank == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ((MICRO, f"{MICRO} {LORA}.rank=many"), "lora.rank is 'many', not a number"),
        ((MICRO, f"{MICRO} {LORA}.rank=8 {LORA}.target_modules=[router]"),
         "target_modules: adapters at 'router' are not costed, only linear_qkv"),
        ((MICRO, "strategy=megatron"), "ppo_micro_batch_size_per_gpu is missing"),
        (("Qwen3-30B-A3B", "nobody-7B"), "the model nobody-7B is no preset"),
        (("nnodes=4", "nnodes=$NODES"), "nnodes is .NODES, which the files do not say"),
        (("rollout.n=8", "rollout.n=x"), "rollout.n must be a whole number"),
        ((MICRO, f"{MICRO} {ACTOR}megatron.override_transformer_config.new_layers=4"),
         "new_layers 4: not understood"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_refused_by_name(change: tuple[str, str], text: str) -> None:
    assert change[0] in SCRIPT
    with pytest.raises(Unreadable, match=text):
        read(SCRIPT.replace(*change))


def test_values_may_be_given() -> None:
    given = GivenValues(values={"TP": "2", "trainer.nnodes": "8"})
    reading = read(given=given)
    assert (reading.plan.tp, reading.plan.dp, reading.nodes) == (2, 16, 8)


FSDP = """\
python3 -m verl.trainer.main_ppo \\
    data.max_prompt_length=1024 data.max_response_length=3072 \\
    actor_rollout_ref.model.path=Qwen/Qwen3-8B \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
    actor_rollout_ref.actor.use_dynamic_bsz=True \\
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192 \\
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 \\
    actor_rollout_ref.actor.fsdp_config.fsdp_size=8 \\
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \\
    actor_rollout_ref.actor.fsdp_config.forward_prefetch=True \\
    actor_rollout_ref.rollout.n=5 trainer.nnodes=2
"""


def sharded(text: str = FSDP) -> Reading:
    framework = get("accelerate")
    assert framework.read is not None
    assert framework.recognises({"run.sh": text})
    assert not get("megatron").recognises({"run.sh": text})
    return framework.read({"run.sh": text}, None)


def test_the_fsdp_actor_shards_a_model_of_transformers() -> None:
    reading = sharded()
    plan, training = reading.plan, reading.training
    assert (plan.cp, plan.cp_kind, plan.dp, plan.dp_shard, plan.zero_stage) == (2, "a2a", 8, 8, 3)
    assert (plan.micro_batch_size, plan.recompute) == (4, "full")
    assert (training.global_batch_size, training.seq_length) == (1280, 4096)
    assert (plan.offload_optimizer, reading.accelerators_per_node) == (False, 8)
    assert [one.name for one in reading.unread] == [ACTOR + "fsdp_config.forward_prefetch"]
    assert any("offloaded between the phases" in one for one in reading.assumed)


def test_switches_of_the_fsdp_actor() -> None:
    more = "actor_rollout_ref.model.enable_gradient_checkpointing=False"
    more += (
        f" {ACTOR}fsdp_config.offload_policy=True {ACTOR}fsdp_config.reshard_after_forward=False"
    )
    plan = sharded(FSDP.replace("trainer.nnodes=2", f"trainer.nnodes=2 {more}")).plan
    assert (plan.recompute, plan.offload_optimizer, plan.reshard_after_forward) == (
        "none",
        True,
        False,
    )
    odd = sharded(FSDP.replace("parallel_size=2", "parallel_size=3"))
    assert [one.reason.code for one in odd.refusals] == ["world_size"]
    cluster = parse_cluster("2x8xh100-sxm")
    assert lint({"run.sh": FSDP}, cluster).estimate is not None


def test_a_degree_that_no_file_states_is_left_open() -> None:
    reading = read(SCRIPT.replace("TP:-4", "DEGREE"))
    assert reading.plan.tp == 1
    assert any("--set DEGREE=..." in one for one in reading.open)


def test_it_is_judged_in_its_own_place() -> None:
    cluster = parse_cluster("4x8xh100-sxm")
    assert said({"run.sh": SCRIPT}, cluster).framework == "verl"
    answer = lint({"run.sh": SCRIPT.replace("TP:-4", "TP:-3")}, cluster)
    codes = {one.code for one in answer.findings if one.severity == "error"}
    assert "world_size" in codes
    assert lint({"run.sh": SCRIPT}, cluster).estimate is not None


YAML = """\
defaults: [ppo_trainer, _self_]
data: {max_prompt_length: 1024, max_response_length: 3072}
actor_rollout_ref:
  model: {path: /models/Qwen3-30B-A3B}
  actor:
    ppo_mini_batch_size: 64
    ppo_micro_batch_size_per_gpu: 1
  rollout: {n: 8}
trainer: {n_gpus_per_node: 8, nnodes: 1}
"""


def test_a_yaml_is_read_alone_and_under_the_call_that_names_it() -> None:
    cluster = parse_cluster("1x8xh100-sxm")
    alone = said({"grpo.yaml": YAML}, cluster).request
    assert (alone["training"]["global_batch_size"], alone["training"]["seq_length"]) == (512, 4096)
    assert (alone["plan"]["dp"], alone["plan"]["zero_stage"]) == (8, 3)
    call = "python -m verl.trainer.main_ppo --config-name grpo actor_rollout_ref.rollout.n=4\n"
    longer = call.replace(
        "rollout.n=4", "rollout.n=4 actor_rollout_ref.rollout.response_length=9000"
    )
    of_data = longer.replace("=9000", "='${data.max_response_length}'")
    plain = said({"run.sh": of_data, "grpo.yaml": YAML}, cluster).request["training"]
    assert plain["seq_length"] == 4096
    engine = said({"run.sh": longer, "grpo.yaml": YAML}, cluster).request["training"]
    assert engine["seq_length"] > 9000
    both = said({"run.sh": call, "grpo.yaml": YAML}, cluster).request
    assert both["training"]["global_batch_size"] == 256
    with pytest.raises(RequestError, match="it evaluates, and trains nothing"):
        said({"run.sh": f"{call[:-1]} +trainer.val_only=true\n", "grpo.yaml": YAML}, cluster)
    with pytest.raises(RequestError, match=r"options may be in grpo\.yaml, which is not among the"):
        said({"run.sh": call.partition(" actor")[0]}, cluster)


def test_nodes_that_the_environment_decides_are_those_of_the_cluster() -> None:
    text = FSDP.replace("trainer.nnodes=2", "trainer.nnodes=${WORLD_SIZE}")
    found = said({"run.sh": text}, parse_cluster("4x8xh100-sxm"))
    assert found.nodes == 4
    assert (found.request["plan"]["cp"], found.request["plan"]["dp"]) == (2, 16)
    assert "trainer.nnodes is ${WORLD_SIZE}, which the files do not say: by the cluster" in str(
        found.assumed
    )
