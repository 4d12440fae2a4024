"""A recording of one child: what went in and came out, one JSON object a line, `{"t", "dir", "msg"}`.

`dir` is `start` (argv, env, cwd), `in`, `out`, `err`, `note` or `exit` (rc, minus the number of a signal). `msg` is the
line's JSON, or its text where it is none; `t` are seconds since the start.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from legation.errors import InvalidParams
from legation.wire import jsontext

STDIN_CLOSED: Final = "stdin closed"  # notes on what was done to the child that is no line
STOPPED: Final = "stop"
OUTPUT_ENDED: Final = "EOF"
BY_ITSELF: Final = "by itself"  # it ended, and neither was done to it


@dataclass(frozen=True, slots=True)
class Entry:
    t: float
    dir: str
    msg: object

    def line(self) -> bytes:
        return jsontext.write({"t": self.t, "dir": self.dir, "msg": self.msg}) + b"\n"


def read_recording(path: Path) -> tuple[Entry, ...]:
    return tuple(_entry(line, path) for line in path.read_bytes().splitlines() if line.strip())


def message_of(line: bytes) -> object:
    """JSON where it is an object, else text."""
    try:
        found = jsontext.read(line)
    except jsontext.READ_ERRORS:
        found = None
    return found if isinstance(found, dict) else line.decode("utf-8", "replace")


async def in_blocks(batches: AsyncIterator[list[bytes]]) -> list[bytes]:
    """The next lines of a child as `Child.blocks` gives them."""
    async for lines in batches:
        if lines:
            return [b"\n".join(lines)]
    return []


def lines_of(messages: Iterable[object]) -> list[bytes]:
    return [each.encode() if isinstance(each, str) else jsontext.write(each) for each in messages]


def _entry(line: bytes, path: Path) -> Entry:
    found = message_of(line)
    if not isinstance(found, Mapping) or not {"dir", "msg"} <= found.keys():
        raise InvalidParams(
            f"cannot read the recording {path.name}: a line of it is no entry; record it again"
        )
    moment = found.get("t", 0.0)
    return Entry(float(moment) if isinstance(moment, int | float) else 0.0, str(found["dir"]), found["msg"])
