"""Blocks that mix tokens by recurrence, with the keys that families have for their fields."""

from __future__ import annotations

from cost_models.blocks.mamba2 import Mamba2
from cost_models.spec import ModelSpec
from planner.huggingface.config import Config
from planner.huggingface.families import rows
from planner.huggingface.families.rows import Block, Fields, Key, Table


def expanded(name: str, field: str = "_inner") -> rows.Read:
    """The width of all heads of a mixer together: a multiple of the hidden size."""

    def read(config: Config, fields: Fields) -> Fields:
        return {field: fields["hidden_size"] * config.count(name, most=1000, default=2)}

    return read


def whole_heads(heads: str, width: str) -> rows.Read:
    """Heads fill the width of the mixer; heads, width: the keys of their number and width."""

    def read(config: Config, fields: Fields) -> Fields:
        head_dim, inner = fields["head_dim"], fields["_inner"]
        if fields["num_heads"] * head_dim != inner and not config.problems:
            config.refuse(heads, f"times {width} {head_dim} is not {inner}")
        return {}

    return read


# The keys of Bamba, which Granite and Falcon use too; before them, a part gives the width.
BAMBA = Table(
    Key("mamba_n_heads", "num_heads", 128),
    Key(
        "mamba_d_head", "head_dim",
        rows.Derived(
            lambda fields: max(fields["_inner"] // fields["num_heads"], 1),
            "width of the mixer / mamba_n_heads",
        ),
    ),
    whole_heads("mamba_n_heads", "mamba_d_head"),
    Key("mamba_d_state", "state_size", 256),
    Key("mamba_n_groups", "num_groups", 1),
    Key("mamba_d_conv", "convolution", 4),
    Key("mamba_conv_bias", "convolution_bias", True),
    Key("mamba_proj_bias", "bias", False),
    Key("mamba_chunk_size", "chunk_size", 256),
)  # fmt: skip
NEMOTRON = Table(
    Key("mamba_num_heads", "num_heads", 128),
    Key("mamba_head_dim", "head_dim", 64),
    Key("ssm_state_size", "state_size", 128),
    Key("n_groups mamba_n_groups", "num_groups", 8),
    Key("conv_kernel mamba_d_conv", "convolution", 4),
    Key("use_conv_bias", "convolution_bias", True),
    Key("use_bias", "bias", False),
    Key("chunk_size mamba_chunk_size", "chunk_size", 128),
)
BAMBA_BLOCK = Block("mamba2", expanded("mamba_expand"), BAMBA)
NEMOTRON_BLOCK = Block("mamba2", NEMOTRON)
MAMBA2_BLOCK = Block(
    "mamba2",
    NEMOTRON.spelled(
        mamba_num_heads="num_heads", mamba_head_dim="head_dim", ssm_state_size="state_size"
    ),
    expanded("expand"),
    whole_heads("num_heads", "head_dim"),
)


def _expand(model: ModelSpec) -> rows.Keys:
    block = next((one for one in rows.blocks_of(model) if isinstance(one, Mamba2)), None)
    if block is None:
        raise rows.NotWritten
    return {"expand": block.num_heads * block.head_dim // model.hidden_size}


EXPAND = rows.Hook(keys=_expand)

MAMBA = Table(
    Key("state_size", "state_size", 16),
    Key(
        "time_step_rank", "time_step_rank",
        rows.Derived(lambda fields: -(-fields["hidden_size"] // 16), "hidden_size / 16"),
    ),
    Key("conv_kernel", "convolution", 4),
    Key("use_conv_bias", "convolution_bias", True),
    Key("use_bias", "bias", False),
)  # fmt: skip
MAMBA_BLOCK = Block("mamba", expanded("expand", "inner_size"), MAMBA)
JAMBA_BLOCK = Block(
    "mamba",
    expanded("mamba_expand", "inner_size"),
    MAMBA.spelled(
        state_size="mamba_d_state",
        time_step_rank="mamba_dt_rank",
        conv_kernel="mamba_d_conv",
        use_conv_bias="mamba_conv_bias",
        use_bias="mamba_proj_bias",
    ),
    {"selection_norms": True},
)

CONVOLUTION = Key("linear_conv_kernel_dim", "convolution", 4)
# Gated delta net under the keys of Qwen3-Next.
DELTA_NET = Block(
    "gated_delta_net",
    CONVOLUTION,
    Key("linear_key_head_dim", "key_head_dim", 128),
    Key("linear_value_head_dim", "value_head_dim", 128),
    Key("linear_num_key_heads", "num_key_heads", 16),
    Key("linear_num_value_heads", "num_value_heads", 32),
)
