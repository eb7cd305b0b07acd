"""Reads the fields of a ModelSpec from the configs that a registry module builds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.frameworks.python.static_values import Call, Unknown, Value
from planner.frameworks.read_results import Unreadable
from planner.frameworks.torchtitan import numerics
from planner.frameworks.torchtitan.trainer_settings import source_of

# Class of the whole model -> package.
MODELS = {
    "Llama3Model.Config": "llama3",
    "Qwen3Model.Config": "qwen3",
    "DeepSeekV3Model.Config": "deepseek_v3",
    "GptOssModel.Config": "gpt_oss",
}
KERNELS = {"FlexAttention.Config": "flex", "VarlenAttention.Config": "varlen"}
DISPATCHERS = {
    "AllToAllTokenDispatcher.Config": "standard",
    "DeepEPTokenDispatcher.Config": "deepep",
    "HybridEPTokenDispatcher.Config": "hybridep",
    "MinimalAsyncEPTokenDispatcher.Config": "minimal_async_ep",
}
_REQUIRED = object()


@dataclass
class Architecture:
    """The fields of a model, and the parts of its config that belong to the plan.

    attention, dispatcher: torchtitan's names of backends; converters: in order of application.
    """

    package: str
    model: dict[str, Any]
    attention: str = "flex"
    dispatcher: str = "standard"
    converters: list[Call] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)


class Tree:
    """Reads the calls of one file."""

    def __init__(self, file: str) -> None:
        self.file = file

    def wrong(self, text: str, line: int) -> Unreadable:
        return Unreadable(text, self.file, line)

    def get(self, call: Call, name: str, default: Any = _REQUIRED) -> Any:
        """An argument of a call.

        Raises Unreadable if it is required and missing, or unknown.
        """
        value = call.kwargs.get(name, default)
        if value is _REQUIRED:
            raise self.wrong(f"{call.short} has no {name}", call.line)
        if isinstance(value, Unknown):
            raise self.wrong(
                f"{name} of {call.short} is `{value.source}`, which the file does not say",
                value.line,
            )
        return value

    def number(self, call: Call, name: str, default: Any = _REQUIRED) -> Any:
        value = self.get(call, name, default)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self.wrong(f"{name} of {call.short} must be an integer, got {value!r}", call.line)

    def part(self, call: Call, name: str) -> Call:
        value = self.get(call, name)
        if not isinstance(value, Call):
            raise self.wrong(f"{name} of {call.short} must be a config, got {value!r}", call.line)
        return value

    def architecture(self, value: Value) -> Architecture:
        """The architecture in the config of a whole model, with the converters applied to it."""
        converters: list[Call] = []
        while isinstance(value, Call) and value.name == "convert" and value.args:
            built = value.owner
            if isinstance(built, Call) and isinstance(built.owner, Call):
                converters.insert(0, built.owner)
            value = value.args[0]
        if not isinstance(value, Call) or value.short not in MODELS:
            line = value.line if isinstance(value, Call | Unknown) else 0
            raise self.wrong(
                f"{source_of(value)} cannot be read as a model: only {', '.join(MODELS)} or "
                "model_registry(...)",
                line,
            )
        package = MODELS[value.short]
        layers = self.get(value, "layers")
        if not isinstance(layers, list) or not layers or len(layers) > 10_000:
            raise self.wrong("layers must be a list of 1 to 10000 configs", value.line)
        if not all(isinstance(one, Call) for one in layers):
            raise self.wrong("a layer is not a config that can be read", value.line)
        result = Architecture(package, {}, converters=converters)
        predicted = self.get(value, "mtp_layers", [])
        result.model = {
            "num_layers": len(layers),
            "hidden_size": self.number(value, "dim"),
            "vocab_size": self.number(value, "vocab_size"),
            "tied_embeddings": self.get(value, "enable_weight_tying", False) is True,
            "norm": "rmsnorm",
            "gated_mlp": True,
            "position": "rope",
            "mtp_num_layers": len(predicted) if isinstance(predicted, list) else 0,
        }
        self.attention(result, layers)
        self.mlps(result, layers)
        result.model["numerics"] = self.numerics(layers) | dict(numerics.own(result.package))
        return result

    def numerics(self, layers: Sequence[Call]) -> dict[str, Any]:
        """Numerics of the first layer, and of the router in the first layer with experts."""
        norm = layers[0].kwargs.get("attention_norm")
        moes = (one.kwargs.get("moe") for one in layers)
        moe = next((one for one in moes if isinstance(one, Call)), None)
        router = moe.kwargs.get("router") if moe is not None else None
        return numerics.read(
            self.part(layers[0], "attention"),
            norm if isinstance(norm, Call) else None,
            router if isinstance(router, Call) else None,
        )

    # Attention.

    def attention(self, result: Architecture, layers: Sequence[Call]) -> None:
        first = self.part(layers[0], "attention")
        heads = self.number(first, "n_heads")
        result.attention = self.kernel(first)
        result.model["num_attention_heads"] = heads
        if result.package == "deepseek_v3":
            names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
            result.model["mla"] = {
                "q_lora_rank": self.number(first, "q_lora_rank", 0) or None,
                **{name: self.number(first, name) for name in names},
            }
            hidden = result.model["hidden_size"]
            result.model["head_dim"] = hidden // heads if hidden % heads == 0 else hidden
            return
        oss = result.package == "gpt_oss"
        dim = self.number(first, "head_dim", None)
        if dim is None:
            dim = result.model["hidden_size"] // max(heads, 1)
        result.model |= {
            "num_query_groups": self.number(first, "n_kv_heads", None) or heads,
            "head_dim": dim,
            "qkv_bias": self.qkv_bias(first),
            "qk_norm": "none" if first.kwargs.get("qk_norm") is None else "head",
        }
        if oss:
            result.model |= {"attention_sinks": True, "attention_output_bias": True}
            result.model |= self.windows(result, layers)

    def kernel(self, attention: Call) -> str:
        found = attention.kwargs.get("inner_attention")
        if isinstance(found, Call):
            if found.short == "get_attention_config" and found.args:
                return str(found.args[0])
            return KERNELS.get(found.short, "flex")
        return "flex"

    def qkv_bias(self, attention: Call) -> bool:
        found = attention.kwargs.get("qkv_linear")
        linear = found.kwargs.get("wqkv", found.kwargs.get("wq")) if isinstance(found, Call) else 0
        return isinstance(linear, Call) and self.get(linear, "bias", False) is True

    def windows(self, result: Architecture, layers: Sequence[Call]) -> dict[str, Any]:
        sizes = [
            self.number(self.part(layer, "attention"), "sliding_window_size", None)
            for layer in layers
        ]
        known = {size for size in sizes if size is not None}
        if not known:
            return {}
        full = [index for index, size in enumerate(sizes) if size is None]
        if not full:
            return {"sliding_window": max(known)}
        period = full[0] + 1
        if full != list(range(period - 1, len(layers), period)):
            period = max(round(len(layers) / len(full)), 1)
            result.assumed.append(
                f"{len(full)} of {len(layers)} layers have full attention, assumed evenly spaced"
            )
        return {"sliding_window": max(known), "full_attention_period": period}

    # MLPs and experts.

    def width(self, mlp: Call) -> int:
        if "hidden_dim" in mlp.kwargs:
            return int(self.number(mlp, "hidden_dim"))
        return int(self.number(self.part(mlp, "w1"), "out_features"))

    def mlps(self, result: Architecture, layers: Sequence[Call]) -> None:
        routed = [i for i, one in enumerate(layers) if one.kwargs.get("moe") is not None]
        dense = [i for i, one in enumerate(layers) if one.kwargs.get("moe") is None]
        if dense:
            result.model["ffn_hidden_size"] = self.width(
                self.part(layers[dense[0]], "feed_forward")
            )
        if not routed:
            return
        moe = self.part(layers[routed[0]], "moe")
        spec = self.experts(result, moe)
        if not dense:
            result.model["ffn_hidden_size"] = spec["expert_ffn_hidden_size"]
        step = routed[1] - routed[0] if len(routed) > 1 else 1
        if routed != list(range(routed[0], len(layers), step)):
            result.assumed.append(
                f"layers {', '.join(map(str, routed))} have experts: assumed as every {step} from "
                f"{routed[0]}"
            )
        offset = routed[0] % step
        spec |= {
            "num_dense_layers": routed[0] - offset,
            "layer_frequency": step,
            "layer_offset": offset,
        }
        result.model["moe"] = spec

    def experts(self, result: Architecture, moe: Call) -> dict[str, Any]:
        router, routed = self.part(moe, "router"), self.part(moe, "routed_experts")
        inner = routed if "hidden_dim" in routed.kwargs else self.part(routed, "inner_experts")
        dispatcher = routed.kwargs.get("token_dispatcher", routed)
        if isinstance(dispatcher, Call):
            found = dispatcher.kwargs.get("comm_backend")
            result.dispatcher = str(found or DISPATCHERS.get(dispatcher.short, "standard"))
        gate = router.kwargs.get("gate")
        bias = self.get(gate if isinstance(gate, Call) else router, "bias", False) is True
        shared = moe.kwargs.get("shared_experts")
        return {
            "num_experts": self.number(moe, "num_experts", 8),
            "top_k": self.number(router, "top_k", 1),
            "expert_ffn_hidden_size": self.number(inner, "hidden_dim"),
            "shared_expert_ffn_hidden_size": self.width(shared) if isinstance(shared, Call) else 0,
            "num_groups": self.number(router, "num_expert_groups", None),
            "top_k_groups": self.number(router, "num_limited_groups", None),
            "router_bias": bias,
            "score_correction_bias": self.get(moe, "load_balance_coeff", 1e-3) is not None,
            "expert_bias": result.package == "gpt_oss",
        }
