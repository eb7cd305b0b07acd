"""OpenRLHF's SFT, DPO and reward models by their grouped options of today.

Options and defaults of openrlhf/cli/train_{sft,dpo,rm}.py (main of August 2026).
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.frameworks.bash import ProgramCall
from planner.frameworks.read_results import Setting

MARK = "--model.model_name_or_path"
SWITCHES = frozenset({
    "--model.gradient_checkpointing_enable", "--ds.load_in_4bit", "--ckpt.load_enable",
    "--ds.overlap_comm", "--ds.deepcompile",
})  # fmt: skip
# Option of these programs -> the one of a step of RL, or that of adapters.
NAMES = {
    MARK: "--actor.model_name_or_path",
    "--model.gradient_checkpointing_enable": "--actor.gradient_checkpointing_enable",
    "--ds.lora.rank": "--lora_rank",
    "--ds.lora.dropout": "--lora_dropout",
    "--ds.lora.target_modules": "--target_modules",
    "--ds.load_in_4bit": "--load_in_4bit",
}
_TRAINS = ("--train.micro_batch_size", "--train.batch_size")
_USUAL_MICRO = {"next_token": "8", "dpo": "8", "reward": "1"}
_USUAL_PAIR = "512"


def launches(call: ProgramCall) -> bool:
    """Whether a call has these options."""
    said = {word.text.partition("=")[0] for word in call.arguments}
    return MARK in said and bool(said.intersection(_TRAINS))


def renamed(said: Sequence[Setting], loss: str) -> dict[str, Setting]:
    """The options by the names of a step of RL, with defaults where these differ."""
    known = {NAMES.get(one.name, one.name): one for one in said}
    usual = {_TRAINS[0]: _USUAL_MICRO.get(loss, "8")}
    if loss in ("dpo", "reward"):
        usual["--data.max_len"] = _USUAL_PAIR
    for name, value in usual.items():
        known.setdefault(name, said[0].model_copy(update={"name": name, "value": value}))
    return known
