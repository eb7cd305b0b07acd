"""Reads Megatron-DeepSpeed launches: the script, DeepSpeed's JSON and the hostfile."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from cost_models.spec import ModelSpec
from planner.frameworks import architecture, training_calls
from planner.frameworks.arguments import Arguments, of_call
from planner.frameworks.bash import ProgramCall
from planner.frameworks.deepspeed.forks import OPTIONS, POSITIONS
from planner.frameworks.deepspeed.json_config import JsonConfig
from planner.frameworks.deepspeed.options import KV_HEADS, LAYERS, WIDTHS
from planner.frameworks.deepspeed.read_plan import plan_and_training
from planner.frameworks.given_values import invalid
from planner.frameworks.launch_files import given_with
from planner.frameworks.megatron_option_readers import (
    LENGTHS,
    build_llama,
    has_null_tokenizer,
    mlp_width,
    position_rows,
    query_groups,
    seq_length,
    tokens,
    vocabulary,
)
from planner.frameworks.megatron_option_rows import read as read_options
from planner.frameworks.read_results import Reading, Unreadable
from planner.frameworks.training_calls import TrainingCall, World

PACKAGE = "planner.frameworks.deepspeed"
TITLE = "Megatron-DeepSpeed"
REQUIRED = ("--num-layers", "--hidden-size", "--num-attention-heads", LENGTHS[0])
ANY_VOCABULARY = 50_257
GONE = {
    "--batch-size": "--micro-batch-size",
    "--model-parallel-size": "--tensor-model-parallel-size",
    "--warmup": "--lr-warmup-fraction",
}
JSON_ALONE = (
    "DeepSpeed's JSON alone holds neither the model (layers, widths, heads, vocabulary, sequence) "
    "nor tensor and pipeline parallelism: give the launch script beside it"
)


def trains(launch: ProgramCall) -> bool:
    """Whether a call trains with DeepSpeed's engine or launcher."""
    words = {word.text.partition("=")[0] for word in launch.arguments}
    deepspeed = launch.launcher == "deepspeed" or words & {"--deepspeed", "--deepspeed_config"}
    return bool(deepspeed) and training_calls.training(launch, "--num-layers")


def _is_json_alone(files: Mapping[str, str]) -> bool:
    """Whether the files are DeepSpeed's JSON alone, which launches nothing."""
    keys = ('"zero_optimization"', '"train_micro_batch_size_per_gpu"')
    return bool(files) and all(
        name.endswith(".json")
        and any(key in text for key in keys)
        and not re.search(r'"(num[-_]layers|per_device_train_batch_size)"', text)
        for name, text in files.items()
    )


def recognises(files: Mapping[str, str]) -> bool:
    """Whether some script trains with DeepSpeed, or the files are its JSON alone."""
    return _is_json_alone(files) or training_calls.is_called(files, trains)


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """The specs and the plan of a launch.

    Raises Unreadable if it does not launch Megatron-DeepSpeed or lacks a field of the model.
    """
    if _is_json_alone(files):
        name = next(iter(files))
        raise Unreadable(JSON_ALONE, name, 1)
    found = training_calls.training_call(files, trains, TITLE)
    launch = found.launch
    training_calls.decoder_only(launch)
    given = given_with(files)
    args = of_call(TITLE, PACKAGE, launch, given, OPTIONS)
    for note in found.notes:
        args.assume(note)
    for option, instead in GONE.items():
        if args.has(option):
            args.refuse(f"{option} is no longer valid, use {instead}", option)
    build_llama(args)
    config = _json_config(args, found)
    reached = _world(found, launch)
    size = training_calls.accelerators(found, reached, accelerators, args.assumed)
    try:
        model = given.model or ModelSpec(**_model(args, launch))
        args.lenient = True
        plan, training = plan_and_training(args, config, size, launch)
    except ValidationError as error:
        raise invalid(error, launch.program.file, launch.program.line) from None
    if given.model is None:
        architecture.refuse(args.foreign(), args.unread())
    args.upstream()
    before = training_calls.options(launch.before)
    reading = args.reading("deepspeed", model, training, plan, reached, before)
    settings = (*reading.settings, *config.settings.values())
    unread = (*reading.unread, *config.left())
    return reading.model_copy(update={"settings": settings, "unread": unread})


def _json_config(args: Arguments, call: TrainingCall) -> JsonConfig:
    """The JSON that the launch names; an empty one if it is not available."""
    args.has("--deepspeed", "--deepspeed_config")
    named = args.given.get("--deepspeed_config")
    value = named.value if named is not None and isinstance(named.value, str) else ""
    name = value.rsplit("/", 1)[-1]
    if not args.has("--deepspeed"):
        args.assume("without --deepspeed its engine does not run: costed as ZeRO 0")
        return JsonConfig("{}", call.script, 1, args)
    if name not in call.files:
        others = [other for other in call.files if other.endswith(".json")]
        if len(others) == 1:
            args.assume(f"{others[0]} is taken as the JSON {value or 'of DeepSpeed'}")
            (name,) = others
        else:
            args.assume(
                f"the JSON {value or 'of DeepSpeed'} is not among the files: ZeRO, precision and "
                "batch are read from the arguments"
            )
            return JsonConfig("{}", call.script, 1, args)
    file, first = call.places.get(name, (name, 1))
    try:
        return JsonConfig(call.files[name], file, first, args)
    except Unreadable:
        if "$" not in call.files[name]:
            raise
        args.assume(
            f"the JSON {name} holds variables that the files do not say: ZeRO, precision and batch "
            "are read from the arguments"
        )
        return JsonConfig("{}", call.script, 1, args)


def _world(call: TrainingCall, launch: ProgramCall) -> World:
    """The nodes and accelerators, from the launcher's options or the hostfile."""
    reached = training_calls.world(launch)
    nodes, per_node = reached.nodes, reached.per_node
    if launch.launcher == "deepspeed" and not (nodes and per_node):
        named = [
            str(setting.value).rsplit("/", 1)[-1]
            for setting in training_calls.options(launch.before)
            if setting.name in ("--hostfile", "-H")
        ]
        text = call.files.get(named[-1] if named else "hostfile", "")
        slots = [int(n) for n in re.findall(r"^[^\s#]+[ \t]+slots=(\d{1,5})", text, re.MULTILINE)]
        if slots and len(set(slots)) == 1 and slots[0] > 0:
            nodes, per_node = nodes or len(slots), per_node or slots[0]
    return World(nodes, per_node, nodes * per_node if nodes and per_node else None)


def _model(args: Arguments, launch: ProgramCall) -> dict[str, Any]:
    for name in REQUIRED:
        if not args.has(name):
            raise launch.program.unreadable(f"{name} is missing")
    own = read_options(
        (*WIDTHS, *LAYERS), args, "model",
        ffn_hidden_size=lambda read: mlp_width(args, read["hidden_size"]),
    )  # fmt: skip
    heads, seq = own["num_attention_heads"], seq_length(args)
    position = POSITIONS[args.text("--position-embedding-type", "absolute")]
    args.has("--embed-layernorm", "--pp-partition-method", "--sync-tp-duplicated-parameters")
    if args.has("--use-rotary-position-embeddings"):
        position = "rope"
    elif args.has("--no-position-embedding"):
        position = "none"
    rows = position_rows(args, seq)
    numerics = read_options(LAYERS, args, "numerics")
    return own | {
        "num_query_groups": query_groups(args, heads, own["num_query_groups"], KV_HEADS),
        "gated_mlp": own["gated_mlp"] or args.has("--glu-activation"),
        "vocab_size": _vocabulary(args, own["hidden_size"]),
        "qkv_bias": own["mlp_bias"],
        "attention_output_bias": own["mlp_bias"],
        "position": position,
        "max_position_embeddings": rows or seq if position == "learned" or rows > seq else None,
        "moe": _experts(args, own["ffn_hidden_size"], own["num_layers"]),
        "numerics": {name: value for name, value in numerics.items() if value is not None},
    }


def _vocabulary(args: Arguments, hidden: int) -> int:
    if (given := vocabulary(args)) is not None:
        return given + has_null_tokenizer(args)
    if args.has("--pad-vocab-size-to"):
        args.assume("the vocabulary size is taken from --pad-vocab-size-to")
        return args.positive("--pad-vocab-size-to")
    return tokens(args, hidden, ANY_VOCABULARY)


def _experts(args: Arguments, ffn: int, layers: int) -> dict[str, Any] | None:
    """The mixture of experts, which is in the last of every n layers."""
    counts = [int(word) for word in args.words("--num-experts")]
    if max(counts, default=1) < 2:
        return None
    if len(set(counts)) > 1:
        one = args.given["--num-experts"]
        raise one.unreadable(
            f"--num-experts {' '.join(map(str, counts[:40]))}: layers with different numbers of "
            "experts cannot be read; give the model by its name (--model)"
        )
    step = min(args.positive("--expert-interval", 2), layers)
    count = max(counts[-1], 2)
    return {
        "num_experts": count,
        "top_k": min(args.positive("--topk"), count),
        "expert_ffn_hidden_size": ffn,
        "layer_frequency": step,
        "layer_offset": step - 1,
    }
