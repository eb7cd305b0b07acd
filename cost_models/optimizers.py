"""The optimizers by name: their states per parameter, and the memory traffic of their steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

OptimizerName = Literal[
    "adam", "adam_8bit", "paged_adam", "paged_adam_8bit", "sgd", "adafactor", "muon"
]

# Quantised states have one fp32 scale per block (torchao optim/subclass_8bit.py, bitsandbytes).
QUANTISED_BLOCK = 256


@dataclass(frozen=True)
class Optimizer:
    """The states and the step of one optimizer.

    moments: numbers stored per parameter; matrix_moments: per parameter of a matrix; factored:
    whether a matrix has one number for each row and each column instead.

    tables: word table, positions and head are matrices too.  moment_bytes: of one number; None:
    those of the training's type of states.  matrix_pass_bytes: what the update of a matrix in fp32
    reads and writes per parameter, beyond its states once each way and its gradient once.
    newton_schulz_steps: iterations that make the update of a matrix orthogonal.
    paged: whether its numbers are in memory that the driver moves to the host when the accelerator
    is full (CUDA's managed memory, bitsandbytes' GlobalPageManager).
    """

    title: str
    moments: float
    matrix_moments: float
    factored: bool = False
    tables: bool = False
    moment_bytes: float | None = None
    matrix_pass_bytes: float = 0.0
    newton_schulz_steps: int = 0
    paged: bool = False

    @property
    def by_matrix(self) -> bool:
        """Whether matrices are treated differently from other parameters."""
        return self.matrix_moments != self.moments or self.newton_schulz_steps > 0


_ADAM = Optimizer("Adam", 2.0, 2.0)
# One kernel reads, updates and quantises again.
_ADAM_8BIT = Optimizer("8-bit Adam", 2.0, 2.0, moment_bytes=1.0 + 4.0 / QUANTISED_BLOCK)
OPTIMIZERS: dict[OptimizerName, Optimizer] = {
    "adam": _ADAM,
    "adam_8bit": _ADAM_8BIT,
    "paged_adam": replace(_ADAM, title="paged Adam", paged=True),
    "paged_adam_8bit": replace(_ADAM_8BIT, title="paged 8-bit Adam", paged=True),
    "sgd": Optimizer("SGD with momentum", 1.0, 1.0),
    # torch.optim.Adafactor, tensor by tensor: norms by row and by column (8), the estimate written
    # (4), clamped and inverted (16), times the gradient (12), its norm and the weight's (8), and
    # the weight's update (12): 60, less weight (8) and gradient (4).
    "adafactor": Optimizer(
        "Adafactor", 1.0, 0.0, factored=True, tables=True, matrix_pass_bytes=48.0
    ),
    # torch.optim.Muon: momentum (12), Nesterov's update (12), its cast (6), norm and scale in half
    # precision (6), decay (8) and update (10) of the weight: 54, less momentum and weight (16) and
    # gradient (4).  The products are counted apart.  What is no hidden matrix has Adam.
    "muon": Optimizer("Muon", 2.0, 1.0, matrix_pass_bytes=34.0, newton_schulz_steps=5),
}
