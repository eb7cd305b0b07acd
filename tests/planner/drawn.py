"""Requests drawn at random, small enough to be searched by brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from cost_models.catalog.hardware import node_group
from cost_models.schedules import SCHEDULES
from cost_models.spec import ClusterSpec, MLASpec, ModelSpec, MoESpec, TrainingSpec
from planner.documents.request import Bounds, PlanRequest, SearchSpec
from planner.search.exhaustive import cost_model
from planner.search.space import Space


@st.composite
def models(draw: st.DrawFn, most_layers: int = 6, least_layers: int = 1) -> ModelSpec:
    heads = draw(st.sampled_from([2, 4, 6, 8]))
    hidden = heads * draw(st.sampled_from([32, 64]))
    moe = mla = None
    if draw(st.booleans()):
        moe = MoESpec(
            num_experts=draw(st.sampled_from([2, 4, 6])),
            top_k=draw(st.integers(1, 2)),
            expert_ffn_hidden_size=draw(st.sampled_from([64, 96])),
            shared_expert_ffn_hidden_size=draw(st.sampled_from([0, 64])),
            imbalance_factor=draw(st.sampled_from([1.0, 1.5])),
        )
    if draw(st.integers(0, 3)) == 0:
        mla = MLASpec(
            kv_lora_rank=32,
            q_lora_rank=draw(st.sampled_from([None, 48])),
            qk_nope_head_dim=16,
            qk_rope_head_dim=16,
            v_head_dim=16,
        )
    layers = draw(st.integers(least_layers, most_layers))
    if moe is not None and layers > 1 and draw(st.booleans()):
        moe = moe.model_copy(update={"num_dense_layers": 1})
    return ModelSpec(
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_query_groups=heads if mla else draw(st.sampled_from([1, 2, heads])),
        ffn_hidden_size=draw(st.sampled_from([hidden * 2, hidden * 4])),
        gated_mlp=draw(st.booleans()),
        vocab_size=draw(st.sampled_from([1000, 50257])),
        tied_embeddings=draw(st.booleans()),
        moe=moe,
        mla=mla,
        mtp_num_layers=draw(st.sampled_from([0, 0, 0, 1])),
    )


@st.composite
def requests(
    draw: st.DrawFn,
    most_layers: int = 6,
    worlds: tuple[tuple[int, int], ...] = ((1, 1),),
    least_layers: int = 1,
    batches: tuple[int, ...] = (1, 2, 4, 6, 8),
) -> PlanRequest:
    """A request whose memory is sometimes ample, sometimes tight, sometimes hopeless."""
    model = draw(models(most_layers, least_layers))
    nodes, per_node = draw(st.sampled_from(worlds))
    name = draw(st.sampled_from(["h100-sxm", "a100-sxm-80gb", "mi300x", "l40s"]))
    group = node_group(name, nodes, per_node)
    capacity = draw(st.sampled_from([2e7, 1e8, 3e8, 1e9, 8e10]))
    accelerator = group.accelerator.model_copy(update={"memory_bytes": capacity})
    cluster = ClusterSpec(
        groups=(group.model_copy(update={"accelerator": accelerator}),),
        reserved_bytes_per_accelerator=1e6,
    )
    training = TrainingSpec(
        seq_length=draw(st.sampled_from([64, 128, 256])),
        global_batch_size=draw(st.sampled_from(batches)),
    )
    limits: dict[str, Bounds] = {}
    if draw(st.booleans()):
        lists = [(0,), (1,), (2,), (3,), (0, 2), (0, 3), (1, 3), (3, 1, 0)]
        limits["zero_stage"] = Bounds(values=draw(st.sampled_from(lists)))
    if draw(st.integers(0, 4)) == 0:
        limits["recompute_method"] = Bounds(
            values=draw(st.sampled_from([("uniform",), ("block", "uniform")]))
        )
    names = [name for name, schedule in SCHEDULES.items() if schedule.synchronous]
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    if "1f1b" not in chosen:
        chosen.append("1f1b")
    limits["schedule"] = Bounds(values=tuple(chosen))
    offloaded = draw(st.integers(0, 4)) == 0
    objective = draw(st.sampled_from(["tokens_per_s", "memory_headroom"]))
    return PlanRequest(
        model=model,
        cluster=cluster,
        training=training,
        search=SearchSpec(
            limits=limits,
            objective=objective,  # type: ignore[arg-type]
            top_k=3,
            memory_risk=1.0,  # what is compared with is whether the predicted peak fits
            open=("offload_activations",) if offloaded else (),
        ),
    )


def with_memory(request: PlanRequest, capacity: float) -> PlanRequest:
    """The same on accelerators with so much memory."""
    (group,) = request.cluster.groups
    accelerator = group.accelerator.model_copy(update={"memory_bytes": capacity})
    group = group.model_copy(update={"accelerator": accelerator})
    cluster = request.cluster.model_copy(update={"groups": (group,)})
    return request.model_copy(update={"cluster": cluster})


def with_usual_splits(request: PlanRequest) -> PlanRequest:
    """The same without layers assigned: naming no explicit split keeps to the usual ones."""
    limits = {**request.search.limits, "stage_layers": Bounds(values=((),))}
    searched = request.search.model_copy(update={"limits": limits})
    return request.model_copy(update={"search": searched})


def peaks_of(request: PlanRequest) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The memory that each legal plan of the full space needs, the leanest first."""
    model = cost_model(request)
    chunks = Space(request, full=True).chunks(1 << 14)
    return np.sort(np.concatenate([[], *(model.evaluate(chunk).peak_bytes for chunk in chunks)]))


@st.composite
def fitting_requests(
    draw: st.DrawFn,
    most_layers: int = 6,
    worlds: tuple[tuple[int, int], ...] = ((1, 1),),
    least_layers: int = 1,
    batches: tuple[int, ...] = (1, 2, 4, 6, 8),
) -> PlanRequest:
    """A request with legal plans of which some fit: the leanest alone, a part of them, or all."""
    request = draw(requests(most_layers, worlds, least_layers, batches))
    peaks = peaks_of(request)
    if not len(peaks):  # one sample for each accelerator is always a plan
        batch = request.cluster.accelerators
        training = request.training.model_copy(update={"global_batch_size": batch})
        request = request.model_copy(update={"training": training})
        peaks = peaks_of(request)
    share = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    return with_memory(request, float(peaks[int(share * (len(peaks) - 1))]))
