"""The values of NeMo-RL's public configurations, from a checkout.

    python -m tests.oracles.nemo_rl_configs CHECKOUT COMMIT

Of each YAML file of its examples, what it says of the policy's training and of the cluster,
and which files it inherits.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.oracles.recipe_stubs import write_table

TABLE = Path("planner/frameworks/nemo_rl/configs.json")
CONFIGS = "examples"
# Of the policy, what says nothing of a step's time or memory.
IDLE = re.compile(
    r"^(tokenizer|generation_batch_size|logprob_\w+|scheduler|max_grad_norm|refit_\w+|checkpoint|"
    r"lr|min_lr|weight_decay|adam_\w+|sgd_momentum|clip_grad|env_vars|moe_router_\w+|freeze_vision_\w+|"
    r"lora_[AB]_init\w*|use_triton|alpha|dropout_position|exclude_modules|mcore_generation_config|"
    r"vllm_\w+|sglang_\w+|draft|router_replay|make_sequence_length_divisible_by|freeze_moe_router)$"
)
# Sections whose presence tells the algorithm.
ALGORITHMS = ("dpo", "rm", "sft", "grpo", "ppo", "distillation")
# What batches refer to.
SAMPLES = ("num_prompts_per_step", "num_generations_per_prompt")


def kept(node: Any) -> Any:
    """A part of the policy without what is idle."""
    if not isinstance(node, dict):
        return node
    return {key: kept(value) for key, value in node.items() if not IDLE.match(str(key))}


def said(document: dict[str, Any]) -> dict[str, Any]:
    """What a file says of the training."""
    found: dict[str, Any] = {}
    if "defaults" in document:
        found["defaults"] = document["defaults"]
    for name in ALGORITHMS:
        if name in document:
            found[name] = {key: one for key, one in document[name].items() if key in SAMPLES}
    policy = dict(document.get("policy") or {})
    generation = policy.pop("generation", None) or {}
    policy = kept(policy)
    if "colocated" in generation:
        policy["generation"] = {"colocated": generation["colocated"]}
    if policy:
        found["policy"] = policy
    if "cluster" in document:
        found["cluster"] = document["cluster"]
    return found


def table(checkout: Path, commit: str) -> dict[str, Any]:
    """Every configuration by its path."""
    configs = {}
    for path in sorted((checkout / CONFIGS).rglob("*.yaml")):
        if "evals" in path.parts:
            continue
        document = yaml.safe_load(path.read_text())
        if isinstance(document, dict) and ("policy" in document or "defaults" in document):
            configs[str(path.relative_to(checkout))] = said(document)
    return {"repository": "NVIDIA-NeMo/RL", "commit": commit, "configs": configs}


if __name__ == "__main__":
    found = table(Path(sys.argv[1]).resolve(), sys.argv[2])
    write_table(TABLE, found, "configs")
    print(len(found["configs"]), "configurations")
