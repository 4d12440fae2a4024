"""A lean SSE client on a bare connection: reads when told to, comes again with its last id, checks every number."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

READ = 256 * 1024
LIMIT = 60.0  # seconds for anything a test waits for


async def get(
    port: int, target: str, headers: Mapping[str, str] | None = None, method: str = "GET"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int, dict[str, str]]:
    """The connection after the head of the answer, its status and its headers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2 * READ)
    given = {"host": "localhost", "authorization": "Bearer local", **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    writer.write(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode())
    answer = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in answer[1:] if line)
    return reader, writer, int(answer[0].split()[1]), fields


async def ask(port: int, target: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
    """The status and body of an answer that ends."""
    async with asyncio.timeout(LIMIT):
        reader, writer, status, fields = await get(port, target, headers)
        body = await reader.readexactly(int(fields["content-length"]))
        writer.close()
    return status, body


async def chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The HTTP chunks of a body up to its clean end; a cut one raises IncompleteReadError."""
    while True:
        size = int(await reader.readuntil(b"\r\n"), 16)
        data = await reader.readexactly(size + 2)
        if not size:
            return
        yield data[:-2]


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, str]]:
    """Each frame as its fields; a comment has the field "" only."""
    async for chunk in chunks(reader):
        text = chunk.decode()
        assert text.endswith("\n\n"), "a write ends within a frame"
        for frame in text[:-2].split("\n\n"):
            fields = [line.partition(":") for line in frame.split("\n")]
            yield {name: value.removeprefix(" ") for name, _, value in fields}


class Follower:
    """Follows one stream over any number of connections; `reads` can be cleared to let it stall."""

    def __init__(self, port: int, stream: str) -> None:
        self.port = port
        self.stream = stream
        self.seq = 0
        self.byes = self.cuts = self.connections = 0
        self.connected = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self._reached: list[tuple[int, asyncio.Future[None]]] = []

    async def follow(self) -> None:
        while True:
            try:
                await self._connection()
            except (OSError, asyncio.IncompleteReadError):
                self.cuts += 1
            self.connected.clear()
            await asyncio.sleep(0.05)  # the client's time between tries, as `retry` would have it

    async def _connection(self) -> None:
        headers = {"last-event-id": str(self.seq)} if self.seq else {}
        reader, writer, status, _ = await get(self.port, f"/v1/streams/{self.stream}/sse", headers)
        try:
            assert status == 200, f"{self.stream} after {self.seq}: {status}"
            self.connections += 1
            self.connected.set()
            await self.reads.wait()
            async for chunk in chunks(reader):
                self._take(chunk)
                if not self.reads.is_set():
                    await self.reads.wait()
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _take(self, chunk: bytes) -> None:
        assert chunk.endswith(b"\n\n"), "a write ends within a frame"
        for frame in chunk[:-2].split(b"\n\n"):
            if frame.startswith(b"id: "):
                self.seq += 1
                assert frame.startswith(b"id: %d\n" % self.seq), f"{frame[:20]!r} instead of {self.seq}"
                assert b'"raw":{"n":%d,' % self.seq in frame, "the number does not belong to the event"
            elif frame.startswith(b"event: bye"):
                self.byes += 1
        for wanted, reached in self._reached:
            if self.seq >= wanted and not reached.done():
                reached.set_result(None)

    async def until(self, seq: int) -> None:
        if self.seq < seq:
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._reached.append((seq, reached))
            await reached
