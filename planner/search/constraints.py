"""What makes a plan illegal: named rules over arrays of plans, each with a reason code.

A rule is one pure function from (model, cluster, training, plans) to a boolean per plan; the
search applies it to millions, `why` and the parsers to one.  Frameworks bring rules of the
same shape (planner/frameworks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cost_models.adapters import adapted
from cost_models.keys import group
from cost_models.layers import layers_of
from cost_models.optimizers import OPTIMIZERS
from cost_models.plans import (
    FIELDS,
    RECOMPUTE_MODULES,
    VOCABULARIES,
    IntArray,
    ParallelPlan,
    Plans,
    code,
)
from cost_models.runtimes import RUNTIMES, traits
from cost_models.schedules import SCHEDULES
from cost_models.spec import ClusterSpec, ModelSpec, TrainingSpec
from cost_models.stages import is_loop, middle_layers, virtual_stage_count
from cost_models.tuning import matrices
from planner.documents.answer import Reason

BoolArray = NDArray[np.bool_]
# What a rule reads: degrees: tp, cp, pp, dp; groups: also ep, etp, sequence parallelism; layout:
# how layers fall on stages and chunks; plan: anything.  The search applies a rule as soon as its
# columns exist, and again to whole plans where it also reads a field that is still open then.
Level = Literal["degrees", "groups", "layout", "plan"]


@dataclass(frozen=True)
class Context:
    """What a rule may look at besides the plans."""

    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec


@dataclass(frozen=True)
class Rule:
    """A legality rule.

    code: a key of planner.documents.answer.REASONS.  legal(context, plans): True where the plan passes.
    explain(context, plan): one sentence with the numbers that bind, for a plan that fails.
    """

    code: str
    legal: Callable[[Context, Plans], BoolArray]
    explain: Callable[[Context, ParallelPlan], str]
    level: Level = "plan"


class _Watched(Plans):
    """Plans that remember which of their fields were read."""

    def __getattribute__(self, name: str) -> Any:
        if name in _NAMES:
            object.__getattribute__(self, "__dict__").setdefault("read", set()).add(name)
        return object.__getattribute__(self, name)


_NAMES = frozenset(FIELDS)


def judged(rule: Rule, context: Context, plans: Plans) -> tuple[BoolArray, set[str]]:
    """Where plans pass a rule, and the fields that it read."""
    watched = _Watched(**dict(plans.columns()), stage_layers_table=plans.stage_layers_table)
    passes = rule.legal(context, watched)
    return passes, watched.__dict__.get("read", set())


def passing(rules: Iterable[Rule], context: Context, plans: Plans) -> BoolArray:
    """Which of some plans every rule passes."""
    legal = np.ones(len(plans), dtype=np.bool_)
    for rule in rules:
        legal &= rule.legal(context, plans)
    return legal


def violations(context: Context, plan: ParallelPlan, rules: Iterable[Rule]) -> list[Reason]:
    """Every rule one plan breaks, with its sentence."""
    row = Plans.of(plan)
    broken = []
    for rule in rules:
        if not rule.legal(context, row).all():
            broken.append(Reason(code=rule.code, text=rule.explain(context, plan)))
    return broken


def _divides(divisor: IntArray, value: Any) -> BoolArray:
    return np.asarray(np.asarray(value) % np.maximum(divisor, 1) == 0, dtype=np.bool_)


def _world(c: Context, p: Plans) -> BoolArray:
    return np.asarray(p.tp * p.cp * p.pp * p.dp == c.cluster.accelerators)


def _batch(c: Context, p: Plans) -> BoolArray:
    return _divides(p.dp * p.micro_batch_size, c.training.global_batch_size)


def _heads(c: Context, p: Plans) -> BoolArray:
    split = p.tp * np.where(p.cp_kind == code("cp_kind", "a2a"), p.cp, 1)
    return _divides(split, c.model.num_attention_heads)


def _kv_heads(c: Context, p: Plans) -> BoolArray:
    if c.model.mla is not None:
        return np.ones(np.shape(p.tp), dtype=np.bool_)
    groups = c.model.num_query_groups
    # All-to-all splits the heads a rank holds over cp; it cannot repeat them.
    exchanged = np.where(p.cp_kind == code("cp_kind", "a2a"), p.cp, 1)
    repeated = (p.tp % groups == 0) & (exchanged == 1)
    return np.asarray(_divides(p.tp * exchanged, groups) | repeated)


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
        legal = legal & _divides(getattr(p, field), width)
    return legal


def _ffn_text(c: Context, p: ParallelPlan) -> str:
    bad = [
        f"{name} {width} is not a multiple of {field} {getattr(p, field)}"
        for name, width, field in _widths(c)
        if width % getattr(p, field)
    ]
    return "; ".join(bad)


def _sequence(c: Context, p: Plans) -> BoolArray:
    seq = c.training.seq_length
    chunks = np.where((p.cp > 1) & (p.cp_kind != code("cp_kind", "a2a")), 2 * p.cp, p.cp)
    shards = p.cp * np.where(p.sequence_parallel > 0, p.tp, 1)
    return np.asarray(_divides(chunks, seq) & _divides(shards, seq))


def _cp_text(c: Context, p: ParallelPlan) -> str:
    seq = c.training.seq_length
    chunks = 2 * p.cp if p.cp > 1 and p.cp_kind != "a2a" else p.cp
    if seq % chunks:
        balanced = " x 2 for causal balance" if chunks > p.cp else ""
        return f"seq_length {seq} does not split into {chunks} parts (cp {p.cp}{balanced})"
    shards = p.cp * p.tp
    return f"seq_length {seq} does not split into {shards} parts (cp {p.cp} x tp {p.tp})"


def _dynamic(c: Context, p: Plans) -> BoolArray:
    """One pass after the other, of one sample each, on ranks whose number is a power of two."""
    ranks = p.dp * p.cp
    alone = (p.pp == 1) & (p.ep == 1) & (p.micro_batch_size == 1) & (ranks & (ranks - 1) == 0)
    tokens = not c.model.encoders and c.training.loss == "next_token"
    padded = bool(c.training.sample_lengths) and not c.training.packs
    return np.asarray((p.dynamic_cp == 0) | (p.cp == 1) | (alone & tokens & (not padded)))


def _dynamic_text(c: Context, p: ParallelPlan) -> str:
    return (
        "dynamic_cp needs packed samples of tokens and their loss, a power of two of dp x cp "
        "ranks, and pp, ep and micro_batch_size 1: a rank runs one sample after the other, as many "
        f"as fall to it; got pp {p.pp}, ep {p.ep}, micro_batch_size {p.micro_batch_size}, "
        f"dp x cp {p.dp * p.cp}"
    )


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
    grid = _divides(p.ep * p.etp, p.tp * p.cp * p.dp)
    return grid & _divides(p.ep, c.model.moe.num_experts)


def _experts_text(c: Context, p: ParallelPlan) -> str:
    if c.model.moe is None:
        return f"ep {p.ep} and etp {p.etp}: {c.model.name} has no experts"
    experts, ranks = c.model.moe.num_experts, p.tp * p.cp * p.dp
    if experts % p.ep:
        return f"{experts} experts do not divide over ep {p.ep}"
    return f"ep {p.ep} x etp {p.etp} does not divide the {ranks} ranks of tp x cp x dp"


def _layers(c: Context, p: Plans) -> BoolArray:
    _, whole = middle_layers(c.model.num_layers, p)
    single = (p.first_stage_layers == 0) & (p.last_stage_layers == 0)
    legal = np.where(p.pp == 1, single, whole)
    if p.stage_layers_table:
        sums, least = p.of_stage_layers(sum), p.of_stage_layers(min, 1)
        # A virtual stage may hold the embedding, multi-token prediction or the head alone.
        apart = (p.of_stage_layers(len) == virtual_stage_count(p)) & (p.pp > 1)
        filled = (least >= 1) | (apart & (least >= 0))
        legal = np.where(p.stage_layers > 0, (sums == c.model.num_layers) & filled, legal)
    return np.asarray(legal, dtype=np.bool_)


def _layers_text(c: Context, p: ParallelPlan) -> str:
    layers = c.model.num_layers
    if p.stage_layers:
        return f"stage_layers must be >= 1 and sum to {layers}, got {sum(p.stage_layers)}"
    if p.pp == 1:
        return "first_stage_layers and last_stage_layers need pp > 1"
    if p.first_stage_layers or p.last_stage_layers:
        return (
            f"{layers} layers less {p.first_stage_layers} first and {p.last_stage_layers} last do "
            f"not divide over the other stages of {p.pp}"
        )
    return f"{layers} layers do not divide over {p.pp} stages; give first/last_stage_layers"


def _vpp(c: Context, p: Plans) -> BoolArray:
    """Chunks hold whole layers, and the ends keep at least one in their first and last chunk."""
    even = (p.first_stage_layers == 0) & (p.last_stage_layers == 0) & (p.stage_layers == 0)
    virtual = virtual_stage_count(p)
    folded = np.asarray(even & _divides(virtual, c.model.num_layers) & (p.pp > 1))
    middle, _ = middle_layers(c.model.num_layers, p)
    per_chunk = middle // np.maximum(p.vpp, 1)
    rest = c.model.num_layers - p.first_stage_layers - p.last_stage_layers
    others = np.where(p.pp == 2, rest, middle)
    both = (p.first_stage_layers == 0) & (p.last_stage_layers == 0)
    others = np.where(both, middle, others)
    first = np.where(p.first_stage_layers > 0, p.first_stage_layers, others) - middle
    last = np.where(p.last_stage_layers > 0, p.last_stage_layers, others) - middle
    legal = _divides(p.vpp, middle) & (per_chunk + first >= 1) & (per_chunk + last >= 1)
    legal &= p.pp > 1
    loop = is_loop(p.schedule)
    if p.stage_layers_table:
        apart = (p.of_stage_layers(len) == virtual) & (p.pp > 1)
        common = p.of_stage_layers(lambda layers: gcd(*layers))
        legal = np.where(p.stage_layers > 0, apart | _divides(p.vpp, common), legal)
        folded |= apart
    return np.asarray(np.where(loop, (p.vpp == 1) | legal, folded))


def _vpp_text(c: Context, p: ParallelPlan) -> str:
    if p.pp == 1:
        return f"{p.schedule} with vpp {p.vpp} needs pp > 1"
    if SCHEDULES[p.schedule].placement != "loop":
        count = int(virtual_stage_count(Plans.from_rows([p]))[0])
        return (
            f"{p.schedule} splits {c.model.num_layers} layers evenly over {count} virtual stages, "
            "unless stage_layers names those of each"
        )
    return f"the layers of a stage ({c.model.num_layers} over pp {p.pp}) do not split in {p.vpp}"


def micro_batches(c: Context, p: Plans) -> IntArray:
    """Micro-batches per pipeline and step (exact where _batch holds)."""
    return np.asarray(c.training.global_batch_size // np.maximum(p.dp * p.micro_batch_size, 1))


def _schedule(c: Context, p: Plans) -> BoolArray:
    """What the schedule itself can order, and what its runtime adds."""
    count = micro_batches(c, p)
    groups = group(p.schedule, p.pp, p.vpp, count)
    firsts = groups.first
    size = (max(len(p), count.size),)
    rows = zip(
        *(np.broadcast_to(a, size)[firsts].tolist() for a in (p.schedule, p.pp, p.vpp, count)),
        strict=True,
    )
    allowed = np.array([not _schedule_refusal(*row) for row in rows], dtype=np.bool_)
    interleaved = p.schedule == code("schedule", "interleaved-1f1b")
    runtime = traits(p.runtime)
    rounds = interleaved & (np.asarray(runtime.whole_interleaved_rounds) > 0)
    plain = p.schedule == code("schedule", "1f1b")
    fills = plain & (np.asarray(runtime.fills_the_pipeline) > 0)
    return np.asarray(
        groups.spread(allowed) & (~rounds | (count % p.pp == 0)) & (~fills | (count >= p.pp))
    )


@lru_cache(maxsize=1 << 14)
def _schedule_refusal(schedule: int, stages: int, chunks: int, count: int) -> str:
    """Why a schedule cannot order so many micro-batches; "" if it can, or without a pipeline."""
    if count < 1:
        return f"no micro-batch is left: {count}"
    if stages == 1:
        return ""
    return SCHEDULES[VOCABULARIES["schedule"][schedule]].allowed(stages, chunks, count)


def _schedule_text(c: Context, p: ParallelPlan) -> str:
    count = c.training.global_batch_size // (p.dp * p.micro_batch_size)
    own = _schedule_refusal(code("schedule", p.schedule), p.pp, p.vpp, count)
    if own:
        return own
    if p.schedule == "interleaved-1f1b":
        return f"Megatron interleaves a multiple of pp {p.pp} micro-batches, got {count}"
    return f"torch's 1F1B needs at least pp {p.pp} micro-batches, got {count}"


def _zero(c: Context, p: Plans) -> BoolArray:
    sharded = p.dp * p.cp
    whole = (p.dp_shard == 0) | _divides(p.dp_shard, sharded)
    if c.model.moe is not None:
        # Hybrid sharding replicates the experts dp x cp / dp_shard times as well.
        experts = p.tp * sharded // np.maximum(p.etp * p.ep, 1)
        copies = sharded // np.maximum(p.dp_shard, 1)
        whole &= (p.dp_shard == 0) | _divides(copies, experts)
    # FSDP under a pipeline must keep its gathered weights between micro-batches (torch).
    keeps = np.asarray(traits(p.runtime).keeps_gathered_weights) > 0
    piped = (p.pp == 1) | (p.zero_stage < 2) | (keeps & (p.reshard_after_forward == 0))
    return np.asarray(whole & piped)


def _zero_text(c: Context, p: ParallelPlan) -> str:
    if p.dp_shard and (p.dp * p.cp) % p.dp_shard:
        return f"dp_shard {p.dp_shard} does not divide dp x cp = {p.dp * p.cp}"
    if p.dp_shard and c.model.moe is not None:
        experts, copies = p.tp * p.dp * p.cp // (p.etp * p.ep), p.dp * p.cp // p.dp_shard
        if experts % copies:
            return (
                f"the {copies} replicas of dp_shard {p.dp_shard} do not divide the {experts} "
                + ("ranks that hold the same experts")
            )
    keeps = RUNTIMES[p.runtime].keeps_gathered_weights
    return f"zero_stage {p.zero_stage} with pp {p.pp} on the {p.runtime} runtime" + (
        " needs reshard_after_forward false" if keeps else " is not possible"
    )


def _recompute(c: Context, p: Plans) -> BoolArray:
    bits = p.recompute_modules
    allowed = sum(
        1 << i for i, module in enumerate(RECOMPUTE_MODULES) if _module_exists(c.model, module)
    )
    legal = (bits & ~allowed) == 0
    full = p.recompute == code("recompute", "full")
    legal &= ~full | (p.recompute_num_layers <= c.model.num_layers)
    # What per-operator recompute keeps is torch's rule, and it is all or nothing.
    operators = 1 << RECOMPUTE_MODULES.index("op")
    by_operator = np.asarray(traits(p.runtime).recomputes_operators) > 0
    legal &= ((bits & operators) == 0) | (by_operator & (bits == operators))
    unfused = p.attention_kernel == code("attention_kernel", "unfused")
    return np.asarray(legal & ~(unfused & (p.cp > 1)))


def _module_exists(model: ModelSpec, module: str) -> bool:
    if module == "mlp":
        return "dense" in model.feed_forwards
    if module == "mla_up_proj":
        return model.mla is not None
    if module == "shared_experts":
        return model.moe is not None and model.moe.shared_expert_ffn_hidden_size > 0
    if module in ("moe", "moe_act"):
        return model.moe is not None
    return True


def _recompute_text(c: Context, p: ParallelPlan) -> str:
    missing = [m for m in p.recompute_modules if not _module_exists(c.model, m)]
    if missing:
        return f"{c.model.name} has no {', '.join(missing)} to recompute"
    by_operator = RUNTIMES[p.runtime].recomputes_operators
    if "op" in p.recompute_modules and (not by_operator or len(p.recompute_modules) > 1):
        able = ", ".join(name for name, runtime in RUNTIMES.items() if runtime.recomputes_operators)
        return f"recompute_modules op stands alone and on runtime {able} only, not {p.runtime}"
    if p.recompute_num_layers > c.model.num_layers:
        return f"recompute_num_layers {p.recompute_num_layers} of {c.model.num_layers} layers"
    return f"unfused attention cannot split the sequence over cp {p.cp}"


def _offload(c: Context, p: Plans) -> BoolArray:
    group = c.cluster.groups[0]
    legal = (p.offload_optimizer == 0) & (p.offload_activations == 0)
    return np.asarray(legal | (group.host_link_bytes_per_s is not None))


def _offloaded_layers(c: Context, p: Plans) -> BoolArray:
    some = (p.offload_activations > 0) & (p.offload_num_layers <= c.model.num_layers)
    return np.asarray((p.offload_num_layers == 0) | some)


def _offloads_elementwise(c: Context, p: Plans) -> BoolArray:
    return np.asarray((p.offload_optimizer == 0) | (not OPTIMIZERS[c.training.optimizer].by_matrix))


def _adapters(c: Context, p: Plans) -> BoolArray:
    if not c.training.lora_rank:
        return np.ones((), dtype=np.bool_)
    names = adapted(c.model, c.training.lora_targets).keys()
    kinds = layers_of(c.model).kinds
    return np.asarray(any(names & matrices(c.model, kind).keys() for kind in kinds))


RULES: tuple[Rule, ...] = (
    Rule(
        "adapters",
        _adapters,
        lambda c, p: f"{c.model.name} has no {', '.join(c.training.lora_targets)} to adapt",
        "degrees",
    ),
    Rule(
        "world_size",
        _world,
        lambda c, p: (
            f"tp {p.tp} x cp {p.cp} x pp {p.pp} x dp {p.dp} = {p.accelerators}, "
            f"the cluster has {c.cluster.accelerators} accelerators"
        ),
        "degrees",
    ),
    Rule(
        "batch_identity",
        _batch,
        lambda c, p: (
            f"global_batch_size {c.training.global_batch_size} is not a multiple of "
            f"dp {p.dp} x micro_batch_size {p.micro_batch_size}"
        ),
    ),
    Rule(
        "heads_not_divisible",
        _heads,
        lambda c, p: (
            f"{c.model.num_attention_heads} attention heads do not divide over tp {p.tp}"
            + (f" x cp {p.cp}" if p.cp_kind == "a2a" else "")
        ),
        "degrees",
    ),
    Rule(
        "kv_heads",
        _kv_heads,
        lambda c, p: (
            f"{c.model.num_query_groups} key/value heads and tp {p.tp}"
            + (f" x cp {p.cp}" if p.cp_kind == "a2a" else "")
            + " do not divide each other"
        ),
        "degrees",
    ),
    Rule("ffn_not_divisible", _ffn, _ffn_text, "groups"),
    Rule("sequence_parallel", _sequence_parallel, _sequence_parallel_text, "groups"),
    Rule("cp_seq", _sequence, _cp_text, "groups"),
    Rule("cp_seq", _dynamic, _dynamic_text),
    Rule("experts_not_divisible", _experts, _experts_text, "groups"),
    Rule("layers_not_divisible", _layers, _layers_text, "layout"),
    Rule("vpp_layout", _vpp, _vpp_text, "layout"),
    Rule("schedule_micro_batches", _schedule, _schedule_text),
    Rule("zero_stage", _zero, _zero_text),
    Rule("recompute", _recompute, _recompute_text),
    Rule(
        "offload",
        _offload,
        lambda c, p: "offload needs host_link_bytes_per_s in the cluster",
    ),
    Rule(
        "offload",
        _offloaded_layers,
        lambda c, p: (
            f"offload_num_layers {p.offload_num_layers} needs offload_activations, and at most "
            f"{c.model.num_layers} layers"
        ),
    ),
    Rule(
        "offload",
        _offloads_elementwise,
        lambda c, p: (
            f"{OPTIMIZERS[c.training.optimizer].title} needs whole matrices: no step on the host"
        ),
    ),
)
# A bound of the default space, not of what can run: a request that limits tp itself lifts it.
TP_IN_DOMAIN = Rule("tp_exceeds_domain", _domain, _domain_text, "degrees")
