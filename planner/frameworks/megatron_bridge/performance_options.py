"""Options of Megatron-Bridge's performance scripts, and the recipe's values that they set.

Sources: scripts/performance/argument_parser.py and utils/overrides.py (067f987).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cost_models.package_files import table
from planner.frameworks import yaml_files
from planner.frameworks.arguments import to_set
from planner.frameworks.bash import Argument
from planner.frameworks.given_values import hint
from planner.frameworks.megatron_bridge import recipes
from planner.frameworks.read_results import StatedValue, Unreadable

_TABLE = table("planner.frameworks.megatron_bridge", "performance_options.json")
# Short name -> long.
SHORT: dict[str, str] = _TABLE["short"]
# Long name -> the value of the recipe that it sets.
SETS: dict[str, str] = _TABLE["sets"]
# Options that pick the recipe or the job.
PICKS = (
    "model_family_name", "model_recipe_name", "num_gpus", "gpu", "compute_dtype", "gpus_per_node",
    "task", "config_variant", "use_recipes", "recipe", "domain", "optimizer_type",
    # Up to 0.2: the family and the size, whose names together make the recipe's.
    "model_name", "model_size", "fp8_recipe",
)  # fmt: skip
# Options that change neither time nor memory of a step.
_NO_EFFECT = re.compile(
    r"^(account|partition|time_limit|container|custom_|env|hf_token|dryrun|enable_|lock_|peak_mem|"
    r"pytorch_profiler|profiling|nsys|nemo_home|detach|max_|lr|min_lr|warmup|pretrained|save|load|"
    r"most_recent|data|c4_|index_mapping|head_only|tokenizer|vocab_size|offline|wandb|log_dir|"
    r"dump_env|list_config|is_long|retry|golden|\w*threshold|skip_first|\w*tolerance|eval_|csp|"
    r"kubeflow|gres|additional|packager|preempt|export_nsys|distributed_timeout|deterministic|"
    r"use_tokendrop|mode|dataset|step|mock|nodes|nproc|script|gpus-per-node|hydra)"
)
_SWITCHES = frozenset(
    {"use_recipes", "dryrun", "head_only", "enable_nsys", "list_config_variants", "dump_env"}
    | {"packed_sequence", "offline", "export_nsys_sqlite", "use_tokendrop"}
)
_SEVERAL = frozenset({"dataset_paths", "c4_train_shards"})
# Options that split their value at commas.
_LISTS = frozenset({"recompute_modules", "cuda_graph_scope"})
_OVERRIDE = re.compile(r"\+{0,2}([a-z_]+\.[\w.]+)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Words:
    """The options of a launch: those of PICKS, those that override the recipe, and the others."""

    picks: dict[str, StatedValue]
    sets: dict[str, StatedValue]
    no_effect: dict[str, StatedValue]


def words(arguments: Sequence[Argument]) -> Words:
    """The options of a call.  Raises Unreadable if one is not understood."""
    found = Words({}, {}, {})
    for name, word, texts in _options(arguments):
        text = ",".join(one.text for one in texts) if texts else "true"
        override = _OVERRIDE.fullmatch(name)
        idle = _NO_EFFECT.match(name) is not None
        if override is not None:
            idle = override[1] not in recipes.relevant()
        if not all(one.known for one in texts) and not idle:
            shown = name if override is not None else f"--{name} is {text[:200]}"
            raise word.unreadable(f"{shown[:200]}, which the files do not say: {to_set(text)}")
        if override is not None:
            found.sets[override[1]] = StatedValue(
                yaml_files.value(override[2]), word.file, word.line
            )
        elif name in SETS:
            value = text.split(",") if name in _LISTS else yaml_files.value(text)
            found.sets[SETS[name]] = StatedValue(value, word.file, word.line)
        elif name in PICKS:
            found.picks[name] = StatedValue(text, word.file, word.line)
        elif _NO_EFFECT.match(name):
            found.no_effect[name] = StatedValue(text, word.file, word.line)
        else:
            known = hint(name, (*SETS, *PICKS))
            raise word.unreadable(f"--{name} is not a known option{known}")
    return found


def _options(arguments: Sequence[Argument]) -> Iterator[tuple[str, Argument, list[Argument]]]:
    """(long name without dashes, its word, its values) of each option; an override is its name."""
    place = 0
    while place < len(arguments):
        word = arguments[place]
        place += 1
        if not word.text.startswith("-"):
            if _OVERRIDE.fullmatch(word.text) is None:
                if not word.known:
                    continue
                text = f"{word.text[:80]!r} is neither an option nor a setting (section.name=value)"
                raise Unreadable(text, word.file, word.line)
            yield word.text, word, [word]
            continue
        name, equals, value = word.text.partition("=")
        name = SHORT.get(name, name.lstrip("-"))
        if equals:
            yield name, word, [Argument(value, word.file, word.line, word.known)]
            continue
        values: list[Argument] = []
        while place < len(arguments) and not re.match(r"--?[A-Za-z]", arguments[place].text):
            taken = arguments[place]
            full = values and name not in _SEVERAL
            if name in _SWITCHES or full or (values and _OVERRIDE.fullmatch(taken.text)):
                break
            values.append(taken)
            place += 1
        yield name, word, values
