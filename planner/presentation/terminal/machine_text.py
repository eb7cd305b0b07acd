"""A cluster that was read from what its machines print, as a file with comments."""

from __future__ import annotations

import yaml

from planner.inputs.machines.reader import MachineAnswer


def machine_text(answer: MachineAnswer) -> str:
    """YAML for a request, below what was read and what is assumed."""
    notes = [
        f"# {title}: {line}\n"
        for title, lines in (("read", answer.read), ("assumed", answer.assumed))
        for line in lines
    ]
    document = {"cluster": answer.cluster}
    return "".join(notes) + yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
