"""How a trainer on transformers shards: by DeepSpeed's JSON, FSDP's keys or accelerate's config."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from planner.frameworks.accelerate import tuning
from planner.frameworks.accelerate.engines import Engine, engine, fsdp_keys, of_document
from planner.frameworks.accelerate.launch_config import kind_of, names_offload, stage_in_name
from planner.frameworks.bash import ProgramCall
from planner.frameworks.config_files import json_value
from planner.frameworks.given_values import LaunchValues, Values
from planner.frameworks.read_results import UNSHARDED, Setting, Unreadable

# Keys of FSDP in a JSON that ms-swift's --fsdp names.
_SECTION = "fsdp_config"
# Accelerate's own words for what shards.
_KINDS = {"distributed_type", "use_deepspeed", "use_fsdp", "multi_gpu"}
# Other names of the half precision of a training, and the values of it.
_HALVES = ("mixed_precision", "precision", "compute_dtype", "bnb_4bit_compute_dtype")
_ALIKE = {"fp16": "fp16", "float16": "fp16", "half": "fp16", "bf16": "bf16", "bfloat16": "bf16"}
# Switches by which a program shards in code of its own.
SHARDS = re.compile(r"(use|enable|with)_(deepspeed|fsdp\d?|zero)")


def sharding_of(
    values: LaunchValues, tree: dict[str, Any], files: Mapping[str, str], half: str, beside: Values
) -> Engine:
    """The sharding of a training in this half precision; raises Unreadable."""
    if isinstance(stated := tree.get("deepspeed"), dict):
        values.asked |= {key for key in values.settings if key.startswith("deepspeed.")}
        return of_document({"deepspeed": json.dumps(stated)}, "deepspeed", half, values.assumed)
    if name := values.name_in("deepspeed"):
        return _by_deepspeed(name, files, half, values.assumed)
    section = _section(values, tree.get(_SECTION), files)
    words = values.name_in("fsdp").strip("[]")
    if words or isinstance(section, dict) or values.has("fsdp_version"):
        section = section if isinstance(section, dict) else {}
        return engine("FSDP", fsdp_keys(values, section), files, half, 8)
    if not beside.settings.keys() & _KINDS:
        values.assume(UNSHARDED)
    kind = kind_of(beside)
    each = beside.integer("num_processes", default=8) // beside.integer("num_machines", default=1)
    return engine(kind, beside, files, half, max(each, 1))


def half_beside(
    values: LaunchValues, tree: dict[str, Any], files: Mapping[str, str], beside: Values
) -> tuple[str, str]:
    """The half precision beside a trainer's own switches, and who says it; empty without one.

    In DeepSpeed's JSON, then in accelerate's configuration, then by a name of a program's own.
    """
    name = values.name_in("deepspeed") or beside.text("deepspeed_config_file") or ""
    last = name.rsplit("/", 1)[-1]
    if half := _enabled(tree.get("deepspeed"), last, files):
        return half, f"DeepSpeed's {last or 'configuration'}"
    if half := _ALIKE.get(beside.text("mixed_precision") or "", ""):
        return half, "accelerate's configuration"
    for key in _HALVES:
        if half := _ALIKE.get((values.text(key) or "").removeprefix("torch.").lower(), ""):
            return half, key
    return "", ""


def _enabled(stated: Any, name: str, files: Mapping[str, str]) -> str:
    """The half precision that DeepSpeed's configuration has on: this one, or the file's."""
    at_hand = next((one for one in files if name and one.rsplit("/", 1)[-1] == name), None)
    if at_hand is not None:
        stated = json_value(files[at_hand], at_hand)
    sections = stated if isinstance(stated, dict) else {}
    for half in ("fp16", "bf16"):
        section = sections.get(half)
        if isinstance(section, dict) and section.get("enabled") is True:
            return half
    return ""


def _by_deepspeed(name: str, files: Mapping[str, str], half: str, assumed: list[str]) -> Engine:
    """The sharding in DeepSpeed's JSON, or what its name says where it is absent."""
    at_hand = next((one for one in files if one.rsplit("/", 1)[-1] == name), None)
    if at_hand is not None:
        return of_document(files, at_hand, half, assumed)
    stage = stage_in_name(name)
    if stage is None:
        raise Unreadable(f"DeepSpeed's {name} is not among the files")
    assumed.append(f"{name} is not among the files: ZeRO {stage} taken from its name")
    offloads = {"offload_optimizer": {"device": "cpu"}} if names_offload(name) else {}
    text = json.dumps({"zero_optimization": {"stage": int(stage), **offloads}})
    return of_document({name: text}, name, half, assumed)


def _section(values: LaunchValues, stated: Any, files: Mapping[str, str]) -> Any:
    """FSDP's keys, of the JSON file that is named in their place too."""
    words = values.name_in("fsdp")
    if words.endswith(".json"):
        return _of_swift(values, words, files)
    if not isinstance(stated, str):
        return stated
    name = values.name_in(_SECTION)
    if name not in files:
        values.assume(f"{name} is not among the files: recompute and types in it are not known")
        return None
    return _taken(values, _document(name, files), _SECTION)


def _of_swift(values: LaunchValues, name: str, files: Mapping[str, str]) -> Any:
    """The keys of the JSON that ms-swift's --fsdp names, which has FSDP's words too."""
    document = _document(name, files)
    where = values.settings["fsdp"]
    said = where.model_copy(update={"value": str(document.get("fsdp", "full_shard"))})
    values.settings = {**values.settings, "fsdp": said}
    return _taken(values, document.get(_SECTION) or {}, "fsdp")


def _document(name: str, files: Mapping[str, str]) -> dict[str, Any]:
    at_hand = next((one for one in files if one.rsplit("/", 1)[-1] == name), None)
    if at_hand is None:
        raise Unreadable(f"FSDP's {name} is not among the files")
    document = json_value(files[at_hand], at_hand)
    if not isinstance(document, dict):
        raise Unreadable("must be an object", at_hand)
    return document


def _taken(values: LaunchValues, section: dict[str, Any], about: str) -> dict[str, Any]:
    """The section, whose scalars become settings at the place of the option that names it."""
    where = values.settings[about]
    scalars = {key: one for key, one in section.items() if isinstance(one, str | int | bool)}
    added = {
        f"{_SECTION}.{key}": where.model_copy(update={"name": key, "value": str(one)})
        for key, one in scalars.items()
    }
    values.settings = {**values.settings, **added}
    return section


def by_options(values: Values, launch: ProgramCall, beside: Values) -> Values:
    """ZeRO's stage by an option of the script's own, as accelerate's configuration would say it.

    Raises Unreadable where the script turns DeepSpeed on and no option says its configuration.
    """
    known = values.settings
    stage, named = known.get("zero_stage"), known.get("deepspeed")
    if not beside.settings:
        _refuse_own_shards(known)
    bare = named is not None and not isinstance(named.value, str)
    if bare or (named is not None and str(named.value).lower() == "true"):
        values.settings = {name: one for name, one in known.items() if name != "deepspeed"}
        named = None
    if named is None and stage is not None:
        values.has("zero_stage")
        kind = stage.model_copy(update={"name": "distributed_type", "value": "DEEPSPEED"})
        said = {"distributed_type": kind, "zero_stage": stage}
        return Values(said, stage.file, values.assumed)
    if bare:
        raise launch.program.unreadable(
            "DeepSpeed runs it, and no option names its JSON: --set zero_stage=2, or 0 to 3"
        )
    return beside


def _refuse_own_shards(known: Mapping[str, Setting]) -> None:
    """Raises Unreadable where a switch says that the program shards, and nothing says how."""
    own = [one for key, one in known.items() if SHARDS.fullmatch(key) and tuning.is_on(one)]
    if own and not known.keys() & {"deepspeed", "fsdp", "fsdp_config", "zero_stage"}:
        raise own[0].unreadable(
            f"{own[0].name}: the program shards in code of its own: --set zero_stage=3, or 0 to 3"
        )
