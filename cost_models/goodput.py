"""Time lost to failures and checkpoints: the share of a long run that trains.

A job of n nodes stops when any of them fails; it then restarts from its last checkpoint and repeats
the lost work.  Checkpoints take time too, so there is an optimal interval between them.

Not modelled: failures while restarting beyond Daly's formula, nodes that fail early, planned stops.
"""

from __future__ import annotations

import numpy as np

from cost_models.sources import Array, formula


@formula("s", "derived")
def job_mtbf_s(nodes: Array, node_mtbf_s: Array) -> Array:
    """Seconds between failures of a job that stops when any of its nodes does."""
    return np.divide(node_mtbf_s, nodes)


@formula("s", "young-1974")
def young_interval_s(checkpoint_s: Array, mtbf_s: Array) -> Array:
    """Seconds of training between checkpoints, first order: sqrt(2 delta M)."""
    return np.sqrt(2.0 * np.multiply(checkpoint_s, mtbf_s))


@formula("s", "daly-2006")
def daly_interval_s(checkpoint_s: Array, mtbf_s: Array) -> Array:
    """Seconds of training between checkpoints, higher order.

    If a checkpoint takes twice the mean time between failures M or longer, the result is M.
    """
    ratio = np.divide(checkpoint_s, np.multiply(2.0, mtbf_s))
    base = young_interval_s(checkpoint_s, mtbf_s)
    better = base * (1.0 + np.sqrt(ratio) / 3.0 + ratio / 9.0) - checkpoint_s
    return np.where(ratio < 1.0, better, mtbf_s)


@formula("1", "daly-2006")
def effective_share(
    interval_s: Array, checkpoint_s: Array, restart_s: Array, mtbf_s: Array
) -> Array:
    """Share of the wall-clock time that trains, with exponentially distributed failures.

    W / (M exp(R/M) (exp((W + delta)/M) - 1)); without failures W / (W + delta).
    """
    cycle = np.divide(np.add(interval_s, checkpoint_s), mtbf_s)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        failing = np.divide(interval_s, mtbf_s) / (
            np.exp(np.divide(restart_s, mtbf_s)) * np.expm1(cycle)
        )
    calm = np.divide(interval_s, np.add(interval_s, checkpoint_s))
    return np.where(np.isfinite(mtbf_s), failing, calm)
