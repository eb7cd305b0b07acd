"""Tokens and steps to the same loss at another batch, by the gradient noise scale.

With the fewest steps S0 (an unlimited batch) and the fewest tokens E0 (a very small batch),
(S/S0 - 1)(E/E0 - 1) = 1, and the critical batch is E0/S0: with it, a training takes twice the
fewest steps and twice the fewest tokens.

Not modelled: that the critical batch grows while the loss falls, and other learning rates.
"""

from __future__ import annotations

import numpy as np

from cost_models.sources import Array, formula


@formula("1", "mccandlish-2018")
def tokens_over_fewest(batch: Array, critical_batch: Array) -> Array:
    """Tokens over those of a very small batch: 1 + B/B_crit."""
    return 1.0 + np.divide(batch, critical_batch)
