"""Reads a launch of nanotron: its YAML, and the processes of the launch line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from cost_models.balanced_layers import stages
from cost_models.package_files import table
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.frameworks import architecture, yaml_files
from planner.frameworks.arguments import to_set
from planner.frameworks.bash import ProgramCall, slurm_variables
from planner.frameworks.given_values import DEGREE, Values, hint, launch_by, malformed, options
from planner.frameworks.launch_files import given_with
from planner.frameworks.nanotron.rules import BF16, FP32
from planner.frameworks.nanotron.settings import ENGINES, NUMERICS
from planner.frameworks.read_results import Reading, Setting, Unreadable
from planner.frameworks.yaml_files import YamlFile

_SECTIONS = table("planner.frameworks.nanotron", "keys.json")["sections"]
KEYS = {name: frozenset(key.rstrip("*") for key in keys) for name, keys in _SECTIONS.items()}
# The required keys of each section, if the section is present.
REQUIRED = {
    name: tuple(key.rstrip("*") for key in keys if key.endswith("*"))
    for name, keys in _SECTIONS.items()
}
MODEL, MOE = "model.model_config.", "model.model_config.moe_config."
GRID, OPTIMIZER, TOKENS = "parallelism.", "optimizer.", "tokens."
MAX_LAYERS = 10_000
# Similarity from which an unknown key counts as a misspelled known one.
MISSPELLING_SIMILARITY = 0.85
# Sections that are optional in nanotron's config classes but needed by its trainer.
SECTIONS = ("tokens", "optimizer", "data_stages", "checkpoints", "logging")
MODES = ("ALL_REDUCE", "REDUCE_SCATTER")
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "bf16"}
# Keys that a plan does not express; they are not reported as unread.
RUN_ONLY = (
    "general.", "logging.", "checkpoints.", "data_stages.", "optimizer.learning_rate_scheduler.",
    "optimizer.optimizer_factory.", "model.init_method.", "tokens.train_steps",
    "model.ddp_bucket_cap_mb", "model.make_vocab_size_divisible_by", "optimizer.weight_decay",
    "optimizer.clip_grad", "parallelism.tp_recompute_allgather",
    MODEL + "max_position_embeddings", MODEL + "is_qwen2_config", MODEL + "is_llama_config",
    MODEL + "_attn_implementation", MODEL + "log_attn_probs",
)  # fmt: skip
_OPEN = re.compile(r"[$`]")  # in a value that the files leave open


# Options of forks' programs that overrule a key; upstream's have none of them.
_OF_FORKS = {
    **{f"--{name}": GRID + name for name in ("tp", "pp", "dp")},
    "--micro-batch-size": TOKENS + "micro_batch_size",
    "--batch-accumulation-per-replica": TOKENS + "batch_accumulation_per_replica",
    "--sequence-length": TOKENS + "sequence_length",
}


def recognises(files: Mapping[str, str]) -> bool:
    """Whether some YAML has keys that only nanotron has."""
    return any(
        "pp_engine:" in text or "batch_accumulation_per_replica:" in text
        for name, text in files.items()
        if name.endswith((".yaml", ".yml"))
    )


def _of_fork(line: Sequence[Setting]) -> Iterator[Setting]:
    """What the options of a fork's program say of the configuration's keys.  Raises Unreadable."""
    for one in line:
        text = str(one.value)
        if one.name in _OF_FORKS and _OPEN.search(text):
            raise one.unreadable(
                f"{one.name} is {text}, which the files do not say: {to_set(text)}"
            )
        if one.name in _OF_FORKS:
            yield one.model_copy(update={"name": _OF_FORKS[one.name]})


def _program(files: Mapping[str, str]) -> str:
    """How the name of the program ends: its own examples have others (train_moe.py)."""
    others = any(re.search(r"\btrain_\w+\.py\b", text) for text in files.values())
    return ".py" if others else "run_train.py"


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """The specs and the plan; raises Unreadable."""
    assumed = list[str]()
    launch = launch_by(files, "torchrun", _program(files), assumed)
    line = options(launch.arguments) if launch else []
    config = _config(files, line)
    keys = config.settings()
    given = given_with(files)
    stated = {one.name: one for one in (*keys, *_of_fork(line), *given.settings())}
    values = Values(stated, config.name, [*assumed, *config.notes()])
    _refuse(config, keys, values)
    unknown = tuple(one for one in keys if not _known(one.name))
    foreign = [one for one in unknown if not _misspelled(one.name)]
    if given.model is None:
        _refuse_foreign_model(foreign)
    if foreign:
        names = ", ".join(dict.fromkeys(one.name for one in foreign))
        values.assume(f"unknown keys, of another release or a fork of nanotron: {names}")
    try:
        model = given.model or _model(config, values)
        training, plan = _plan(model, values)
    except ValidationError as error:
        raise malformed(error, config.name) from None
    nodes, each = _processes(launch, accelerators)
    _refuse_ranks(values, plan, nodes, each, accelerators)
    return Reading(
        framework="nanotron",
        model=model,
        training=training,
        plan=plan,
        nodes=nodes,
        accelerators_per_node=each,
        settings=(*keys, *line),
        unknown=unknown,
        unread=tuple(one for one in keys if _counts(one) and one.name not in values.asked),
        assumed=tuple(values.assumed),
        refusals=tuple(values.refusals),
    )


def _counts(one: Setting) -> bool:
    """Whether a setting is known, set and not one of those that a plan does not express."""
    return _known(one.name) and one.value != "null" and not one.name.startswith(RUN_ONLY)


def _refuse_ranks(
    values: Values,
    plan: ParallelPlan,
    nodes: int | None,
    each: int | None,
    accelerators: int | None,
) -> None:
    """Refuses a grid of ranks that the launch does not start, and one of experts."""
    world = nodes * each if nodes and each else accelerators
    if world is not None and world != plan.accelerators:
        text = (
            f"ParallelContext: tp x cp x dp x pp is {plan.accelerators}, "
            f"but the launch starts {world} processes"
        )
        values.refuse(text, GRID + "dp")
    name = GRID + "expert_parallel_size"
    if (ranks := values.integer(name, default=1)) > 1:
        text = f"expert_parallel_size {ranks}: the rank grid is too small for it"
        values.refuse(text, name)


def _config(files: Mapping[str, str], line: Sequence[Setting]) -> YamlFile:
    """The YAML that the launch line names, or the only one."""
    named = next((one.value for one in line if one.name == "--config-file"), None)
    yamls = [name for name in files if name.endswith((".yaml", ".yml"))]
    name = named.rsplit("/", 1)[-1] if isinstance(named, str) else (yamls or [""])[0]
    if name not in files:
        raise Unreadable(f"the config {name} is not among the files".replace("  ", " "))
    return yaml_files.read(files[name], name)


def _processes(
    launch: ProgramCall | None, accelerators: int | None
) -> tuple[int | None, int | None]:
    """(nodes, processes per node), from the options of torchrun or of the Slurm job."""
    if launch is None:
        return None, None
    line = {one.name.lstrip("-").replace("-", "_"): one for one in options(launch.before)}
    values = Values(line, launch.program.file)
    slurm = slurm_variables(launch.slurm)
    counts = {name: values.text(name) or "" for name in ("nnodes", "nproc_per_node")}
    if any(_OPEN.search(text) for text in counts.values()):
        return slurm.get("SLURM_NNODES"), None  # what a command prints
    nodes = values.integer("nnodes", default=slurm.get("SLURM_NNODES", 1))
    if (counts["nproc_per_node"] or "gpu") in ("gpu", "auto"):
        return nodes, accelerators // nodes if accelerators else None
    return nodes, values.integer("nproc_per_node")


def _section(path: str) -> tuple[str, str]:
    """The section and the key of a dotted path; list indices become stars."""
    parts = ["*" if part.isdigit() else part for part in path.split(".")]
    return ".".join(parts[:-1]), parts[-1]


def _known(path: str) -> bool:
    """Whether the path is a known key, or is below one whose content is free."""
    section, key = _section(path)
    if section in KEYS:
        return key in KEYS[section]
    return bool(section) and _known(section)


def _known_section(path: str) -> tuple[str, str]:
    """The innermost known section that a path leads through, and the key there."""
    section, key = _section(path)
    while section and section not in KEYS:
        section, key = _section(section)
    return section, key


def _misspelled(path: str) -> list[str]:
    """The known key that an unknown one probably misspells; empty if there is none."""
    section, key = _known_section(path)
    return get_close_matches(key[:100], sorted(KEYS[section]), 1, MISSPELLING_SIMILARITY)


def _refuse_foreign_model(foreign: Sequence[Setting]) -> None:
    """Raises Unreadable for model keys that nanotron's own model classes lack."""
    kinds = [one for one in foreign if re.fullmatch(r"is_\w+_config", one.name.split(".")[-1])]
    keys = [one for one in foreign if one.name.startswith(MODEL)]
    architecture.refuse([one for one in keys if one not in kinds])
    if kinds:
        raise Unreadable(
            f"{kinds[0].name}: a model class that is not nanotron's own; give the model by its "
            "name (--model)",
            kinds[0].file,
            kinds[0].line,
        )


def _refuse(config: YamlFile, keys: Sequence[Setting], values: Values) -> None:
    """Refuses misspelled and missing keys, which stop nanotron at start-up."""
    for one in keys:
        if not _known(one.name) and _misspelled(one.name):
            section, key = _known_section(one.name)
            meant = hint(key, KEYS[section])
            values.refuse_at(one, f"nanotron stops at the unknown key {one.name}{meant}")
    for section in SECTIONS:
        if config.values.get(section) is None:
            values.refuse(f"the trainer needs the section {section}")
    for path, node in _mappings(config.values, ""):
        section = ".".join("*" if part.isdigit() else part for part in path.split("."))
        for key in REQUIRED.get(section, ()):
            if node.get(key) is None:
                place = f"{path}.{key}".lstrip(".")
                values.refuse(f"the required key {place} is missing")
    rate = config.values.get("optimizer")
    rate = rate.get("learning_rate_scheduler") if isinstance(rate, dict) else None
    if isinstance(rate, dict) and rate.get("lr_warmup_style") not in ("linear", "constant"):
        values.refuse("learning_rate_scheduler.lr_warmup_style must be linear or constant")


def _mappings(node: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping of the document with its path."""
    if isinstance(node, dict):
        yield path, node
        inner = list(node.items())
    else:
        inner = list(enumerate(node)) if isinstance(node, list) else []
    for key, child in inner:
        yield from _mappings(child, f"{path}.{key}" if path else str(key))


def _model(config: YamlFile, values: Values) -> ModelSpec:
    if values.has(MODEL + "is_starcoder2_config"):
        raise Unreadable("Starcoder2Config models cannot be read", config.name)
    if not any(name.startswith(MODEL) for name in values.settings):
        raise Unreadable("model.model_config is missing", config.name)
    if values.boolean(MODEL + "is_llama_config"):
        values.assume(
            "is_llama_config: plans are written with Qwen2Config, which builds the same layers"
        )
    layers = values.integer(MODEL + "num_hidden_layers", default=32, most=MAX_LAYERS)
    hidden = values.integer(MODEL + "hidden_size", default=4096)
    heads = values.integer(MODEL + "num_attention_heads", default=32)
    llama = values.boolean(MODEL + "is_llama_config")
    window = values.has(MODEL + "sliding_window_size")
    kernel = values.text(MODEL + "_attn_implementation")
    if kernel not in (None, "flash_attention_2"):
        values.assume(f"_attn_implementation: {kernel} has no effect, flash-attention 2 runs")
    skipped = values.integer(MODEL + "no_rope_layer", default=0, least=0)
    if skipped > 1:
        values.assume(f"no_rope_layer: every {skipped}th layer has no RoPE, but is costed with it")
    return ModelSpec(
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        head_dim=max(hidden // heads, 1),
        num_query_groups=values.integer(MODEL + "num_key_value_heads", default=heads),
        ffn_hidden_size=values.integer(MODEL + "intermediate_size", default=11008),
        gated_mlp=True,
        vocab_size=values.integer(MODEL + "vocab_size", default=32000),
        tied_embeddings=values.boolean(MODEL + "tie_word_embeddings"),
        qkv_bias=values.boolean(MODEL + "attention_bias") and not llama,
        norm="rmsnorm",
        position="none" if skipped == 1 else "rope",
        sliding_window=values.integer(MODEL + "sliding_window_size") if window else None,
        moe=_experts(config, values, layers),
        numerics=_numerics(values),
    )


def _numerics(values: Values) -> dict[str, Any]:
    """The model's numerics; silu, the default activation, is left out."""
    places = {name: MODEL + key for name, key in NUMERICS.items()}
    places["init_std"] = "model.init_method.std"
    texts = {name: values.text(place) for name, place in places.items()}
    stated = {name: text for name, text in texts.items() if text not in (None, "silu")}
    return {
        name: text if name == "activation" else values.number(places[name])
        for name, text in stated.items()
    }


def _experts(config: YamlFile, values: Values, num_layers: int) -> dict[str, Any] | None:
    if not any(name.startswith(MOE) for name in values.settings):
        return None
    node: Any = config.values
    for part in MOE.rstrip(".").split("."):
        node = node.get(part) if isinstance(node, dict) else None
    if not isinstance(node, dict):
        raise values.fault((MOE.rstrip("."),), "must be a mapping")
    listed = node.get("layers", [-1])
    values.asked.add(MOE + "layers")
    layers = list(range(num_layers)) if listed == [-1] else listed
    shared = values.boolean(MOE + "enable_shared_expert")
    width = values.integer(MOE + "shared_expert_intermediate_size", default=5632)
    return {
        "num_experts": values.integer(MOE + "num_experts", default=8),
        "top_k": values.integer(MOE + "top_k", default=2),
        "expert_ffn_hidden_size": values.integer(MOE + "moe_intermediate_size", default=1408),
        "shared_expert_ffn_hidden_size": width if shared else 0,
        "shared_expert_gate": shared,
        **_pattern(layers, num_layers, values),
    }


def _pattern(layers: Any, num_layers: int, values: Values) -> dict[str, int]:
    """Layers with experts as first, step and offset; raises Unreadable for other patterns."""
    fault = values.fault((MOE + "layers",), "must be all layers from a first one, or every n-th")
    if not isinstance(layers, list) or not layers or any(type(i) is not int for i in layers):
        raise fault
    first = layers[0]
    step = layers[1] - first if len(layers) > 1 else max(num_layers - first, 1)
    if first < 0 or step < 1 or layers != list(range(first, num_layers, step)):
        raise fault
    dense = first if first >= step or step == 1 else 0
    return {"num_dense_layers": dense, "layer_frequency": step, "layer_offset": first % step}


def _plan(model: ModelSpec, values: Values) -> tuple[TrainingSpec, ParallelPlan]:
    dp, tp, pp = (values.integer(GRID + name, most=DEGREE) for name in ("dp", "tp", "pp"))
    cp = values.integer(GRID + "context_parallel_size", default=1)
    engines = {name: schedule for schedule, name in ENGINES.items()}
    engine = values.choice(GRID + "pp_engine", choices=engines, default="afab")
    if pp == 1 and engine == "afab":
        values.assume(
            "pp_engine: afab keeps all micro-batches of a single stage, but is costed as 1f1b"
        )
    mode = values.choice(GRID + "tp_mode", choices=MODES, default="ALL_REDUCE")
    full = values.boolean(GRID + "recompute_layer")
    micro = values.integer(TOKENS + "micro_batch_size")
    zero = values.integer(OPTIMIZER + "zero_stage", default=0, least=0)
    if zero > 1:
        values.assume(f"optimizer.zero_stage: {zero} is the same as 1, sharded states")
    dtype = values.choice("model.dtype", choices=DTYPES, default="bfloat16")
    if dtype == "float32":
        values.assume("model.dtype float32: plans have no fp32 training, bf16 assumed")
    kept = FP32 if values.boolean(OPTIMIZER + "accumulate_grad_in_fp32") else BF16
    factory = values.text(OPTIMIZER + "optimizer_factory.name") or "adamW"
    counts = stages(model, pp, tp)
    training = TrainingSpec(
        seq_length=values.integer(TOKENS + "sequence_length"),
        global_batch_size=micro * values.integer(TOKENS + "batch_accumulation_per_replica") * dp,
        precision=DTYPES[dtype],
        gradient_dtype=kept[0],
        gradient_reduce_dtype=kept[1],
        master_weights_dtype=kept[2],
        optimizer_state_dtype=kept[3],
        optimizer="sgd" if factory == "sgd" else "adam",
    )
    plan = ParallelPlan(
        tp=tp,
        sequence_parallel=tp > 1 and mode == "REDUCE_SCATTER",
        cp=cp,
        pp=pp,
        dp=dp,
        zero_stage=min(zero, 1),
        micro_batch_size=micro,
        recompute="full" if full else "none",
        recompute_num_layers=max(counts) if full else 0,
        schedule=engines[engine] if pp > 1 else "1f1b",
        stage_layers=counts if len(set(counts)) > 1 else (),
        attention_kernel="flash2",
        cross_entropy="unfused",
        moe_dispatcher=values.choice(
            MOE + "token_dispatcher_type", choices=("alltoall", "allgather"), default="alltoall"
        ),
        overlap_param_gather=False,
        overlap_tp=values.boolean(GRID + "tp_linear_async_communication"),
        runtime="nanotron",
    )
    return training, plan
