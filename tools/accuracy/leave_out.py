"""How far off each source is when the constants are fitted without it.

`python -m tools.accuracy.leave_out` (about five minutes on two cores).  What a constant does to
each row is predicted on a grid of its values, the others as they are; the effects of several
constants are added up, which is right to first order.  With that, constants are fitted again
without each source, and the rows of that source are predicted in full with them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cost_models.fitted import Fitted, fitted
from planner.evidence.published_runs.runs import PUBLISHED_RUNS
from planner.learning.accuracy.intervals import MIN_OF_KIND
from planner.learning.accuracy.predict import predict_case
from planner.learning.accuracy.scores import counts, log_ratio
from tools.accuracy.fit_constants import BOUNDS, NAMES, ReadRun, loss, read

Array = NDArray[np.float64]
POINTS = 7  # of a constant's grid
_FINE = 61  # values of a constant that a fit chooses from
_ROUNDS = 5


@dataclass(frozen=True)
class Effects:
    """ln(predicted / published) of each row, by what constants are.

    ln: at the constants as they are, shape (rows,).  grids: values of each constant.  moved: what
    each value adds to ln, shape (POINTS, rows).
    """

    sources: tuple[str, ...]
    experts: NDArray[np.bool_]
    ln: Array
    grids: dict[str, Array]
    moved: dict[str, Array]

    def fit(self, without: str) -> Fitted:
        """The constants of least loss over all sources but one."""
        kept = np.array([source != without for source in self.sources])
        names = [source for source in self.sources if source != without]
        values = {name: getattr(fitted(), name) for name in NAMES}
        added = {name: np.zeros(len(names)) for name in NAMES}
        for _ in range(_ROUNDS):
            for name in NAMES:
                others = self.ln[kept] + sum(added[other] for other in NAMES if other != name)
                choices = np.linspace(*BOUNDS[name], _FINE)
                # From the middle outward: where no row tells, the first is taken.
                choices = choices[np.argsort(np.abs(choices - choices.mean()), kind="stable")]
                moved = [self._moved(name, x)[kept] for x in choices]
                best = int(np.argmin([loss(_by_source(names, others + one)) for one in moved]))
                values[name], added[name] = float(choices[best]), moved[best]
        return Fitted(**{**asdict(fitted()), **values})

    def _moved(self, name: str, value: float) -> Array:
        grid, moved = self.grids[name], self.moved[name]
        above = int(np.clip(np.searchsorted(grid, value), 1, len(grid) - 1))
        share = (value - grid[above - 1]) / (grid[above] - grid[above - 1])
        return np.asarray((1.0 - share) * moved[above - 1] + share * moved[above])


def effects(data: Path) -> Effects:
    """What each constant does to each row that counts whatever its value."""
    grids = {name: np.linspace(*bounds, POINTS) for name, bounds in BOUNDS.items()}
    now = fitted()
    points = [now, *(Fitted(**{**asdict(now), n: float(x)}) for n in NAMES for x in grids[n])]
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(partial(_errors, data), points))
    runs = [row for row in _read(data) if all(row[0].id in one for one in found)]
    table = np.array([[one[run.id] for run, _ in runs] for one in found])
    moved = (table[1:] - table[0]).reshape(len(NAMES), POINTS, len(runs))
    return Effects(
        tuple(run.source_key for run, _ in runs),
        np.array([_has_experts(row) for row in runs]),
        table[0],
        grids,
        dict(zip(NAMES, moved, strict=True)),
    )


def _has_experts(row: ReadRun) -> bool:
    case = row[1]
    return not isinstance(case, str) and case.model.moe is not None


def _errors(data: Path, constants: Fitted) -> dict[str, float]:
    """ln(predicted / published) of the rows that count, by their ids."""
    return _of_rows(_read(data), constants)


@cache
def _read(data: Path) -> list[ReadRun]:
    """Once in each process."""
    return read(data)


def _of_rows(runs: Sequence[ReadRun], constants: Fitted) -> dict[str, float]:
    found = (predict_case(run, case, constants) for run, case in runs)
    return {one.run.id: log_ratio(one) for one in found if counts(one)}


def _by_source(sources: Sequence[str], ln: Array) -> dict[str, Array]:
    names = np.array(sources)
    return {source: ln[names == source] for source in dict.fromkeys(sources)}


def main() -> None:
    """Print both errors of each source, and their means by kind of model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=PUBLISHED_RUNS)
    data = parser.parse_args().data
    table, runs = effects(data), _read(data)
    kinds: dict[str, list[Array]] = {"all": [], "dense": [], "mixture of experts": []}
    for source in dict.fromkeys(table.sources):
        constants = table.fit(source)
        own = [row for row in runs if row[0].source_key == source]
        left_out, known = _of_rows(own, constants), _of_rows(own, fitted())
        missed = np.abs([(known[key], left_out[key]) for key in known if key in left_out])
        kinds["all"].append(np.median(missed, axis=0))
        fit, left = kinds["all"][-1]
        print(f"{source:18s} fitted {fit:.4f}  left out {left:.4f}", flush=True)
        experts = np.array([_has_experts(row) for row in own if row[0].id in left_out])
        for kind, of_kind in (("dense", ~experts), ("mixture of experts", experts)):
            if of_kind.sum() >= MIN_OF_KIND:
                kinds[kind].append(np.median(missed[of_kind], axis=0))
    for kind, errors in kinds.items():
        fit, left = np.mean(errors, axis=0)
        print(f"{kind}, mean over {len(errors)} sources: fitted {fit:.4f}  left out {left:.4f}")


if __name__ == "__main__":
    main()
