"""Counts bytes of tensors by category, and the tensors that autograd saves, in real or fake runs.

    with Memory(models, optimizer) as memory:   # around whole steps
        ...
    memory.peak_bytes      # {category: bytes} at the fullest moment outside the optimizer's step
    memory.saved_bytes     # the most bytes that autograd held at a time
    memory.kept_gradient_bytes  # the most bytes of gradients that outlived a backward pass
    memory.saved(0)        # the tensors that one forward pass of models[0] saved, with modules

torch's MemTracker counts storages, including the local parts of DTensors and storages that FSDP
resizes.  This subclass also knows FSDP's gathered weights and unsharded gradients, and allows any
number of forward passes before a backward pass.  Not counted: rounding and fragmentation of the
allocator, memory outside tensors (workspaces of libraries), and earlier tensors of no module.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType, _RefType
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.attention.bias import CausalBias
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.hooks import RemovableHandle

from planner.running.validate.dryrun.trace_result import Amounts

TOTAL = "total"
# Names of wrappers to remove from the paths of modules.
_WRAPPERS = frozenset({"_checkpoint_wrapped_module", "_orig_mod"})


class Category(_RefType):
    """The uses of memory: MemTracker's categories under our names, and FSDP's gathered weights."""

    PARAM = "parameters"
    GATHERED = "gathered"
    GRAD = "gradients"
    OPT = "optimizer"
    ACT = "activations"
    TEMP = "temporary"
    BUFFER = "buffers"
    OTH = "other"


_OURS: dict[_RefType, Category] = {theirs: Category[theirs.name] for theirs in _MemRefType}
CATEGORIES = (*(category.value for category in Category), TOTAL)


@dataclass(frozen=True)
class SavedTensor:
    """A storage that autograd saved.

    module: path of the module that saved it; maker, operator: module path and operator that created
    it, "" if unknown; shape: of the local part; bytes: of the whole storage.
    """

    module: str
    maker: str
    operator: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


class Memory(MemTracker):
    """Counts memory while it is entered, including existing models and optimizer states."""

    def __init__(self, models: Sequence[nn.Module], optimizer: Optimizer | None = None) -> None:
        super().__init__()
        self._ref_class = Category
        self._modules = _Modules(models)
        self._mod_tracker = self._modules  # type: ignore[assignment]
        self._models, self._optimizer = tuple(models), optimizer
        self._operator, self.aside = "", False
        self._peak: dict[str, int] = {}
        self._highest: Counter[str] = Counter()
        self._saved: list[list[SavedTensor]] = [[] for _ in models]
        self._holders: Counter[int] = Counter()
        self._held_bytes = self.saved_bytes = self.saved_at_peak_bytes = 0
        self.kept_gradient_bytes = 0
        self._backward_pass = -1
        self._entered = ExitStack()

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Bytes by category at the fullest moment outside optimizer steps."""
        return {name: self._peak.get(name, 0) for name in CATEGORIES}

    @property
    def highest_bytes(self) -> dict[str, int]:
        """The most bytes of each category, each at its own moment outside optimizer steps."""
        return {name: self._highest[name] for name in CATEGORIES}

    @property
    def amounts(self) -> Amounts:
        """The counted bytes as the amounts of a trace and of the estimate."""
        peak, highest = self.peak_bytes, self.highest_bytes
        parts = ("parameters", "gathered", "gradients", "optimizer")
        named = sum(peak[name] for name in parts) + self.saved_at_peak_bytes
        return Amounts(
            parameter_bytes=highest["parameters"],
            gathered_bytes=highest["gathered"],
            gradient_bytes=self.kept_gradient_bytes,
            optimizer_bytes=highest["optimizer"],
            activation_bytes=self.saved_bytes,
            working_bytes=peak["total"] - named,
            peak_bytes=peak["total"],
        )

    @property
    def current_bytes(self) -> dict[str, int]:
        """Bytes by category now."""
        snapshot = self._snapshot()
        return {name: snapshot.get(name, 0) for name in CATEGORIES}

    def saved(self, model: int) -> tuple[SavedTensor, ...]:
        """The storages that autograd saved in a model's first forward pass and loss.

        In order, without weights.
        """
        return tuple(self._saved[model])

    def __enter__(self) -> Memory:
        if self._depth == 0:
            for name, categorise in _CATEGORISED.items():
                self._entered.callback(setattr, FSDPParam, name, getattr(FSDPParam, name))
                setattr(FSDPParam, name, self._categorised(getattr(FSDPParam, name), categorise))
            # DTensor propagates shapes with fake tensors, which take no memory: do not count them.
            own_lock = ShardingPropagator._fake_mode_lock
            self._entered.callback(setattr, ShardingPropagator, "_fake_mode_lock", own_lock)
            ShardingPropagator._fake_mode_lock = _Uncounted(self)  # type: ignore[assignment]
            self._count_existing_tensors()
            self._entered.enter_context(saved_tensors_hooks(self._pack, _SavedTensor.unpack))
        super().__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        if self._depth == 0:
            self._between_passes()
            self._entered.close()

    def categorise(self, tensor: torch.Tensor | None, category: Category) -> None:
        """Count the storage of a tensor under a category from now on."""
        if tensor is not None:
            self._update_and_maybe_create_winfos(tensor, category)

    def _between_passes(self) -> None:
        """Record the bytes of gradients that outlive a backward pass."""
        now = self._snapshot().get(Category.GRAD.value, 0)
        self.kept_gradient_bytes = max(self.kept_gradient_bytes, now)

    def _count_existing_tensors(self) -> None:
        """Count the tensors that exist before the first step."""
        for model in self._models:
            for weight in model.parameters():
                if not weight.requires_grad:  # it has no gradient to hook
                    handle = RemovableHandle(OrderedDict())
                    self._param_to_grad_hook_handles[weight] = (handle, handle)
            self._track_module_params_and_buffers(model, install_grad_hooks=True)
            for parameter in _fsdp_parameters(model):
                for categorise in _CATEGORISED.values():
                    categorise(self, parameter)
        if self._optimizer is not None:
            self._track_optimizer_states(Category.OPT, self._optimizer)

    def _categorised(
        self, method: Callable[..., None], categorise: Callable[[Memory, FSDPParam], None]
    ) -> Callable[..., None]:
        @wraps(method)
        def both(parameter: FSDPParam, *args: Any) -> None:
            method(parameter, *args)
            categorise(self, parameter)

        return both

    def _snapshot(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for device in self._curr_mem_snap.values():
            for name, value in device.items():
                total[TOTAL if name == "Total" else Category(name).value] += value
        return total

    def _update_peak_stats(self, _: Any) -> None:
        if self._in_opt:
            return
        snapshot = self._snapshot()
        if snapshot.get(TOTAL, 0) > self._peak.get(TOTAL, 0):
            self._peak, self.saved_at_peak_bytes = snapshot, self._held_bytes
        for name, value in snapshot.items():
            self._highest[name] = max(self._highest[name], value)

    def _update_and_maybe_create_winfos(
        self, t: torch.Tensor, reftype: _RefType, update_existing: bool = False
    ) -> Any:
        category = _OURS.get(reftype, reftype)
        return super()._update_and_maybe_create_winfos(t, category, update_existing)

    def _track(self, reftype: _RefType, t: torch.Tensor) -> None:
        known = _storage(t) in self._WINFO
        super()._track(_OURS.get(reftype, reftype), t)
        if not known:
            made, _ = self._WINFO[_storage(t)]
            made.maker = (self._modules.path, self._operator)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.aside:
            return func(*args, **kwargs or {})
        backward_pass = torch._C._current_graph_task_id()
        if backward_pass != self._backward_pass:
            self._between_passes()
            self._backward_pass = backward_pass
        self._operator = func.name().partition("::")[2]
        return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[no-untyped-call]

    def _pack(self, tensor: torch.Tensor) -> _SavedTensor:
        storage = _storage(tensor)
        counted, _ = self._WINFO.get(storage, (None, None))  # type: ignore[no-untyped-call]
        if counted is not None and counted.reftype in (Category.PARAM, Category.GATHERED):
            return _SavedTensor(tensor, lambda: None)
        key, size = storage._cdata, storage.nbytes()
        if not self._holders[key]:
            self._held_bytes += size
            self.saved_bytes = max(self.saved_bytes, self._held_bytes)
            if self._modules.is_first_pass:
                maker, operator = getattr(counted, "maker", ("", ""))
                shape = tuple(_local(tensor).shape)
                dtype = str(tensor.dtype).removeprefix("torch.")
                self._saved[self._modules.model].append(
                    SavedTensor(self._modules.path, maker, operator, shape, dtype, size)
                )
        self._holders[key] += 1

        def release() -> None:
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]
                self._held_bytes -= size

        return _SavedTensor(tensor, release)


class _SavedTensor:
    """A saved tensor for as long as autograd keeps it."""

    def __init__(self, tensor: torch.Tensor, release: Callable[[], None]) -> None:
        self.tensor, self.release = tensor, release

    def unpack(self) -> torch.Tensor:
        return self.tensor

    def __del__(self) -> None:
        self.release()


class _Uncounted:
    """A context in which allocations are not counted."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def __enter__(self) -> None:
        self.memory.aside = True

    def __exit__(self, *_: Any) -> None:
        self.memory.aside = False


class _Modules:
    """Tracks the module that runs forward, for MemTracker, in place of torch's ModTracker.

    ModTracker hooks gradients, which keeps schedules with a split backward pass from detaching the
    hooked tensors.
    """

    parents: tuple[str, ...] = ()

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._names = {
            module: (number, _bare(name))
            for number, model in enumerate(models)
            for name, module in model.named_modules()
        }
        self._running: list[str] = []
        self._passes = Counter[int]()
        self.model = 0
        self._hooks = ExitStack()

    @property
    def path(self) -> str:
        """Path of the running module; "" for a model itself and outside of all modules."""
        return self._running[-1] if self._running else ""

    @property
    def is_first_pass(self) -> bool:
        return self._passes[self.model] == 1

    @property
    def is_bw(self) -> bool:
        """Whether a backward pass runs that is not in a recomputed forward pass."""
        return torch._C._current_graph_task_id() != -1 and not self._running

    def register_user_hooks(self, *_: Any) -> None:
        """Do nothing: MemTracker's hooks keep statistics per module, and fail at a second pass."""

    def clear_user_hooks(self) -> None:
        """Do nothing, since no hooks were registered."""

    def __enter__(self) -> None:
        self._hooks.callback(register_module_forward_pre_hook(self._begin).remove)
        self._hooks.callback(register_module_forward_hook(self._end, always_call=True).remove)

    def __exit__(self, *_: Any) -> None:
        self._hooks.close()

    def _begin(self, module: nn.Module, _: Any) -> None:
        if module not in self._names:
            return
        number, name = self._names[module]
        if not name and not self.is_bw:
            self.model = number
            self._passes[number] += 1
        self._running.append(name)

    def _end(self, module: nn.Module, *_: Any) -> None:
        if module in self._names:
            self._running.pop()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, DTensor):
        tensor = tensor._local_tensor
    # The result of a collective is wrapped once more until it is waited for.
    return tensor.elem if isinstance(tensor, AsyncCollectiveTensor) else tensor


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    return _local(tensor).untyped_storage()


def _bare(path: str) -> str:
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS)


def _fsdp_parameters(model: nn.Module) -> Iterator[FSDPParam]:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                yield from group.fsdp_params


def _gathered(memory: Memory, parameter: FSDPParam) -> None:
    for tensor in parameter.all_gather_outputs:
        memory.categorise(tensor, Category.GATHERED)


def _unsharded_gradient(memory: Memory, parameter: FSDPParam) -> None:
    if hasattr(parameter, "_unsharded_param"):
        memory.categorise(parameter._unsharded_param.grad, Category.GRAD)
    memory.categorise(parameter.unsharded_accumulated_grad, Category.GRAD)


# Methods of FSDP that create tensors which autograd's hooks do not see.
_CATEGORISED: dict[str, Callable[[Memory, FSDPParam], None]] = {
    "init_all_gather_outputs": _gathered,
    "to_accumulated_grad_if_needed": _unsharded_gradient,
}


def _without_modes(cls: type[CausalBias], *sizes: Any) -> CausalBias:
    """A new CausalBias, a tensor subclass that cannot be created under a dispatch mode."""
    with _disable_current_modes():
        return torch.Tensor.__new__(cls, *sizes)


CausalBias.__new__ = _without_modes  # type: ignore[assignment,method-assign]
