"""What a process has written: the last of it, in numbered pieces.

INV-P3  Numbers are dense, from 1 on, over all streams of the process, and never reused. A piece is never changed.
INV-P4  Memory is bounded: by `limit`, with what each piece costs besides its bytes. The oldest go, whole, and how many
        bytes went is told to whoever asks for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from legation.wire.api.processes import LogStream

PIECE_COST: Final = (
    256  # bytes of memory for each piece besides its own: a byte at a time must not cost gigabytes
)
_ROOM_FOR_GONE: Final = 1024  # pieces that may be gone from the front before the list is made anew

Written = Literal["stdout", "stderr", "pty"]


class Piece(NamedTuple):
    sequence: int
    stream: Written
    at_ms: int
    data: bytes

    def is_of(self, stream: LogStream) -> bool:
        return stream in ("combined", self.stream)


class ProcessLog:
    def __init__(self, limit: int) -> None:
        self._most = self._limit = limit
        self._pieces: list[Piece] = []
        self._gone = 0  # pieces at the front of the list that are no longer kept
        self._size = 0
        self._waiters: set[asyncio.Future[None]] = set()
        self.head = 0  # the last number
        self.dropped_bytes = 0
        self.closed = False  # no more will come

    @property
    def first(self) -> int:
        """The number of the oldest that is kept, or of the next to come."""
        return self.head + 1 - (len(self._pieces) - self._gone)

    @property
    def size(self) -> int:
        return self._size

    def limit_to(self, limit: int) -> None:
        """While there are many others; never to more than it was made with."""
        self._limit = min(self._most, limit)
        self._trim()

    def add(self, stream: Written, data: bytes, at_ms: int) -> None:
        self.head += 1
        self._pieces.append(Piece(self.head, stream, at_ms, data))
        self._size += len(data) + PIECE_COST
        self._trim()
        self.wake()

    def close(self) -> None:
        self.closed = True
        self.wake()

    def since(self, number: int, most: int | None = None) -> Sequence[Piece]:
        """Those above the number that are kept, in order."""
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
        """Until there is something above the number, or the end, or a `wake`; False if the time was up first."""
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
        """The newest always stays, so that a limit smaller than one piece does not make a log of nothing."""
        while self._size > self._limit and self._gone < len(self._pieces) - 1:
            piece = self._pieces[self._gone]
            self._pieces[self._gone] = _GONE
            self._gone += 1
            self._size -= len(piece.data) + PIECE_COST
            self.dropped_bytes += len(piece.data)
        if self._gone > max(_ROOM_FOR_GONE, len(self._pieces) // 2):
            del self._pieces[: self._gone]
            self._gone = 0


_GONE: Final = Piece(0, "stdout", 0, b"")
