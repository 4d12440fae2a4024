"""One stream, many readers over HTTP: delivered events a second, all readers together.

The server is a process of its own (`sse_server.py`) and its processor time is what counts; this one is the
readers. argv: hub|queue READERS EVENTS PAUSE SCRATCH, with the seconds between two bursts; 0 is flat out.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import suppress
from typing import cast

import uvloop

from bench.measure import Sample, Spent, emit

LIMIT = 120.0  # seconds for one run: the slowest variant's time on a loaded machine
WARM_UP = 400  # events before those that are counted
ENDING = 10.0  # seconds for the server to end
READ = 256 * 1024
LAST = 1024  # bytes of a read in which its last event's number is
REQUEST = b"GET /v1/streams/bench/sse HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Reader(asyncio.BufferedProtocol):
    """Looks only for the last number in what it has read: a real reader's work would be most of the machine's."""

    buffer = bytearray(READ)  # one for all: it is looked at before the next read

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self.seq = -1  # not greeted yet

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(REQUEST)

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002
        return self.buffer

    def buffer_updated(self, size: int) -> None:
        at = self.buffer.rfind(b"\nid: ", max(0, size - LAST), size)
        end = self.buffer.find(b"\n", at + 1, size) if at >= 0 else -1
        if end >= 0:
            self.seq = int(self.buffer[at + 5 : end])
        elif self.seq < 0:
            self.seq = 0
        if self.seq >= self._readers.wanted:
            self._readers.reached(self)


class Readers:
    def __init__(self, count: int) -> None:
        self._all = [Reader(self) for _ in range(count)]
        self.wanted = 0
        self._behind: set[Reader] = set()
        self._done = asyncio.Event()

    def reached(self, reader: Reader) -> None:
        self._behind.discard(reader)
        if not self._behind:
            self._done.set()

    async def connect(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        for reader in self._all:
            await loop.create_connection(lambda reader=reader: reader, "127.0.0.1", port)  # type: ignore[misc]

    async def until(self, seq: int) -> None:
        """Every one of them has read that number."""
        self.wanted, self._behind = seq, {reader for reader in self._all if reader.seq < seq}
        self._done.clear()
        if self._behind:
            async with asyncio.timeout(LIMIT):
                await self._done.wait()


class Server:
    """`sse_server.py`, and what it is told by a line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._orders, self._answers = process.stdin, process.stdout

    async def port(self) -> int:
        return int(await asyncio.to_thread(self._answers.readline))

    def publish(self, events: int, pause: float = 0) -> None:
        self._orders.write(f"{events} {pause}\n")
        self._orders.flush()

    async def cpu(self) -> float:
        self.publish(0)
        return float(await asyncio.to_thread(self._answers.readline))


async def measure(variant: str, count: int, events: int, pause: float) -> Sample:
    command = [sys.executable, "-m", "bench.sse_server", variant]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:  # noqa: ASYNC220
        try:
            server, readers = Server(process), Readers(count)
            await readers.connect(await server.port())
            await readers.until(0)
            server.publish(WARM_UP)
            await readers.until(WARM_UP)
            cpu, started = await server.cpu(), time.perf_counter()
            server.publish(events, pause)
            await readers.until(WARM_UP + events)
            wall = time.perf_counter() - started
            cpu = await server.cpu() - cpu
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDING)
    return Spent(wall, cpu).per_event(count * events)


if __name__ == "__main__":
    variant, count, events, pause = sys.argv[1:5]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        emit(runner.run(measure(variant, int(count), int(events), float(pause))))
