"""The error table of the catalog: what each published run missed by, by kind."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable

from planner.accuracy.predict import Prediction
from planner.accuracy.scores import counts, log_ratio
from planner.error_band import FILE, LIKENESS, likeness


def write_error_table(predictions: Iterable[Prediction], left_out_over_fitted: float) -> None:
    """Write ln(predicted / published) of the scored runs by kind and source."""
    found: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for p in predictions:
        if counts(p) and p.case is not None and p.plan is not None and not p.run.is_layer:
            kind = likeness(p.case.model, p.case.cluster, p.case.training, p.plan)
            key = (*(kind[name] for name in LIKENESS), p.run.source_key)
            found[key].append(round(log_ratio(p), 4))
    rows = [
        {**dict(zip((*LIKENESS, "source"), key, strict=True)), "ln": sorted(values)}
        for key, values in sorted(found.items())
    ]
    text = ",\n".join(f"    {json.dumps(row)}" for row in rows)
    FILE.write_text(
        '{\n  "about": "ln(predicted / published) of the scored published runs; made by '
        'python -m planner.accuracy.fit --write",\n'
        f'  "left_out_over_fitted": {max(left_out_over_fitted, 1.0):.3f},\n'
        f'  "rows": [\n{text}\n  ]\n}}\n',
        encoding="utf-8",
    )
