"""Memory of torch by category and by name: of real tensors, and of fake ones at full scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh

from planner.inputs.requests.parser import parse_request
from planner.running.validate.as_pytorch_script import native
from planner.running.validate.dryrun.gpu_operators import gpu_operators
from planner.running.validate.rank_estimate import expected
from planner.running.validate.ranks.saved_rows import rows

WIDTHS = (16, 64, 8)
ROWS = 32


def memory_of(models: Sequence[nn.Module], optimizer: Any = None) -> Any:
    """Memory, which a worker that runs none of these tests need not import: it is half of torch."""
    from planner.running.validate.ranks.memory import Memory

    return Memory(models, optimizer)


def perceptron() -> nn.Sequential:
    layers = [nn.Linear(wide, narrow) for wide, narrow in pairwise(WIDTHS)]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1])


PARAMETERS = sum(wide * narrow + narrow for wide, narrow in pairwise(WIDTHS)) * 4


class TestRealTensors:
    def test_categories_of_a_step(self) -> None:
        """Weights, gradients and two moments of Adam, to the byte; nothing is left over."""
        model = perceptron()
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(ROWS, WIDTHS[0])
        with memory_of([model], optimizer) as memory:
            model(x).sum().backward()
            gradients = memory.current_bytes
            optimizer.step()
            states = memory.current_bytes
            optimizer.zero_grad()
        assert gradients["parameters"] == gradients["gradients"] == PARAMETERS
        assert gradients["activations"] == 0
        assert states["optimizer"] == 2 * PARAMETERS + 4 * 4  # and a count for each tensor
        assert memory.current_bytes["gradients"] == 0
        assert memory.kept_gradient_bytes == PARAMETERS
        assert memory.peak_bytes["total"] >= 2 * PARAMETERS

    def test_saved_tensors_by_name_and_without_weights(self) -> None:
        """The input, and what the ReLU gives: its output is what it and the next layer save."""
        from planner.running.validate.ranks.memory import SavedTensor

        model = perceptron()
        x = torch.randn(ROWS, WIDTHS[0])
        with memory_of([model]) as memory:
            kept = model(x)
            assert memory.saved_bytes == ROWS * (WIDTHS[0] + WIDTHS[1]) * 4
        assert memory.saved(0) == (
            SavedTensor("0", "", "", (ROWS, 16), "float32", ROWS * 16 * 4),
            SavedTensor("1", "1", "relu", (ROWS, 64), "float32", ROWS * 64 * 4),
        )
        del kept

    def test_micro_batches_in_flight(self) -> None:
        """Three forward passes are held at a time; the first one names the tensors."""
        model = perceptron()
        inputs = [torch.randn(ROWS, WIDTHS[0]) for _ in range(4)]
        with memory_of([model]) as memory:
            losses = [model(x).sum() for x in inputs[:3]]
            losses.pop(0).backward()
            losses.append(model(inputs[3]).sum())
            while losses:
                losses.pop(0).backward()
        assert memory.saved_bytes == 3 * ROWS * (WIDTHS[0] + WIDTHS[1]) * 4
        assert len(memory.saved(0)) == 2
        assert memory._held_bytes == 0

    def test_recompute_keeps_the_input_alone(self) -> None:
        model = nn.Sequential(checkpoint_wrapper(perceptron()), nn.Linear(8, 1))
        x = torch.randn(ROWS, WIDTHS[0], requires_grad=True)
        with memory_of([model]) as memory:
            model(x).sum().backward()
        assert memory.saved_bytes == ROWS * (WIDTHS[0] + WIDTHS[-1]) * 4
        assert [one.module for one in memory.saved(0)] == ["0", "1"]

    def test_results_are_those_without_it(self) -> None:
        torch.manual_seed(0)
        model, x = perceptron(), torch.randn(ROWS, WIDTHS[0])
        model(x).sum().backward()
        plain = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        with memory_of([model]):
            model(x).sum().backward()
        for wanted, parameter in zip(plain, model.parameters(), strict=True):
            assert parameter.grad is not None
            assert torch.equal(wanted, parameter.grad)

    def test_leaves_torch_as_it_was(self) -> None:
        resize, own = torch.UntypedStorage.resize_, F.dropout
        with pytest.raises(RuntimeError, match="stop"), memory_of([perceptron()]), gpu_operators():
            raise RuntimeError("stop")
        assert torch.UntypedStorage.resize_ is resize
        assert F.dropout is own


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_half_precision_copies_are_gathered_weights() -> None:
    """FSDP's copies for computing are no activations, nor are gradients that wait in fp32."""
    from torch.distributed._composable.replicate_with_fsdp import replicate
    from torch.distributed.fsdp import MixedPrecisionPolicy

    model = perceptron()
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    replicate(model, mesh=init_device_mesh("cpu", (1,)), mp_policy=policy)
    x = torch.randn(ROWS, WIDTHS[0])
    with memory_of([model]) as memory:
        model.set_requires_gradient_sync(False)  # type: ignore[operator]
        for _ in range(2):
            model(x).sum().backward()
    assert memory.highest_bytes["gathered"] == PARAMETERS / 2
    assert memory.kept_gradient_bytes == PARAMETERS
    assert memory.saved_bytes == ROWS * (WIDTHS[0] + WIDTHS[1]) * 2


class Layer(nn.Module):
    """The transformer layer of Korthikanti et al., with dropout and flash attention."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.mlp_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(3))
        self.output = nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        q, k, v = (one(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in self.qkv)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + F.dropout(self.output(y), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.mlp_norm(x)))), 0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("h", "a", "s", "b"), [(6144, 64, 2048, 4), (12288, 96, 2048, 1)])
def test_a_layer_of_the_paper_to_the_byte(h: int, a: int, s: int, b: int) -> None:
    """34 sbh, the log-sum-exp of flash attention, and the norms' statistics (arXiv 2205.05198)."""
    with torch.device("meta"):
        layer = Layer(h, a).bfloat16()
    with FakeTensorMode(allow_non_fake_inputs=True), gpu_operators():
        layer.to_empty(device="cpu")
        x = torch.empty(b, s, h, dtype=torch.bfloat16, requires_grad=True)
        with memory_of([layer]) as memory:
            layer(x).sum().backward()
    random_state = 2 * 8 + 8
    assert memory.saved_bytes == 34 * s * b * h + 4 * a * s * b + 2 * 2 * 4 * s * b + random_state


def test_names_of_what_a_layer_saves() -> None:
    """Rows of equal tensors are counted; the same operator stands for another row elsewhere."""
    from planner.running.validate.ranks.memory import SavedTensor

    saved = [
        SavedTensor(f"blocks.{n}.{module}", maker, operator, shape, dtype, size)
        for n in (4, 5)
        for module, maker, operator, shape, dtype, size in (
            ("attention_norm", "", "add", (1, 8, 16), "bfloat16", 256),
            ("attention_norm", "", "native_layer_norm", (1, 8, 1), "float32", 32),
            ("attention.core", "", "mm", (1, 2, 8, 8), "bfloat16", 256),
            ("attention.core", "", "mm", (1, 4, 8, 8), "bfloat16", 512),
            (
                "attention.core",
                "",
                "_scaled_dot_product_flash_attention",
                (1, 4, 8),
                "float32",
                128,
            ),
            ("mlp", f"blocks.{n}.mlp.gate", "mm", (8, 32), "bfloat16", 512),
            ("mlp", f"blocks.{n}.mlp", "silu", (8, 32), "bfloat16", 512),
            ("mlp.down", "", "mul", (8, 32), "bfloat16", 512),
            ("unknown", "", "sin", (8,), "float32", 32),
        )
    ]
    found = rows([*saved, SavedTensor("norm", "", "add", (1, 8, 16), "bfloat16", 256)])
    assert [(row.name, row.count) for row in found] == [
        ("attention norm input", 2),
        ("attention norm statistics", 2),
        ("key", 2),
        ("query", 2),
        ("log-sum-exp", 2),
        ("fc1 output", 2),
        ("gate output", 2),
        ("activation output", 2),
        ("unknown: sin", 2),
        ("last norm input", 1),
    ]
    assert found[0].module == "blocks.*.attention_norm"


def test_inputs_of_a_checkpoint_around_attention_have_another_order() -> None:
    from planner.running.validate.ranks.memory import SavedTensor

    shapes = ((1, 8, 4, 8), (1, 8, 2, 8), (1, 8, 2, 8))
    saved = [
        SavedTensor("blocks.0.attention.core", "", "mm", shape, "bfloat16", 2) for shape in shapes
    ]
    assert [row.name for row in rows(saved)] == ["query", "key", "value"]


@pytest.mark.parametrize(
    "plan",
    [
        {"tp": 2, "sequence_parallel": True, "pp": 2, "dp": 2},
        {"pp": 8},
        {"pp": 4, "dp": 2, "zero_stage": 3, "schedule": "gpipe", "reshard_after_forward": False},
        {"pp": 2, "vpp": 2, "dp": 4, "schedule": "zb-v"},
        {"pp": 2, "dp": 4, "recompute": "full", "recompute_num_layers": 1},
    ],
)
def test_rows_of_the_estimate_add_up_to_what_it_says_is_held(plan: dict[str, object]) -> None:
    """Every rank: rows of one micro-batch, times those in flight; the loss of one at a time."""
    request = parse_request(
        {
            "model": "llama-3.1-8b",
            "cluster": "1x8xh100-sxm",
            "training": {"seq_length": 4096, "global_batch_size": 64},
            "plan": {"runtime": "torch", "zero_stage": 0, **plan},
        }
    )
    asked = native(request, compiled=False).request
    for rank in range(asked.plan.pp if asked.plan else 0):
        found = expected(asked, rank)
        head = ("last norm input", "last norm output", "logits")
        ends = sum(stage.get(name, 0.0) for stage in found.saved for name in head)
        kept = sum(sum(stage.values()) for stage in found.saved) - ends
        losses = 64 / (plan.get("dp", 1)) if plan.get("schedule") == "gpipe" else 1  # type: ignore[operator]
        assert found.amounts.activation_bytes == pytest.approx(
            found.in_flight * kept + losses * ends, abs=1
        )
        parts = found.amounts.model_dump(exclude={"peak_bytes"})
        assert sum(parts.values()) == pytest.approx(found.amounts.peak_bytes, abs=4)
