"""The values of Megatron-Bridge's public recipes, from a checkout.

    python -m tests.oracles.bridge_recipes CHECKOUT COMMIT

A recipe is a function that fills a ConfigContainer.  Its own modules run; whatever they import
from elsewhere (torch, Megatron-Core, the configuration classes) is an object that only remembers
what it was made with and what was set on it.  Values that follow from a default of such a class
are not in the table: the reader has them.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any

from tests.oracles.recipe_stubs import FILLERS, SECTIONS, Finder, Kept, plain, write_table

TABLE = Path("planner/frameworks/megatron_bridge/recipes.json")
REAL = ("megatron.bridge.recipes", "megatron.bridge.perf_recipes")
STUBBED = (
    "megatron",
    "torch",
    "transformers",
    "transformer_engine",
    "nemo_run",
    "nvidia_resiliency",
)
# Attributes that say nothing of a step's time or memory.
IDLE = re.compile(
    r"^(lr|min_lr|adam_|weight_decay|clip_grad|lion_|manual_gc|eval_|train_iters|exit_|check_|skip_|"
    r"autocast|params_dtype|pipeline_dtype|init_method|use_te_rng|should_pad|apply_rope|moe_aux|"
    r"moe_router_(dtype|load|score|fusion|force|padding|topk_scal|enable_expert)|mtp_loss|rotary_|"
    r"freeze_|bf16$|fp16$|average_in|tp_comm_bootstrap|hf_model|cuda_graph_warmup|_pipeline|"
    r"calculate_per|dsa_indexer_(loss|use)|mtp_eval|moe_hybridep|moe_flex_dispatcher_num|fsdp_|"
    r"bias_|masked_|persist_|gradient_accum|attention_softmax|apply_query|keep_fp8|yarn_|qk_clip|"
    r"tp_only|vision_|high_priority|init_model|bucket|num_buckets|suggested|microbatch_group|"
    r"moe_grouped_gemm|moe_permute|main_grads|moe_mlp_glu|fused_single|use_fused|deterministic)"
)
LAYOUT = "pipeline_model_parallel_layout"
LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
# Variables of the process that change a step's memory (ContainerConfig.env_vars).
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
NAMED = ("seq_length", "vocab_size", "use_tokenizer_vocab_size", "tokenizer_type")
TASKS = re.compile(r"_(pretrain|sft|peft)_")
OTHERS = re.compile(r"_vl_|wan_|flux|omni|audio")


def flex_dispatcher(model: Kept, moe_flex_dispatcher_backend: str | None = None) -> None:
    """apply_flex_dispatcher_backend of training/flex_dispatcher_backend.py, on a fitting GPU."""
    if moe_flex_dispatcher_backend in ("deepep", "hybridep"):
        model.__dict__["moe_token_dispatcher_type"] = "flex"
        model.__dict__["moe_flex_dispatcher_backend"] = moe_flex_dispatcher_backend
        model.__dict__["moe_shared_expert_overlap"] = False


def layout(value: Any) -> Any:
    """The layers of every stage as Megatron-LM's option writes them: `Et|tt|tL`."""
    if not isinstance(value, list):
        return plain(value)
    return "|".join("".join(LETTERS[layer] for layer in stage) for stage in value)


def said(config: Any) -> dict[str, Any]:
    """What a recipe sets, by `section.attribute`, and its model's name."""
    found: dict[str, Any] = {}
    for section in SECTIONS:
        one = config.__dict__.get(section)
        if one is None or isinstance(one, str):
            if one is not None:
                found[section] = one
            continue
        made = one.made_by
        if made == "get_mixed_precision_config":
            made = str(one.words[0])
        if section in ("model", "mixed_precision", "comm_overlap", "peft"):
            found[section] = one.words[0] if made.startswith("AutoBridge") and one.words else made
        if section in ("dataset", "tokenizer"):
            rows = {k: v for k, v in one.__dict__.items() if k in NAMED}
        else:
            rows = {k: v for k, v in one.__dict__.items() if k not in ("made_by", "words")}
        for name, value in rows.items():
            told = layout(value) if name == LAYOUT else plain(value)
            shown = f"{section}.{name}"
            idle = IDLE.match(name) or "userbuffers" in str(told)
            if not idle and (told is not None or shown == "model.mtp_num_layers"):
                found[shown] = told
    variables = config.__dict__.get("env_vars") or {}
    found |= {f"env_vars.{name}": variables[name] for name in VARIABLES if name in variables}
    return found


def _default_counts(checkout: Path) -> dict[str, int]:
    """Accelerators of the recipe that is scaled, where it is not the largest one."""
    text = (checkout / "scripts/performance/utils/utils.py").read_text()
    body = text[text.index("_DEFAULT_GPU_COUNT_OVERRIDES = ") :]
    literal = body[body.index("{") : body.index("\n}") + 2]
    return {
        f"{model}_{task}_*gpu_{gpu}_{precision}_config": count
        for (model, task, gpu, precision, _), count in ast.literal_eval(literal).items()
    }


def table(checkout: Path, commit: str) -> dict[str, Any]:
    """Every recipe that takes no arguments, once: by the name under which it is launched.

    What cannot be built is left out, and said on standard error: its launches are refused by name.
    """
    left_out = 0
    FILLERS["apply_flex_dispatcher_backend"] = flex_dispatcher
    finder = Finder(checkout / "src", STUBBED, lambda name: name.startswith(REAL))
    sys.meta_path.insert(0, finder)
    recipes: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    for package in REAL:
        top = importlib.import_module(package)
        for info in pkgutil.walk_packages(top.__path__, f"{package}."):
            try:
                module = importlib.import_module(info.name)
            except Exception as error:
                print(f"{info.name}: {type(error).__name__} {error}", file=sys.stderr)
                left_out += 1
                continue
            for name, value in sorted(vars(module).items()):
                if not inspect.isfunction(value) or not name.endswith("_config"):
                    continue
                pretrains = TASKS.search(value.__name__) and not OTHERS.search(name)
                if name.startswith("_") or name in recipes or name in aliases or not pretrains:
                    continue
                if value.__name__ != name:
                    aliases[name] = value.__name__
                    continue
                if any(p.default is p.empty for p in inspect.signature(value).parameters.values()):
                    continue
                try:
                    made = value()
                except Exception as error:
                    print(f"{name}: {type(error).__name__} {error}", file=sys.stderr)
                    left_out += 1
                    continue
                if not isinstance(made, Kept) or made.made_by != "ConfigContainer":
                    continue
                path = Path(inspect.getfile(value)).relative_to(checkout)
                recipes[name] = {"path": str(path), **said(made)}
    print(f"{len(recipes)} recipes, {left_out} modules and recipes left out", file=sys.stderr)
    aliases = {name: target for name, target in aliases.items() if target in recipes}
    return {
        "repository": "NVIDIA-NeMo/Megatron-Bridge",
        "commit": commit,
        "default_counts": _default_counts(checkout),
        "aliases": dict(sorted(aliases.items())),
        "recipes": dict(sorted(recipes.items())),
    }


if __name__ == "__main__":
    found = table(Path(sys.argv[1]).resolve(), sys.argv[2])
    write_table(TABLE, found, "recipes")
    print(len(found["recipes"]), "recipes,", len(found["aliases"]), "aliases")
