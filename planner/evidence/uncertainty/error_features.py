"""Error features of an estimate: its time by factor, and the groups that share its errors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.arrays import sum_of
from cost_models.plans import ParallelPlan, Plans
from cost_models.profiles import EfficiencyProfile, profile_for
from cost_models.spec import ClusterSpec, ModelSpec, TrainingSpec

Array = NDArray[np.float64]

# The factors into which a run's time is divided, with their titles.
FACTORS: dict[str, str] = {
    "compute": "kernels",
    "experts": "expert kernels",
    "narrow": "FP8 and FP4 kernels",
    "small": "launch-bound kernels",
    "tp": "tensor-parallel communication",
    "cp": "context-parallel communication",
    "ep": "expert-parallel communication",
    "pipeline": "pipeline bubble and sends",
    "dp": "data-parallel communication",
    "optimizer": "optimizer step and offload",
}
# What of an estimate may be a guess, as a sentence about it.
DOUBTS: dict[str, str] = {
    "kernels": "no kernel of this accelerator was measured",
    "stack": "the software's kernels are another's",
    "method": "few runs of its method are published",
    "inputs": "some of its inputs are open",
}
NARROW = ("fp8", "fp4")  # precisions below 16 bits
UNMEASURED = ("fallback", "scaled")  # kinds of profiles: few or no kernels of the accelerator
# Forward seconds of a layer and micro-batch at which half of its kernels count as short.
SMALL_S = 5e-4


@dataclass(frozen=True)
class ErrorFeatures:
    """Error features of an estimate: the share of its time per factor, and its group at each level.

    shares: shape (factors,).  groups: those of `groups_of`.  seconds: of an iteration.  doubts:
    those of DOUBTS that it has.  sources_alike: other sources with runs of its accelerator, stack
    and kind of model; None: those of the catalog.
    """

    shares: tuple[float, ...]
    groups: tuple[str, str, str, str, str]
    experts: bool
    hidden_size: int
    seconds: float = 1.0
    accelerators: int = 8
    precision: str = "bf16"
    doubts: tuple[str, ...] = ()
    sources_alike: int | None = None


def error_features(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: TrainingSpec,
    plan: ParallelPlan,
    parts_s: Mapping[str, float],
    source: str = "",
    profile: EfficiencyProfile | None = None,
    guessed: Collection[str] = (),
) -> ErrorFeatures:
    """Error features of an estimate; parts_s: seconds of an iteration by part.

    source: the source of the run; "": a source without published runs.  profile: that it is priced
    with, where it is not the accelerator's own.  guessed: doubts that the caller has.
    """
    accelerator = cluster.groups[0].accelerator
    shares = shares_of(model, training, plan, parts_s)
    groups = groups_of(
        profile_for(accelerator).family,
        accelerator.id,
        plan.runtime,
        source,
        model.hidden_size,
        model.num_layers,
    )
    profile = profile or profile_for(accelerator)
    offloads = plan.offload_optimizer or plan.offload_activations
    return ErrorFeatures(
        tuple(shares.tolist()),
        groups,
        model.moe is not None,
        model.hidden_size,
        sum(parts_s.values()),
        cluster.accelerators,
        training.precision,
        doubts_of(profile, training.freezes or offloads, guessed),
    )


def doubts_of(
    profile: EfficiencyProfile, other_method: bool, guessed: Collection[str] = ()
) -> tuple[str, ...]:
    """What is guessed of an estimate, in the order of DOUBTS.

    other_method: whether parts are frozen or offloaded.  guessed: doubts that the caller has.
    """
    doubts = {"kernels": profile.kind in UNMEASURED, "method": other_method}
    return tuple(name for name in DOUBTS if doubts.get(name) or name in guessed)


def groups_of(
    family: str, accelerator: str, runtime: str, source: str, hidden_size: int, num_layers: int
) -> tuple[str, str, str, str, str]:
    """Family, accelerator, runtime, source, and the source's model; "": unknown."""
    model = f"{source}, {accelerator}, {hidden_size} x {num_layers}" if source else ""
    return family, accelerator, runtime, source, model


def shares_of(
    model: ModelSpec,
    training: TrainingSpec,
    plans: ParallelPlan | Plans,
    parts_s: Mapping[str, float] | Mapping[str, Array],
) -> Array:
    """Shares of plans' times by factor, which are the last axis; parts_s: seconds by part."""
    experts, narrow = model.moe is not None, training.precision in NARROW
    micro_batches = training.global_batch_size / (plans.dp * plans.micro_batch_size)
    pass_s = parts_s["forward"] / np.maximum(micro_batches * model.num_layers / plans.pp, 1.0)
    total = sum_of(parts_s.values())
    share = {name: seconds / total for name, seconds in parts_s.items()}
    # A bubble is time in which the kernels and communication of layers run on other ranks.
    kernels = share["forward"] + share["backward"] + share["recompute"]
    layers = kernels + share["tp_comm"] + share["cp_comm"] + share["ep_comm"]
    has_layers = layers > 0
    more = 1.0 + np.where(has_layers, share["bubble"] / np.where(has_layers, layers, 1.0), 0.0)
    kernels = kernels * more
    shares = {
        "compute": kernels,
        "experts": kernels * experts,
        "narrow": kernels * narrow,
        "small": kernels / (1.0 + pass_s / SMALL_S),
        "tp": share["tp_comm"] * more,
        "cp": share["cp_comm"] * more,
        "ep": share["ep_comm"] * more,
        "pipeline": share["bubble"] + share["pp_comm"],
        "dp": share["dp_comm"] + share["stragglers"],
        "optimizer": share["optimizer"] + share["offload"],
    }
    columns = [shares[name] for name in FACTORS]
    if not any(np.ndim(share) for share in columns):  # of one plan
        return np.array(columns)
    return np.stack(np.broadcast_arrays(*columns), axis=-1)
