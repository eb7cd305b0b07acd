"""What peers and we say of the scored runs, kept in results.json."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from planner.evidence.published_runs.runs import PUBLISHED_RUNS, read_runs
from planner.learning.accuracy.first_sights import FILE as FIRST_SIGHT
from planner.learning.accuracy.predict import Prediction, predict
from planner.learning.accuracy.scores import counts
from tools.peers import PEERS
from tools.peers.common import InexpressibleError, Peer, Question

FILE = Path(__file__).with_name("results.json")
VARIABLE = "CHECKOUTS_PATH"
Document = dict[str, Any]


def asked() -> list[Prediction]:
    """The runs that this planner is scored on, with what it says of them."""
    predictions = (predict(run) for run in read_runs(PUBLISHED_RUNS))
    return [one for one in predictions if counts(one) and not one.run.is_layer]


def checkout_of(peer: Peer, folder: Path) -> Path:
    """Where a peer lies."""
    return folder / f"{peer.repository.replace('/', '+')}@{peer.revision}"


def ask(key: str, predictions: Sequence[Prediction], checkout: Path) -> Document:
    """What a peer says of each run that it has inputs for, and why it has none for others."""
    refused: Counter[str] = Counter()
    inputs = {}
    for one in predictions:
        assert one.case is not None
        assert one.plan is not None
        try:
            inputs[one.run.id] = PEERS[key].express(Question(one.case, one.plan))
        except InexpressibleError as error:
            refused[str(error)] += 1
    lines = "".join(f"{json.dumps(each)}\n" for each in inputs.values())
    ran = subprocess.run(
        [sys.executable, "-m", "tools.peers.worker", key, str(checkout)],
        input=lines, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
    )  # fmt: skip
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    failed = Counter(each["failed"] for each in answers if "failed" in each)
    good = {id_: each for id_, each in zip(inputs, answers, strict=True) if "failed" not in each}
    return {
        "refused": dict(refused.most_common()),
        "failed": dict(failed.most_common()),
        "cpu_s": _short(median(each["cpu_s"] for each in good.values())) if good else None,
        "estimates": {
            id_: [_short(each["seconds"]), _short(each["peak_bytes"])] for id_, each in good.items()
        },
    }


def ask_all(predictions: Sequence[Prediction], folder: Path) -> Document:
    """What every peer says, and how long one of our own estimates takes."""
    found = {key: ask(key, predictions, checkout_of(PEERS[key], folder)) for key in PEERS}
    times = []
    for one in predictions[:: max(1, len(predictions) // 200)]:
        began = time.process_time()
        predict(one.run)
        times.append(time.process_time() - began)
    return {**found, "ours": {"cpu_s": _short(median(times))}}


def document(predictions: Sequence[Prediction], answers: Document) -> Document:
    """The peers' answers with ours and the measurements of the same runs."""
    said = {id_ for key in PEERS for id_ in answers[key]["estimates"]}
    with FIRST_SIGHT.open(newline="", encoding="utf-8") as file:
        first = {row["id"]: row["predicted_iteration_time_s"] for row in csv.DictReader(file)}
    runs = {}
    for one in predictions:
        if one.run.id not in said:
            continue
        assert one.case is not None
        peaks = one.run.peak_bytes is not None
        runs[one.run.id] = {
            "source": one.run.source_key,
            "accelerator": one.case.cluster.groups[0].accelerator.id,
            "measured_s": _short(one.run.iteration_time_s),
            "ours_s": _short(one.iteration_time_s),
            "first_sight_s": float(first[one.run.id]) if first.get(one.run.id) else None,
            "measured_bytes": _short(one.run.peak_bytes),
            "ours_bytes": _short(one.peak_bytes) if peaks else None,
        }
    return {"scored": len(predictions), "peers": answers, "runs": runs}


def read() -> Document:
    """The committed document."""
    found: Document = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def write(found: Document) -> None:
    """Keeps a document, one run a line."""
    text = json.dumps(found, indent=1)
    FILE.write_text(text + "\n", encoding="utf-8")


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
