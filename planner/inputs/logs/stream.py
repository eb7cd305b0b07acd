"""A log as a stream of clean lines: bounded, and never held as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from planner.inputs.logs import tensorboard
from planner.inputs.logs.run_log import refused

MAX_BYTES = 2**30
MAX_LINE = 2**20
_CHUNK = 2**16
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\[(?:3[0-9]|9[0-7]|0)m")
# Who prints the line: torchrun's, Slurm's, NeMo-Run's and torchtitan's marks of a process.
_PROCESS = re.compile(
    r"^(?:\[default\d+\]:|\[rank\d+\]:|\d{1,5}: |[\w.-]+/\d+ (?=\[|Training)|> )+"
)
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\ufffd]")


def lines_of(file: BinaryIO) -> Iterator[str]:
    """The lines of a file or pipe, of which never more than one and a piece is held.

    A carriage return ends a line too: progress bars use it.  A TensorBoard event file becomes
    lines.  Raises RequestError.
    """
    rest = file.read(_CHUNK)
    if tensorboard.MARK in rest[:100]:
        yield from tensorboard.lines(file, rest)
        return
    *lines, rest = re.split(rb"\r\n|\n|\r", rest)
    for line in lines:
        yield line.decode("utf-8", "replace")
    while chunk := file.read(_CHUNK):
        *lines, rest = re.split(rb"\r\n|\n|\r", rest + chunk)
        if len(rest) > MAX_LINE:
            raise _long_line()
        for line in lines:
            yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")


def clean(lines: Iterable[str], name: str) -> Iterator[tuple[int, str, str]]:
    """(number from 1, the mark of the process that prints it, the line without colours).

    Raises RequestError where the log is too large or no text.
    """
    size = 0
    for number, raw in enumerate(lines, 1):
        size += len(raw) + 1
        if size > MAX_BYTES:
            detail = f"{name} has more than {MAX_BYTES >> 30} GiB: give its beginning and "
            raise refused("too_large", detail + "some hundred steps")
        if len(raw) > MAX_LINE:
            raise _long_line()
        start = _COLOUR.sub("", raw[:1000])
        if not start.isprintable() and len(_CONTROL.findall(start)) > max(1, len(start) // 20):
            raise refused("not_text", f"{name}:{number} is no text: a log is lines of text")
        for part in raw.rstrip("\r\n").split("\r"):
            text = _COLOUR.sub("", part) if "\x1b" in part or "[3" in part else part
            mark = _PROCESS.match(text)
            yield number, mark[0] if mark else "", text[mark.end() :] if mark else text


def _long_line() -> Exception:
    return refused("not_text", f"a line of more than {MAX_LINE >> 20} MiB: a log is lines of text")
