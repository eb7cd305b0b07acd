"""The registry module: a Python file with one function that returns a Trainer.Config."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap

from cost_models.spec import ModelSpec
from planner.frameworks.base import Flag, one_line
from planner.frameworks.shell import comment
from planner.frameworks.torchtitan import numerics
from planner.frameworks.torchtitan.packages import Package, package_of
from planner.search.constraints import Context

# Longest line of the module.
LINE = 100
COMMON = """\
def linear(inputs, outputs, bias=False):
    init = {"weight": partial(nn.init.normal_, std=DEFAULTS.init_std), "bias": nn.init.zeros_}
    return Linear.Config(in_features=inputs, out_features=outputs, bias=bias, param_init=init)


def norm(width):
    init = {"weight": nn.init.ones_}
    return RMSNorm.Config(normalized_shape=width, eps=DEFAULTS.norm_eps, param_init=init)


def rope(width):
    return @ROPE@.Config(
        dim=width, max_seq_len=MODEL.max_seq_len, theta=DEFAULTS.rope_theta@SCALING@
    )


"""
MLP = """\
def feed_forward(width):
    return FeedForward.Config(
        w1=linear(MODEL.dim, width), w2=linear(width, MODEL.dim), w3=linear(MODEL.dim, width)
    )


"""
FUSED_QKV = """\
    projection = FusedQKVLinear.Config(
        head_dim=MODEL.head_dim,
        n_heads=MODEL.n_heads,
        n_kv_heads=MODEL.n_kv_heads,
        wqkv=linear(
            MODEL.dim, (MODEL.n_heads + 2 * MODEL.n_kv_heads) * MODEL.head_dim, MODEL.qkv_bias
        ),
    )
"""
GQA = """\
def attention(index):
@QKV@    return GQAttention.Config(
        n_heads=MODEL.n_heads,
        n_kv_heads=MODEL.n_kv_heads,
        head_dim=MODEL.head_dim,
        dim=MODEL.dim,
        qkv_linear=projection,
        wo=linear(MODEL.n_heads * MODEL.head_dim, MODEL.dim),
        qk_norm=@QK_NORM@,
        inner_attention=get_attention_config(KERNELS.attn_backend),
        rope=rope(MODEL.head_dim),
    )


"""
SINKS = """\
def attention(index):
    window = None if index in MODEL.full_attention_layers else MODEL.sliding_window_size
    kernel = get_attention_config(KERNELS.attn_backend)
    if window is not None and KERNELS.attn_backend == "varlen":
        kernel = replace(kernel, window_size=(window - 1, 0))
@QKV@    output = ScaledBiasRowwiseLinear.Config(
        in_features=MODEL.n_heads * MODEL.head_dim,
        out_features=MODEL.dim,
        bias=True,
        param_init=linear(1, 1).param_init,
    )
    return Attention.Config(
        n_heads=MODEL.n_heads,
        n_kv_heads=MODEL.n_kv_heads,
        head_dim=MODEL.head_dim,
        dim=MODEL.dim,
        qkv_linear=projection,
        wo=output,
        sliding_window_size=window,
        inner_attention=kernel,
        rope=rope(MODEL.head_dim),
        param_init={"sinks": partial(nn.init.normal_, std=DEFAULTS.init_std)},
    )


"""
LATENT = """\
def attention(index):
    heads, rank = MODEL.n_heads, MODEL.q_lora_rank
    query = heads * (MODEL.qk_nope_head_dim + MODEL.qk_rope_head_dim)
    key_value = heads * (MODEL.qk_nope_head_dim + MODEL.v_head_dim)
    return Attention.Config(
        n_heads=heads,
        dim=MODEL.dim,
        wq=None if rank else linear(MODEL.dim, query),
        wq_a=linear(MODEL.dim, rank) if rank else None,
        wq_b=linear(rank, query) if rank else None,
        q_norm=norm(rank or 1),
        wkv_a=linear(MODEL.dim, MODEL.kv_lora_rank + MODEL.qk_rope_head_dim),
        kv_norm=norm(MODEL.kv_lora_rank),
        wkv_b=linear(MODEL.kv_lora_rank, key_value),
        wo=linear(heads * MODEL.v_head_dim, MODEL.dim),
        q_lora_rank=rank,
        kv_lora_rank=MODEL.kv_lora_rank,
        qk_nope_head_dim=MODEL.qk_nope_head_dim,
        qk_rope_head_dim=MODEL.qk_rope_head_dim,
        v_head_dim=MODEL.v_head_dim,
        inner_attention=get_attention_config(KERNELS.attn_backend),
        rope=rope(MODEL.qk_rope_head_dim),
@MSCALE@    )


"""
EXPERTS = """\
def moe():
    weight = partial(nn.init.normal_, std=DEFAULTS.init_std)
    names = (@NAMES@)
    return @MOE@.Config(
        num_experts=MODEL.num_experts,
        load_balance_coeff=MODEL.load_balance_coeff,
        router=TokenChoiceTopKRouter.Config(
            num_experts=MODEL.num_experts,
            gate=linear(MODEL.dim, MODEL.num_experts, MODEL.router_bias),
            num_expert_groups=MODEL.num_expert_groups,
            num_limited_groups=MODEL.num_limited_groups,
            top_k=MODEL.top_k,
            score_func=DEFAULTS.score_func,
            route_norm=DEFAULTS.route_norm,
            route_scale=DEFAULTS.route_scale,
        ),
        routed_experts=RoutedExperts.Config(
            inner_experts=@GROUPED@.Config(
                dim=MODEL.dim,
                hidden_dim=MODEL.moe_hidden_dim,
                num_experts=MODEL.num_experts,
                param_init=dict.fromkeys(names, weight),
            ),
            token_dispatcher=make_token_dispatcher_config(
                num_experts=MODEL.num_experts,
                top_k=MODEL.top_k,
                comm_backend=KERNELS.moe_comm_backend,
                hidden_dim=MODEL.dim,
            ),
        ),
@SHARED@    )


"""
SHARED = """\
        shared_experts=feed_forward(MODEL.shared_hidden_dim) if MODEL.shared_hidden_dim else None,
"""
LAYER = """\
def layer(index):
    return @BLOCK@.Config(
        attention=attention(index),
        attention_norm=norm(MODEL.dim),
        ffn_norm=norm(MODEL.dim),
@PARTS@    )


"""
PARTS = {
    "dense": "        feed_forward=feed_forward(MODEL.hidden_dim),\n",
    "moe": "        moe=moe(),\n",
    "both": "        moe=moe() if index in MODEL.moe_layers else None,\n"
    "        feed_forward=None if index in MODEL.moe_layers else "
    "feed_forward(MODEL.hidden_dim),\n",
}
PREDICTION = """\
def prediction(index):
    inner = layer(MODEL.n_layers - 1)
    return MTPTransformerBlock.Config(
        attention=inner.attention,
        feed_forward=inner.feed_forward,
        moe=inner.moe,
        attention_norm=inner.attention_norm,
        ffn_norm=inner.ffn_norm,
        enorm=norm(MODEL.dim),
        hnorm=norm(MODEL.dim),
        eh_proj=linear(2 * MODEL.dim, MODEL.dim),
        mtp_norm=norm(MODEL.dim),
    )


"""
WHOLE = """\
def model():
    table = partial(nn.init.normal_, std=DEFAULTS.init_std)
    if MODEL.enable_weight_tying:
        table = skip_param_init  # the output layer's
    config = @MODEL@.Config(
        dim=MODEL.dim,
        vocab_size=MODEL.vocab_size,
        enable_weight_tying=MODEL.enable_weight_tying,
        tok_embeddings=Embedding.Config(
            num_embeddings=MODEL.vocab_size,
            embedding_dim=MODEL.dim,
            param_init={"weight": table},
        ),
        norm=norm(MODEL.dim),
        lm_head=linear(MODEL.dim, MODEL.vocab_size),
        layers=[layer(index) for index in range(MODEL.n_layers)],
@PREDICTION@    )
    for converter in CONVERTERS:
        config = converter.build().convert(config)
    return config


"""
DATA = """\
class NoTokenizer(BaseTokenizer):
    \"\"\"Random tokens need none.  PLACEHOLDER: HuggingFaceTokenizer and hf_assets_path.\"\"\"

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, *, tokenizer_path=""):
        super().__init__()

    def encode(self, *args, **kwargs):
        return []

    def decode(self, *args, **kwargs):
        return ""

    def get_vocab_size(self):
        return MODEL.vocab_size


class RandomTokens(BaseDataLoader):
    \"\"\"MOCK DATA, nothing to learn.  PLACEHOLDER: HuggingFaceTextDataLoader, or your own.\"\"\"

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        vocab_size: int

    def __init__(self, config, *, dp_rank, seq_len, local_batch_size, **kwargs):
        self.vocab_size, self.shape = config.vocab_size, (local_batch_size, seq_len + 1)
        self.generator = torch.Generator().manual_seed(dp_rank)

    def __iter__(self):
        rows, tokens = self.shape
        positions = torch.arange(tokens - 1).expand(rows, -1)
        while True:
            drawn = torch.randint(self.vocab_size, self.shape, generator=self.generator)
            batch = {"input": drawn[:, :-1].contiguous(), "positions": positions.contiguous()}
            yield batch, drawn[:, 1:].contiguous()

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        pass


"""
CONFIG = """\
def config():
    return Trainer.Config(
        model_spec=ModelSpec(
            name="@PACKAGE@",
            flavor="planned",
            model=model(),
            parallelize_fn=@PARALLELIZE@,
            pipelining_fn=pipeline_llm,
            post_optimizer_build_fn=@HOOK@,
            state_dict_adapter=None,  # checkpoints stay in torch's own format
        ),
        hf_assets_path=".",
        tokenizer=NoTokenizer.Config(),
        dataloader=RandomTokens.Config(vocab_size=MODEL.vocab_size),
        loss=@LOSS@,
        metrics=MetricsProcessor.Config(log_freq=1),  # time and memory of every step
        optimizer=OptimizersContainer.Config(
            param_groups=[
                ParamGroupConfig(
                    pattern=".*",
                    optimizer_name="AdamW",
                    optimizer_kwargs={
                        @LR@
                        "betas": (0.9, 0.95),
                        "weight_decay": 0.1,
                    },
                )
            ],
@IMPLEMENTATION@
        ),
@CHECKPOINT@
        training=TrainingConfig(
@TRAINING@
        ),
        parallelism=ParallelismConfig(
@PARALLELISM@
        ),
        compile=CompileConfig(
@COMPILE@
        ),
    )
"""


def _entry(flag: Flag, indent: int) -> str:
    """One keyword argument with its why; several words are a list, one item per line."""
    pad, name = " " * indent, flag.name.rsplit(".", 1)[-1]
    if isinstance(flag.value, tuple):
        rows = "".join(f"{pad}    {row},\n" for row in flag.value)
        return f"{_above(flag.why, pad)}{pad}{name}=[\n{rows}{pad}],"
    return _beside(f"{pad}{name}={flag.value},", flag.why, pad)


def _above(why: str, pad: str) -> str:
    """Comment lines."""
    return "".join(f"{pad}{comment(row)}\n" for row in wrap(one_line(why), LINE - 2 - len(pad)))


def _beside(code: str, why: str, pad: str) -> str:
    """Code and its why behind it, or above it where the line would be too long."""
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
    """Only what the module uses, by module."""
    experts, dense = model.moe is not None, "dense" in model.feed_forwards
    oss = package.name == "gpt_oss"
    shared = model.moe is not None and bool(model.moe.shared_expert_ffn_hidden_size)
    own = [package.model, package.block]
    if package.attention != "GQAttention":
        own.append(package.attention)
    names: dict[str, list[str]] = {
        "torchtitan.components.dataloader": ["BaseDataLoader"],
        "torchtitan.components.loss": [] if model.mtp_num_layers else ["CrossEntropyLoss"],
        "torchtitan.components.metrics": ["MetricsProcessor"],
        "torchtitan.components.optimizer": [
            "OptimizersContainer",
            "ParamGroupConfig",
            *(["register_moe_load_balancing_hook"] if experts else []),
        ],
        "torchtitan.components.quantization": sorted(
            flag.name.removeprefix("converters.").removesuffix(".Config") for flag in converters
        ),
        "torchtitan.components.tokenizer": ["BaseTokenizer"],
        "torchtitan.config": ["CompileConfig", "ParallelismConfig", "TrainingConfig"],
        "torchtitan.distributed.activation_checkpoint": (
            [checkpoint.removesuffix(".Config()")] if checkpoint != "None" else []
        ),
        "torchtitan.distributed.pipeline_parallel": ["pipeline_llm"],
        "torchtitan.models.common": [package.rope, "Embedding", "Linear", "RMSNorm"],
        "torchtitan.models.common.attention": (
            [] if model.mla else ["FusedQKVLinear", *([] if oss else ["GQAttention"])]
        ),
        "torchtitan.models.common.config_utils": [
            "get_attention_config",
            *(["make_token_dispatcher_config"] if experts else []),
        ],
        "torchtitan.models.common.feed_forward": ["FeedForward"] if dense or shared else [],
        "torchtitan.models.common.linear": ["ScaledBiasRowwiseLinear"] if oss else [],
        "torchtitan.models.common.moe": (
            [*([] if oss else ["GroupedExperts", "MoE"]), "RoutedExperts", "TokenChoiceTopKRouter"]
            if experts
            else []
        ),
        "torchtitan.models.common.param_init": ["skip_param_init"],
        f"torchtitan.models.{package.name}.model": sorted(own),
        f"torchtitan.models.{package.name}.moe": (
            ["GptOssGroupedExperts", "GptOssMoE"] if oss else []
        ),
        f"torchtitan.models.{package.name}.mtp": (
            ["MTPLoss", "MTPTransformerBlock"] if model.mtp_num_layers else []
        ),
        f"torchtitan.models.{package.name}.parallelize": [package.parallelize],
        "torchtitan.protocols.model_spec": ["ModelSpec"],
        "torchtitan.trainer": ["Trainer"],
    }
    return "\n".join(_import(module, found) for module, found in names.items() if found)


def _import(module: str, names: Sequence[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= LINE:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in names), ")"])


def _blocks(model: ModelSpec, package: Package) -> str:
    """The functions that build one part of the model each."""
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
    windows = "from dataclasses import dataclass" + (
        ", replace" if package.name == "gpt_oss" else ""
    )
    return (
        f"{head}\n"
        f"{windows}\nfrom functools import partial\nfrom types import SimpleNamespace\n\n"
        "import torch\nfrom torch import nn\n"
        f"{_imports(model, package, converters, str(checkpoint.value))}\n\n"
        f"{spaces}\n\n{_converters(converters)}\n\n\n"
        f"{_blocks(model, package)}{DATA}{text}"
    )
