"""What each physical term is worth: the error on published runs without it, nothing refitted.

`python -m tools.accuracy.ablation` prints the table in Markdown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from cost_models.fitted import Fitted, documents, fitted
from cost_models.profiles import Curve, EfficiencyProfile
from planner.evidence.published_runs.runs import PUBLISHED_RUNS
from planner.learning.accuracy.predict import Prediction, predict_case
from planner.learning.accuracy.scores import log_ratios
from tools.accuracy.fit_constants import ReadRun, read

Change = Callable[[EfficiencyProfile], EfficiencyProfile]
_FREE = 1e6  # a kernel so many times as fast takes no time


@dataclass(frozen=True)
class Ablation:
    """One term left out: fitted constants replaced, the profile changed, parts of time dropped."""

    term: str
    constants: dict[str, float] | None = None
    change: Change | None = None
    without: tuple[str, ...] = ()


def _gemm(**fields: float) -> Change:
    def change(profile: EfficiencyProfile) -> EfficiencyProfile:
        gemm = {p: replace(e, **fields) for p, e in profile.gemm.items()}  # type: ignore[arg-type]
        return replace(profile, gemm=gemm)

    return change


def _free_memory(profile: EfficiencyProfile) -> EfficiencyProfile:
    curve = Curve(profile.memory.x, profile.memory.y * _FREE)
    return replace(profile, memory=curve, memory_floor_s=0.0)


def _newest_attention(profile: EfficiencyProfile) -> EfficiencyProfile:
    kept = {key: value for key, value in profile.attention.items() if key[0] == "flash"}
    return replace(profile, attention=kept)


def _grouped_as_plain(profile: EfficiencyProfile) -> EfficiencyProfile:
    return replace(profile, grouped_gemm=(1.0, 1.0, 1.0))


ABLATIONS = (
    Ablation("nothing left out"),
    Ablation("memory-bound kernels", change=_free_memory),
    Ablation(
        "steady clocks",
        {name: 1.0 for name in documents() if name.startswith("sustained_")},
    ),
    Ablation("waves of tiles", change=_gemm(wave_share=0.0)),
    Ablation("overhead of a tile and a kernel", change=_gemm(tile_overhead_s=0.0, floor_s=0.0)),
    Ablation("grouped GEMMs slower than plain ones", change=_grouped_as_plain),
    Ablation("older flash-attention kernels", change=_newest_attention),
    Ablation("tensor-parallel collectives", without=("tp_comm",)),
    Ablation("data-parallel and FSDP traffic", without=("dp_comm",)),
    Ablation("expert-parallel communication", without=("ep_comm",)),
    Ablation("context-parallel communication", without=("cp_comm",)),
    Ablation("pipeline bubble", without=("bubble",)),
    Ablation("pipeline messages", without=("pp_comm",)),
    Ablation("optimizer step", without=("optimizer",)),
    Ablation("contention of overlapped collectives", {"contention": 0.0}),
    Ablation("stragglers", {"straggler": 0.0}),
    Ablation("host time per operation", {"host_launch_s": 0.0}),
)


def ablated(ablation: Ablation, runs: list[ReadRun]) -> dict[str, np.ndarray]:
    """ln(predicted / published) by source, without the term."""
    constants: Fitted = replace(fitted(), **(ablation.constants or {}))

    def predicted(row: ReadRun) -> Prediction:
        prediction = predict_case(row[0], row[1], constants, ablation.change)
        if prediction.parts_s is None or prediction.iteration_time_s is None:
            return prediction
        less = sum(prediction.parts_s[name] for name in ablation.without)
        return replace(prediction, iteration_time_s=prediction.iteration_time_s - less)

    return log_ratios(map(predicted, runs))


def main() -> None:
    """Print the table."""
    runs = read(PUBLISHED_RUNS)
    whole: dict[str, np.ndarray] = {}
    print("| left out | mean of source medians | source hurt most |")
    print("| --- | --- | --- |")
    for ablation in ABLATIONS:
        errors = ablated(ablation, runs)
        medians = {key: float(np.median(np.abs(e))) for key, e in errors.items()}
        whole = whole or errors
        worst = max(medians, key=lambda k: medians[k] - float(np.median(np.abs(whole[k]))))
        hurt = "" if whole is errors else f"{worst} {medians[worst]:.1%}"
        print(f"| {ablation.term} | {np.mean(list(medians.values())):.1%} | {hurt} |")


if __name__ == "__main__":
    main()
