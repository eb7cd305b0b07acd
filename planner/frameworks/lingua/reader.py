"""Reads trainings of Meta Lingua: a YAML of its apps, and the call that names it.

Keys and defaults of apps/main/train.py, apps/main/transformer.py, lingua/transformer.py,
lingua/distributed.py and lingua/data.py (1ac9ee4).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.frameworks import tokenizers, training_calls
from planner.frameworks.bash import ProgramCall
from planner.frameworks.given_values import DEGREE, LaunchValues, Values, malformed
from planner.frameworks.launch_files import given_with
from planner.frameworks.omegaconf_files import (
    configurations,
    merged,
    named_or_first,
    say_fork_keys,
    words_of,
)
from planner.frameworks.read_results import Reading, Setting, Unreadable

TITLE = "Lingua"
_MARKS = (re.compile(r"^distributed:", re.MULTILINE), re.compile(r"^\s+fsdp_type:", re.MULTILINE))
_MODULE = re.compile(r"(apps|lingua)\..*")
# Its submitter of jobs to Slurm, with the words for nodes and GPUs of each (lingua/stool.py).
_JOBS, _OF_JOBS = "lingua.stool", {"nodes": 1, "ngpu": 8}
# Keys of the model that change nothing here, those of forks among them.
_SAME = {
    "seed", "init_base_std", "init_std_factor", "max_seqlen", "norm_eps", "rope_theta", "name_type",
    "model_name",
}  # fmt: skip
# Keys of `distributed` beside those that are read, which change neither time nor memory here.
_REST = {
    "matmul_allow_tf32", "allow_bf16_reduced_precision_reduction", "detect_anomaly",
    "compile_cache_size_limit", "spawn_method", "float8_filter",
}  # fmt: skip
_MODEL = "model."
_SHARDED, _COPIES, _TP = "distributed.dp_shard", "distributed.dp_replicate", "distributed.tp_size"
# Tokenizers with as many tokens whatever their file: lingua/tokenizer.py.
_BYTES = 258
# OpenAI's files, of which tiktoken's own table says the tokens, and the 256 special ones of Lingua.
_PUBLIC = {"cl100k_base": 100_256 + 256, "o200k_base": 199_998 + 256}
_TIKTOKEN = 128_256  # the file of Llama 3, for which this class was written
ANY_VOCABULARY = 32_000
_HALF = {"bf16": "bf16", "fp16": "fp16", "fp32": "bf16"}


def launches(call: ProgramCall) -> bool:
    """Whether a call starts a program with a configuration, as OmegaConf's words give it."""
    configured = any(word.text.startswith("config=") for word in call.arguments)
    module = bool(_MODULE.fullmatch(call.program.text))
    return configured and (module or call.program.text.endswith("train.py"))


def _call(files: Mapping[str, str]) -> training_calls.TrainingCall | None:
    return training_calls.training_call_if_any(files, ("config=",), launches, TITLE)


def _yaml(files: Mapping[str, str], call: training_calls.TrainingCall | None) -> str | None:
    """The configuration that the call names, or the only one; None without any."""
    said = {} if call is None else words_of(call)
    named = str(said["config"].value) if "config" in said else ""
    return named_or_first(configurations(files, _MARKS), named)


def recognises(files: Mapping[str, str]) -> bool:
    """Whether one of its configurations is among the files."""
    return _yaml(files, None) is not None


def _started(call: training_calls.TrainingCall) -> training_calls.World:
    """The processes of the launcher, or of the job that lingua.stool submits by its own words."""
    if call.launch.program.text != _JOBS:
        if training_calls.alone(call.launch):
            return training_calls.World(1, 1, 1)
        return training_calls.world(call.launch)
    said = words_of(call)
    nodes, each = (_positive(said.get(name), usual) for name, usual in _OF_JOBS.items())
    return training_calls.World(nodes, each, nodes * each)


def _positive(setting: Setting | None, usual: int) -> int:
    text = str(setting.value) if setting is not None else ""
    return int(text) if re.fullmatch(r"[1-9]\d{0,5}", text) else usual


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """The specs and the plan; raises Unreadable."""
    call, given = _call(files), given_with(files)
    name = _yaml(files, call)
    if name is None:
        raise Unreadable(f"no configuration of {TITLE} is among the files")
    settings, notes = merged(files, name, call)
    values = LaunchValues(settings, name, notes)
    reached = None if call is None else _started(call)
    world = _world(values, reached.accelerators if reached else None, accelerators)
    try:
        model = given.model or _model(values)
        training, plan = _plan(values, world)
    except ValidationError as error:
        raise malformed(error, name) from None
    said = tuple(settings.values())
    unknown = tuple(_unknown(values))
    say_fork_keys(values, unknown, TITLE)
    return Reading(
        framework="pytorch",
        model=model,
        training=training,
        plan=plan,
        nodes=reached.nodes if reached else None,
        accelerators_per_node=reached.per_node if reached else None,
        settings=said,
        unknown=unknown,
        unread=tuple(one for one in said if one.name not in values.asked and one not in unknown),
        assumed=tuple(dict.fromkeys(values.assumed)),
        refusals=tuple(values.refusals),
        written=False,
    )


def _model(values: Values) -> ModelSpec:
    """A decoder by its widths; the keys of another model are refused."""
    if not values.has(_MODEL + "dim", _MODEL + "n_layers"):
        raise Unreadable(
            "the model has neither dim nor n_layers of Lingua's transformer: give it (--model)",
            values.file,
        )
    hidden = values.integer(_MODEL + "dim", default=512)
    size = values.integer(_MODEL + "head_dim", default=0, least=0)
    heads = values.integer(_MODEL + "n_heads", default=hidden // size if size else 0, least=0)
    if not heads:
        heads = 16 if hidden % 16 == 0 else 1
        values.assume(f"the model has neither n_heads nor head_dim: {heads} heads assumed")
    window = _MODEL + "sliding_window"
    model = ModelSpec(
        num_layers=values.integer(_MODEL + "n_layers", default=8),
        hidden_size=hidden,
        num_attention_heads=heads,
        head_dim=size or max(hidden // heads, 1),
        num_query_groups=values.integer(_MODEL + "n_kv_heads", default=heads),
        ffn_hidden_size=_width(values, hidden),
        gated_mlp=True,
        vocab_size=_vocabulary(values, hidden),
        tied_embeddings=values.boolean(_MODEL + "weight_tying", _MODEL + "tie_embeddings"),
        qkv_bias=values.boolean(_MODEL + "attention_bias"),  # of forks
        norm="rmsnorm",
        position="rope",
        sliding_window=values.integer(window) if values.has(window) else None,
    )
    _refuse_others(values)
    return model


def _refuse_others(values: Values) -> None:
    """Raise Unreadable for keys of the model that a fork may build otherwise with."""
    others = [
        one
        for one in values.settings.values()
        if one.name.startswith(_MODEL)
        and one.name not in values.asked
        and one.name.removeprefix(_MODEL) not in _SAME
        and str(one.value).lower() not in ("null", "none", "false", "0")
    ]
    if others:
        names = ", ".join(f"{one.name} {one.value}"[:60] for one in others)
        raise others[0].unreadable(
            f"{names}: not understood, and may change what is trained; give the model (--model)"
        )


def _unknown(values: Values) -> Iterator[Setting]:
    """Keys of a fork that say how the model is distributed."""
    for one in values.settings.values():
        name = one.name.removeprefix("distributed.")
        if name != one.name and one.name not in values.asked and name not in _REST:
            yield one


def _width(values: Values, hidden: int) -> int:
    """The MLP's width: two thirds of four times the model's, times a factor, in steps."""
    fixed = (_MODEL + "hidden_dim", _MODEL + "ffn_dim")  # of forks
    step = values.integer(_MODEL + "multiple_of", default=256)
    factor = values.number(_MODEL + "ffn_dim_multiplier", default=1.0)
    if values.has(*fixed):
        return values.integer(*fixed)
    return step * -(-int(factor * int(2 * 4 * hidden / 3)) // step)


def _vocabulary(values: Values, hidden: int) -> int:
    """The tokens as stated, or of the tokenizer."""
    stated = values.text(_MODEL + "vocab_size")
    kind = (values.text("data.tokenizer.name") or "bytes").lower()
    path = Values.text(values, "data.tokenizer.path") or ""  # may be open: only its parts count
    if stated not in (None, "-1"):
        return values.integer(_MODEL + "vocab_size")
    if kind == "bytes":
        return _BYTES
    of_openai = next((size for name, size in _PUBLIC.items() if name in path), None)
    if found := of_openai or tokenizers.tokenizer_tokens(path):
        values.assume(f"the tokenizer of {path} has {found} tokens")
        return found
    tokens = _TIKTOKEN if kind == "tiktoken" else ANY_VOCABULARY
    values.assume(
        f"the vocabulary of the tokenizer ({kind}) is not in its path: {tokens} tokens assumed; "
        f"{tokenizers.weights_of_more(hidden)}; --set model.vocab_size=N"
    )
    return tokens


def _world(values: Values, started: int | None, asked: int | None) -> int:
    """All accelerators: those that are started, those of the cluster, or the product of degrees."""
    degrees = [values.integer(name, default=1, most=DEGREE) for name in (_SHARDED, _COPIES, _TP)]
    stated = degrees[0] * degrees[1] * degrees[2]
    size = started or asked or (stated if stated > 1 else None)
    if size is None:
        raise Unreadable("a configuration alone has no number of processes: give a cluster")
    if size % (degrees[0] * degrees[2]):
        text = f"{size} accelerators are not a multiple of dp_shard {degrees[0]} x tp {degrees[2]}"
        values.refuse(text, _SHARDED, "world_size")
    return size


def _plan(values: Values, world: int) -> tuple[TrainingSpec, ParallelPlan]:
    tp = values.integer(_TP, default=1, most=DEGREE)
    shards = values.integer(_SHARDED, default=1, most=DEGREE)
    dp = max(world // tp, 1)
    whole = values.choice(
        "distributed.fsdp_type", choices=("no_shard", "full_shard"), default="no_shard"
    )
    sharded = whole == "full_shard"  # over all ranks, or over dp_shard of them
    micro = values.integer("data.batch_size", default=2)
    steps = values.integer("grad_acc_steps", default=1)
    half = values.choice("distributed.model_dtype", choices=_HALF, default="bf16")
    if half == "fp32":
        values.assume("model_dtype fp32: plans have no fp32 training, bf16 assumed")
    training = TrainingSpec(
        seq_length=values.integer("data.seq_len", default=2048),
        global_batch_size=micro * steps * dp,
        precision="fp8" if values.has("distributed.float8_recipe") else _HALF[half],
    )
    compiled = values.boolean("distributed.compile")
    # Its policy keeps products and attention, and computes the rest of a layer again.
    recompute: dict[str, Any] = (
        {"recompute": "selective", "recompute_modules": ("op",)}
        if values.boolean("distributed.selective_activation_checkpointing")
        else {}
    )
    plan = ParallelPlan(
        tp=tp,
        sequence_parallel=tp > 1,
        dp=dp,
        dp_shard=shards if sharded and 1 < shards < dp else 0,
        zero_stage=3 if sharded else 0,
        reshard_after_forward=False,  # build_fsdp_grouping_plan
        micro_batch_size=micro,
        attention_kernel="flash2",
        cross_entropy="fused" if compiled else "unfused",
        compile=compiled,
        runtime="torch",
        **recompute,
    )
    return training, plan
