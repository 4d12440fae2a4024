"""The output of a process: read as it comes, kept in a bounded log, followed as server-sent events.

INV-P3  Numbers are dense, from 1 on, over all streams of the process, and never reused. A piece is never changed.
INV-P4  Memory is bounded: by `limit`, with what each piece costs besides its bytes. The oldest go, whole, and how many
        bytes went is told to whoever asks for them.
"""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, NamedTuple, Self

import msgspec

from legation.clock import Clock
from legation.server.streaming.hub import KEEP_ALIVE, RECHECK
from legation.server.streaming.sse import CHUNK_BYTES, PING, end
from legation.wire.api.processes import LogStream, ProcessLogEntry

PIECE_BYTES: Final = 64 * 1024  # of one read
LAST_BYTES: Final = 2 * 1024 * 1024  # read at most after the process tree's end: more than a pipe holds
# Bytes of memory for each piece besides its own: a byte at a time must not cost gigabytes.
PIECE_COST: Final = 256
MOST_PIECES: Final = 1024  # looked at for one write

_ROOM_FOR_GONE: Final = 1024  # pieces that may be gone from the front before the list is made anew

OutputName = Literal["stdout", "stderr", "pty"]
Holds = Callable[[], Awaitable[bool]]
"""Says whether the credential that opened something still would."""


class OutputReader:
    """Take what comes out of a pipe or a terminal as it comes: nobody's slowness ever stops the process.

    It owns the descriptor. `take` gets every piece, in order; after `finish` there are no more."""

    def __init__(self, descriptor: int, take: Callable[[bytes], None]) -> None:
        self._descriptor: int | None = descriptor
        self._take = take
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def finish(self) -> None:
        """Read the rest: whoever could write is dead, and what they wrote is all there is."""
        left = LAST_BYTES
        while left > 0 and (size := self._read()):
            left -= size
        self.close()

    def close(self) -> None:
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _read(self) -> int:
        if self._descriptor is None:
            return 0
        try:
            data = os.read(self._descriptor, PIECE_BYTES)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:  # EIO: nobody has the terminal open any more
            data = b""
        if data:
            self._take(data)
        else:
            # Closed by `finish`: of a terminal it is also where one writes.
            self._loop.remove_reader(self._descriptor)
        return len(data)


class LogPiece(NamedTuple):
    sequence: int
    stream: OutputName
    at_ms: int
    data: bytes

    def is_of(self, stream: LogStream) -> bool:
        return stream in ("combined", self.stream)


class ProcessLog:
    """The last of what a process has written, in numbered pieces (INV-P3, INV-P4)."""

    def __init__(self, limit: int) -> None:
        self._most = self._limit = limit
        self._pieces: list[LogPiece] = []
        self._gone = 0  # pieces at the front of the list that are no longer kept
        self.size = 0
        self._waiters: set[asyncio.Future[None]] = set()
        self.head = 0  # the last number
        self.dropped_bytes = 0
        self.closed = False  # no more will come

    @property
    def first(self) -> int:
        """The number of the oldest that is kept, or of the next to come."""
        return self.head + 1 - (len(self._pieces) - self._gone)

    def limit_to(self, limit: int) -> None:
        """Limit it while there are many others; never to more than it was made with."""
        self._limit = min(self._most, limit)
        self._trim()

    def add(self, stream: OutputName, data: bytes, at_ms: int) -> None:
        self.head += 1
        self._pieces.append(LogPiece(self.head, stream, at_ms, data))
        self.size += len(data) + PIECE_COST
        self._trim()
        self.wake()

    def close(self) -> None:
        self.closed = True
        self.wake()

    def since(self, number: int, most: int | None = None) -> Sequence[LogPiece]:
        """List the pieces above the number that are kept, in order."""
        at = self._gone + max(0, number + 1 - self.first)
        return self._pieces[at : None if most is None else at + most]

    def tail_start(self, size: int) -> int:
        """The number above which about `size` bytes are kept."""
        for piece in reversed(self.since(0)):
            size -= len(piece.data)
            if size < 0:
                return piece.sequence
        return self.first - 1

    async def changed(self, number: int, seconds: float) -> bool:
        """Wait for something above the number, the end, or a `wake`; False if the time was up first."""
        if self.head > number or self.closed:
            return True
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True

    def wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _trim(self) -> None:
        # The newest always stays, so that a limit smaller than one piece does not make a log of nothing.
        while self.size > self._limit and self._gone < len(self._pieces) - 1:
            piece = self._pieces[self._gone]
            self._pieces[self._gone] = _GONE
            self._gone += 1
            self.size -= len(piece.data) + PIECE_COST
            self.dropped_bytes += len(piece.data)
        if self._gone > max(_ROOM_FOR_GONE, len(self._pieces) // 2):
            del self._pieces[: self._gone]
            self._gone = 0


_GONE: Final = LogPiece(0, "stdout", 0, b"")


def log_entry(piece: LogPiece) -> ProcessLogEntry:
    return ProcessLogEntry(
        sequence=piece.sequence,
        stream=piece.stream,
        timestamp_ms=piece.at_ms,
        data=b64encode(piece.data).decode(),
        encoding="base64",
    )


class LogFollower:
    """The log of a process as a body of `EventStream`: `event: log`, its number as the id, until the process has ended.

    A reader that is slow finds what it has not read yet in the log, as long as it is kept there; what was dropped in
    the meantime is told by `event: truncated`."""

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
        """Tell it if something between what was sent and what is next is gone."""
        first = self._log.first
        if self._after + 1 >= first:
            return b""
        self._after = first - 1
        told = {"firstSequence": first, "droppedBytes": self._log.dropped_bytes}
        return b"event: truncated\ndata: %b\n\n" % msgspec.json.encode(told)


def _frame(piece: LogPiece) -> bytes:
    return b"event: log\nid: %d\ndata: %b\n\n" % (piece.sequence, msgspec.json.encode(log_entry(piece)))
