"""The registry module: a Python file with one function that returns a Trainer.Config."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap

from cost_models.spec import ModelSpec
from planner.constraints import Context
from planner.frameworks.base import Flag, one_line
from planner.frameworks.bash_writer import comment
from planner.frameworks.torchtitan import numerics
from planner.frameworks.torchtitan.packages import Package, package_of
from planner.frameworks.torchtitan.templates import (
    COMMON,
    CONFIG,
    DATA,
    EXPERTS,
    FUSED_QKV,
    GQA,
    LATENT,
    LAYER,
    MLP,
    PARTS,
    PREDICTION,
    SHARED,
    SINKS,
    WHOLE,
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


def _filled(template: str, **values: str) -> str:
    for name, value in values.items():
        template = template.replace(f"@{name}@", value)
    return template


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
    attention = {"deepseek_v3": LATENT, "gpt_oss": SINKS}.get(package.name, GQA)
    weights = "w1_EFD w2_EDF w3_EFD"
    if oss:
        weights = "mlp1_weight_EGD mlp1_bias_EG mlp2_weight_EDF mlp2_bias_ED"
    scaling = numerics.rope_arguments(model)
    pieces = (
        COMMON,
        MLP if "dense" in kinds or shared else "",
        attention,
        EXPERTS if moe is not None else "",
        LAYER,
        PREDICTION if model.mtp_num_layers else "",
        WHOLE,
    )
    prediction = "        mtp_layers=[prediction(i) for i in range(MODEL.num_mtp_layers)],\n"
    return _filled(
        "".join(pieces),
        QKV=FUSED_QKV,
        QK_NORM="norm(MODEL.head_dim) if MODEL.qk_norm else None"
        if package.name == "qwen3"
        else "None",
        NAMES=", ".join(f'"{name}"' for name in weights.split()),
        SHARED=SHARED if shared else "",
        MOE="GptOssMoE" if oss else "MoE",
        GROUPED="GptOssGroupedExperts" if oss else "GroupedExperts",
        PARTS=PARTS["both" if len(kinds) > 1 else min(kinds)],
        PREDICTION=prediction if model.mtp_num_layers else "",
        ROPE=package.rope,
        SCALING=scaling,
        MSCALE=f"        {numerics.MSCALE}=DEFAULTS.{numerics.MSCALE},\n" if scaling else "",
        BLOCK=package.block,
        MODEL=package.model,
    )


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
    text = _filled(
        CONFIG,
        PACKAGE=package.name,
        PARALLELIZE=package.parallelize,
        HOOK="register_moe_load_balancing_hook" if model.moe else "None",
        LOSS=loss,
        LR=f'"lr": {rate.value},  {comment(rate.why)}',
        IMPLEMENTATION=_entry(implementation, 12),
        CHECKPOINT=_entry(checkpoint, 8),
        TRAINING=_entries(of["training"], 12),
        PARALLELISM=_entries(of["parallelism"], 12),
        COMPILE=_entries(of["compile"], 12),
    )
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
        f"{spaces}\n\n{_converters(converters)}\n\n\n"
        f"{_blocks(model, package)}{DATA}{text}"
    )
