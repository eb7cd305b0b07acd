"""Rules on the sizes of process groups: the numbers that they must divide."""

from __future__ import annotations

import numpy as np

from cost_models.adapters import adapted
from cost_models.arrays import where
from cost_models.layers import layers_of
from cost_models.plans import ParallelPlan, Plans, code
from cost_models.trainable import matrices
from planner.constraints.rule import BoolArray, Context, Rule, divides, positions


def _adapters(c: Context, p: Plans) -> BoolArray:
    if not c.training.lora_rank:
        return np.ones((), dtype=np.bool_)
    names = adapted(c.model, c.training.lora_targets).keys()
    kinds = layers_of(c.model).kinds
    return np.asarray(any(names & matrices(c.model, kind).keys() for kind in kinds))


def _uses_all_accelerators(c: Context, p: Plans) -> BoolArray:
    return np.asarray(p.tp * p.cp * p.pp * p.dp == c.cluster.accelerators)


def _heads(c: Context, p: Plans) -> BoolArray:
    split = p.tp * where(p.cp_kind == code("cp_kind", "a2a"), p.cp, 1)
    return divides(split, c.model.num_attention_heads)


def _kv_heads(c: Context, p: Plans) -> BoolArray:
    if c.model.mla is not None:
        return np.ones(np.shape(p.tp), dtype=np.bool_)
    groups = c.model.num_query_groups
    # All-to-all splits the heads a rank holds over cp; it cannot repeat them.
    exchanged = where(p.cp_kind == code("cp_kind", "a2a"), p.cp, 1)
    repeated = (p.tp % groups == 0) & (exchanged == 1)
    return np.asarray(divides(p.tp * exchanged, groups) | repeated)


def _widths(c: Context) -> list[tuple[str, int, str]]:
    """(name, width, the field that divides it)."""
    model, rows = c.model, []
    if "dense" in model.feed_forwards:
        rows.append(("ffn_hidden_size", model.ffn_hidden_size, "tp"))
    if model.moe is not None:
        rows.append(("expert_ffn_hidden_size", model.moe.expert_ffn_hidden_size, "etp"))
        if model.moe.shared_expert_ffn_hidden_size:
            shared = model.moe.shared_expert_ffn_hidden_size
            rows.append(("shared_expert_ffn_hidden_size", shared, "tp"))
    return rows


def _ffn(c: Context, p: Plans) -> BoolArray:
    legal = np.ones((), dtype=np.bool_)
    for _, width, field in _widths(c):
        legal = legal & divides(getattr(p, field), width)
    return legal


def _ffn_text(c: Context, p: ParallelPlan) -> str:
    bad = [
        f"{name} {width} is not a multiple of {field} {getattr(p, field)}"
        for name, width, field in _widths(c)
        if width % getattr(p, field)
    ]
    return "; ".join(bad)


def _sequence(c: Context, p: Plans) -> BoolArray:
    seq = positions(c, p)
    chunks = where((p.cp > 1) & (p.cp_kind != code("cp_kind", "a2a")), 2 * p.cp, p.cp)
    shards = p.cp * where(p.sequence_parallel > 0, p.tp, 1)
    return np.asarray(divides(chunks, seq) & divides(shards, seq))


def _cp_text(c: Context, p: ParallelPlan) -> str:
    seq = c.training.seq_length
    chunks = 2 * p.cp if p.cp > 1 and p.cp_kind != "a2a" else p.cp
    if seq % chunks:
        balanced = " x 2 for causal balance" if chunks > p.cp else ""
        return f"seq_length {seq} does not split into {chunks} parts (cp {p.cp}{balanced})"
    shards = p.cp * p.tp
    return f"seq_length {seq} does not split into {shards} parts (cp {p.cp} x tp {p.tp})"


def _sequence_parallel(c: Context, p: Plans) -> BoolArray:
    legal = (p.sequence_parallel == 0) | (p.tp > 1)
    if c.model.moe is not None:
        legal &= (p.tp == 1) | (p.sequence_parallel > 0)
    return np.asarray(legal)


def _sequence_parallel_text(c: Context, p: ParallelPlan) -> str:
    if p.sequence_parallel:
        return f"sequence_parallel needs tp > 1, got tp {p.tp}"
    return f"experts with tp {p.tp} need sequence_parallel"


def _domain(c: Context, p: Plans) -> BoolArray:
    size = c.cluster.groups[0].network[0].domain_accelerators
    return np.asarray(p.tp <= (size or c.cluster.accelerators))


def _domain_text(c: Context, p: ParallelPlan) -> str:
    tier = c.cluster.groups[0].network[0]
    return f"tp {p.tp} is wider than the {tier.domain_accelerators} accelerators of {tier.name}"


def _experts(c: Context, p: Plans) -> BoolArray:
    if c.model.moe is None:
        return np.asarray((p.ep == 1) & (p.etp == 1))
    grid = divides(p.ep * p.etp, p.tp * p.cp * p.dp)
    return grid & divides(p.ep, c.model.moe.num_experts)


def _experts_text(c: Context, p: ParallelPlan) -> str:
    if c.model.moe is None:
        return f"ep {p.ep} and etp {p.etp}: {c.model.name} has no experts"
    experts, ranks = c.model.moe.num_experts, p.tp * p.cp * p.dp
    if experts % p.ep:
        return f"{experts} experts do not divide over ep {p.ep}"
    return f"ep {p.ep} x etp {p.etp} does not divide the {ranks} ranks of tp x cp x dp"


ADAPTERS = Rule(
    "adapters",
    _adapters,
    lambda c, p: f"{c.model.name} has no {', '.join(c.training.lora_targets)} to adapt",
    "degrees",
)
WORLD_SIZE = Rule(
    "world_size",
    _uses_all_accelerators,
    lambda c, p: (
        f"tp {p.tp} x cp {p.cp} x pp {p.pp} x dp {p.dp} = {p.accelerators}, "
        f"the cluster has {c.cluster.accelerators} accelerators"
    ),
    "degrees",
)
HEADS = Rule(
    "heads_not_divisible",
    _heads,
    lambda c, p: (
        f"{c.model.num_attention_heads} attention heads do not divide over tp {p.tp}"
        + (f" x cp {p.cp}" if p.cp_kind == "a2a" else "")
    ),
    "degrees",
)
KV_HEADS = Rule(
    "kv_heads",
    _kv_heads,
    lambda c, p: (
        f"{c.model.num_query_groups} key/value heads and tp {p.tp}"
        + (f" x cp {p.cp}" if p.cp_kind == "a2a" else "")
        + " do not divide each other"
    ),
    "degrees",
)
FFN = Rule("ffn_not_divisible", _ffn, _ffn_text, "groups")
SEQUENCE_PARALLEL = Rule("sequence_parallel", _sequence_parallel, _sequence_parallel_text, "groups")
SEQUENCE = Rule("cp_seq", _sequence, _cp_text, "groups")
EXPERTS = Rule("experts_not_divisible", _experts, _experts_text, "groups")
# A limit of the default space only, since larger tp can run: a request that limits tp lifts it.
TP_IN_DOMAIN = Rule("tp_exceeds_domain", _domain, _domain_text, "degrees")
