"""Launch scripts in bash, evaluated as bash would but never run."""

from planner.frameworks.bash.evaluate import cut_commands, evaluate
from planner.frameworks.bash.launches import Argument, Outcome, ProgramCall, slurm_variables

__all__ = [
    "Argument", "Outcome", "ProgramCall", "cut_commands", "evaluate", "slurm_variables",
]  # fmt: skip
