"""TensorBoard's event files: records of protocol buffers as lines, and the steps among them.

Format: TFRecord (a length, a checksum, the record, a checksum) of tensorflow.Event, of which the
wall time (field 1), the step (2) and the scalars of the summary (5) are read; checksums are not.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import BinaryIO, ClassVar

from planner.inputs.logs.draft import Draft, Reader, number_of
from planner.inputs.logs.run_log import CodeBase

MARK = b"brain.Event:"
SECONDS = "step times in TensorBoard's events"
WALL = "wall times of TensorBoard's events"
MOST_BYTES = 2**22  # of one record: pictures and graphs are larger and say no time
# Tags whose scalars are seconds of a step: Megatron-LM's, NeMo's, torchtitan's.
_TIMES = re.compile(
    r"iteration-time(/iteration-time)?|train_step_timing in s|time_metrics/end_to_end\(s\)"
)
_ASIDE = re.compile(r"eval|valid|test|train_runtime|total_flos", re.IGNORECASE)
_LINE = re.compile(r"tensorboard step (\d{1,12}) at (\d+\.\d+) (\S.*) is (\S+)$")


def lines(file: BinaryIO, start: bytes) -> Iterator[str]:
    """A line for every scalar of the event file that begins with these bytes."""
    rest = start
    while True:
        rest += file.read(max(12 - len(rest), 0))
        if len(rest) < 12:
            return
        size = struct.unpack("<Q", rest[:8])[0]
        length = 12 + size + 4
        if size > MOST_BYTES:
            return
        rest += file.read(max(length - len(rest), 0))
        if len(rest) < length:
            return
        yield from _scalars(rest[12 : 12 + size])
        rest = rest[length:]


def _scalars(record: bytes) -> Iterator[str]:
    """A line for each scalar of an event."""
    wall, step = 0.0, 0
    for field, value in _fields(record):
        if field == 1 and isinstance(value, bytes) and len(value) == 8:
            wall = struct.unpack("<d", value)[0]
        elif field == 2 and isinstance(value, int):
            step = value
        elif field == 5 and isinstance(value, bytes):
            for tag, number in map(_scalar, _values(value)):
                if tag and number is not None and 0 < wall < 1e11:
                    yield f"tensorboard step {step} at {wall:.6f} {tag} is {number!r}"


def _values(summary: bytes) -> Iterator[bytes]:
    return (value for field, value in _fields(summary) if field == 1 and isinstance(value, bytes))


def _scalar(value: bytes) -> tuple[str, float | None]:
    """The tag of a value of a summary, and its number; None where it is a tensor or a picture."""
    tag, number = "", None
    for field, part in _fields(value):
        if field == 1 and isinstance(part, bytes):
            tag = part.decode("utf-8", "replace").replace("\n", " ")[:200]
        elif field == 2 and isinstance(part, bytes) and len(part) == 4:
            number = struct.unpack("<f", part)[0]
    return tag, number


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of the fields of a message; it ends where the message is no such thing."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        else:
            size = {1: 8, 5: 4}.get(kind, len(message))
        if at + size > len(message):
            return
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of at most 63 bits and where it ends; past the end where there is none."""
    number = 0
    for shift in range(0, 63, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    return 0, len(message) + 1


class TensorBoard(Reader):
    """Steps by a scalar that is their time, or by when the first scalar of each was written."""

    words: ClassVar[tuple[str, ...]] = ("tensorboard",)

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.seen = False
        self.last: tuple[int, float] | None = None

    def take(self, number: int, process: str, text: str) -> bool:
        match = _LINE.fullmatch(text)
        if match is None:
            return False
        self.seen = True
        step, wall, tag = int(match[1]), float(match[2]), match[3]
        if _TIMES.fullmatch(tag):
            self.draft.step(SECONDS, step, number_of(match[4]), number)
        if _ASIDE.search(tag):
            self.draft.pause()
            return False
        if self.last is None or step > self.last[0]:
            gap = 0.0 if self.last is None else (wall - self.last[1]) / (step - self.last[0])
            if gap > 1e-3:
                self.draft.step(WALL, step, gap, number)
            self.last = step, wall
        return False

    @property
    def code_base(self) -> CodeBase | None:
        return "tensorboard" if self.seen else None
