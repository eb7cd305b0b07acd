"""OpenRLHF's command lines before their options were grouped: SFT, DPO, reward models and RL.

Options and defaults of openrlhf/cli/train_{sft,dpo,rm,ppo_ray}.py, releases 0.2 to 0.9.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from planner.frameworks.bash import ProgramCall
from planner.frameworks.given_values import Values
from planner.frameworks.read_results import Setting

MARK = "--micro_train_batch_size"
OF_RAY = "--actor_num_gpus_per_node"
SWITCHES = frozenset({
    "adam_offload", "gradient_checkpointing", "bf16", "flash_attn", "packing_samples",
    "load_in_4bit", "colocate_all_models", "use_liger_kernel", "overlap_comm", "zpg",
})  # fmt: skip
# Older option -> the one of today.
NAMES = {
    "--pretrain": "--actor.model_name_or_path",
    "--actor_num_nodes": "--actor.num_nodes",
    OF_RAY: "--actor.num_gpus_per_node",
    "--critic_pretrain": "--critic.model_name_or_path",
    "--train_batch_size": "--train.batch_size",
    MARK: "--train.micro_batch_size",
    "--max_len": "--data.max_len",
    "--zero_stage": "--ds.zero_stage",
    "--adam_offload": "--ds.adam_offload",
    "--grad_accum_dtype": "--ds.grad_accum_dtype",
    "--param_dtype": "--ds.param_dtype",
    "--attn_implementation": "--ds.attn_implementation",
    "--gradient_checkpointing": "--actor.gradient_checkpointing_enable",
    "--ring_attn_size": "--ds.ring_attn_size",
    "--ds_tensor_parallel_size": "--ds.tensor_parallel_size",
    "--use_dynamic_batch": "--train.dynamic_batch_enable",
    "--train_max_tokens_per_gpu": "--train.max_tokens_per_gpu",
}
USUAL_MICRO, USUAL_PARTS, USUAL_PAIR = "4", ("1024", "1024"), "512"
_PARTS = ("--prompt_max_len", "--generate_max_len")
_LOSSES = (
    (re.compile(r"(^|[._])dpo"), "dpo"),
    (re.compile(r"(^|[._])(rm|reward)"), "reward"),
    (re.compile(r"(^|[._])(kto|kd|prm)(_|$|\.py)"), ""),
)

_ITS_OWN = re.compile(r"(^|[./])(train_)?(sft|dpo|rm|kto|kd|prm|ppo(_ray)?)(_\w+)?(\.py)?$")


def launches(call: ProgramCall) -> bool:
    """Whether a call has these options; its own programs need not say their micro-batch."""
    said = {word.text.partition("=")[0] for word in call.arguments}
    own = "openrlhf" in call.program.text and is_its_own(call)
    return "--pretrain" in said and (own or MARK in said)


def loss_of(call: ProgramCall) -> str:
    """The loss of a call's program; "" where it is one that no plan has."""
    name = call.program.text.rsplit("/", 1)[-1]
    return next((loss for pattern, loss in _LOSSES if pattern.search(name)), "next_token")


def is_its_own(call: ProgramCall) -> bool:
    """Whether OpenRLHF has a program of that name, not only a fork of it."""
    return bool(_ITS_OWN.search(call.program.text))


def renamed(said: Sequence[Setting], loss: str) -> dict[str, Setting]:
    """The options by the names of today, with defaults where these differ."""
    known = {one.name: one for one in said}
    first = said[0]
    known.setdefault(MARK, first.model_copy(update={"name": MARK, "value": USUAL_MICRO}))
    if loss in ("dpo", "reward"):
        usual = first.model_copy(update={"name": "--max_len", "value": USUAL_PAIR})
        known.setdefault("--max_len", usual)
    # Its programs turn FlashAttention on where samples are packed.
    if not known.keys() & {"--flash_attn", "--attn_implementation", "--packing_samples"}:
        eager = first.model_copy(update={"name": "--attn_implementation", "value": "eager"})
        known["--attn_implementation"] = eager
    if known.get("--advantage_estimator") and known["--advantage_estimator"].value != "gae":
        known.pop("--critic_pretrain", None)
    return {NAMES.get(name, name): one for name, one in known.items()}


def generates(known: Mapping[str, Setting]) -> bool:
    """Whether a training is of RL: it places a policy, or says how long responses are."""
    return not known.keys().isdisjoint({"--actor.num_gpus_per_node", _PARTS[1]})


def length(values: Values, known: Mapping[str, Setting]) -> int | None:
    """The longest prompt and response of RL together; None for a training without generation."""
    if not generates(known):
        return None
    return sum(
        values.integer(name, default=int(usual))
        for name, usual in zip(_PARTS, USUAL_PARTS, strict=True)
    )
