"""A RunLog as text: what was read, from which line, and what is left open."""

from __future__ import annotations

from planner.frameworks.base import one_line
from planner.inputs.logs.run_log import Fact, RunLog

_GIB = 2.0**30
# Values that are true of most runs and say nothing where nobody chose them.
_QUIET = (False, "none", 0, 0.0)


def text_of(run: RunLog) -> str:
    """What was read and what is left open, one thing a line."""
    step = run.step
    spread = "" if step.low_s is None else f" ({step.low_s:.4g} to {step.high_s:.4g} s)"
    rows = [
        f"{one_line(run.name)}: {run.code_base}",
        f"step         {step.seconds:.4g} s{spread}, {step.steps:,} steps by {step.basis}",
    ]
    rows += [f"left out     {reason.steps:,} steps: {reason.reason}" for reason in step.left_out]
    if run.tokens_per_s is not None:
        rows.append(f"throughput   {run.tokens_per_s:,.0f} tokens/s")
    if run.tflops_per_accelerator is not None:
        rows.append(f"compute      {run.tflops_per_accelerator:.4g} TFLOP/s per accelerator")
    rows += [
        f"memory       {peak.bytes / _GIB:.4g} GiB {peak.quantity} (line {peak.line})"
        for peak in run.memory
    ]
    rows += [_fact(fact) for fact in run.facts if fact.line or fact.value not in _QUIET]
    rows += [f"left open    {field}" for field in run.left_open]
    rows += [f"assumed      {one_line(note)}" for note in run.assumed]
    return "\n".join(rows) + "\n"


def _fact(fact: Fact) -> str:
    source = f"{one_line(fact.file)}:{fact.line}" if fact.line else "follows"
    return f"read         {fact.field} {one_line(str(fact.value))} ({source})"
