"""The server's end (INV-V1), with real processes and real signals; and its bounds on what a client may send."""

import asyncio
import fcntl
import os
import signal
import socket
import ssl
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import pytest
from starlette.types import Receive, Scope, Send
from tests.certificates import make_certificate
from tests.server.stream_client import LIMIT, chunks, frames, get
from tests.server.stream_server import Filling, Plan

from legation.errors import Conflict
from legation.server.address import listen
from legation.server.http import server as module
from legation.server.http.server import HEAD_LIMIT, Tls, UvicornServer

ROOT = Path(__file__).parents[2]
EXIT_LIMIT = 60.0  # seconds: the promise is one, which the benchmark `up` measures; this machine may be busy
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(120)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def stream_server(plan: Plan, home: Path) -> Iterator[subprocess.Popen[str]]:
    """A real process that listens when this is entered."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.server.stream_server", msgspec.json.encode(plan).decode()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
    )
    try:
        assert server.stdout
        assert server.stdout.readline() == "ready\n"
        yield server
    finally:
        server.kill()
        server.communicate()


def stop(server: subprocess.Popen[str], *signals: int) -> tuple[float, int, str]:
    """Seconds to the end, its exit code, and what it said."""
    started = time.monotonic()
    for number in signals:
        server.send_signal(number)
    server.wait(20)
    seconds = time.monotonic() - started
    return seconds, server.returncode, server.communicate()[1]


STILL_LOOKS = 6


async def until_stalled(connections: Sequence[asyncio.StreamWriter]) -> None:
    """Until each has something unread, and no more comes in: the server waits for them to read."""

    def unread() -> list[int]:
        sockets = [connection.get_extra_info("socket") for connection in connections]
        waiting = [fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)) for sock in sockets]
        return [int.from_bytes(count, sys.byteorder) for count in waiting]

    async with asyncio.timeout(LIMIT):
        still, now = 0, unread()
        while still < STILL_LOOKS:  # a producer on a loaded machine pauses, too
            await asyncio.sleep(0.1)
            before, now = now, unread()
            still = still + 1 if all(now) and now == before else 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_ends_soon_with_streams_open_idle_busy_and_stalled(tmp_path: Path, number: int) -> None:
    plan = Plan(
        free_port(),
        str(tmp_path),
        {"quiet": Filling(3), "busy": Filling(10**9, pause=0.01), "long": Filling(3000, 100, 10_000)},
    )
    with stream_server(plan, tmp_path) as server:
        idle = [await get(plan.port, "/v1/streams/quiet/sse") for _ in range(10)]
        busy = [await get(plan.port, "/v1/streams/busy/sse") for _ in range(10)]
        stalled = [await get(plan.port, "/v1/streams/long/sse") for _ in range(10)]
        await until_stalled([writer for _, writer, _, _ in stalled])
        seconds, code, said = await asyncio.to_thread(stop, server, number)
        for reader, writer, _, _ in idle:
            last = [frame async for frame in frames(reader)][-1]
            assert last == {"event": "bye", "data": '{"reason":"shutdown"}'}
            writer.close()
        for reader, writer, _, _ in stalled:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                _ = [chunk async for chunk in chunks(reader)]
            writer.close()
        for _, writer, _, _ in busy:
            writer.close()
    assert (code, said) == (0, "")
    assert seconds < EXIT_LIMIT


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    plan = Plan(free_port(), str(tmp_path), {"long": Filling(3000, 100, 10_000)})
    with stream_server(plan, tmp_path) as server:
        _, writer, _, _ = await get(plan.port, "/v1/streams/long/sse")
        seconds, code, said = await asyncio.to_thread(stop, server, signal.SIGTERM, signal.SIGTERM)
        writer.close()
    assert seconds < EXIT_LIMIT
    # The second may come when the first has done its work already, and then ends the process by itself.
    assert code in (0, -signal.SIGTERM)
    assert said == ""


@asynccontextmanager
async def running(server: UvicornServer, sock: socket.socket) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(server.serve_on([sock]))
    try:
        async with asyncio.timeout(LIMIT):
            while not server.started:
                await asyncio.sleep(0.001)
        yield task
    finally:
        server.stop()
        await asyncio.wait({task})


async def hang(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await asyncio.Event().wait()


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


async def served(sock: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*sock.getsockname())
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    async with asyncio.timeout(LIMIT):
        await reader.readuntil(b"ok")
    return reader, writer


async def gone(server: UvicornServer) -> None:
    """The server's side of each connection is closed: else the loop may end before it is."""
    async with asyncio.timeout(LIMIT):
        while server.server_state.connections:
            await asyncio.sleep(0.001)


async def test_a_request_that_does_not_end_is_cancelled_after_the_grace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sock = listen("127.0.0.1", 0)
    server = UvicornServer(hang, grace=0.1)
    async with running(server, sock) as task:
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(LIMIT):
            while not server.server_state.tasks:
                await asyncio.sleep(0.001)
            server.stop()
            await task
            assert await reader.read() == b""
        writer.close()
    assert not server.server_state.tasks
    assert "Traceback" not in caplog.text


async def test_it_is_ready_only_when_it_listens_and_tells_the_bodies_first() -> None:
    told: list[str] = []
    sock = listen("127.0.0.1", 0)
    address = sock.getsockname()

    def ready() -> None:
        socket.create_connection(address, timeout=5).close()
        told.append("ready")

    server = UvicornServer(echo, ready, lambda: told.append("exit"))
    async with running(server, sock):
        assert told == ["ready"]
        _, writer = await served(sock)  # after the first, which is accepted by now
        writer.close()
        await gone(server)
    assert told == ["ready", "exit"]


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * (3 * HEAD_LIMIT),
        b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x: yyyyyyyyyyyyyyyyyyyyyyyyyy\r\n" * (HEAD_LIMIT // 10),
        b"GET /" + b"y" * (3 * HEAD_LIMIT),
    ],
    ids=["one endless", "very many", "address"],
)
async def test_an_endless_head_is_refused(head: bytes) -> None:
    sock = listen("127.0.0.1", 0)
    server = UvicornServer(echo)
    async with running(server, sock), asyncio.timeout(LIMIT):
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(head)
        assert (await reader.read(12)) == b"HTTP/1.1 400"
        writer.close()
        await gone(server)


async def test_whoever_sends_no_request_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_TIMEOUT", 0.05)
    sock = listen("127.0.0.1", 0)
    async with running(UvicornServer(echo), sock), asyncio.timeout(LIMIT):
        for begun in (b"", b"GET / HTTP/1.1\r\nho", b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET / HT"):
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            writer.write(begun)
            answer = await reader.read()  # to the end of the connection
            assert answer.endswith(b"ok") == (b"\r\n\r\n" in begun)
            writer.close()


async def test_a_connection_serves_many_requests() -> None:
    sock = listen("127.0.0.1", 0)
    async with running(UvicornServer(echo), sock), asyncio.timeout(LIMIT):
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        for _ in range(3):
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            head = await reader.readuntil(b"ok")
            assert b"\r\nserver:" not in head.lower()
        writer.close()


async def test_a_reader_that_takes_nothing_is_dropped_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds a connection and a chunk for ever otherwise."""
    monkeypatch.setattr("legation.server.address.STALLED_LIMIT", 1.0)
    ended = asyncio.Event()

    async def flood(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while (await receive())["type"] != "http.disconnect":
                for _ in range(200):
                    await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
            ended.set()

    sock = listen("127.0.0.1", 0)
    async with running(UvicornServer(flood), sock), asyncio.timeout(LIMIT):
        reader, writer = await asyncio.open_connection(*sock.getsockname(), limit=1000)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await ended.wait()
        writer.transport.abort()
        del reader


def test_a_taken_port_is_one_clear_message() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(Conflict, match=f"cannot listen on 127.0.0.1:{port}: another program does"):
            listen("127.0.0.1", port)


async def test_tls_files_are_used(tmp_path: Path) -> None:
    tls = Tls(*make_certificate(tmp_path, "localhost"))
    sock = listen("127.0.0.1", 0)
    async with running(UvicornServer(echo, tls=tls), sock), asyncio.timeout(LIMIT):
        trust = ssl.create_default_context(cafile=tls.certificate)
        reader, writer = await asyncio.open_connection(
            *sock.getsockname(), ssl=trust, server_hostname="localhost"
        )
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_cut_body_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    plan = Plan(free_port(), str(tmp_path), {"quiet": Filling(3)})
    with stream_server(plan, tmp_path) as server:
        reader, writer, _, _ = await get(plan.port, "/v1/streams/quiet/sse")
        server.kill()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            _ = [chunk async for chunk in chunks(reader)]
        writer.close()


def test_what_is_there_when_a_server_listens_is_never_looked_through_for_garbage(tmp_path: Path) -> None:
    """It would hold the loop for tens of milliseconds, whenever an agent's input has made enough of other things."""
    source = """
import gc, os, signal, sys
from pathlib import Path
from legation.server.run import Up, run
from legation.settings import load

def announce(up):
    print(gc.get_freeze_count(), len(gc.get_objects()))
    os.kill(os.getpid(), signal.SIGTERM)

run(load({"data_dir": Path(sys.argv[1]), "port": 0}, {"HOME": sys.argv[1]}), mode="server", announce=announce)
"""
    done = subprocess.run(
        [sys.executable, "-c", source, str(tmp_path)],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"]},
        timeout=LIMIT,
        check=True,
    )
    kept, looked_through = map(int, done.stdout.split())
    assert kept > 10_000
    assert looked_through < 1_000
