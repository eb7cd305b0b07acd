"""Reads NeMo 2's performance scripts (scripts/performance/llm), with Megatron-Bridge's names.

A script takes the configuration recommended for a GPU, task, model and precision, overrides it with
its options, and applies the helpers of scripts/performance/helpers.py.  nemo2_performance.json has
the configurations and the changes that each script makes by itself
(`python -m tests.oracles.nemo_performance CHECKOUT COMMIT`).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from cost_models import package_files
from planner.frameworks.arguments import to_set
from planner.frameworks.bash import Argument
from planner.frameworks.read_results import Unreadable

_OPTIONS = package_files.table(
    "planner.frameworks.megatron_bridge", "nemo2_performance_options.json"
)
# Long option, short option, column of the configurations (argument_parser.py).
COUNTS: list[tuple[str, str, str]] = _OPTIONS["counts"]
TRUTHS: list[tuple[str, str, str]] = _OPTIONS["truths"]
CHOICES: list[tuple[str, str, list[str]]] = _OPTIONS["choices"]
USUAL = {"compute_dtype": "bf16", "fp8_recipe": "ds", "finetuning": "lora", "gpus_per_node": 8}
_TRUE, _FALSE = ("true", "1", "t", "yes", "y"), ("false", "0", "f", "no", "n")
# Option that a script may hand to its helpers -> column of the configurations.
HANDED = {"expert_tensor_parallel_size": "etp_size"} | {
    name: name
    for name in ("cuda_graphs", "use_mcore_fsdp", "recompute_layers", "activation_offload_layers",
                 "recompute_modules")
}  # fmt: skip
# Columns that the options must give if no configuration is recommended.
_NEEDED = {"num_gpus", "mbs", "gbs", "tp_size", "pp_size", "cp_size"}
_PRECISION = "mixed_precision"


def table() -> dict[str, Any]:
    """nemo2_performance.json."""
    return package_files.table(__package__ or "", "nemo2_performance.json")


def script_of(program: str) -> str | None:
    """The name of the script that a program (a path or a module) is; None for other programs."""
    name = re.split(r"[./]", program.removesuffix(".py"))[-1]
    return name if name in table()["scripts"] else None


class _Parser(argparse.ArgumentParser):
    """The scripts' options, all as texts, which may hold shell variables without a value."""

    def __init__(self) -> None:
        super().__init__(add_help=False)
        for name, short, _ in (*COUNTS, *TRUTHS, *CHOICES):
            nargs = "?" if name == "expert_tensor_parallel_size" else None
            self.add_argument(f"-{short}", f"--{name}", nargs=nargs)
        self.add_argument("-rm", "--recompute_modules", nargs="*")
        for name, short in _OPTIONS["valued"]:
            self.add_argument(*([f"-{short}"] if short else []), f"--{name}")
        for name, short in _OPTIONS["switches"]:
            names = [f"-{short}"] if short else []
            self.add_argument(*names, f"--{name}", action="store_true")

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


@dataclass(frozen=True)
class Options:
    """A launch's values by the option's long name; place: the word of the program."""

    values: Mapping[str, Any]
    place: Argument

    def error(self, text: str) -> Unreadable:
        return Unreadable(text, self.place.file, self.place.line)


def options(words: Sequence[Argument], given: Mapping[str, str], place: Argument) -> Options:
    """The options of a call; the user's given values override them.  Raises Unreadable."""
    parser = _Parser()
    try:
        parsed = vars(parser.parse_args([word.text for word in words]))
    except ValueError as error:
        raise Unreadable(str(error), place.file, place.line) from None
    said = {key: one for key, one in parsed.items() if one is not None and one is not False}
    found = dict(USUAL)
    known = {name for name, *_ in (*COUNTS, *TRUTHS, *CHOICES)} | {"recompute_modules"}
    for name in known:
        if name in given:
            text = given[name]
            said[name] = text.split(",") if name == "recompute_modules" else text
        elif name in said:
            _check_known(name, said[name], words, place)
        if name in said:
            found[name] = _value(name, said[name], place)
    if "gpu" not in found:
        raise place.unreadable("-g (--gpu) is missing: h100, b200 or gb200")
    return Options(found, place)


def _check_known(name: str, said: Any, words: Sequence[Argument], place: Argument) -> None:
    """Raises Unreadable for a value that the files leave open."""
    opened = [word.text for word in words if not word.known]
    for text in said if isinstance(said, list) else [said]:
        if any(text == one or one.endswith(f"={text}") for one in opened):
            hint = to_set(text, f"--set {name}=...")
            raise place.unreadable(f"--{name} is {text[:100]}, which the files do not say: {hint}")


def _value(name: str, said: Any, place: Argument) -> Any:
    """A value as argparse converts it.  Raises Unreadable."""
    shown = f"--{name} must be {{}}, got {str(said)[:60]!r}"
    if name in [one for one, *_ in COUNTS]:
        if not re.fullmatch(r"\d{1,7}", said) or (int(said) == 0 and "layers" not in name):
            raise Unreadable(shown.format("a whole number from 1"), place.file, place.line)
        return int(said)
    if name in [one for one, *_ in TRUTHS]:
        if said.lower() not in (*_TRUE, *_FALSE):
            raise Unreadable(shown.format("true or false"), place.file, place.line)
        return said.lower() in _TRUE
    for one, _, allowed in CHOICES:
        if name == one and said not in allowed:
            raise Unreadable(shown.format(" or ".join(allowed)), place.file, place.line)
    return said


def resolved(
    script: str, said: Options, recipes: Mapping[str, Any]
) -> tuple[str, dict[str, Any], list[str]]:
    """The recipe that a script takes, the values that it trains with, and notes.

    recipes: those of nemo2.json.  Raises Unreadable if the script itself would stop.
    """
    row = table()["scripts"][script]
    if "fails" in row:
        text = f"{script} of {table()['repository']} {table()['commit']} stops with an error"
        raise said.error(f"{text} ({row['fails']}): give the recipe that it sets")
    config, notes = _configuration(row, said)
    case = _case(script, row, config, said)
    values = dict(recipes[case["recipe"]])
    _apply(values, case["before"])
    _common(values, config, said)
    _apply(values, case["after"])
    return case["recipe"], values, notes


def _apply(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Applies changes; a value of None removes the key."""
    for key, value in changes.items():
        values.pop(key, None)
        if value is not None:
            values[key] = value


def _configuration(row: Mapping[str, Any], said: Options) -> tuple[dict[str, Any], list[str]]:
    """The recommended configuration, overridden by the options, as get_user_configs makes it."""
    values, notes, config = said.values, list[str](), dict[str, Any]()
    task = row["task"] or values["finetuning"]
    wanted = (task, row["model"], row["size"], values["compute_dtype"])
    rows = [
        one
        for one in table()["configurations"][values["gpu"]]
        if (one["task"], one["model"], one["size"], one["dtype"]) == wanted
    ]
    asked = values.get("num_gpus")
    kind = f"{task} of {row['model']} {row['size']} in {values['compute_dtype']}"
    if fitting := [one for one in rows if asked in (None, one["num_gpus"])]:
        config |= fitting[0]
        source = f"{table()['repository']} {table()['commit']}"
        notes.append(
            f"the recommended configuration of {kind} on {config['num_gpus']} {values['gpu']} is "
            f"from {source}"
        )
    for name, _, column in (*COUNTS, *TRUTHS):
        if column and name in values:
            config[column] = values[name]
    left = _NEEDED - config.keys()
    if missing := [f"--{name}" for name, _, column in COUNTS if column in left]:
        place = (
            f"{values.get('num_gpus', 'any number of')} {values['gpu']}{_configured_counts(rows)}"
        )
        text = f"no configuration of {kind} is recommended for {place}"
        raise said.error(f"{text}: give {', '.join(missing)}")
    each = min(values["gpus_per_node"], 4) if values["gpu"] == "gb200" else values["gpus_per_node"]
    config["devices"], config["nodes"] = each, -(-config["num_gpus"] // each)
    modules = config.get("recompute_modules")
    config["recompute_modules"] = values.get("recompute_modules", modules and modules.split("/"))
    _fill_helper_columns(config, row["handed"], values)
    return config, notes


def _configured_counts(rows: Sequence[Mapping[str, Any]]) -> str:
    """The numbers of accelerators that have a configuration, in brackets."""
    counts = ", ".join(str(one["num_gpus"]) for one in rows)
    return f" (there is one for {counts})" if counts else ""


def _fill_helper_columns(
    config: dict[str, Any], handed: Mapping[str, str], values: Mapping[str, Any]
) -> None:
    """Leaves of the optional columns what the script hands to its helpers."""
    for name, column in HANDED.items():
        if handed.get(name) != "configuration":
            config[column] = values.get(name) if name in handed else None


def _case(
    script: str, row: Mapping[str, Any], config: Mapping[str, Any], said: Options
) -> Mapping[str, Any]:
    """The changes that a script makes by itself for these options.  Raises Unreadable."""
    columns = {name: column for name, _, column in (*COUNTS, *TRUTHS)}
    known = [key.split(",") for key in row["cases"]]
    wanted = []
    for place, name in enumerate(row["by"]):
        value = config.get(columns[name]) if columns.get(name) else said.values.get(name)
        text = _case_text(name, value)
        tried = {one[place] for one in known}
        free = name in ("num_gpus", "tensor_parallel_size") and text not in tried
        wanted.append(None if free else text)
    kinds = {
        row["cases"][",".join(one)]
        for one in known
        if all(asked in (None, have) for asked, have in zip(wanted, one, strict=True))
    }
    if len(kinds) == 1:
        found: Mapping[str, Any] = row["kinds"][kinds.pop()]
        return found
    shown = ", ".join(f"{k} {v}" for k, v in zip(row["by"], wanted, strict=True) if v)
    allowed = "; ".join(sorted({" ".join(one) for one in known})[:12])
    raise said.error(f"{script} is not read with {shown}: it takes {' '.join(row['by'])} {allowed}")


def _case_text(name: str, value: Any) -> str:
    """A value as the cases of a script write it."""
    if name in ("cuda_graphs", "use_mcore_fsdp"):
        return "true" if value else "false"
    if name == "recompute_modules":
        return "moe_act" if value is not None else ""
    usual = "1" if name.startswith(("pipeline", "virtual")) else ""
    return (str(value).lower() if isinstance(value, bool) else str(value or "")) or usual


def _common(values: dict[str, Any], config: Mapping[str, Any], said: Options) -> None:
    """Applies set_primary_perf_configs of the helpers."""
    tp, pp, vp = config["tp_size"], config["pp_size"], config.get("vp_size")
    replicas = config["nodes"] * config["devices"] / (tp * pp * config["cp_size"])
    _apply(
        values,
        {
            "nodes": config["nodes"],
            "accelerators_per_node": config["devices"],
            "train.micro_batch_size": config["mbs"],
            "train.global_batch_size": config["gbs"],
            "model.tensor_model_parallel_size": tp,
            "model.pipeline_model_parallel_size": pp,
            "model.context_parallel_size": config["cp_size"],
            "model.virtual_pipeline_model_parallel_size": None if vp == 1 else vp,
            "model.expert_model_parallel_size": config.get("ep_size"),
            "model.expert_tensor_parallel_size": config.get("etp_size"),
            "model.sequence_parallel": tp > 1,
            "model.cross_entropy_fusion_impl": "te",
        },
    )
    if "comm_overlap" in values:
        together = replicas > 1 and pp > 1 and (vp or 1) > 1
        values["comm_overlap.overlap_param_gather_with_optimizer_step"] = together
    sharded = bool(config.get("use_mcore_fsdp"))
    values["model.enable_cuda_graph"] = bool(config.get("cuda_graphs")) and not sharded
    if sharded:
        values["ddp.use_megatron_fsdp"] = True
        values["ddp.data_parallel_sharding_strategy"] = "optim_grads_params"
        if values.get("comm_overlap.defer_embedding_wgrad_compute"):
            values["comm_overlap.defer_embedding_wgrad_compute"] = False
    _precision(values, said)
    _recompute(values, config, said)


def _precision(values: dict[str, Any], said: Options) -> None:
    """Applies set_precision_configs of the helpers."""
    if said.values["compute_dtype"] == "bf16":
        values["optimizer.use_precision_aware_optimizer"] = True
        values[f"{_PRECISION}.grad_reduce_in_fp32"] = False
        return
    recipe = said.values["fp8_recipe"]
    for key in [one for one in values if one.startswith(_PRECISION)]:
        del values[key]
    values.update(table()["precisions"][recipe])
    if recipe == "mxfp8" and "comm_overlap" in values:
        values["comm_overlap.overlap_param_gather"] = False


def _recompute(values: dict[str, Any], config: Mapping[str, Any], said: Options) -> None:
    """Applies set_recompute_configs of the helpers.  Raises Unreadable if it would stop."""
    if layers := config.get("recompute_layers"):
        values["model.recompute_granularity"] = "full"
        values["model.recompute_method"] = "block"
        values["model.recompute_num_layers"] = layers
    if layers := config.get("activation_offload_layers"):
        values["model.cpu_offloading"] = True
        values["model.cpu_offloading_weights"] = False
        values["model.cpu_offloading_num_layers"] = layers
    if (modules := config.get("recompute_modules")) is None:
        return
    values["model.recompute_modules"] = modules
    if values.get("model.recompute_granularity") != "selective":
        text = "the script stops: recompute_granularity must be selective with recompute_modules"
        raise said.error(f"{text} {'/'.join(modules)}")
    if values.get("model.recompute_num_layers") is not None:
        text = "the script stops: recompute_num_layers cannot be combined with recompute_modules"
        raise said.error(f"{text} {'/'.join(modules)}")
