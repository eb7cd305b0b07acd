"""AReaL's whole step of GRPO or PPO on Megatron-Core and SGLang: one YAML.

Keys of areal/api/cli_args.py and backends of areal/api/alloc_mode.py (4aef98d).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cost_models.plans import ParallelPlan
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import bash_writer
from planner.frameworks.base import Bundle
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.rollouts import Rollouts
from planner.frameworks.rules import accelerators_per_node, nodes
from planner.frameworks.unwritten_facts import Missing
from planner.frameworks.yaml_files import Row

VERSIONS = "main of May 2026 (4aef98d)"
FILE = "grpo.yaml"
LAUNCH = Launch(
    "areal", "AReaL", VERSIONS, __name__.rpartition(".")[0],
    "Needs a checkout of AReaL, a checkpoint, prompts and a shared folder: AREAL, MODEL, SHARED.",
)  # fmt: skip
NEEDS = Note(
    code="needs",
    text="It runs AReaL's example gsm8k_rl.py with its reward: put your own program and DATASET "
    "there. The learning rate is AReaL's default. AReaL splits layers over pipeline stages by "
    "their parameters, which may differ from the plan by a layer.",
)
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
KL_WEIGHT = 0.001


def render(request: PlanRequest, plan: ParallelPlan, rollouts: Rollouts) -> Bundle:
    """The configuration of a whole step and the script to be called on every node.

    request: of the nodes that train, with sequences of full length.
    """
    count = nodes(request.cluster) + rollouts.nodes
    return LAUNCH.with_config(
        request,
        plan,
        Missing((), ()),  # the model is the checkpoint's, with all its facts
        FILE,
        list(_rows(request, plan, rollouts)),
        notes=(NEEDS,),
        words={"rendezvous": bash_writer.rendezvous(count)},
    )


def backend(plan: ParallelPlan) -> str:
    """The degrees of a plan as AReaL writes them."""
    dense = f"d{plan.dp}p{plan.pp}t{plan.tp}c{plan.cp}"
    if plan.ep == 1:
        return f"megatron:{dense}"
    ranks = plan.dp * plan.tp * plan.cp
    experts = f"d{ranks // (plan.ep * plan.etp)}p{plan.pp}t{plan.etp}e{plan.ep}"
    return f"megatron:(attn:{dense}|ffn:{experts})"


def _rows(request: PlanRequest, plan: ParallelPlan, rollouts: Rollouts) -> Iterator[Row]:
    yield "experiment_name", "planned", "of the logs"
    yield "trial_name", "trial0", "of the logs"
    yield "total_train_epochs", 1, "passes over the prompts"
    yield "tokenizer_path", "${actor.path}", "of the checkpoint"
    yield "scheduler.type", "ray", "who starts the workers"
    yield "cluster.n_nodes", nodes(request.cluster) + rollouts.nodes, "train and generate"
    each = accelerators_per_node(request.cluster)
    yield "cluster.n_gpus_per_node", each, "accelerators of a node"
    yield "cluster.fileroot", "areal", "the launch script puts SHARED in its place"
    for part in ("saver", "evaluator", "recover", "stats_logger"):
        yield from _named(part)
        yield f"{part}.fileroot", "${cluster.fileroot}", "where all nodes see it"
    yield "train_dataset.path", "openai/gsm8k", "the launch script puts DATASET in its place"
    yield "train_dataset.type", "rl", "prompts"
    yield "train_dataset.batch_size", rollouts.prompts, "prompts per step"
    yield "train_dataset.max_length", rollouts.prompt_tokens, "longer prompts are left out"
    yield "gconfig.n_samples", rollouts.samples, "responses per prompt"
    yield "gconfig.max_new_tokens", rollouts.response_tokens, "where responses are cut"
    yield "gconfig.max_tokens", rollouts.tokens, "the longest prompt and response"
    yield from _engines(rollouts)
    yield from _trained("actor", request, plan)
    yield from _actor(rollouts)
    if rollouts.algorithm == "ppo":
        yield from _trained("critic", request, plan)
        yield "critic.is_critic", True, "values of the responses"
        yield "critic.ppo_n_minibatches", rollouts.updates, "optimizer steps of one pass"
        yield from _beside("critic")
    if rollouts.reference:
        yield from _model("ref", request, plan)
        yield "ref.backend", "${actor.backend}", "split as the policy"
        yield from _beside("ref")


def _engines(rollouts: Rollouts) -> Iterator[Row]:
    engine = f"sglang:d{rollouts.engines}t{rollouts.tp}"
    yield "rollout.backend", engine, "engines, and accelerators of each"
    yield from _named("rollout")
    yield "rollout.tokenizer_path", "${tokenizer_path}", "of the checkpoint"
    yield "rollout.consumer_batch_size", "${train_dataset.batch_size}", "prompts per step"
    yield "rollout.max_head_offpolicyness", int(rollouts.behind), "updates that it may lag behind"
    at_once = rollouts.prompts * (1 + int(rollouts.behind))
    yield "rollout.max_concurrent_rollouts", at_once, "prompts at a time"
    yield "rollout.scheduling_spec", "${actor.scheduling_spec}", "of the workers"
    yield "sglang.model_path", "${actor.path}", "of the checkpoint"
    yield "sglang.context_length", rollouts.tokens, "the longest prompt and response"
    share = round(rollouts.gpu_memory_utilization, 2)
    yield "sglang.mem_fraction_static", share, "weights and caches"
    yield "sglang.max_running_requests", rollouts.max_num_seqs, "most responses at a time"
    yield "sglang.ep_size", rollouts.tp if rollouts.experts else 1, "share whole experts"


def _named(part: str) -> Iterator[Row]:
    yield f"{part}.experiment_name", "${experiment_name}", "of the logs"
    yield f"{part}.trial_name", "${trial_name}", "of the logs"


def _model(part: str, request: PlanRequest, plan: ParallelPlan) -> Iterator[Row]:
    """What a model that trains or scores says."""
    yield from _named(part)
    own = part == "actor"
    name = "the launch script puts MODEL in its place" if own else "of the policy"
    yield f"{part}.path", request.model.name or "model" if own else "${actor.path}", name
    yield f"{part}.disable_dropout", True, "as planned"
    yield f"{part}.dtype", DTYPES[request.training.precision], "type of weights and activations"
    tokens = request.training.seq_length * plan.micro_batch_size
    yield f"{part}.mb_spec.max_tokens_per_mb", tokens, "tokens of one pass, as planned"


def _trained(part: str, request: PlanRequest, plan: ParallelPlan) -> Iterator[Row]:
    """What a model that trains says beside."""
    yield f"{part}.backend", backend(plan), "as planned"
    yield from _model(part, request, plan)
    again = plan.recompute == "full"
    core = f"{part}.megatron."
    yield f"{part}.gradient_checkpointing", again, "layers run again" if again else "none"
    if again:
        yield core + "recompute_method", plan.recompute_method, "as planned"
        yield core + "recompute_num_layers", plan.recompute_num_layers, "as planned"
    yield f"{part}.optimizer.type", request.training.optimizer, "as planned"
    yield core + "moe_token_dispatcher_type", plan.moe_dispatcher, "as planned"
    fp32 = request.training.gradient_dtype == "fp32"
    yield core + "ddp.grad_reduce_in_fp32", fp32, "gradients accumulated and reduced in fp32"
    yield core + "ddp.overlap_grad_reduce", plan.overlap_grad_reduce, "as planned"
    yield core + "ddp.overlap_param_gather", plan.overlap_param_gather, "as planned"


def _actor(rollouts: Rollouts) -> Iterator[Row]:
    yield "actor.ppo_n_minibatches", rollouts.updates, "optimizer steps of one pass"
    yield "actor.max_new_tokens", "${gconfig.max_new_tokens}", "where responses are cut"
    yield "actor.kl_ctl", KL_WEIGHT if rollouts.reference else 0.0, "weight of the reference's KL"
    yield "actor.recompute_logprob", True, "the policy scores the responses"
    yield "actor.use_decoupled_loss", rollouts.behind > 0, "responses are of older weights"
    yield "actor.weight_update_mode", "xccl", "how new weights get to the engines"
    if rollouts.algorithm == "grpo":
        yield "actor.reward_norm.mean_level", "group", "GRPO"
        yield "actor.reward_norm.std_level", "group", "GRPO"
        yield "actor.reward_norm.group_size", rollouts.samples, "responses per prompt"
    worker: dict[str, Any] = {
        "task_type": "worker", "port_count": 2, "gpu": 1,
        "cmd": "python3 -m areal.infra.rpc.rpc_server",
    }  # fmt: skip
    for key, value in worker.items():
        yield f"actor.scheduling_spec.0.{key}", value, "of AReaL's examples"


def _beside(part: str) -> Iterator[Row]:
    """Where a model is that takes turns with the policy."""
    yield f"{part}.scheduling_strategy.type", "colocation", "on the ranks that train"
    yield f"{part}.scheduling_strategy.target", "actor", "whose ranks"
    yield f"{part}.scheduling_spec", "${actor.scheduling_spec}", "of the workers"
