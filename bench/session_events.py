"""A session's events over HTTP, with every event on the disk (SQLite, synchronous=FULL) before it is seen.

The server is a process of its own (`session_events_server.py`), and its processor time is what counts. argv:
  flood READERS EVENTS SIZE SCRATCH   as fast as the disk takes them, to readers of the live body
  burst READERS EVENTS SIZE SCRATCH   all at once
  replay EVENTS PAGE SCRATCH          stored events of a server that was just started, page by page
  line SCRATCH                        one event every five milliseconds: how long it takes to a reader, and to the disk
Readers count what they get: a number that is missing, or comes twice, fails the run.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import uvloop

from bench.measure import Sample, Spent, emit

LIMIT = 120.0  # seconds for one run on a loaded machine
ENDING = 10.0  # seconds for the server to end
WARM_UP = 400
BEFORE = 2  # events besides those that are published: the session's start and the item's
READ = 256 * 1024
EVENTS = "/v1/sessions/bench/events"
REQUEST = f"GET {EVENTS}/sse HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
LINES, PAUSE = 1000, 0.005
_ID = b"\nid: "


class Reader(asyncio.BufferedProtocol):
    """Counts the ids and looks at the last one: a real reader's work would be most of the machine's."""

    buffer = bytearray(READ)  # one for all: it is looked at before the next read

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._rest = b""  # the end of the last read: an id may be cut in two
        self.count = 0
        self.seq = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(REQUEST)

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002
        return self.buffer

    def buffer_updated(self, size: int) -> None:
        data = self._rest + self.buffer[:size]
        at = data.rfind(_ID)
        end = data.find(b"\n", at + 1) if at >= 0 else -1
        if end >= 0:
            self.count += data.count(_ID, 0, end)
            self.seq = int(data[at + len(_ID) : end])
            self._rest = data[end:] if len(data) - end < len(_ID) else data[-len(_ID) + 1 :]
            self._readers.line(data)
        else:
            self.count += data.count(_ID, 0, at) if at >= 0 else 0
            self._rest = data[at:] if at >= 0 else data[-len(_ID) + 1 :]
            self.seq = max(0, self.seq)
        if self.seq >= self._readers.wanted:
            self._readers.reached(self)


class Readers:
    def __init__(self, count: int) -> None:
        self.all = [Reader(self) for _ in range(count)]
        self.wanted = 0
        self.lines: list[float] = []  # milliseconds
        self.times_lines = False
        self._behind: set[Reader] = set()
        self._odd: list[str] = []  # readers of which a number was missing, or came twice
        self._done = asyncio.Event()

    def line(self, data: bytes) -> None:
        if self.times_lines:
            sent = data[data.rfind(b'"at ') + 4 :]
            self.lines.append((time.monotonic_ns() - int(sent[: sent.index(b'"')])) / 1e6)

    def reached(self, reader: Reader) -> None:
        if reader in self._behind and reader.count != reader.seq:
            self._odd.append(f"{reader.count} events up to number {reader.seq}")
        self._behind.discard(reader)
        if not self._behind:
            self._done.set()

    async def connect(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        for reader in self.all:
            await loop.create_connection(lambda reader=reader: reader, "127.0.0.1", port)  # type: ignore[misc]

    async def until(self, seq: int) -> None:
        self.wanted, self._behind = seq, {reader for reader in self.all if reader.seq < seq}
        self._done.clear()
        if self._behind:
            async with asyncio.timeout(LIMIT):
                await self._done.wait()

    def must_have_all(self) -> None:
        """There may be more events than were published: a message of eight megabytes goes on in another item."""
        if self._odd:
            raise RuntimeError(f"readers have {', '.join(self._odd[:5])}")


class Server:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._orders, self._answers = process.stdin, process.stdout
        self.port = int(self._answers.readline())

    def tell(self, order: str) -> None:
        self._orders.write(f"{order}\n")
        self._orders.flush()

    def ask(self, order: str) -> float:
        self.tell(order)
        return float(self._answers.readline())


@contextmanager
def started(folder: Path) -> Iterator[Server]:
    command = [sys.executable, "-m", "bench.session_events_server", str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Server(process)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDING)


async def live(how: str, count: int, events: int, size: int, folder: Path) -> Sample:
    with started(folder) as server:
        readers = Readers(count)
        await readers.connect(server.port)
        await readers.until(0)
        server.tell(f"flood {WARM_UP} {size}")
        await readers.until(BEFORE + WARM_UP)
        cpu, began = server.ask("cpu"), time.perf_counter()
        server.tell(f"{how} {events} {size}")
        await readers.until(BEFORE + WARM_UP + events)
        wall = time.perf_counter() - began
        cpu = server.ask("cpu") - cpu
        readers.must_have_all()
    return Spent(wall, cpu).per_event(count * events) | {"CPU s": cpu}


async def line(folder: Path) -> Sample:
    with started(folder) as server:
        readers = Readers(1)
        await readers.connect(server.port)
        await readers.until(0)
        server.tell(f"flood {WARM_UP} 50")
        await readers.until(BEFORE + WARM_UP)
        readers.times_lines = True
        server.tell(f"paced {LINES} {PAUSE}")
        await readers.until(BEFORE + WARM_UP + LINES)
        commit = server.ask("commit")
        readers.must_have_all()
    whole = statistics.median(readers.lines)
    return {"line ms": whole, "commit ms": commit, "added ms": whole - commit}


async def fill(folder: Path, events: int) -> None:
    with started(folder) as server:
        readers = Readers(1)
        await readers.connect(server.port)
        await readers.until(0)
        server.tell(f"flood {events} 50")
        await readers.until(BEFORE + events)


def replay(folder: Path, events: int, size: int) -> Sample:
    with started(folder) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        offset, found, more = 0, 0, True
        cpu, began = server.ask("cpu"), time.perf_counter()
        while more:
            connection.request("GET", f"{EVENTS}?offset={offset}&limit={size}")
            page = json.loads(connection.getresponse().read())
            numbers = [event["sequence"] for event in page["events"]]
            if numbers != list(range(offset + 1, offset + 1 + len(numbers))):
                raise RuntimeError(f"a hole after {offset}")
            offset, found, more = numbers[-1], found + len(numbers), page["hasMore"]
        wall = time.perf_counter() - began
        cpu = server.ask("cpu") - cpu
    if found != BEFORE + events:
        raise RuntimeError(f"{found} of {BEFORE + events} events")
    return Spent(wall, cpu).per_event(events) | {"CPU s": cpu}


def main(how: str, *args: str) -> Sample:
    with tempfile.TemporaryDirectory(dir=args[-1]) as made:
        folder = Path(made)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if how == "line":
                return runner.run(line(folder))
            if how == "replay":
                runner.run(fill(folder, int(args[0])))
                return replay(folder, int(args[0]), int(args[1]))
            count, events, size = map(int, args[:3])
            return runner.run(live(how, count, events, size, folder))


if __name__ == "__main__":
    emit(main(*sys.argv[1:]))
