"""Bytes from a pipe, turned into lists of complete lines, or into blocks of them for those who read many at once.

INV-1: every byte of a complete line within the cap is delivered once, in order, unchanged but for redaction and
the line ending.
INV-2: memory is bounded: complete lines by `buffer_limit` plus one read (then the pipe is not read any more), the
unfinished one by `max_line` (then it is dropped as it arrives, reported, and reading goes on after it).
INV-3: the cost is per block, not per line: one search, one redaction and one split per read, one join per line
that spans several.
INV-4: no line holds the loop: a block of more than `LONG_BLOCK` is redacted in a thread, whose every step is short, and
those behind it wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

Redact = Callable[[bytes], bytes]

MAX_LINE: Final = 32 * 1024 * 1024
# A flood is taken in turns with what is made of it: whoever follows keeps up, and finds it in memory.
BUFFER_LIMIT: Final = 128 * 1024
UNFINISHED_SHOWN: Final = 4096  # bytes
LONG_BLOCK: Final = 1024 * 1024  # bytes


def unchanged(block: bytes) -> bytes:
    return block


def ignored(_dropped: int) -> None:
    return None


class LineSplitter:
    """Chunks in, blocks of complete lines out; a line's pieces are joined once, however many there are."""

    __slots__ = (
        "_blocks",
        "_clean_ones",
        "_dropped",
        "_max_line",
        "_pieces",
        "_redact",
        "_too_long",
        "held",
        "ready",
    )

    def __init__(
        self,
        *,
        max_line: int = MAX_LINE,
        redact: Redact = unchanged,
        on_line_too_long: Callable[[int], None] = ignored,
    ) -> None:
        self._max_line = max_line
        self._redact = redact
        self._too_long = on_line_too_long
        self._blocks: list[bytes] = []  # complete lines, each block without its last newline
        self._clean_ones: set[int] = set()  # their places
        self._pieces: list[bytes] = []  # of the unfinished line
        self._dropped = 0  # bytes of the unfinished line, once it is beyond the cap
        self.ready = 0  # bytes of complete lines
        self.held = 0  # bytes of the unfinished line

    def feed(self, chunk: bytes) -> None:
        end = chunk.rfind(b"\n")
        if self._dropped or self.held + len(chunk) > self._max_line:
            self._feed_line_by_line(chunk)
        elif end < 0:
            self._pieces.append(chunk)
            self.held += len(chunk)
        else:
            start = self._complete_first(chunk) if self._pieces else 0
            if start <= end:
                self._complete(chunk[start:end])
            if rest := chunk[end + 1 :]:
                self._pieces.append(rest)
                self.held = len(rest)

    def take(self) -> list[bytes]:
        """All complete lines that are waiting, in blocks: with newlines between them, and none at the end."""
        blocks, self._blocks = self._blocks, []
        clean, self._clean_ones = self._clean_ones, set()
        self.ready = 0
        return [block if at in clean else self.clean(block) for at, block in enumerate(blocks)]

    def long_block(self) -> tuple[int, bytes] | None:
        """The first that waits and takes long to clean, with its place."""
        for at, block in enumerate(self._blocks):
            if len(block) > LONG_BLOCK and at not in self._clean_ones:
                return at, block
        return None

    def put_back(self, at: int, block: bytes) -> None:
        """Clean."""
        self._blocks[at] = block
        self._clean_ones.add(at)

    def end_long_line(self) -> None:
        """The stream has ended, and a long line with it."""
        if self.held > LONG_BLOCK:
            self._complete_first(b"\n")

    def finish(self) -> list[bytes]:
        """What is left at the end of the stream: the waiting lines, and the last one if it has no newline."""
        blocks = self.take()
        if self._dropped:
            self._end_line()
        elif self._pieces:
            blocks.append(self._redact(b"".join(self._pieces)))
            self._pieces.clear()
            self.held = 0
        return blocks

    def unfinished(self) -> bytes:
        """What there is of a line that has not ended, and its beginning only: for people."""
        return self._redact(b"".join(self._pieces))[:UNFINISHED_SHOWN]

    def clean(self, block: bytes) -> bytes:
        block = self._redact(block)
        return block.replace(b"\r\n", b"\n").removesuffix(b"\r") if b"\r" in block else block

    def _complete_first(self, chunk: bytes) -> int:
        """The unfinished line gets its end, and is a block of its own: to join all behind it would be one more copy.
        Where the next line begins."""
        end = chunk.index(b"\n")
        line = b"".join((*self._pieces, chunk[:end]))
        self._pieces.clear()
        self.held = 0
        self._complete(line)
        return end + 1

    def _complete(self, block: bytes) -> None:
        self._blocks.append(block)
        self.ready += len(block) + 1

    def _feed_line_by_line(self, chunk: bytes) -> None:
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            self._grow(piece)
            self._end_line()
        self._grow(rest)

    def _grow(self, piece: bytes) -> None:
        size = self.held + len(piece)
        if self._dropped:
            self._dropped += len(piece)
        elif size > self._max_line:
            self._dropped = size
            self._pieces.clear()
            self.held = 0
        elif piece:
            self._pieces.append(piece)
            self.held = size

    def _end_line(self) -> None:
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._too_long(dropped)
        else:
            self._complete_first(b"\n")


class LineReader(asyncio.Protocol):
    """The reading end of a pipe as an asynchronous iterator: each item is every line that has arrived by then.

    One task reads at a time; another may go on where it stopped, and a cancelled one loses nothing.
    """

    def __init__(self, splitter: LineSplitter, buffer_limit: int = BUFFER_LIMIT) -> None:
        self._splitter = splitter
        self._limit = buffer_limit
        self._transport: asyncio.ReadTransport | None = None
        self._arrival = asyncio.Event()
        self._paused = False
        self._reading = False
        self.closed = asyncio.get_running_loop().create_future()

    @property
    def buffered(self) -> int:
        """Bytes held in memory now."""
        return self._splitter.ready + self._splitter.held

    def unfinished(self) -> bytes:
        return self._splitter.unfinished()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)  # uvloop has classes of its own

    def data_received(self, data: bytes) -> None:
        splitter = self._splitter
        splitter.feed(data)
        if splitter.ready:
            self._arrival.set()
            if splitter.ready > self._limit:
                self._pause()

    def connection_lost(self, _exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        self._arrival.set()

    def allow(self, more: int) -> None:
        """Take `more` bytes beyond the limit: the writers are dead, and what they wrote is all there will be."""
        self._limit += more
        if self._paused and self._splitter.ready <= self._limit:
            self._resume()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def __aiter__(self) -> LineReader:
        return self

    async def __anext__(self) -> list[bytes]:
        blocks = await self.blocks()
        if not blocks:
            raise StopAsyncIteration
        # Not joined first: a copy of everything costs more than a few splits.
        return [line for block in blocks for line in block.split(b"\n")]

    async def blocks(self) -> list[bytes]:
        """The same lines, in blocks: newlines between them, and none at a block's end. Empty at the end of all."""
        if self._reading:
            raise RuntimeError("cannot read lines in two tasks at once; let one of them hand the lines on")
        self._reading = True
        try:
            while not self._splitter.ready and not self.closed.done():
                self._arrival.clear()
                await self._arrival.wait()
            if self._splitter.ready > LONG_BLOCK or self.closed.done():
                await self._clean_long_blocks()
        finally:
            self._reading = False
        if self.closed.done():
            return self._splitter.finish()
        blocks = self._splitter.take()
        if self._paused:
            self._resume()
        return blocks

    async def _clean_long_blocks(self) -> None:
        """Each goes back to its place, and whoever is cancelled meanwhile leaves it there (INV-4)."""
        while True:
            if self.closed.done():
                self._splitter.end_long_line()
            found = self._splitter.long_block()
            if found is None:
                return
            at, block = found
            self._splitter.put_back(at, await asyncio.to_thread(self._splitter.clean, block))

    def _pause(self) -> None:
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        self._paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
