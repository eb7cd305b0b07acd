"""A published run as the model, cluster, batch and plan that an estimate takes.

What the row leaves open is filled by a stated default and listed.  Three inputs move the time too
much for that: the micro-batch, recomputation and interleaving.  Where they are open, a case
has one variant per legal value, and the score says how far apart they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

from pydantic import ValidationError

from cost_models.plans import ParallelPlan
from cost_models.spec import ClusterSpec, ModelSpec, TrainingSpec
from planner.accuracy.clusters import cluster_for
from planner.accuracy.models import model_of
from planner.accuracy.runs import Run
from planner.accuracy.software import attention_kernel, gradient_dtypes, software_of

# How each source's memory was read: what the allocator handed out, what it holds, what the
# driver sees.
MEMORY_QUANTITIES = ("allocated", "reserved", "driver")
# torchtitan compiles the loss with the model since e10cb94 of October 2024; runs of that year
# published its numbers before.
COMPILED_LOSS_SINCE = 2025
MICRO_BATCHES = (1, 2, 4, 8, 16)
SCHEDULES = (
    ("dualpipe-?v", "dualpipe-v"), ("dualpipe", "dualpipe"), ("hanayo", "hanayo"),
    ("zb-?v", "zb-v"), ("v-?half", "v-half"), ("v-?min", "v-min"), ("zb-?h2|zb-2p", "zb-h2"),
    ("zb-?h1|zb-1p|zero.?bubble", "zb-h1"), ("looped|breadth|bfs", "looped-bfs"),
    ("interleav|vpp|virtual", "interleaved-1f1b"), ("gpipe|fill", "gpipe"),
    ("2bw", "pipedream-2bw"), ("1f1b|pipedream|dapple", "1f1b"),
)  # fmt: skip


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


def case_of(run: Run) -> Case:
    """What a row means.  Raises ValueError with the reason why it can't be predicted."""
    if run.errors:
        raise ValueError("; ".join(run.errors))
    model = model_of(run)
    cluster = cluster_for(run)
    software, notes = software_of(run)
    precision, precision_notes = _precision(run)
    assumptions = [*model.assumptions, *cluster.assumptions, *notes, *precision_notes]
    training = _training(run, software, precision, assumptions)
    fixed = _degrees(run, cluster.value, model.value, software, assumptions)
    fixed.update({k: v for k, v in software.plan.items() if k != "attention_kernel"})
    fixed["attention_kernel"] = attention_kernel(run, software)
    if (compiled := run.flag("compiled")) is not None:
        fixed["compile"] = compiled
    fixed.update(_loss(run, fixed))
    for column, field in (
        ("overlap_grad_reduce", "overlap_grad_reduce"),
        ("overlap_param_gather", "overlap_param_gather"),
        ("tp_comm_overlap", "overlap_tp"),
        ("overlap_p2p", "overlap_p2p"),
    ):
        if (value := run.flag(column)) is not None:
            fixed[field] = value
    options, opened = _open(run, fixed, model.value, training, assumptions)
    variants = tuple(_variants(model.value, training, fixed, options, assumptions))
    quantity = _memory_quantity(run)
    return Case(
        run, model.value, cluster.value, training, variants, opened, quantity,
        tuple(dict.fromkeys(assumptions)),
    )  # fmt: skip


def _loss(run: Run, fixed: dict[str, Any]) -> dict[str, Any]:
    """The cross-entropy: Transformer Engine's where the row says fused, torchtitan's compiled.

    Megatron's recipes since 2024 fuse it with Transformer Engine's kernel, which works in place.
    """
    if fixed["stack"] == "megatron" and "ce fusion" in run.notes.lower():
        return {"cross_entropy": "in_place"}
    titan = "titan" in run["stack"] and fixed.get("compile", False)
    if titan and (run.integer("year") or 0) >= COMPILED_LOSS_SINCE:
        return {"cross_entropy": "fused"}
    return {}


def _precision(run: Run) -> tuple[str, list[str]]:
    stated = run["precision"].lower()
    for words, precision in (
        (("fp4", "nvfp4", "mxfp4"), "fp4"), (("fp8", "float8", "mxfp8"), "fp8"),
        (("bf16", "bfloat16"), "bf16"), (("fp16", "half", "float16"), "fp16"),
    ):  # fmt: skip
        if any(word in stated for word in words):
            return precision, []
    if stated in ("", "unknown", "mixed"):
        return "bf16", ["bf16: precision not stated"]
    raise ValueError(f"precision {stated[:40]!r} is not modelled")


def _training(run: Run, software: Any, precision: str, assumptions: list[str]) -> TrainingSpec:
    batch, length = run.integer("global_batch"), run.integer("seq_len")
    if not length:
        raise ValueError("seq_len is not stated")
    if not batch:
        micro, dp = run.integer("micro_batch"), run.integer("dp")
        if not micro or not dp:
            raise ValueError("global_batch is not stated")
        batch = micro * dp
        assumptions.append(f"global batch {batch}: not stated, one micro-batch per rank")
    return TrainingSpec(
        seq_length=length,
        global_batch_size=batch,
        precision=precision,
        fp8_recipe=_recipe(run),
        **gradient_dtypes(run, software, precision),
    )  # fmt: skip


def _recipe(run: Run) -> str:
    text = f"{run['precision']} {run.notes}".lower()
    for words, recipe in (
        (("mxfp8", "fp8-mx", "fp8_mx"), "mxfp8"),
        (("rowwise",), "rowwise"),
        (("blockwise", "block-wise", "sub-channel", "subchannel", "fp8-sc", "deepseek recipe"), "blockwise"),
        (("delayed",), "delayed"),
    ):  # fmt: skip
        if any(word in text for word in words):
            return recipe
    return "tensorwise"


def _degrees(
    run: Run, cluster: ClusterSpec, model: ModelSpec, software: Any, assumptions: list[str]
) -> dict[str, Any]:
    """Parallel degrees, checked against the number of accelerators."""
    ranks = cluster.accelerators
    degrees = {name: run.integer(name) for name in ("tp", "cp", "pp")}
    open_degrees = [name for name in ("tp", "pp") if not degrees[name]]
    if open_degrees:
        if not run.integer("dp") or len(open_degrees) == 2:
            raise ValueError(f"{' and '.join(open_degrees)} not stated")
        other = "pp" if open_degrees == ["tp"] else "tp"
        rest = ranks // ((degrees[other] or 1) * (degrees["cp"] or 1) * (run.integer("dp") or 1))
        degrees[open_degrees[0]] = max(rest, 1)
        assumptions.append(f"{open_degrees[0]} {max(rest, 1)}: from the other degrees")
    tp, cp, pp = (degrees[name] or 1 for name in ("tp", "cp", "pp"))
    if ranks % (tp * cp * pp):
        raise ValueError(f"tp {tp} x cp {cp} x pp {pp} does not divide {ranks} accelerators")
    dp = ranks // (tp * cp * pp)
    if run.integer("dp") not in (None, dp):
        assumptions.append(f"dp {dp} = accelerators / (tp cp pp); the row prints {run['dp']}")
    ep = (run.integer("ep") or 1) if model.moe is not None else 1
    if (tp * cp * dp) % ep:
        raise ValueError(f"ep {ep} does not divide tp x cp x dp = {tp * cp * dp}")
    sharded = run.flag("sp")
    if sharded is None:
        sharded = tp > 1 and software.plan["stack"] in ("megatron", "torch")
        if tp > 1:
            assumptions.append(f"sequence parallelism {'on' if sharded else 'off'}: not stated")
    etp = 1
    if found := re.search(r"\betp ?=? ?(\d+)", run.notes.lower()):
        etp = int(found.group(1))
    fixed: dict[str, Any] = {
        "tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": ep, "etp": etp,
        "sequence_parallel": bool(sharded) and tp > 1,
    }  # fmt: skip
    fixed.update(_zero(run, software))
    if cp > 1:
        if "ulysses" in run.notes.lower() or "a2a" in run.notes.lower():
            fixed["cp_kind"] = "a2a"
        elif software.plan["stack"] == "torch":
            fixed["cp_kind"] = "all_gather"
    return fixed


def _zero(run: Run, software: Any) -> dict[str, Any]:
    """ZeRO stage; the table's 2 is FSDP that keeps gathered weights after the forward pass."""
    stage = run.integer("zero_stage")
    if stage is None:
        stage = int(bool(run.flag("distributed_optimizer")))
    stage = min(stage, 3)
    torch = software.plan["stack"] == "torch"
    said = "reshard_after_forward false" in run.notes.lower()
    keeps = said and ("in moe yamls" not in run.notes.lower() or bool(run.integer("experts")))
    if torch and (stage == 2 or (stage == 3 and keeps)):
        return {"zero_stage": 3, "reshard_after_forward": False}
    if torch and stage == 3 and (run.integer("pp") or 1) > 1:
        # Under a pipeline torch gathers once per step (FSDP2 with pipelining).
        return {"zero_stage": 3, "reshard_after_forward": False}
    return {"zero_stage": stage}


def _schedule(run: Run, pp: int, vpp: int | None) -> str:
    text = run["schedule"].lower()
    if pp > 1:
        for pattern, name in SCHEDULES:
            if re.search(pattern, text) and not ("not stated" in text and "or" in text):
                if name == "1f1b" and (vpp or 1) > 1:
                    return "interleaved-1f1b"
                return name
    return "interleaved-1f1b" if (vpp or 1) > 1 and pp > 1 else "1f1b"


def _open(
    run: Run,
    fixed: dict[str, Any],
    model: ModelSpec,
    training: TrainingSpec,
    assumptions: list[str],
) -> tuple[list[list[dict[str, Any]]], tuple[str, ...]]:
    """Per open input the values it may have; stated inputs have one."""
    opened: list[str] = []
    share = training.global_batch_size // fixed["dp"]
    micro = run.integer("micro_batch")
    if not micro and "titan" in run["stack"] and fixed["pp"] > 1:
        # torchtitan splits a rank's batch into as many micro-batches as there are stages
        # (pipelining_utils.py, pipeline_parallel_microbatches).
        micro = max(share // fixed["pp"], 1)
        assumptions.append(f"micro-batch {micro}: as many micro-batches as stages (torchtitan)")
    if micro:
        sizes = [{"micro_batch_size": micro}]
    else:
        sizes = [{"micro_batch_size": b} for b in MICRO_BATCHES if share and share % b == 0]
        sizes = sizes or [{"micro_batch_size": 1}]
        if len(sizes) > 1:
            opened.append("micro_batch")
    vpp, pp = run.integer("vpp"), fixed["pp"]
    schedule = _schedule(run, pp, vpp)
    unclear = "not stated" in run["schedule"].lower() or not run["schedule"]
    if schedule == "interleaved-1f1b" and not vpp and pp > 1:
        chunks = [v for v in range(2, 21) if model.num_layers % (pp * v) == 0]
        pipelines = [{"schedule": schedule, "vpp": v} for v in chunks]
        opened += ["vpp"] if len(chunks) > 1 else []
    elif pp > 1 and not vpp and unclear:
        chunks = [v for v in range(1, 21) if model.num_layers % (pp * v) == 0]
        pipelines = [
            {"schedule": "1f1b" if v == 1 else "interleaved-1f1b", "vpp": v} for v in chunks
        ]
        opened += ["vpp"] if len(chunks) > 1 else []
    else:
        pipelines = [{"schedule": schedule, "vpp": _chunks(schedule, vpp if pp > 1 else 1)}]
    if not pipelines:
        pipelines = [{"schedule": "1f1b", "vpp": 1}]
    redone = _recompute(run, fixed, model)
    if len(redone) > 1:
        opened.append("recompute")
    return [sizes, pipelines, redone], tuple(opened)


def _chunks(schedule: str, vpp: int | None) -> int:
    """Model chunks per rank: as stated, else what the schedule needs."""
    from cost_models.schedules import SCHEDULES as known

    counts = known[schedule].chunk_counts  # type: ignore[index]
    if counts:
        return vpp if vpp in counts else counts[0]
    return vpp if vpp and vpp > 1 else 2


def _recompute(run: Run, fixed: dict[str, Any], model: ModelSpec) -> list[dict[str, Any]]:
    text, notes = run["recompute"].lower(), run.notes.lower()
    torch = fixed.get("stack", "megatron") == "torch" or "torchtitan" in run["stack"]
    full = {"recompute": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    none: dict[str, Any] = {"recompute": "none"}
    selective: dict[str, Any] = {"recompute": "selective", "recompute_modules": ("core_attn",)}
    if torch:
        selective = {"recompute": "selective", "recompute_modules": ("op",)}
        if re.search(r"every other|selective layer", notes):
            selective = {"recompute": "full", "recompute_method": "block",
                         "recompute_num_layers": -2}  # fmt: skip
    if not run.known("recompute"):
        return [none, full] if torch else [none, selective, full]
    if "full" in text or text in ("1", "yes", "true", "block", "uniform"):
        return [full]
    if "select" in text or "partial" in text:
        return [selective]
    return [none]


def _variants(
    model: ModelSpec,
    training: TrainingSpec,
    fixed: dict[str, Any],
    options: list[list[dict[str, Any]]],
    assumptions: list[str],
) -> Iterable[ParallelPlan]:
    for parts in product(*options):
        values = dict(fixed)
        for part in parts:
            values.update(part)
        ranks, micro = values["dp"], values["micro_batch_size"]
        if training.global_batch_size % (ranks * micro):
            count = training.global_batch_size / (ranks * micro)
            assumptions.append(f"{count:.2f} micro-batches per rank: the batch does not divide")
        chunks = values["pp"] * values["vpp"]
        if values.get("recompute_num_layers") == -2:
            values["recompute_num_layers"] = max(model.num_layers // chunks // 2, 1)
        if model.num_layers % chunks:
            values.update(_uneven(model.num_layers, values["pp"], assumptions))
            if model.num_layers % chunks and values["vpp"] > 1:
                raise ValueError(
                    f"{model.num_layers} layers over pp {values['pp']} x vpp {values['vpp']}"
                )
        try:
            yield ParallelPlan(**values)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"no plan: {first['msg']}") from None


def _uneven(layers: int, pp: int, assumptions: list[str]) -> dict[str, Any]:
    """Layers that do not divide: the two ends, which hold the word table and the head, have less."""
    if (layers + 2) % pp == 0:
        ends = (layers + 2) // pp - 1
        assumptions.append(f"first and last stage have {ends} layers: word table and head stand there")
        return {"first_stage_layers": ends, "last_stage_layers": ends}
    low, extra = divmod(layers, pp)
    stages = [low] * pp
    for i in range(extra):
        # From the middle outward: the ends get theirs last.
        stages[sorted(range(pp), key=lambda r: abs(r - (pp - 1) / 2))[i]] += 1
    assumptions.append(f"{layers} layers over {pp} stages: {low} or {low + 1}, fewer at the ends")
    return {"stage_layers": tuple(stages)}


def _memory_quantity(run: Run) -> str:
    notes = run.notes.lower()
    if "nvidia-smi" in notes or "driver" in notes:
        return "driver"
    if "max_memory_allocated" in notes or "max_allocated" in notes or "max allocated" in notes:
        return "allocated"
    if "cuda reserved" in notes or "max_memory_reserved" in notes or "titan" in run["stack"]:
        return "reserved"
    return "allocated"
