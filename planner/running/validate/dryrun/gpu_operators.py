"""Makes torch dispatch to its GPU operators on a CPU, so that autograd saves the same tensors.

For some functions a CPU has no fused kernel and runs several operators that save more: RMSNorm in
fp32, dropout's mask in half precision, the full attention matrix.  This works only with fake
tensors, since a CPU lacks the kernels of most of these operators.
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
    """A context in which the functions below dispatch to the operators of a GPU.

    They are replaced by name, since a torch function mode would not apply to recomputation in a
    backward pass.
    """
    originals = {name: getattr(F, name) for name in _OPERATORS}
    for name, function in _OPERATORS.items():
        setattr(F, name, partial(function, originals[name]))
    try:
        yield
    finally:
        for name, function in originals.items():
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


def _layer_norm(
    _: Callable[..., Tensor],
    x: Tensor,
    shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    out: Tensor = _LayerNorm.apply(x, weight, bias, shape)  # type: ignore[no-untyped-call]
    return out


def _statistic(x: Tensor) -> Tensor:
    """An fp32 tensor with one number per row."""
    return torch.empty_like(x[..., :1], dtype=torch.float32)


class _RMSNorm(torch.autograd.Function):
    """The inputs, outputs and saved tensors of the fused kernel, which a CPU would decompose."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, shape: list[int]) -> Tensor:
        ctx.save_for_backward(x, weight, _statistic(x))
        ctx.shape = shape
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight, inverse_deviation = ctx.saved_tensors
        mask = [True, weight is not None]
        gradients = aten._fused_rms_norm_backward(
            gradient, x, ctx.shape, inverse_deviation, weight, mask
        )
        return (*gradients, None)


class _LayerNorm(torch.autograd.Function):
    """A GPU's kernel, which has fp32 statistics; those of a CPU have the dtype of the input."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: list[int]
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias, _statistic(x), _statistic(x))
        ctx.shape = shape
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight, bias, mean, inverse_deviation = ctx.saved_tensors
        mask = [True, weight is not None, bias is not None]
        gradients = aten.native_layer_norm_backward(
            gradient, x, ctx.shape, mean, inverse_deviation, weight, bias, mask
        )
        return (*gradients, None)


def _dropout(_: Callable[..., Tensor], x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    if p == 0.0 or not training:
        return x
    out: Tensor = aten.native_dropout(x, p, True)[0]
    return out


def _attention(
    attend: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Flash attention if it is allowed, or the memory-efficient kernel if values and keys differ in
    width; that kernel and cuDNN's save the same tensors.
    """
    out: Tensor
    if v.size(-1) != q.size(-1) and SDPBackend.FLASH_ATTENTION in _cur_sdpa_kernel_backends():
        out = aten._scaled_dot_product_efficient_attention(
            q, k, v, None, True, is_causal=is_causal
        )[0]
    elif SDPBackend.FLASH_ATTENTION in _cur_sdpa_kernel_backends():
        out = aten._scaled_dot_product_flash_attention(
            q, k, v, dropout_p, is_causal, False, scale=scale
        )[0]
    else:
        out = attend(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return out


_OPERATORS: dict[str, Callable[..., Tensor]] = {
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "dropout": _dropout,
    "scaled_dot_product_attention": _attention,
}
