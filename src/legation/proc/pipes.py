"""The two pipes that are not lines: the child's input, and the tail of its complaints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from legation.errors import TimedOut, TransportClosed
from legation.proc.lines import LineSplitter, Redact

STDERR_TAIL: Final = 64 * 1024
# A line of stderr beyond this is left out of `on_stderr`; the tail has its end all the same.
STDERR_LINE: Final = 1024 * 1024


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

    async def drain(self, timeout: float | None) -> None:
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
