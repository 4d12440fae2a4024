"""The log of a process as server-sent events: `event: log`, its number as the id, until the process has ended.

A reader that is slow finds what it has not read yet in the log, as long as it is kept there; what was dropped in the
meantime is told by `event: truncated`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Final, Self

import msgspec

from legation.clock import Clock
from legation.server.processes.log import Piece, ProcessLog
from legation.server.streaming.hub import KEEP_ALIVE, RECHECK
from legation.server.streaming.sse import CHUNK_BYTES, PING, end
from legation.wire.api.processes import LogStream, ProcessLogEntry

MOST_PIECES: Final = 1024  # looked at for one write

Holds = Callable[[], Awaitable[bool]]
"""Whether the credential that opened it still would."""


def entry(piece: Piece) -> ProcessLogEntry:
    return ProcessLogEntry(
        sequence=piece.sequence,
        stream=piece.stream,
        timestamp_ms=piece.at_ms,
        data=b64encode(piece.data).decode(),
        encoding="base64",
    )


class Following:
    """A body of `EventStream`."""

    def __init__(self, log: ProcessLog, stream: LogStream, after: int, holds: Holds, clock: Clock) -> None:
        self._log = log
        self._stream = stream
        self._after = after
        self._holds = holds
        self._clock = clock
        self._asked = clock.monotonic()
        self._left = self._over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def leave(self) -> None:
        self._left = True
        self._log.wake()

    async def next(self) -> bytes:
        while not (self._left or self._over):
            if not await self._still_allowed():
                return b""
            if data := self._frames():
                return data
            if self._log.closed and self._after >= self._log.head:
                self._over = True
                return end("exited")
            if not await self._log.changed(self._after, KEEP_ALIVE):
                return PING
        return b""

    async def _still_allowed(self) -> bool:
        now = self._clock.monotonic()
        if now - self._asked < RECHECK:
            return True
        self._asked = now
        return await self._holds()

    def _frames(self) -> bytes:
        parts, size = [self._truncation()], 0
        for piece in self._log.since(self._after, MOST_PIECES):
            if size > CHUNK_BYTES:
                break
            self._after = piece.sequence
            if piece.is_of(self._stream):
                parts.append(_frame(piece))
                size += len(parts[-1])
        return b"".join(parts)

    def _truncation(self) -> bytes:
        """If something between what was sent and what is next is gone."""
        first = self._log.first
        if self._after + 1 >= first:
            return b""
        self._after = first - 1
        told = {"firstSequence": first, "droppedBytes": self._log.dropped_bytes}
        return b"event: truncated\ndata: %b\n\n" % msgspec.json.encode(told)


def _frame(piece: Piece) -> bytes:
    return b"event: log\nid: %d\ndata: %b\n\n" % (piece.sequence, msgspec.json.encode(entry(piece)))
