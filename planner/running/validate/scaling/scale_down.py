"""Scales a plan down to this machine by fixed rules that keep its structure.

Every dimension that the plan splits stays split in at least two while there are enough processes;
dp is reduced first, then cp, tp and pp, so that the dimensions that shape a step most are kept
longest.  A stage keeps its share of the layers, a layer its proportions, a step its micro-batches
per stage.  Each change lists what the smaller run cannot show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any

from cost_models.catalog import local
from cost_models.fields import Spec
from cost_models.package_files import table
from cost_models.plans import ParallelPlan
from cost_models.schedules import SCHEDULES
from cost_models.spec import ClusterSpec, EncoderSpec, MLASpec, ModelSpec, MoESpec, TrainingSpec
from cost_models.stage_layers import rank_layers
from planner.answers.plans import plan_answers
from planner.documents.problems import refuse
from planner.documents.request import PlanRequest
from planner.running.validate.scaling import encoders as scale_encoders
from planner.running.validate.scaling import patterns as scale_patterns

# Limit on CPU processes on one machine; starting 8 takes 20 s on two cores.
MAX_CPU_PROCESSES = 8
# The dimensions in the order in which they are reduced.
_REDUCTION_ORDER = ("dp", "cp", "tp", "pp")
# What a run hides when a field is reduced; "": nothing beyond the other fields.
_HIDES: dict[str, dict[str, str]] = table("planner.running.validate.scaling", "hides.json")


class Change(Spec):
    """A scaled field: its old and new value, and what the smaller run cannot show."""

    field: str
    was: Any
    now: Any
    hides: str


@dataclass(frozen=True)
class Sizes:
    """The sizes to which a model is scaled down for a CPU run."""

    hidden_size: int = 256
    head_dim: int = 32
    seq_length: int = 256
    vocab_size: int = 2048
    layers_per_chunk: int = 2
    most_layers_per_chunk: int = 8
    experts_per_rank: int = 4
    micro_batches_per_stage: int = 4


@dataclass(frozen=True)
class Scaled:
    """A request that this machine can run, and its changes from the asked one."""

    request: PlanRequest
    changes: tuple[Change, ...]

    @property
    def plan(self) -> ParallelPlan:
        return self.request.named_plan


def scaled(request: PlanRequest, sizes: Sizes | None = None) -> Scaled:
    """The request scaled to the accelerators or CPU cores of this machine.

    sizes: of the model on CPU processes; a plan for `local` keeps its own sizes, and so does a
    model on GPUs, except for the number of layers.
    Raises RequestError if no smaller plan satisfies the rules of the script.
    """
    machine = local.cluster()
    on_cpu = machine.groups[0].accelerator.id == local.CPU_ID
    processes = MAX_CPU_PROCESSES if on_cpu else machine.accelerators
    same = request.cluster.name.startswith("local")
    degrees = _degrees(request.named_plan, processes)
    return _scaled_to(request, degrees, local.cluster, sizes or Sizes(), same, on_cpu and not same)


def on_one_node(request: PlanRequest) -> Scaled:
    """The request scaled to one node of its own cluster, with fewer layers of full width.

    Raises RequestError if no smaller plan satisfies the rules of the script.
    """
    group = request.cluster.groups[0]

    def node(ranks: int) -> ClusterSpec:
        shrunk = group.model_copy(update={"nodes": 1, "accelerators_per_node": ranks})
        name = f"1x{ranks}x{group.accelerator.id}"
        return request.cluster.model_copy(update={"groups": (shrunk,), "name": name})

    degrees = _degrees(request.named_plan, group.accelerators_per_node)
    return _scaled_to(request, degrees, node, Sizes(), same=False, narrow=False)


def _scaled_to(
    request: PlanRequest,
    degrees: dict[str, int],
    cluster_of: Callable[[int], ClusterSpec],
    small: Sizes,
    same: bool,
    narrow: bool,
) -> Scaled:
    """The request with these degrees, on a cluster with that number of ranks.

    same: keep the number of layers; narrow: scale the width and length of the model down too.
    """
    model, training = request.model, request.training
    if narrow:
        training = _short(training, small, degrees)
        model = _narrower_model(request, small, degrees, training.seq_length)
        if model.encoders != request.model.encoders:
            training = training.model_copy(update={"encoder_tokens": None})
    plan, layers = _scaled_plan(request, degrees, None if same else small)
    model = scale_patterns.shortened(model, layers)
    training = training.model_copy(
        update={"global_batch_size": _batch(request, degrees, plan, same, small)}
    )
    cluster = cluster_of(plan.accelerators)
    shrunk = request.model_copy(
        update={"model": model, "training": training, "plan": plan, "cluster": cluster}
    )
    reasons = plan_answers.illegal(shrunk, plan)
    if reasons:
        text = "; ".join(reason.text for reason in reasons)
        raise refuse("/plan", "cannot_scale", f"scaled to {plan.accelerators} processes: {text}")
    return Scaled(shrunk, tuple(_changes(request, shrunk)))


def _degrees(plan: ParallelPlan, processes: int) -> dict[str, int]:
    """tp, cp, pp and dp whose product is at most `processes`; ep within dp x cp."""
    degrees = {name: int(getattr(plan, name)) for name in _REDUCTION_ORDER}

    def product() -> int:
        return degrees["dp"] * degrees["cp"] * degrees["tp"] * degrees["pp"]

    # First reduce the degrees to two as far as needed, in _REDUCTION_ORDER; then to one.
    for least in (2, 1):
        for name in _REDUCTION_ORDER:
            while product() > processes and degrees[name] > least:
                degrees[name] = _smaller(degrees[name], least)
    return degrees


def _smaller(degree: int, least: int) -> int:
    """The largest proper divisor that is at least `least`."""
    return max((n for n in range(least, degree) if degree % n == 0), default=least)


def _narrower_model(
    request: PlanRequest, small: Sizes, degrees: dict[str, int], seq_length: int
) -> ModelSpec:
    """A narrower model with the same ratios: heads per key/value head, MLP to hidden, experts."""
    model, shortened = request.model, seq_length / request.training.seq_length
    tp, ep_ranks = degrees["tp"], degrees["dp"] * degrees["cp"]
    if model.hidden_size <= small.hidden_size:
        return model
    head_dim = min(model.head_dim, small.head_dim)
    shared = min(model.num_attention_heads // model.num_query_groups, 4)
    groups = tp * max(1, small.hidden_size // (head_dim * shared * tp))
    heads = groups * shared
    is_square = model.num_attention_heads * model.head_dim == model.hidden_size
    hidden = heads * head_dim if is_square else small.hidden_size
    shrunk = hidden / model.hidden_size

    def width(full: int) -> int:
        return max(1, round(full * shrunk / (8 * tp))) * 8 * tp

    moe: MoESpec | None = model.moe
    if moe is not None:
        experts = min(moe.num_experts, small.experts_per_rank * max(ep_ranks, 1))
        moe = moe.model_copy(
            update={
                "num_experts": experts,
                "top_k": min(moe.top_k, experts),
                "expert_ffn_hidden_size": width(moe.expert_ffn_hidden_size),
                "shared_expert_ffn_hidden_size": width(moe.shared_expert_ffn_hidden_size)
                if moe.shared_expert_ffn_hidden_size
                else 0,
                "zero_experts": round(moe.zero_experts * experts / moe.num_experts),
                "latent_size": width(moe.latent_size) if moe.latent_size else None,
                "num_dense_layers": min(moe.num_dense_layers, 1),
            }
        )
    scale = scale_patterns.Scale(tp, shrunk, shortened, head_dim, width)
    parts, positions = tp * degrees["cp"], request.training.encoder_tokens
    return model.model_copy(
        update={
            "layer_pattern": scale_patterns.narrowed(model.layer_pattern, scale),
            "mla": scale_patterns.narrowed_latents(model.mla, scale),
            "hidden_size": hidden,
            "head_dim": head_dim,
            "num_attention_heads": heads,
            "num_query_groups": groups,
            "ffn_hidden_size": width(model.ffn_hidden_size),
            "vocab_size": min(model.vocab_size, small.vocab_size),
            "moe": moe,
            "encoders": scale_encoders.narrowed(model, hidden, scale, parts, positions),
        }
    )


def _short(training: TrainingSpec, small: Sizes, degrees: dict[str, int]) -> TrainingSpec:
    parts = 2 * degrees["cp"] * degrees["tp"]
    length = min(training.seq_length, max(small.seq_length // parts, 1) * parts)
    return training.model_copy(update={"seq_length": length})


def _scaled_plan(
    request: PlanRequest, degrees: dict[str, int], small: Sizes | None
) -> tuple[ParallelPlan, int]:
    """The plan with these degrees, and its number of layers; small None: keep the layers."""
    plan, layers = request.named_plan, request.model.num_layers
    ranks = degrees["dp"] * degrees["cp"]
    update: dict[str, Any] = dict(degrees)
    update["ep"] = gcd(plan.ep, ranks)
    if degrees["pp"] == 1 and plan.pp > 1:
        update |= {"vpp": 1, "schedule": "1f1b"}
    if plan.dp_shard:
        shards = max(2, degrees["cp"]) if ranks > 1 else 0
        update["dp_shard"] = shards if ranks % max(shards, 1) == 0 else 0
    if plan.zero_stage and ranks == 1:
        update |= {"zero_stage": 0, "dp_shard": 0}
    if small is not None:
        full = rank_layers(request.model.num_layers, plan)
        chunks = update.get("vpp", plan.vpp)
        each = -(-scale_patterns.kinds(request.model) // (degrees["pp"] * chunks))
        per_chunk = min(max(small.layers_per_chunk, each), small.most_layers_per_chunk)
        shares = _shares(full, degrees["pp"], chunks, per_chunk)
        update |= {"stage_layers": shares, "first_stage_layers": 0, "last_stage_layers": 0}
        layers = sum(shares)
        if len(set(shares)) == 1:
            update["stage_layers"] = ()
        if plan.recompute == "full" and plan.recompute_method == "block":
            redone = plan.recompute_num_layers / max(max(full) / plan.vpp, 1)
            update["recompute_num_layers"] = max(1, round(redone * per_chunk))
            update["recompute_layers"] = ()
    return plan.model_copy(update=update), layers


def _shares(full: tuple[int, ...], pp: int, chunks: int, per_chunk: int) -> tuple[int, ...]:
    """Layers of pp stages; the end stages stay shorter than the middle if they were."""
    largest = per_chunk * chunks
    middle = max(full)

    def share(layers: int) -> int:
        # Several chunks are split evenly, as the wave schedules require.
        return largest if layers == middle or chunks > 1 else max(1, largest - 1)

    ends = (share(full[0]), share(full[-1]))
    return (largest,) if pp == 1 else (ends[0], *[largest] * (pp - 2), ends[1])


def _batch(
    request: PlanRequest, degrees: dict[str, int], plan: ParallelPlan, same: bool, small: Sizes
) -> int:
    """Global batch size: the same micro-batches per stage as before, up to a small limit."""
    full_plan = request.plan
    assert full_plan is not None
    full = full_plan.micro_batches(request.training.global_batch_size)
    if same and plan.pp == full_plan.pp:
        return full * plan.micro_batch_size * plan.dp
    per_stage = min(max(full // full_plan.pp, 1), small.micro_batches_per_stage)
    count = min(full, per_stage * degrees["pp"])
    schedule = SCHEDULES[plan.schedule]
    while plan.pp > 1 and schedule.allowed(plan.pp, plan.vpp, count) and count < 4096:
        count += 1
    return count * plan.micro_batch_size * plan.dp


def _changes(request: PlanRequest, used: PlanRequest) -> Iterator[Change]:
    """Every field that differs, with what the difference hides."""
    for part, fields in _HIDES.items():
        was, now = getattr(request, part), getattr(used, part)
        for name, hides in fields.items():
            old, new = getattr(was, name), getattr(now, name)
            if old != new:
                yield Change(field=f"{part}/{name}", was=_plain(old), now=_plain(new), hides=hides)
    if request.cluster.name != used.cluster.name:
        yield Change(
            field="cluster", was=request.cluster.name, now=used.cluster.name,
            hides="kernels, links and memory of the machine that was asked for",
        )  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, MLASpec):
        return f"latents of {value.q_lora_rank or 'no'} and {value.kv_lora_rank}"
    if isinstance(value, MoESpec):
        return f"{value.num_experts} experts of {value.expert_ffn_hidden_size}, top {value.top_k}"
    if isinstance(value, tuple) and value and isinstance(value[0], EncoderSpec):
        return "; ".join(f"{e.num_layers} layers of {e.hidden_size}" for e in value)
    if isinstance(value, tuple):
        return f"{len(value)} layers of {len(set(value))} kinds"
    return value
