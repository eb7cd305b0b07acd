"""Benchmarks of the training script's kernels, one at a time on one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from cost_models.kernel_times import FLASH_BACKWARD_FLOP
from planner.running.validate.calibrate.job import Attention, Gemm, Kernels, Pass, Shape
from planner.running.validate.calibrate.timing import Clock, calls, copies, passes, point

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
Made = tuple[Callable[..., torch.Tensor], Callable[[], tuple[torch.Tensor, ...]], list[Any]]
Say = Callable[[str], None]
Points = dict[str, list[dict[str, Any]]]


class Bench:
    """The kernels of a script (the module of an emitted train.py) in one precision."""

    def __init__(self, script: Any, precision: str, clock: Clock, say: Say) -> None:
        self.script, self.precision, self.clock, self.say = script, precision, clock, say
        self.like: dict[str, Any] = {"device": clock.device, "dtype": DTYPES[precision]}
        self.left_out = 0

    def points(self, kernels: Kernels) -> Points:
        """The measured points of these kernels, until the time budget is used up."""
        by_kind: Points = {"gemm": [], "attention": [], "passes": []}
        for name, of in (
            ("attention", self.attention),
            ("passes", self.pass_),
            ("gemm", self.gemm),
        ):
            for kernel in getattr(kernels, name):
                if self.clock.over:
                    self.left_out += 1
                else:
                    self.say(f"{name} {getattr(kernel, 'kernel', '')}".strip())
                    by_kind[name] += of(kernel)
        return by_kind

    def gemm(self, g: Gemm) -> Iterator[dict[str, Any]]:
        """The three products of a linear layer (forward, two gradients), in their layouts."""
        element = torch.empty((), **self.like).itemsize
        count = copies(element * (g.m * g.k + g.k * g.n + g.m * g.n))
        x = [torch.randn(g.m, g.k, **self.like) for _ in range(count)]
        w = [torch.randn(g.n, g.k, **self.like) for _ in range(count)]
        y = [torch.randn(g.m, g.n, **self.like) for _ in range(count)]
        products: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
            "forward": (lambda a, b: a @ b.t(), list(zip(x, w, strict=True))),
            "input_gradient": (lambda a, b: a @ b, list(zip(y, w, strict=True))),
            "weight_gradient": (lambda a, b: a.t() @ b, list(zip(y, x, strict=True))),
        }
        for name, (function, sets) in products.items():
            seconds = calls(self.clock, function, sets)
            yield {"precision": self.precision, "product": name, **g.model_dump(), **point(seconds)}

    def attention(self, a: Attention) -> Iterator[dict[str, Any]]:
        """The script's own core attention."""
        s = a.shape

        def inputs() -> tuple[torch.Tensor, ...]:
            return tuple(
                self.leaf(s.sequences, s.seq_length, heads, s.head_dim)
                for heads in (s.attention_heads, s.attention_kv_heads, s.attention_kv_heads)
            )

        times = passes(self.clock, self.script.CoreAttention(), inputs)
        for direction, share in (("forward", 1.0), ("backward", FLASH_BACKWARD_FLOP)):
            yield {
                "precision": self.precision, "direction": direction, "head_dim": s.head_dim,
                "seq_length": a.seq_length, "flop": a.flop * share, **point(times[direction]),
            }  # fmt: skip

    def pass_(self, p: Pass) -> Iterator[dict[str, Any]]:
        """A memory-bound kernel, if the script has it."""
        make = KINDS.get(p.kernel)
        if make is None:
            return
        function, inputs, weights = make(self, p)
        times = passes(self.clock, function, inputs, weights)
        if p.kernel in ("add", "bias"):
            # The backward work of both is a sum (of two branches' gradients, or of a bias's), which
            # the forward function here computes.
            times["backward"] = times["forward"]
        sides = {"forward": p.forward_bytes, "backward": p.backward_bytes}
        for direction, moved in sides.items():
            if moved > 0:
                yield {
                    "precision": self.precision, "kernel": p.kernel, "direction": direction,
                    "bytes": moved, **point(times[direction]),
                }  # fmt: skip

    def leaf(self, *size: int) -> torch.Tensor:
        return torch.randn(*size, **self.like).requires_grad_()

    def tokens(self, s: Shape) -> torch.Tensor:
        size = (s.sequences, s.tokens)
        return torch.randint(s.vocab, size, device=self.like["device"])


def _norm(b: Bench, p: Pass) -> Made:
    s = p.shape
    rms = p.kernel.endswith("rmsnorm")
    norm = (nn.RMSNorm(s.hidden) if rms else nn.LayerNorm(s.hidden)).to(**b.like)
    return norm, lambda: (b.leaf(s.sequences, s.shard_tokens, s.hidden),), list(norm.parameters())


def _add(b: Bench, p: Pass) -> Made:
    size = (p.shape.sequences, p.shape.shard_tokens, p.shape.hidden)
    return torch.add, lambda: (b.leaf(*size), b.leaf(*size)), []


def _bias(b: Bench, p: Pass) -> Made:
    rows = p.shape.sequences * p.shape.tokens
    return lambda x: x.sum(0), lambda: (b.leaf(rows, p.width),), []


def _gelu(b: Bench, p: Pass) -> Made:
    s = p.shape
    return F.gelu, lambda: (b.leaf(s.sequences, s.tokens, s.width),), []


def _silu(b: Bench, p: Pass) -> Made:
    s = p.shape
    size = (s.sequences, s.tokens, s.width)
    return lambda gate, up: F.silu(gate) * up, lambda: (b.leaf(*size), b.leaf(*size)), []


def _rope(b: Bench, p: Pass) -> Made:
    """RoPE of queries and keys, by the script's own function."""
    s, script = p.shape, b.script
    script.TOKENS = script.C.seq_length = s.tokens
    script.C.head_dim = s.head_dim
    script.ROTARY = script.rotary_table(s.head_dim)

    def inputs() -> tuple[torch.Tensor, ...]:
        sides = (s.heads, s.kv_heads)
        return tuple(b.leaf(s.sequences, s.tokens, heads, s.head_dim) for heads in sides)

    def rotate(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.cat((script.rotate(q).flatten(2), script.rotate(k).flatten(2)), -1)

    return rotate, inputs, []


def _embedding(b: Bench, p: Pass) -> Made:
    s = p.shape
    token_table = nn.Embedding(s.vocab, s.hidden, **b.like)
    position = nn.Embedding(s.tokens, s.hidden, **b.like)
    learned = b.script.C.position == "learned"

    def embed(tokens: torch.Tensor) -> torch.Tensor:
        if not learned:
            return token_table(tokens)  # type: ignore[no-any-return]
        return token_table(tokens) + position(torch.arange(s.tokens, device=tokens.device)[None])  # type: ignore[no-any-return]

    weights = [token_table.weight, position.weight] if learned else [token_table.weight]
    return embed, lambda: (b.tokens(s),), weights


def _cross_entropy(b: Bench, p: Pass) -> Made:
    s = p.shape

    def inputs() -> tuple[torch.Tensor, ...]:
        return b.leaf(s.sequences, s.tokens, s.vocab), b.tokens(s)

    return lambda x, y: F.cross_entropy(x.float().flatten(0, 1), y.flatten()), inputs, []


KINDS: dict[str, Callable[[Bench, Pass], Made]] = {
    "layernorm": _norm,
    "rmsnorm": _norm,
    "last layernorm": _norm,
    "last rmsnorm": _norm,
    "add": _add,
    "bias": _bias,
    "gelu": _gelu,
    "silu product": _silu,
    "rope": _rope,
    "embedding": _embedding,
    "cross-entropy": _cross_entropy,
}
