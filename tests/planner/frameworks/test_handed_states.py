"""Recurrences of the training script over several ranks of a sequence, which hand on their states.

The ranks are threads of this process, each with a script of its own: what they gather is stacked,
so that autograd runs back through all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from cost_models.spec import ModelSpec
from planner import frameworks
from planner.constraints import Context, violations
from tests.fixtures.launches import launch

RANKS, LENGTH, HIDDEN = 4, 64, 32
MODEL: dict[str, Any] = {
    "num_layers": 1, "hidden_size": HIDDEN, "num_attention_heads": 4, "num_query_groups": 4,
    "head_dim": 8, "ffn_hidden_size": 64, "gated_mlp": True, "vocab_size": 128,
    "norm": "rmsnorm", "tied_embeddings": False,
}  # fmt: skip
DELTA = {
    "kind": "gated_delta_net", "num_key_heads": 2, "num_value_heads": 4, "key_head_dim": 8,
    "value_head_dim": 16,
}  # fmt: skip
BLOCKS: dict[str, dict[str, Any]] = {
    "mamba2": {
        "kind": "mamba2", "num_heads": 4, "head_dim": 16, "num_groups": 2, "state_size": 8,
        "chunk_size": 8,
    },
    "mamba": {"kind": "mamba", "inner_size": 64, "state_size": 8, "time_step_rank": 4},
    "gated delta net": DELTA,
    "channel decays": DELTA | {"channel_decays": True, "decay_rank": 4},
    "lightning": {"kind": "lightning_attention"},
    "linear recurrent unit": {"kind": "linear_recurrent_unit", "width": 48, "num_blocks": 4},
    "rwkv": {"kind": "rwkv_time_mix"},
    "rwkv feed-forward": {"kind": "rwkv_channel_mix"},
    "short convolution": {"kind": "short_convolution", "taps": 4},
}  # fmt: skip


@pytest.fixture
def world() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def asked(block: dict[str, Any], length: int = LENGTH, **plan: Any) -> Any:
    return launch(
        ModelSpec(**MODEL, layer_pattern=[[block]]), (1, plan.get("cp", 1)),
        training={"seq_length": length, "global_batch_size": 2, "precision": "fp32"},
        runtime="torch", zero_stage=0, cross_entropy="unfused", attention_kernel="flash2", **plan,
    )  # fmt: skip


def loaded(block: dict[str, Any]) -> Any:
    """The script of one rank alone."""
    text = frameworks.get("pytorch").write(*asked(block)).files["train.py"]
    script: Any = ModuleType("train")
    exec(compile(text, "train.py", "exec"), script.__dict__)
    script.setup(torch.device("cpu"))
    return script


def split(script: Any, rank: int, barrier: Barrier, found: list[Any]) -> None:
    """Make the script one of several ranks, which meet to see what each of them has."""

    def of_ranks(x: torch.Tensor) -> torch.Tensor:
        found[rank] = x
        barrier.wait()
        every = torch.stack(found)
        barrier.wait()
        return every

    script.C.cp, script.CP_RANK, script.of_ranks = RANKS, rank, of_ranks


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.usefixtures("world")
def test_ranks_of_a_sequence_compute_what_one_rank_does(name: str) -> None:
    """Outputs, and the gradients of the input and of all weights."""
    scripts = [loaded(BLOCKS[name]) for _ in range(1 + RANKS)]
    alone, *parts = (s.initialise(lambda s=s: s.Block(0)) for s in scripts)
    for weight in alone.parameters():  # decays and gates of zero would hide what is lost
        torch.nn.init.normal_(weight, 0.1, 0.3)
    for part in parts:
        part.load_state_dict(alone.state_dict())
    barrier, found = Barrier(RANKS), [None] * RANKS
    for rank, script in enumerate(scripts[1:]):
        split(script, rank, barrier, found)
    x = torch.randn(2, LENGTH, HIDDEN, requires_grad=True)
    of = torch.randn(2, LENGTH, HIDDEN)
    wanted = alone(x)
    (wanted * of).sum().backward()
    own = x.detach().requires_grad_()
    with ThreadPoolExecutor(RANKS) as pool:
        outputs = pool.map(lambda part, tokens: part(tokens), parts, own.chunk(RANKS, 1))
        output = torch.cat(tuple(outputs), 1)
    (output * of).sum().backward()
    close = {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(output, wanted, **close)
    torch.testing.assert_close(own.grad, x.grad, **close)
    for key, weight in alone.named_parameters():
        gradients = [dict(part.named_parameters())[key].grad for part in parts]
        torch.testing.assert_close(sum(gradients), weight.grad, **close, msg=key)


def refused(block: dict[str, Any], length: int = LENGTH, **plan: Any) -> set[str]:
    request, one = asked(block, length, **plan)
    context = Context(request.model, request.cluster, request.training)
    broken = violations(context, one, frameworks.get("pytorch").rules)
    return {reason.text for reason in broken}


def test_states_are_handed_on_in_the_order_of_the_tokens() -> None:
    assert refused(DELTA, cp=4, cp_kind="a2a") == set()
    (text,) = refused(DELTA, cp=4, cp_kind="all_gather")
    assert "processes tokens in order" in text


def test_tokens_of_a_rank_are_whole_chunks_and_reach_back_far_enough() -> None:
    (text,) = refused(DELTA, 384, cp=4, cp_kind="a2a")
    assert text == "96 tokens of a rank are not a multiple of chunks of 64"
    (text,) = refused(BLOCKS["short convolution"] | {"taps": 18}, cp=4, cp_kind="a2a")
    assert "convolutions look back 17 tokens" in text
