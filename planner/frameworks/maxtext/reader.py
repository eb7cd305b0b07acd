"""Reads MaxText: a config with the model's keys or its name, and what a call overrides."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from cost_models.catalog.names import UnknownName
from cost_models.package_files import table
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.frameworks.given_values import Values, malformed
from planner.frameworks.launch_files import given_with
from planner.frameworks.maxtext.calls import BASE, YAML, calls, settings
from planner.frameworks.maxtext.rules import BLOCKS, KEPT, policies
from planner.frameworks.maxtext.settings import DTYPES, LLAMA3, NUMERICS, OPTIMIZERS, PLAIN
from planner.frameworks.read_results import Reading, Setting, Unreadable
from planner.huggingface.named_models import find

KEYS = frozenset(table("planner.frameworks.maxtext", "keys.json")["keys"])
PROGRAM = "maxtext.trainers.pre_train.train"
# MaxText's names of models that are not those of their families.
NAMES = {
    "deepseek2-16b": "deepseek-v2-lite", "deepseek2-236b": "deepseek-v2",
    "deepseek3-671b": "deepseek-v3", "kimi-k2-1t": "kimi-k2", "llama4-17b-16e": "llama-4-scout",
    "llama4-17b-128e": "llama-4-maverick",
}  # fmt: skip
# Policies that keep as much as another: the last product of an MLP is of no use to its backward.
_ALIKE = {
    "minimal_flash": "minimal_with_context", "minimal_with_quantization": "minimal",
    "save_dot_except_mlpwi": "save_dot_except_mlp",
}  # fmt: skip
AXES = ("data", "fsdp", "fsdp_transpose", "context", "tensor", "tensor_sequence", "expert")
UNREAD_AXES = (
    "pipeline", "sequence", "tensor_transpose", "autoregressive", "context_autoregressive",
)  # fmt: skip
# Defaults of base.yml.
DEFAULTS = {
    "base_num_decoder_layers": 16, "base_emb_dim": 2048, "base_mlp_dim": 7168,
    "base_num_query_heads": 16, "base_num_kv_heads": 16, "head_dim": 128, "vocab_size": 32_000,
}  # fmt: skip
USUAL_BATCH = 12.0
# Names of older releases.
OLDER = dict.fromkeys(("base_num_query_heads", "base_num_kv_heads"), ("base_num_heads",))


def recognises(files: Mapping[str, str]) -> bool:
    """Whether some YAML has MaxText's mesh axes or number of layers, or a script calls MaxText."""
    return any(
        re.search(r"^(ici|dcn)_\w+_parallelism\s*:|^base_num_decoder_layers\s*:", text, re.M)
        for name, text in files.items()
        if name.endswith(YAML)
    ) or bool(calls(files))


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """The specs and the plan of a config, with base.yml's defaults.

    Raises Unreadable if there is none, if it names a model that is not known here, or if the
    cluster is needed for the size of an axis and not given.
    """
    given, assumed = given_with(files), list[str]()
    name, stated = settings(files, assumed)
    keys = (*stated, *given.settings())
    values = Values({one.name: one for one in keys}, name, assumed)
    if "inference" in (values.text("base_config") or ""):
        raise values.fault(("base_config",), "serves a model: it trains nothing")
    _refuse_other_trainings(values)
    world = _world(files)
    total = world[0] * world[1] if world[0] and world[1] else accelerators
    sizes = _mesh(values, total)
    try:
        model = given.model or _named(values) or _model(values)
        training, plan = _plan(values, model, sizes)
    except ValidationError as error:
        raise malformed(error, name) from None
    for key in ("base_config", "run_name", "hardware", "dataset_type", "packing", "log_period"):
        values.text(key)
    unknown = tuple(one for one in keys if one.name.split(".")[0] not in KEYS)
    return Reading(
        framework="maxtext",
        model=model,
        training=training,
        plan=plan,
        nodes=world[0],
        accelerators_per_node=world[1],
        settings=keys,
        unknown=unknown,
        unread=_left(keys, unknown, values),
        assumed=tuple(assumed),
    )


_OWN = re.compile(r"(ici|dcn|base)_\w+|per_device_batch_size|max_target_length|remat_policy")


def _named(values: Values) -> ModelSpec | None:
    """The model that a config names; None where its keys describe it."""
    name = values.text("model_name") or "default"
    if name == "default":
        return None
    if not any(_OWN.match(key) for key in values.settings):
        raise Unreadable("a key of MaxText is missing", values.file)
    for key in (*DEFAULTS, "decoder_block", "mlp_activations", "num_experts", "use_qk_norm"):
        values.text(key)
    if values.integer("global_parameter_scale", default=1) != 1:
        text = f"scales {name}, which is then another model: give it (--model)"
        raise values.fault(("global_parameter_scale",), text)
    try:
        found = find(NAMES.get(name, re.sub(r"^(llama|gemma)(?=\d)", r"\1-", name)))
    except UnknownName as error:
        text = f"names a file of MaxText ({error}): write its keys out, or give it (--model)"
        raise values.fault(("model_name",), text) from None
    return _overridden(values, found)


def _overridden(values: Values, model: ModelSpec) -> ModelSpec:
    """The named model with what a call says otherwise; a config's own keys give way to its file."""
    own = {key: field for field, (key, _) in PLAIN.items() if key in DEFAULTS}
    for key, field in own.items():
        one = values.settings.get(key)
        if one is None or one.file.endswith(BASE) or one.value == str(getattr(model, field)):
            continue
        if one.file.endswith(YAML):
            values.assume(f"{key} {one.value} gives way to the model that model_name names")
        elif key == "base_num_decoder_layers":
            return ModelSpec(**{**model.model_dump(), "num_layers": values.integer(key)})
        else:
            raise one.unreadable(f"{key} {one.value} changes {model.name}: give it (--model)")
    return model


def _left(
    settings: tuple[Setting, ...], unknown: tuple[Setting, ...], values: Values
) -> tuple[Setting, ...]:
    return tuple(one for one in settings if one not in unknown and one.name not in values.asked)


def _world(files: Mapping[str, str]) -> tuple[int | None, int | None]:
    """(hosts, accelerators per host), from the launch script beside the config."""
    text = files.get("launch.sh", "")
    found = re.search(r"^# (\d{1,6}) hosts of (\d{1,4}) accelerators", text, re.M)
    return (int(found[1]), int(found[2])) if found else (None, None)


def _refuse_other_trainings(values: Values) -> None:
    """Raises Unreadable for a config of distillation or of reinforcement learning."""
    for mark, does in (
        ("teacher_overrides", "distils from another model, which no plan has"),
        ("loss_algo", "is of reinforcement learning, which also generates samples: planner rl"),
        ("grpo_beta", "is of reinforcement learning, which also generates samples: planner rl"),
    ):
        if any(key.partition(".")[0] == mark for key in values.settings):
            raise Unreadable(f"{mark}: it {does}", values.file)


def _refuse_axes(values: Values) -> None:
    """Raises Unreadable if an axis that is not read has more than one rank."""
    for axis in UNREAD_AXES:
        for key in (f"{net}_{axis}_parallelism" for net in ("ici", "dcn")):
            if (values.text(key) or "1") != "1":
                raise values.fault((key,), f"is {values.text(key)}: this axis is not read")


def _mesh(values: Values, total: int | None) -> dict[str, int]:
    """Sizes of the axes over all slices; an axis of -1 takes the remaining accelerators."""
    _refuse_axes(values)
    sizes = {axis: _size(values, axis) for axis in AXES}
    if -1 not in sizes.values():  # an axis over slices takes the slices that are left
        sizes |= {axis: -1 for axis in AXES if values.text(f"dcn_{axis}_parallelism") == "-1"}
    open_axes = [axis for axis, size in sizes.items() if size == -1]
    if not open_axes:
        return sizes
    if total is None:
        name = f"ici_{open_axes[0]}_parallelism"
        raise values.fault((name,), "is -1, so it needs the number of devices: give a cluster")
    rest = 1
    for size in sizes.values():
        rest *= max(size, 1)
    within = {axis: _within_slice(values, axis) for axis in open_axes}
    return {
        axis: max(total // rest // within[axis], 1) * within[axis] if size == -1 else size
        for axis, size in sizes.items()
    }


def _within_slice(values: Values, axis: str) -> int:
    """The ranks that an axis has in every slice, however many slices there are; 1 if it is open."""
    return max(values.integer(f"ici_{axis}_parallelism", default=1, least=-1), 1)


def _size(values: Values, axis: str) -> int:
    """The ranks of an axis over all slices; -1 where it takes the rest of a slice."""
    inside, between = (f"{net}_{axis}_parallelism" for net in ("ici", "dcn"))
    if (values.text(inside) or ("-1" if axis == "fsdp" else "1")) == "-1":
        return -1
    outer = 1 if values.text(between) == "-1" else values.integer(between, default=1)
    return values.integer(inside, default=1) * outer


def _scales(values: Values) -> dict[str, int]:
    """How many times its base each size is, by global_parameter_scale (configs/types.py)."""
    key = "global_parameter_scale"
    if values.has("scale"):  # of 2023, which multiplied all sizes
        times = values.integer("scale")
        sizes = ("hidden_size", "num_attention_heads", "num_query_groups", "ffn_hidden_size")
        return dict.fromkeys((*sizes, "num_layers"), times)
    scale = values.integer(key, default=1)
    doublings = scale.bit_length() - 1
    if scale != 1 << doublings:
        raise values.fault((key,), f"is {scale}, which is no power of two: MaxText refuses it")
    layers, left = divmod(doublings, 3)
    heads = 1 << (layers + (left > 0))
    return {
        "num_layers": 1 << layers,
        "hidden_size": 1 << (layers + (left > 1)),
        "num_attention_heads": heads,
        "num_query_groups": heads,
        "ffn_hidden_size": heads,
    }


def _model(values: Values) -> ModelSpec:
    kinds = {name: kind for kind, name in BLOCKS.items()}
    block = values.choice("decoder_block", choices=kinds, default="llama2")
    experts = values.integer("num_experts", default=1)
    fields: dict[str, Any] = {
        field: values.integer(key, *OLDER.get(key, ()), default=DEFAULTS[key])
        for field, (key, _) in PLAIN.items()
        if key in DEFAULTS
    }
    for field, times in _scales(values).items():
        fields[field] *= times
    # The base.yml of releases with `scale` had one plain activation.
    usual = "relu" if values.has("scale") else "silu linear"
    activations = re.findall(r"\w+", values.text("mlp_activations") or usual)
    values.boolean("enable_dropout")
    values.boolean("sparse_matmul", default=True)
    if experts > 1:
        fields["moe"] = {
            "num_experts": experts,
            "top_k": values.integer("num_experts_per_tok", default=1),
            "expert_ffn_hidden_size": values.integer(
                "base_moe_mlp_dim", default=fields["ffn_hidden_size"]
            ),
        }
    numerics: dict[str, Any] = {
        field: values.number(key) for field, key in NUMERICS.items() if values.has(key)
    }
    if (values.text("rope_type") or "").startswith("llama3.1"):
        numerics["rope_scaling"] = LLAMA3
    return ModelSpec(
        **fields,
        norm="rmsnorm",
        gated_mlp=len(activations) > 1,
        qk_norm="head" if values.boolean("use_qk_norm") else kinds[block][1],
        qkv_bias=values.boolean("attention_bias"),
        tied_embeddings=values.boolean("logits_via_embedding"),
        numerics=numerics,
    )


def _plan(
    values: Values, model: ModelSpec, sizes: dict[str, int]
) -> tuple[TrainingSpec, ParallelPlan]:
    tp, cp, ep = sizes["tensor"] * sizes["tensor_sequence"], sizes["context"], sizes["expert"]
    # Both axes of FSDP split the batch, and the weights: the second along another dimension.
    fsdp = sizes["fsdp"] * sizes["fsdp_transpose"] * ep
    dp = sizes["data"] * fsdp
    if not values.has("per_device_batch_size"):
        values.assume(f"per_device_batch_size: not set, {USUAL_BATCH:g} as in base.yml")
    each = values.number("per_device_batch_size", default=USUAL_BATCH)
    micro = max(round(each * tp * cp), 1)
    steps = values.integer("gradient_accumulation_steps", default=1)
    sharded = fsdp * cp > 1
    by_data = values.boolean("shard_optimizer_over_data")
    for name in ("context_parallel_strategy", "dtype"):
        values.text(name)
    zero = 3 if sharded else 1 if by_data else 0
    if values.boolean("use_dpo"):
        values.assume("DPO is costed as training on the next token")
    training = TrainingSpec(
        seq_length=values.integer("max_target_length", default=2048),
        global_batch_size=micro * steps * dp,
        gradient_reduce_dtype="bf16",
        **_formats(values),
        optimizer="sgd" if values.text("opt_type") == OPTIMIZERS["sgd"] else "adam",
    )
    return training, ParallelPlan(
        tp=tp, cp=cp, dp=dp, ep=ep, etp=tp if model.moe else 1, cp_kind="all_gather",
        sequence_parallel=tp > 1, zero_stage=zero, micro_batch_size=micro,
        dp_shard=fsdp * cp if zero == 3 and fsdp < dp else 0,
        offload_optimizer=values.boolean("optimizer_memory_host_offload"),
        attention_kernel="unfused" if values.text("attention") == "dot_product" else "flash",
        cross_entropy="unfused", runtime="jax", compile=True, **_recompute(values, model),
    )  # fmt: skip


def _formats(values: Values) -> dict[str, Any]:
    """The types of a training: of its products, gradients, weights and states."""
    grads = values.choice("grad_dtype", choices=DTYPES.values(), default="float32")
    halves = values.text("weight_dtype") == "bfloat16"  # states are of the type of the weights
    kept = {"master_weights_dtype": "none", "optimizer_state_dtype": "bf16"} if halves else {}
    quantized = values.text("quantization") or ""
    if quantized and "fp8" not in quantized:
        values.assume(f"quantization {quantized} is costed as bf16")
    return {
        "gradient_dtype": {theirs: ours for ours, theirs in DTYPES.items()}[grads],
        "precision": "fp8" if "fp8" in quantized else "bf16",
        **kept,
    }


def _custom(values: Values) -> str:
    """The policy that keeps what the keys of remat_policy custom keep, as nearly as one does."""
    kept = {name for name in KEPT["minimal_with_context"] if values.text(name) == "device"}
    away = {name for name in KEPT["minimal_with_context"] if values.text(name) == "offload"}
    near = min(KEPT, key=lambda policy: len(set(KEPT[policy]) ^ (kept | away)))
    if set(KEPT[near]) != kept | away:
        values.assume(f"remat_policy custom is planned as {near}")
    return near


def _recompute(values: Values, model: ModelSpec) -> dict[str, Any]:
    stated = values.text("remat_policy") or "full"
    policy = _ALIKE.get(stated, stated)
    away = policy == "custom" and values.text("decoder_layer_input") == "offload"
    if policy == "custom":
        kept = [name for name in KEPT["minimal_with_context"] if values.text(name) == "device"]
        if away and kept:
            away = False
            values.assume(f"{', '.join(kept)} are kept on the device: nothing planned as offloaded")
        policy = _custom(values)
    for modules, name in policies(model).items():
        if name == policy:
            return {
                "recompute": "selective",
                "recompute_modules": modules,
                "offload_activations": away,
            }
    least = policy in ("save_qkv_proj", "save_out_proj")
    if least:
        values.assume(f"remat_policy {policy} is planned as full, which keeps a little less")
    if policy == "full" or least:
        layers = model.num_layers
        return {"recompute": "full", "recompute_num_layers": layers, "offload_activations": away}
    if policy != "none":
        values.assume(f"remat_policy {policy} is planned without recompute, which keeps more")
    return {}
