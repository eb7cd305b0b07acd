"""What the installed megatron-core says to lists of arguments: TransformerConfig alone.

    python tests/oracles/megatron_core_check.py < lists of arguments > answers

The package has no argument parser, so options become fields here: by their own name, or by those
of FIELDS, as core_transformer_config_from_args of Megatron-LM does.  One JSON list per line in, one
JSON object per line out: `error`, null where the configuration stands, and the `fields` given.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import transformer_engine_shapes

FIELDS = {
    "num_experts": "num_moe_experts",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "fp8_format": "fp8",
    "fp4_format": "fp4",
    "fp8_param_gather": "fp8_param",
}
# Switches that say another thing than their name.
SWITCHES: dict[str, dict[str, Any]] = {
    "disable_bias_linear": {"add_bias_linear": False},
    "no_bias_dropout_fusion": {"bias_dropout_fusion": False},
    "no_overlap_p2p_communication": {"overlap_p2p_comm": False},
    "no_gradient_accumulation_fusion": {"gradient_accumulation_fusion": False},
}
LISTS = {"recompute_modules"}


def options(argv: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Option, without dashes, and its values."""
    name, values = "", list[str]()
    for word in [*argv, "--"]:
        if not word.startswith("--"):
            values.append(word)
            continue
        if name:
            yield name, values
        name, values = word[2:].replace("-", "_"), []


def value(words: list[str], name: str) -> Any:
    if not words:
        return True
    if name in LISTS:
        return words
    if name.endswith("_freq") and "[" in words[0]:
        # [0]*3+[1]*9, or a list.
        parts = [part.partition("*") for part in words[0].split("+")]
        return [k for one, _, count in parts for k in ast.literal_eval(one) * int(count or 1)]
    try:
        return ast.literal_eval(words[0])
    except (SyntaxError, ValueError):
        return words[0]


def answer(argv: list[str]) -> dict[str, Any]:
    import torch
    from megatron.core.transformer import transformer_config as core

    given = dict(options(argv))
    made: dict[str, Any] = {"bias_dropout_fusion": True, "bias_activation_fusion": True}
    for name, words in given.items():
        made |= SWITCHES.get(name, {FIELDS.get(name, name): value(words, name)})
    if "swiglu" in given:
        made |= {"gated_linear_unit": True, "activation_func": torch.nn.functional.silu}
    elif "disable_bias_linear" in given:
        made["bias_activation_fusion"] = False
    made["pipeline_dtype"] = torch.float16 if "fp16" in given else torch.bfloat16
    made["params_dtype"] = made["pipeline_dtype"]
    made["is_hybrid_model"] = "hybrid_layer_pattern" in given
    if made["is_hybrid_model"]:
        made["num_layers"] = len(re.sub(r"/.*|\|", "", given["hybrid_layer_pattern"][0]))
    made["cpu_offloading"] = "cpu_offloading_num_layers" in given
    kind = (
        core.MLATransformerConfig if "multi_latent_attention" in given else core.TransformerConfig
    )
    known = {name: made[name] for name in made if name in kind.__dataclass_fields__}
    try:
        kind(**known)
    except Exception as refused:
        return {"error": f"{type(refused).__name__}: {refused}", "fields": sorted(known)}
    return {"error": None, "fields": sorted(known)}


def main() -> None:
    transformer_engine_shapes.install()
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")


if __name__ == "__main__":
    main()
