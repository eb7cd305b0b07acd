"""Modelled throughput of generating engines beside published ones.

    python -m tools.accuracy.generation

decode_throughput.csv: output tokens per second of one engine of TensorRT-LLM 1.0 with its PyTorch
backend, fp8 caches, prompts and responses of one length each, by its performance overview
(github NVIDIA/TensorRT-LLM docs/source/performance/perf-overview.md @00f37686).  No constant of
the model was fitted to it.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np

from cost_models.catalog.hardware import parse_shorthand
from cost_models.catalog.models import model
from cost_models.continuous_batching import Lengths, generate
from cost_models.estimate import CostModel
from cost_models.generation import WORKSPACE_BYTES, Engine
from cost_models.spec import TrainingSpec

FILE = Path(__file__).with_name("decode_throughput.csv")
# Of memory: the share that the benchmark gave to the cache after weights and workspace.
CACHE_SHARE, MOST_SEQUENCES = 0.9, 2048


def throughput(row: dict[str, str]) -> float:
    """Modelled output tokens per second of a row's engine."""
    cluster = parse_shorthand(f"1x8x{row['accelerator']}")
    training = TrainingSpec(seq_length=4096, global_batch_size=8)
    cost = CostModel(model(row["model"]), cluster, training)
    engine = Engine(
        cost, int(row["tp"]), row["expert_parallel"] == "1", row["weights"], "fp8"
    )  # fmt: skip
    tokens, requests = int(row["response_tokens"]), int(row["requests"])
    memory_bytes = cost.context.nodes.accelerator.memory_bytes
    free = CACHE_SHARE * (memory_bytes - engine.weight_bytes - WORKSPACE_BYTES)
    made = generate(
        engine, Lengths.of_samples(np.array([float(tokens)])), float(row["prompt_tokens"]),
        requests, cache_bytes=free, max_num_seqs=MOST_SEQUENCES,
    )  # fmt: skip
    return requests * tokens / made.seconds


def ratios() -> dict[tuple[str, str, str], list[float]]:
    """Modelled over published throughput, by (model, accelerator, tp)."""
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    with FILE.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = row["model"], row["accelerator"], row["tp"]
            found[key].append(throughput(row) / float(row["output_tokens_per_s"]))
    return dict(found)


def main() -> None:
    """Prints a line per engine, then the errors of all."""
    every: list[float] = []
    for (name, accelerator, tp), found in ratios().items():
        every += found
        low, high = min(found), max(found)
        middle = float(np.median(found))
        print(f"{name:18} {accelerator:9} tp {tp}  {middle:.2f}  ({low:.2f} to {high:.2f})")
    errors = np.abs(np.array(every) - 1.0)
    print(
        f"{len(every)} throughputs: error {np.median(errors):.1%} in the middle, "
        f"{np.mean(errors):.1%} in the mean, {np.max(errors):.0%} at most"
    )


if __name__ == "__main__":
    main()
