"""Training logs of many code bases, read to one document: the run and its measured step."""

from planner.inputs.logs.read import read_log, read_logs
from planner.inputs.logs.run_log import Fact, LeftOut, Memory, RunLog, StepTime
from planner.inputs.logs.stream import lines_of
from planner.inputs.logs.text import text_of

__all__ = [
    "Fact",
    "LeftOut",
    "Memory",
    "RunLog",
    "StepTime",
    "lines_of",
    "read_log",
    "read_logs",
    "text_of",
]
