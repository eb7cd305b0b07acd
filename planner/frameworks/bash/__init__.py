"""Launch scripts in bash, evaluated as bash would but never run."""

from planner.frameworks.bash.evaluate import evaluate
from planner.frameworks.bash.launches import Argument, Outcome, ProgramCall, slurm_variables

__all__ = ["Argument", "Outcome", "ProgramCall", "evaluate", "slurm_variables"]
