"""Layers of each stage: nanotron balances the cost of its blocks, and no key overrides that."""

from __future__ import annotations

from functools import lru_cache

from cost_models.spec import ModelSpec


@lru_cache(maxsize=4096)
def stages(model: ModelSpec, pp: int, tp: int) -> tuple[int, ...]:
    """Layers of each stage; 0 for a stage without layers.

    A stage takes blocks until their cumulative cost passes its share of the total, which includes
    the output layer (nanotron models/base.py, build_model; Qwen2Model.get_block_compute_costs).
    """
    hidden = model.hidden_size
    layer = 4 * hidden * hidden + 3 * model.ffn_hidden_size * hidden
    rows = -(-model.vocab_size // tp) * tp
    total = model.num_layers * layer + rows * hidden
    counts, stage = [0] * pp, 0
    for number in range(1, model.num_layers + 1):
        counts[stage] += 1
        if number * layer > total * ((stage + 1) / pp):
            stage += 1
    return tuple(counts)
