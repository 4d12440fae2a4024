"""The processor time of a server's process per validated POST; the load comes from this one."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import uvloop

from bench.measure import Sample, emit

RATE, CPU, MEMORY = "requests/s", "CPU µs/request", "MB"
TOKEN = "bench-token"
CONNECTIONS = 16
LOAD_LIMIT = 120.0  # seconds; the server's time to start and to answer everything
WARM_UP = 2_000
STOP_LIMIT = 10.0  # seconds; the server's time to go

BODY = json.dumps(
    {
        "title": "A thing of some length",
        "colour": "green",
        "parts": [{"name": f"part {number}", "count": number} for number in range(4)],
        "note": "what is to be said about it, in a line",
    }
).encode()


class Client(asyncio.Protocol):
    """Sends the next request when the answer to the last one is whole."""

    def __init__(self, request: bytes, count: int, status: bytes = b"201") -> None:
        self.done = asyncio.get_running_loop().create_future()
        self._request, self._left, self._status = request, count, status
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found or len(body) < _length(head):
            return
        if not head.startswith(b"HTTP/1.1 " + self._status) or b'"problem":{' in body:
            self.done.set_exception(RuntimeError(f"unexpected answer: {head[:80]!r}"))
            return
        self._buffer = b""
        self._left -= 1
        if self._left:
            self._transport.write(self._request)
        else:
            self._transport.close()
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or RuntimeError("the server closed the connection"))


def _length(head: bytes) -> int:
    return int(head.lower().partition(b"content-length:")[2].partition(b"\r")[0])


async def load(port: int, count: int) -> None:
    request = (
        f"POST /v1/things HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: */*\r\nUser-Agent: bench\r\n"
        f"Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
    ).encode() + BODY
    loop = asyncio.get_running_loop()
    clients = [
        (await loop.create_connection(lambda: Client(request, count // CONNECTIONS), "127.0.0.1", port))[1]
        for _ in range(CONNECTIONS)
    ]
    async with asyncio.timeout(LOAD_LIMIT):
        await asyncio.gather(*(client.done for client in clients))


def cpu_seconds(pid: int) -> float:
    """User and system, all threads, of a process that still runs."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(app: str, count: int) -> Sample:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(CONNECTIONS)
        descriptor = listening.fileno()
        argv = [sys.executable, "-m", "bench.http_server", f"bench.http_{app}:app", str(descriptor)]
        with subprocess.Popen(argv, pass_fds=[descriptor]) as server:
            try:
                return _measure(server.pid, listening.getsockname()[1], count)
            finally:
                server.terminate()
                server.wait(STOP_LIMIT)


def _measure(pid: int, port: int, count: int) -> Sample:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(load(port, WARM_UP))
        cpu, wall = cpu_seconds(pid), time.perf_counter()
        runner.run(load(port, count))
        wall, cpu = time.perf_counter() - wall, cpu_seconds(pid) - cpu
    return {RATE: count / wall, CPU: cpu / count * 1e6, MEMORY: resident_mb(pid)}


if __name__ == "__main__":
    emit(measure(sys.argv[1], int(sys.argv[2])))
