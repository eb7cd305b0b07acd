"""Bytes that each parallel dimension sends, per layer and micro-batch or per step."""

from __future__ import annotations

import numpy as np

from cost_models.arrays import maximum, where
from cost_models.sources import Array, formula


@formula("byte", "korthikanti-2022", "megatron-2")
def tensor_parallel_payload_bytes(tokens: Array, hidden_size: Array, element_bytes: Array) -> Array:
    """Payload of one tensor-parallel collective: the full activation, 2bsh.

    Forward 2 all-reduces per layer, or 2 all-gathers and 2 reduce-scatters with sequence
    parallelism; the same backward, plus 2 all-gathers that re-gather sharded inputs.
    """
    return tokens * hidden_size * element_bytes


@formula("byte", "ring-attention")
def context_parallel_chunk_bytes(
    tokens: Array, kv_heads: Array, head_dim: Array, element_bytes: Array
) -> Array:
    """Keys and values that one rank passes on in a ring hop: 2 b (s/c) h_kv / t."""
    return 2.0 * tokens * kv_heads * head_dim * element_bytes


@formula("byte", "ulysses")
def ulysses_payload_bytes(
    tokens: Array, heads: Array, kv_heads: Array, head_dim: Array, element_bytes: Array
) -> Array:
    """Bytes of one rank in the all-to-alls around attention: queries, keys, values, output."""
    return tokens * (2.0 * heads + 2.0 * kv_heads) * head_dim * element_bytes


@formula("byte", "derived")
def expert_dispatch_bytes(
    tokens: Array, copies_per_token: Array, hidden_size: Array, element_bytes: Array
) -> Array:
    """Bytes that one rank sends to the experts (and receives): a copy of each token per expert."""
    return tokens * copies_per_token * hidden_size * element_bytes


@formula("1", "derived")
def distinct_domains(top_k: Array, domains: Array) -> Array:
    """Expected number of distinct domains among top_k uniform choices: K (1 - (1 - 1/K)^k).

    A dispatcher that sends one copy per domain (DeepEP) replaces top_k by this number.
    """
    return domains * (1.0 - (1.0 - 1.0 / domains) ** top_k)


@formula("1", "derived")
def domains_of_groups(domains: Array, groups: int, chosen: int) -> Array:
    """Expected number of domains on which a token's groups of experts stand.

    Groups lie side by side on the ranks: one spans several domains, or a domain holds several of
    them, of which those that the token chooses are drawn without return.
    """
    held = maximum(groups / np.asarray(domains), 1.0)
    missed: Array = 1.0
    for drawn in range(chosen):
        missed = missed * maximum(groups - held - drawn, 0.0) / (groups - drawn)
    spread = np.asarray(domains) * (1.0 - missed)
    return where(np.asarray(domains) >= groups, chosen * np.asarray(domains) / groups, spread)


@formula("byte", "megatron-2")
def pipeline_message_bytes(tokens: Array, hidden_size: Array, element_bytes: Array) -> Array:
    """One stage boundary crossing of one micro-batch, per rank (tokens after the tp split)."""
    return tokens * hidden_size * element_bytes
