"""The registry module: a Python file with one function that returns a Trainer.Config."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap

from cost_models.package_files import filled, text
from cost_models.spec import ModelSpec
from planner.constraints import Context
from planner.frameworks.base import Flag, one_line
from planner.frameworks.bash_writer import comment
from planner.frameworks.torchtitan import numerics
from planner.frameworks.torchtitan.packages import Package, package_of

# The MLP and experts of a layer, by the kinds that the model has.
PARTS = {
    "dense": "        feed_forward=feed_forward(MODEL.hidden_dim),\n",
    "moe": "        moe=moe(),\n",
    "both": "        moe=moe() if index in MODEL.moe_layers else None,\n"
    "        feed_forward=None if index in MODEL.moe_layers else "
    "feed_forward(MODEL.hidden_dim),\n",
}
SHARED = (
    "        shared_experts=feed_forward(MODEL.shared_hidden_dim) "
    "if MODEL.shared_hidden_dim else None,\n"
)
# Longest line of the module.
LINE = 100


def _entry(flag: Flag, indent: int) -> str:
    """One keyword argument with its reason; a tuple becomes a list, one item per line."""
    pad, name = " " * indent, flag.name.rsplit(".", 1)[-1]
    if isinstance(flag.value, tuple):
        rows = "".join(f"{pad}    {row},\n" for row in flag.value)
        return f"{_above(flag.why, pad)}{pad}{name}=[\n{rows}{pad}],"
    return _beside(f"{pad}{name}={flag.value},", flag.why, pad)


def _above(why: str, pad: str) -> str:
    """A reason as comment lines."""
    return "".join(f"{pad}{comment(row)}\n" for row in wrap(one_line(why), LINE - 2 - len(pad)))


def _beside(code: str, why: str, pad: str) -> str:
    """Code with its reason as a comment, above it if the line would be too long."""
    line = f"{code}  {comment(why)}"
    return line if len(line) <= LINE else f"{_above(why, pad)}{code}"


def _entries(flags: Iterable[Flag], indent: int) -> str:
    return "\n".join(_entry(flag, indent) for flag in flags)


def _converters(flags: Sequence[Flag]) -> str:
    """The list of converters; empty in bf16."""
    if not flags:
        return "CONVERTERS = []  # computation in bf16"
    rows = []
    for flag in flags:
        name, why = flag.name.removeprefix("converters."), _above(flag.why, "    ")
        call = f"    {name}({flag.value}),"
        if len(call) > LINE:
            call = f"    {name}(\n        {flag.value}\n    ),"
        rows.append(why + call)
    return "\n".join(["CONVERTERS = [", *rows, "]"])


def _part(name: str) -> str:
    """A part of the module, from its file."""
    return text(__package__ or "", f"module_parts/{name}.py.txt")


def _imports(
    model: ModelSpec, package: Package, converters: Sequence[Flag], checkpoint: str
) -> str:
    """Imports of the names that the module uses."""
    experts, oss, own_heads = model.moe is not None, package.name == "gpt_oss", model.mla is None
    shared = model.moe is not None and bool(model.moe.shared_expert_ffn_hidden_size)
    classes = {package.model, package.block, package.attention} - {"GQAttention"}
    converted = (
        flag.name.removeprefix("converters.").removesuffix(".Config") for flag in converters
    )
    # Module of torchtitan, whether the names are used, the names.
    rows = (
        ("components.dataloader", True, "BaseDataLoader"),
        ("components.loss", not model.mtp_num_layers, "CrossEntropyLoss"),
        ("components.metrics", True, "MetricsProcessor"),
        ("components.optimizer", True, "OptimizersContainer ParamGroupConfig"),
        ("components.optimizer", experts, "register_moe_load_balancing_hook"),
        ("components.quantization", bool(converters), " ".join(sorted(converted))),
        ("components.tokenizer", True, "BaseTokenizer"),
        ("config", True, "CompileConfig ParallelismConfig TrainingConfig"),
        (
            "distributed.activation_checkpoint",
            checkpoint != "None",
            checkpoint.removesuffix(".Config()"),
        ),
        ("distributed.pipeline_parallel", True, "pipeline_llm"),
        ("models.common", True, f"{package.rope} Embedding Linear RMSNorm"),
        ("models.common.attention", own_heads, "FusedQKVLinear"),
        ("models.common.attention", own_heads and not oss, "GQAttention"),
        ("models.common.config_utils", True, "get_attention_config"),
        ("models.common.config_utils", experts, "make_token_dispatcher_config"),
        ("models.common.feed_forward", shared or "dense" in model.feed_forwards, "FeedForward"),
        ("models.common.linear", oss, "ScaledBiasRowwiseLinear"),
        ("models.common.moe", experts and not oss, "GroupedExperts MoE"),
        ("models.common.moe", experts, "RoutedExperts TokenChoiceTopKRouter"),
        ("models.common.param_init", True, "skip_param_init"),
        (f"models.{package.name}.model", True, " ".join(sorted(classes))),
        (f"models.{package.name}.moe", oss, "GptOssGroupedExperts GptOssMoE"),
        (f"models.{package.name}.mtp", model.mtp_num_layers, "MTPLoss MTPTransformerBlock"),
        (f"models.{package.name}.parallelize", True, package.parallelize),
        ("protocols.model_spec", True, "ModelSpec"),
        ("trainer", True, "Trainer"),
    )
    names: dict[str, list[str]] = {}
    for module, used, found in rows:
        if used:
            names.setdefault(f"torchtitan.{module}", []).extend(found.split())
    return "\n".join(_import(module, found) for module, found in names.items())


def _import(module: str, names: Sequence[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= LINE:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in names), ")"])


def _blocks(model: ModelSpec, package: Package) -> str:
    """The functions that each build one part of the model."""
    moe, kinds = model.moe, set(model.feed_forwards)
    oss = package.name == "gpt_oss"
    shared = moe is not None and bool(moe.shared_expert_ffn_hidden_size)
    attention = {"deepseek_v3": "latent_attention", "gpt_oss": "attention_with_sinks"}
    weights = "w1_EFD w2_EDF w3_EFD"
    if oss:
        weights = "mlp1_weight_EGD mlp1_bias_EG mlp2_weight_EDF mlp2_bias_ED"
    scaling = numerics.rope_arguments(model)
    pieces = {
        "common": True,
        "feed_forward": "dense" in kinds or shared,
        attention.get(package.name, "attention"): True,
        "experts": moe is not None,
        "layer": True,
        "prediction": model.mtp_num_layers,
        "model": True,
    }
    prediction = "        mtp_layers=[prediction(i) for i in range(MODEL.num_mtp_layers)],\n"
    normed = package.name == "qwen3"
    words = {
        "qkv": _part("fused_qkv"),
        "qk_norm": "norm(MODEL.head_dim) if MODEL.qk_norm else None" if normed else "None",
        "names": ", ".join(f'"{name}"' for name in weights.split()),
        "shared": SHARED if shared else "",
        "moe": "GptOssMoE" if oss else "MoE",
        "grouped": "GptOssGroupedExperts" if oss else "GroupedExperts",
        "parts": PARTS["both" if len(kinds) > 1 else min(kinds)],
        "prediction": prediction if model.mtp_num_layers else "",
        "rope": package.rope,
        "scaling": scaling,
        "mscale": f"        {numerics.MSCALE}=DEFAULTS.{numerics.MSCALE},\n" if scaling else "",
        "block": package.block,
        "model": package.model,
    }
    return filled("\n\n".join(_part(name) for name, has in pieces.items() if has), words)


def module(c: Context, settings: Sequence[Flag], head: str, missing: str) -> str:
    """The text of the registry module."""
    model, package = c.model, package_of(c.model)
    of: dict[str, list[Flag]] = {}
    for flag in settings:
        of.setdefault(flag.group, []).append(flag)
    (checkpoint,) = of["trainer"]
    rate, implementation = of["optimizer"]
    loss = "CrossEntropyLoss.Config(global_vocab_size=MODEL.vocab_size)"
    if model.mtp_num_layers:
        loss = "MTPLoss.Config(mtp_scale=DEFAULTS.mtp_scale, global_vocab_size=MODEL.vocab_size)"
    converters = of.get("converters", [])
    words = {
        "package": package.name,
        "parallelize": package.parallelize,
        "hook": "register_moe_load_balancing_hook" if model.moe else "None",
        "loss": loss,
        "lr": f'"lr": {rate.value},  {comment(rate.why)}',
        "implementation": _entry(implementation, 12),
        "checkpoint": _entry(checkpoint, 8),
        **{name: _entries(of[name], 12) for name in ("training", "parallelism", "compile")},
    }
    functions = (_blocks(model, package), _part("mock_data"), filled(_part("config"), words))
    spaces = "\n\n".join(
        f"{name} = SimpleNamespace(\n{_entries(of[group], 4)}\n)"
        for name, group in (("MODEL", "model"), ("KERNELS", "kernels"), ("DEFAULTS", "defaults"))
    )
    spaces = spaces.replace("DEFAULTS = ", f"{missing}\nDEFAULTS = ")
    dataclass_import = "from dataclasses import dataclass" + (
        ", replace" if package.name == "gpt_oss" else ""
    )
    return (
        f"{head}\n"
        f"{dataclass_import}\nfrom functools import partial\nfrom types import SimpleNamespace\n\n"
        "import torch\nfrom torch import nn\n"
        f"{_imports(model, package, converters, str(checkpoint.value))}\n\n"
        f"{spaces}\n\n{_converters(converters)}\n\n\n" + "\n\n".join(functions)
    )
