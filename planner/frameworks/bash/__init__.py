"""Launch scripts of bash, read as bash would and never run."""

from planner.frameworks.bash.evaluate import evaluate
from planner.frameworks.bash.launches import Argument, Launch, Outcome, slurm_variables

__all__ = ["Argument", "Launch", "Outcome", "evaluate", "slurm_variables"]
