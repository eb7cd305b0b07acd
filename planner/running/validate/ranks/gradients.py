"""Compares the gradients of a parallel run with those of one process.

Gradients are gathered one parameter at a time, so no rank ever holds them all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

_NORM = "norm.json"
_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")
# A gradient that is only rounding error (that of a key bias, which softmax cancels) has no norm to
# compare with.  So the error is relative to at least this share of the RMS of the whole gradient.
_FLOOR = 1e-3


def named_parameters(train: Any, models: list[nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    """This rank's trained parameters, by their names in the unsplit model."""
    for model in models:
        start = sum(train.C.stage_layers[: model.index])
        trained = ((n, p) for n, p in model.named_parameters() if p.requires_grad)
        for name, parameter in trained:
            for wrapper in _WRAPPERS:
                name = name.replace(wrapper, "")
            parts = name.split(".")
            if parts[0] == "blocks":
                parts[1] = str(start + int(parts[1]))
            yield ".".join(parts), parameter


def write(parameters: Iterator[tuple[str, nn.Parameter]], folder: Path) -> None:
    """Write every gradient into a folder, one file each, and the norm over all of them."""
    folder.mkdir()
    square, elements = 0.0, 0
    for name, parameter in parameters:
        gradient = _full_gradient(parameter)
        torch.save(gradient, folder / f"{name}.pt")
        square += float(gradient.double().norm()) ** 2
        elements += gradient.numel()
    (folder / _NORM).write_text(json.dumps({"square": square, "elements": elements}))


def compare(parameters: Iterator[tuple[str, nn.Parameter]], folder: Path) -> dict[str, float]:
    """The relative error |g - r| / |r| of each gradient that this rank is the first to hold.

    g is the gathered gradient, r the reference, | | the Euclidean norm over one parameter.  See
    _FLOOR for references near zero.
    """
    all_of_it = json.loads((folder / _NORM).read_text())
    floor = _FLOOR * math.sqrt(all_of_it["square"] / all_of_it["elements"])
    errors = {}
    for name, parameter in parameters:
        gradient = _full_gradient(parameter)  # a collective of all ranks that hold a part
        if not _is_first_holder(parameter):
            continue
        reference = torch.load(folder / f"{name}.pt", mmap=True, weights_only=True)
        difference = (gradient - reference).double().norm()
        at_least = floor * math.sqrt(reference.numel())
        errors[name] = float(difference) / max(float(reference.double().norm()), at_least, 1e-300)
    return errors


def _full_gradient(parameter: nn.Parameter) -> torch.Tensor:
    gradient = parameter.grad
    assert gradient is not None
    full = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    return full.float().cpu()


def _is_first_holder(parameter: nn.Parameter) -> bool:
    """Whether this rank is the first of those that hold a part."""
    if not isinstance(parameter, DTensor):
        return True
    coordinate = parameter.device_mesh.get_coordinate()
    return coordinate is not None and not any(coordinate)
