"""RoPE bases, epsilons, caps and multipliers: keys of config.json that cost no time or memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from cost_models.numerics import RopeScaling
from cost_models.package_files import table
from cost_models.spec import ModelSpec
from planner.huggingface.config import Config, short_text

Keys = dict[str, Any]

_TABLE = table("planner.huggingface", "numerics.json")
# What the code of a family does whatever its config says: of gpt-oss, GptOssExperts (nothing reads
# its hidden_act, silu, and only transformers 5 its swiglu_limit).
IMPLIED: dict[str, dict[str, Any]] = _TABLE["implied"]
# The key of gate_limit, in families whose code has one of its own.
GATE_LIMIT = "swiglu_limit"
# The keys that families use for each field; the exporter writes the first.
NAMES: dict[str, tuple[str, ...]] = _TABLE["names"]
ACTIVATIONS = (
    "hidden_activation", "hidden_act", "activation_function", "mlp_hidden_act", "activation",
)  # fmt: skip
KINDS: tuple[str, ...] = get_args(RopeScaling.model_fields["kind"].annotation)
OLD_KINDS = {"su": "longrope"}
# Spellings of SiLU, and of GELU and its approximations by tanh.
SILU = ("silu", "swish")
GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python")


def numerics(config: Config, fields: Mapping[str, Any]) -> Keys:
    """The fields of a Numerics that the file states.

    fields: the model's other fields, which are read before.
    """
    full, local = _rotary(config)
    found: Keys = {name: _number(config, *keys) for name, keys in NAMES.items()}
    found["rope_theta"] = _first(found["rope_theta"], _number(full, "rope_theta"))
    found["local_rope_theta"] = _first(found["local_rope_theta"], _number(local, "rope_theta"))
    share = _first(found["rotary_share"], _number(full, "partial_rotary_factor"))
    if share is None and (width := _number(config, "rotary_dim")) is not None:
        share = width / fields.get("head_dim", width)
    found["rotary_share"] = share if share is not None and share <= 1 else None
    if (scalar := _number(config, "query_pre_attn_scalar")) is not None:
        found["attention_scale"] = scalar**-0.5
    if (divisor := _number(config, "logits_scaling")) is not None:
        found["logit_multiplier"] = 1.0 / divisor
    if fields.get("position", "rope") != "rope":
        for name in ("rope_theta", "local_rope_theta", "rotary_share"):
            found[name] = None
        full = Config({}, config.family)
    if not fields.get("moe"):
        found["routed_scaling"] = None
    if (eps := found["norm_epsilon"]) is not None and eps >= 1:
        config.refuse(NAMES["norm_epsilon"][0], "must be below 1")
        found["norm_epsilon"] = None
    found["rope_scaling"] = _scaling(full)
    found["activation"] = _activation(config, bool(fields.get("gated_mlp")))
    found |= _implied(config)
    return {name: value for name, value in found.items() if value is not None}


def _implied(config: Config) -> Keys:
    """The fields that the code of the family decides."""
    implied = IMPLIED.get(config.family, {})
    stated = _number(config, GATE_LIMIT) if implied else None
    return implied | ({} if stated is None else {"gate_limit": stated})


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _number(config: Config | None, *names: str) -> float | None:
    """The positive number under the first of these keys that is stated."""
    name = next((name for name in names if config and config.data.get(name) is not None), None)
    if name is None or config is None:
        return None
    value = config.data[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e12:
        config.refuse(name, "must be a positive number")
        return None
    return float(value)


def _rotary(config: Config) -> tuple[Config, Config | None]:
    """The objects that describe RoPE of (layers with full attention, layers with a window)."""
    name = "rope_parameters" if config.states("rope_parameters") else "rope_scaling"
    if not isinstance(config.data.get(name), Mapping):
        attention = config.data.get("attn_config")  # DBRX
        inner = isinstance(attention, Mapping) and "rope_theta" in attention
        return (config.nested("attn_config") if inner else Config({}, config.family)), None
    found = config.nested(name)
    if isinstance(found.data.get("full_attention"), Mapping):
        local = found.nested("sliding_attention") if found.states("sliding_attention") else None
        return found.nested("full_attention"), local
    return found, None


def _scaling(rope: Config) -> Keys | None:
    """The RoPE scaling; unknown kinds are left out, with a note."""
    kind = rope.data.get("rope_type", rope.data.get("type"))
    if kind in (None, "default", "mrope"):
        return None
    kind = OLD_KINDS.get(kind, kind) if isinstance(kind, str) else kind
    if kind not in KINDS:
        rope.left_out.append(f"rope_scaling: {short_text(kind)} is an unknown type, ignored")
        return None
    stated = {name: rope.data.get(name) for name in RopeScaling.model_fields} | {"kind": kind}
    found = {name: value for name, value in stated.items() if value is not None}
    try:
        RopeScaling(**found)
    except ValueError:
        rope.refuse("factor", "the numbers of rope_scaling must be positive")
        return None
    return found


def _activation(config: Config, gated: bool) -> str | None:
    """The activation, unless it is the usual one: SiLU in gated MLPs, GELU in others."""
    named = next((config.data[name] for name in ACTIVATIONS if config.states(name)), None)
    if not isinstance(named, str) or not named.isprintable() or not 0 < len(named) <= 200:
        return None
    return None if named in (SILU if gated else GELU) else named


# Numerics that the code of every family here uses, and further ones that some families use.
USED_BY_ALL = frozenset({"norm_epsilon", "init_std", "activation", "rope_theta", "rope_scaling"})
USED_BY: dict[str, list[str]] = _TABLE["used_by"]


def used_numerics(model: ModelSpec, config: Keys) -> frozenset[str]:
    """Numerics that the code of a config.json's family uses."""
    rotary = {"rope_theta", "rope_scaling", "rotary_share"}
    found = USED_BY_ALL.union(USED_BY.get(config.get("model_type", ""), ()))
    return found if model.position == "rope" else found - rotary


def keys_of(model: ModelSpec, config: Keys, style: Literal["nested", "flat"] = "nested") -> Keys:
    """The keys for the numerics of a model, to be added to its config.json.

    style: nested: one object rope_parameters, as transformers 5 writes it; flat: rope_theta and
    rope_scaling, which every version reads.
    """
    gpt2 = config["model_type"] == "gpt2"
    said = model.numerics.model_dump(
        mode="json", exclude_none=True, include=set(used_numerics(model, config))
    )
    names = {name: keys[0] for name, keys in NAMES.items()} | {"activation": "hidden_act"}
    for name, value in IMPLIED.get(config["model_type"], {}).items():
        if name != "gate_limit" or said.get(name) == value:
            said.pop(name, None)
    names["gate_limit"] = GATE_LIMIT
    if gpt2:
        names |= {"norm_epsilon": "layer_norm_epsilon", "activation": "activation_function"}
    stretch = said.pop("rope_scaling", {})
    if stretch:
        stretch["rope_type"] = stretch.pop("kind")
    rope = {names[name]: said.pop(name) for name in ("rope_theta", "rotary_share") if name in said}
    found = {names[name]: value for name, value in said.items()}
    if style == "flat":
        return found | rope | ({"rope_scaling": stretch} if stretch else {})
    if rope or stretch:
        found["rope_parameters"] = {"rope_type": "default", **rope, **stretch}
    return found
