"""Other planners beside this one on the runs that this one is measured on.

    python -m tools.peers --write                         predicts ours anew, writes the page
    CHECKOUTS_PATH=FOLDER python -m tools.peers --run --write    asks the peers too

Checkouts are made by `python -m tests.tools.checkouts FOLDER`; what peers import is the extra
`peers`.  The peers' answers are kept in results.json.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from tools.peers import results
from tools.peers.page import PAGE, render


def main() -> None:
    """Asks, predicts and writes what the options say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", action="store_true", help="ask the peers in CHECKOUTS_PATH")
    parser.add_argument("--write", action="store_true", help="write results.json and the page")
    options = parser.parse_args()
    asked = results.asked()
    answers = results.read()["peers"]
    if options.run:
        answers = results.ask_all(asked, Path(os.environ[results.VARIABLE]))
    found = results.document(asked, answers)
    if options.write:
        results.write(found)
        PAGE.write_text(render(found), encoding="utf-8")
    else:
        print(render(found))


if __name__ == "__main__":
    main()
