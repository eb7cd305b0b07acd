"""Reads the training part of a prime-rl run: a transformers model on FSDP 2.

Keys and defaults of packages/prime-rl-configs (559b447).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.frameworks import post_training
from planner.frameworks.config_files import toml_table
from planner.frameworks.given_values import DEGREE, Values, malformed
from planner.frameworks.launch_files import given_with
from planner.frameworks.prime_rl.step import ATTENTION
from planner.frameworks.read_results import Reading, Setting

TRAINER, LENGTH, BATCH = "trainer.model.", "seq_len", "orchestrator.batch_size"
KERNELS = {name: kernel for kernel, name in ATTENTION.items()} | {
    "flash_attention_3": "flash", "flash_attention_4": "flash",
}  # fmt: skip
KINDS = {"ring": "all_gather", "ulysses": "a2a"}
# Ranks that `ep = "auto"` takes for experts at most.
AUTO_EP = 8
APART = (
    "only the policy's training is costed, without generation, with every sequence as long as a "
    "packed pass"
)
_MARK = re.compile(r"^\[?orchestrator\b", re.M)
_TRAINS = re.compile(r"^\[?(trainer|deployment|inference)\b", re.M)
_HEADER, _KEY = re.compile(r"\[+\s*([\w.\-]+)\s*\]+"), re.compile(r"([\w.\-]+)\s*=")


def recognises(files: Mapping[str, str]) -> bool:
    """Whether some TOML is a run of prime-rl."""
    return _file(files) is not None


def _file(files: Mapping[str, str]) -> str | None:
    found = (
        name for name, text in files.items()
        if name.endswith(".toml") and _MARK.search(text) and _TRAINS.search(text)
    )  # fmt: skip
    return next(found, None)


def read(files: Mapping[str, str], accelerators: int | None = None) -> Reading:
    """The specs and the plan of the policy's training, whose accelerators it says itself.

    Raises Unreadable.
    """
    del accelerators
    name, given = _file(files) or "", given_with(files)
    settings = {one.name: one for one in (*_settings(files[name], name), *given.settings())}
    values = Values(settings, name, [APART])
    if any(key.startswith(TRAINER + "lora") and values.has(key) for key in settings):
        raise values.fault([TRAINER + "lora"], "trains adapters, which is not read")
    named = values.text("trainer.model.name", "model.name") or ""
    place = (name, 0)
    model = given.model or post_training.preset(named, "no model.name", place, values.assumed)
    nodes, each = _accelerators(values)
    length = values.integer(TRAINER + "seq_len", LENGTH, default=2048)
    half = values.choice(
        TRAINER + "optimization_dtype", choices=("float32", "bfloat16"), default="float32"
    )
    reduced = values.choice(
        TRAINER + "reduce_dtype", choices=("float32", "bfloat16"), default="float32"
    )
    try:
        training = TrainingSpec(
            seq_length=length,
            global_batch_size=values.integer(BATCH),
            gradient_reduce_dtype="fp32" if reduced == "float32" else "bf16",
            **({} if half == "float32" else _HALF),
        )
        plan = _plan(values, model, nodes * each)
    except ValidationError as error:
        raise malformed(error, name) from None
    said = tuple(settings.values())
    return Reading(
        framework="pytorch",
        model=model,
        training=training,
        plan=plan,
        nodes=nodes,
        accelerators_per_node=each,
        settings=said,
        unread=tuple(one for one in said if one.name not in values.asked),
        assumed=tuple(dict.fromkeys(values.assumed)),
        written=False,
    )


_HALF: dict[str, Any] = {
    "master_weights_dtype": "none", "optimizer_state_dtype": "bf16", "gradient_dtype": "bf16",
}  # fmt: skip


def _accelerators(values: Values) -> tuple[int, int]:
    """Nodes that train and accelerators of each."""
    kind = values.choice(
        "deployment.type", choices=("single_node", "multi_node"), default="single_node"
    )
    if kind == "single_node":
        return 1, values.integer("deployment.num_train_gpus", default=1, most=DEGREE)
    nodes = values.integer("deployment.num_train_nodes", most=DEGREE)
    return nodes, values.integer("deployment.gpus_per_node", default=8, most=DEGREE)


def _plan(values: Values, model: ModelSpec, ranks: int) -> ParallelPlan:
    cp = values.integer(TRAINER + "cp", default=1, most=DEGREE)
    copies = values.integer(TRAINER + "dp_replicate", default=1, most=DEGREE)
    if ranks % (cp * copies):
        text = f"times {TRAINER}dp_replicate {copies} must divide the {ranks} ranks that train"
        raise values.fault([TRAINER + "cp"], text)
    kind = values.choice(TRAINER + "cp_style", choices=KINDS, default="ring")
    return ParallelPlan(
        dp=ranks // cp,
        dp_shard=0 if copies == 1 else ranks // copies,
        cp=cp,
        cp_kind=KINDS[kind],
        ep=_experts(values, model, ranks // copies),
        zero_stage=3,
        micro_batch_size=1,
        reshard_after_forward=values.boolean(TRAINER + "reshard_after_forward", default=True),
        attention_kernel=KERNELS[values.choice(TRAINER + "attn", choices=KERNELS, default="auto")],
        cross_entropy="chunked",
        compile=_on(values, "compile"),
        offload_optimizer=values.boolean(TRAINER + "optim_cpu_offload", default=True),
        offload_activations=_on(values, "ac_offloading"),
        offload_num_layers=model.num_layers if _on(values, "ac_offloading") else 0,
        runtime="torch",
        **_recompute(values, model),
    )


def _on(values: Values, section: str) -> bool:
    """Whether a section that is on by default is not "None"."""
    name = TRAINER + section
    found = values.settings.get(name)
    values.has(name)
    return found is None or found.value != "None"


def _recompute(values: Values, model: ModelSpec) -> dict[str, Any]:
    """What is computed again: all of every n-th layer; parts of layers are taken as none."""
    mode = values.choice(TRAINER + "ac.mode", choices=("full", "selective"), default="full")
    every = values.integer(TRAINER + "ac.freq", default=1)
    if not _on(values, "ac"):
        return {"recompute": "none"}
    if mode == "selective":
        values.assume(f"{TRAINER}ac.mode selective is costed without recompute")
        return {"recompute": "none"}
    if every == 1:
        return {"recompute": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    layers = max(1, model.num_layers // every)
    return {"recompute": "full", "recompute_method": "block", "recompute_num_layers": layers}


def _experts(values: Values, model: ModelSpec, island: int) -> int:
    """The degree of expert parallelism; `auto` as parallel_dims.resolve_ep takes it."""
    name = TRAINER + "ep"
    if values.text(name) in (None, "auto"):
        return min(island, AUTO_EP) if model.moe is not None else 1
    return values.integer(name, most=DEGREE)


def _settings(text: str, file: str) -> Iterator[Setting]:
    """Every value with its dotted key and line.  Raises Unreadable."""
    tree = toml_table(text, file)
    lines = _lines(text)

    def leaves(node: Any, path: str) -> Iterator[Setting]:
        if isinstance(node, dict) and node:
            for key, child in node.items():
                yield from leaves(child, f"{path}.{key}".lstrip("."))
            return
        shown = str(node).lower() if isinstance(node, bool) else str(node)
        yield Setting(name=path, value=shown, file=file, line=lines.get(path, 0))

    return leaves(tree, "")


def _lines(text: str) -> dict[str, int]:
    """The line of each key that is alone on one."""
    found: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            section = header[1] + "."
        elif key := _KEY.match(line):
            found.setdefault(section + key[1], number)
    return found
