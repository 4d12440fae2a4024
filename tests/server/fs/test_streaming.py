"""Large files: never in memory, over a real connection too."""

import asyncio
import hashlib
import http.client
import os
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tests.server.fs.drive import Drive, open_drive

pytestmark = pytest.mark.heavy

MIB = 1 << 20
SIZE = 64 * MIB
WAIT = 20.0  # seconds: the test's patience with the server
OPERATOR = {"Authorization": "Bearer operator"}


async def call(drive: Drive, method: str, path: str, body_bytes: int) -> tuple[int, int]:
    """The status, and how many bytes came; neither side keeps any."""
    block, left, came, status = bytes(65536), body_bytes, 0, 0

    async def receive() -> Any:
        nonlocal left
        left -= len(block)
        return {"type": "http.request", "body": block if left >= 0 else b"", "more_body": left > 0}

    async def send(message: Any) -> None:
        nonlocal came, status
        status = message.get("status", status)
        came += len(message.get("body", b""))

    scope = {
        "type": "http",
        "method": method,
        "path": "/v1/fs/file",
        "raw_path": b"/v1/fs/file",
        "query_string": f"path={path}".encode(),
        "headers": [(b"host", b"x"), (b"authorization", b"Bearer operator")],
        "http_version": "1.1",
        "scheme": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
    }
    await drive.app(scope, receive, send)
    return status, came


async def test_a_large_file_is_written_and_read_without_being_kept(tmp_path: Path) -> None:
    drive = open_drive(tmp_path, limit=SIZE)
    tracemalloc.start()
    try:
        assert (await call(drive, "PUT", "big", SIZE))[0] == 200
        assert (drive.root / "big").stat().st_size == SIZE
        assert await call(drive, "GET", "big", 0) == (200, SIZE)
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


@contextmanager
def serving(drive: Drive) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(drive.app, log_config=None, lifespan="off"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(WAIT)
        listener.close()


def test_over_a_real_connection_a_file_comes_back_as_it_was(tmp_path: Path) -> None:
    drive = open_drive(tmp_path, limit=SIZE)
    data = os.urandom(MIB) * 16
    with serving(drive) as port:
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
        line.request("PUT", "/v1/fs/file?path=big", body=data, headers=OPERATOR)
        answer = line.getresponse()
        assert answer.status == 200
        assert answer.read().endswith(b'"bytesWritten":16777216}')
        pieces = iter([data[:5], data[5:MIB]])
        line.request("PUT", "/v1/fs/file?path=chunked", body=pieces, headers=OPERATOR, encode_chunked=True)
        assert line.getresponse().read()
        line.request("GET", "/v1/fs/file?path=big", headers=OPERATOR)
        answer = line.getresponse()
        assert answer.getheader("content-length") == str(len(data))
        assert hashlib.sha256(answer.read()).digest() == hashlib.sha256(data).digest()
        line.close()
    assert (drive.root / "chunked").read_bytes() == data[:MIB]
    assert drive.leftovers() == []


def until(condition: Any) -> None:
    """Polls, with a bound: the other side of a connection gives no sign."""
    done = threading.Event()
    for _ in range(int(WAIT / 0.02)):
        if condition():
            return
        done.wait(0.02)
    raise AssertionError("it did not come to pass")


def held_open(folder: Path) -> int:
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found += each.readlink().is_relative_to(folder)
    return found


def asking(port: int, path: str, token: str) -> socket.socket:
    """Takes little into its own buffers, so that what is not read stays with the server."""
    line = socket.socket()
    line.settimeout(WAIT)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.connect(("127.0.0.1", port))
    line.sendall(
        f"GET /v1/fs/file?path={path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    )
    return line


def test_downloads_that_nobody_reads_keep_no_other_caller_out(tmp_path: Path) -> None:
    drive = open_drive(tmp_path, limit=SIZE)
    with (drive.root / "big").open("wb") as file:
        file.truncate(SIZE)
    with serving(drive) as port, ExitStack() as lines:
        begun = [lines.enter_context(asking(port, "big", "operator")) for _ in range(130)]
        answers = sorted(line.recv(12) for line in begun)  # and no more
        assert answers == [b"HTTP/1.1 200"] * 32 + [b"HTTP/1.1 429"] * 98
        other = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
        authorization = {"Authorization": "Bearer operator 2"}
        other.request("PUT", "/v1/fs/file?path=new", body=bytes(3 * MIB), headers=authorization)
        assert other.getresponse().read()
        other.request("GET", "/v1/fs/file?path=new", headers=authorization)
        assert len(other.getresponse().read()) == 3 * MIB
        other.close()


def test_a_connection_that_breaks_in_an_upload_or_a_download_leaves_nothing(tmp_path: Path) -> None:
    drive = open_drive(tmp_path, limit=SIZE)
    (drive.root / "big").write_bytes(bytes(32 * MIB))
    with serving(drive) as port:
        for request in (
            b"PUT /v1/fs/file?path=a.txt HTTP/1.1\r\nContent-Length: 1000000\r\n",
            b"GET /v1/fs/file?path=big HTTP/1.1\r\n",
        ):
            with socket.create_connection(("127.0.0.1", port), WAIT) as line:
                line.sendall(request + b"Host: x\r\nAuthorization: Bearer operator\r\n\r\n")
                if request.startswith(b"PUT"):
                    line.sendall(b"x" * 300_000)
                    until(lambda: len(drive.leftovers()) == 1)
                else:
                    assert line.recv(100)
                    assert held_open(drive.root) == 1
            until(lambda: drive.leftovers() == [] and held_open(drive.root) == 0)
    assert (drive.root / "a.txt").read_text() == "a"
