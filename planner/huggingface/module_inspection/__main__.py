"""Build the model of a config without weights, and print its blocks as a document.

Its argument is the process that starts it.  Reads {"config": ..., "folder": path or null} from
standard input.  The folder's own code runs only
where a folder is given.
"""

from __future__ import annotations

import json
import resource
import sys
import warnings
from typing import Any

from planner.parent_process import die_with_parent

MOST_CPU_S = 100
MOST_BYTES = 24 * 2**30
# Keys about the storage of weights or the origin of code, which do not describe the model.
LEFT_OUT = ("quantization_config", "dtype", "torch_dtype", "auto_map", "_name_or_path")


def main() -> None:
    """Read one document and print one: a model, or why there is none."""
    die_with_parent(int(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    warnings.simplefilter("ignore")
    asked = json.load(sys.stdin)
    out, sys.stdout = sys.stdout, sys.stderr  # the code of a model may print
    try:
        answer = _inspected(asked["config"], asked["folder"])
    except Exception as error:
        # Any error in a model's code is reported as the reason why it cannot be built.
        answer = {"refused": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    json.dump(answer, out)


def _inspected(config: dict[str, Any], folder: str | None) -> dict[str, Any]:
    import torch
    import transformers

    from planner.huggingface.importer import OTHER_FILES
    from planner.huggingface.module_inspection import inspect_model

    transformers.logging.set_verbosity_error()
    if folder is None:
        known = transformers.CONFIG_MAPPING
        kind = str(config.get("model_type"))
        if kind not in known:
            version = transformers.__version__
            own = "; the code in its folder is run with --trust-remote-code" * (
                "auto_map" in config
            )
            return {"refused": f"transformers {version} does not know model_type {kind!r}{own}"}
        built = known[kind].from_dict({k: v for k, v in config.items() if k not in LEFT_OUT})
    else:
        built = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    if getattr(built, "type_vocab_size", 0):
        return {"refused": OTHER_FILES["type_vocab_size"]}
    with torch.device("meta"):
        model = _class(built, folder).from_config(built, trust_remote_code=folder is not None)
        model.tie_weights()
    found = inspect_model(model, built, "custom")
    return {
        "model": found.model.model_dump(mode="json", exclude_defaults=True),
        "architecture": found.architecture,
        "exact": found.exact,
        "approximate": found.approximate,
        "left": found.left,
        "version": transformers.__version__,
    }


def _class(config: Any, folder: str | None) -> Any:
    """The auto class that builds the model with its head."""
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoModelForSeq2SeqLM,
    )

    if folder is not None:
        return AutoModelForCausalLM
    autos: tuple[Any, ...] = (
        AutoModelForImageTextToText,
        AutoModelForCausalLM,
        AutoModelForSeq2SeqLM,
    )
    if getattr(config, "is_encoder_decoder", False):
        autos = (AutoModelForSeq2SeqLM, *autos[:2])
    for auto in autos:
        if type(config) in auto._model_mapping:
            return auto
    raise ValueError(f"{config.model_type} is no model that makes text")


main()
