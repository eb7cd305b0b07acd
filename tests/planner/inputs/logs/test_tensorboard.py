"""TensorBoard's event files, written here byte by byte as its format says."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable

import pytest

from planner.documents.problems import RequestError
from planner.inputs.logs import RunLog, lines_of, read_log

START = 1_777_062_785.0


def varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


def field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(value)) + value


def record(event: bytes) -> bytes:
    return struct.pack("<Q", len(event)) + b"\0\0\0\0" + event + b"\0\0\0\0"


def event(step: int, wall: float, tag: str, value: float) -> bytes:
    scalar = field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)
    head = b"\x09" + struct.pack("<d", wall) + b"\x10" + varint(step)
    return record(head + field(5, field(1, scalar)))


def log(events: Iterable[bytes]) -> RunLog:
    first = record(b"\x09" + struct.pack("<d", START) + field(3, b"brain.Event:2"))
    return read_log(lines_of(io.BytesIO(first + b"".join(events))), "events.out")


def test_the_wall_times_of_the_steps() -> None:
    events = [event(step, START + 2.5 * step, "train/loss", 1.5) for step in range(200)]
    found = log([*events, event(199, START + 900.0, "train/train_runtime", 900.0)])
    assert (found.code_base, round(found.step.seconds, 4)) == ("tensorboard", 2.5)
    assert found.step.basis == "wall times of TensorBoard's events"
    assert found.step.steps > 150


def test_a_scalar_that_is_the_time_of_a_step_counts_before_them() -> None:
    tag = "iteration-time/iteration-time"
    found = log(event(step, START + 9.0 * step, tag, 4.25) for step in range(300))
    assert (found.step.seconds, found.step.basis) == (4.25, "step times in TensorBoard's events")


def test_what_follows_an_evaluation_is_left_out() -> None:
    events = [event(step, START + 2.0 * step, "train/loss", 1.0) for step in range(100)]
    events += [event(99, START + 500.0, "eval/loss", 1.0)]
    events += [event(s, START + 400.0 + 2.0 * s, "train/loss", 1.0) for s in range(100, 200)]
    found = log(events)
    assert found.step.seconds == pytest.approx(2.0)
    assert sum(one.steps for one in found.step.left_out if "evaluation" in one.reason) == 1


@pytest.mark.parametrize("end", [b"", b"\xff" * 40, struct.pack("<Q", 2**60), b"\x08\0\0"])
def test_a_file_that_ends_within_a_record_says_what_came_before(end: bytes) -> None:
    events = [event(step, START + 2.0 * step, "train/loss", 1.0) for step in range(100)]
    assert log([*events, end]).step.seconds == pytest.approx(2.0)


def test_a_file_without_scalars_times_nothing() -> None:
    with pytest.raises(RequestError, match="empty"):
        log([])
