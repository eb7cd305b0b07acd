"""Numerics of a torchtitan registry module: written to DEFAULTS, and read from its calls."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from cost_models.spec import ModelSpec
from planner.frameworks.base import Row
from planner.frameworks.python.static_values import Call
from planner.frameworks.torchtitan.packages import package_of
from planner.huggingface.numerics import IMPLIED

WHY = "from the model's config.json"
# Field of RoPE.Config (torchtitan 0.3.0, models/common/rope.py) -> field of the spec.
LLAMA3 = {
    "scaling_factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
}
YARN = {
    "rope_factor": "factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "original_seq_len": "original_max_position_embeddings",
    "truncate": "truncate",
}
# Defaults of RoPE.Config, except for `truncate`.
USUAL: dict[str, Any] = {
    "scaling_factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_seq_len": 4096,
}  # fmt: skip
SCALINGS = {"llama3": ("llama", LLAMA3), "yarn": ("yarn", YARN)}
MSCALE = "mscale"


def scaling(model: ModelSpec) -> dict[str, Any]:
    """The arguments of RoPE scaling; empty if the model's package does not support it.

    llama3 and qwen3 leave YaRN's attention factor out, qwen3 and gpt_oss have no Llama scaling.
    """
    found, package = model.numerics.rope_scaling, package_of(model).name
    kinds = {"llama3": "llama3", "deepseek_v3": "yarn", "gpt_oss": "yarn"}
    if found is None or kinds.get(package) != found.kind:
        return {}
    name, fields = SCALINGS[found.kind]
    stated = found.model_dump(exclude_none=True, exclude={"kind", MSCALE, "mscale_all_dim"})
    if set(stated) - set(fields.values()) or found.factor is None or found.factor <= 1:
        return {}
    if package == "gpt_oss" and (found.mscale, found.mscale_all_dim) != (None, None):
        return {}
    if found.mscale != found.mscale_all_dim or (package == "deepseek_v3" and not found.mscale):
        return {}
    return {"scaling": name} | {
        ours: stated[theirs] for ours, theirs in fields.items() if theirs in stated
    }


def rows(model: ModelSpec) -> Iterator[Row]:
    """Rows of DEFAULTS; numerics that are not stated have torchtitan's own value."""
    numerics, unsaid = model.numerics, "not stated: torchtitan's default"
    for name, value, default, what in (
        ("norm_eps", numerics.norm_epsilon, 1e-5, "norm epsilon"),
        ("rope_theta", numerics.rope_theta, 10000.0, "rotary base"),
        ("init_std", numerics.init_std, 0.02, "standard deviation of the initial weights"),
    ):
        stated = value is not None
        yield name, value if stated else default, f"{what}, {WHY if stated else unsaid}"
    for name, value in scaling(model).items():
        yield f"rope_{name}", value, WHY
    if model.mla is not None and scaling(model):
        yield MSCALE, model.numerics.rope_scaling.mscale, WHY  # type: ignore[union-attr]


def rope_arguments(model: ModelSpec) -> str:
    """The arguments of the RoPE config besides its base, as Python source."""
    return "".join(f", {name}=DEFAULTS.rope_{name}" for name in scaling(model))


def numerics_fields(model: ModelSpec) -> frozenset[str]:
    """The numerics fields that the module states."""
    found = {"norm_epsilon", "rope_theta", "init_std"}
    if scaling(model):
        found.add("rope_scaling")
    if model.moe is not None:
        found.add("routed_scaling")
    if all(getattr(model.numerics, name) == value for name, value in own(package_of(model).name)):
        found |= dict(own(package_of(model).name)).keys()
    return frozenset(found)


def own(package: str) -> Collection[tuple[str, Any]]:
    """What the code of a package fixes: gpt_oss's experts have one activation (gpt_oss/moe.py)."""
    return IMPLIED[package].items() if package in IMPLIED else ()


def read(attention: Call, norm: Call | None, router: Call | None) -> dict[str, Any]:
    """The fields of a Numerics that the calls of one layer state."""
    found: dict[str, Any] = {}
    rope = attention.kwargs.get("rope")
    if isinstance(norm, Call) and _number(norm, "eps"):
        found["norm_epsilon"] = norm.kwargs["eps"]
    if isinstance(rope, Call):
        if _number(rope, "theta"):
            found["rope_theta"] = rope.kwargs["theta"]
        kind = next(
            (kind for kind, (name, _) in SCALINGS.items() if name == rope.kwargs.get("scaling")), ""
        )
        if kind:
            fields = SCALINGS[kind][1]
            given = USUAL | rope.kwargs
            found["rope_scaling"] = {"kind": kind} | {
                theirs: given[ours] for ours, theirs in fields.items() if ours in given
            }
            if _number(attention, MSCALE):
                scale = attention.kwargs[MSCALE]
                found["rope_scaling"] |= {MSCALE: scale, "mscale_all_dim": scale}
    if std := _spread(attention):
        found["init_std"] = std
    if router is not None and _number(router, "route_scale"):
        found["routed_scaling"] = router.kwargs["route_scale"]
    return found


def _number(call: Call, name: str) -> bool:
    value = call.kwargs.get(name)
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _spread(attention: Call) -> Any:
    """The initial standard deviation of the output projection's weights."""
    linear = attention.kwargs.get("wo")
    init = linear.kwargs.get("param_init") if isinstance(linear, Call) else None
    weight = init.get("weight") if isinstance(init, dict) else None
    return weight.kwargs["std"] if isinstance(weight, Call) and _number(weight, "std") else None
