"""Training logs of many code bases, read to one document: the run and its measured step."""

from planner.logs.read import read_log, read_logs
from planner.logs.run_log import Fact, LeftOut, Memory, RunLog, StepTime
from planner.logs.stream import lines_of
from planner.logs.text import text_of

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
