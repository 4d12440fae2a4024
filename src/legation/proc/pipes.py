"""The pipes of a child: how a loop gets them, its input, and the tail of its complaints.

INV-F1: a descriptor has one closer. What is given to a loop is closed by the loop's transport and by nobody else:
a number that is closed twice is, the second time, a file that a thread has just opened.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import IO, Final, cast

from legation.errors import TimedOut, TransportClosed
from legation.proc.lines import LineSplitter, Redact

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
        """To somebody who closes it by number."""
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
