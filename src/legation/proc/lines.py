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
import os
from collections.abc import Callable
from typing import IO, Final, cast

from legation.errors import TimedOut, TransportClosed

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
        """Give what is left at the end of the stream: the waiting lines, and the last one if it has no newline."""
        blocks = self.take()
        if self._dropped:
            self._end_line()
        elif self._pieces:
            blocks.append(self._redact(b"".join(self._pieces)))
            self._pieces.clear()
            self.held = 0
        return blocks

    def unfinished(self) -> bytes:
        """Give what there is of a line that has not ended, and its beginning only: for people."""
        return self._redact(b"".join(self._pieces))[:UNFINISHED_SHOWN]

    def clean(self, block: bytes) -> bytes:
        block = self._redact(block)
        if b"\r" not in block:
            return block
        if b"\n" in block:  # of one long line that search alone takes a tenth of a second
            block = block.replace(b"\r\n", b"\n")
        return block.removesuffix(b"\r")

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
        self.arrived = 0  # bytes, so far
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
        self.arrived += len(data)
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


# The pipes of a child: how a loop gets them, its input, and the tail of its complaints.
#
# INV-F1: a descriptor has one closer. What is given to a loop is closed by the loop's transport and by nobody else:
# a number that is closed twice is, the second time, a file that a thread has just opened.

STDERR_TAIL: Final = 64 * 1024
# A line of stderr beyond this is left out of `on_stderr`; the tail has its end all the same.
STDERR_LINE: Final = 1024 * 1024


async def hand_over(pipe: IO[bytes], protocol: asyncio.BaseProtocol) -> None:
    """Give the loop one end of a pipe: to read, or to write where it was opened for that.

    The file is closed at once, and a duplicate is the loop's. Not left half-way: who is cancelled waits for the few
    rounds of the loop that it takes, since loops differ in what they close then (MagicStack/uvloop#738)."""
    loop = asyncio.get_running_loop()
    connect = loop.connect_write_pipe if pipe.writable() else loop.connect_read_pipe
    given = _Given(os.dup(pipe.fileno()))
    pipe.close()
    connecting = asyncio.ensure_future(connect(lambda: _Handover(given, protocol), given))
    cancelled = False
    while not connecting.done():
        try:
            await asyncio.wait({connecting})
        except asyncio.CancelledError:
            cancelled = True
    if connecting.cancelled():  # by the end of the loop, which closes what it has
        raise asyncio.CancelledError
    if (error := connecting.exception()) is not None:
        given.close()  # the loop did not take it
        raise error
    if cancelled:
        transport, _ = connecting.result()
        transport.close()
        raise asyncio.CancelledError


class _Given:
    """A duplicate in the loop's hands, as the file that `connect_*_pipe` wants; without a finalizer, as a transport
    has its own. `close` is asyncio's way to close it, and does nothing once libuv has the number."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def fileno(self) -> int:
        return -1 if self._descriptor is None else self._descriptor

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def leave(self) -> None:
        """Give it to somebody who closes it by number."""
        self._descriptor = None


class _Handover(asyncio.BaseProtocol):
    """Stands in until the transport is there: only then can be told who will close the duplicate."""

    def __init__(self, given: _Given, protocol: asyncio.BaseProtocol) -> None:
        self._given = given
        self._protocol = protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Only libuv's transports have this, and it names the number that libuv closes.
        libuv = transport.get_extra_info("socket")
        if libuv is not None and libuv.fileno() == self._given.fileno():
            self._given.leave()  # and uvloop closes the file once more behind it (MagicStack/uvloop#763)
        elif libuv is not None:
            self._given.close()  # a uvloop that made a duplicate of its own
        transport.set_protocol(self._protocol)
        self._protocol.connection_made(transport)


class InputWriter(asyncio.BaseProtocol):
    """The writing end of the child's stdin; a reader that is gone is an error of the caller's write, not the loop's."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._transport: asyncio.WriteTransport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop has classes of its own

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._transport = None
        if not self.closed.done():
            self.closed.set_result(None)
        self._writable.set()

    def write(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            raise self._closed_error()
        self._transport.write(data)

    @property
    def unsent(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    async def drain(self, timeout: float | None = None) -> None:
        """Wait until the child has read enough of what was written to take more."""
        try:
            async with asyncio.timeout(timeout):
                await self._writable.wait()
        except TimeoutError:
            raise TimedOut(
                f"cannot write to {self._name!r}: it has read nothing for {timeout} s; stop it or wait longer"
            ) from None
        if self.closed.done():
            raise self._closed_error()

    def close(self) -> None:
        """After what is waiting has been written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Now; what is waiting is lost."""
        transport = self._transport
        # One that is closing with nothing left to write is as good as closed, and asyncio would close it twice.
        if transport is not None and (transport.get_write_buffer_size() or not transport.is_closing()):
            self._transport = None
            transport.abort()

    def _closed_error(self) -> TransportClosed:
        return TransportClosed(
            f"cannot write to {self._name!r}: its input is closed; look at its exit and start it again"
        )


class ErrorTail(asyncio.Protocol):
    """Drains stderr always, so that no child ever blocks on it, and keeps the end of it."""

    def __init__(self, redact: Redact, on_lines: Callable[[list[bytes]], None] | None) -> None:
        self._redact = redact
        self._on_lines = on_lines
        self._splitter = LineSplitter(max_line=STDERR_LINE, redact=redact)
        self._chunks: list[bytes] = []
        self._size = 0
        self._transport: asyncio.ReadTransport | None = None
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)  # uvloop has classes of its own

    def data_received(self, data: bytes) -> None:
        self._chunks.append(data)
        self._size += len(data)
        if self._size > 2 * STDERR_TAIL:
            self._shorten()
        if self._on_lines is not None:
            self._splitter.feed(data)
            self._report(self._splitter.take())

    def connection_lost(self, _exc: Exception | None) -> None:
        self._report(self._splitter.finish())
        if not self.closed.done():
            self.closed.set_result(None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def text(self) -> str:
        self._shorten()
        return b"".join(self._chunks).decode(errors="replace")

    def _shorten(self) -> None:
        # Redacted before it is cut: a secret cut in two would not be recognised any more.
        tail = self._redact(b"".join(self._chunks))[-STDERR_TAIL:]
        self._chunks = [tail]
        self._size = len(tail)

    def _report(self, blocks: list[bytes]) -> None:
        if blocks and self._on_lines is not None:
            self._on_lines([line for block in blocks for line in block.split(b"\n")])
