"""Accelerate's configuration: the options of `accelerate launch` and the file that they name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from cost_models.package_files import table
from planner.frameworks import training_calls, yaml_files
from planner.frameworks.accelerate.engines import ENGINES, TYPES
from planner.frameworks.arguments import to_set
from planner.frameworks.bash import ProgramCall, evaluate
from planner.frameworks.given_values import DEGREE, Values, launch_by, launcher_options, options
from planner.frameworks.read_results import Setting, Unreadable

# What starts processes with accelerate; Axolotl's command does unless it names another launcher.
_LAUNCHED = re.compile(
    r"accelerate launch|\baxolotl train\b(?!.*--(?:no-accelerate|launcher[= ](?!accelerate)))"
)
# Options of `accelerate launch`, where a dash may stand for an underscore, and keys of its config.
SWITCHES, OPTIONS, KEYS = (
    frozenset(table("planner.frameworks.accelerate", "names.json")[kind])
    for kind in ("switches", "options", "keys")
)


def plain(name: str) -> str:
    """The name without dashes."""
    return name.lstrip("-").replace("-", "_")


def of_config(
    files: Mapping[str, str], line: Iterable[Setting], assumed: list[str]
) -> Iterator[tuple[str, Setting]]:
    """The keys of the config, with sections flattened as the launcher does."""
    named = next((one.value for one in line if plain(one.name) == "config_file"), None)
    if isinstance(named, str):
        name = named.rsplit("/", 1)[-1]
        if name not in files:
            yield from _by_name(name, line, assumed)
            return
    else:
        yamls = [name for name in files if name.endswith((".yaml", ".yml"))]
        if line or not yamls:
            return
        name = yamls[0]
    config = yaml_files.read(files[name], name)
    assumed += config.notes()
    for one in config.settings():
        section, _, key = one.name.rpartition(".")
        if section == "deepspeed_config":
            yield key, one
            continue
        if section in ("fsdp_config", "fp8_config", "dynamo_config"):
            prefix = section.removesuffix("config")
            key = key if key.startswith(prefix.rstrip("_")) else prefix + key
        yield key or one.name, one


def _by_name(
    name: str, line: Iterable[Setting], assumed: list[str]
) -> Iterator[tuple[str, Setting]]:
    """What the name of an absent config says of the sharding.  Raises Unreadable if nothing."""
    about = next(one for one in line if plain(one.name) == "config_file")
    stage = stage_in_name(name)
    if stage is not None:
        found = {"distributed_type": "DEEPSPEED", "zero_stage": stage}
        if names_offload(name):
            found["offload_optimizer_device"] = "cpu"
    elif re.search(r"fsdp", name, re.IGNORECASE):
        found = {"distributed_type": "FSDP", "fsdp_sharding_strategy": "FULL_SHARD"}
    elif re.search(r"multi_?gpu|(^|[_-])ddp([_.-]|$)", name, re.IGNORECASE):
        found = {"distributed_type": "MULTI_GPU"}
    else:
        if "$" in name:
            text = f"the launch's config is {name}, which the files do not say: {to_set(name)}"
            raise about.unreadable(text)
        raise Unreadable(f"the config {name} that the launch names is not among the files")
    kinds = " ".join(found.values())
    assumed.append(f"{name} is not among the files: {kinds} taken from its name")
    for key, value in found.items():
        yield key, about.model_copy(update={"name": key, "value": value})


def stage_in_name(name: str) -> str | None:
    """The stage of ZeRO that the name of a configuration says, such as ds_z3 or zero-stage-2."""
    stage = re.search(r"(?:z(?:ero)?[_-]?(?:stage)?|stage)[_-]?([0-3])", name, re.IGNORECASE)
    return stage and stage[1]


def names_offload(name: str) -> bool:
    """Whether the name of a configuration says that it offloads: not stage3_no_offloading."""
    return bool(_OFFLOADS.search(name.lower()))


def kind_of(values: Values) -> str:
    """Accelerate's distributed_type, with the launch switches applied."""
    bare = values.text("distributed_type") == "false"  # YAML's reading of NO without quotes
    kind = "NO" if bare else values.choice("distributed_type", choices=TYPES, default="NO")
    kind = "FSDP" if values.boolean("use_fsdp") else kind
    kind = "MULTI_GPU" if values.boolean("multi_gpu") else kind
    kind = "DEEPSPEED" if values.boolean("use_deepspeed") else kind
    if kind in ENGINES:
        raise values.fault(
            ("distributed_type",), f"{kind} cannot be read: only FSDP, DeepSpeed and plain replicas"
        )
    return kind


def mesh_of(beside: Values) -> dict[str, int]:
    """dp_shard of accelerate's mesh, if it has replicas of shard groups."""
    prefix = "parallelism_config_dp_"
    copies = beside.integer(f"{prefix}replicate_size", default=1)
    shards = beside.integer(f"{prefix}shard_size", default=1)
    return {"dp_shard": shards} if copies > 1 and shards > 1 else {}


_OFFLOADS = re.compile(
    r"(?<!no)(?<!no[_-])(?<!non[_-])(?<!without[_-])offload(?!(ing)?[_-]?(none|false|off|no)\b)"
)
# Options of Axolotl by which a call prepares the data, or uses what was trained.
_PREPARES = ("--prepare_ds_only", "--debug_text_only", "--inference", "--merge_lora", "--shard")


def started_with(files: Mapping[str, str], config: str) -> training_calls.World:
    """What a script starts with the configuration, by torchrun, deepspeed or python alone."""
    calls = list(_calls_with(files, config))
    for call in calls:
        console = call.before and call.before[-1].text.endswith("llamafactory-cli")
        if console or call.launcher in ("torchrun", "deepspeed"):
            return training_calls.world(call)
    if len(calls) == 1 and calls[0].launcher == "python":
        reached = training_calls.world(calls[0])
        return reached if reached.accelerators else training_calls.unlaunched(calls[0])
    return training_calls.World(None, None, None)


def overrides(files: Mapping[str, str], config: str) -> list[Setting]:
    """The keys that the call with the configuration says otherwise: --key value, or key=value."""
    found: list[Setting] = []
    for call in _calls_with(files, config):
        for one in options(call.arguments):
            name = plain(one.name)
            if name != "config" and isinstance(one.value, str):
                found.append(one.model_copy(update={"name": name}))
        for word in call.arguments:
            name, equals, value = word.text.partition("=")
            if equals and re.fullmatch(r"[a-z]\w*", name):
                found.append(Setting(name=name, value=value, file=word.file, line=word.line))
    return found


def _calls_with(files: Mapping[str, str], config: str) -> Iterator[ProgramCall]:
    """The calls that are given the configuration."""
    for name in training_calls.scripts(files):
        try:
            launches = evaluate(files, name).launches
        except Unreadable:
            continue
        for call in launches:
            named = any(word.text.rsplit("/", 1)[-1] == config for word in call.arguments)
            if named and not _prepares(call):
                yield call


def _prepares(call: ProgramCall) -> bool:
    """Whether one of Axolotl's commands prepares or uses what another trains."""
    task = call.program.text.removeprefix("axolotl.cli.")
    other = task not in (call.program.text, "train")
    return other or any(word.text.partition("=")[0] in _PREPARES for word in call.arguments)


def machines(files: Mapping[str, str], assumed: list[str]) -> int | None:
    """Machines of the `accelerate launch` beside the configuration; None without one."""
    if not any(map(_LAUNCHED.search, files.values())):
        return None
    launch = launch_by(files, "accelerate", assumed=assumed)
    line = [] if launch is None else launcher_options(launch.before, assumed)
    said = {one.name: one for one in line}
    return Values(said, "").integer("--num_machines", default=1, most=DEGREE)


def config_beside(files: Mapping[str, str], assumed: list[str]) -> Values:
    """Accelerate's configuration, by the last part of each key, and the options that overrule it.

    Empty if there is neither.
    """
    said = _line(files, assumed)
    line = {plain(one.name): one for one in said}
    named = str(line.pop("config_file").value) if "config_file" in line else ""
    configs = (
        name
        for name, text in files.items()
        if name.endswith((".yaml", ".yml")) and "distributed_type:" in text
    )
    last = named.rsplit("/", 1)[-1]
    name = last if last in files else next(configs, "")
    if last and not name:
        try:
            line = dict(_by_name(last, said, assumed)) | line
        except Unreadable:
            assumed.append(f"{last} is not among the files: how it shards is not known")
    found = yaml_files.read(files[name], name).settings() if name else ()
    return Values({one.name.rpartition(".")[2]: one for one in found} | line, name, assumed)


def _line(files: Mapping[str, str], assumed: list[str]) -> list[Setting]:
    """The options of `accelerate launch` in the script; empty without one."""
    if not any(map(_LAUNCHED.search, files.values())):
        return []
    try:
        launch = launch_by(files, "accelerate")
    except Unreadable:
        return []
    return [] if launch is None else launcher_options(launch.before[2:], assumed, SWITCHES)
