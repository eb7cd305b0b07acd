"""Launch scripts of bash, read as bash would and never run."""

from planner.frameworks.bash.evaluate import (
    Argument,
    Launch,
    Outcome,
    evaluate,
    slurm_variables,
)

__all__ = ["Argument", "Launch", "Outcome", "evaluate", "slurm_variables"]
