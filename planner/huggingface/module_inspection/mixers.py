"""Modules that mix tokens, recognised by the shapes of their weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planner.huggingface.module_inspection.module import Matrix, Module

Fields = dict[str, Any]
QUERY = (
    "q_proj.linear", "q_proj", "query_proj", "project_q", "query", "Wq", "q_lin", "wq", "q",
)  # fmt: skip
KEY = ("k_proj.linear", "k_proj", "key_proj", "project_k", "key", "Wk", "k_lin", "wk", "k")
VALUE = (
    "v_proj.linear", "v_proj", "value_proj", "project_v", "value", "Wv", "v_lin", "wv", "v",
)  # fmt: skip
JOINED = ("qkv_proj", "query_key_value", "c_attn", "Wqkv", "qkv", "in_proj_qkv")
OUTPUT = (
    "o_proj.linear", "o_proj", "out_proj", "output.dense", "dense", "c_proj", "Wo",
    "attention_out", "projection", "proj", "out_lin", "output", "wo", "o",
)  # fmt: skip


def mixer(module: Module, config: Any, layer: int) -> Fields | None:
    """The document of the mixer block that a module implements; None if it is none of them."""
    for recognise in _RECOGNISERS:
        module.taken.clear()
        found = recognise(module, config, layer)
        if found is not None:
            return found
    module.taken.clear()
    return None


def _attention(module: Module, config: Any, layer: int) -> Fields | None:
    """Attention, by its projections; numbers of heads follow from the width of a head."""
    joined, out = module.matrix(*JOINED), module.matrix(*OUTPUT)
    query = joined or module.matrix(*QUERY)
    if out is None or query is None:
        return None
    key, value = module.matrix(*KEY), module.matrix(*VALUE)
    head_dim = _head_dim(module, config, query.outputs)
    if head_dim is None:
        return None
    if joined is not None:
        groups, value_dim = (joined.outputs - out.inputs) // (2 * head_dim), head_dim
        rest = joined.outputs - 2 * groups * head_dim
    else:
        groups, value_dim = _key_values(key, value, head_dim)
        rest = query.outputs
    heads = out.inputs // value_dim
    rest -= heads * head_dim
    if heads * value_dim != out.inputs or rest < 0:
        return None
    groups = int(groups or getattr(config, "num_key_value_heads", None) or heads)
    fields: Fields = {"kind": "attention", "num_attention_heads": heads, "head_dim": head_dim}
    fields["num_query_groups"] = groups
    if value_dim != head_dim:
        fields["value_head_dim"] = value_dim
    if joined is None:
        fields["key_values"] = "own" if value else "keys" if key else "earlier"
    fields |= _gate(module, heads, heads * value_dim, rest)
    fields["qk_norm"] = _query_key_norm(module, head_dim)
    fields["sinks"] = module.size("sinks") is not None
    fields |= _attention_span(module, config, layer) | _indexer(module, config)
    source = key.inputs if key else 0
    return fields | {"_bias": bool(query.bias), "_out_bias": bool(out.bias), "_source": source}


def _key_values(key: Matrix | None, value: Matrix | None, head_dim: int) -> tuple[int, int]:
    """(heads of keys and values, width of a value) by their own projections."""
    groups = key.outputs // head_dim if key else 0
    return groups, value.outputs // groups if value and groups else head_dim


def _gate(module: Module, heads: int, width: int, rest: int) -> Fields:
    """The gate on the output; rest: outputs of the query's projection that are no queries."""
    gate = module.matrix("g_proj", "gate_proj", "output_gate")
    gates = rest + (gate.outputs if gate else 0)
    return {"gate": {heads: "head", width: "element"}.get(gates, "none")} if gates else {}


def _query_key_norm(module: Module, head_dim: int) -> str:
    size = module.size("q_norm", "q_layernorm", "q_ln")
    module.take(module.find("k_norm", "k_layernorm", "k_ln") or "")
    return "none" if size is None else "head" if size <= 2 * head_dim else "full"


def _head_dim(module: Module, config: Any, width: int) -> int | None:
    own = module.attribute(
        "head_dim", "attention_head_size", "key_value_proj_dim", "d_head", "head_size",
        "dim_head", "dim_per_head",
    )  # fmt: skip
    if own:
        return int(own)
    heads = module.attribute("num_heads", "n_heads", "num_attention_heads", "n_head")
    heads = heads or getattr(config, "num_attention_heads", None)
    return width // int(heads) if heads else None


def _attention_span(module: Module, config: Any, layer: int) -> Fields:
    """The window or chunk that a query attends to, if any, and whether it has positions."""
    kinds = getattr(config, "layer_types", None)
    kind = kinds[layer] if isinstance(kinds, (list, tuple)) and layer < len(kinds) else ""
    fields: Fields = {}
    window = getattr(module.source, "sliding_window", None)
    if kind == "sliding_attention":
        window = window or getattr(config, "sliding_window", None)
    elif kind and "sliding" not in kind:
        window = None
    if isinstance(window, int) and window > 0:
        fields["window"] = window
    chunk = getattr(config, "attention_chunk_size", None)
    if kind == "chunked_attention" and isinstance(chunk, int):
        fields["chunk"] = chunk
    if getattr(module.source, "use_rope", True) in (False, 0):
        fields["rope"] = False
    return fields


def _indexer(module: Module, config: Any) -> Fields:
    """A lightning indexer; none in layers that reuse an earlier layer's choice or have none."""
    blocks = isinstance(getattr(config, "index_topk_blocks", None), int)
    found = (_block_indexer if blocks else _token_indexer)(module, config)
    return {"indexer": found} if found else {}


def _token_indexer(module: Module, config: Any) -> Fields | None:
    top_k = getattr(config, "index_topk", None)
    names = ("indexers_proj", "indexer.weights_proj", "indexer.scorers_proj", "weights_proj")
    query, key = module.matrix("indexer.wq_b", "indexer.q_proj"), module.matrix("indexer.wk")
    weights = module.matrix(*names)
    if not isinstance(top_k, int) or query is None or key is None or weights is None:
        return None
    norm = module.find("indexer.k_norm")
    bias = norm is not None and f"{norm}.bias" in module.shapes
    module.take(norm or "")
    return {
        "num_heads": weights.outputs,
        "head_dim": key.outputs,
        "top_k": top_k,
        "key_norm_bias": bias,
    }


def _block_indexer(module: Module, config: Any) -> Fields | None:
    """An indexer that picks blocks of keys (MiniMax-M3); layers without one attend to all keys."""
    query, key = module.matrix("indexer.q_proj"), module.matrix("indexer.k_proj")
    norms = [module.find(f"indexer.{name}_norm") for name in ("q", "k")]
    if query is None or key is None or None in norms:
        return None
    module.take(*(norm for norm in norms if norm))
    return {
        "num_heads": query.outputs // key.outputs,
        "head_dim": key.outputs,
        "block_size": config.index_block_size,
        "top_k": config.index_block_size * config.index_topk_blocks,
        "key_norm_bias": f"{norms[1]}.bias" in module.shapes,
        "query_norm": True,
        "head_weights": False,
    }


def _latent_attention(module: Module, config: Any, layer: int) -> Fields | None:
    down, up = module.matrix("kv_a_proj_with_mqa"), module.matrix("kv_b_proj")
    out = module.matrix("o_proj")
    query_down, query = module.matrix("q_a_proj"), module.matrix("q_b_proj", "q_proj")
    if down is None or up is None or out is None or query is None:
        return None
    heads = module.attribute("num_heads", "num_attention_heads") or config.num_attention_heads
    rank = up.inputs
    rope, value = down.outputs - rank, out.inputs // heads
    if rope < 1:
        return None
    mla = {
        "kv_lora_rank": rank,
        "q_lora_rank": query_down.outputs if query_down else None,
        "qk_nope_head_dim": up.outputs // heads - value,
        "qk_rope_head_dim": rope,
        "v_head_dim": value,
    }
    module.take("kv_a_layernorm", "q_a_layernorm")
    fields: Fields = {"kind": "latent_attention", "_mla": mla, "_heads": heads}
    gate = module.matrix("g_proj", "gate_proj")
    if gate is not None:
        fields["gate"] = "head" if gate.outputs == heads else "element"
    if module.size("k_rope_only_layernorm") is not None:
        fields["rope_key_norm"] = True
    fields |= _indexer(module, config)
    window = getattr(module.source, "sliding_window", None)
    if isinstance(window, int) and window > 0:
        fields["window"] = window
    sinks = module.size("sinks") is not None
    biased = bool(down.bias)
    return fields | {"_sinks": sinks, "_bias": biased, "_out_bias": bool(out.bias)}


def _compressed_attention(module: Module, config: Any, layer: int) -> Fields | None:
    down, lower = module.matrix("q_a_proj"), module.matrix("o_a_proj")
    out = module.matrix("o_b_proj")
    if down is None or lower is None or out is None:
        return None
    module.take("q_b_proj", "kv_proj", "q_a_norm", "kv_norm", "sinks")
    fields: Fields = {
        "kind": "compressed_attention",
        "q_lora_rank": down.outputs,
        "o_lora_rank": config.o_lora_rank,
        "o_groups": config.o_groups,
        "window": config.sliding_window,
        "_sinks": True,
        "_heads": config.num_attention_heads,
        "_head_dim": config.head_dim,
    }
    if module.find("compressor.kv_proj") is None:
        return fields
    inside = [name for name in module.shapes if name.startswith("compressor.")]
    position = module.shapes["compressor.position_bias"]
    module.taken.update(inside)
    fields["compression"] = position[0]
    if module.find("indexer.q_b_proj"):
        fields["choice"] = {
            "num_heads": config.index_n_heads,
            "head_dim": config.index_head_dim,
            "top_k": config.index_topk,
        }
    return fields


def _mamba2(module: Module, config: Any, layer: int) -> Fields | None:
    out, decays = module.matrix("out_proj"), module.size("A_log")
    convolution = module.find("conv1d")
    if out is None or decays is None or convolution is None or module.find("dt_bias") is None:
        return None
    into = module.matrix("in_proj")
    channels, _, taps = module.shapes[f"{convolution}.weight"]
    rest = channels - out.inputs
    state = module.attribute("ssm_state_size", "state_size")
    if into is None or not state or rest <= 0 or rest % (2 * state):
        return None
    module.take("conv1d", "D", "dt_bias")
    return {
        "kind": "mamba2",
        "num_heads": decays,
        "head_dim": out.inputs // decays,
        "state_size": state,
        "num_groups": rest // (2 * state),
        "convolution": taps,
        "convolution_bias": f"{convolution}.bias" in module.shapes,
        "bias": bool(into.bias),
        "gated_norm": module.size("norm") is not None,
        "chunk_size": module.attribute("chunk_size") or 128,
    }


def _mamba(module: Module, config: Any, layer: int) -> Fields | None:
    out, into, selection = (module.matrix(n) for n in ("out_proj", "in_proj", "x_proj"))
    step, convolution = module.matrix("dt_proj"), module.find("conv1d")
    if out is None or into is None or selection is None or step is None or convolution is None:
        return None
    norms = module.size("dt_layernorm") is not None
    taps = module.shapes[f"{convolution}.weight"][-1]
    module.take("conv1d", "A_log", "D", "b_layernorm", "c_layernorm")
    return {
        "kind": "mamba",
        "inner_size": out.inputs,
        "state_size": (selection.outputs - step.inputs) // 2,
        "time_step_rank": step.inputs,
        "convolution": taps,
        "convolution_bias": f"{convolution}.bias" in module.shapes,
        "bias": bool(into.bias),
        "selection_norms": norms,
    }


def _delta_net(module: Module, config: Any, layer: int) -> Fields | None:
    """Gated delta net: decays by head or by key channel; gates projected directly or low-rank."""
    convolution = module.find("conv1d")
    if module.find("A_log") is None or convolution is None or module.find("dt_bias") is None:
        return None
    heads = module.attribute("num_v_heads", "num_heads")
    key_heads = module.attribute("num_k_heads", "num_heads")
    key_dim = module.attribute("head_k_dim", "head_dim")
    value_dim = module.attribute("head_v_dim", "head_dim")
    if not (heads and key_heads and key_dim and value_dim):
        return None
    module.take("conv1d", "A_log", "dt_bias", "norm", "o_norm", "forget_gate.A_log")
    module.take("forget_gate.dt_bias")
    for name in (
        "in_proj_qkvz", "in_proj_ba", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a",
        "q_proj", "k_proj", "v_proj", "a_proj", "b_proj", "o_proj", "out_proj", "f_proj",
    ):  # fmt: skip
        module.matrix(name)
    decay, gate = module.matrix("f_a_proj"), module.matrix("g_a_proj")
    direct = module.matrix("g_proj")
    module.matrix("f_b_proj"), module.matrix("g_b_proj")
    channels = module.find("f_b_proj", "f_proj") is not None
    z = module.find("in_proj_z", "in_proj_qkvz") is not None
    return {
        "kind": "gated_delta_net",
        "num_key_heads": key_heads,
        "num_value_heads": heads,
        "key_head_dim": key_dim,
        "value_head_dim": value_dim,
        "convolution": module.shapes[f"{convolution}.weight"][-1],
        "channel_decays": channels,
        "decay_rank": decay.outputs if decay else None,
        "gate_rank": gate.outputs if gate else None,
        "gated": bool(gate or direct or z),
    }


def _lightning(module: Module, config: Any, layer: int) -> Fields | None:
    if "Lightning" not in type(module.source).__name__:
        return None
    joined, out = module.matrix("qkv_proj"), module.matrix("out_proj")
    gate, norm = module.matrix("output_gate"), module.size("norm")
    if joined is None or out is None:
        return None
    head_dim = module.attribute("head_dim")
    return {
        "kind": "lightning_attention",
        "num_heads": out.inputs // head_dim,
        "head_dim": head_dim,
        "gate": gate is not None,
        "output_norm": "all" if norm == out.inputs else "head" if norm else "none",
    }


def _short_convolution(module: Module, config: Any, layer: int) -> Fields | None:
    into, out = module.matrix("in_proj"), module.matrix("out_proj")
    convolution = module.find("conv")
    if into is None or out is None or convolution is None or into.outputs != 3 * into.inputs:
        return None
    module.take(convolution)
    return {
        "kind": "short_convolution",
        "taps": module.shapes[f"{convolution}.weight"][-1],
        "bias": bool(into.bias),
    }


def _time_mix(module: Module, config: Any, layer: int) -> Fields | None:
    if module.find("time_decay") is None:
        return None
    parts = [module.matrix(name) for name in ("key", "value", "receptance", "output")]
    module.take(*(name for name in module.shapes if name.startswith("time_")))
    return {"kind": "rwkv_time_mix", "width": parts[0].outputs} if parts[0] else None


def _linear_recurrent_unit(module: Module, config: Any, layer: int) -> Fields | None:
    out, gates = module.matrix("linear_out"), module.find("rg_lru.input_gate_weight")
    if out is None or gates is None:
        return None
    module.matrix("linear_x"), module.matrix("linear_y")
    blocks, taps = module.shapes[gates][0], module.shapes["conv_1d.weight"][-1]
    module.take("conv_1d", *(n for n in module.shapes if n.startswith("rg_lru.")))
    return {
        "kind": "linear_recurrent_unit",
        "width": out.inputs,
        "num_blocks": blocks,
        "convolution": taps,
    }


_RECOGNISERS: tuple[Callable[[Module, Any, int], Fields | None], ...] = (
    _time_mix, _linear_recurrent_unit, _mamba, _mamba2, _delta_net, _lightning,
    _short_convolution, _compressed_attention, _latent_attention, _attention,
)  # fmt: skip
