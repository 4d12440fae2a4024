import asyncio
import base64
import json
import logging
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import make_certificate
from tests.gateway.backend import Backend, Reply, Seen

from legation.approvals.request import EffectToken, ToolReturn
from legation.gateway.http_tool import READ_OF_REFUSAL, SHOWN, HttpTool, new_transport
from legation.gateway.tools import HttpSpec, trace_id_of
from legation.redact import Redactor
from legation.secret import Secret
from legation.wire.action import Action

TOKEN = EffectToken("4bf92f3577b34da6a3ce929d0e0e4736", "0123456789abcdef")
KEY = "sk-4711-very-secret"


@asynccontextmanager
async def tool(url: str, **given: Any) -> AsyncIterator[HttpTool]:
    spec = HttpSpec(name="a.b", url=url, **given)
    transport = new_transport()
    try:
        yield HttpTool(spec, transport, Redactor(spec.secrets))
    finally:
        await transport.aclose()


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def streaming(answer: Answer, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server that answers as it likes, byte by byte; at the end nobody is left of it."""
    answering: set[asyncio.Task[object]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        answering.add(task)
        with suppress(ConnectionError):
            await answer(reader, writer)
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]
    await asyncio.wait_for(asyncio.gather(*answering), 60)


def action(**params: object) -> Action:
    return Action(agent="claude", tool="a.b", params=params)


async def call(url: str, params: dict[str, object] | None = None, **given: Any) -> ToolReturn:
    async with tool(url, **given) as one:
        return await one.call(action(**params or {}), TOKEN)


async def test_the_arguments_are_the_body_and_the_answer_is_the_result(backend: Backend) -> None:
    given = {"amount": 5, "to": ["ä", None], "deep": {"a": 1.5}, "big": 2**70}
    returned = await call(f"{backend.url}/x?v=1", given, headers={"X-Team": "platform"})
    assert returned == ToolReturn(status_code=200, result={"got": given})
    (seen,) = backend.seen
    assert (seen.method, seen.path, seen.json()) == ("POST", "/x?v=1", given)
    assert seen.headers["content-type"] == "application/json"
    assert seen.headers["x-team"] == "platform"
    assert seen.key == TOKEN.key
    assert seen.headers["legation-trace-id"] == TOKEN.trace_id
    assert trace_id_of(seen.headers["traceparent"]) == TOKEN.trace_id


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_other_methods_have_a_body_too(backend: Backend, method: str) -> None:
    await call(backend.url, {"a": 1}, method=method)
    assert [(seen.method, seen.json()) for seen in backend.seen] == [(method, {"a": 1})]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_without_a_body_the_arguments_are_the_query(backend: Backend, method: str) -> None:
    given = {"q": "a&b=ä", "n": 5, "f": 1.5, "yes": True, "none": None, "many": ["x", 2]}
    await call(f"{backend.url}/x?v=1", given, method=method)
    (seen,) = backend.seen
    assert seen.path == "/x?v=1&q=a%26b%3D%C3%A4&n=5&f=1.5&yes=true&many=x&many=2"
    assert seen.body == b""


@pytest.mark.parametrize(
    "params",
    [{"deep": {"a": 1}}, {"deep": [[1]]}, {"v": "2"}, {"long": "x" * 70_000}, {"half": "\ud800"}],
    ids=["map", "list", "taken", "long", "half"],
)
async def test_what_no_query_can_hold_is_not_sent(backend: Backend, params: dict[str, object]) -> None:
    returned = await call(f"{backend.url}/x?v=1", params, method="GET")
    assert returned.status_code == 502
    assert returned.error is not None
    assert returned.error.endswith("nothing was sent")
    assert backend.seen == []


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (Reply(body=b"[1, 2]"), [1, 2]),
        (Reply(body=b'{"a": 1}', media="application/hal+json; charset=utf-8"), {"a": 1}),
        (Reply(body=b'{"a": 1}', media="text/plain"), '{"a": 1}'),
        (Reply(body="grün\n".encode(), media=None), "grün\n"),
        (Reply(body="grün".encode("latin-1"), media="text/plain; charset=ISO-8859-1"), "grün"),
        (Reply(body=b"{broken"), "{broken"),
        (Reply(body=b"[" * 500 + b"]" * 500), "[" * 500 + "]" * 500),
        (Reply(201, b'"made"'), "made"),
        (Reply(body=b""), None),
        (Reply(204, b"", None), None),
        (Reply(body=b"null"), None),
    ],
)
async def test_an_answer_is_json_or_text(backend: Backend, answer: Reply, result: object) -> None:
    backend.answers["/"] = lambda _: answer
    assert await call(f"{backend.url}/") == ToolReturn(status_code=200, result=result)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Reply(body=b"\x89PNG\r\n\x1a\n\0\0", media="image/png"), "neither JSON nor text"),
        (Reply(body=b"abc\0def", media="text/plain"), "neither JSON nor text"),
        (Reply(body=b"\xff\xfea\0", media="text/plain; charset=utf-16"), "neither JSON nor text"),
        (Reply(body=b"x", media="text/plain; charset=zip"), "neither JSON nor text"),
        (Reply(body=b"x", headers={"Content-Encoding": "gzip"}), "compressed"),
        (Reply(body=b"x" * 101), "more than 100 bytes"),
        (Reply(302, headers={"Location": "/elsewhere"}), "not followed"),
    ],
)
async def test_an_answer_that_cannot_be_used_is_a_failure(backend: Backend, answer: Reply, says: str) -> None:
    backend.answers["/"] = lambda _: answer
    returned = await call(f"{backend.url}/", max_answer=100)
    assert (returned.status_code, returned.tool_status, returned.result) == (502, answer.status, None)
    assert says in (returned.error or "")
    assert len(backend.seen) == 1  # no redirect was followed


async def test_an_endless_answer_is_left_when_it_is_too_long() -> None:
    taken = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        while taken < 1 << 30:
            writer.write(b"x" * 65536)
            await writer.drain()
            taken += 65536

    async with streaming(pour) as port:
        returned = await call(f"http://127.0.0.1:{port}/", method="GET", max_answer=1000)
    assert "more than 1000 bytes" in (returned.error or "")
    assert taken < 64 << 20  # what the buffers of two sockets hold, and no more


async def test_a_refusal_is_told_with_a_piece_of_its_words(backend: Backend) -> None:
    backend.answers["/"] = lambda _: Reply(404, ("no such issue ä" * 100_000).encode(), "text/plain")
    returned = await call(f"{backend.url}/")
    assert (returned.status_code, returned.tool_status) == (502, 404)
    assert returned.error is not None
    assert returned.error.startswith("it answered 404: no such issue ä")
    assert len(returned.error) < SHOWN + 100
    backend.answers["/"] = lambda _: Reply(500, b"\x00\x01", "application/octet-stream")
    assert (await call(f"{backend.url}/")).error == "it answered 500 without any words"


async def test_a_tool_that_is_not_there_is_said_to_have_got_nothing() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        returned = await call(f"http://127.0.0.1:{taken.getsockname()[1]}/")
    assert returned == ToolReturn(status_code=502, error="it cannot be reached; nothing was sent")


async def test_a_slow_tool_has_its_time_and_no_more(backend: Backend) -> None:
    backend.free.clear()
    returned = await call(f"{backend.url}/", timeout=0.2)
    assert returned.status_code == 504
    assert returned.error == "it did not answer within 0.2 s; whether it has done its work is not known"


async def test_a_tool_that_trickles_has_no_more_time_than_another() -> None:
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with streaming(trickle) as port:
        assert (await call(f"http://127.0.0.1:{port}/", method="GET", timeout=0.3)).status_code == 504


async def test_an_answer_that_breaks_off_is_a_failure_and_is_not_asked_again(backend: Backend) -> None:
    backend.answers["/"] = lambda _: Reply(body=b'{"a": ', cut=True)
    returned = await call(f"{backend.url}/")
    assert returned.status_code == 502
    assert "broke off" in (returned.error or "")
    assert len(backend.seen) == 1


async def test_connections_are_kept_and_cookies_are_not(backend: Backend) -> None:
    backend.answers["/"] = lambda _: Reply(body=b"1", headers={"Set-Cookie": "session=of-another-agent"})
    async with tool(f"{backend.url}/") as one:
        for _ in range(3):
            assert (await one.call(action(), TOKEN)).result == 1
    assert len({seen.connection for seen in backend.seen}) == 1
    assert not any("cookie" in seen.headers for seen in backend.seen)


async def test_proxies_and_passwords_of_the_environment_are_not_used(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9/")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9/")
    assert (await call(f"{backend.url}/")).status_code == 200
    assert "authorization" not in backend.seen[0].headers


@pytest.mark.parametrize("status", [200, 500])
async def test_our_secrets_come_back_in_no_form(backend: Backend, status: int) -> None:
    forms = [KEY, KEY[3:], base64.b64encode(f"user:{KEY}".encode()).decode(), json.dumps(f"Bearer {KEY}")]

    def tell(seen: Seen) -> Reply:
        words = {"headers": dict(seen.headers), "b64": forms[2], "twice": json.dumps({"a": f"Bearer {KEY}"})}
        return Reply(status, json.dumps(words).encode())

    backend.answers["/"] = tell
    headers = {"Authorization": Secret(f"Bearer {KEY}", "GITHUB"), "X-Key": Secret(KEY, "PLAIN")}
    returned = await call(f"{backend.url}/", headers=headers)
    assert backend.seen[0].headers["authorization"] == f"Bearer {KEY}"
    text = repr(returned)
    assert "[redacted:" in text
    assert KEY not in text
    assert KEY[3:] not in text
    assert forms[2] not in text


async def test_no_secret_shows_where_a_refusal_is_cut(backend: Backend) -> None:
    for before in (SHOWN - 5, READ_OF_REFUSAL - 5):
        backend.answers["/"] = lambda _, before=before: Reply(400, b"x" * before + KEY.encode(), "text/plain")  # type: ignore[misc]
        returned = await call(f"{backend.url}/", headers={"X-Key": Secret(KEY, "PLAIN")})
        assert returned.error is not None
        assert KEY[:4] not in returned.error


async def test_no_address_argument_or_answer_is_logged(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    backend.answers["/"] = lambda _: Reply(500, b"canary-answer", "text/plain")
    await call(f"{backend.url}/", {"q": "canary-argument"}, method="GET", headers={"X-Key": Secret(KEY, "K")})
    assert re.search("canary|4711", caplog.text) is None


@pytest.mark.heavy
async def test_200_calls_at_once_do_not_wait_for_each_other(backend: Backend) -> None:
    backend.free.clear()
    async with tool(f"{backend.url}/") as one:
        calls = [
            asyncio.create_task(one.call(action(n=n), EffectToken(f"{n:032x}", None))) for n in range(200)
        ]
        await asyncio.to_thread(backend.wait_for, 200)  # all are there before the first is answered
        backend.free.set()
        returned = await asyncio.gather(*calls)
    assert [each.result for each in returned] == [{"got": {"n": n}} for n in range(200)]
    assert set(backend.counts().values()) == {1}


async def test_a_certificate_that_nobody_vouches_for_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = make_certificate(tmp_path, "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n1")
        await writer.drain()

    async with streaming(answer, context) as port:
        returned = await call(f"https://localhost:{port}/", method="GET")
        assert returned == ToolReturn(status_code=502, error="it cannot be reached; nothing was sent")
        assert heads == []
        monkeypatch.setenv(
            "SSL_CERT_FILE", str(certificate)
        )  # as an owner of an authority of one's own says it
        assert (await call(f"https://localhost:{port}/", method="GET")).result == 1


@pytest.mark.parametrize("status", [200, 400])
async def test_a_secret_is_found_behind_the_escapes_of_other_programs(backend: Backend, status: int) -> None:
    key = "sk+4711/very=secret"
    written = key.replace("+", "\\u002B").replace("=", "\\u003d").replace("v", "\\u0076")
    body = b'{"error": {"you sent": "Bearer ' + written.encode() + b'"}}'
    backend.answers["/x"] = lambda _: Reply(status, body)
    returned = await call(f"{backend.url}/x", headers={"Authorization": Secret(key, "KEY")})
    told = json.dumps(returned.result) + str(returned.error)
    assert "[redacted:KEY]" in told
    assert "4711" not in told
