"""NeMo-RL's policy on torch: a transformers model under FSDP 2 and tensor parallelism.

Source: nemo_rl/models/automodel/setup.py and models/dtensor/parallelize.py of 7ea279a.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.documents.answer import Reason
from planner.frameworks.accelerate.settings import FOREACH
from planner.frameworks.given_values import malformed
from planner.frameworks.launch_files import GivenValues
from planner.frameworks.nemo_rl import policy
from planner.frameworks.nemo_rl.config import Config
from planner.frameworks.read_results import Reading, Refusal, Unreadable

GROUP = "policy.dtensor_cfg"


def read(config: Config, given: GivenValues, accelerators: int | None) -> Reading:
    """The specs and the plan of a run.  Raises Unreadable."""
    config.notes.append(policy.APART)
    model = policy.model(config, given, predicts=False)
    world = policy.world(config, accelerators)
    if world.accelerators is None:
        text = "cluster.num_nodes and cluster.gpus_per_node are missing: give a cluster"
        raise Unreadable(text, *config.place("policy"))
    tp, cp = config.whole(f"{GROUP}.tensor_parallel_size", 1), config.whole(_CONTEXT, 1)
    refusals = []
    if world.accelerators % (tp * cp):
        text = f"{world.accelerators} accelerators are not a multiple of tp {tp} x cp {cp}"
        key = f"{GROUP}.tensor_parallel_size"
        reason = Reason(code="world_size", text=text)
        refusals.append(Refusal(reason=reason, setting=config.setting(key)))
    sizes = policy.sizes(config, tp * cp, world.accelerators)
    try:
        training = TrainingSpec(
            seq_length=sizes.length,
            global_batch_size=sizes.batch,
            precision=policy.precision(config),
            gradient_dtype="fp32",
            gradient_reduce_dtype="fp32",
            **policy.tuned_fields(config, model, f"{GROUP}.lora_cfg"),
        )
        plan = ParallelPlan(**_plan(config, model, tp, cp, world.accelerators, sizes.micro))
    except ValidationError as error:
        raise malformed(error, config.name) from None
    unread = policy.left(config, "dtensor_cfg", given.model is not None)
    return Reading(
        framework="accelerate",
        model=model,
        training=training,
        plan=plan,
        nodes=world.nodes,
        accelerators_per_node=world.per_node,
        settings=tuple(config.setting(key) for key in sorted(config.asked & set(config.places))),
        unread=unread,
        assumed=tuple(config.notes),
        refusals=tuple(refusals),
        written=False,
    )


_CONTEXT = f"{GROUP}.context_parallel_size"


def _plan(
    config: Config, model: ModelSpec, tp: int, cp: int, total: int, micro: int
) -> dict[str, Any]:
    """The fields of the plan."""
    full = config.on(f"{GROUP}.activation_checkpointing")
    dp = max(total // (tp * cp), 1)
    copies = config.whole(f"{GROUP}.dp_replicate_size", 1)
    experts = config.whole(f"{GROUP}.expert_parallel_size", 1) if model.moe is not None else 1
    return {
        "tp": tp,
        "sequence_parallel": tp > 1 and config.on(f"{GROUP}.sequence_parallel"),
        "cp": cp,
        "dp": dp,
        "dp_shard": dp * cp // copies if copies > 1 else 0,
        "ep": experts,
        "zero_stage": 3,
        "micro_batch_size": micro,
        "recompute": "full" if full else "none",
        "recompute_num_layers": model.num_layers if full else 0,
        "offload_optimizer": config.on(f"{GROUP}.cpu_offload"),
        "attention_kernel": "flash",
        "cross_entropy": "unfused",
        "runtime": FOREACH,
    }
