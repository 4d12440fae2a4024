"""Readers of a live body, over bare sockets: which numbers they got, and when."""

from __future__ import annotations

import asyncio
import re
import time
from typing import cast

READ = 256 * 1024
TAIL = 64  # bytes of a read that are looked at again with the next one: a mark may be cut in two
_CHUNKED = re.compile(rb"\r\n[0-9a-f]+\r\n")  # between two chunks
_SENT = re.compile(rb"#\d{8}# at (\d+) ns")


class Reader(asyncio.BufferedProtocol):
    """Looks for the marks of the agent's texts and leaves the rest: a real reader's work would be most of the machine's.

    `member` is where an event has its text. A body that one server passes on for another `is_cut` anywhere by its chunks: to join
    them doubles a reader's time, so it is done there alone. `wanted` is the count of events of a prompt: their numbers are 0 to `wanted` - 1."""

    buffer = bytearray(READ)  # one for all: it is looked at before the next read

    def __init__(self, request: bytes, member: bytes, *, is_cut: bool = False) -> None:
        self._mark = re.compile(rb'"%b":"#(\d{8})#' % member)
        self.greeted = asyncio.Event()
        self._request = request
        self._is_cut = is_cut
        self._lines: list[float] | None = None
        self.expect(0)

    def expect(self, wanted: int, lines: list[float] | None = None) -> None:
        """A new prompt. `lines` gets the milliseconds from each line of the agent to this reader."""
        self.numbers = bytearray(wanted)
        self.first = self.last = 0.0  # when the first and the last event came
        self.done = asyncio.Event()
        self._lines = lines
        self._rest = b""

    @property
    def lost(self) -> int:
        return self.numbers.count(0)

    @property
    def twice(self) -> int:
        return sum(count > 1 for count in self.numbers)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002
        return self.buffer

    def buffer_updated(self, size: int) -> None:
        self.greeted.set()
        data = self._rest + self.buffer[:size]
        if self._is_cut:
            data = _CHUNKED.sub(b"", data)
        end = 0
        for found in self._mark.finditer(data):
            number, end = int(found[1]), found.end()
            if number < len(self.numbers):
                self.numbers[number] += 1
        if end:
            self._came(data, number)
        self._rest = data[max(end, len(data) - TAIL) :]

    def _came(self, data: bytes, number: int) -> None:
        now = time.perf_counter()
        self.first, self.last = self.first or now, now
        if self._lines is not None and (sent := _SENT.findall(data)):
            self._lines.append((time.monotonic_ns() - int(sent[-1])) / 1e6)
        if number == len(self.numbers) - 1:
            self.done.set()


async def connect(request: bytes, member: bytes, port: int, limit: float) -> Reader:
    loop = asyncio.get_running_loop()
    reader = Reader(request, member)
    await loop.create_connection(lambda: reader, "127.0.0.1", port)
    async with asyncio.timeout(limit):
        await reader.greeted.wait()
    return reader
