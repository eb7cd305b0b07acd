"""The loss of a step of a fine-tuning configured by one YAML on transformers' Trainer."""

from __future__ import annotations

import re
from typing import Any

from planner.frameworks.accelerate.trainer_keys import Trainer
from planner.frameworks.given_values import Values
from planner.frameworks.read_results import COSTED_AS_TWICE, PAIRS_ALONE

# Algorithms that generate their samples, and names of algorithms -> loss of the spec.
GENERATING = ("ppo", "grpo", "gdpo", "rloo", "ebft")
# TRL's trainers that generate samples have no key for themselves.
SAMPLES = ("num_generations", "reward_funcs", "rloo_k", "num_ppo_epochs", "total_episodes")
LOSSES = {
    "dpo": "dpo", "ipo": "dpo", "rm": "reward", "reward": "reward",
    # Those of TRL's DPOTrainer (DPOConfig.loss_type), and its kin in the alignment handbook.
    **dict.fromkeys(
        ("sigmoid", "sigmoid_norm", "hinge", "exo_pair", "nca_pair", "robust", "bco_pair",
         "sppo_hard", "aot", "aot_pair", "aot_unpaired", "apo_zero", "apo_down", "discopop",
         "kto_pair", "rpo"), "dpo",
    ),
    **dict.fromkeys(("orpo", "simpo", "cpo"), PAIRS_ALONE),
}  # fmt: skip
TOKENS = ("sft", "pt", "nll", "dft")  # of the next token
PAIRED = ("dpo", "reward", PAIRS_ALONE)  # a sample is two sequences, which go through one pass
# Keys of TRL's trainings on pairs, and those that name a run.
OF_PAIRS = ("beta", "max_prompt_length", "max_completion_length", "precompute_ref_log_probs")
NAMES_OF_RUN = ("output_dir", "hub_model_id", "run_name")


def loss_of(values: Values, trainer: Trainer) -> Any:
    """The loss of a step; raises Unreadable if the step also generates samples."""
    if trainer.generates:
        values.has(*SAMPLES, *trainer.generates)
        named = (values.settings.get(key) for key in NAMES_OF_RUN)  # with their variables
        where = " ".join([values.file, *(str(one.value) for one in named if one)]).lower()
        if other := re.search(r"rloo|online|ppo|nash|gkd", where):
            raise values.fault(SAMPLES, f"is of {other[0]}, whose step cannot be read")
        values.assume("only the training of GRPO is read, each sequence as long as the longest")
        return "next_token"
    said = (values.text("stage", "rl", "loss_type") or _by_keys(values)).lower().strip("[]")
    if said in GENERATING:
        raise values.fault(
            ("stage", "rl"), f"{said} also generates samples: its step cannot be read"
        )
    pairs = (values.text("pref_loss") or "").lower()
    if said == "dpo" and LOSSES.get(pairs) == PAIRS_ALONE:  # LLaMA-Factory's
        said = pairs
    if said not in (*LOSSES, *TOKENS):
        values.assume(f"{said} is costed as training on the next token")
    if values.has(*SAMPLES):
        text = "is of GRPO or its like, which also generates samples: planner rl has it"
        raise values.fault(SAMPLES, text)
    loss = LOSSES.get(said, "next_token")
    if loss == PAIRS_ALONE:
        values.assume(f"{said}: {COSTED_AS_TWICE}")
    return loss


def _by_keys(values: Values) -> str:
    """The algorithm of TRL's keys where none names it: those of pairs are DPO's, or its kin's."""
    stated = [key for key in OF_PAIRS if values.has(key)]
    if "beta" not in stated or len(stated) < 2 or values.has(*SAMPLES):
        return "sft"
    where = " ".join([values.file, *(values.text(key) or "" for key in NAMES_OF_RUN)]).lower()
    other = re.search(r"orpo|simpo|kto|cpo", where)
    if other and other[0] not in LOSSES:
        raise values.fault(("beta",), f"is of {other[0]}, whose loss cannot be planned")
    kind = other[0] if other else "dpo"
    values.assume(f"{' and '.join(stated)}: read as {kind.upper()}")
    return kind
