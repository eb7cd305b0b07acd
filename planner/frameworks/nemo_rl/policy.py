"""Settings of all NeMo-RL policies: the model, the lengths and batches, the accelerators."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cost_models.spec import ModelSpec
from planner.frameworks import architecture, post_training
from planner.frameworks.launch_files import GivenValues
from planner.frameworks.lora_settings import adapter_fields
from planner.frameworks.nemo_rl.config import BACKENDS, TITLE, Config, of_files
from planner.frameworks.read_results import Setting, Unreadable
from planner.frameworks.training_calls import World

LENGTH, BATCH = "policy.max_total_sequence_length", "policy.train_global_batch_size"
MICRO = "policy.train_micro_batch_size"
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
# Algorithms whose samples are pairs that go through one pass together (dpo.py, rm.py: mbs * 2).
PAIRED = ("dpo", "rm")
APART = (
    "only the policy's training is costed, one global batch per step, without generation, "
    "reference, reward, teacher and critic"
)
# Keys of the policy that do not affect a step's time or memory, or are read elsewhere.
IDLE = re.compile(
    r"tokenizer|logprob|scheduler|max_grad_norm|refit|checkpoint\.|generation|optimizer|router|"
    r"make_sequence|dynamic_batching|sequence_packing|draft|hf_config_overrides|env_vars|_v2|"
    r"force_reconvert|empty_unused|converter|custom_parallel_plan|use_gloo|defer_|moe_per_layer|"
    r"automodel_kwargs|enabled|freeze_vision|lora_cfg|peft|clear_cache|train_iters"
)


def is_on(files: Mapping[str, str], backend_name: str) -> bool:
    """Whether the files hold a run on that backend; unreadable ones count as on the first."""
    try:
        config = of_files(files)
        return config is not None and backend(config) == backend_name
    except Unreadable:
        return backend_name == BACKENDS[0]


def backend(config: Config) -> str:
    """`megatron_cfg` or `dtensor_cfg`, whichever is enabled.  Raises Unreadable."""
    enabled = [one for one in BACKENDS if config.on(f"policy.{one}.enabled")]
    if len(enabled) == 1:
        return enabled[0]
    said = " and ".join(enabled) if enabled else "neither megatron_cfg nor dtensor_cfg"
    text = f"policy: {said} of {TITLE} enabled: --set policy.{BACKENDS[0]}.enabled=true or false"
    raise Unreadable(text, *config.place("policy"))


def model(config: Config, given: GivenValues, predicts: bool) -> ModelSpec:
    """The model that the user gives, or else the preset of its name.  Raises Unreadable.

    predicts: whether its prediction layers are trained.
    """
    key = "policy.model_name"
    name = str(config.value(key, "")).rstrip("/")
    found = given.model or post_training.preset(name, f"no {key}", config.place(key), config.notes)
    overrides = config.group("policy.hf_config_overrides")
    shapes = [
        Setting(name=one, value=str(value), file=config.name, line=0)
        for one, value in overrides.items()
    ]
    architecture.refuse(shapes, named=given.model is not None)
    return found if predicts or given.model is not None else post_training.with_prediction(found, 0)


def sizes(config: Config, replica: int, accelerators: int) -> post_training.Sizes:
    """The sequence length and the batch sizes of a step.

    replica: ranks of one model replica; accelerators: those that train.
    """
    length, batch, micro = config.whole(LENGTH), config.whole(BATCH), config.whole(MICRO)
    config.notes.append(f"every sequence is as long as {LENGTH.partition('.')[2]}, {length} tokens")
    pairs = 2 if any(name in config.tree for name in PAIRED) else 1
    batch, micro = pairs * batch, pairs * micro
    for name in ("sequence_packing", "dynamic_batching"):
        if not config.on(f"policy.{name}.enabled"):
            continue
        tokens = config.whole(f"policy.{name}.train_mb_tokens", length * micro)
        share = max(batch * replica // max(accelerators, 1), 1)
        micro = post_training.sequences(tokens, length, share)
        config.notes.append(
            f"passes of {tokens} tokens are costed as {micro} of the longest sequences"
        )
        break
    return post_training.Sizes(length, batch, micro)


def world(config: Config, asked: int | None) -> World:
    """The accelerators that train: all, or those that do not generate."""
    nodes = config.value("cluster.num_nodes")
    each = config.value("cluster.gpus_per_node")
    if nodes is None or each is None:
        return World(None, None, asked)
    nodes, each = config.whole("cluster.num_nodes"), config.whole("cluster.gpus_per_node")
    apart = "policy.generation.colocated"
    if config.value(f"{apart}.enabled") is False:
        if nodes == 1:
            each -= config.whole(f"{apart}.resources.gpus_per_node")
        else:
            nodes -= config.whole(f"{apart}.resources.num_nodes")
        if min(nodes, each) < 1:
            text = f"{apart}.resources leave no accelerators for training"
            raise Unreadable(text, *config.place(apart))
        config.notes.append("accelerators for generation only are not counted")
    return World(nodes, each, nodes * each)


def tuned_fields(config: Config, model: ModelSpec, group: str) -> dict[str, Any]:
    """The TrainingSpec fields for LoRA, and for a reward model.  Raises Unreadable."""
    loss = {"loss": "reward"} if "rm" in config.tree else {}
    return loss | _adapted(config, model, group)


def _adapted(config: Config, model: ModelSpec, group: str) -> dict[str, Any]:
    if not config.on(f"{group}.enabled"):
        return {}
    targets = f"{group}.target_modules"
    names = config.value(targets) or []
    every = config.on(f"{group}.match_all_linear") or not names
    dropout = config.value(f"{group}.dropout", 0.0)
    if isinstance(dropout, bool) or not isinstance(dropout, int | float):
        text = f"{group}.dropout must be a number, got {str(dropout)[:60]!r}"
        raise Unreadable(text, *config.place(f"{group}.dropout"))
    rank = config.whole(f"{group}.dim", 8)
    return adapter_fields(model, rank, None if every else config.setting(targets), float(dropout))


def precision(config: Config) -> str:
    """The precision of the computation.  Raises Unreadable."""
    key = "policy.precision"
    said = str(config.value(key, "bfloat16"))
    if said not in DTYPES:
        text = f"{key} {said[:60]!r} is not known ({', '.join(DTYPES)})"
        raise Unreadable(text, *config.place(key))
    return DTYPES[said]


def left(config: Config, group: str, named: bool) -> tuple[Setting, ...]:
    """The policy's keys in the files that were not looked up.

    named: whether the model is given.  Raises Unreadable if one may change what is trained.
    """
    other = next(f"policy.{one}." for one in BACKENDS if one != group)
    found = [
        config.setting(key)
        for key in config.places
        if key.startswith("policy.")
        and key not in config.asked
        and not key.startswith(other)
        and not isinstance(config.value(key), dict | list)
        and not IDLE.search(key.partition(".")[2])
    ]
    post_training.refuse_shapes(found, named)
    return tuple(found)
