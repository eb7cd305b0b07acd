"""Bytes of each parallel dimension against sizes counted by hand."""

from __future__ import annotations

import pytest

from cost_models.communication import (
    context_parallel_chunk_bytes,
    distinct_domains,
    domains_of_groups,
    expert_dispatch_bytes,
    pipeline_message_bytes,
    tensor_parallel_payload_bytes,
    ulysses_payload_bytes,
)

MEBIBYTE = 2.0**20


def test_an_activation_of_4096_tokens_and_8192_channels_in_16_bits() -> None:
    assert tensor_parallel_payload_bytes(4096.0, 8192.0, 2.0) == 64 * MEBIBYTE
    assert pipeline_message_bytes(4096.0, 8192.0, 2.0) == 64 * MEBIBYTE


def test_a_ring_hop_carries_keys_and_values() -> None:
    """1024 tokens, 8 heads of 128: 2 MiB of keys and as much of values."""
    assert context_parallel_chunk_bytes(1024.0, 8.0, 128.0, 2.0) == 4 * MEBIBYTE


def test_ulysses_sends_queries_and_outputs_of_all_heads_keys_and_values_of_few() -> None:
    """1024 tokens in 16 bits, heads of 128: 0.25 MiB a head; 32 + 32 + 8 + 8 heads."""
    assert ulysses_payload_bytes(1024.0, 32.0, 8.0, 128.0, 2.0) == 80 * 0.25 * MEBIBYTE


def test_a_token_goes_once_to_each_of_its_experts() -> None:
    assert expert_dispatch_bytes(1024.0, 8.0, 4096.0, 1.0) == 8 * 4 * MEBIBYTE


@pytest.mark.parametrize(
    ("domains", "expected"), [(1, 1.0), (4, 4 * (1 - 3 / 14)), (8, 4.0), (16, 8.0), (32, 16.0)]
)
def test_four_of_eight_groups_stand_on_domains(domains: int, expected: float) -> None:
    """On 4 domains two groups each: all four chosen miss one with 6/8 x 5/7 x 4/6 x 3/5 = 3/14."""
    assert domains_of_groups(domains, 8, 4) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("top_k", "domains", "expected"),
    [(1.0, 4.0, 1.0), (5.0, 1.0, 1.0), (2.0, 4.0, 1.75), (3.0, 2.0, 1.75)],
)
def test_distinct_domains_of_few_choices(top_k: float, domains: float, expected: float) -> None:
    """Two of four: the second is another one three times in four."""
    assert distinct_domains(top_k, domains) == pytest.approx(expected, rel=1e-12)
