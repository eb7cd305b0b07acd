"""Reads the training part of an AReaL run on Megatron-Core, as Megatron-LM's options.

Keys and defaults of areal/api/cli_args.py and alloc_mode.py; areal/engine/megatron_engine.py uses
them (4aef98d).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from planner.frameworks import post_training
from planner.frameworks.bash import Argument, ProgramCall
from planner.frameworks.given_values import Values
from planner.frameworks.launch_files import GivenValues
from planner.frameworks.megatron.printed_arguments import TranslatedLaunch, words_of
from planner.frameworks.read_results import Setting, Unreadable
from planner.frameworks.training_calls import World
from planner.frameworks.yaml_files import YamlFile

TITLE, YAML = "AReaL", (".yaml", ".yml")
ACTOR, CORE = "actor.", "actor.megatron."
APART = (
    "only the policy's training is costed, without generation, reference, critic and reward, with "
    "every sequence as long as the longest"
)
_MARKS = (
    re.compile(r"^actor:", re.M),
    re.compile(r"^rollout:", re.M),
    re.compile(r"^gconfig:", re.M),
)
_REFERENCE, MOST_REFERENCES = re.compile(r"\$\{([\w.]+)\}"), 8
_DEGREES = re.compile(r"([dptce])([1-9]\d{0,5})")
_FOLDED = re.compile(r"\(attn:(\w+)\|ffn:(\w+)\)")
# Keys of the actor that do not affect a step's time or memory, or follow from others.
_IDLE = re.compile(
    r"_name$|dropout|scheduling|temperature|optimizer\.(?!type)|eps_clip|reward|adv_norm|kl_|logprob|"
    r"decoupled|rejection|weight_update|max_new_tokens|init_from_scratch|importance|moe_token|discount"
)
# Switches of AReaL's engine and of its data parallelism, with AReaL's defaults.
_SWITCHES = {
    "overlap_grad_reduce": ("ddp.overlap_grad_reduce", False),
    "overlap_param_gather": ("ddp.overlap_param_gather", False),
    "use_distributed_optimizer": ("ddp.use_distributed_optimizer", True),
    "accumulate_allreduce_grads_in_fp32": ("ddp.grad_reduce_in_fp32", True),
    "moe_shared_expert_overlap": ("moe_shared_expert_overlap", False),
}


def file_of(files: Mapping[str, str]) -> str | None:
    """The name of the YAML of an AReaL run; None if there is none."""
    found = (
        name for name, text in files.items()
        if name.endswith(YAML) and all(mark.search(text) for mark in _MARKS)
    )  # fmt: skip
    return next(found, None)


def translated(file: YamlFile, given: GivenValues, known: Mapping[str, Any]) -> TranslatedLaunch:
    """Its settings as Megatron-LM's options.  Raises Unreadable."""
    settings = _resolved({one.name: one for one in (*file.settings(), *given.settings())})
    values = Values(settings, file.name, [*file.notes(), APART])
    if values.boolean(ACTOR + "use_lora"):
        raise values.fault([ACTOR + "use_lora"], "trains adapters, which is not read")
    dense, experts = _backend(values)
    named = values.text(ACTOR + "path") or ""
    place = (file.name, file.lines.get("actor.path", 0))
    model = given.model or post_training.preset(named, "no actor.path", place, values.assumed)
    replica = dense["t"] * dense["p"] * dense["c"]
    said = _sizes(values, dense["d"]) | {
        "tensor_model_parallel_size": dense["t"],
        "pipeline_model_parallel_size": dense["p"],
        "context_parallel_size": dense["c"],
        "sequence_parallel": dense["t"] > 1,
        "optimizer": values.choice(
            ACTOR + "optimizer.type", choices=("adam", "sgd"), default="adam"
        ),
        "attention_backend": "flash",
        _precision(values): True,
        **_recompute(values),
        **_parts(values, model.moe is not None, experts),
    }
    words = {name: Argument(_text(value), file.name, 1) for name, value in said.items()}
    program = Argument("pretrain_gpt.py", file.name, 1)
    launch = ProgramCall(program=program, arguments=tuple(words_of(words, known)))
    each = values.integer("cluster.n_gpus_per_node", default=8)
    ranks = dense["d"] * replica
    nodes = ranks // each if ranks % each == 0 else None
    world = World(nodes, each if nodes else None, ranks)
    left = tuple(
        one for name, one in settings.items()
        if name.startswith(ACTOR) and name not in values.asked and not _IDLE.search(name)
    )  # fmt: skip
    return TranslatedLaunch(launch, model, world, tuple(values.assumed), left)


def _resolved(settings: dict[str, Setting]) -> dict[str, Setting]:
    """The settings with the value of another one in place of `${its.name}`."""
    found = dict(settings)
    for name, one in settings.items():
        for _ in range(MOST_REFERENCES):
            match = _REFERENCE.fullmatch(str(one.value))
            if match is None or match[1] not in settings:
                break
            one = one.model_copy(update={"value": settings[match[1]].value})
        found[name] = one
    return found


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _backend(values: Values) -> tuple[dict[str, int], dict[str, int]]:
    """The degrees of the dense parts and of the experts.  Raises Unreadable."""
    name = ACTOR + "backend"
    text = values.text(name)
    if text is None:
        raise Unreadable(f"{name} is missing: megatron:d..p..t..c..e..", values.file)
    engine, _, degrees = text.partition(":")
    if engine != "megatron":
        raise values.fault(
            [name], f"is {text[:60]!r}: of AReaL's engines megatron alone is read; give the model "
            "to planner plan, as accelerate for fsdp"
        )  # fmt: skip
    folded = _FOLDED.fullmatch(degrees)
    parts = folded.groups() if folded else (degrees, degrees)
    if not all(re.fullmatch(rf"({_DEGREES.pattern})+", part) for part in parts):
        raise values.fault([name], f"must be like megatron:d4p1t2c1, got {text[:60]!r}")
    dense, experts = (
        {"d": 1, "p": 1, "t": 1, "c": 1, "e": 1}
        | {one[0]: int(one[1]) for one in _DEGREES.findall(part)}
        for part in parts
    )
    return dense, experts if folded else experts | {"t": 1}


def _sizes(values: Values, replicas: int) -> dict[str, object]:
    """The sequence length and the batch sizes of an optimizer step."""
    response = values.integer("gconfig.max_new_tokens", default=16384)
    most = values.integer("gconfig.max_tokens", default=32768)
    prompt = values.integer("train_dataset.max_length", default=max(most - response, 1))
    length = min(most, prompt + response)
    prompts = values.integer("train_dataset.batch_size", default=1)
    made = prompts * values.integer("gconfig.n_samples", default=1)
    updates = values.integer(ACTOR + "ppo_n_minibatches", default=4)
    batch = max(made // updates, 1)
    share = max(batch // replicas, 1)
    if values.has(ACTOR + "mb_spec.max_tokens_per_mb"):
        tokens = values.integer(ACTOR + "mb_spec.max_tokens_per_mb")
        micro = post_training.sequences(tokens, length, share)
        values.assume(f"passes of {tokens} tokens are costed as {micro} of the longest sequences")
    else:
        micro = max(share // values.integer(ACTOR + "mb_spec.n_mbs", default=1), 1)
    return {"seq_length": length, "global_batch_size": batch, "micro_batch_size": micro}


def _precision(values: Values) -> str:
    dtypes = {"bfloat16": "bf16", "float16": "fp16"}
    return dtypes[values.choice(ACTOR + "dtype", choices=dtypes, default="bfloat16")]


def _recompute(values: Values) -> dict[str, object]:
    """What is recomputed, with AReaL's defaults."""
    if not values.boolean(ACTOR + "gradient_checkpointing"):
        return {}
    kind = values.choice(
        CORE + "recompute_granularity", choices=("full", "selective"), default="full"
    )
    if kind == "selective":
        return {"recompute_granularity": kind}
    return {
        "recompute_granularity": kind,
        "recompute_method": values.text(CORE + "recompute_method") or "uniform",
        "recompute_num_layers": values.integer(CORE + "recompute_num_layers", default=1),
    }


def _parts(values: Values, mixture: bool, experts: Mapping[str, int]) -> dict[str, object]:
    """Options of the engine; those of experts for mixtures alone."""
    said: dict[str, object] = {
        attribute: values.boolean(CORE + key, default=default)
        for attribute, (key, default) in _SWITCHES.items()
        if mixture or not attribute.startswith("moe_")
    }
    if mixture:
        said |= {
            "expert_model_parallel_size": experts["e"],
            "expert_tensor_parallel_size": experts["t"],
            "moe_token_dispatcher_type": values.text(CORE + "moe_token_dispatcher_type")
            or "alltoall",
        }
    if (chunks := values.integer(CORE + "virtual_pipeline_parallel_size", default=1)) > 1:
        said["num_virtual_stages_per_pipeline_rank"] = chunks
    return said
