"""Modules that work on each token by itself, recognised by the shapes of their weights."""

from __future__ import annotations

from typing import Any

from torch import nn

from planner.huggingface.module_inspection.module import Module, elements

Fields = dict[str, Any]
ROUTERS = ("router.layer", "router.classifier", "router.gate", "router.proj", "router", "gate")


def mlp(module: Module, hidden: int) -> Fields | None:
    """An MLP: one matrix to the hidden size; one, two or a joined pair of matrices from it."""
    if module.find("time_mix_key") is not None:
        value = module.matrix("value")
        module.take(*module.shapes, "key", "receptance")
        return {"kind": "rwkv_channel_mix", "width": value.inputs} if value else None
    found = list(module.matrices.values())
    out = next((m for m in reversed(found) if m.outputs == hidden), None)
    if out is None or not 2 <= len(found) <= 3:
        return None
    into = [m for m in found if m is not out]
    if any(m.inputs != hidden for m in into):
        return None
    width = sum(m.outputs for m in into)
    if width not in (out.inputs, 2 * out.inputs):
        return None
    module.take(*(m.name for m in found))
    biased = {bool(m.bias) for m in found}
    return {
        "kind": "mlp",
        "width": out.inputs,
        "gated": width == 2 * out.inputs,
        "bias": biased == {True},
    }


def experts(module: Module, config: Any, hidden: int) -> Fields | None:
    """Routed experts in one tensor or in a list of modules, their router, and shared experts."""
    latents = _latents(module)
    routed = _stacked(module, latents.get("latent_size", hidden)) or _listed(module, hidden)
    router = _router(module, hidden) if routed else None
    top_k = _top_k(module, config)
    if routed is None or router is None or router[0] < routed["num_experts"]:
        return None
    outputs, biased = router
    return {
        **routed,
        "top_k": top_k,
        "router_bias": biased,
        "zero_experts": outputs - routed["num_experts"],
        **latents,
        **_shared(module, hidden),
    }


def _router(module: Module, hidden: int) -> tuple[int, bool] | None:
    """Outputs of the router, and whether it has a bias; its weight may be a bare parameter."""
    names = [name for name in (module.find(router) for router in ROUTERS) if name]
    for name in names:
        shape = module.shapes.get(name) or module.shapes[f"{name}.weight"]
        if len(shape) == 2 and shape[1] == hidden:
            module.take(name)
            return shape[0], f"{name}.bias" in module.shapes
    return None


def _stacked(module: Module, outer: int) -> Fields | None:
    """Experts stored as 3-D tensors: the number of experts and two widths."""
    joined = module.find("experts.gate_up_proj", "experts.input_linear", "input_linear")
    into = joined or module.find("experts.up_proj")
    down = module.find("experts.down_proj", "experts.output_linear", "output_linear")
    if into is None or down is None:
        return None
    shape, out = (module.shapes.get(n) or module.shapes[f"{n}.weight"] for n in (into, down))
    if len(shape) != 3 or len(out) != 3 or outer not in out[1:]:
        return None
    biases = [n for n in module.shapes if n in (f"{into}_bias", f"{down}_bias")]
    module.take(into, down, *biases)
    return {
        "num_experts": out[0],
        "expert_ffn_hidden_size": elements(out) // out[0] // outer,
        "expert_bias": bool(biases),
        "_gated": elements(shape) == 2 * elements(out),
    }


def _listed(module: Module, hidden: int) -> Fields | None:
    """Experts stored as a list of equal modules."""
    for name, part in module.source.named_modules():
        if not isinstance(part, nn.ModuleList | nn.ModuleDict) or "expert" not in name:
            continue
        every = list(part.values() if isinstance(part, nn.ModuleDict) else part)
        one = mlp(Module(every[0]), hidden) if every else None
        if one is None or len(every) < 2:
            continue
        module.take(*(n for n in module.shapes if n.startswith(name + ".")))
        return {
            "num_experts": len(every),
            "expert_ffn_hidden_size": one["width"],
            "expert_bias": one["bias"],
            "_gated": one["gated"],
        }
    return None


def _top_k(module: Module, config: Any) -> int | None:
    for name in ("num_experts_per_tok", "moe_topk", "top_k", "moe_k", "moe_top_k", "top_k_experts"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return module.attribute("top_k", "num_experts_per_tok") or 1


def _shared(module: Module, hidden: int) -> Fields:
    """The shared expert, a dense MLP, and its gate."""
    for name, part in module.source.named_children():
        if "shared" not in name or name.endswith("gate"):
            continue
        own = Module(part)
        found = mlp(own, hidden)
        if found is None or found["kind"] != "mlp":
            continue
        module.take(*(f"{name}.{n}" for n in own.taken))
        gate = module.matrix("shared_expert_gate")
        return {
            "shared_expert_ffn_hidden_size": found["width"],
            "shared_expert_gate": gate is not None,
            "_shared_gated": found["gated"],
        }
    return {}


def _latents(module: Module) -> Fields:
    into, out = module.matrix("fc1_latent_proj"), module.matrix("fc2_latent_proj")
    if into is None or out is None:
        return {}
    return {"latent_size": into.outputs, "latent_bias": bool(into.bias)}
