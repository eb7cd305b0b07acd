"""On a CPU, the operators that torch takes on a GPU, to save what autograd saves there.

A CPU has no fused kernel for some functions, and runs several operators that save more: RMSNorm in
fp32, dropout's mask in half precision, attention as a whole square.  For fake tensors only: the
kernels of most are missing on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends

aten = torch.ops.aten


@contextmanager
def gpu_operators() -> Iterator[None]:
    """Within it the functions below come down to the operators that a GPU takes.

    They are replaced by name: a mode of torch's would not reach what a backward pass runs again.
    """
    own = {name: getattr(F, name) for name in _OPERATORS}
    for name, function in _OPERATORS.items():
        setattr(F, name, partial(function, own[name]))
    try:
        yield
    finally:
        for name, function in own.items():
            setattr(F, name, function)


def _rms_norm(
    _: Callable[..., Tensor],
    x: Tensor,
    shape: list[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    out: Tensor = _RMSNorm.apply(x, weight, shape)  # type: ignore[no-untyped-call]
    return out


class _RMSNorm(torch.autograd.Function):
    """What goes in and out of the fused kernel; on a CPU torch would look inside it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, shape: list[int]) -> Tensor:
        inverse_deviation = torch.empty_like(x[..., :1], dtype=torch.float32)
        ctx.save_for_backward(x, weight, inverse_deviation)
        ctx.shape = shape
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight, inverse_deviation = ctx.saved_tensors
        wanted = [True, weight is not None]
        found = aten._fused_rms_norm_backward(
            gradient, x, ctx.shape, inverse_deviation, weight, wanted
        )
        return (*found, None)


def _dropout(_: Callable[..., Tensor], x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    if p == 0.0 or not training:
        return x
    out: Tensor = aten.native_dropout(x, p, True)[0]
    return out


def _attention(
    own: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Flash attention where it is allowed: cuDNN's saves the same."""
    out: Tensor
    if SDPBackend.FLASH_ATTENTION in _cur_sdpa_kernel_backends():
        out = aten._scaled_dot_product_flash_attention(
            q, k, v, dropout_p, is_causal, False, scale=scale
        )[0]
    else:
        out = own(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return out


_OPERATORS: dict[str, Callable[..., Tensor]] = {
    "rms_norm": _rms_norm,
    "dropout": _dropout,
    "scaled_dot_product_attention": _attention,
}
