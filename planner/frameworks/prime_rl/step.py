"""prime-rl's whole step of GRPO: one TOML for its trainer, orchestrator and vLLM under Slurm.

Keys of packages/prime-rl-configs (559b447).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from cost_models.plans import ParallelPlan
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import yaml_files
from planner.frameworks.base import Bundle
from planner.frameworks.bash_writer import comment
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.rollouts import Rollouts
from planner.frameworks.rules import accelerators_per_node, nodes
from planner.frameworks.torch_sharding import shard_degree
from planner.frameworks.unwritten_facts import Missing
from planner.frameworks.yaml_files import Row

VERSIONS = "0.4 (main of August 2026, 559b447)"
FILE = "rl.toml"
ATTENTION = {"flash": "auto", "flash2": "flash_attention_2"}
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
LAUNCH = Launch(
    "prime-rl", "prime-rl", VERSIONS, __name__.rpartition(".")[0],
    "Needs a checkout of prime-rl and a checkpoint: PRIME_RL and MODEL. It submits a Slurm job.",
    starts="first node",
)  # fmt: skip
NEEDS = Note(
    code="needs",
    text=f"The environment in {FILE}, reverse-text, is prime-rl's own: put yours there. The "
    "learning rate is prime-rl's default; a MODEL that its renderers don't know needs "
    "orchestrator.renderer.name.",
)


def render(request: PlanRequest, plan: ParallelPlan, rollouts: Rollouts) -> Bundle:
    """The configuration of a whole step and the script that submits it.

    request: of the nodes that train, with sequences of full length.
    """
    rows = list(_rows(request, plan, rollouts))
    return LAUNCH.bundle(
        request,
        plan,
        Missing((), ()),  # the model is the checkpoint's, with all its facts
        flags=yaml_files.flags(FILE, rows),
        notes=(NEEDS,),
        files={FILE: f"{LAUNCH.head(request, plan)}\n{document(rows)}"},
    )


def document(rows: Iterable[Row]) -> str:
    """Dotted keys as TOML, each value with its why."""
    return "".join(f"{key} = {_value(value)}  {comment(why)}\n" for key, value, why in rows)


def _value(value: Any) -> str:
    """One value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_value(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value)


def _rows(request: PlanRequest, plan: ParallelPlan, rollouts: Rollouts) -> Iterator[Row]:
    yield "model.name", request.model.name or "model", "the launch script puts MODEL in its place"
    yield "seq_len", request.training.seq_length, "tokens of one packed pass, and the longest"
    yield "deployment.type", "multi_node", "engines have nodes of their own"
    yield "deployment.num_train_nodes", nodes(request.cluster), "nodes that train"
    yield "deployment.num_infer_nodes", rollouts.nodes, "nodes that generate"
    each = accelerators_per_node(request.cluster)
    yield "deployment.gpus_per_node", each, "accelerators of a node"
    yield "slurm.job_name", "planned", "several nodes are a job of Slurm"
    yield "weight_broadcast.type", "nccl", "how new weights get to the engines"
    yield from _trainer(request, plan)
    yield from _orchestrator(rollouts)
    yield from _engines(rollouts)


def _trainer(request: PlanRequest, plan: ParallelPlan) -> Iterator[Row]:
    model = "trainer.model."
    shard = shard_degree(plan)
    yield model + "dp_replicate", plan.dp // shard, "copies of the shards"
    yield model + "cp", plan.cp, "as planned"
    yield model + "cp_style", "ulysses", "heads are exchanged (a2a)"
    yield model + "ep", plan.ep, "as planned"
    yield model + "reshard_after_forward", plan.reshard_after_forward, "as planned"
    yield model + "attn", ATTENTION[plan.attention_kernel], "attention kernel"
    whole = {"freq": 1} if plan.recompute == "full" else "None"
    yield model + "ac", whole, "activation checkpointing, as planned"
    yield model + "ac_offloading", "None", "activations stay on the accelerator"
    yield model + "optim_cpu_offload", False, "optimizer states stay on the accelerator"
    compiled: Any = {"fullgraph": False} if plan.compile else "None"
    yield model + "compile", compiled, "as planned"
    dtype = DTYPES[request.training.gradient_reduce_dtype]
    yield model + "reduce_dtype", dtype, "type of reduced gradients"
    master = "float32" if request.training.master_weights_dtype == "fp32" else "bfloat16"
    yield model + "optimization_dtype", master, "type of stored weights"
    yield "trainer.optim.type", "adamw", "as planned"


def _orchestrator(rollouts: Rollouts) -> Iterator[Row]:
    yield "orchestrator.batch_size", rollouts.batch, "responses per optimizer step"
    yield "orchestrator.group_size", rollouts.samples, "responses per prompt"
    yield "orchestrator.algo.type", "grpo", "advantages over the responses of each prompt"
    late = int(rollouts.behind)
    yield "orchestrator.max_off_policy_steps", late, "updates that a response may lag behind"
    longest = rollouts.response_tokens
    yield "orchestrator.train.sampling.max_completion_tokens", longest, "where responses are cut"
    source = {"taskset": {"id": "reverse-text"}, "agent": {"harness": {"id": "null"}}}
    yield "orchestrator.train.source", [{"env": source}], "prompts and rewards: put yours here"


def _engines(rollouts: Rollouts) -> Iterator[Row]:
    engine = "inference.vllm."
    yield engine + "tensor_parallel_size", rollouts.tp, "accelerators of one engine"
    yield engine + "max_model_len", rollouts.tokens, "the longest prompt and response"
    share = round(rollouts.gpu_memory_utilization, 2)
    yield engine + "gpu_memory_utilization", share, "weights and caches"
    yield engine + "max_num_seqs", rollouts.max_num_seqs, "most responses at a time in one engine"
    yield engine + "enable_prefix_caching", True, "samples of a prompt compute it once"
