"""Parallel degrees of a published run: stated, derived from other degrees, or every legal value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cost_models.spec import ModelSpec, TrainingSpec
from planner.evidence.published_runs.clusters import devices_of
from planner.evidence.published_runs.recipes import Recipe
from planner.evidence.published_runs.runs import Run
from planner.evidence.published_runs.software import Software

# Of degrees that a row leaves open.
_MOST_STAGES, _MOST_EXPERT_RANKS = 64, 64
_CORE = ("megatron", "megatron-2026")


@dataclass(frozen=True)
class Degrees:
    """The plan fields that say how ranks are arranged, one dict per arrangement it may mean."""

    options: tuple[dict[str, Any], ...]
    opened: tuple[str, ...]
    assumptions: tuple[str, ...]


def degrees_of(
    run: Run,
    ranks: int,
    per_node: int,
    model: ModelSpec,
    training: TrainingSpec,
    software: Software,
    recipe: Recipe,
) -> Degrees:
    """The arrangements of a row.  Raises ValueError where what it states is contradictory."""
    notes: list[str] = []
    opened: list[str] = []
    cp = run.integer("cp") or 1
    if ranks % cp:
        raise ValueError(f"cp {cp} does not divide {ranks} accelerators")
    pairs, open_pairs = _tensor_and_pipeline(
        run, ranks // cp, per_node, model, training, software, notes
    )
    opened += open_pairs
    options = []
    for tp, pp in pairs:
        if ranks % (tp * cp * pp):
            raise ValueError(f"tp {tp} x cp {cp} x pp {pp} does not divide {ranks} accelerators")
        dp, stated_cp = ranks // (tp * cp * pp), cp
        batch = training.global_batch_size
        if dp > batch and not dp % batch and not open_pairs:
            # Ranks without a sequence of their own can only have a part of one.
            cp, dp = cp * (dp // batch), batch
            notes.append(f"cp {cp}, not {stated_cp}: tp, cp and pp leave more ranks than sequences")
        for ep, etp in _experts(run, model, tp, cp * dp, software, recipe, notes, opened):
            fixed: dict[str, Any] = {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": ep, "etp": etp}
            fixed["sequence_parallel"] = _sequence_parallel(run, tp, software, notes)
            fixed.update(_zero(run, software, pp, model.moe is not None, notes))
            fixed.update(_shard_group(run, dp))
            if cp > 1:
                fixed.update(_context(run, software))
            options.append(fixed)
    only = options[0]
    if not opened:
        notes += _remarks(run, model, only)
    if all(option["dp"] > training.global_batch_size for option in options):
        batch = training.global_batch_size
        raise ValueError(f"global_batch {batch} is below dp {only['dp']}: ranks without work")
    return Degrees(tuple(options), tuple(dict.fromkeys(opened)), tuple(dict.fromkeys(notes)))


def _remarks(run: Run, model: ModelSpec, degrees: Mapping[str, Any]) -> Iterator[str]:
    """Notes where the only arrangement is not what the row prints, or splits unevenly."""
    if run.integer("dp") not in (None, 0, degrees["dp"]):
        yield f"dp {degrees['dp']} = accelerators / (tp cp pp); the row prints {run['dp']}"
    if model.num_attention_heads % degrees["tp"]:
        yield f"{model.num_attention_heads} heads over tp {degrees['tp']}: in equal shares"


def _tensor_and_pipeline(
    run: Run,
    world: int,
    per_node: int,
    model: ModelSpec,
    training: TrainingSpec,
    software: Software,
    notes: list[str],
) -> tuple[list[tuple[int, int]], list[str]]:
    """The (tp, pp) a row may mean, and which of the two it leaves open; world: ranks over cp."""
    tp, pp, dp = (run.integer(name) or None for name in ("tp", "pp", "dp"))
    missing = [name for name, value in (("tp", tp), ("pp", pp)) if value is None]
    known = (tp or 1, pp or 1)
    if not missing:
        return [known], []
    sharded = software.lineage == "torch" or run.integer("zero_stage") == 3
    if sharded and not dp:
        notes.append(f"{' and '.join(missing)} 1: not stated, sharded data parallel")
        return [known], []
    if dp and len(missing) == 1:
        rest = max(world // (known[0] * known[1] * dp), 1)
        notes.append(f"{missing[0]} {rest}: from the other degrees")
        return [(tp or rest, pp or rest)], []
    able = _pairs(tp, pp, world, per_node, model)
    pairs = _fitting(able, world, dp, training.global_batch_size)
    return _fastest_of(pairs, missing, notes)


def _fitting(
    pairs: Iterable[tuple[int, int]], world: int, dp: int | None, batch: int
) -> list[tuple[int, int]]:
    """The (tp, pp) whose copies of the model share the batch, and are as many as stated."""
    copies = {(tp, pp): world // (tp * pp) for tp, pp in pairs}
    return [pair for pair, n in copies.items() if n == (dp or n) and batch % n == 0]


def _fastest_of(
    pairs: list[tuple[int, int]], missing: list[str], notes: list[str]
) -> tuple[list[tuple[int, int]], list[str]]:
    """The (tp, pp) that are left to try, and which of the two stay open."""
    if not pairs:
        raise ValueError(f"{' and '.join(missing)} not stated, and no value divides the rest")
    if pairs == [(1, 1)]:
        notes.append(f"{' and '.join(missing)} 1: what the accelerators leave")
        return pairs, []
    notes.append(f"{' and '.join(missing)}: not stated, the middle by time of {len(pairs)}")
    return pairs, missing


def _pairs(
    tp: int | None, pp: int | None, world: int, per_node: int, model: ModelSpec
) -> Iterator[tuple[int, int]]:
    """Legal (tp, pp): tp a power of two inside a node that divides the heads, pp the layers."""
    powers = [2**i for i in range(8) if 2**i <= per_node]
    for t in [tp] if tp else [t for t in powers if not model.num_attention_heads % t]:
        if world % t:
            continue
        stages = range(1, min(_MOST_STAGES, model.num_layers) + 1)
        for p in [pp] if pp else [p for p in stages if not model.num_layers % p]:
            if not (world // t) % p:
                yield t, p


def _experts(
    run: Run,
    model: ModelSpec,
    tp: int,
    copies: int,
    software: Software,
    recipe: Recipe,
    notes: list[str],
    open_fields: list[str],
) -> list[tuple[int, int]]:
    """The (ep, etp) a row may mean; copies: ranks with the same tensor-parallel shard."""
    moe = model.moe
    if moe is None:
        if (run.integer("ep") or 1) > 1:
            notes.append(f"ep {run['ep']} without experts: 1")
        return [(1, 1)]
    ranks = tp * copies
    ep = _stated_ep(run, moe.num_experts, ranks, software, notes)
    etp = _expert_tensor_degree(run, ep or 1, tp, ranks, software, recipe, notes)
    expert = [ep] if ep else _usual_expert_degrees(moe.num_experts)
    legal = [e for e in expert if not ranks % (e * etp)] or [expert[0]]
    if len(legal) > 1:
        open_fields.append("ep")
        notes.append(f"ep: not stated, the middle by time of the {len(legal)} that fit")
    return [(e, etp) for e in legal]


def _usual_expert_degrees(experts: int) -> list[int]:
    powers = (2**i for i in range(7))
    return [ep for ep in powers if experts % ep == 0 and ep <= _MOST_EXPERT_RANKS]


def _stated_ep(
    run: Run, experts: int, ranks: int, software: Software, notes: list[str]
) -> int | None:
    """The ep of a row; None where it is to be tried."""
    ep = run.integer("ep")
    if ep is None and software.lineage == "torch":
        notes.append("ep 1: not stated")
        return 1
    if not ep:
        return ep
    if ep > experts:
        raise ValueError(f"ep {ep} is above the {experts} experts")
    if ranks % ep:
        raise ValueError(f"ep {ep} does not divide tp x cp x dp = {ranks}")
    if experts % ep:
        notes.append(f"{experts} experts over ep {ep}: in equal shares")
    return ep


def _expert_tensor_degree(
    run: Run, ep: int, tp: int, ranks: int, software: Software, recipe: Recipe, notes: list[str]
) -> int:
    """The etp of a row: as stated, else as its recipe sets it, else its software's default."""
    match = re.search(
        r"\b(?:etp|expert tp) ?[=:]? ?(\d+)", f"etp {run['etp']} ; {run.notes}".lower()
    )
    stated = int(match.group(1)) if match else None
    if stated and (ranks % stated or ranks % (ep * stated)):
        raise ValueError(f"ep {ep} x etp {stated} does not divide tp x cp x dp = {ranks}")
    if stated := stated or recipe.plan.get("etp"):
        return int(stated)
    if tp == 1 or re.search("bridge|nemo-mlperf", run["stack"].lower()):
        return 1  # Megatron-Bridge perf_recipes @067f987d, also of MLPerf v6.0's plans
    # Megatron-Core splits experts as the rest (ModelParallelConfig.__post_init__); torchtitan's
    # expert_tensor_parallel_degree is 1.
    etp = 1 if software.lineage == "torch" or ranks % (ep * tp) else tp
    notes.append(f"tensor parallelism of the experts {etp}: not stated, the default")
    return etp


def _sequence_parallel(run: Run, tp: int, software: Software, notes: list[str]) -> bool:
    if tp == 1:
        return False
    if software.plan["runtime"] == "jax":
        return True  # its tensor axis splits the residual stream too (base.yml, activation_embed)
    if (stated := run.flag("sp")) is not None:
        return stated
    runtime = software.plan["runtime"]
    by_default = software.lineage == "torch" or runtime in (*_CORE, "nanotron")
    notes.append(f"sequence parallelism {'on' if by_default else 'off'}: not stated")
    return by_default


def _zero(run: Run, software: Software, pp: int, moe: bool, notes: list[str]) -> dict[str, Any]:
    """ZeRO stage; the table's 2 is FSDP that keeps gathered weights after the forward pass."""
    stage = run.integer("zero_stage")
    torch = software.lineage == "torch"
    if stage is None and (sharded := run.flag("distributed_optimizer")) is not None:
        stage = int(sharded)
    if stage is None:
        # FSDP is torch's; Megatron's distributed optimizer is what its overlap columns need.
        recent = software.plan["runtime"] in (*_CORE, "deepspeed") and run.year >= 2023
        stage = 3 if torch else int(recent)
        notes.append(f"ZeRO stage {stage}: not stated")
    stage = min(stage, 3)
    if devices_of(run) == 1:
        stage = 0  # of several accelerators one was used
    bf16 = run["precision"].lower() in ("bf16", "fp8")
    if stage == 0 and bf16 and software.plan["runtime"] == "deepspeed":
        stage = 1
        notes.append("ZeRO stage 1: DeepSpeed's BF16_Optimizer shards its states at stage 0 too")
    # Under a pipeline torch gathers once per step (FSDP2 with pipelining).
    if torch and (stage == 2 or (stage == 3 and (_keeps_gathered(run, moe) or pp > 1))):
        return {"zero_stage": 3, "reshard_after_forward": False}
    return {"zero_stage": stage}


def _keeps_gathered(run: Run, moe: bool) -> bool:
    """Whether the notes say so; "... false in MoE configurations" says nothing of a dense model."""
    match = re.search(r"reshard_after_forward false( in moe)?", run.notes.lower())
    return match is not None and (moe or match.group(1) is None)


def _shard_group(run: Run, ranks: int) -> dict[str, Any]:
    """Hybrid sharding, where the notes give the size of its groups."""
    pattern = r"(?:dp[_-]?shard|[hf]sdp group(?:s of)?|shard group(?:s of)?)[ =]+(\d{1,6})\b"
    match = re.search(pattern, run.notes.lower())
    size = int(match.group(1)) if match else 0
    return {"dp_shard": size} if 0 < size < ranks and ranks % size == 0 else {}


def _context(run: Run, software: Software) -> dict[str, Any]:
    if re.search(r"ulysses|\ba2a\b", run.notes.lower()):
        return {"cp_kind": "a2a"}
    return {"cp_kind": "all_gather"} if software.lineage == "torch" else {}
