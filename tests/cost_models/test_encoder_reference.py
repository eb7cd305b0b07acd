"""Encoders held against torch, as blocks are: parameters, FLOP and saved bytes of their modules."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.autograd.graph import saved_tensors_hooks
from torch.testing._internal.distributed.fake_pg import FakeStore

from cost_models.activation_memory import saved_tensors, tensor_bytes
from cost_models.blocks.records import Split
from cost_models.dims import dims
from cost_models.encoders import Encoder
from cost_models.parameters import elements
from cost_models.plans import Plans
from cost_models.spec import ModelSpec
from planner import frameworks
from tests.cost_models.test_blocks_reference import CPU_ATTENTION, LENGTH, MODEL, flop, one, square
from tests.fixtures.launches import launch

POSITIONS, SPAN = 256, 128
ENCODER: dict[str, Any] = {
    "num_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "ffn_hidden_size": 320,
    "bidirectional": True, "position": "learned", "max_position_embeddings": SPAN,
    "qkv_bias": True, "mlp_bias": True, "tokens": POSITIONS, "span": SPAN, "input_width": 48,
    "merge": 4, "projector": [{"inputs": 512, "outputs": 384}, {"inputs": 384, "outputs": 256}],
}  # fmt: skip
CHUNKED = [[{"kind": "attention", "chunk": 32}, {"kind": "mlp"}]] * 2
ENCODERS: dict[str, dict[str, Any]] = {
    "learned positions": {},
    "rotation": {"position": "rope", "gated_mlp": True},
    "averaged": {"projector": [{"inputs": 128, "outputs": 256}], "final_norm": False},
    "no projector": {
        "hidden_size": 256, "projector": [], "position": "none", "num_query_groups": 2,
    },
    "chunks": {"layer_pattern": CHUNKED, "qk_norm": "head"},
    "causal": {"bidirectional": False},
}  # fmt: skip


@pytest.fixture(params=ENCODERS, scope="module")
def encoder(request: pytest.FixtureRequest) -> Iterator[tuple[ModelSpec, Any, Any, Any]]:
    """A model, the script's module of its encoder, what the cost model has, and the sizes."""
    spec = ENCODER | ENCODERS[request.param]
    model = ModelSpec(**MODEL, encoders=[spec])
    asked, plan = launch(
        model, (1, 1), training={"seq_length": LENGTH, "global_batch_size": 1, "precision": "fp32"},
        runtime="torch", zero_stage=0, cross_entropy="unfused", attention_kernel="flash2",
    )  # fmt: skip
    text = frameworks.get("pytorch").write(asked, plan).files["train.py"]
    script: Any = ModuleType("train")
    exec(compile(text, "train.py", "exec"), script.__dict__)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    script.setup(torch.device("cpu"))
    module = script.initialise(lambda: script.Encoder(0))
    yield model, module, Encoder(spec=model.encoders[0]), dims(asked.training, Plans.of(plan))
    dist.destroy_process_group()


def images() -> torch.Tensor:
    drawn = torch.Generator().manual_seed(1)
    return torch.randint(256, (1, POSITIONS, 48), dtype=torch.uint8, generator=drawn)


@pytest.mark.slow
def test_parameters_and_flop(encoder: tuple[ModelSpec, Any, Any, Any]) -> None:
    from torch.utils.flop_counter import FlopCounterMode  # imports triton

    model, module, end, d = encoder
    found = sum(parameter.numel() for parameter in module.parameters())
    assert found == elements(end.weights(model, Split()))
    with FlopCounterMode(display=False, custom_mapping={CPU_ATTENTION: square}) as counted:
        assert module(images()).shape == (1, POSITIONS // 4, 256)
    records = tuple(end.records(model, d))
    assert counted.get_total_flops() == pytest.approx(flop(records, 0.0), rel=0.01)


@pytest.mark.slow
def test_saved_bytes(encoder: tuple[ModelSpec, Any, Any, Any]) -> None:
    model, module, end, d = encoder
    kept: dict[int, int] = {}
    known = [*module.parameters(), *(module.settings.own[2] or ())]
    apart = {x.untyped_storage()._cdata for x in known}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in apart:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        out = module(images())
    out.sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    rows = saved_tensors(end.records(model, d))
    wanted = sum(one(tensor_bytes(row, end.dims(d))) for row in rows)
    assert sum(kept.values()) == pytest.approx(wanted, rel=0.01)


def test_positions_see_those_of_their_image(encoder: tuple[ModelSpec, Any, Any, Any]) -> None:
    """All of them, or those before, or those of a chunk: and nothing of another image."""
    model, module, _, _ = encoder
    spec = model.encoders[0]
    chunk = 32 if spec.layer_pattern else SPAN
    before = module(images())[0]
    changed = images()
    changed[0, 77] += 1
    vectors = (module(changed)[0] - before).abs().sum(-1) > 0
    first = 0 if spec.bidirectional else 77 // 4
    wanted = torch.zeros(POSITIONS // 4, dtype=torch.bool)
    start = 77 // chunk * chunk // 4
    wanted[max(start, first) : start + chunk // 4] = True
    assert vectors.tolist() == wanted.tolist()
