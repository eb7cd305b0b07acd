"""A published run as the model, cluster, batch and plan that an estimate takes.

What the row leaves open is filled by a stated default and listed.  Some inputs move the time too
much for that: the micro-batch, recomputation, interleaving, and parallel degrees that follow from
nothing.  Where they are open, a case has one variant per legal value, and the score says how far
apart they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

from pydantic import ValidationError

from cost_models import balanced_layers as nanotron
from cost_models.plans import ParallelPlan
from cost_models.runtimes import RUNTIMES
from cost_models.schedules import SCHEDULES
from cost_models.spec import ClusterSpec, ModelSpec, NodeGroup, TrainingSpec
from cost_models.stage_layers import spread
from planner.evidence.published_runs.adapters import adapters_of
from planner.evidence.published_runs.clusters import cluster_for
from planner.evidence.published_runs.labels import (
    memory_quantity,
    precision_of,
    recipe_of,
    recompute_of,
    schedule_of,
)
from planner.evidence.published_runs.models import model_of
from planner.evidence.published_runs.recipes import Recipe, recipe_for
from planner.evidence.published_runs.run_degrees import degrees_of
from planner.evidence.published_runs.runs import Run
from planner.evidence.published_runs.software import (
    Software,
    attention_kernel,
    gradient_dtypes,
    software_of,
)

# torchtitan compiles the loss with the model since e10cb94 of October 2024; runs of that year
# published its numbers before.
COMPILED_LOSS_SINCE = 2025
# Sequences of a rank where a row states neither its batch nor both factors of a micro-batch of all.
UNSTATED_SEQUENCES = 8
MICRO_BATCHES = (1, 2, 4, 8, 16)
MAX_CHUNKS = 20
MAX_VARIANTS = 5000
_OVERLAPS = (
    ("overlap_grad_reduce", "overlap_grad_reduce"),
    ("overlap_param_gather", "overlap_param_gather"),
    ("tp_comm_overlap", "overlap_tp"),
    ("overlap_p2p", "overlap_p2p"),
    ("compiled", "compile"),
)


@dataclass(frozen=True)
class Case:
    """One run, ready to be predicted."""

    run: Run
    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    variants: tuple[ParallelPlan, ...]
    """The plans the row may mean; the first is what the defaults make of it."""
    open_inputs: tuple[str, ...]
    memory_quantity: str
    assumptions: tuple[str, ...]
    stack_guessed: bool = False
    """Whether the kernels of its software are taken as another's."""


def case_of(run: Run) -> Case:
    """What a row means.  Raises ValueError with the reason why it can't be predicted."""
    if run.errors:
        raise ValueError("; ".join(run.errors))
    model = model_of(run)
    cluster = cluster_for(run)
    nodes = cluster.value.groups[0]
    software, notes = software_of(run)
    precision, precision_notes = precision_of(run, nodes.accelerator)
    assumptions = [*model.assumptions, *cluster.assumptions, *notes, *precision_notes]
    recipe = recipe_for(run)
    training = _training(run, software, precision, assumptions, recipe)
    degrees = degrees_of(
        run, nodes.accelerators, _tensor_domain(nodes), model.value, training, software, recipe
    )
    assumptions += degrees.assumptions
    fixed: dict[str, Any] = {**software.plan, "attention_kernel": attention_kernel(run, software)}
    fixed.update(_dispatcher(run))
    for column, field in _OVERLAPS:
        if (value := run.flag(column)) is not None:
            fixed[field] = value
    fixed.update(recipe.plan)
    assumptions += recipe.notes
    # torchtitan's configuration refuses asynchronous tensor parallelism without torch.compile, and
    # its float8 page asks for it, to fuse the casts (configs.py, quantization/float8.md).
    needs = fixed.get("overlap_tp") or precision == "fp8"
    if "titan" in run["stack"] and needs and not fixed.get("compile"):
        fixed["compile"] = True
        assumptions.append("torch.compile on: torchtitan's asynchronous TP and float8 need it")
    if "not compiled" in run.notes.lower():
        fixed["compile"] = False
    if re.match(r"thunder\b", run.notes.lower()):
        fixed["compile"] = True  # by torch.compile and nvFuser
    fixed.update(_loss(run, fixed))
    fixed.update(_redistributed(run, model.value, assumptions))
    text = f"{run['schedule']} {run.notes}".lower()
    overlaps = "dualpipe" in text or re.search(r"(a2a|ep|all-to-all|moe)[- _]overlap", text)
    overlaps = bool(overlaps) or fixed.get("overlap_ep", False)
    fixed["overlap_ep"] = overlaps and (run.integer("ep") or 1) > 1
    fixed.update(_offload(run, text))
    opened = list(degrees.opened)
    plans = islice(
        _variants(run, model.value, training, fixed, degrees.options, opened, assumptions, recipe),
        MAX_VARIANTS,
    )
    return Case(
        run, model.value, cluster.value, training, tuple(plans), tuple(dict.fromkeys(opened)),
        memory_quantity(run), tuple(dict.fromkeys(assumptions)), software.guessed,
    )  # fmt: skip


def _offload(run: Run, text: str) -> dict[str, bool]:
    """What is in host memory, where the row says so."""
    activations = re.search("host offload|offloaded remat", text) or "activations" in run["offload"]
    parts = {"offload_activations": activations, "offload_optimizer": "optimizer" in run["offload"]}
    return {field: True for field, offloaded in parts.items() if offloaded}


def _dispatcher(run: Run) -> dict[str, str]:
    """How tokens reach their experts, where the row says so."""
    if named := re.search("deepep|hybridep|alltoall", run["dispatcher"].lower()):
        return {"moe_dispatcher": named.group(0)}
    return {"moe_dispatcher": "deepep"} if "deepep" in run.notes.lower() else {}


def _loss(run: Run, fixed: dict[str, Any]) -> dict[str, Any]:
    """The cross-entropy: Transformer Engine's where the row says fused, torchtitan's compiled.

    Megatron's recipes since 2024 fuse it with Transformer Engine's kernel, which works in place.
    """
    if run.known("cross_entropy"):
        stated = run["cross_entropy"].lower()
        able = RUNTIMES[fixed["runtime"]].autograd_loss > 0
        if able and "liger" in stated:
            return {"cross_entropy": "liger"}
        chunked = able and re.search("chunk|linear|cut", stated)
        return {"cross_entropy": "chunked" if chunked else "fused"}
    if fixed["runtime"].startswith("megatron") and "ce fusion" in run.notes.lower():
        return {"cross_entropy": "in_place"}
    titan = "titan" in run["stack"] and fixed.get("compile", False)
    if titan and (run.integer("year") or 0) >= COMPILED_LOSS_SINCE:
        return {"cross_entropy": "fused"}
    return {}


def _redistributed(run: Run, model: ModelSpec, assumptions: list[str]) -> dict[str, Any]:
    """Layers of each stage where a run made up for its vocabulary on the last one.

    The head counts as so many layers as it has their FLOP (arXiv 2411.05288, section 6.1).
    """
    pp, layers, hidden = run.integer("pp") or 1, model.num_layers, float(model.hidden_size)
    if pp < 2 or "layers redistributed" not in run.notes.lower():
        return {}
    per_layer = 12.0 * hidden * (1.0 + (run.integer("seq_len") or 0) / (6.0 * hidden))
    head = model.vocab_size / per_layer

    def busiest(last: int) -> tuple[float, int]:
        return max(-(-(layers - last) // (pp - 1)), last + head), -last

    last = min(range(layers - pp + 2), key=busiest)
    assumptions.append(f"{last} layers beside the head, which counts as {head:.1f}")
    return {"stage_layers": (*spread(layers - last, pp - 1), last)}


def _tensor_domain(nodes: NodeGroup) -> int:
    """The most ranks tensor parallelism usually has: a node's, or eight of a larger domain."""
    return max(nodes.accelerators_per_node, min(nodes.network[0].domain_accelerators or 1, 8))


def _optimizer(notes: str) -> dict[str, Any]:
    """Adam in 8 bits or pages, and updates in the backward pass, where the notes say so."""
    fields: dict[str, Any] = {}
    if re.search(r"8-bit (?:paged )?adam|paged 8-bit adam", notes):
        fields["optimizer"] = "adam_8bit"
    if re.search(r"paged (?:8-bit )?adam", notes):
        fields["optimizer"] = f"paged_{fields.get('optimizer', 'adam')}"
    if re.search(r"(?:optimizer|adam)\w*(?: step)? (?:fused )?in(?:to)? (?:the )?backward", notes):
        fields["optimizer_in_backward"] = True
    return fields


def _training(
    run: Run, software: Software, precision: str, assumptions: list[str], recipe: Recipe
) -> TrainingSpec:
    batch, length = run.integer("global_batch"), run.integer("seq_len")
    if not length:
        raise ValueError("seq_len is not stated")
    if not batch:
        micro, dp = run.integer("micro_batch"), run.integer("dp")
        if not micro and not dp:
            raise ValueError("global_batch is not stated, nor dp or micro_batch")
        each = 1 if micro and dp else UNSTATED_SEQUENCES
        batch = (micro or 1) * (dp or 1) * each
        assumptions.append(f"global batch {batch}: not stated, {each} per rank and micro-batch")
    tuning, notes = adapters_of(run)
    assumptions += notes
    kept = gradient_dtypes(run, software, precision, "lora_rank" in tuning)
    tuning = tuning or _optimizer(run.notes.lower())
    try:
        return TrainingSpec(
            seq_length=length,
            global_batch_size=batch,
            precision=precision,
            fp8_recipe=recipe_of(run),
            **{**kept, **recipe.training, **tuning},
        )
    except ValidationError as error:
        raise ValueError(f"{error.errors()[0]['loc'][0]}: {error.errors()[0]['msg']}") from None


def _variants(
    run: Run,
    model: ModelSpec,
    training: TrainingSpec,
    fixed: dict[str, Any],
    arrangements: tuple[dict[str, Any], ...],
    open_fields: list[str],
    assumptions: list[str],
    recipe: Recipe,
) -> Iterator[ParallelPlan]:
    """The plans that a row may mean, over what it leaves open."""
    torch = RUNTIMES[fixed["runtime"]].lineage == "torch"
    settled = "recompute" in recipe.plan
    for arrangement in arrangements:
        ranks = {**fixed, **arrangement}
        axes = (
            ("micro_batch", _micro_batches(run, training, ranks["dp"], ranks["pp"], assumptions)),
            ("vpp", _pipelines(run, model, ranks["pp"], ranks["runtime"] != "deepspeed")),
            ("recompute", [{}] if settled else recompute_of(run, torch, fixed.get("recompute"))),
        )
        open_fields += [name for name, values in axes if len(values) > 1]
        for parts in product(*(values for _, values in axes)):
            values = dict(ranks)
            for part in parts:
                values.update(part)
            yield _plan(model, training, values, assumptions)


def _micro_batches(
    run: Run, training: TrainingSpec, dp: int, pp: int, assumptions: list[str]
) -> list[dict[str, Any]]:
    share = training.global_batch_size // dp
    micro = run.integer("micro_batch")
    if not micro and "titan" in run["stack"].lower() and pp > 1:
        # torchtitan splits a rank's batch into as many micro-batches as there are stages
        # (pipelining_utils.py, pipeline_parallel_microbatches).
        micro = max(share // pp, 1)
        assumptions.append(f"micro-batch {micro}: as many micro-batches as stages (torchtitan)")
    if not micro:
        sizes = [size for size in MICRO_BATCHES if share and share % size == 0]
        return [{"micro_batch_size": size} for size in sizes or [1]]
    if micro > max(share, 1):
        assumptions.append(f"micro-batch {max(share, 1)}: a rank has no {micro} sequences per step")
        micro = max(share, 1)
    if training.global_batch_size % (dp * micro):
        count = training.global_batch_size / (dp * micro)
        assumptions.append(f"{count:.2f} micro-batches per rank: the batch does not divide")
    return [{"micro_batch_size": micro}]


_ONE_OR_MORE = ("1f1b", "interleaved-1f1b")  # schedule, by whether a rank has several chunks


def _whole_chunks(model: ModelSpec, chunks: int) -> bool:
    """Whether they get equal shares of the layers.

    The two ends may each count for a layer (Megatron, account_for_..._in_pipeline_split).
    """
    return model.num_layers % chunks == 0 or (model.num_layers + 2) % chunks == 0


def _pipelines(run: Run, model: ModelSpec, pp: int, chunked: bool) -> list[dict[str, Any]]:
    """Schedule and chunks per rank; several where the row does not say how it interleaves.

    chunked: whether the runtime can interleave at all (DeepSpeed's pipeline engine can't).
    """
    vpp = (run.integer("vpp") or (None if chunked else 1)) if pp > 1 else 1
    schedule = schedule_of(run, pp, vpp)
    unclear = "not stated" in run["schedule"].lower() or not run.known("schedule")
    if pp > 1 and not vpp and (unclear or schedule == "interleaved-1f1b"):
        fewest = 1 if unclear and schedule == "1f1b" else 2
        counts = range(fewest, MAX_CHUNKS + 1)
        chunks = [v for v in counts if _whole_chunks(model, pp * v)] or [1]
        return [{"schedule": _ONE_OR_MORE[v > 1], "vpp": v} for v in chunks]
    return [{"schedule": schedule, "vpp": _chunks(schedule, vpp)}]


def _chunks(schedule: str, vpp: int | None) -> int:
    """Model chunks per rank: as stated, else what the schedule needs."""
    counts = SCHEDULES[schedule].chunk_counts
    if counts:
        return vpp if vpp in counts else counts[0]
    return vpp if vpp and vpp > 1 else 2


def _plan(
    model: ModelSpec, training: TrainingSpec, values: dict[str, Any], assumptions: list[str]
) -> ParallelPlan:
    pp, vpp = values["pp"], values["vpp"]
    schedule = SCHEDULES[values["schedule"]]
    count = max(training.global_batch_size // (values["dp"] * values["micro_batch_size"]), 1)
    # Interleaving has a closed form beyond whole rounds; of the others the order is the price.
    if values["schedule"] != "interleaved-1f1b" and (reason := schedule.allowed(pp, vpp, count)):
        assumptions.append(f"priced as 1F1B: {reason}")
        values, vpp = {**values, "schedule": "1f1b", "vpp": 1}, 1
        schedule = SCHEDULES["1f1b"]
    if pp * (vpp if schedule.placement != "two-way" else 1) > model.num_layers + 2:
        raise ValueError(f"pp {pp} x vpp {vpp} is more chunks than the {model.num_layers} layers")
    if (share := values.get("recompute_num_layers", 0)) < 0:
        values["recompute_num_layers"] = max(model.num_layers // (pp * vpp) // -share, 1)
    if values["runtime"] == "nanotron" and pp > 1:
        values["stage_layers"] = nanotron.stages(model, pp, values["tp"])
        assumptions.append(
            "layers of each stage as nanotron distributes them, by the cost of its blocks"
        )
    else:
        values.update(_uneven(model, pp, vpp, schedule.placement, assumptions))
    try:
        return ParallelPlan(**values)
    except ValidationError as error:
        raise ValueError(f"no plan: {error.errors()[0]['msg']}") from None


def _uneven(
    model: ModelSpec, pp: int, vpp: int, placement: str, assumptions: list[str]
) -> dict[str, Any]:
    """Layers that do not divide: the ends, which hold the word table and the head, have less."""
    layers, chunks = model.num_layers, pp if placement == "two-way" else pp * vpp
    if layers % chunks == 0:
        return {}
    size = -(-layers // chunks)
    less = size * chunks - layers
    # As Megatron and torch count the two ends for a layer each; what is odd comes off the head's.
    off_first, off_last = less // 2, less - less // 2
    one_each = less == 2 or (vpp > 1 and off_last <= size)
    if model.mtp_num_layers and less < size:
        # Layers that predict further tokens stand with the head; its stage gives up all that is
        # odd (Megatron-Bridge deepseek_v3.py, map_pp_vp_to_layout).
        off_first, off_last, one_each = 0, less, True
    enough = pp > 2 or model.mtp_num_layers > 0
    if placement == "loop" and enough and one_each and off_last < size * vpp:
        first, last = size * vpp - off_first, size * vpp - off_last
        assumptions.append(f"ends of {first} and {last} layers: word table and head stand there")
        return {"first_stage_layers": first if off_first else 0, "last_stage_layers": last}
    low = layers // pp
    assumptions.append(f"{layers} layers over {pp} stages: {low} or {low + 1}, fewer at the ends")
    return {"stage_layers": spread(layers, pp)}
