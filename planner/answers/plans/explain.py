"""Reports on plans: the cost of each and its reasons, what limits it, and what would change it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from cost_models.blocks.records import FlashAttention
from cost_models.cost_parts import MEMORY_PARTS, TIME_PARTS
from cost_models.estimate import CostModel, Estimates
from cost_models.flops import step_flop
from cost_models.layers import layers_of
from cost_models.package_files import table
from cost_models.plans import ParallelPlan
from cost_models.sources import Array
from cost_models.stage_layers import rank_titles
from cost_models.training_cost import training_cost
from planner.answers.plans.alike import Asked, plans_in_steps
from planner.answers.plans.assumptions import assumptions
from planner.answers.plans.host_memory import host_bytes
from planner.answers.plans.pipeline import pipeline
from planner.answers.plans.recomputed_communication import recomputed_communication_s
from planner.documents.plan_report import ErrorBand, Memory, Note, Pipeline, PlanReport, StageMemory
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty import site_storage as sites
from planner.evidence.uncertainty.error_band import band
from planner.evidence.uncertainty.error_features import error_features

_WORDS = table(__package__ or "", "definitions.json")
DEFINITIONS: dict[str, str] = _WORDS["definitions"]
NOT_MODELLED = tuple(Note(code=code, text=text) for code, text in _WORDS["not_modelled"].items())


def reports(
    model: CostModel, request: PlanRequest, plans: list[ParallelPlan], simulated: bool = True
) -> list[PlanReport]:
    """Full reports of legal plans, priced together; simulated: their pipelines simulated too."""
    return reports_of_several(model, [(request, plan) for plan in plans], simulated)


def reports_of_several(
    model: CostModel, asked: Sequence[Asked], simulated: bool = True
) -> list[PlanReport]:
    """The same for requests that are priced together (planner/answers/plans/alike.py)."""
    training, by_stages = model.context.training, dict[int, list[int]]()
    for i, (_, plan) in enumerate(asked):
        by_stages.setdefault(plan.pp, []).append(i)
    result: dict[int, PlanReport] = {}
    for rows in by_stages.values():
        estimates = model.evaluate(
            plans_in_steps([asked[i] for i in rows], training), all_stages=True
        )
        for k, i in enumerate(rows):
            request, plan = asked[i]
            parts = {name: float(estimates.time_parts_s[name][k]) for name in TIME_PARTS}
            memory = _memory(model, request, plan, estimates, k)
            seconds = float(estimates.iteration_time_s[k])
            corrected = estimates.corrected
            times = 1.0 if corrected is None else float(corrected[k])
            kernels = _kernels(request, plan, estimates, k)
            run = pipeline(estimates, k, plan) if simulated else None
            again = sum(recomputed_communication_s(estimates, k).values())
            result[i] = _report(
                model, request, plan, seconds, parts, memory, kernels, run, times, again
            )
    return [result[i] for i in range(len(asked))]


def report(model: CostModel, request: PlanRequest, plan: ParallelPlan) -> PlanReport:
    """The full report of one legal plan."""
    return reports(model, request, [plan])[0]


@lru_cache(maxsize=4096)
def plan_id(plan: ParallelPlan) -> str:
    """An id of a plan that depends on its content alone."""
    content = json.dumps(plan.model_dump(mode="json"), sort_keys=True)
    return "pl_" + hashlib.sha256(content.encode()).hexdigest()[:12]


def _memory(
    model: CostModel, request: PlanRequest, plan: ParallelPlan, estimates: Estimates, k: int
) -> Memory:
    table, gathered = estimates.memory, estimates.gathered
    layout = gathered.stages.key(k)
    slots = gathered.table.slot_of[:, layout]
    # On the stage with the head, multi-token prediction counts as layers.
    heads, predicted = gathered.table.last[:, layout], request.model.mtp_num_layers
    held = gathered.table.layers[:, :, layout].sum(axis=0) - heads * predicted / (1 + predicted)
    allocated = table.allocated_bytes[:, k].tolist()
    reserved, total = table.reserved_bytes[:, k].tolist(), table.total_bytes[:, k].tolist()
    in_flight = table.in_flight[:, k].tolist()
    parts = {name: table.parts[name][:, k].tolist() for name in MEMORY_PARTS}
    stages = [
        StageMemory(
            stage=stage,
            layers=int(held[slots[stage]]),
            in_flight=in_flight[stage],
            allocated_bytes=allocated[stage],
            reserved_bytes=reserved[stage],
            total_bytes=total[stage],
            parts={name: values[stage] for name, values in parts.items()},
        )
        for stage in range(plan.pp)
    ]
    worst = max(stages, key=lambda s: s.total_bytes)
    capacity = request.cluster.groups[0].accelerator.memory_bytes
    needed = float(estimates.needed_bytes[k])
    known = sites.peaks_of(request)
    return Memory(
        capacity_bytes=capacity,
        allocated_bytes=worst.allocated_bytes,
        reserved_bytes=worst.reserved_bytes,
        peak_bytes=worst.total_bytes,
        needed_bytes=needed,
        worst_stage=worst.stage,
        chance_of_running_out=known.chance(plan.runtime, needed, capacity),
        chance_basis=known.basis(plan.runtime),
        host_bytes=host_bytes(request, plan),
        stages=tuple(stages),
    )


def _report(
    model: CostModel,
    request: PlanRequest,
    plan: ParallelPlan,
    seconds: float,
    parts: dict[str, float],
    memory: Memory,
    kernels: tuple[tuple[dict[str, Any], ...], float],
    run: Pipeline | None,
    corrected: float,
    again_s: float,
) -> PlanReport:
    """corrected: the factor of a site's runs on all times; again_s: communication of recompute."""
    training, cluster = request.training, request.cluster
    world = cluster.accelerators
    flop = step_flop(request.model, training)
    rate = flop / seconds / world
    half = model.context.machine.matrix_flop_per_s
    peak = cluster.groups[0].accelerator.peak_flop_per_s(training.precision) or half
    lines, recomputed = kernels
    tokens_per_s = training.tokens_per_iteration / seconds
    whole = None
    if training.tokens is not None:
        whole = training_cost(cluster, training.tokens / tokens_per_s)
    return PlanReport(
        id=plan_id(plan),
        plan=plan,
        fits=memory.peak_bytes <= memory.capacity_bytes,
        num_micro_batches=plan.micro_batches(training.global_batch_size),
        layers_per_stage=tuple(s.layers for s in memory.stages),
        layers_by_kind=_layers_by_kind(request, plan),
        iteration_time_s=seconds,
        error_band=_band(model, request, plan, parts),
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_accelerator=tokens_per_s / world,
        model_flop_per_s_per_accelerator=rate,
        mfu=rate / peak,
        mfu_causal=step_flop(request.model, training, causal=True) / seconds / world / peak,
        hfu=rate / peak * (1.0 + recomputed / flop),
        definitions=DEFINITIONS,
        days=whole and whole.days,
        cost_usd=whole and whole.cost_usd,
        energy_kwh=whole and whole.energy_kwh,
        memory=memory,
        time_parts_s=parts,
        recompute_exchange_s=again_s,
        pipeline=run,
        kernels=lines,
        assumptions=(*assumptions(model, request, plan), *_site(request, corrected)),
        not_modelled=NOT_MODELLED,
    )


def _layers_by_kind(request: PlanRequest, plan: ParallelPlan) -> tuple[dict[str, int], ...]:
    several = len(layers_of(request.model).kinds) > 1
    return rank_titles(request.model, plan) if several else ()


def _band(
    model: CostModel,
    request: PlanRequest,
    plan: ParallelPlan,
    parts: dict[str, float],
) -> ErrorBand:
    site = sites.site_of_request(request.site)
    source = site.source if site else ""
    features = error_features(
        request.model, request.cluster, request.training, plan, parts, source,
        model.context.profile,
    )  # fmt: skip
    return ErrorBand.of(band(sum(parts.values()), features, site))


def _site(request: PlanRequest, corrected: float) -> Iterator[Note]:
    """The effect of a site's calibration and runs on the time."""
    if (site := sites.site_of_request(request.site)) is not None:
        count = len(site.runs)
        runs = "1 run moves" if count == 1 else f"{count:,} runs move"
        words = [f"{runs} this time by {100 * (corrected - 1):+.1f} %"]
        if site.peaks.learned:
            words.append(f"of memory, {site.peaks.learned}")
        accelerator = request.cluster.groups[0].accelerator.id
        if request.profile is None and (own := site.profile_of(accelerator)) is not None:
            words.insert(0, f"priced by its calibration of {', '.join(own.measured_terms)}")
        yield Note(code="site", text=f"site {request.site}: {'; '.join(words)}")


def _kernels(
    request: PlanRequest, plan: ParallelPlan, estimates: Estimates, k: int
) -> tuple[tuple[dict[str, Any], ...], float]:
    """(one line per kernel of each layer kind, FLOP recomputed per step over all ranks)."""
    gathered = estimates.gathered
    layout, key = gathered.stages.key(k), gathered.layers.key(k)

    def own(value: Array) -> float:
        """The value for the layers of this plan."""
        return float(value[key] if isinstance(value, np.ndarray) and value.ndim else value)

    d = gathered.micro.d
    lines, again = [], 0.0
    passes = plan.tp * request.training.positions_per_iteration / own(d.tokens)
    table = gathered.table
    counts = zip(layers_of(request.model).kinds, table.totals, table.recomputed_totals, strict=True)
    for (kind, all_layers, all_redone), times in zip(counts, estimates.kernels, strict=True):
        layers, redone = float(all_layers[layout]), float(all_redone[layout])
        for t in times:
            if not own(t.kernel.active):
                continue
            chosen = bool(own(d.recomputed(t.kernel.module)))
            flop = own(t.forward_flop)
            # Flash attention runs the causal half; the definition of HFU counts the square.
            counted = flop * (2.0 if isinstance(t.kernel, FlashAttention) else 1.0)
            share = layers if chosen else redone
            again += counted * share * passes
            lines.append(
                {
                    "layer": kind.name,
                    "kernel": t.kernel.name,
                    "forward_s": own(t.forward_s),
                    "backward_s": own(t.backward_s),
                    "forward_flop": flop,
                    "recomputed": chosen or redone == layers,
                }
            )
    return tuple(lines), again
