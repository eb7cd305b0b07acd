"""torchrun in a process that ends with its parent, and reports failed ranks as a line of JSON.

The line goes to standard output, a pipe, so it gets through even if the disk is full.
"""

from __future__ import annotations

import json
import sys

from planner.parent_process import die_with_parent
from planner.running.validate.processes.priority import lower_session_priority


def main() -> int:
    """Run torchrun with this process's arguments; returns 1 if a rank or torchrun itself failed."""
    die_with_parent()
    lower_session_priority()
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.main(sys.argv[1:])
    except ChildFailedError as error:
        report = {"ranks": {rank: failure.exitcode for rank, failure in error.failures.items()}}
    except Exception as error:
        number = getattr(error, "errno", None) or 0
        report = {"error": f"{type(error).__name__}: {error}", "errno": number}  # type: ignore[dict-item]
    else:
        return 0
    print(json.dumps(report), flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
