"""The way to a caller: connections that are kept, lost, encrypted, or led by a proxy."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.certificates import make_certificate
from tests.runner.caller_server import TOKEN, Caller

from legation.errors import ConfigInvalid
from legation.runner.callback import Callback
from legation.wire.callbacks import ReportIds, signed_headers

IDS = ReportIds("run_1", "task_1", "box_1", "prompt_1")


async def beat(callback: Callback, number: int = 1, limit: float = 60) -> str:
    body = IDS.head("heartbeat", 0, None) + b"}"
    now = 1_790_000_000_000
    return str(
        await callback.post(body, lambda: signed_headers(TOKEN, body, now, f"nonce-{number:06}"), limit)
    )


async def test_one_connection_serves_many_reports() -> None:
    async with Caller() as caller, Callback(caller.url) as callback:
        assert [await beat(callback, number) for number in range(20)] == ["answer 200"] * 20
        assert len(caller.connections) == 1


async def test_a_connection_that_was_closed_meanwhile_is_no_trouble() -> None:
    async with Caller() as caller, Callback(caller.url) as callback:
        assert await beat(callback, 1) == "answer 200"
        caller.close_connections()
        assert await beat(callback, 2) == "answer 200"
        assert len(caller.beats) == 2


async def test_nobody_there_is_said_without_the_address() -> None:
    async with Callback("http://127.0.0.1:9/secret-path") as callback:
        said = await beat(callback)
    assert said == "the connection failed (ConnectionRefusedError)"


async def test_what_is_no_http_is_trouble() -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-hello\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    async with server, Callback(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/") as callback:
        assert await beat(callback) == "the connection failed (no HTTP)"


async def test_what_comes_before_an_answer_is_passed_over() -> None:
    """In the same piece as the answer, it was all that was seen."""

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            hints = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
            writer.write(hints + b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\nok")
            await reader.readuntil(b"}")
        writer.close()

    server = await asyncio.start_server(early, "127.0.0.1", 0)
    async with server, Callback(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/") as callback:
        assert [await beat(callback, number) for number in range(2)] == ["answer 202"] * 2


async def test_an_answer_may_end_with_its_connection() -> None:
    """As HTTP/1.0 has it; and the body is there where it is wanted."""

    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.0 200 OK\r\n\r\n{"commands": []}')
        writer.write_eof()
        await reader.read()  # closed with something unread it would be a reset, which may overtake the answer
        writer.close()

    server = await asyncio.start_server(old, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server, Callback(url) as callback, Callback(url, 1000) as commands:
        assert [await beat(callback, number) for number in range(2)] == ["answer 200"] * 2
        answer = await commands.get("after=0", dict, 60)
        assert (answer.status, answer.body) == (200, b'{"commands": []}')


@asynccontextmanager
async def endless_caller(begin: bytes) -> AsyncIterator[str]:
    """The address of one whose answer begins so and never ends. It is left when that is noticed."""
    ended = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begin)
        with suppress(ConnectionError):
            while True:
                writer.write(b"a" * 65536)
                await writer.drain()
        writer.close()
        ended.set()

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.wait_for(ended.wait(), 60)


ENDLESS_BODY = b"HTTP/1.1 200 OK\r\ncontent-length: 999999999999999999\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "said"),
    [
        (b"HTTP/1.1 200 OK\r\nx-long: ", "the connection failed (an endless answer)"),
        (ENDLESS_BODY, "answer 200"),
    ],
)
async def test_an_answer_without_end_is_not_waited_for(begin: bytes, said: str) -> None:
    async with endless_caller(begin) as url, Callback(url) as callback:
        assert await beat(callback) == said


async def test_an_answer_without_end_is_not_waited_for_behind_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with endless_caller(ENDLESS_BODY) as url:
        monkeypatch.setenv("http_proxy", url)
        async with Callback("http://caller.invalid/") as callback:
            assert await beat(callback) == "answer 200"


async def test_a_certificate_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = make_certificate(tmp_path, "localhost")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    async with Caller(tls=tls) as caller:
        url = caller.url.replace("http://127.0.0.1", "https://localhost")
        async with Callback(url) as callback:
            assert "the connection failed (SSL" in await beat(callback)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with Callback(url) as callback:
            assert await beat(callback) == "answer 200"
            assert await beat(callback, 2) == "answer 200"


async def test_a_proxy_of_the_environment_leads_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Caller() as caller:
        monkeypatch.setenv("HTTP_PROXY", caller.url.removesuffix("/reports"))
        async with Callback("http://caller.test/reports") as callback:
            assert await beat(callback) == "answer 200"
        assert caller.requests[0].headers["host"] == "caller.test"
        async with Callback(caller.url) as callback:  # no proxy leads to this machine
            assert await beat(callback, 2) == "answer 200"


def test_a_user_in_the_address_is_refused() -> None:
    with pytest.raises(ConfigInvalid, match="it has a user in it"):
        Callback("http://user:password@127.0.0.1/")
