"""The process in which a peer runs: `python -m tools.peers.worker PEER CHECKOUT`.

One JSON document of inputs a line comes in, one estimate a line goes out; what the peer prints
goes to standard error.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from tools.peers import PEERS

MOST_S = 60
MOST_CHARACTERS = 120


def answer(key: str, checkout: Path, inputs: dict[str, Any]) -> dict[str, Any]:
    """The estimate of one line, or what the peer raised, with the CPU time it took."""
    began = time.process_time()
    signal.alarm(MOST_S)
    try:
        found = PEERS[key].estimate(checkout, inputs)
    # Whatever a peer raises is its answer.
    except Exception as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())
        return {"failed": words[:MOST_CHARACTERS]}
    finally:
        signal.alarm(0)
    cpu_s = time.process_time() - began
    return {"seconds": found.seconds, "peak_bytes": found.peak_bytes, "cpu_s": cpu_s}


def _give_up(*_: object) -> None:
    raise TimeoutError(f"no answer after {MOST_S} s")


def main(key: str, checkout: Path) -> None:
    """Answers lines until there are none."""
    sys.path.insert(0, str(checkout))
    signal.signal(signal.SIGALRM, _give_up)
    out = sys.stdout
    with redirect_stdout(sys.stderr):
        for line in sys.stdin:
            print(json.dumps(answer(key, checkout, json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
