"""A stand-in for Transformer Engine on machines without accelerators: shapes of weights, no maths.

The kernels of Mamba and of linear attention have no weights: there only their names are.

With it Megatron-LM builds the layers that a cluster runs, its own wrappers and their checks
included; the parameters below are those of Transformer Engine's modules (docs, PyTorch API).
Every other name that Megatron imports is an empty class.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

VERSION = "2.8.0"
NAMES = ("transformer_engine", "mamba_ssm", "causal_conv1d", "fla")
MISSING = {"ep"}  # newer than VERSION


def _width(features: int, mode: str | None, split: str, tp_size: int) -> int:
    """Features that one rank holds; only one side of a matrix is split.

    Raises ValueError, where Transformer Engine fails an assertion, if they do not come out whole.
    """
    if mode != split:
        return features
    if features % tp_size:
        raise ValueError(f"{features} features over {tp_size} ranks")
    return features // tp_size


class _Weights(torch.nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def add(self, name: str, *shape: int) -> None:
        self.register_parameter(name, torch.nn.Parameter(torch.empty(shape)))


class Linear(_Weights):
    """weight, and a bias of the outputs that a rank has."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        parallel_mode: str | None = None,
        tp_size: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.tp_size = tp_size
        rows = _width(out_features, parallel_mode, "column", tp_size)
        self.add("weight", rows, _width(in_features, parallel_mode, "row", tp_size))
        if bias:
            self.add("bias", rows)
        self.save_original_input = False


class LayerNormLinear(Linear):
    """The same behind a norm of the inputs."""

    def __init__(self, in_features: int, out_features: int, **options: Any) -> None:
        super().__init__(in_features, out_features, **options)
        self.add("layer_norm_weight", in_features)
        if options.get("normalization", "LayerNorm") == "LayerNorm":
            self.add("layer_norm_bias", in_features)


class GroupedLinear(_Weights):
    """One weight, and one bias, for each of the matrices."""

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        bias: bool = True,
        parallel_mode: str | None = None,
        tp_size: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        rows = _width(out_features, parallel_mode, "column", tp_size)
        columns = _width(in_features, parallel_mode, "row", tp_size)
        for gemm in range(num_gemms):
            self.add(f"weight{gemm}", rows, columns)
            if bias:
                self.add(f"bias{gemm}", rows)
        self.save_original_input = False


class RMSNorm(_Weights):
    def __init__(self, normalized_shape: int, **options: Any) -> None:
        super().__init__(**options)
        self.add("weight", normalized_shape)


class LayerNorm(RMSNorm):
    def __init__(self, normalized_shape: int, **options: Any) -> None:
        super().__init__(normalized_shape, **options)
        self.add("bias", normalized_shape)


class DotProductAttention(_Weights):
    """No weights, but for one learned sink per head of the rank."""

    def __init__(self, num_attention_heads: int, **options: Any) -> None:
        super().__init__(**options)
        if options.get("softmax_type", "vanilla") == "learnable":
            self.add("softmax_offset", num_attention_heads // options["tp_size"])


class FusedAdam:
    """Only the names of what it is told are looked at."""

    def __init__(
        self,
        master_weight_dtype: Any,
        exp_avg_dtype: Any,
        exp_avg_sq_dtype: Any,
        use_decoupled_grad: bool,
    ) -> None:
        pass


def get_cpu_offload_context(*options: Any) -> tuple[None, None]:
    return None, None


STANDING_IN = {
    kind.__name__: kind
    for kind in (
        Linear,
        LayerNormLinear,
        GroupedLinear,
        RMSNorm,
        LayerNorm,
        DotProductAttention,
        FusedAdam,
        get_cpu_offload_context,
    )
}


class _Anything(type):
    """A class whose names are all there."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class _Unused(metaclass=_Anything):
    def __init__(self, *options: Any, **more: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: Any) -> None:
        pass


class _Module(types.ModuleType):
    """A module in which every public name exists: Megatron imports many and calls few."""

    __path__: ClassVar[list[str]] = []
    __version__ = VERSION

    def __getattr__(self, name: str) -> Any:
        if name in STANDING_IN:
            return STANDING_IN[name]
        if name.startswith("__") or name in MISSING:
            raise AttributeError(name)
        setattr(self, name, type(name, (_Unused,), {}))
        return getattr(self, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in NAMES or name.rpartition(".")[2] in MISSING:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> None:
    """Make `import transformer_engine` find this."""
    sys.meta_path.insert(0, _Finder())
    import transformer_engine.common.recipe
    import transformer_engine.pytorch.distributed
    import transformer_engine.pytorch.ops  # noqa: F401
