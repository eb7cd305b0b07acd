"""Server-sent events, as far as the service sends them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """One event; data: its JSON document.  number: to go on behind it, where the stream has one."""

    name: str
    data: bytes
    number: str | None = None


def events(lines: Iterable[bytes]) -> Iterator[Event]:
    """The events in the lines of a stream; comments and unknown fields are left out."""
    fields: dict[bytes, bytes] = {}
    for line in lines:
        line = line.rstrip(b"\r\n")
        if line:
            name, _, value = line.partition(b":")
            fields[name] = value.removeprefix(b" ")
            continue
        if b"event" in fields and b"data" in fields:
            number = fields[b"id"].decode() if b"id" in fields else None
            yield Event(fields[b"event"].decode(), fields[b"data"], number)
        fields = {}
